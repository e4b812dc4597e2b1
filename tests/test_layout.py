"""The shape of the code base: imports run one way, files and functions stay small."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("prompt_aug", "recipe", "eval")
# What a package may not import. examples and scripts are not packages, and stay so.
FORBIDDEN = {
    "prompt_aug": {"recipe", "recipe.run", "eval", "torch", "verl", "vllm"},
    "recipe": {"eval"},
    "eval": {"recipe", "verl"},
}
EVERYWHERE = {"examples", "scripts", "tests"}
FILE_LINES = 400
FUNCTION_LINES = 40


def sources() -> list[Path]:
    return [path for name in PACKAGES for path in sorted((ROOT / name).rglob("*.py"))]


def imported(source: str) -> dict[str, int]:
    """Top-level modules imported anywhere in `source`, also inside functions, and the line."""
    found: dict[str, int] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module]
        elif isinstance(node, ast.Call) and is_dynamic_import(node.func):
            names = [a.value for a in node.args[:1] if is_text(a)]  # type: ignore[attr-defined]
        else:
            continue
        found.update({room_of(name): node.lineno for name in names})
    return found


def room_of(name: str) -> str:
    """The top-level module of `name`; `recipe.run`, which others may import, is one of its own."""
    top, _, rest = name.partition(".")
    return "recipe.run" if (top, rest.partition(".")[0]) == ("recipe", "run") else top


def is_dynamic_import(function: ast.expr) -> bool:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in ("import_module", "__import__")


def is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def wrong_imports(package: str, source: str) -> list[str]:
    banned = FORBIDDEN[package] | EVERYWHERE
    return [f"line {line}: {name}" for name, line in imported(source).items() if name in banned]


def long_functions(source: str) -> list[str]:
    """Functions longer than the limit; a docstring counts, decorators do not."""
    return [
        f"{node.name}: {length} lines"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES
    ]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", sources(), ids=name_of)
def test_a_file_is_small_and_imports_one_way(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    lines = source.count("\n")
    assert lines <= FILE_LINES, f"{lines} lines: split it"
    assert long_functions(source) == []
    assert wrong_imports(path.relative_to(ROOT).parts[0], source) == []


def test_every_package_was_found() -> None:
    """A check over no files passes: so say that there are some."""
    assert {path.relative_to(ROOT).parts[0] for path in sources()} == set(PACKAGES)


@pytest.mark.parametrize(
    ("package", "source", "wrong"),
    [
        ("prompt_aug", "import torch.nn as nn", ["line 1: torch"]),
        ("prompt_aug", "def f():\n    from recipe.train import main", ["line 2: recipe"]),
        ("prompt_aug", "import importlib\nimportlib.import_module('vllm.x')", ["line 2: vllm"]),
        ("eval", "from recipe import run_folder", ["line 1: recipe"]),
        ("eval", "from recipe.run.folder import RunFolder\nimport recipe.run", []),
        ("eval", "from recipe.running import x", ["line 1: recipe"]),
        ("prompt_aug", "import recipe.run.folder", ["line 1: recipe.run"]),
        ("recipe", "from eval.metrics import x", ["line 1: eval"]),
        ("recipe", "import examples.toy", ["line 1: examples"]),
        ("recipe", "import torch, verl\nfrom prompt_aug import draw", []),
        ("eval", "import evaluate\nmodel.eval()", []),
    ],
)
def test_the_import_check_sees_what_it_must(package: str, source: str, wrong: list[str]) -> None:
    assert wrong_imports(package, source) == wrong


def test_the_length_check_sees_what_it_must() -> None:
    def body(lines: int) -> str:
        return "async def f():\n" + "    x = 1\n" * (lines - 1)

    assert long_functions(body(FUNCTION_LINES)) == []
    assert long_functions("class A:\n" + "    def g(self):\n" + "        x = 1\n" * 40) == [
        "g: 41 lines"
    ]
    assert long_functions(body(FUNCTION_LINES + 1)) == ["f: 41 lines"]
