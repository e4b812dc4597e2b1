"""Without a window the asynchronous trainer trains the synchronous trainer's tokens."""

from typing import Any

import numpy as np
import pytest
from method_runs import ONE_UPDATE, Runner

from prompt_aug.base.files import read_lines
from recipe.run.folder import RunFolder

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2400)]
STEPS = 3
NO_WINDOW = [
    "trainer.v1.trainer_mode=recipe_colocate_async",
    "trainer.v1.colocate_async.num_warmup_batches=0",
    "algorithm.rollout_correction.rollout_is=null",
]
# Values of the clock and of the machine's load, and those of one mode only.
OTHER = ("timing", "perf/", "actor/perf", "train/wall_seconds", "replay_buffer/", "staleness/")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    runs = Runner(tmp_path_factory.mktemp("asynchronous"))
    runs.start("sync", "prompt_aug", *ONE_UPDATE, steps=STEPS)
    runs.start("async", "prompt_aug", *ONE_UPDATE, *NO_WINDOW, steps=STEPS)
    return runs


def records(runs: Runner, name: str, step: int) -> list[dict[str, Any]]:
    return read_lines(RunFolder(runs.base / name).rollouts(step))


def test_without_a_window_both_modes_train_the_same_tokens(runs: Runner) -> None:
    """Metrics are equal to 1e-6: a log-probability depends on the requests that share its batch."""
    for sync, other in zip(runs.finish("sync"), runs.finish("async"), strict=True):
        step = sync["step"]
        assert records(runs, "sync", step) == records(runs, "async", step)
        tokens = [runs.arrays(name, step)["responses"] for name in ("sync", "async")]
        assert np.array_equal(*tokens)
        assert sync["actor/grad_norm"] > 0  # so the tokens of the next step depend on this one
        assert other["staleness/max"] == other["staleness/mixed"] == 0
        for key in {key for key in sync | other if not key.startswith(OTHER)}:
            assert sync[key] == pytest.approx(other[key], abs=1e-6, nan_ok=True), key
