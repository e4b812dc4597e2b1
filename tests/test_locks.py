"""The locks and what installs them: pins, their ranges, and the lists that pip and conda get."""

import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pip._internal.network.session import PipSession
from pip._internal.req import parse_requirements

from recipe.doctor import ENTRY_POINTS, PROJECT

ROOT = Path(__file__).resolve().parents[1]


# What verl's extras ask for and no run of this project imports.
NOT_NEEDED = {
    "flash-attn",  # optional: requirements/README.md
    "mbridge",  # Megatron
    "trl",  # value heads of a critic
    "flash-linear-attention",  # models with linear attention
}


def pins(name: str) -> dict[str, str]:
    """The versions of a lock, by name."""
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    result = [line.split("==") for line in lines if "==" in line and line[0] not in " #"]
    return {canonicalize_name(package): version for package, version in result}


@pytest.mark.parametrize(("name", "extra"), [("cpu", "dev"), ("gpu", "gpu")])
def test_a_lock_has_every_direct_need_in_its_range(name: str, extra: str) -> None:
    """The needs of pyproject.toml, of its extra, and of the file that the lock is made of."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (ROOT / "requirements" / f"{name}.in").read_text().splitlines()
    wanted = [line.partition("#")[0].strip() for line in lines]
    wanted += [*project["dependencies"], *project["optional-dependencies"][extra]]
    lock = pins(f"{name}.txt")
    for need in map(Requirement, filter(None, wanted)):
        version = lock.get(canonicalize_name(need.name))
        assert version and need.specifier.contains(version), f"{need}: regenerate {name}.txt"


def read_by_pip(lines: list[str], folder: Path) -> list[tuple[str, bool]]:
    """(requirement, editable) of each line of conda's pip list, as pip reads them.

    Conda writes the list into a file beside environment.yml and calls ``pip install -U -r FILE``.
    """
    (folder / "requirements").mkdir(exist_ok=True)
    shutil.copy(ROOT / "requirements" / "gpu.txt", folder / "requirements")
    path = folder / "list.txt"
    path.write_text("\n".join(lines))
    result = parse_requirements(str(path), session=PipSession())
    return [(line.requirement, line.is_editable) for line in result]


def test_pip_reads_the_list_that_conda_gives_it(tmp_path: Path) -> None:
    """Every pin, then the project; as pins they bind the project's needs in the same resolution."""
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    result = read_by_pip(environment["dependencies"][-1]["pip"], tmp_path)
    assert [name for name, editable in result if editable] == ["."] and result[-1] == (".", True)
    names = [canonicalize_name(Requirement(name).name) for name, _ in result[:-1]]
    assert names == list(pins("gpu.txt"))
    assert all("==" in name for name, _ in result[:-1])


def test_what_verl_pins_for_cuda_is_what_the_lock_has() -> None:
    """By the metadata of the installed verl: its extras `vllm` and `fsdp`, and its own needs."""
    lock, environment = pins("gpu.txt"), {"python_version": "3.11", "sys_platform": "linux"}
    for text in importlib.metadata.requires("verl") or []:
        need = Requirement(text)
        places = [{**environment, "extra": extra} for extra in ("", "vllm", "fsdp")]
        if need.marker and not any(need.marker.evaluate(place) for place in places):
            continue
        if need.name in NOT_NEEDED:
            continue
        version = lock.get(canonicalize_name(need.name))
        assert version and need.specifier.contains(version), f"verl wants {need}: {version}"


@pytest.mark.config
def test_the_image_without_the_code_has_the_entry_points(tmp_path: Path) -> None:
    """recipe.def copies these files and installs their folder; the checkout is on PYTHONPATH."""
    text = (ROOT / "requirements" / "recipe.def").read_text()
    assert "pip install --no-cache-dir --no-deps --no-build-isolation /opt/recipe\n" in text
    copied = re.findall(r"^    (\S+) /opt/recipe/(\S+)$", text, re.M)
    assert copied and all(source == target for source, target in copied)
    (tmp_path / "requirements").mkdir()
    for name, _ in copied:
        shutil.copy(ROOT / name, tmp_path / name)
    site = tmp_path / "site"
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--target", str(site)]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", *options, str(tmp_path)]
    subprocess.run(pip, check=True)
    (result,) = importlib.metadata.distributions(path=[str(site)])
    assert result.name == PROJECT
    registered = {(point.group, point.value) for point in result.entry_points}
    assert registered == {(group, value) for group, (value, _) in ENTRY_POINTS.items()}
    assert {path.name for path in site.iterdir()} == {f"rlvr_recipes-{result.version}.dist-info"}
