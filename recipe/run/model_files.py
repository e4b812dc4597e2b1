"""Checks of a model's files that need neither torch nor vLLM."""

import ast
import contextlib
import functools
import importlib.util
from pathlib import Path

from prompt_aug.base.files import read_json

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
POINTER = b"version https://git-lfs"  # begins the file that a clone without Git LFS has


def lacks_weights(folder: Path) -> str:
    """Return what a model folder lacks of its weights, "" if nothing; files are not read whole."""
    names = [path.name for kind in ("*.safetensors", "*.bin") for path in folder.glob(kind)]
    for name in WEIGHTS:  # as transformers looks for them
        index = folder / f"{name}.index.json"
        if name not in names and index.is_file():
            names = sorted(set(read_json(index)["weight_map"].values()))
            if missing := [name for name in names if not (folder / name).is_file()]:
                return f"{index.name} lists {', '.join(missing[:3])}, missing {len(missing)} files"
            break
    if not names:
        return "it has no weights (*.safetensors or *.bin)"
    for name in names:
        with (folder / name).open("rb") as file:
            if file.read(len(POINTER)) == POINTER:
                return f"{name} is a pointer of Git LFS (`git lfs pull` replaces it)"
    return ""


@functools.cache
def cpu_head_sizes() -> tuple[int, ...]:
    """Return the attention head sizes that vLLM supports on a CPU, () if they are not known.

    They are read from its source, because its import takes many seconds.
    """
    found = importlib.util.find_spec("vllm")
    folder = Path((found and found.origin) or "").parent
    with contextlib.suppress(OSError, ValueError, AttributeError):
        source = (folder / "v1/attention/backends/cpu_attn.py").read_text("utf-8")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef) and node.name == "get_supported_head_sizes":
                returned = next(n for n in ast.walk(node) if isinstance(n, ast.Return))
                return tuple(ast.literal_eval(returned.value or ast.Tuple()))
    return ()


def unsupported_head(size: int) -> str:
    """Return why vLLM on a CPU cannot use attention heads of `size`, "" if it can."""
    sizes = cpu_head_sizes()
    if not sizes or size in sizes:
        return ""
    return (
        f"its attention heads have {size} dimensions, and vLLM on a CPU supports "
        f"{', '.join(map(str, sizes))}"
    )
