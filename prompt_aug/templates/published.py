"""A bank made from published renderings, for whoever has them and wants an exact reproduction.

The renderings are one ChatML string per template name, with the words SYSTEM and QUESTION, or only
QUESTION, in the places of the message texts, in a json file. Wording and prefill come from there;
format checks, category and answer tag come from the project's template of the same name.
"""

import json
import re
from dataclasses import replace
from pathlib import Path

from prompt_aug.templates import Bank, BankError, FormatSetting, load_bank
from prompt_aug.templates.rendering import SLOT

ACCIDENTAL = " " * 4
_CHATML = re.compile(
    r"(?:<\|im_start\|>system\n(?P<system>.*?)<\|im_end\|>\n)?"
    r"<\|im_start\|>user\n(?P<user>.*?)<\|im_end\|>\n"
    r"<\|im_start\|>assistant\n(?P<prefill>.*)",
    re.DOTALL,
)


def load_published(
    path: str | Path,
    *,
    accidental_spaces: bool = True,
    format_setting: FormatSetting = "published",
) -> Bank:
    """The bank of a file of published renderings.

    Three published prefills end in four spaces that nobody meant; ``accidental_spaces=False``
    leaves them out. Raises BankError for a missing file, a rendering that is not ChatML, or a name
    that the project's bank lacks.
    """
    path = Path(path)
    if not path.is_file():
        raise BankError(f"published renderings {path}: no such file")
    own = load_bank(format_setting=format_setting)
    templates = []
    for name, rendering in json.loads(path.read_text(encoding="utf-8")).items():
        match = _CHATML.fullmatch(rendering)
        if match is None or name not in own:
            raise BankError(f"published renderings {path}: {name} is not ChatML, or not a template")
        prefill = match["prefill"]
        if not accidental_spaces:
            prefill = prefill.removesuffix(ACCIDENTAL)
        templates.append(
            replace(
                own[name],
                system=match["system"],
                user=match["user"].replace("QUESTION", SLOT),
                prefill=prefill,
                source=f"published with arXiv 2602.03190, read from {path.name}",
            )
        )
    return Bank(templates)
