"""The configuration keys that a page names between backticks, and Python code in its texts."""

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterable, Mapping
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
BRACES = re.compile(r"\{([^{}]*)\}")
GAP = "\0"  # around what an f-string computes
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
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    texts = [
        BRACES.sub(lambda match: constants.get(match[1], f"{GAP}{match[1]}{GAP}"), token.string)
        for token in tokens
        if token.type == tokenize.STRING
    ]
    return [
        key
        for text in texts
        for key in _token().findall(text)
        if (" " in text or key.partition(".")[0] not in SHORT)
        if _wrong(key)
    ]


def constants_of(sources: Iterable[str]) -> dict[str, str]:
    """The texts that modules give to names, without names that have different ones."""
    values: dict[str, set[str]] = {}
    for source in sources:
        for node in ast.parse(source).body:
            if isinstance(node, ast.Assign):
                targets = getattr(node.targets[0], "elts", node.targets)
                given = getattr(node.value, "elts", [node.value])
                for target, value in zip(targets, given, strict=False):
                    if isinstance(target, ast.Name) and isinstance(getattr(value, "value", 0), str):
                        values.setdefault(target.id, set()).add(value.value)
    return {name: texts.pop() for name, texts in values.items() if len(texts) == 1}


@functools.cache
def _token() -> re.Pattern[str]:
    """A dotted name that begins as a key does, in the midst of a text."""
    roots = "|".join(sorted({*base(), *SHORT}))
    return re.compile(rf"(?<![\w./{GAP}-])(?:{roots})(?:\.[A-Za-z_]\w*)+(?![\w/({GAP}-])")
