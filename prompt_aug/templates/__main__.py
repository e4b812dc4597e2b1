"""The command `python -m prompt_aug.templates`: check a bank, or make one from a checkout.

    check [BANK]                  validate a bank and show it
    published CHECKOUT OUT.json   write the prompts of an authors' checkout as a bank

`check` renders every template for a sample question, as plain text or with the chat template of a
tokenizer.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prompt_aug.base.commands import make_parser, run_command
from prompt_aug.base.files import write_json
from prompt_aug.base.tokenizers import load_tokenizer
from prompt_aug.templates import BankError, Template, load_bank, render
from prompt_aug.templates.published import renderings
from prompt_aug.typed import shown

SAMPLE = "What is $1 + 1$?"


def _show(template: Template, tokenizer: Any) -> str:
    prompt = render(template, SAMPLE, tokenizer).text
    size = f"{len(prompt)} characters"
    if tokenizer is not None:
        size += f", {len(tokenizer.encode(prompt, add_special_tokens=False))} tokens"
    rules = []
    for rule in template.format:
        checks = rule.model_dump(exclude_defaults=True, exclude={"weight"})
        listed = ", ".join(f"{key} {shown(value)}" for key, value in checks.items())
        rules.append(f"  {rule.weight:g}: {listed}")
    rules = rules or ["  constant 1"]
    head = f"=== {template.name} ({template.category}; {size}; {template.source or 'no source'})"
    return "\n".join([head, f"{prompt}|", "--- format:", *rules])


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "python -m prompt_aug.templates",
        __doc__,
        example="python -m prompt_aug.templates check my_bank.yaml",
    )
    parser.add_argument("command", choices=["check", "published"], help="what to do")
    parser.add_argument("bank", nargs="?", help="yaml or json file (default: the project's own)")
    parser.add_argument("out", nargs="?", help="published: the .json file to write")
    parser.add_argument("--tokenizer", help="folder or hub id, to render with its chat template")
    return parser


def check_bank(options: argparse.Namespace) -> None:
    """Validate the bank and show its templates."""
    if options.bank == "" or options.tokenizer == "":
        raise BankError("BANK and --tokenizer must not be empty (an unset shell variable?)")
    bank = load_bank(options.bank)
    tokenizer = load_tokenizer(options.tokenizer) if options.tokenizer else None
    for template in bank.values():
        print(_show(template, tokenizer), end="\n\n")
    print(f"{len(bank)} templates, valid")


def published(options: argparse.Namespace) -> None:
    """Write the renderings of a checkout."""
    if not options.bank or not options.out or not options.out.endswith(".json"):
        raise BankError("published: name the CHECKOUT and the OUT.json to write")
    prompts = renderings(Path(options.bank))
    write_json(Path(options.out), prompts)
    print(f"{options.out}: {len(prompts)} prompts")


def main(arguments: Sequence[str] | None = None) -> int:
    options = build_parser().parse_args(arguments)
    command = {"check": check_bank, "published": published}[options.command]
    return run_command(
        "prompt_aug.templates", lambda: command(options), interrupted="nothing was written"
    )


if __name__ == "__main__":
    sys.exit(main())
