"""Precision and recall of `prompt_aug.rephrase.check`, of the whole and of each filter.

    python scripts/bench_rephrase_check.py [PAIRS.jsonl ...]

Each line of a file has a question and its candidates, each with its kind ("good" or the name of a
fault).
"""

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from prompt_aug.commands import make_parser
from prompt_aug.rephrase import Check, check

PAIRS = Path(__file__).parents[1] / "tests" / "prompt_aug" / "rephrase" / "pairs"
Pair = dict[str, Any]


def load(path: Path) -> list[Pair]:
    """The pairs of a file."""
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [
        {"set": line["set"], "kind": kind, "question": line["question"], "candidate": candidate}
        for line in lines
        for kind, candidate in line["candidates"]
    ]


def by_kind(results: list[tuple[Pair, Check]]) -> str:
    """A row for each kind: how many of each verdict."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for pair, result in results:
        counts[f"{pair['set']}, {pair['kind']}"][result.verdict] += 1
    rows = ["| kind | pairs | accept | doubtful | reject |", "|---|---|---|---|---|"]
    for kind, found in sorted(counts.items()):
        shown = " | ".join(str(found[v]) for v in ("accept", "doubtful", "reject"))
        rows.append(f"| {kind} | {found.total()} | {shown} |")
    return "\n".join(rows)


def by_filter(results: list[tuple[Pair, Check]]) -> str:
    """A row for each filter: of the pairs that it names, how many are faulty, and the reverse."""
    faulty = sum(pair["kind"] != "good" for pair, _ in results)
    named: dict[str, Counter[bool]] = defaultdict(Counter)
    for pair, result in results:
        for name in {reason.filter for reason in result.reasons}:
            named[name][pair["kind"] != "good"] += 1
        named["any"][pair["kind"] != "good"] += result.verdict != "accept"
    rows = ["| filter | faulty named | good named | precision | recall |", "|---|---|---|---|---|"]
    for name, found in sorted(named.items(), key=lambda item: -item[1][True]):
        total = found[True] + found[False]
        precision = f"{found[True] / total:.3f}" if total else "-"
        recall = f"{found[True] / faulty:.3f}"
        rows.append(f"| {name} | {found[True]} | {found[False]} | {precision} | {recall} |")
    return "\n".join(rows)


def main() -> None:
    parser = make_parser(
        "python scripts/bench_rephrase_check.py",
        __doc__,
        example="python scripts/bench_rephrase_check.py",
    )
    pairs = sorted(PAIRS.glob("*.jsonl"))
    parser.add_argument("pairs", type=Path, nargs="*", default=pairs, help="json lines")
    pairs = [pair for path in parser.parse_args().pairs for pair in load(path)]
    results = [(pair, check(pair["question"], pair["candidate"])) for pair in pairs]
    print(by_kind(results), by_filter(results), sep="\n\n")


if __name__ == "__main__":
    main()
