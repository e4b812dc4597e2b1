"""Renderings from an authors' checkout: their wording, which this project does not ship.

A rendering is one ChatML string per template name, with QUESTION as the place of the question. The
checkout is read, never imported: strings of its files by `ast`, chat templates in jinja's sandbox.
"""

import ast
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from prompt_aug.base.files import read_text
from prompt_aug.templates.template import BankError
from prompt_aug.typed import parse_yaml

QUESTION = "QUESTION"
# By the stem of the json file: the repository of the wording, and the digest of the renderings that
# this project was compared with.
URLS = {
    "prompt_aug": "https://github.com/wenquanlu/prompt-augmentation-GRPO",
    "ta_grpo": "https://github.com/lhkhiem28/TA-GRPO",
    "cw_grpo": "https://github.com/WangCheng0116/CW-GRPO",
}
DIGESTS = {
    "prompt_aug": "f8d0843ff49bfb31c2831961a3a06fb147fd52ab4b4c0014e1012b3770e0f504",
    "ta_grpo": "219c7d9c0e4b79c6b59b4e19ec685178051e00ed9c33120d41c2c103fe8ba77e",
    "cw_grpo": "028bfc4e18a574537ca1a9e8b7962d4444ca8235451002a74608d926f397e4e0",
}


def how_to_make(path: Path) -> str:
    """Return the two commands that make a missing file of renderings; "" for another file."""
    if path.suffix != ".json" or path.stem not in URLS:
        return ""
    return (
        " Make it from the authors' code:\n"
        f"  git clone {URLS[path.stem]} CHECKOUT\n"
        f"  python -m prompt_aug.templates published CHECKOUT {path}"
    )


def renderings(checkout: Path) -> tuple[str, dict[str, str]]:
    """Return (name in URLS, renderings by template name) of an authors' checkout."""
    for file, (name, read) in _READERS.items():
        if (checkout / file).is_file():
            try:
                return name, read(checkout, file)
            except (KeyError, ValueError, TemplateError) as error:
                raise BankError(f"{checkout / file}: not as expected: {error!r}") from error
    raise BankError(f"{checkout}: no checkout of {', '.join(URLS.values())}")


def digest(prompts: Mapping[str, str]) -> str:
    """Return the SHA-256 of renderings; the order of their names does not matter."""
    return hashlib.sha256(json.dumps(dict(prompts), sort_keys=True).encode()).hexdigest()


def _assigned(path: Path, name: str) -> Any:
    """Return the literal that a Python file assigns to `name`, after its ``.strip()`` if any."""
    for node in ast.walk(ast.parse(read_text(path))):
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == name for target in node.targets
        ):
            value = node.value
            if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
                return str(ast.literal_eval(value.func.value)).strip()
            return ast.literal_eval(value)
    raise KeyError(name)


def _chatml(user: str, system: str | None = None) -> str:
    above = "" if system is None else f"<|im_start|>system\n{system}<|im_end|>\n"
    return f"{above}<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n"


def _prompt_aug(checkout: Path, file: str) -> dict[str, str]:
    # As transformers renders chat templates.
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    messages = [{"role": "user", "content": QUESTION}]
    return {
        name: environment.from_string(text).render(messages=messages, add_generation_prompt=True)
        for name, text in _assigned(checkout / file, "templates").items()
    }


def _ta_grpo(checkout: Path, file: str) -> dict[str, str]:
    instruction = _assigned(checkout / file, "instruction_following")
    return {"ta-grpo": _chatml(f"{instruction}\n{QUESTION}")}


def _cw_grpo(checkout: Path, file: str) -> dict[str, str]:
    recipe = parse_yaml(read_text(checkout / file), file)
    query = _assigned(checkout / "src/open_r1/evaluate.py", "MATH_QUERY_TEMPLATE")
    return {
        "cw-grpo": _chatml(QUESTION, recipe["system_prompt"]),
        "cw-grpo-query": _chatml(query.format(Question=QUESTION)),
    }


_READERS: dict[str, tuple[str, Callable[[Path, str], dict[str, str]]]] = {
    "verl/utils/dataset/templates.py": ("prompt_aug", _prompt_aug),
    "recipes/gaussian_1.5b.yaml": ("cw_grpo", _cw_grpo),
    "utils.py": ("ta_grpo", _ta_grpo),
}
