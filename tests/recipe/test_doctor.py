"""Each check of the doctor on something broken, its exit code, its trial run."""

import contextlib
from pathlib import Path

import pytest
import torch

from prompt_aug.base.errors import UserError
from recipe import doctor, trial
from recipe.config.compose import compose_config
from recipe.doctor import Finding
from recipe.preflight.checks import validate
from recipe.run.folder import append_metrics


@pytest.mark.parametrize(
    ("finding", "needed", "words"),
    [
        (doctor.devices(["H100, 8 MiB, 535.183.01"], False), False, "driver 580 or newer"),
        (doctor.devices(None, False), True, "login node"),
        (doctor.shared_memory(Path(__file__).parent, 1e9), False, "--shm-size"),
    ],
    ids=lambda v: v.name if isinstance(v, Finding) else None,
)
def test_a_quick_check(finding: Finding, needed: bool, words: str) -> None:
    assert (finding.ok, finding.needed) == (False, needed)
    assert words in f"{finding.detail} {finding.remedy}"


@pytest.mark.parametrize(
    ("versions", "ok", "needed"),
    [
        ({"verl": "0.9.1", "torch": "2.13.0+cpu"}, True, True),
        ({"verl": "0.9.1"}, False, False),
        ({"verl": "0.9.2", "torch": "2.12.0"}, False, True),
    ],
)
def test_pinned_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, versions: dict, ok: bool, needed: bool
) -> None:
    monkeypatch.setattr(doctor, "installed", versions.get)
    (tmp_path / "pins.txt").write_text("torch==2.13.0\nverl==0.9.1\n")
    finding = doctor.pins(tmp_path / "pins.txt", True)
    assert (finding.ok, finding.ok or finding.needed) == (ok, needed)


@pytest.mark.parametrize(
    ("program", "ok", "words"),
    [
        ("answer = {'platform': 'cpu'}", True, "platform cpu"),
        ("raise ImportError('x')", False, "Traceback (most recent call last)"),
        ("import os\nos.kill(os.getpid(), 4)", False, "exit code -4"),  # a kernel of another CPU
        ("import time\ntime.sleep(60)", False, "no answer"),
    ],
)
def test_a_program(program: str, ok: bool, words: str) -> None:
    seconds = 0.5 if "sleep" in program else 30.0
    finding = doctor.program_finding("program", program, {}, True, seconds)
    assert finding.ok is ok and words in finding.detail


def test_a_missing_plug_in_stops_a_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "PROGRAMS", {"import verl": "import no_such_plugin"})
    assert doctor.main([]) == 1
    output = capsys.readouterr().out
    assert "FAIL import verl: exit code 1" in output
    assert "ModuleNotFoundError: No module named 'no_such_plugin'" in output
    assert output.endswith("could NOT start: import verl\n")


@pytest.mark.config
def test_the_doctor_finds_this_environment_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main([]) == 0
    output = capsys.readouterr().out
    assert "ok   import verl and its plug-in: platform" in output
    assert "ok   import vllm and its plug-in: version" in output
    assert "rules that the toy passes" in output


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
        assert tuple(trial.check(tmp_path).values()) == figures
    append_metrics(tmp_path, 2, {trial.KL: 0.0})  # a figure that is missing
    with pytest.raises(UserError, match="=nan"):
        trial.check(tmp_path)


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
    validate(config)
    assert config.trainer.total_training_steps == config.trainer.save_freq == 2
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
