"""The shape of the code: imports run one way, files and functions are small, keys in text exist."""

import ast
import functools
import graphlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest
from keys_in_text import constants_of, wrong_keys, wrong_keys_in_code

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("prompt_aug", "recipe", "eval")
# What a package may not import. examples and scripts are not packages, and stay so.
FORBIDDEN = {
    "prompt_aug": {"recipe", "eval", "torch", "verl", "vllm"},
    "recipe": {"eval"},
    "eval": {"recipe", "verl"},
}
ALLOWED = {"eval": "recipe.run"}  # of what is forbidden: the run folder, which both know
EVERYWHERE = {"examples", "scripts", "tests"}
FILE_LINES = 520
FUNCTION_LINES = 70


def sources() -> list[Path]:
    return [path for name in PACKAGES for path in sorted((ROOT / name).rglob("*.py"))]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


# ------------------------------------------------------------------------- imports


@functools.cache  # several tests walk through the same file
def nodes(source: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(source)))


@functools.cache
def imports(source: str) -> tuple[tuple[str, str | None, int], ...]:
    """(module, name taken from it, line) of every import, also inside functions."""
    return tuple(_imports(source))


def _imports(source: str) -> Iterator[tuple[str, str | None, int]]:
    for node in nodes(source):
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
    banned, allowed = FORBIDDEN[package] | EVERYWHERE, ALLOWED.get(package)
    result = {}
    for module, name, line in imports(source):
        full = f"{module}.{name}." if name else f"{module}."
        if module.partition(".")[0] in banned and not (allowed and full.startswith(f"{allowed}.")):
            result[module.partition(".")[0]] = line
    return [f"line {line}: {module}" for module, line in result.items()]


def arrows(modules: Mapping[str, str]) -> dict[str, set[str]]:
    """Which of `modules` (name -> source) each imports, also inside functions."""
    result: dict[str, set[str]] = {}
    for importer, source in modules.items():
        candidates = set()
        for module, name, _ in imports(source):
            inside = f"{module}.{name}"
            candidates.add(inside if inside in modules else module)
        result[importer] = (candidates & set(modules)) - {importer}
    return result


@functools.cache
def project() -> dict[str, set[str]]:
    return arrows({module_of(path): path.read_text(encoding="utf-8") for path in sources()})


def circle(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """The modules of one import circle, the first again at the end; [] without any."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def test_no_import_circle() -> None:
    graph = project()
    assert sum(map(len, graph.values())) > 100  # they were read
    assert circle(graph) == []


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        ({"a": "import b", "b": "def f():\n    from a import x"}, 3),
        ({"p": "", "p.a": "from p import b", "p.b": "from p.c import x", "p.c": "import p.a"}, 4),
        ({"a": "import b\nimport c", "b": "import c", "c": "import os"}, 0),
    ],
)
def test_the_circle_check_sees_what_it_must(modules: dict[str, str], expected: int) -> None:
    result = circle(arrows(modules))
    assert len(result) == expected
    assert not result or result[0] == result[-1]


def room(module: str) -> str:
    """The folder or file of a package in which a module lies: recipe.trainer of its batch."""
    return ".".join(module.split(".")[:2])


def between_rooms(graph: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    result: dict[str, set[str]] = {}
    for module, imported in graph.items():
        result.setdefault(room(module), set()).update({room(m) for m in imported} - {room(module)})
    return result


def test_no_circle_of_rooms() -> None:
    graph = between_rooms(project())
    assert {"recipe.run", "recipe.algorithms"} <= graph["recipe.trainer"]  # they were read
    assert circle(graph) == []
    graph["recipe.run"].add("recipe.trainer")
    assert circle(graph)


# ------------------------------------------------------------------------- sizes and names


def long_functions(source: str) -> list[str]:
    """Functions longer than the limit; a docstring counts, decorators do not."""
    return [
        f"{node.name}: {length} lines"
        for node in nodes(source)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES
    ]


# Names of the run folder that mean nothing else: recipe.run.folder owns them.
OF_A_RUN = {
    *("metrics.jsonl", "metrics.before.jsonl", "environment.json", "prompts.yaml", "hf", "tensors"),
    *("global_step_", ".stop", ".wandb_run_id", "train.log", "start.jsonl"),
    ".locks",
}


def spelled_names(source: str) -> list[str]:
    """The names of the run folder that a source spells, as a path or a part of one; no prose."""
    texts = (node for node in nodes(source) if isinstance(node, ast.Constant))
    paths = ((str(t.value), t.lineno) for t in texts if not re.search(r"\s", str(t.value)))
    parts = ((part, line) for path, line in paths for part in path.split("/"))
    return [
        f"line {line}: {part}" for part, line in parts if part.rstrip("*0123456789") in OF_A_RUN
    ]


@pytest.mark.parametrize(
    ("source", "result"),
    [
        ("run / '.stop'", [".stop"]),
        ("f'{run}/checkpoints/global_step_{step}'", ["global_step_"]),
        ("run.glob('global_step_*/actor')", ["global_step_*"]),
        ("'the folder of global_step_4 is gone'", []),
        ("folder.stop_request", []),
    ],
)
def test_the_check_of_names_sees_what_it_must(source: str, result: list[str]) -> None:
    assert spelled_names(source) == [f"line 1: {name}" for name in result]


def test_paths_of_a_run_come_from_the_module_that_owns_them() -> None:
    files = [path for name in ("recipe", "eval", "scripts") for path in (ROOT / name).rglob("*.py")]
    owner = ROOT / "recipe" / "run" / "folder.py"
    assert len(spelled_names(owner.read_text(encoding="utf-8"))) >= len(OF_A_RUN)
    for path in files:
        if path != owner:
            assert spelled_names(path.read_text(encoding="utf-8")) == [], name_of(path)


def what_is_wrong(package: str, source: str) -> list[str]:
    """Too many lines in a file or a function, and imports the wrong way."""
    lines = source.count("\n")
    long = [f"{lines} lines: split it"] if lines > FILE_LINES else []
    return long + long_functions(source) + wrong_imports(package, source)


def test_every_file_is_small_and_imports_one_way() -> None:
    wrong = {
        name_of(path): result
        for path in sources()
        if (result := what_is_wrong(path.relative_to(ROOT).parts[0], path.read_text("utf-8")))
    }
    assert wrong == {}


def test_the_check_of_a_file_sees_what_it_must() -> None:
    long = "def f():\n" + "    x = 1\n" * FUNCTION_LINES + "import verl\n"
    assert what_is_wrong("eval", long) == ["f: 71 lines", "line 72: verl"]
    assert what_is_wrong("eval", "\n" * FILE_LINES) == []
    assert what_is_wrong("eval", "\n" * (FILE_LINES + 1)) == ["521 lines: split it"]


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
        ("recipe", "from eval.metrics import x", ["line 1: eval"]),
        ("recipe", "import examples.toy", ["line 1: examples"]),
        ("eval", "import evaluate\nmodel.eval()", []),
    ],
)
def test_the_import_check_sees_what_it_must(package: str, source: str, wrong: list[str]) -> None:
    assert wrong_imports(package, source) == wrong


TEXTS = {
    str(path.relative_to(ROOT)): path.read_text("utf-8")
    for folder in ("recipe", "eval", "prompt_aug", "scripts")
    for path in sorted((ROOT / folder).rglob("*.py"))
}
CONSTANTS = constants_of(TEXTS.values())
FOLDERS = ("examples", "recipe", "eval", "prompt_aug", "requirements")
PAGES = [ROOT / "README.md", *(p for folder in FOLDERS for p in (ROOT / folder).rglob("*.md"))]


def test_keys_in_the_code_exist() -> None:
    assert len(TEXTS) > 100
    result = {path: wrong_keys_in_code(source, CONSTANTS) for path, source in TEXTS.items()}
    assert {path: keys for path, keys in result.items() if keys} == {}


@pytest.mark.config
def test_keys_on_the_pages_exist() -> None:
    result = {str(path.relative_to(ROOT)): wrong_keys(path.read_text("utf-8")) for path in PAGES}
    assert {path: keys for path, keys in result.items() if keys} == {}


def test_constants_are_known_unless_ambiguous() -> None:
    assert CONSTANTS["STEPS"] == "trainer.total_training_steps"
    assert constants_of(['A, B = "a", "b"', 'A = "c"', "B, C = 1, f'x'"]) == {"B": "b"}


def test_wrong_keys_on_a_page_are_found() -> None:
    text = (
        "`actor.use_dynamic_bsz=true`, `clip_ratio_high=0.28`, `recipe.augment.modes`, `trainer.x` "
        "fine: `actor_rollout_ref.actor.use_dynamic_bsz`, `method=grpo`, `recipe.train`, `a == b`, "
        "`ray_kwargs.ray_init.any`, `metrics.jsonl`, `prompt_aug.grading.grade`, `name`"
    )
    wrong = ["actor.use_dynamic_bsz", "clip_ratio_high", "recipe.augment.modes", "trainer.x"]
    assert wrong_keys(text) == wrong


@pytest.mark.parametrize(
    ("code", "wrong"),
    [
        ('f"{ACTOR}.optim.lrr={lr}: too large"', "actor_rollout_ref.actor.optim.lrr"),
        ('f"recipe.{key}.x and recipe.advantage.{name}"', ""),
        ('f"recipe.augments.{key} is off"', "recipe.augments"),
        ('"set trainer.total_steps, " "or recipe.run_dri"', "trainer.total_steps recipe.run_dri"),
        ('"lower rollout.max_num_seqs there"', "rollout.max_num_seqs"),
        ('"""The key `recipe.sede`."""', "recipe.sede"),
        ('"recipe.trian, recipe.errors.userror"', "recipe.trian recipe.errors.userror"),
        ('"checkpoints/data.pt, ray_kwargs.ray_init.any, recipe.yaml"', ""),
        ('"recipe.rollout.poll_secondz"', "recipe.rollout.poll_secondz"),  # also a package
    ],
)
def test_wrong_keys_in_code_are_found(code: str, wrong: str) -> None:
    result = wrong_keys_in_code(code, {"ACTOR": "actor_rollout_ref.actor"})
    assert result == wrong.split()
