"""The shell scripts, with stand-ins for what they start: no installation, no training."""

import json
import os
import subprocess
import textwrap
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = sorted([*(ROOT / "scripts").glob("*.s[bh]*"), ROOT / ".ci" / "run"])

# Stands for the environment's interpreter: notes its arguments, and does what a stage would.
PYTHON = """\
#!/usr/bin/env bash
[[ $1 == -c ]] && exit 0
echo "$*" >>"$CALLS"
case "$*" in
    *metadata* | -) cat >/dev/null ;;
    *"$FAIL"*) [[ -n $FAIL ]] && exit 7 ;;
esac
[[ -n $WORK && $* == *recipe.train* ]] && echo '{"step": 1}' >>"$WORK"
exit 0
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the scripts, with an environment that setup.sh takes for whole."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "requirements").mkdir()
    for path in (ROOT / "scripts").glob("*.s[bh]*"):
        (tmp_path / "scripts" / path.name).write_bytes(path.read_bytes())
    for name in ("requirements/cpu.txt", "pyproject.toml"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON)
    python.chmod(0o755)
    (tmp_path / ".venv" / "pyvenv.cfg").touch()
    stamp = "cat requirements/cpu.txt pyproject.toml | sha256sum | cut -d' ' -f1"
    digest = subprocess.check_output(["bash", "-c", stamp], cwd=tmp_path, text=True).strip()
    (tmp_path / ".venv" / ".setup-stamp").write_text(f"{digest} {tmp_path}")
    return tmp_path


def run(checkout: Path, script: str, *arguments: str, **variables: str) -> tuple[int, str]:
    """(exit code, output) of a script of the copy."""
    environment = {k: v for k, v in os.environ.items() if k not in ("RECIPE_VENV", "PYTHON")}
    environment |= {"CALLS": str(checkout / "calls"), "FAIL": "", "WORK": "", **variables}
    done = subprocess.run(
        ["bash", f"scripts/{script}", *arguments],
        cwd=checkout,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
    )
    return done.returncode, done.stdout


def calls(checkout: Path) -> list[str]:
    path = checkout / "calls"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.name)
def test_a_script_is_valid_and_strict(path: Path) -> None:
    subprocess.run(["bash", "-n", str(path)], check=True)
    assert "set -euo pipefail" in path.read_text() or path.name in (
        "test.sh",  # goes on after a failed stage
        "until_limit.sh",  # sourced
    )


def test_setup_does_nothing_in_a_whole_environment(checkout: Path) -> None:
    assert run(checkout, "setup.sh") == (0, "")
    assert calls(checkout) == []


def test_setup_sees_a_changed_lock(checkout: Path) -> None:
    with (checkout / "requirements" / "cpu.txt").open("a") as file:
        file.write("# another lock\n")
    code, output = run(checkout, "setup.sh")
    assert "done:" in output and code == 0
    assert any("install --no-deps -r requirements/cpu.txt" in call for call in calls(checkout))
    assert run(checkout, "setup.sh") == (0, "")


def test_setup_installs_the_cpu_torch_before_the_lock(checkout: Path) -> None:
    (checkout / ".venv" / ".setup-stamp").unlink()
    assert run(checkout, "setup.sh")[0] == 0
    installs = [call for call in calls(checkout) if " install " in call]
    assert installs[0].endswith("install --no-deps torch==2.13.0+cpu")
    assert installs[1].endswith("-r requirements/cpu.txt")
    assert installs[2].endswith("--no-deps --no-build-isolation -e .")


def test_setup_asks_the_torch_index_only_then_and_says_what_to_do(checkout: Path) -> None:
    (checkout / ".venv" / ".setup-stamp").unlink()
    code, output = run(checkout, "setup.sh", FAIL="torch==", TORCH_CPU_INDEX="https://mirror")
    assert code == 1 and "TORCH_CPU_INDEX" in output and "Traceback" not in output
    assert any("--index-url https://mirror torch==2.13.0+cpu" in c for c in calls(checkout))
    assert not (checkout / ".venv" / ".setup-stamp").exists()


def test_setup_builds_a_cut_environment_again(checkout: Path) -> None:
    (checkout / ".venv" / ".setup-stamp").unlink()
    (checkout / ".venv" / ".made-by-setup").touch()
    left = checkout / ".venv" / "half-installed"
    left.touch()
    code, output = run(checkout, "setup.sh", PYTHON="/bin/false")
    assert "was cut" in output and not left.exists()
    assert code == 1 and "PYTHON=/bin/false" in output


def test_setup_leaves_a_folder_alone_that_is_no_environment(checkout: Path) -> None:
    (checkout / "mine").mkdir()
    (checkout / "mine" / "thesis.tex").touch()
    code, output = run(checkout, "setup.sh", RECIPE_VENV="mine")
    assert code == 1 and "no Python environment" in output
    assert (checkout / "mine" / "thesis.tex").exists()


def test_setup_says_how_to_get_a_python(checkout: Path) -> None:
    tools = checkout / "tools"
    tools.mkdir()
    for name in ("bash", "cat", "cut", "sha256sum", "grep", "dirname", "mkdir", "flock", "uname"):
        path = subprocess.check_output(["bash", "-c", f"type -P {name}"], text=True).strip()
        (tools / name).symlink_to(path)
    shim = tools / "python3.11"  # of a version manager without that version
    shim.write_text("#!/bin/sh\necho 'not found' >&2\nexit 127\n")
    shim.chmod(0o755)
    code, output = run(checkout, "setup.sh", RECIPE_VENV="other", PATH=str(tools))
    assert code == 1 and "no Python 3.11 or 3.12" in output and "PYTHON=" in output


def test_demo_runs_its_stages_in_order(checkout: Path) -> None:
    code, output = run(
        checkout, "demo.sh", "trainer.save_freq=5", SEED="3", RUN="runs/x",
        WORK="runs/x/metrics.jsonl",
    )  # fmt: skip
    assert code == 0, output
    assert calls(checkout) == [
        "-m recipe.train toy recipe.run_dir=runs/x recipe.seed=3 trainer.save_freq=5",
        "-m recipe.export runs/x",
        "-m eval.sweep runs/x",
        "-m eval.report runs/x",
    ]
    seconds = json.loads((checkout / "runs/x/timing.json").read_text())["wall_seconds"]
    assert 0 <= seconds < 60


def test_demo_stops_at_a_failed_stage(checkout: Path) -> None:
    code, _ = run(checkout, "demo.sh", FAIL="recipe.export")
    assert code == 7
    assert [c.split()[1] for c in calls(checkout)] == ["recipe.train", "recipe.export"]


def test_demo_counts_the_time_of_earlier_calls_and_not_of_idle_ones(checkout: Path) -> None:
    folder = checkout / "runs" / "demo"
    folder.mkdir(parents=True)
    (folder / ".seconds").write_text("1000\n")
    assert run(checkout, "demo.sh", WORK="runs/demo/metrics.jsonl")[0] == 0
    first = json.loads((folder / "timing.json").read_text())["wall_seconds"]
    assert 1000 <= first < 1060
    (folder / "timing.json").write_text("untouched")
    assert run(checkout, "demo.sh")[0] == 0
    assert (folder / "timing.json").read_text() == "untouched"


def test_test_sh_runs_every_stage_and_fails_for_one(checkout: Path) -> None:
    code, output = run(checkout, "test.sh", FAIL="mypy")
    assert code == 1 and "failed: [types]" in output
    assert [" ".join(call.split()[1:3]) for call in calls(checkout)] == [
        "ruff check", "ruff format", "mypy", "pytest -m", "pytest -m",
    ]  # fmt: skip


def test_test_sh_fast_leaves_out_the_end_to_end_tests(checkout: Path) -> None:
    code, _ = run(checkout, "test.sh", "--fast", "-x")
    assert code == 0
    assert [c for c in calls(checkout) if "pytest" in c] == ["-m pytest -m not e2e -x"]


def test_a_job_is_queued_again_at_its_time_limit(checkout: Path) -> None:
    """TERM reaches the training, whose end is awaited; then scontrol is asked to requeue."""
    tools = checkout / "tools"
    tools.mkdir()
    (tools / "scontrol").write_text('#!/bin/sh\necho "scontrol $*" >>"$CALLS"\n')
    (tools / "scontrol").chmod(0o755)
    python = checkout / ".venv" / "bin" / "python"
    python.write_text(
        textwrap.dedent("""\
        #!/usr/bin/env bash
        trap 'sleep 0.3; echo ended >>"$CALLS"; exit 143' TERM
        echo "$*" >>"$CALLS"
        kill -TERM $PPID
        while :; do sleep 0.1; done
        """)
    )
    code, output = run(
        checkout, "train.sbatch", "trainer.save_freq=5", EXAMPLE="toy", RUN="runs/x",
        SLURM_SUBMIT_DIR=str(checkout), SLURM_JOB_ID="17", PATH=f"{tools}:{os.environ['PATH']}",
    )  # fmt: skip
    assert code == 143 and "queued again" in output
    assert calls(checkout) == [
        "-m recipe.train toy recipe.run_dir=runs/x trainer.save_freq=5",
        "ended",
        "scontrol requeue 17",
    ]


def test_a_failed_job_is_not_queued_again(checkout: Path) -> None:
    code, output = run(
        checkout, "train.sbatch", EXAMPLE="toy", RUN="runs/x", FAIL="recipe.train",
        SLURM_SUBMIT_DIR=str(checkout), SLURM_JOB_ID="17",
    )  # fmt: skip
    assert code == 7 and "queued again" not in output


def test_the_lock_has_every_direct_need() -> None:
    """pyproject.toml, cpu.in and cpu.txt say the same; what must stay out of the lock is out."""
    lines = (ROOT / "requirements" / "cpu.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and line[0] not in " #")
    for name in direct_needs():
        assert name in pins, f"{name} is not in requirements/cpu.txt: regenerate it"
    assert not {"torchvision", "torchaudio", "torchcodec"} & set(pins)
    assert pins["torch"] == "2.13.0"  # the local part +cpu is scripts/setup.sh's


def direct_needs() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    for line in (ROOT / "requirements" / "cpu.in").read_text().splitlines():
        if need := line.partition("#")[0].strip():
            wanted.append(need)
    names = (need.replace(">", "=").replace("<", "=").split("=")[0] for need in wanted)
    return {name.strip().lower().replace("_", "-") for name in names}


def test_the_gpu_environment_and_the_gpu_extra_agree() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    listed = environment["dependencies"][-1]["pip"]
    apart = {"flash-attn==2.8.3"}  # installed by hand afterwards: it builds against torch
    assert set(extra["optional-dependencies"]["gpu"]) - apart <= set(listed)
