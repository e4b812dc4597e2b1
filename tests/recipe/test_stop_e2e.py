"""A real run ended by SIGTERM, its last checkpoint damaged, and gone on with; on the CPU."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recipe.run import checkpoints, processes
from recipe.run import folder as run_folder

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2400)]
STEPS = 6
SMALL = [
    *("recipe.toy.updates=20", "recipe.toy.test_questions=20", "recipe.toy.train_questions=40"),
    *("recipe.toy.validation_questions=20", "data.train_batch_size=8"),
    *("actor_rollout_ref.actor.ppo_mini_batch_size=4", "actor_rollout_ref.rollout.n=4"),
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16",
    *(f"trainer.total_training_steps={STEPS}", "trainer.save_freq=2", "trainer.test_freq=-1"),
]


def launch(run: Path, cache: Path, log: Path) -> subprocess.Popen:
    where = [f"recipe.run_dir={run}", f"recipe.toy.cache={cache}"]
    with log.open("w") as file:
        command = [sys.executable, "-m", "recipe.train", "toy", *where, *SMALL]
        return subprocess.Popen(command, stdout=file, stderr=file)


def test_a_terminated_run_saves_ends_with_75_and_goes_on_from_what_is_whole(
    tmp_path: Path,
) -> None:
    run, cache = tmp_path / "run", tmp_path / "cache"
    saves = run / "checkpoints"
    first = launch(run, cache, tmp_path / "first.log")
    end = time.monotonic() + 900
    while len(run_folder.read_metrics(run)) < 3 and time.monotonic() < end:
        assert first.poll() is None, (tmp_path / "first.log").read_text()[-3000:]
        time.sleep(0.2)
    first.send_signal(signal.SIGTERM)
    assert first.wait(300) == 75, (tmp_path / "first.log").read_text()[-3000:]
    assert "the same command goes on" in (tmp_path / "first.log").read_text()
    assert processes.marked(str(run)) == []
    last = checkpoints.tracked_step(saves)
    assert last in (3, 4, 5)  # 2 was the last one by save_freq
    assert checkpoints.damage(saves / f"global_step_{last}") is None
    assert [m["step"] for m in run_folder.read_metrics(run)] == list(range(1, last + 1))

    shard = saves / f"global_step_{last}" / "actor" / "model_world_size_1_rank_0.pt"
    shard.write_bytes(shard.read_bytes()[:5000])
    assert launch(run, cache, tmp_path / "second.log").wait(900) == 0
    before = 4 if last == 5 else 2
    said = (tmp_path / "second.log").read_text()
    assert f"step {last} is not whole" in said and f"going on from step {before}" in said
    assert [m["step"] for m in run_folder.read_metrics(run)] == list(range(1, STEPS + 1))
    assert checkpoints.tracked_step(saves) == STEPS
