"""A run that begins from the checkpoint of another: what it takes, shares, and saves."""

from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from saved_checkpoint import save

from prompt_aug.base.files import write_json
from recipe.config.compose import compose_config
from recipe.errors import ConfigError
from recipe.preflight import checks, resume
from recipe.run import checkpoints
from recipe.run.folder import RunFolder

pytestmark = pytest.mark.config
LR = "actor_rollout_ref.actor.optim.lr"


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run with the checkpoints 1 and 2."""
    folder = RunFolder(tmp_path / "run")
    config = compose_config("toy", [f"recipe.run_dir={folder.root}"])
    for step in (1, 2):
        save(folder.checkpoints, step, config.actor_rollout_ref.actor.optim.lr)
    return folder


def words(run: RunFolder, step: int, *more: str) -> list[str]:
    path = f"trainer.resume_from_path={run.checkpoint(step)}"
    new = run.root.parent / "new"
    return [f"recipe.run_dir={new}", "trainer.resume_mode=resume_path", path, *more]


def test_another_learning_rate_reaches_the_saved_optimizer(run: RunFolder) -> None:
    config = compose_config("toy", words(run, 1, f"{LR}=3e-6"))
    checks.check(config)
    assert resume.repair_checkpoints(config) == []
    new = RunFolder(run.root.parent / "new")

    def read(folder: RunFolder, kind: str) -> Any:
        path = folder.checkpoint(1) / "actor" / f"{kind}_world_size_1_rank_0.pt"
        return torch.load(path, weights_only=True)

    (group,), schedule = read(new, "optim")["param_groups"], read(new, "extra_state")
    assert group["lr"] == pytest.approx(3e-6) and group["initial_lr"] == 3e-6
    assert schedule["lr_scheduler"]["base_lrs"] == [3e-6]
    assert read(run, "optim")["param_groups"][0]["lr"] > 3e-6  # the run's own files are as before
    # Hard links: a run that saves the step once more writes into files of its own.
    checkpoints.begin(run.checkpoint(1))
    assert not list(run.checkpoint(1).glob("actor/model_*")) and read(new, "model")["w"][0] == 1


def test_a_run_begins_from_the_checkpoint_of_another_and_resumes_its_own(run: RunFolder) -> None:
    new = RunFolder(run.root.parent / "new")
    config = compose_config("toy", words(run, 1))
    checks.check(config)
    assert resume.repair_checkpoints(config) == []
    assert checkpoints.tracked_step(new.checkpoints) == 1
    save(new.checkpoints, 5, 1e-4)
    (new.checkpoints / checkpoints.TRACKER).write_text("5")
    write_json(new.checkpoint(5) / checkpoints.STATE, {"line": {"step": 5}})  # then a kill
    assert "step 5 in metrics.jsonl" in resume.repair_checkpoints(config)[0]
    assert resume.repair_checkpoints(config) == []
    assert checkpoints.tracked_step(new.checkpoints) == 5  # a requeued run does not start anew


def test_what_does_not_fit_is_refused(run: RunFolder) -> None:
    old = compose_config("toy", [f"recipe.run_dir={run.root}"])
    run.config.write_text(OmegaConf.to_yaml(old, resolve=True))
    for step, key, message in (
        (3, "", "no such folder"),
        (1, "trainer.resume_from_path=null", "RUN/checkpoints"),
        (1, "recipe.seed=1", "other values of data.seed"),
    ):
        with pytest.raises(ConfigError, match=message):
            checks.check(compose_config("toy", words(run, step, *filter(None, [key]))))
