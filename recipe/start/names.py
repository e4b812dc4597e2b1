"""What verl's keys name exists: modules, classes, files; keys.yaml lists the keys."""

import re
import sys
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from recipe.config.base import default_values, flat, verl_config
from recipe.config.compose import one_line
from recipe.config.verl import off_switch, row_of
from recipe.machine.host import gpus_here
from recipe.start.data import paths_of
from recipe.start.rules import Check, Setup

OURS = ("recipe", "prompt_aug", "verl")  # packages that are installed, which are only searched
GPU_PACKAGES = (  # a login node may lack them
    "vllm", "sglang", "flash_attn", "flashinfer", "xformers", "triton", "cupy", "liger_kernel",
    "bitsandbytes", "torchao", "apex", "transformer_engine", "deepspeed",
)  # fmt: skip


def named(s: Setup) -> Iterator[str]:
    """Modules, classes, files and other things that keys name exist (keys.yaml)."""
    content: Any = OmegaConf.to_container(s.config, resolve=True)
    values, defaults = dict(flat(content)), set(map(str, default_values().values()))
    # First the modules of the user, which may register what another key names.
    for key in sorted(values, key=lambda key: not key.endswith("external_lib")):
        row = row_of(key)
        if not values[key] or not isinstance(row, list) or off_switch(s.config, key):
            continue
        kind, other = row[0], row[-1]
        beside = other if "." in other else f"{key.rpartition('.')[0]}.{other}"
        keys = [key, beside] if kind == "module" and len(row) > 1 else [key]
        name = values.get(beside) if len(keys) > 1 else other
        if all(str(values.get(x)) in defaults for x in keys):
            continue
        for text in map(str, paths_of(values[key])):
            try:
                with warnings.catch_warnings(action="ignore"):  # of verl's missing engines
                    find(kind, text, name if len(row) > 1 else None)
            except Exception as error:  # whatever the user's module raises
                package = str(getattr(error, "name", "")).partition(".")[0]
                shown = f"{key}={text}" + (f" with {s.named(beside)}" if len(keys) > 1 else "")
                message = f"{shown}: {one_line(error)} ({type(error).__name__}). "
                if isinstance(error, ImportError) and package in GPU_PACKAGES and not gpus_here():
                    print(f"recipe.train: note: not on this machine: {message}", file=sys.stderr)
                else:
                    yield message + "Correct the name, or put its folder into PYTHONPATH."


def find(kind: str, text: str, name: str | None) -> None:
    """Look for what a key names; raises an exception if it is not there."""
    if kind == "class":
        text, _, name = text.rpartition(".")
    if kind in ("class", "module"):
        find_in_module(text, name)
    elif kind == "hub" and text[0] not in "/.~" and text.count("/") <= 1:
        return
    elif "://" not in text:
        folders = (Path(), *verl_config().parents[1:3])  # as verl's resolve_config_path
        found = next((p for f in folders if (p := f / Path(text).expanduser()).exists()), None)
        if found is None:
            raise FileNotFoundError("no such file")
        loops: Any = OmegaConf.load(found) if kind == "loops" else ()
        for entry in loops:
            find("class", entry["_target_"], None)


def find_in_module(text: str, name: str | None) -> Any:
    """Return the object `name` of a module, by dotted name, ``pkg://`` or path as in verl."""
    from verl.utils.import_utils import load_module

    is_file = not text.startswith("pkg://") and ("/" in text or text.endswith(".py"))
    module = text.removeprefix("pkg://").replace("/", ".")
    if is_file or module.partition(".")[0] not in OURS:
        loaded = load_module(text if is_file else f"pkg://{module}")
        return getattr(loaded, name) if name else None
    spec = find_spec(module)
    file = Path(spec.origin) if spec and spec.origin else None
    files = file.parent.glob("*.py") if file and file.name == "__init__.py" else [file]
    texts = [x.read_text(encoding="utf-8") for x in files if x]
    if not any(re.search(rf"\b{re.escape(name or '')}\b", text) for text in texts):
        raise ImportError(f"there is no {name or 'such module'}")
    return None


NAMES: list[Check] = [named]
