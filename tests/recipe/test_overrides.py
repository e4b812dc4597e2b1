"""Every subclass of a class of verl lists its overrides; the lists are complete and correct."""

import ast
import importlib
import inspect
import re
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TITLE = "Overrides of verl"
LINE = re.compile(r"  (\w+)(  |$)")  # a name, then the reason; its next lines are indented further


def listed(cls: type) -> set[str]:
    """The names in the list of a docstring."""
    _, _, after = (inspect.getdoc(cls) or "").partition(TITLE)
    return {match.group(1) for line in after.splitlines() if (match := LINE.match(line))}


def overridden(cls: type, ours: str = "recipe.") -> set[str]:
    """The methods of `cls` that override one of a base class that is not of `ours`.

    Abstract methods do not count; `object` is a base class.
    """
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(tree, ast.ClassDef)
    written = {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
    above = [vars(base) for base in cls.__mro__[1:] if not base.__module__.startswith(ours)]
    inherited = {name: next((v[name] for v in above if name in v), None) for name in written}
    return {n for n, m in inherited.items() if m and not getattr(m, "__isabstractmethod__", False)}


def subclasses_of_verl() -> list[type]:
    """The classes of recipe/ that derive from a class of verl."""
    classes = []
    for path in sorted((ROOT / "recipe").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        froms = [str(n.module) for n in tree.body if isinstance(n, ast.ImportFrom)]
        names = [n.name for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.bases]
        if names and any(module.split(".")[0] == "verl" for module in froms):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            module = importlib.import_module(name)
            classes += [getattr(module, name) for name in names]
    return [c for c in classes if any(b.__module__.startswith("verl.") for b in c.__mro__)]


@pytest.mark.parametrize("cls", subclasses_of_verl(), ids=lambda cls: cls.__name__)
def test_the_list_is_what_is_overridden(cls: type) -> None:
    assert listed(cls) == overridden(cls)


def test_the_subclasses_are_found() -> None:
    assert len({cls.__name__ for cls in subclasses_of_verl()}) >= 10
