"""Scores in the tensorboard or wandb run of the training, beside its curves."""

import os
from collections.abc import Sequence
from pathlib import Path

from eval.publish.card import Evaluated
from recipe.run import environment
from recipe.run.folder import RunFolder, read_config, select

SUFFIX = ".eval"  # of our event file, which a second call replaces


def scalars(checkpoint: Evaluated) -> dict[str, float]:
    found = {}
    for name, entry in checkpoint.benchmarks.items():
        found[f"eval/{name}/accuracy"] = float(entry["accuracy"])
        if entry["standard_error"] is not None:
            found[f"eval/{name}/standard_error"] = float(entry["standard_error"])
        found |= {f"eval/{name}/pass@{k}": float(value) for k, value in entry["pass_at_k"].items()}
    for kind in ("per_question", "per_benchmark"):
        found[f"eval/{kind}/accuracy"] = float(checkpoint.record["average"][kind]["accuracy"])
    return found


def to_tensorboard(run: Path, checkpoints: Sequence[Evaluated]) -> Path:
    """Write an event file into RUN/tensorboard, replacing an earlier one of this command."""
    from torch.utils.tensorboard import SummaryWriter  # imports torch

    folder = Path(os.environ.get("TENSORBOARD_DIR", RunFolder(run).tensorboard))
    for old in folder.glob(f"events.out.tfevents.*{SUFFIX}"):
        old.unlink()
    with SummaryWriter(str(folder), filename_suffix=SUFFIX) as writer:
        for checkpoint in checkpoints:
            for tag, value in scalars(checkpoint).items():
                writer.add_scalar(tag, value, checkpoint.step)
    return folder


def to_wandb(run: Path, checkpoints: Sequence[Evaluated]) -> str:
    """Log into the training's wandb run (WANDB_MODE=offline: a folder of RUN); return its id."""
    import wandb

    folder = RunFolder(run)
    environment.keep_wandb_run(folder.wandb_run)
    config = read_config(run) if folder.config.exists() else {}
    with wandb.init(
        project=select(config, "trainer.project_name"),
        name=select(config, "trainer.experiment_name"),
        id=os.environ["WANDB_RUN_ID"],
        resume="allow",
        dir=str(run),
    ) as session:
        session.define_metric("eval/step")  # wandb's own step cannot go back
        session.define_metric("eval/*", step_metric="eval/step")
        for checkpoint in checkpoints:
            session.log({"eval/step": checkpoint.step, **scalars(checkpoint)})
        return str(session.id)


LOGGERS = {"tensorboard": to_tensorboard, "wandb": to_wandb}
