"""Scores into the run that the training logged to, beside its curves."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from eval.publish.evaluated import Evaluated
from prompt_aug.base.files import read_text
from recipe.run import environment
from recipe.run.folder import RunFolder

SUFFIX = ".eval"  # of our event file, so that a second call replaces it


def scalars(checkpoint: Evaluated) -> Iterator[tuple[str, float]]:
    """(tag, value) of a checkpoint's scores."""
    for name, entry in checkpoint.benchmarks.items():
        yield f"eval/{name}/accuracy", float(entry["accuracy"])
        if entry["standard_error"] is not None:
            yield f"eval/{name}/standard_error", float(entry["standard_error"])
        for k, value in entry["pass_at_k"].items():
            yield f"eval/{name}/pass@{k}", float(value)
    average = checkpoint.record["average"]
    yield "eval/per_question/accuracy", float(average["per_question"]["accuracy"])
    yield "eval/per_benchmark/accuracy", float(average["per_benchmark"]["accuracy"])


def to_tensorboard(run: Path, checkpoints: Sequence[Evaluated]) -> Path:
    """Write an event file into RUN/tensorboard, in place of an earlier one of ours."""
    from torch.utils.tensorboard import SummaryWriter  # deferred: imports torch

    folder = Path(os.environ.get("TENSORBOARD_DIR", RunFolder(run).tensorboard))
    for old in folder.glob(f"events.out.tfevents.*{SUFFIX}"):
        old.unlink()
    with SummaryWriter(str(folder), filename_suffix=SUFFIX) as writer:
        for checkpoint in checkpoints:
            for tag, value in scalars(checkpoint):
                writer.add_scalar(tag, value, checkpoint.step)
    return folder


def to_wandb(run: Path, checkpoints: Sequence[Evaluated]) -> str:
    """Log into the training's wandb run (WANDB_MODE=offline: into a folder of RUN); its id.

    wandb's own step only grows and the training has moved it on, so scores have an axis of their
    own, `eval/step`.
    """
    import wandb

    environment.keep_wandb_run(RunFolder(run).wandb_run)
    trainer: Mapping[str, Any] = {}
    if RunFolder(run).config.exists():
        config = yaml.safe_load(read_text(RunFolder(run).config)) or {}
        trainer = config.get("trainer") or {}
    with wandb.init(
        project=trainer.get("project_name"),
        name=trainer.get("experiment_name"),
        id=os.environ["WANDB_RUN_ID"],
        resume="allow",
        dir=str(run),
    ) as session:
        session.define_metric("eval/step")
        session.define_metric("eval/*", step_metric="eval/step")
        for checkpoint in checkpoints:
            session.log({"eval/step": checkpoint.step, **dict(scalars(checkpoint))})
        return str(session.id)
