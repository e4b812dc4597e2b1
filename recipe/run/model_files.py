"""Checks of a model's files that need neither torch nor vLLM."""

import ast
import contextlib
import functools
import importlib.util
from collections.abc import Iterator
from pathlib import Path

POINTER = b"version https://git-lfs"  # begins the file that a clone without Git LFS has


def lacks_weights(folder: Path) -> str:
    """Return what a model folder lacks of its weights, "" if nothing; files are not read whole."""
    names = [path.name for kind in ("*.safetensors", "*.bin") for path in folder.glob(kind)]
    if not names:
        return "it has no weights (*.safetensors or *.bin)"
    for name in names:
        with (folder / name).open("rb") as file:
            if file.read(len(POINTER)) == POINTER:
                return f"{name} is a pointer of Git LFS (`git lfs pull` replaces it)"
    return ""


def model_folder(model: str) -> Iterator[str]:
    """Yield what is wrong with a path; a hub id is checked later, by transformers."""
    if not Path(model).is_dir():
        if not model.startswith(("/", ".", "~")) and model.count("/") <= 1:
            return
        yield f"recipe.model_path={model}: no such folder, and no hub id, which is OWNER/NAME."
    elif not (Path(model) / "config.json").is_file():
        yield f"recipe.model_path={model}: there is no config.json in it. Name a model folder."
    elif why := lacks_weights(Path(model)):
        yield f"recipe.model_path={model}: {why}. Copy or download the whole folder."


@functools.cache
def cpu_head_sizes() -> tuple[int, ...]:
    """Return the attention head sizes that vLLM supports on a CPU, () if they are not known.

    They are read from its source, because its import takes many seconds.
    """
    spec = importlib.util.find_spec("vllm")
    folder = Path((spec and spec.origin) or "").parent
    with contextlib.suppress(OSError, ValueError, StopIteration):
        source = (folder / "v1/attention/backends/cpu_attn.py").read_text("utf-8")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef) and node.name == "get_supported_head_sizes":
                returned = (n.value for n in ast.walk(node) if isinstance(n, ast.Return))
                return tuple(ast.literal_eval(next(filter(None, returned))))
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
