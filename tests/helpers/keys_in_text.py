"""The configuration keys that a text names between backticks."""

import re
from pathlib import Path

from recipe.config.compose import CONFIG, base, is_open, known_keys

ROOT = Path(__file__).resolve().parents[2]
QUOTED = re.compile(r"`([^`\n]+)`")
KEY = re.compile(r"(?:\+{0,2})([a-z_][a-z0-9_]*(?:\.[a-z_][a-z0-9_]*)*)(=[^=].*)?$")
# Sections as people shorten them: such a key does not work as an override.
FILES = (".py", ".yaml", ".json", ".jsonl", ".md", ".txt", ".sh", ".npz")
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
    if key in known_keys() or is_open(key) or (CONFIG / key).is_dir() or _is_code(key):
        return ""
    if "." in key:
        return key if first in SHORT or first in base() else ""
    # `clip_ratio_high=0.28` with nothing before it: somebody would type that.
    return key if value and any(k.endswith(f".{key}") for k in known_keys()) else ""


def _is_code(name: str) -> bool:
    """A module or one of its members, as `recipe.train`: not a key."""
    path = ROOT / name.replace(".", "/")
    parent = ROOT / name.rpartition(".")[0].replace(".", "/")
    return any(p.is_dir() or p.with_suffix(".py").is_file() for p in (path, parent) if p != ROOT)
