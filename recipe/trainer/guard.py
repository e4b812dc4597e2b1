"""The collapse guard: `verdict` detects a collapse in the metrics of a run.

``recipe.guard.action``: off; warn (a line in the log and ``guard/breach`` in metrics.jsonl); stop
(the run also saves and ends). Each message has the command that forks the run from its best
checkpoint with a lower learning rate and a KL penalty.
Low entropy is not a breach: on a toy model it fell as far in runs whose held-out accuracy rose to
0.8 as in runs that collapsed.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from prompt_aug.base.errors import UserError

RISES = ("train/entropy", "response_length/mean", "actor/grad_norm")
FALLS = ("response_length/mean", "train/accuracy")


class CollapseError(UserError, RuntimeError):
    """The guard has ended the run; its last finished step is saved."""


def verdict(history: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> str | None:
    """Return why the last line of `history` is a breach, or None.

    A breach: a metric is not finite; its median over ``window`` steps is more than ``factor`` times
    that of every earlier window (a metric of `RISES`) or less than 1 / ``factor`` of every one (of
    `FALLS`); or the last two validations of a source are both ``accuracy_drop`` below its best.
    """
    if not history:
        return None
    window, factor = settings["window"], settings["factor"]
    for key in dict.fromkeys((*RISES, *FALLS)):
        # metrics.jsonl has null for a value that is not finite.
        values = [math.nan if line[key] is None else line[key] for line in history if key in line]
        if key in history[-1] and not math.isfinite(values[-1]):
            return f"{key}={values[-1]}"
        medians = [
            statistics.median(values[end - window : end])
            for end in range(len(values), window - 1, -window)
        ]
        now, *before = medians or [0.0]
        # After zeros any value is a rise: groups without a signal have no gradient.
        rose = key in RISES and before and now > factor * max(before) > 0
        if rose or (key in FALLS and before and now * factor < min(before)):
            return f"{key}={now:.4g} (median of {window} steps), from {before[0]:.4g} before"
    for key in sorted(history[-1]):
        if key.startswith("val/") and key.endswith("/accuracy"):
            values = [float(line[key]) for line in history if key in line]
            if len(values) > 2 and max(values[-2:]) <= max(values[:-2]) - settings["accuracy_drop"]:
                return f"{key}={values[-1]:.3f}, twice in a row far below {max(values):.3f}"
    return None


def best_step(history: Sequence[Mapping[str, Any]], saved: Sequence[int]) -> int | None:
    """Return the first step of `saved` with the best accuracy, the mean over its sources."""
    scores: dict[int, float] = {}
    for line in history:
        values = [v for k, v in line.items() if k.startswith("val/") and k.endswith("/accuracy")]
        if values and line["step"] in saved:
            scores[line["step"]] = statistics.fmean(values)
    return max(scores, key=lambda step: (scores[step], -step), default=None)


def remedy(run: str, history: Sequence[Mapping[str, Any]], saved: Sequence[int], lr: float) -> str:
    """Return the command that forks `run` from its best saved step with a stated change."""
    if not saved:
        return "no checkpoint is saved: set trainer.save_freq"
    actor, best = "actor_rollout_ref.actor", best_step(history, saved) or min(saved)
    return (
        f"python -m recipe.fork {run} --step {best} {run}_guarded {actor}.optim.lr={lr / 2:g} "
        f"{actor}.use_kl_loss=true"
    )
