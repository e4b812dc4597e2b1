"""What a training shows, in a file and on a terminal, from the files that the trainer writes."""

import inspect
import io
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from recipe.run import progress
from recipe.run.folder import RunFolder, append_metrics

STEP = {
    "critic/score/mean": 1.25,
    "train/accuracy": 0.5,
    "train/entropy": 0.3,
    "train/no_signal_groups": 0.25,
    "perf/total_num_tokens": 30000,
    "timing_s/step": 20.0,
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def config(run: Path, **recipe: Any) -> Any:
    return OmegaConf.create(
        {
            "recipe": {
                "run_dir": str(run),
                "augment": {"templates": ["abel", "open-r1"], "validation_template": "abel"},
                **recipe,
            },
            "trainer": {"total_training_steps": 10},
            "data": {"train_batch_size": 16},
            "actor_rollout_ref": {
                "rollout": {"n": 8, "temperature": 1.0, "val_kwargs": {"temperature": 0}}
            },
        }
    )


def start(run: Path, after: int = 0) -> None:
    for stage in progress.STAGES:
        progress.reached(run, stage)
    progress.reached(run, progress.TRAINING, step=after)


def step(run: Path, number: int, wall: float, **more: float) -> None:
    append_metrics(run, number, {**STEP, "train/wall_seconds": wall, **more})


def looked(run: Path, out: io.StringIO, *actions: Callable[[], None] | None) -> str:
    """What is shown when the follower looks after each of `actions`."""
    follower = progress.Follower(config(run), out)
    for act in actions:
        if act:
            act()
        follower.look()
    return out.getvalue()


def test_in_a_file_a_stage_and_a_step_are_a_plain_line_each(tmp_path: Path) -> None:
    text = looked(
        tmp_path,
        io.StringIO(),
        lambda: start(tmp_path),
        lambda: step(tmp_path, 1, wall=90.0),
        None,
        lambda: step(tmp_path, 2, wall=110.0),
        lambda: progress.reached(tmp_path, progress.HUNG, why="not a stage"),
        lambda: step(tmp_path, 3, wall=150.0, **{"val/toy/x/accuracy": 0.91}),
    )
    lines = text.splitlines()
    assert [line.split(" (")[0] for line in lines[:4]] == [
        f"start {i}/4: {stage}" for i, stage in enumerate(progress.STAGES, start=1)
    ]
    assert lines[4].startswith("training: 10 steps of 16 questions x 8 responses; the start took ")
    numbers = (
        "reward 1.250, accuracy 0.500, entropy 0.300, no signal 0.25, tokens/s 1,500, seconds 20.0"
    )
    sampled, greedy = lines[5].split("; ")  # which differ, and from eval.sweep
    assert re.search("training .* 2 templates, temperature 1$", sampled)
    assert re.search("data.val_files, template abel, temperature 0$", greedy)
    assert lines[6:] == [
        f"step 1/10: {numbers}",
        f"step 2/10: {numbers}, left 2 min 40 s",  # 8 steps of 20 s; the start is no step
        f"step 3/10: {numbers}, validation toy/x 0.910, left 3 min 30 s",  # 7 of (20 + 40) / 2
    ]
    assert "\r" not in text


def test_the_validation_before_the_first_step_is_shown(tmp_path: Path) -> None:
    def validated() -> None:
        for stage in progress.STAGES:
            progress.reached(tmp_path, stage)
        metrics = {"val/toy/x/accuracy": 0.28125, "val/toy/x/part/easy/accuracy": 0.5}
        progress.reached(tmp_path, progress.VALIDATED, metrics=metrics)

    text = looked(tmp_path, Terminal(), validated)
    assert text.count("start: validation before training") == 1
    assert "before training: validation toy/x 0.281\n" in text
    assert "0.500" not in text


def test_a_resumed_run_shows_its_steps_anew_and_no_time_before_them(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        step(tmp_path, number, wall=10.0 * number)

    def resume() -> None:  # from step 2: the trainer removes the line of step 3
        RunFolder(tmp_path).metrics.unlink()
        for number in (1, 2):
            step(tmp_path, number, wall=10.0 * number)
        start(tmp_path, after=2)

    text = looked(
        tmp_path,
        io.StringIO(),
        None,
        resume,
        lambda: step(tmp_path, 3, wall=500.0),
        lambda: step(tmp_path, 4, wall=530.0),
    )
    steps = [line for line in text.splitlines() if line.startswith("step")]
    assert [line.split(":")[0] for line in steps] == ["step 3/10", "step 4/10"]
    assert "left" not in steps[0] and steps[1].endswith("left 3 min 00 s")
    assert "training after step 2: 10 steps" in text


def test_without_a_terminal_at_most_15_seconds_pass_without_a_line(tmp_path: Path) -> None:
    out, now = io.StringIO(), [0.0]
    follower = progress.Follower(config(tmp_path), out, clock=lambda: now[0])
    for now[0] in (1.0, 14.9, 15.0, 29.0, 30.0):
        follower.look()
    now[0] = 31.04
    progress.reached(tmp_path, "verl imported")
    for now[0] in (31.04, 45.0, 46.1):
        follower.look()
    assert out.getvalue().splitlines() == [
        "start: importing verl: 15 s so far",
        "start: importing verl: 30 s so far",
        "start 1/4: verl imported (31.0 s)",
        "start: starting Ray and the trainer's process: 15 s so far",
    ]


def test_a_closed_terminal_does_not_end_the_run(tmp_path: Path) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    with progress.follow(config(tmp_path), Gone()):
        start(tmp_path)
        time.sleep(2 * progress.POLL)
    assert not [t for t in threading.enumerate() if t.name == "progress"]


def test_verl_loads_the_checkpoint_after_the_engine() -> None:
    """The trainer reports the engine as loaded when verl begins to load the checkpoint."""
    setup = inspect.getsource(PPOTrainer._setup)
    assert setup.index("self.llm_server_manager:") < setup.index("self._load_checkpoint()")


PROGRAM = """
import contextlib, os, sys
from pathlib import Path
from recipe.run import progress

with contextlib.suppress(KeyError), progress.diverted(Path(sys.argv[1])) as terminal:
    print("from Python")
    print("an error", file=sys.stderr)
    os.write(1, b"from C\\n")
    print("a step", file=terminal, flush=True)
    raise KeyError
print("after")
"""


def test_output_goes_to_the_log_and_an_error_gives_the_terminal_back(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("of an earlier start\n")
    command = [sys.executable, "-c", PROGRAM, str(log)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("a step\nafter\n", "")
    lines = ["of an earlier start", "from Python", "an error", "from C"]
    assert sorted(log.read_text().splitlines()) == sorted(lines)
