"""Roll-backs of a run to an earlier checkpoint, by ``recipe.guard.action=rollback``.

    trainer        adds a line to rollbacks.jsonl at the alarm, and ends
    recipe.train   restarts itself; after a kill, the user's command does the same
    the restart    `apply` changes the settings; recipe.preflight.resume changes the checkpoints

The next start carries out the last line before anything else and marks it as ``settled``. Every
part can be repeated, so after a kill at any moment the same command continues.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from prompt_aug.base.files import append_lines, read_lines, write_lines
from recipe.run.folder import RunFolder

ACTOR = "actor_rollout_ref.actor"


def records(run_dir: Path) -> list[dict[str, Any]]:
    """Return the roll-backs of a run in order."""
    return read_lines(RunFolder(run_dir).rollbacks)


def pending(run_dir: Path) -> dict[str, Any] | None:
    """Return the last roll-back if no start has carried it out yet."""
    last = (records(run_dir) or [{"settled": True}])[-1]
    return None if last.get("settled") else last


def change(config: DictConfig) -> dict[str, list[Any]]:
    """Return the settings that the next roll-back changes: key -> [before, after]."""
    told, actor = config.recipe.guard.rollback, config.actor_rollout_ref.actor
    after = {f"{ACTOR}.optim.lr": actor.optim.lr * told.lr_factor}
    if told.kl_loss_coef is not None:
        after |= {f"{ACTOR}.use_kl_loss": True, f"{ACTOR}.kl_loss_coef": told.kl_loss_coef}
    pairs = {key: [OmegaConf.select(config, key), value] for key, value in after.items()}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def decide(config: DictConfig, *, step: int, to: int, why: str) -> str:
    """Record a roll-back from `step` to the checkpoint `to`; returns its description."""
    run_dir = Path(config.recipe.run_dir)
    number = len(records(run_dir)) + 1
    record = {"rollback": number, "step": step, "to": to, "why": why, "change": change(config)}
    append_lines(RunFolder(run_dir).rollbacks, [record], sync=True)
    return describe(record)


def describe(record: Mapping[str, Any]) -> str:
    new = ", ".join(f"{key}={after}" for key, (_, after) in record["change"].items())
    told = f"roll-back {record['rollback']} at step {record['step']} to step {record['to']}"
    return f"{told} with {new}, because of {record['why']}"


def apply(config: DictConfig, run_dir: Path) -> None:
    """Change the settings by the roll-backs of `run_dir`; a second call changes nothing.

    A setting whose value is not the recorded one is left: the check of a resumed run reports it.
    """
    for record in records(run_dir):
        for key, (before, after) in record["change"].items():
            if OmegaConf.select(config, key) == before:
                OmegaConf.update(config, key, after)


def discard_metrics(run_dir: Path, record: Mapping[str, Any]) -> None:
    """Move the lines after the step of the roll-back to metrics.discarded.jsonl, marked with it."""
    folder, number = RunFolder(run_dir), record["rollback"]
    lines = read_lines(folder.metrics)
    gone = [{**line, "rollback": number} for line in lines if line["step"] > record["to"]]
    if gone:
        before = [line for line in read_lines(folder.discarded) if line["rollback"] != number]
        write_lines(folder.discarded, [*before, *gone])
        write_lines(folder.metrics, (line for line in lines if line["step"] <= record["to"]))


def settled(run_dir: Path) -> None:
    """Mark the last roll-back as carried out."""
    *before, last = records(run_dir)
    write_lines(RunFolder(run_dir).rollbacks, [*before, {**last, "settled": True}])
