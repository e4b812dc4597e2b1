"""A new run from the checkpoint of another: what it takes, and what is refused."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from saved_checkpoint import save

from prompt_aug.base.files import write_json
from recipe.config.compose import compose_config
from recipe.errors import ConfigError
from recipe.machine import host
from recipe.run import checkpoints
from recipe.run.folder import RunFolder
from recipe.start import checks, resume
from recipe.start.rules import Setup

pytestmark = pytest.mark.config


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run with the checkpoints 1 and 2."""
    folder = RunFolder(tmp_path / "run")
    config = compose_config("toy", [f"recipe.run_dir={folder.root}"])
    for step in (1, 2):
        save(folder.checkpoints, step, config.actor_rollout_ref.actor.optim.lr)
    (folder.checkpoints / checkpoints.TRACKER).write_text("2")
    folder.config.write_text(OmegaConf.to_yaml(config, resolve=True))
    return folder


def begun_at(checkpoint: object, new: RunFolder, *more: str) -> list[str]:
    """The overrides of a run from a checkpoint."""
    words = ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={checkpoint}"]
    return [*words, f"recipe.run_dir={new.root}", *more]


def test_a_run_begins_from_the_checkpoint_of_another_and_resumes_its_own(run: RunFolder) -> None:
    new = RunFolder(run.root.parent / "new")
    setup = Setup(compose_config("toy", begun_at(run.checkpoint(1), new)))
    checks.check_run(setup)
    assert resume.repair_checkpoints(setup) == []
    assert checkpoints.tracked_step(new.checkpoints) == 1
    assert checkpoints.damage(new.checkpoint(1)) is None and not new.checkpoint(2).exists()
    # Hard links: a run that saves the step once more writes into files of its own.
    shard = new.checkpoint(1) / "actor" / "model_world_size_1_rank_0.pt"
    before = shard.read_bytes()
    checkpoints.begin(run.checkpoint(1))
    assert not (run.checkpoint(1) / "actor" / shard.name).exists()
    assert shard.read_bytes() == before
    save(new.checkpoints, 5, 1e-4)
    (new.checkpoints / checkpoints.TRACKER).write_text("5")
    state = {"batches_fetched": 5, "line": {"step": 5}}  # then a kill
    write_json(new.checkpoint(5) / checkpoints.STATE, state)
    assert "step 5 in metrics.jsonl" in resume.repair_checkpoints(setup)[0]
    assert resume.repair_checkpoints(setup) == []
    assert checkpoints.tracked_step(new.checkpoints) == 5  # a requeued run does not start anew


@pytest.mark.parametrize(
    "content", ["[]", "null", '{"train": 1}', '{"train": {"steps_per_epoch": "x"}}']
)
def test_a_manifest_of_another_kind_is_named(run: RunFolder, content: str) -> None:
    run.data_manifest.parent.mkdir()
    run.data_manifest.write_text(content)
    with pytest.raises(ConfigError, match=str(run.data_manifest)):
        checks.check_run(Setup(compose_config("toy", [f"recipe.run_dir={run.root}"])))


def test_a_link_is_the_checkpoint_that_it_names(run: RunFolder) -> None:
    (link := run.root / "best").symlink_to(run.checkpoint(1))
    new = RunFolder(run.root.parent / "new")
    setup = Setup(compose_config("toy", begun_at(link, new)))
    checks.check_run(setup)
    assert resume.repair_checkpoints(setup) == []
    assert checkpoints.tracked_step(new.checkpoints) == 1 and new.checkpoint(1).is_dir()
    run.checkpoints.rename(disk := run.root.parent / "disk")
    run.checkpoints.symlink_to(disk)
    third = RunFolder(run.root.parent / "third")
    with pytest.raises(ConfigError, match="other values"):
        checks.check_run(
            Setup(compose_config("toy", begun_at(run.checkpoint(2), third, "recipe.seed=1")))
        )
    run.checkpoint(1).rename(run.checkpoints / "step_1")
    other = RunFolder(run.root.parent / "other")
    with pytest.raises(ConfigError, match="Rename it"):
        checks.check_run(Setup(compose_config("toy", begun_at(run.checkpoints / "step_1", other))))


def test_a_checkpoint_that_cannot_begin_a_run_is_refused(run: RunFolder) -> None:
    new = RunFolder(run.root.parent / "new")
    for path, more, message in (
        (run.checkpoint(3), (), "no such folder"),
        ("null", (), "RUN/checkpoints"),
        (run.checkpoint(2), ("recipe.seed=1",), "data.seed"),
    ):
        with pytest.raises(ConfigError, match=message):
            checks.check_run(Setup(compose_config("toy", begun_at(path, new, *more))))
    assert not new.root.exists()


@pytest.mark.parametrize("version", [1, 2])
def test_a_run_begins_on_fewer_ranks_than_its_checkpoint(tmp_path: Path, version: int) -> None:
    new, old = RunFolder(tmp_path / "new"), save(tmp_path, 1, ranks=2)
    write_json(old / "actor" / checkpoints.RANKS, {"FSDP_version": version, "world_size": 2})
    setup = Setup(compose_config("toy", begun_at(old, new)))
    if version == 1:
        with pytest.raises(ConfigError, match=r"cannot be divided: .*strategy"):
            resume.repair_checkpoints(setup)
        return
    (message,) = resume.repair_checkpoints(setup)
    assert "over 1 ranks instead of 2" in message
    assert checkpoints.damage(new.checkpoint(1)) is None
    assert checkpoints.saved_ranks(new.checkpoint(1) / "actor") == 1
    assert checkpoints.damage(old) is None


PROGRAM = """
import sys
from pathlib import Path
from omegaconf import OmegaConf
from saved_checkpoint import save
from recipe import train
from recipe.config.compose import compose_config
from recipe.machine import host
from recipe.run.folder import RunFolder

name = sys.argv[1]
assert host.ROOT.name == name
run = RunFolder(Path("runs", name).resolve())
words = ["toy", f"recipe.run_dir=runs/{name}"]
assert train.main([*words, "--dry-run"]) == 0
config = compose_config(words[0], words[1:])
assert Path(config.recipe.run_dir).resolve() == run.root
save(run.checkpoints, 1)
run.config.write_text(OmegaConf.to_yaml(config, resolve=True))
words[1] = f"recipe.run_dir=runs/new {name}"
words += ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={run.checkpoint(1)}"]
assert train.main([*words, "--dry-run"]) == 0
"""


def test_a_checkout_and_a_run_may_have_any_characters(tmp_path: Path) -> None:
    name = "rlvr (1) ü, x = o'y"
    for part in ("recipe", "prompt_aug", "examples/toy"):
        shutil.copytree(host.ROOT / part, tmp_path / name / part)
    paths = [tmp_path / name, host.ROOT / "tests" / "helpers"]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, name],
        cwd=tmp_path / name,
        env=variables,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
