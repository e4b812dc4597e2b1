"""TransferQueue installs files in a recipe/ too: every process must find this project's."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Run by name from a folder that is not the repository; prints where each process found `recipe`.
PROGRAM = """
import multiprocessing, os, subprocess, sys
import recipe

def found(*_):
    import recipe
    return recipe.__file__

if __name__ == "__main__":
    print("driver", recipe.__file__)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print("spawned", pool.map(found, [0])[0])
    command = [sys.executable, "-c", "import recipe; print(recipe.__file__)"]
    print("command", subprocess.check_output(command, text=True, cwd="/").strip())
    if "ray" in sys.argv:
        import ray
        ray.init(address="local", num_cpus=1, include_dashboard=False)
        print("Ray worker", ray.get(ray.remote(found).remote()))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has this one's packages, and the project by pip -e."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False)
    packages = next(folder.glob("lib/python*/site-packages"))
    theirs = next(p for p in sys.path if (Path(p) / "verl").is_dir())
    (packages / "base.pth").write_text(theirs)
    python = folder / "bin" / "python"
    how = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation", "-e", str(ROOT))
    subprocess.run([python, "-m", "pip", "install", *how], check=True, env=environment())
    return python


def environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}


def where(python: Path, folder: Path, *arguments: str) -> dict[str, Path]:
    """{process: the file of its package `recipe`}; the working folder has a recipe/ as well."""
    (folder / "recipe" / "simple_use_case").mkdir(parents=True)
    (folder / "program.py").write_text(PROGRAM)
    command = [python, "program.py", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, check=True
    )
    lines = [line.rpartition(" ") for line in done.stdout.splitlines()]
    return {name: Path(path) for name, _, path in lines}


@pytest.mark.config
def test_the_project_is_found_first_in_every_process(installed: Path, tmp_path: Path) -> None:
    ours = ROOT / "recipe" / "__init__.py"
    assert where(installed, tmp_path) == dict.fromkeys(("driver", "spawned", "command"), ours)


@pytest.mark.e2e
def test_the_project_is_found_first_by_ray(installed: Path, tmp_path: Path) -> None:
    assert where(installed, tmp_path, "ray")["Ray worker"] == ROOT / "recipe" / "__init__.py"


@pytest.mark.config
def test_transfer_queue_still_installs_a_recipe(installed: Path) -> None:
    """Once it does not, the setting `package-dir` of pyproject.toml has no purpose."""
    program = (
        "import importlib.metadata as m; print(*m.distribution('TransferQueue').files, sep='\\n')"
    )
    listed = subprocess.check_output([installed, "-c", program], text=True, env=environment())
    assert "\nrecipe/" in f"\n{listed}"
