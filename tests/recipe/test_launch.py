"""How `recipe.train` starts, finds a finished run, and ends when Ray dies; the list of runs."""

import copy
import functools
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from omegaconf import open_dict

from prompt_aug.base.files import lock, read_json, write_json
from recipe import runs, train
from recipe.run import folder as run_folder
from recipe.run import processes
from recipe.run.folder import RunFolder, append_metrics
from recipe.run.stop import Limit
from recipe.trainer import launch


@pytest.fixture
def config(toy_config: Any, tmp_path: Path) -> Any:
    copied = toy_config.copy()
    copied.recipe.run_dir = str(tmp_path / "run")
    return copied


def test_a_finished_run_is_not_started(config: Any, tmp_path: Path) -> None:
    with open_dict(config):
        config.trainer.default_local_dir = config.recipe.run_dir = str(tmp_path)
        config.trainer.total_training_steps = 2
    for step in (1, 2):
        assert not launch.finished(config)
        run_folder.append_metrics(tmp_path, step, {})
        (tmp_path / "latest_checkpointed_iteration.txt").write_text(str(step - 1))
    assert not launch.finished(config)  # the last checkpoint is missing
    config.trainer.save_freq = -1
    assert launch.finished(config)  # and without checkpoints the last line counts
    config.trainer.save_freq = 1
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("2")
    assert launch.finished(config)


@pytest.mark.config
def test_a_folder_in_use_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "set_environment", lambda config: None)
    with lock(tmp_path / "run"):
        assert train.main(["toy", f"recipe.run_dir={tmp_path / 'run'}"]) == 1
    stderr = capsys.readouterr().err.splitlines()
    (line,) = (line for line in stderr if not line.endswith("so far"))  # progress of the checks
    assert "in use by" in line


@pytest.mark.config
def test_a_start_records_a_guess_of_its_first_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("recipe.start.checks.prepare", "recipe.run.folder.record_model"):
        monkeypatch.setattr(name, lambda *_: None)
    monkeypatch.setattr(launch, "set_environment", lambda config: None)
    monkeypatch.setattr(train, "carry_out", lambda config: (1, "ended"))
    assert train.main(["toy", f"recipe.run_dir={tmp_path / 'run'}"]) == 1
    assert 0 < Limit.of(tmp_path / "run").save < 1


def test_a_run_starts_its_own_ray_unless_an_address_is_set(
    config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "")  # as Ray reads it, unset
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    own = copy.deepcopy(config)
    launch.set_ray(own)
    assert own.ray_kwargs.ray_init.num_cpus == 16
    with open_dict(config):
        config.ray_kwargs.ray_init.num_cpus = None
    config.trainer.n_gpus_per_node = 1000
    sized = copy.deepcopy(config)
    launch.set_ray(sized)
    assert sized.ray_kwargs.ray_init.num_cpus >= 3009  # of a machine with fewer cores
    assert own.ray_kwargs.ray_init.address == "local"
    assert own.ray_kwargs.ray_init.log_to_driver is True  # into logs/train.log
    assert own.ray_kwargs.ray_init.runtime_env.env_vars.VERL_PLATFORM == "cpu"
    hook = own.ray_kwargs.ray_init.runtime_env.worker_process_setup_hook
    monkeypatch.setattr(hook, lambda: None)  # raises if it does not exist
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    launch.set_ray(config)
    assert config.ray_kwargs.ray_init.get("address") is None
    assert config.ray_kwargs.ray_init.num_cpus is None


@pytest.mark.parametrize(
    ("device", "cuda", "kept"), [("cuda", "0", "C"), ("cuda", "", "CR"), ("cpu", "", "")]
)
def test_rays_and_verls_checks_of_devices_pass(
    config: Any, monkeypatch: pytest.MonkeyPatch, device: str, cuda: str, kept: str
) -> None:
    """verl rejects devices of both CUDA and ROCm, and Ray a CPU run without those of CUDA."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", cuda)
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "0")
    config.trainer.device = device
    launch.set_environment(config)
    names = [name for name in ("CUDA", "ROCR") if f"{name}_VISIBLE_DEVICES" in os.environ]
    assert "".join(name[0] for name in names) == kept


@pytest.mark.parametrize(("length", "chosen"), [(39, None), (40, "/tmp")])
def test_the_paths_of_rays_sockets_are_short_enough(
    config: Any, monkeypatch: pytest.MonkeyPatch, length: int, chosen: str | None
) -> None:
    temporary = "/".ljust(length, "t")
    monkeypatch.setenv("TMPDIR", temporary)
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    launch.set_environment(config)
    assert os.environ.get("RAY_TMPDIR") == chosen
    socket = "/ray/session_2026-11-30_11-51-11_854054_1234567/sockets/plasma_store"
    assert (len(temporary + socket) <= 107) == (chosen is None)


def test_processes_of_a_run_outlive_a_closed_terminal() -> None:
    done = launch.in_thread(lambda: subprocess.run(["sh", "-c", "kill -HUP $$; exit 7"]))
    assert cast("Any", done.result(20)).returncode == 7


def test_the_task_runs_outside_of_the_main_thread_and_its_error_is_raised(config: Any) -> None:
    """There Ray sets no signal handler."""

    def task() -> None:
        raise KeyError(threading.current_thread() is threading.main_thread())

    with pytest.raises(KeyError, match="False"):
        launch.wait(launch.in_thread(task), config, lambda: False, cast("Any", None))


@pytest.mark.parametrize("already_over", [False, True])
def test_the_death_of_rays_head_ends_the_run_with_a_reason(
    config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, already_over: bool
) -> None:
    """At the end of a run its death is expected."""
    monkeypatch.setattr(launch, "POLL", 0.05)
    messages, ended, done = list[str](), list[int](), Future[object]()
    monkeypatch.setattr(launch.os, "_exit", ended.append)
    shutil.copy("/bin/sleep", tmp_path / "gcs_server")
    environment = {**os.environ, "RECIPE_RUN_DIR": config.recipe.run_dir}
    head = subprocess.Popen([tmp_path / "gcs_server", "60"], env=environment)
    leave = functools.partial(launch.leave, Path(config.recipe.run_dir), messages.append)
    handler = SimpleNamespace(leave=leave, listen=lambda: None)
    arguments = (done, config, lambda: True, handler)
    watch = threading.Thread(target=launch.wait, args=arguments, daemon=True)
    try:
        while not processes.heads(config.recipe.run_dir):
            time.sleep(0.02)
        watch.start()
        time.sleep(0.3)
        assert watch.is_alive() and not ended
        if already_over:
            done.set_result(None)
    finally:
        head.kill()
        head.wait()
    watch.join(20)
    assert ended == ([] if already_over else [1])
    if not already_over:
        assert "Ray's head process (gcs_server) has ended" in messages[0]
        assert read_json(RunFolder(Path(config.recipe.run_dir)).end)["code"] == 1


# ------------------------------------------------------------------------- runs
# The table of runs: which folders are runs, and what is said of each.


def make(path: Path, done: int = 0) -> RunFolder:
    run = RunFolder(path)
    run.data("train").parent.mkdir(parents=True)
    run.config.write_text("trainer: {total_training_steps: 4}\n")
    for step in range(1, done + 1):
        held_out = {"val/toy/accuracy": 0.9, "val/toy/accuracy_se": 0.1} if step == 2 else {}
        append_metrics(path, step, {"train/accuracy": step / 10, **held_out})
    return run


def rows(folder: Path) -> dict[str, dict[str, str]]:
    """The cells of each run by the header of their column."""
    listed = {str(p.relative_to(folder)): runs.row(p, p.name) for p in runs.find(folder)}
    return {name: dict(zip(runs.HEADER, cells, strict=True)) for name, cells in listed.items()}


def test_the_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "ready")
    for name, code, steps in (
        ("done", 0, 4),
        ("interrupted", 130, 3),
        ("time", 75, 3),
        ("failed", 1, 3),
    ):
        run = make(tmp_path / name, done=steps)
        write_json(run.end, {"code": code, "message": ""})
    run = make(tmp_path / "killed", done=2)
    run.logs.mkdir()
    run.start.write_text("")
    make(tmp_path / "older", done=2)  # made before logs/ was
    busy = make(tmp_path / "busy", done=4)
    with lock(busy.root):
        states = {name: row["state"] for name, row in rows(tmp_path).items()}
        assert states.pop("busy") == "running"
        write_json(busy.end, {"code": 1, "message": ""})  # of its last start
        assert rows(tmp_path)["busy"]["state"] == "running"
        monkeypatch.setattr("recipe.run.ending.os.access", lambda *_: False)  # another user's
        assert rows(tmp_path)["busy"]["state"] == "failed"
    assert states == {
        **{"ready": "ready", "done": "done", "interrupted": "stopped", "time": "stopped"},
        **{"failed": "failed", "killed": "killed", "older": "stopped"},
    }


@pytest.mark.parametrize(
    "harm",
    [
        lambda run: run.metrics.write_text('{"step": 2, "train/accuracy": "x"}\n'),
        lambda run: (run.metrics.unlink(), run.metrics.mkdir()),
        lambda run: run.config.write_bytes(b"\xff"),
        lambda run: run.config.write_text("[" * 5000),
        lambda run: (run.logs.mkdir(), run.end.write_text("[" * 10**5)),
    ],
)
def test_a_damaged_run_hides_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], harm: Callable[[RunFolder], object]
) -> None:
    for name in "abc":
        make(tmp_path / name, done=2)
    harm(RunFolder(tmp_path / "b"))
    assert runs.main([str(tmp_path)]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert listed == ["a", "b", "c"]


def test_the_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make(tmp_path / "a", done=3)
    hour_ago = time.time() - 3600
    os.utime(run.metrics, (hour_ago, hour_ago))
    blob = run.exported(3) / "model"
    blob.parent.mkdir(parents=True)
    blob.write_bytes(os.urandom(20_000_000))
    (blob.parent / "again").hardlink_to(blob)  # on the disk once
    cells = ("a", "3/4", "1 h 00 min", "stopped", "0.900", "0.300", "0.02 GB")
    assert tuple(rows(tmp_path)["a"].values()) == cells
    assert runs.main([str(tmp_path)]) == 0
    assert " ".join(capsys.readouterr().out.splitlines()[1].split()) == " ".join(cells)
    assert runs.main([str(run.data("train").parent)]) == 1  # there is no run
