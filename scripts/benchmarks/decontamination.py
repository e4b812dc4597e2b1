"""Shares of planted benchmark questions that decontamination finds.

The benchmark is GSM8K's test set; for "TeX respelled" it is 1,000 questions of `math`, for "numbers
replaced" the seed questions of GSM-Plus. "exact" plants copies. "clean" is the second half of
GSM8K's test set against the first half: a match there is an error or a true near duplicate.
"""

from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import rephrase as public

from prompt_aug.base.commands import in_columns
from prompt_aug.prepare.overlap import OVERLAP_LIMIT, OverlapIndex
from prompt_aug.prepare.sources import load_rows
from prompt_aug.rephrase.decontaminate import compare, shortlist
from prompt_aug.rephrase.generate.embed import Embed, embedder

EXAMPLE = "--set metamath=DIR --set llm-decontaminator=DIR --set gsm-plus=DIR --set math=FILE"
NAMED = "NAME=PATH of metamath, llm-decontaminator, gsm-plus and math"
SAMPLE = 1000
RESPELLED = {"\\frac": "\\dfrac", "\\left(": "(", "\\right)": ")", "$": " $ ", ",": "\\,,"}


def respelled(text: str) -> str:
    """Return the text with other TeX commands and other spaces."""
    for old, new in RESPELLED.items():
        text = text.replace(old, new)
    return text


def planted(folders: Mapping[str, Path]) -> dict[str, tuple[list[str], list[str]]]:
    """Return kind -> (texts, benchmark questions)."""
    rewordings = list(public._gsm_rewordings(folders))
    test = [question for question, _ in rewordings]
    math = [str(row["question"]) for row in load_rows(str(folders["math"]))][:SAMPLE]
    changed = [p for p in public.gsm_plus(folders) if p.group == "numbers replaced"]
    half = len(test) // 2
    return {
        "exact": (test, test),
        "TeX respelled": ([respelled(text) for text in math], math),
        "numbers replaced": ([p.candidate for p in changed], [p.question for p in changed]),
        "reworded": ([text for _, text in rewordings], test),
        "clean": (test[half:], test[:half]),
    }


def row_of(name: str, texts: Sequence[str], benchmark: Sequence[str], embed: Embed) -> list[str]:
    """Return the shares of `texts` that each step finds."""
    index = OverlapIndex({"benchmark": benchmark})
    by_grams = sum(
        match is not None and match.score >= OVERLAP_LIMIT for match in map(index.best, texts)
    )
    listed: dict[int, set[str]] = {}
    pairs = list(shortlist(texts, benchmark, embed))
    own = sum(pair.question == pair.benchmark for pair in pairs)
    for pair in pairs:
        verdict = compare(benchmark[pair.benchmark], texts[pair.question]).verdict
        listed.setdefault(pair.question, set()).add(verdict)
    same = sum("accept" in verdicts for verdicts in listed.values())
    doubtful = sum("doubtful" in v and "accept" not in v for v in listed.values())
    shares = (by_grams, own if name != "clean" else 0, same, doubtful)
    shown = [f"{count / len(texts):.3f}" for count in shares]
    return [name, str(len(texts)), *shown, f"{len(pairs) / len(texts):.2f}"]


def main(parser: ArgumentParser, arguments: Sequence[str]) -> None:
    parser.add_argument("--set", type=public.named, action="append", required=True, help=NAMED)
    folders = dict(parser.parse_args(arguments).set)
    head = ["planted", "n", "n-grams", "in shortlist", "checks: same", "for a judge", "pairs each"]
    embed = embedder()
    rows = [row_of(name, *both, embed) for name, both in planted(folders).items()]
    print(in_columns([head, *rows]))
