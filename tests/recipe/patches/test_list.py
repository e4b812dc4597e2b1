"""The list of patches is complete, and each names a test that exists."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from recipe import patches

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "recipe" / "patches"
ROOMS = ("prompt_aug", "recipe", "eval")
# Apply the patches, or decide whether to; change nothing by themselves.
CALLERS = {"recipe.patches", "recipe.patches.cpu", "recipe.patches.cpu.engines"}
CALLERS |= {"recipe.patches.cpu.critic"}
# Each patch, and the test that fails when its gap closes upstream.
PATCHES = {
    "weight_socket.adapt": "test_weight_socket.py::test_verl_still_names_the_socket_so",
    "logprobs.adapt": "test_logprobs.py::test_verls_own_is_still_coarse",
    "lora_weights.adapt": "test_fsdp_engine.py::test_verls_own_are_still_bfloat16",
    "critic_attention.adapt": "test_attention.py::test_verl_still_fixes_the_attention",
    "seeds.adapt": "test_fsdp_engine.py::test_verls_own_is_still_without_a_seed",
    "cpu.cpu_platform.PlatformCPU": "test_cpu.py::test_a_gap_of_verl_is_still_open",
    "cpu.adapters.adapt_process_group": "test_cpu.py::test_a_gap_of_verl_is_still_open",
    "cpu.adapters.adapt_vllm_version": "test_cpu.py::test_a_gap_of_verl_is_still_open",
    "cpu.adapters.register_engines": "test_cpu.py::test_a_gap_of_verl_is_still_open",
    "cpu.adapters.adapt_offload": "test_cpu.py::test_a_gap_of_verl_is_still_open",
    "cpu.vllm_plugin.register": "test_cpu.py::test_vllm_still_discards_linear_weights",
    "cpu.vllm_plugin.adapt_sampler": "test_sampler.py::test_vllm_still_draws_for_each_entry",
}


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def test_every_module_and_every_adapter_is_in_the_list() -> None:
    modules = {module_of(path) for path in FOLDER.rglob("*.py")}
    listed = {f"recipe.patches.{name}" for name in PATCHES}
    assert modules - {name.rpartition(".")[0] for name in listed} == CALLERS
    tree = ast.parse((FOLDER / "cpu" / "adapters.py").read_text(encoding="utf-8"))
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    prefix = "recipe.patches.cpu.adapters."
    assert functions == {n.removeprefix(prefix) for n in listed if n.startswith(prefix)}


def changes(source: str) -> Iterator[str]:
    """Assignments to attributes of foreign modules, with ``=``, setattr or wrapt."""
    nodes = list(ast.walk(ast.parse(source)))
    names = {name for node in nodes for name in imported(node)} - {"sys"}
    for node in nodes:
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = [part for t in node.targets for part in getattr(t, "elts", [t])]
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "delattr"):
            targets = [ast.Attribute(node.args[0], "any")]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).startswith("wrapt."):
            yield ast.unparse(node.func)
        for target in targets:
            head, dot, rest = ast.unparse(target).partition(".")
            if dot and head in names and not (head == "os" and rest.startswith("environ")):
                yield f"{head}.{rest}"


def imported(node: ast.AST) -> list[str]:
    """The names bound by an import of a foreign module."""
    if isinstance(node, ast.Import):
        return [a.asname or a.name.partition(".")[0] for a in node.names if foreign(a.name)]
    if isinstance(node, ast.ImportFrom) and foreign(node.module or ""):
        return [a.asname or a.name for a in node.names]
    return []


def foreign(module: str) -> bool:
    return module.partition(".")[0] not in ROOMS


def test_nothing_else_changes_foreign_code() -> None:
    """Except the files that the docstring of recipe.patches names, with reasons."""
    paths = {p for room in ROOMS for p in (ROOT / room).rglob("*.py")}
    result = {path for path in paths if list(changes(path.read_text(encoding="utf-8")))}
    here = set(FOLDER.rglob("*.py"))
    assert {path.name for path in result & here} >= {"adapters.py", "logprobs.py", "vllm_plugin.py"}
    named = {path for path in paths if str(path.relative_to(ROOT)) in (patches.__doc__ or "")}
    assert result - here == named


@pytest.mark.parametrize("name", PATCHES)
def test_the_patch_and_its_test_exist(name: str) -> None:
    file, _, test = PATCHES[name].partition("::")
    tree = ast.parse((Path(__file__).parent / file).read_text(encoding="utf-8"))
    assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    module, _, attribute = f"recipe.patches.{name}".rpartition(".")
    if not module.endswith("cpu_platform"):  # it imports verl
        assert callable(getattr(importlib.import_module(module), attribute))
