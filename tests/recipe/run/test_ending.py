"""The end of a run in words: the first cause, what is saved, where to look."""

import errno
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from ray.core.generated.common_pb2 import ActorDiedErrorContext
from ray.exceptions import ActorDiedError, RayTaskError

from prompt_aug.base.files import read_json
from recipe import train
from recipe.errors import ExhaustedError
from recipe.run import ending, progress
from recipe.run.checkpoints import TRACKER
from recipe.run.folder import RunFolder, append_metrics
from recipe.run.stop import StoppedError
from recipe.trainer import launch


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


def test_the_next_commands_can_be_pasted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "mein lauf ü"
    trainer = {"default_local_dir": str(run), "save_freq": -1}
    config = OmegaConf.create(
        {"recipe": {"run_dir": str(run)}, "eval": {"benchmarks": []}, "trainer": trainer}
    )
    assert ending.next_commands(config).startswith("trainer.save_freq=-1: no step was saved")
    run.mkdir(parents=True)
    (run / TRACKER).write_text("4")
    text = [shlex.split(line)[2:] for line in ending.next_commands(config).splitlines()[1:]]
    held_out = "runs/mein lauf ü/data/test.parquet"
    assert text == [
        ["recipe.export", "runs/mein lauf ü"],
        ["eval.sweep", "runs/mein lauf ü", "--benchmark", f"validation={held_out}"],
        ["eval.report", "runs/mein lauf ü"],
    ]
    config.eval.benchmarks = [{"name": "aime24"}]
    config.recipe.run_dir = "/elsewhere/run"
    assert "eval.sweep /elsewhere/run\n" in ending.next_commands(config)


def test_a_full_disk_is_known_by_the_room_left(
    config: Any, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = ending.explain(RuntimeError("boom"), config)
    assert "the disk" not in message and "RuntimeError: boom" in message
    assert "boom" in folder.error.read_text()
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    assert "is full" in ending.explain(RuntimeError("boom"), config)
    monkeypatch.undo()
    quota = OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), "x/metrics.jsonl")
    assert "your quota" in ending.explain(quota, config)


def test_our_errors_are_known_by_their_class_through_ray(config: Any) -> None:
    raised = RayTaskError("run", "a traceback", ExhaustedError("6 questions in one step"))
    text = ending.explain(raised.as_instanceof_cause(), config)
    assert text.startswith("6 questions in one step\n")
    # A text that holds the name of the class is not the error.
    error = RayTaskError("run", "ExhaustedError", RuntimeError("ExhaustedError: no"))
    assert not ending.explain(error.as_instanceof_cause(), config).startswith("ExhaustedError")


def test_an_early_end_has_its_own_message(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's copy of an error has a traceback for its text, and the error for its cause."""
    remote = RayTaskError("run", "ray::run()\n  File x, line 3", StoppedError("a signal asked"))

    def run(_: Any) -> None:
        raise remote.as_instanceof_cause() from remote

    monkeypatch.setattr(launch, "run", run)
    code, text = train.carry_out(config)
    assert code == 75
    assert text.startswith("ended early: a signal asked; no step was done: the same command")
    assert ending.own_words(StoppedError("here")) == "here"


def test_what_is_saved_is_said_and_nothing_more(config: Any, folder: RunFolder) -> None:
    assert "starts from the beginning" in ending.how_to_go_on(config)
    append_metrics(folder.root, 1, {})
    assert "1 steps were done and none was saved" in ending.how_to_go_on(config)
    (folder.checkpoints / "latest_checkpointed_iteration.txt").write_text("1")
    assert ending.how_to_go_on(config).startswith("step 1 is saved in ")
    append_metrics(folder.root, 2, {})
    assert ending.how_to_go_on(config).startswith("step 2 is lost; step 1 is saved in ")
    append_metrics(folder.root, 4, {})
    assert ending.how_to_go_on(config).startswith("steps 2 to 4 are lost; step 1 is saved in ")


def test_the_reason_of_the_watchdog_is_told(config: Any, folder: RunFolder) -> None:
    progress.reached(folder.root, progress.HUNG, why="nothing has moved")
    assert ending.explain(RuntimeError("the actor died"), config).startswith("nothing has moved\n")


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
