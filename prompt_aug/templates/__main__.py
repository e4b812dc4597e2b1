"""The command `python -m prompt_aug.templates`: check a bank, or make one of an authors' checkout.

    check [BANK]                  validate a bank and show it
    published CHECKOUT OUT.json   write the prompts of an authors' checkout as a bank

Every template is rendered for a sample question, as plain text or with the chat template of a
tokenizer, and its format reward is shown for an empty response, which must be paid nothing.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prompt_aug.base.commands import make_parser, run
from prompt_aug.base.files import write_json
from prompt_aug.base.tokenizers import load_tokenizer
from prompt_aug.templates import (
    FORMAT_SETTINGS,
    BankError,
    Template,
    load_bank,
    prompt_length,
    render,
)
from prompt_aug.templates.format_checks import RULE_KEYS
from prompt_aug.templates.published import DIGESTS, digest, renderings

SAMPLE = "What is $1 + 1$?"


def problems(template: Template) -> list[str]:
    """What a valid template should still not do."""
    found = []
    if template.format and template.format_reward("") > 0:
        found.append("an empty response gets a format reward")
    if template.prefill != template.prefill.rstrip(" \t"):
        found.append("the prefill ends in spaces, which most tokenizers merge with the next word")
    if "boxed" not in (template.system or "") + template.user:
        found.append("neither system nor user asks for a \\boxed answer")
    tag = template.answer_tag
    if tag and f"<{tag}>" not in (template.system or "") + template.user:
        found.append(f"answer_tag is {tag}, but neither system nor user shows <{tag}>")
    return found


def show(template: Template, question: str, tokenizer: Any) -> str:
    """A few lines for reading: name, size, the rendered prompt, the format checks."""
    prompt = render(template, question, tokenizer).text
    size = f"{len(prompt)} characters"
    if tokenizer is not None:
        size += f", {prompt_length(template, question, tokenizer)} tokens"
    rules = [f"  {rule.weight:g}: {describe(rule)}" for rule in template.format]
    return "\n".join(
        [
            f"=== {template.name} ({template.category}; {size}; {template.source or 'no source'})",
            prompt + "|",
            f"--- format ({template.format_setting}):",
            *(rules or ["  constant 1"]),
            *(f"  note: {problem}" for problem in problems(template)),
        ]
    )


def describe(rule: Any) -> str:
    """The checks of a rule as ``name value, name value``."""
    checks = ((key, getattr(rule, key)) for key in RULE_KEYS if key != "weight")
    return ", ".join(
        f"{key} {list(value) if isinstance(value, tuple) else value!r}"
        for key, value in checks
        if value
    )


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
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
        print(show(template, options.question, tokenizer), end="\n\n")
    notes = sum(len(problems(template)) for template in bank.values())
    print(f"{len(bank)} templates, valid, {notes} notes")
    return 1 if notes and options.strict else 0


def published(options: argparse.Namespace) -> int:
    """Write the renderings of a checkout, and say whether they are those compared with."""
    if not options.bank or not options.out or not options.out.endswith(".json"):
        raise BankError("published: name the CHECKOUT and the OUT.json to write")
    name, found = renderings(Path(options.bank))
    write_json(Path(options.out), found)
    same = digest(found) == DIGESTS[name]
    print(f"{options.out}: {len(found)} prompts of {name}, sha256 {digest(found)}")
    print("as compared with by this project" if same else "NOT the prompts that it compared with")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; 0 valid, 1 not valid (the reason on stderr), 2 wrong usage."""
    options = build_parser().parse_args(arguments)
    command = {"check": check, "published": published}[options.command]
    return run("prompt_aug.templates", lambda: command(options), interrupted="nothing was written")


if __name__ == "__main__":
    sys.exit(main())
