"""Renderings from an authors' checkout: their wording, which this project does not ship.

A rendering is one ChatML string per template name, with QUESTION as the place of the question. The
checkout is read, never imported: strings of its files by `ast`, chat templates in jinja's sandbox.
"""

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from prompt_aug.base.files import read_text
from prompt_aug.templates.template import QUESTION, BankError
from prompt_aug.typed import parse_yaml


def renderings(checkout: Path) -> dict[str, str]:
    """Return the renderings of an authors' checkout by template name."""
    for file, read in _READERS.items():
        if (checkout / file).is_file():
            try:
                return read(checkout, file)
            except (KeyError, ValueError, TemplateError) as error:
                raise BankError(f"{checkout / file}: not as expected: {error!r}") from error
    raise BankError(f"{checkout}: it has none of {', '.join(_READERS)}")


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


def _cw_grpo(checkout: Path, file: str) -> dict[str, str]:
    recipe = parse_yaml(read_text(checkout / file), file)
    query = _assigned(checkout / "src/open_r1/evaluate.py", "MATH_QUERY_TEMPLATE")
    return {
        "cw-grpo": _chatml(QUESTION, recipe["system_prompt"]),
        "cw-grpo-query": _chatml(query.format(Question=QUESTION)),
    }


_READERS: dict[str, Callable[[Path, str], dict[str, str]]] = {
    "verl/utils/dataset/templates.py": _prompt_aug,
    "recipes/gaussian_1.5b.yaml": _cw_grpo,
}
