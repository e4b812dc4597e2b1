"""The list of patches is complete, and each names a test that exists."""

import ast
import importlib
from pathlib import Path

import pytest

from recipe.patches import PATCHES, Patch

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "recipe" / "patches"
# Run the patches or ask whether they are wanted; change nothing by themselves.
CALLERS = {"recipe.patches", "recipe.patches.cpu", "recipe.patches.cpu.engines"}


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def unlisted(modules: set[str], listed: set[str]) -> set[str]:
    return modules - CALLERS - {name.rpartition(".")[0] for name in listed}


def test_every_module_is_in_the_list() -> None:
    modules = {module_of(path) for path in FOLDER.rglob("*.py")}
    assert modules > CALLERS
    assert unlisted(modules, {patch.name for patch in PATCHES}) == set()


def test_a_module_that_is_missing_is_seen() -> None:
    assert unlisted({"recipe.patches.new"}, {"recipe.patches.old.adapt"}) == {"recipe.patches.new"}


def test_every_adapter_is_in_the_list() -> None:
    tree = ast.parse((FOLDER / "cpu" / "adapters.py").read_text(encoding="utf-8"))
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    prefix = "recipe.patches.cpu.adapters."
    listed = {p.name.removeprefix(prefix) for p in PATCHES if p.name.startswith(prefix)}
    assert functions == listed


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name)
def test_the_patch_and_its_test_exist(patch: Patch) -> None:
    file, _, name = patch.test.partition("::")
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    module, _, attribute = patch.name.rpartition(".")
    if not module.endswith("cpu_platform"):  # it imports verl
        assert callable(getattr(importlib.import_module(module), attribute))
