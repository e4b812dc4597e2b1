"""The configuration keys that a page names between backticks, and Python code in its texts."""

import ast
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from recipe.config.base import CONFIG, base, known_keys
from recipe.config.compose import is_open

ROOT = Path(__file__).resolve().parents[2]
QUOTED = re.compile(r"`([^`\n]+)`")
KEY = re.compile(r"(?:\+{0,2})([a-z_][a-z0-9_]*(?:\.[a-z_][a-z0-9_]*)*)(=[^=].*)?$")
# Sections as people shorten them: such a key does not work as an override.
FILES = (".py", ".yaml", ".json", ".jsonl", ".md", ".txt", ".sh", ".npz", ".pt")
# A column of verl's data, and a module that is made while running.
NO_KEYS = ("reward_model.ground_truth", "recipe.patches.cpu.torch_cpu")
GAP = "\0"  # in place of what an f-string puts in
SHORT = ("actor", "rollout", "ref", "model", "optim", "policy_loss", "fsdp_config", "augment")


def wrong_keys(text: str) -> list[str]:
    """Keys between backticks that are no full key: misspelt, shortened or gone."""
    return [key for quoted in QUOTED.findall(text) for key in [_wrong(quoted)] if key]


def _wrong(quoted: str) -> str:
    match = KEY.match(quoted)
    if match is None or match[1].endswith(FILES):
        return ""
    key, value = match[1], match[2]
    first = key.partition(".")[0]
    if (
        key in NO_KEYS
        or key in known_keys()
        or is_open(key)
        or (CONFIG / key).is_dir()
        or _is_code(key)
    ):
        return ""
    if "." in key:
        return key if first in SHORT or first in base() else ""
    # `clip_ratio_high=0.28` with nothing before it: somebody would type that.
    return key if value and any(k.endswith(f".{key}") for k in known_keys()) else ""


def _is_code(name: str) -> bool:
    """A module, or what one defines, as `recipe.train`: not a key."""
    parent, _, last = name.rpartition(".")
    return _source(name) is not None or last in _defined(parent)


def _source(module: str) -> Path | None:
    path = ROOT / module.replace(".", "/")
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None) if module else None


@functools.cache
def _defined(module: str) -> frozenset[str]:
    """The names that a module of this project defines or imports at its top."""
    file = _source(module)
    body = ast.parse(file.read_text("utf-8")).body if file else []
    names = [getattr(node, "name", "") for node in body]
    names += [n.id for node in body for n in ast.walk(node) if isinstance(n, ast.Name)]
    names += [a.asname or a.name for n in body if isinstance(n, ast.ImportFrom) for a in n.names]
    return frozenset(names)


# ------------------------------------------------------------------------- Python code


def wrong_keys_in_code(source: str, constants: Mapping[str, str]) -> list[str]:
    """Keys in the texts of Python code, docstrings too, that are no full key.

    `constants` are the values of names in f-strings. A text without any space is code that looks a
    key up, as `select(actor, "optim.lr")`, and may be short.
    """
    return [
        key
        for text in _texts(ast.parse(source), constants)
        for key in _token().findall(text)
        if (" " in text or key.partition(".")[0] not in SHORT)
        if _wrong(key)
    ]


def constants_of(sources: Iterable[str]) -> dict[str, str]:
    """The texts that modules give to names, without names that have different ones."""
    found: dict[str, set[str]] = {}
    for source in sources:
        for node in ast.parse(source).body:
            if isinstance(node, ast.Assign):
                for name, value in _pairs(node.targets[0], node.value):
                    found.setdefault(name, set()).add(value)
    return {name: values.pop() for name, values in found.items() if len(values) == 1}


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, str]]:
    """(name, text) of ``A = "a"`` and of ``A, B = "a", "b"``."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for left, right in zip(target.elts, value.elts, strict=True):
            yield from _pairs(left, right)
    elif isinstance(target, ast.Name) and isinstance(getattr(value, "value", None), str):
        yield target.id, value.value


def _texts(node: ast.AST, constants: Mapping[str, str]) -> Iterator[str]:
    """Every text of the code, an f-string as one, with `GAP` for what is not known of it."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(_part(value, constants) for value in node.values)
        for value in node.values:  # texts within its braces
            if isinstance(value, ast.FormattedValue):
                yield from _texts(value.value, constants)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _texts(child, constants)


def _part(node: ast.expr, constants: Mapping[str, str]) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    name = getattr(getattr(node, "value", None), "id", "")
    return constants.get(name, GAP)


@functools.cache
def _token() -> re.Pattern[str]:
    """A dotted name that begins as a key does, in the midst of a text."""
    roots = "|".join(sorted({*base(), *SHORT}))
    return re.compile(rf"(?<![\w./{GAP}-])(?:{roots})(?:\.[A-Za-z_]\w*)+(?![\w/({GAP}-])")
