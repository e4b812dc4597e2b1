"""Without a window the asynchronous trainers train the synchronous trainer's tokens."""

from typing import Any

import numpy as np
import pytest
from method_runs import Runner

from prompt_aug.base.files import read_lines
from recipe.run.folder import RunFolder

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2400)]
STEPS = 3
TWO_UPDATES = ["actor_rollout_ref.actor.ppo_mini_batch_size=2", "recipe.save_tensors_every=1"]
MODES = ("colocate_async", "separate_async")
# Values of the clock and of the machine's load, and those of one mode only.
OTHER = ("timing", "perf/", "actor/perf", "train/wall_seconds", "replay_buffer/", "staleness/")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    runs = Runner(tmp_path_factory.mktemp("asynchronous"))
    runs.start("sync", "prompt_aug", *TWO_UPDATES, steps=STEPS)
    for mode in MODES:
        settings = [f"trainer.v1.trainer_mode=recipe_{mode}"]
        settings += [f"trainer.v1.{mode}.num_warmup_batches=0"]
        settings += ["algorithm.rollout_correction.rollout_is=null"]
        settings += ["actor_rollout_ref.rollout.nnodes=1"] * (mode == "separate_async")
        runs.start(mode, "prompt_aug", *TWO_UPDATES, *settings, steps=STEPS)
    return runs


def records(runs: Runner, name: str, step: int) -> list[dict[str, Any]]:
    return read_lines(RunFolder(runs.base / name).rollouts(step))


def test_without_a_window_all_modes_train_the_same_tokens(runs: Runner) -> None:
    """Metrics are equal to 1e-6: a log-probability depends on the requests that share its batch."""
    for mode in MODES:
        for sync, other in zip(runs.finish("sync"), runs.finish(mode), strict=True):
            step = sync["step"]
            assert records(runs, "sync", step) == records(runs, mode, step)
            tokens = [runs.arrays(name, step)["responses"] for name in ("sync", mode)]
            assert np.array_equal(*tokens)
            assert sync["actor/grad_norm"] > 0  # so the tokens of the next step depend on this one
            assert other["staleness/max"] == other["staleness/mixed"] == 0
            for key in {key for key in sync | other if not key.startswith(OTHER)}:
                assert sync[key] == pytest.approx(other[key], abs=1e-6, nan_ok=True), key
