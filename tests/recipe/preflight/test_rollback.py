"""A roll-back of a run folder: its settings, checkpoints and lines, also after a kill."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from composed import composed
from omegaconf import DictConfig, OmegaConf
from saved_checkpoint import save

from prompt_aug.base.files import read_lines, write_lines
from recipe.errors import ConfigError
from recipe.preflight import checks, resume
from recipe.run import checkpoints, rollbacks
from recipe.run.folder import RunFolder

pytestmark = pytest.mark.config
ACTOR = "actor_rollout_ref.actor"
REF = "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu"
LR, KL, COEFFICIENT = f"{ACTOR}.optim.lr", f"{ACTOR}.use_kl_loss", f"{ACTOR}.kl_loss_coef"


def small(lr: float = 1e-4, factor: float = 0.5, coefficient: float | None = None) -> DictConfig:
    rollback = {"lr_factor": factor, "kl_loss_coef": coefficient, "times": 2}
    actor = {"optim": {"lr": lr}, "use_kl_loss": False, "kl_loss_coef": 0.001}
    recipe = {"guard": {"rollback": rollback}}
    return OmegaConf.create({"recipe": recipe, "actor_rollout_ref": {"actor": actor}})


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (small(), {LR: [1e-4, 5e-5]}),
        (small(4e-4, 0.25), {LR: [4e-4, 1e-4]}),
        (small(1, coefficient=0.1), {LR: [1, 0.5], KL: [False, True], COEFFICIENT: [0.001, 0.1]}),
        (small(1, coefficient=0.001), {LR: [1, 0.5], KL: [False, True]}),
    ],
)
def test_a_roll_back_changes(config: DictConfig, expected: dict[str, Any]) -> None:
    assert rollbacks.change(config) == expected


@pytest.mark.parametrize(
    ("lr", "after"),
    [
        (8e-4, 2e-4),
        (2e-4, 2e-4),  # done already
        (3e-4, 3e-4),  # not the run's: the check of a resumed run reports it
    ],
)
def test_two_roll_backs_apply_one_after_the_other(tmp_path: Path, lr: float, after: float) -> None:
    for number, before in enumerate((8e-4, 4e-4), start=1):
        config = small(before)
        config.recipe.run_dir = str(tmp_path)
        told = rollbacks.decide(config, step=9, to=5, why="x=1")
        assert f"roll-back {number} at step 9 to step 5" in told and f"={before / 2}" in told
    config = small(lr)
    for _ in range(2):
        rollbacks.apply(config, tmp_path)
        assert OmegaConf.select(config, LR) == after


def configured(root: Path, *overrides: str) -> DictConfig:
    config = composed("toy", "recipe.guard.action=rollback", *overrides).copy()
    config.recipe.run_dir, config.recipe.toy.cache = str(root / "run"), str(root / "cache")
    config.trainer.default_local_dir = str(root / "run" / "checkpoints")
    return config


SAVED = ("trainer.save_freq=1", "trainer.test_freq=1")


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Six steps with checkpoints 1 to 5, and the decision to go back from 6 to 2."""
    config, folder = configured(tmp_path, *SAVED), RunFolder(tmp_path / "run")
    checks.check(config)
    for step in range(1, 6):
        save(folder.checkpoints, step, config.actor_rollout_ref.actor.optim.lr)
    (folder.checkpoints / checkpoints.TRACKER).write_text("5")
    folder.config.write_text(OmegaConf.to_yaml(config, resolve=True))
    lines = [{"step": n, "x": None if n == 6 else n} for n in range(1, 7)]
    folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    rollbacks.decide(config, step=6, to=2, why="x=6")
    return folder


def rate(folder: RunFolder) -> tuple[float, list[float]]:
    actor = folder.checkpoint(2) / "actor"
    optimizer = torch.load(actor / "optim_world_size_1_rank_0.pt")["param_groups"][0]
    schedule = torch.load(actor / "extra_state_world_size_1_rank_0.pt")["lr_scheduler"]
    return optimizer["lr"], schedule["base_lrs"]


PARTS = [
    (resume, "restate"),
    (resume, "write_text"),
    (checkpoints, "delete"),
    (rollbacks, "discard_metrics"),
    (rollbacks, "settled"),
]


@pytest.mark.parametrize("killed", [None, *PARTS])
def test_a_start_carries_it_out_once_even_after_a_kill(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, killed: tuple[Any, str] | None
) -> None:
    """`killed`: before this part."""
    first = OmegaConf.select(OmegaConf.load(run.config), LR)
    config = configured(run.root.parent, *SAVED)
    checks.check(config)  # accepted as the same run
    assert OmegaConf.select(config, LR) == first / 2
    if killed is not None:

        def die(*arguments: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(*killed, die)
            resume.carry_out_rollback(config)
    (told,) = resume.carry_out_rollback(config)
    assert told.startswith("roll-back 1 at step 6 to step 2 with ")
    assert rate(run) == (first / 2, [first / 2])
    assert checkpoints.tracked_step(run.checkpoints) == 2
    assert checkpoints.saved_steps(run.checkpoints) == [1, 2]
    assert read_lines(run.metrics) == [{"step": 1, "x": 1}, {"step": 2, "x": 2}]
    gone = [(line["step"], line["rollback"], line["x"]) for line in read_lines(run.discarded)]
    assert gone == [(3, 1, 3), (4, 1, 4), (5, 1, 5), (6, 1, None)]
    # The next start finds nothing to do, whatever was trained since.
    with run.metrics.open("a") as file:
        file.write('{"step": 3, "x": 33}\n')
    assert resume.carry_out_rollback(config) == []
    assert [line["step"] for line in read_lines(run.metrics)] == [1, 2, 3]


def test_discarded_lines_are_kept_once(tmp_path: Path) -> None:
    """The first roll-back is repeated, after a kill between the writes of the two files."""
    folder = RunFolder(tmp_path)
    for number, last in ((1, 3), (1, 3), (2, 2)):
        write_lines(folder.metrics, [{"step": n} for n in range(1, last + 1)])
        rollbacks.discard_metrics(tmp_path, {"rollback": number, "to": 1})
    gone = [(line["rollback"], line["step"]) for line in read_lines(folder.discarded)]
    assert gone == [(1, 2), (1, 3), (2, 2)]


def test_a_rolled_back_run_is_resumed_with_its_own_settings_only(run: RunFolder) -> None:
    with pytest.raises(ConfigError, match=rf"other settings \({LR}\)"):
        checks.check(configured(run.root.parent, *SAVED, f"{LR}=3e-3"))
    config = configured(run.root.parent, *SAVED, "recipe.guard.action=off")
    checks.check(config)
    assert OmegaConf.select(config, LR) < OmegaConf.select(OmegaConf.load(run.config), LR)


def test_the_settings_after_a_roll_back_are_checked_too(tmp_path: Path) -> None:
    """It adds a reference model, with micro-batches that do not fit."""
    with pytest.raises(ConfigError, match=f"{REF}=7"):
        checks.validate(
            configured(tmp_path, *SAVED, "recipe.guard.rollback.kl_loss_coef=0.1", f"{REF}=7")
        )
