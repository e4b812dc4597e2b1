"""Load commands: modules of the packages by name, those of scripts/ by their path."""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def load_script(name: str) -> ModuleType:
    """Load ``scripts/<name>.py``; `benchmarks` can be imported afterwards."""
    if str(SCRIPTS) not in sys.path:
        sys.path.append(str(SCRIPTS))
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class ParsedError(Exception):
    """Stops a command in place of parsing, or after it; `args[0]` is the parser or its result."""


def load_command(name: str) -> ModuleType | SimpleNamespace:
    """Load a command, as ``eval.sweep``, ``recipe/train.py`` or ``scripts/bench.py``."""
    path = Path(name)
    if name.startswith("scripts/benchmarks/"):
        return SimpleNamespace(main=lambda: load_script("bench").main([path.stem]))
    if name.startswith("scripts/"):
        return load_script(path.stem)
    module = name.removesuffix(".py").replace("/", ".")
    package = (SCRIPTS.parent / module.replace(".", "/")).is_dir()
    return importlib.import_module(f"{module}.__main__" if package else module)
