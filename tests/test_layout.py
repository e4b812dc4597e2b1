"""The shape of the code: imports run one way, files are small, names are our own; locks."""

import ast
import sys
import tomllib
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("prompt_aug", "recipe", "eval")
# What a package may not import. examples and scripts are not packages, and stay so.
FORBIDDEN = {
    "prompt_aug": {"recipe", "eval", "torch", "verl", "vllm"},
    "recipe": {"eval"},
    "eval": {"recipe", "verl"},
}
# Of what is forbidden: the run folder, the machine and the section `eval`, which both know.
ALLOWED = {"eval": ("recipe.run.", "recipe.machine.", "recipe.config.evaluation.")}
EVERYWHERE = {"examples", "scripts", "tests"}
FILE_LINES = 520


def sources() -> list[Path]:
    return [path for name in PACKAGES for path in sorted((ROOT / name).rglob("*.py"))]


def imports(source: str) -> Iterator[tuple[str, str | None, int]]:
    """(module, name taken from it, line) of every import, also inside functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield from ((node.module, alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and node.args:
            function = getattr(node.func, "attr", getattr(node.func, "id", ""))
            module = getattr(node.args[0], "value", None)
            if function in ("import_module", "__import__") and isinstance(module, str):
                yield module, None, node.lineno


def wrong_imports(package: str, source: str) -> list[str]:
    banned, allowed = FORBIDDEN[package] | EVERYWHERE, ALLOWED.get(package, ())
    result = {}
    for module, name, line in imports(source):
        full = f"{module}.{name}." if name else f"{module}."
        if module.partition(".")[0] in banned and not full.startswith(allowed):
            result[module.partition(".")[0]] = line
    return [f"line {line}: {module}" for module, line in result.items()]


def test_every_file_is_small_and_imports_one_way() -> None:
    for path in sources():
        source = path.read_text("utf-8")
        assert source.count("\n") <= FILE_LINES, path
        assert wrong_imports(path.relative_to(ROOT).parts[0], source) == [], path


def test_modules_have_names_of_our_own() -> None:
    """Not those of the standard library; a package's __main__ is run by its package's name."""
    names = {path.stem for path in sources()} - {"__main__"}
    assert names & sys.stdlib_module_names == set()


def test_only_files_of_that_name_start_ray_or_an_engine() -> None:
    """The mark e2e and the file name say the same, so that the list of files tells."""
    marked = {
        path.name
        for path in (ROOT / "tests").rglob("test_*.py")
        if "pytest.mark." + "e2e" in path.read_text(encoding="utf-8")
    }
    named = {path.name for path in (ROOT / "tests").rglob("test_*_e2e.py")}
    assert marked == named != set()


@pytest.mark.parametrize(
    ("package", "source", "wrong"),
    [
        ("prompt_aug", "import torch.nn as nn", ["line 1: torch"]),
        ("prompt_aug", "import importlib\nimportlib.import_module('vllm.x')", ["line 2: vllm"]),
        ("eval", "from recipe.running import x", ["line 1: recipe"]),
        ("eval", "from recipe import run\nfrom recipe.run.folder import x", []),
        ("eval", "import recipe.config.compose", ["line 1: recipe"]),
        ("recipe", "from eval.metrics import x", ["line 1: eval"]),
        ("recipe", "import examples.toy", ["line 1: examples"]),
        ("eval", "import evaluate\nmodel.eval()", []),
    ],
)
def test_the_import_check_sees_what_it_must(package: str, source: str, wrong: list[str]) -> None:
    assert wrong_imports(package, source) == wrong


# ------------------------------------------------------------------------- rooms
# A room is a file or folder of a folder; it stands one floor above all rooms that it imports.


def rooms(folder: Path) -> dict[str, set[str]]:
    """The rooms of a folder, with those that each imports."""
    package = ".".join(folder.relative_to(ROOT).parts) + "."
    graph: dict[str, set[str]] = {path.stem: set() for path in folder.iterdir()}
    for path in folder.rglob("*.py"):
        room = graph[name := path.relative_to(folder).parts[0].removesuffix(".py")]
        for module, taken, _ in imports(path.read_text("utf-8")):
            if f"{module}.".startswith(package):
                other = f"{module}.{taken}".removeprefix(package).partition(".")[0]
                room.add(other if other in graph else "__init__")
        room.discard(name)
    return graph


def floors(graph: Mapping[str, set[str]]) -> int:
    """The number of floors. Raises CycleError if an import runs upwards."""
    floor: dict[str, int] = {}
    for room in TopologicalSorter(graph).static_order():
        floor[room] = 1 + max((floor[other] for other in graph[room]), default=0)
    return max(floor.values())


def test_no_import_runs_upwards_and_eval_has_few_floors_and_arrows() -> None:
    for folder in {path.parent for path in sources()}:
        floors(rooms(folder))
    graph = rooms(ROOT / "eval")
    assert graph["sweep"] == {"ask", "evaluate", "workers"}
    assert floors(graph) <= 5 and sum(map(len, graph.values())) <= 15
    with pytest.raises(CycleError):
        floors({**graph, "ask": {"sweep"}})


# ------------------------------------------------------------------------- locks
# The locks and what installs them: pins, their ranges, and the lists that pip and conda get.


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
