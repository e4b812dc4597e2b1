"""The run folder after a kill, its environment, its end in words, its progress."""

import errno
import io
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from ray.core.generated.common_pb2 import ActorDiedErrorContext
from ray.exceptions import ActorDiedError, RayTaskError

from prompt_aug.base.errors import UserError
from prompt_aug.base.files import FileError, WriteError, read_json
from recipe import train
from recipe.errors import ExhaustedError
from recipe.machine import environment, host
from recipe.run import ending, progress
from recipe.run import folder as run_folder
from recipe.run.folder import RunFolder, append_metrics
from recipe.run.stop import StoppedError
from recipe.trainer import launch


def steps_in(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_metrics_lines_survive_a_kill_and_a_resume(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        metrics = {"b": np.float32(0.5), "a": 1, "skip": [1], "none": None, "step": 9}
        run_folder.append_metrics(tmp_path, step, metrics)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "b": 0.')  # killed while writing
    lines = run_folder.read_metrics(tmp_path)
    assert lines == [{"step": s, "a": 1, "b": 0.5} for s in (1, 2, 3)]
    run_folder.truncate_metrics(tmp_path, last_step=2)
    assert steps_in(tmp_path / "metrics.jsonl") == [1, 2]


def test_a_metric_that_is_not_finite_stays_on_record_in_standard_json(tmp_path: Path) -> None:
    values = {"a": float("nan"), "b": np.float32("inf"), "c": 1.5}
    run_folder.append_metrics(tmp_path, 1, values)
    text = (tmp_path / "metrics.jsonl").read_text()
    assert text == '{"step": 1, "a": null, "b": null, "c": 1.5}\n'
    (line,) = run_folder.read_metrics(tmp_path)
    assert math.isnan(line["a"]) and math.isnan(line["b"])


def test_a_damaged_line_of_metrics_costs_that_line_and_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = [
        *("{", "[1]", "3", "\0\0\0", "{}", '{"step": "3"}', '{"step": true}', '{"step": 1.5}'),
        *('{"step": -1}', '{"step": 3, "a": [1]}', '{"step": 3, "a": {}}'),
    ]
    lines = ['{"step": 1, "a": null, "b": "text"}', *damaged, '{"step": 2, "a": 0.5}']
    RunFolder(tmp_path).metrics.write_text("\n".join(lines) + "\n")
    for _ in range(2):  # read at every step, said once
        assert [line["step"] for line in run_folder.read_metrics(tmp_path)] == [1, 2]
    notes = capsys.readouterr().err.splitlines()
    assert [int(note.split("line ")[1].split()[0]) for note in notes] == [*range(2, 13)]
    run_folder.truncate_metrics(tmp_path, 1)
    assert RunFolder(tmp_path).metrics.read_text() == lines[0] + "\n"


def test_a_run_that_starts_from_scratch_keeps_the_lines_of_its_tries(tmp_path: Path) -> None:
    for steps in ((1, 2), (1,)):  # killed twice before the first checkpoint
        for step in steps:
            run_folder.append_metrics(tmp_path, step, {})
        for _ in range(2):  # the second time there is nothing to move, and nothing is lost
            run_folder.truncate_metrics(tmp_path, last_step=0)
            assert run_folder.read_metrics(tmp_path) == []
    assert steps_in(tmp_path / "metrics.before.jsonl") == [1, 2, 1]


def test_the_environment_of_the_first_steps_stays_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = [
        {"commit": "a"},  # of an older version
        {"commit": "b", "packages": {"verl": "1", "vllm": "1"}},
        {"commit": "b", "packages": {"verl": "1", "vllm": "2"}},
    ]
    changes = []
    for start_of in starts:
        monkeypatch.setattr(environment, "describe", lambda x=start_of: x)
        changes.append(run_folder.record_environment(tmp_path))
    assert changes == [[], ["commit a -> b"], ["vllm 1 -> 2"]]
    record = read_json(tmp_path / "environment.json")
    assert record == {"commit": "a", "resumed": starts[1:]}
    for content in ('{"packages": []}', '{"resumed": [{"packages": 1}]}'):
        (tmp_path / "environment.json").write_text(content)
        with pytest.raises(FileError, match=r"environment\.json"):
            run_folder.record_environment(tmp_path)


# ------------------------------------------------------------------------- environment
# One wandb run for all starts of a training; variables and code of the workers.


NAMES = ("WANDB_RUN_ID", "WANDB_RESUME")


def started(path: Path, monkeypatch: pytest.MonkeyPatch, **set_by_user: str) -> dict[str, str]:
    """The variables that a start gives to its actors."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    for name, value in set_by_user.items():
        monkeypatch.setenv(name, value)
    environment.keep_wandb_run(path)
    handed = environment.inherited()
    for name in NAMES:
        os.environ.pop(name, None)
    return {name: handed[name] for name in NAMES}


def test_every_start_of_a_run_resumes_its_wandb_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = started(tmp_path / "a", monkeypatch)
    assert first["WANDB_RESUME"] == "allow" and len(first["WANDB_RUN_ID"]) == 8
    assert started(tmp_path / "a", monkeypatch) == first
    assert started(tmp_path / "b", monkeypatch) != first
    assert started(tmp_path / "a", monkeypatch, WANDB_RUN_ID="mine")["WANDB_RUN_ID"] == "mine"


def test_actors_inherit_the_run_and_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {environment.RUN_DIR: "runs/a", environment.RUN_ID: "1", environment.DEADLINE: "9"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert given.items() <= environment.inherited().items()


def test_workers_run_the_code_of_this_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that of another one, as in a git worktree with the environment of the main checkout."""
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "__init__.py").touch()
    (tmp_path / "mine.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for _ in range(2):
        environment.set_defaults(cpu=True)
        assert os.environ["PYTHONPATH"] == f"{host.ROOT}{os.pathsep}{tmp_path}"
    program = "import recipe.plugin, mine; print(recipe.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path.parent, capture_output=True, text=True
    )
    assert done.stdout == f"{host.ROOT}/recipe/__init__.py\n", done.stderr
    assert environment.inherited()["PYTHONPATH"] == os.environ["PYTHONPATH"]


# ------------------------------------------------------------------------- ending
# The end of a run in words: the first cause, what is saved, where to look.


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    run = RunFolder(tmp_path / "run")
    run.logs.mkdir(parents=True)
    run.checkpoints.mkdir()
    return run


@pytest.fixture
def config(folder: RunFolder) -> Any:
    return OmegaConf.create(
        {
            "recipe": {"run_dir": str(folder.root)},
            "trainer": {"default_local_dir": str(folder.checkpoints), "save_freq": 4},
        }
    )


def test_our_errors_are_known_by_their_class_through_ray(config: Any) -> None:
    raised = RayTaskError("run", "a traceback", ExhaustedError("6 questions in one step"))
    text = ending.explain(raised.as_instanceof_cause(), config)
    assert text.startswith("6 questions in one step\n")
    # A text that holds the name of the class is not the error.
    error = RayTaskError("run", "ExhaustedError", RuntimeError("ExhaustedError: no"))
    assert not ending.explain(error.as_instanceof_cause(), config).startswith("ExhaustedError")
    full = OSError(errno.ENOSPC, "No space left on device", "/dev/shm/psm_1")
    assert "/dev/shm/psm_1" in ending.explain(full, config).partition("next:")[0]


@pytest.mark.parametrize("low", ["checkpoints", "run", ""])
def test_a_full_disk_or_quota_of_the_checkpoints_is_named(
    config: Any, folder: RunFolder, monkeypatch: pytest.MonkeyPatch, low: str
) -> None:
    """A quota leaves the disk free: torch.save's error alone tells of it."""
    monkeypatch.setattr(host, "free_gib", lambda path: 0.01 if path.name == low else 9.0)
    with pytest.raises(RuntimeError) as caught:
        torch.save({"w": torch.zeros(300_000)}, "/dev/full")
    error = RuntimeError("the engine is dead") if low else caught.value
    named = folder.root if low == "run" else folder.checkpoints
    text = ending.explain(error, config)
    assert f"the disk of {named}, or your quota there" in text and "is full" in text


def test_an_early_end_has_its_own_message(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's copy of an error has a traceback for its text, and the error for its cause."""
    remote = RayTaskError("run", "ray::run()\n  File x, line 3", StoppedError("a signal asked"))

    def run(_: Any) -> None:
        raise remote.as_instanceof_cause() from remote

    monkeypatch.setattr(launch, "train", run)
    code, text = train.carry_out(config)
    assert code == 75
    assert text.startswith("ended early: a signal asked; no step was done: the same command")
    assert ending.own_words(StoppedError("here")) == "here"


def test_a_run_whose_folder_is_gone_ends_with_that_message(config: Any, folder: RunFolder) -> None:
    progress.reached(folder.root, "a stage")
    folder.root.rename(folder.root.with_name("moved"))
    with pytest.raises(WriteError) as caught:
        append_metrics(folder.root, 1, {})
    with pytest.raises(WriteError):  # the first write of a process
        progress.reached(folder.root.with_name("other"), "a stage")
    remote = RayTaskError("run", "a traceback", caught.value).as_instanceof_cause()
    assert isinstance(remote, UserError)
    for error in (remote, FileNotFoundError("a file of another library")):
        text = ending.explain(error, config)
        assert text.startswith(f"{folder.root} was removed or moved")
        ending.record(folder, 1, text)
    assert not folder.root.exists()


def wrapped(cause: Exception) -> Exception:
    outer = RuntimeError("worker died")
    outer.__cause__ = cause
    return outer


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("a\nb"), "ValueError: a"),
        (
            wrapped(RuntimeError("ray::f()\nTraceback (most recent...\n  File x\nKeyError: 'x'")),
            "KeyError: 'x'",
        ),
        (RayTaskError("run", "ray::run()", KeyError("x")), "KeyError: 'x'"),  # with a `cause`
        (
            ActorDiedError(
                ActorDiedErrorContext(
                    actor_id=bytes(16), class_name="WorkerDict", pid=77, node_ip_address="10.0.0.2"
                )
            ),
            "ActorDiedError: The actor died unexpectedly before finishing this task. "
            "(WorkerDict, pid 77 on 10.0.0.2)",
        ),
    ],
)
def test_the_first_cause_of_an_error(error: Exception, text: str) -> None:
    assert ending.first_cause(error) == text


LOG = """\
=== 2026-11-22 10:00:00 recipe.train toy
(TaskRunner pid=1) Traceback (most recent call last):
(TaskRunner pid=1)   File "a.py", line 3, in f
(TaskRunner pid=1) KeyError: 'of an earlier start'
=== 2026-11-22 11:00:00 recipe.train toy
INFO: a line that says Error: nothing
(vLLMHttpServer pid=7, ip=10.0.0.2) (EngineCore_DP0 pid=9) Traceback (most recent call last):
(vLLMHttpServer pid=7, ip=10.0.0.2) (EngineCore_DP0 pid=9)   File "b.py", line 4, in g
(vLLMHttpServer pid=7, ip=10.0.0.2) (EngineCore_DP0 pid=9)     raise ValueError("no")
(vLLMHttpServer pid=7, ip=10.0.0.2) (EngineCore_DP0 pid=9) torch.OutOfMemoryError: 2 GiB wanted
(TaskRunner pid=1) Traceback (most recent call last):
(TaskRunner pid=1) RuntimeError: the engine is dead
"""


def test_an_end_names_the_cause_then_the_first_error_then_the_log(
    config: Any, folder: RunFolder
) -> None:
    folder.log.write_text(LOG)
    text = ending.explain(RuntimeError("the engine is dead"), config).splitlines()
    assert text[0] == "the run stopped: RuntimeError: the engine is dead"
    assert text[1] == "the first error printed: torch.OutOfMemoryError: 2 GiB wanted (line 10)"
    assert str(folder.log) in text[2] and str(folder.error) in text[2]
    ending.record(folder, 1, "\n".join(text))
    assert read_json(folder.end) == {"code": 1, "message": "\n".join(text)}
    folder.log.write_text(LOG[: LOG.index("INFO")])  # the last start has printed none
    assert ending.first_error(folder.log) is None


# ------------------------------------------------------------------------- progress
# What a training shows, in a file and on a terminal, from the files that the trainer writes.


STEP = {
    "critic/score/mean": 1.25,
    "train/accuracy": 0.5,
    "train/entropy": 0.3,
    "train/no_signal_groups": 0.25,
    "perf/total_num_tokens": 30000,
    "timing_s/step": 20.0,
}


def progress_config(run: Path) -> Any:
    return OmegaConf.create(
        {
            "recipe": {"run_dir": str(run)},
            "trainer": {"total_training_steps": 10},
            "data": {"train_batch_size": 16},
            "actor_rollout_ref": {"rollout": {"n": 8}},
        }
    )


def start(run: Path) -> None:
    for stage in progress.STAGES:
        progress.reached(run, stage)
    progress.reached(run, progress.TRAINING, step=0)


def step(run: Path, number: int, wall: float, **more: float) -> None:
    append_metrics(run, number, {**STEP, "train/wall_seconds": wall, **more})


def looked(run: Path, out: io.StringIO, *actions: Callable[[], None] | None) -> str:
    """What is shown when the follower looks after each of `actions`."""
    follower = progress.Follower(progress_config(run), out)
    for act in actions:
        if act:
            act()
        follower.look()
    return out.getvalue()


def test_a_stage_and_a_step_are_a_line_each(tmp_path: Path) -> None:
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
    assert lines[5:] == [
        f"step 1/10: {numbers}",
        f"step 2/10: {numbers}, left 2 min 40 s",  # 8 steps of 20 s; the start is no step
        f"step 3/10: {numbers}, validation toy/x 0.910, left 3 min 30 s",  # 7 of (20 + 40) / 2
    ]


def test_many_truncated_responses_are_noted_once(tmp_path: Path) -> None:
    def later(number: int, share: float) -> Callable[[], None]:
        return lambda: step(tmp_path, number, 90.0, **{"train/truncated": share})

    shares = enumerate([0.5, 0.51, 0.2, 0.9], start=1)
    steps = [later(number, share) for number, share in shares]
    text = looked(tmp_path, io.StringIO(), lambda: start(tmp_path), *steps)
    assert text.count("data.max_response_length") == 1
    assert "train/truncated=0.51" in text


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


def test_a_terminal_that_nobody_reads_is_no_error_of_the_run(tmp_path: Path) -> None:
    program = PROGRAM.replace("terminal, flush=True)\n    raise KeyError", "terminal)")
    command = [sys.executable, "-c", program.replace('print("after")', ""), str(tmp_path / "log")]
    near, far = os.pipe()
    os.close(near)
    assert subprocess.run(command, stdout=far, check=False).returncode == 0
    os.close(far)


def test_output_goes_to_the_log_and_an_error_gives_the_terminal_back(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("of an earlier start\n")
    command = [sys.executable, "-c", PROGRAM, str(log)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("a step\nafter\n", "")
    lines = ["of an earlier start", "from Python", "an error", "from C"]
    assert sorted(log.read_text().splitlines()) == sorted(lines)
