"""The command `python -m prompt_aug.templates`: check a bank, or make one from a checkout.

    check [BANK]                  validate a bank and show it
    published CHECKOUT OUT.json   write the prompts of an authors' checkout as a bank

`check` renders every template for a sample question, as plain text or with the chat template of a
tokenizer, and notes what a valid template should still avoid.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prompt_aug.base.commands import make_parser, run
from prompt_aug.base.files import write_json
from prompt_aug.base.tokenizers import load_tokenizer
from prompt_aug.templates import BankError, Template, load_bank, render
from prompt_aug.templates.published import DIGESTS, digest, renderings
from prompt_aug.templates.template import FORMAT_SETTINGS
from prompt_aug.typed import shown

SAMPLE = "What is $1 + 1$?"


def _problems(template: Template) -> list[str]:
    found, asked = [], (template.system or "") + template.user
    if template.format and template.format_reward("") > 0:
        found.append("an empty response gets a format reward")
    if template.prefill != template.prefill.rstrip(" \t"):
        found.append("the prefill ends in spaces, which most tokenizers merge with the next word")
    if "boxed" not in asked:
        found.append("neither system nor user asks for a \\boxed answer")
    if template.answer_tag and f"<{template.answer_tag}>" not in asked:
        found.append(f"neither system nor user shows <{template.answer_tag}>, the answer_tag")
    return found


def _show(template: Template, question: str, tokenizer: Any) -> str:
    prompt = render(template, question, tokenizer).text
    size = f"{len(prompt)} characters"
    if tokenizer is not None:
        size += f", {len(tokenizer.encode(prompt, add_special_tokens=False))} tokens"
    rules = []
    for rule in template.format:
        checks = rule.model_dump(exclude_defaults=True, exclude={"weight"})
        listed = ", ".join(f"{key} {shown(value)}" for key, value in checks.items())
        rules.append(f"  {rule.weight:g}: {listed}")
    return "\n".join(
        [
            f"=== {template.name} ({template.category}; {size}; {template.source or 'no source'})",
            prompt + "|",
            f"--- format ({template.format_setting}):",
            *(rules or ["  constant 1"]),
            *(f"  note: {problem}" for problem in _problems(template)),
        ]
    )


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "python -m prompt_aug.templates",
        __doc__,
        example="python -m prompt_aug.templates check my_bank.yaml --strict",
    )
    parser.add_argument("command", choices=["check", "published"], help="what to do")
    parser.add_argument("bank", nargs="?", help="yaml or json file (default: the project's own)")
    parser.add_argument("out", nargs="?", help="published: the .json file to write")
    parser.add_argument("--question", default=SAMPLE, help="the question to render")
    parser.add_argument("--tokenizer", help="folder or hub id, to render with its chat template")
    parser.add_argument("--format", choices=FORMAT_SETTINGS, default="strict", help="which checks")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if there is any note")
    return parser


def check(options: argparse.Namespace) -> int:
    """Validate the bank and show its templates; 1 for notes with ``--strict``."""
    if options.bank == "" or options.tokenizer == "":
        raise BankError("BANK and --tokenizer must not be empty (an unset shell variable?)")
    if not options.question.strip():
        raise BankError("--question must not be empty")
    bank = load_bank(options.bank, options.format)
    tokenizer = load_tokenizer(options.tokenizer) if options.tokenizer else None
    for template in bank.values():
        print(_show(template, options.question, tokenizer), end="\n\n")
    notes = sum(len(_problems(template)) for template in bank.values())
    print(f"{len(bank)} templates, valid, {notes} notes")
    return 1 if notes and options.strict else 0


def published(options: argparse.Namespace) -> int:
    """Write the renderings of a checkout, and print whether they are those compared with."""
    if not options.bank or not options.out or not options.out.endswith(".json"):
        raise BankError("published: name the CHECKOUT and the OUT.json to write")
    name, found = renderings(Path(options.bank))
    write_json(Path(options.out), found)
    same = digest(found) == DIGESTS[name]
    print(f"{options.out}: {len(found)} prompts of {name}, sha256 {digest(found)}")
    print(
        f"These are {'' if same else 'NOT '}the prompts that this project was compared with: their "
        f"digest is {'the' if same else 'not the'} recorded one."
    )
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    options = build_parser().parse_args(arguments)
    command = {"check": check, "published": published}[options.command]
    return run("prompt_aug.templates", lambda: command(options), interrupted="nothing was written")


if __name__ == "__main__":
    sys.exit(main())
