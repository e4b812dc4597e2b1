"""A fork: its folder, its provenance, what it shares with the run, and what is refused."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from saved_checkpoint import save

from prompt_aug.base.files import lock, read_json, read_lines, write_json
from recipe import fork, train
from recipe.config import compose
from recipe.config.compose import compose_config
from recipe.errors import ConfigError
from recipe.preflight import checks, resume
from recipe.run import checkpoints, host
from recipe.run.folder import RunFolder, read_metrics
from recipe.trainer import launch

pytestmark = pytest.mark.config
LR = "actor_rollout_ref.actor.optim.lr"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run of three steps with the checkpoints 1 and 2, and its recorded command."""
    monkeypatch.setattr(launch, "set_environment", lambda config: None)
    folder = RunFolder(tmp_path / "run")
    words = ["toy", f"recipe.run_dir={folder.root}"]
    config = compose_config(words[0], words[1:])
    checks.check(config).write(folder.prompts)
    for step in (1, 2):
        save(folder.checkpoints, step, config.actor_rollout_ref.actor.optim.lr)
    (folder.checkpoints / checkpoints.TRACKER).write_text("2")
    folder.config.write_text(OmegaConf.to_yaml(config, resolve=True))
    write_json(folder.data_manifest, {"train": {"digest": "a"}})
    folder.metrics.write_text("".join(json.dumps({"step": n}) + "\n" for n in (1, 2, 3)))
    write_json(
        folder.environment, {"command": shlex.join(["python", "-m", "recipe.train", *words])}
    )
    return folder


def call(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str]:
    code = fork.main([str(x) for x in arguments])
    output = capsys.readouterr()
    return code, output.out + output.err


def forked(run: RunFolder, capsys: pytest.CaptureFixture[str], step: int, *more: str) -> RunFolder:
    new = RunFolder(run.root.parent / "new")
    code, output = call(capsys, run.root, "--step", step, new.root, *more)
    assert code == 0, output
    return new


def test_a_fork_has_the_checkpoint_and_both_folders_record_it(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    new = RunFolder(run.root.parent / "new")
    left = run.root.parent / ".new.fork" / "half"  # by a killed call
    left.mkdir(parents=True)
    code, output = call(capsys, run.root, "--step", 2, new.root)
    assert code == 0, output
    assert not left.exists()
    assert checkpoints.tracked_step(new.checkpoints) == 2
    assert checkpoints.damage(new.checkpoint(2)) is None and not new.checkpoint(1).exists()
    assert [line["step"] for line in read_metrics(new.root)] == [1, 2]
    # Compared at the next start; functions may be others than the run's.
    assert read_json(new.data_manifest) == {"train": {"digest": "a"}, "own_functions": {}}
    assert new.prompts.read_text() == run.prompts.read_text()
    record = read_json(new.fork)
    assert (record["run"], record["step"], record["overrides"]) == (str(run.root), 2, [])
    assert read_lines(run.forks) == [record]
    # The printed command passes the checks, as a resume of the same experiment.
    assert train.main([*shlex.split(output.splitlines()[1])[3:], "--dry-run"]) == 0
    # Hard links: a run that saves the step once more writes into files of its own.
    shard = new.checkpoint(2) / "actor" / "model_world_size_1_rank_0.pt"
    before = shard.read_bytes()
    checkpoints.begin(run.checkpoint(2))
    assert not (run.checkpoint(2) / "actor" / shard.name).exists()
    assert shard.read_bytes() == before


def test_another_learning_rate_reaches_the_saved_optimizer(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    new = forked(run, capsys, 1, f"{LR}=3e-6", "recipe.save_rollouts_every=2")

    def read(folder: RunFolder, kind: str) -> Any:
        path = folder.checkpoint(1) / "actor" / f"{kind}_world_size_1_rank_0.pt"
        return torch.load(path, weights_only=True)

    (group,), schedule = read(new, "optim")["param_groups"], read(new, "extra_state")
    assert group["lr"] == pytest.approx(3e-6) and group["initial_lr"] == 3e-6
    assert schedule["lr_scheduler"]["base_lrs"] == [3e-6]
    assert read(run, "optim")["param_groups"][0]["lr"] > 3e-6  # the run's own files are as before
    assert OmegaConf.select(OmegaConf.load(new.config), LR) == 3e-6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--step", "7", "NEW"], "global_step_7 cannot be used: there is no such folder."),
        (["--step", "2", "RUN"], "it exists already"),
        (["--step", "2", "NEW", "recipe.seed=1"], "data.seed: "),
    ],
)
def test_bad_forks_are_refused_and_leave_nothing(
    run: RunFolder, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    names = {"NEW": str(run.root.parent / "new"), "RUN": str(run.root)}
    code, output = call(capsys, run.root, *(names.get(a, a) for a in arguments))
    assert code == 1 and message in output and "Traceback" not in output
    assert not run.forks.exists() and not list(run.root.parent.glob("*new*"))


def test_a_fork_that_switches_a_feature_off_drops_its_keys() -> None:
    loss = "actor_rollout_ref.actor.policy_loss"
    given = ["toy_methods", f"{loss}.loss_mode=clip_cov", f"{loss}.clip_cov_ratio=0.002"]
    arguments, _ = fork.composed(given, [f"{loss}.loss_mode=vanilla"])
    assert arguments == ["toy_methods", f"{loss}.loss_mode=vanilla"]
    assert fork.composed(given, ["recipe.seed=7"])[0] == [*given, "recipe.seed=7"]


def test_a_live_run_is_not_forked(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    with lock(run.root):
        code, output = call(capsys, run.root, "--step", 2, run.root.parent / "new")
    assert code == 1 and "in use by process" in output
    forked(run, capsys, 2)


def test_a_run_begins_from_the_checkpoint_of_another_and_resumes_its_own(run: RunFolder) -> None:
    new = RunFolder(run.root.parent / "new")
    words = ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={run.checkpoint(1)}"]
    words += [f"recipe.run_dir={new.root}"]
    config = compose_config("toy", words)
    checks.check(config)
    assert resume.repair_checkpoints(config) == []
    assert checkpoints.tracked_step(new.checkpoints) == 1
    save(new.checkpoints, 5, 1e-4)
    (new.checkpoints / checkpoints.TRACKER).write_text("5")
    state = {"batches_fetched": 5, "line": {"step": 5}}  # then a kill
    write_json(new.checkpoint(5) / checkpoints.STATE, state)
    assert "step 5 in metrics.jsonl" in resume.repair_checkpoints(config)[0]
    assert resume.repair_checkpoints(config) == []
    assert checkpoints.tracked_step(new.checkpoints) == 5  # a requeued run does not start anew
    third = [f"recipe.run_dir={run.root.parent / 'third'}", words[0]]
    for path, message in ((run.checkpoint(3), "no such folder"), ("null", "RUN/checkpoints")):
        with pytest.raises(ConfigError, match=message):
            checks.check(compose_config("toy", [*third, f"trainer.resume_from_path={path}"]))


PROGRAM = """
import sys
from pathlib import Path
from omegaconf import OmegaConf
from saved_checkpoint import save
from prompt_aug.base.files import write_json
from recipe import fork, train
from recipe.config.base import ROOT, quoted
from recipe.config.compose import compose_config
from recipe.run import environment, host
from recipe.run.folder import RunFolder

name = sys.argv[1]
assert host.ROOT.name == name
run, new = RunFolder(Path("runs", name).resolve()), Path("runs", f"new {name}").resolve()
words = ["toy", f"recipe.run_dir=runs/{name}"]
assert train.main([*words, "--dry-run"]) == 0
config = compose_config(words[0], words[1:])
save(run.checkpoints, 1, config.actor_rollout_ref.actor.optim.lr)
run.config.write_text(OmegaConf.to_yaml(config, resolve=True))
write_json(run.environment, {"command": fork.python_command("recipe.train", *words)})
assert fork.main([str(run.root), "--step", "1", str(new)]) == 0
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
    printed = shlex.split(done.stdout.splitlines()[-1])
    (override,) = (word for word in printed if word.startswith("recipe.run_dir="))
    assert compose.parsed(override).value() == str(tmp_path / name / "runs" / f"new {name}")
