"""Templates: one record each, a bank of them in a yaml file, and their rendering.

A template is system and user text, the start of the assistant's turn (prefill: prompt tokens,
outside the loss and outside what the format check sees), stop strings and a format check.
`python -m prompt_aug.templates check BANK` validates a bank and shows every template rendered.
"""

from prompt_aug.templates.rendering import Form, Rendered, render
from prompt_aug.templates.template import Bank, BankError, Template, UnknownTemplateError, load_bank

__all__ = ["Bank", "BankError", "Form", "Rendered", "Template", "UnknownTemplateError"]
__all__ += ["load_bank", "render"]
