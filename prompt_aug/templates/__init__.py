"""Templates: one record each, a bank of them in a yaml file, and their rendering.

A template is system and user text, the start of the assistant's turn (prefill: prompt tokens,
outside the loss and outside what the format check sees), stop strings and a format check.
`python -m prompt_aug.templates check BANK` validates a bank and shows every template rendered.
"""

from prompt_aug.templates.bank import load_bank
from prompt_aug.templates.rendering import (
    Form,
    Overlong,
    Rendered,
    RenderError,
    Style,
    render,
    special_token,
    tag_opened_twice,
)
from prompt_aug.templates.template import (
    FORMAT_SETTINGS,
    Bank,
    BankError,
    FormatSetting,
    Template,
    UnknownTemplateError,
)

__all__ = [
    "FORMAT_SETTINGS",
    "Bank",
    "BankError",
    "Form",
    "FormatSetting",
    "Overlong",
    "RenderError",
    "Rendered",
    "Style",
    "Template",
    "UnknownTemplateError",
    "load_bank",
    "render",
    "special_token",
    "tag_opened_twice",
]
