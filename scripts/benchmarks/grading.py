"""Ordinary and hostile completions graded by this grader and by verl's, side by side.

Ordinary completions: real MATH golds where ../shared/data is beside the checkout, else made-up
ones; three in four right (as written or respelled), one in four wrong. Both graders get the same
pairs in one call of 64 threads, as an asynchronous reward loop would send them. verl's function is
`reward_score.math_verify.compute_score`; its 30 s clock starts at submission, so hostile answers
starve right ones behind them. Prints one JSON line for each grader.
"""

import json
import random
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyarrow import parquet
from tqdm import tqdm

from prompt_aug.grading import grade

EXAMPLE = "--ordinary 256 --skip-verl"
DATA = Path(__file__).resolve().parents[3] / "shared/data/math_level3to5"
HOSTILE = (
    "9^{9^{9^9}}",
    "(10^9)!",
    "((9!)!)!",
    "1" * 10**6,
    "{" * 2000 + "1" + "}" * 2000,
    r"\sqrt{" * 300 + "2" + "}" * 300,
    r"\sum_{k=1}^{10^9} \frac{1}{k}",
    r"(x+1)^{100000} - x^{9^{9^9}}",
    r"\sum_{k=1}^{98765} \frac{1}{k!}",
)


def golds() -> list[str]:
    """Golds of real questions, or of made-up ones where the data is not here."""
    files = sorted(DATA.glob("*train.parquet"))
    if not files:
        made = [rf"\frac{{{n}}}{{{n + 1}}}" for n in range(1, 400)]
        return made + [str(n) for n in range(400)] + [rf"{n}\sqrt{{3}}" for n in range(2, 90)]
    rewards = parquet.read_table(files[0], columns=["reward_model"])["reward_model"].to_pylist()
    return [row["ground_truth"] for row in rewards if row["ground_truth"].strip()]


def respelled(gold: str) -> str:
    """Another spelling of the same answer."""
    text = gold.replace(r"\frac", r"\dfrac").replace("(", r"\left(").replace(")", r"\right)")
    return f" {text} ".replace("+", " + ").replace(",", ", " if "," in gold else ",")


def wrong(gold: str, other: str) -> str:
    """An answer that is not the gold: a number off by one, or the answer to another question."""
    return str(int(gold) + 1) if gold.lstrip("-").isdigit() else other + " + 1"


def workload(ordinary: int, hostile: int, seed: int) -> list[tuple[str, str, str]]:
    """(kind, response, gold), shuffled; kind is right, wrong or hostile."""
    rng = random.Random(seed)
    pool = golds()
    text = "We compute step by step: " + "then $a+b=c$ and so on. " * 40
    rows = []
    for index in range(ordinary):
        gold = rng.choice(pool)
        kind = "wrong" if index % 4 == 3 else "right"
        answer = (gold, respelled(gold), gold, wrong(gold, rng.choice(pool)))[index % 4]
        rows.append((kind, rf"{text}Thus $\boxed{{{answer}}}$.", gold))
    for index in range(hostile):
        rows.append(("hostile", rf"\boxed{{{HOSTILE[index % len(HOSTILE)]}}}", rng.choice(pool)))
    rng.shuffle(rows)
    return rows


def score_all(
    name: str, score: Callable[[str, str], bool], rows: list[tuple[str, str, str]]
) -> dict[str, object]:
    """Score all rows from 64 threads and count the verdicts by kind."""
    start = time.perf_counter()
    with ThreadPoolExecutor(64) as threads:
        results = list(
            tqdm(threads.map(lambda row: score(row[1], row[2]), rows), total=len(rows), desc=name)
        )
    counts: Counter[str] = Counter()
    for (kind, _, _), correct in zip(rows, results, strict=True):
        counts[f"{kind} scored {'right' if correct else 'wrong'}"] += 1
    return {
        "grader": name,
        "seconds": round(time.perf_counter() - start, 2),
        **dict(sorted(counts.items())),
    }


def main(parser: ArgumentParser, arguments: Sequence[str]) -> None:
    parser.add_argument("--ordinary", type=int, default=1024, help="ordinary completions")
    parser.add_argument("--hostile", type=int, default=32, help="hostile ones, slow to evaluate")
    parser.add_argument("--seed", type=int, default=0, help="of the choice and the order")
    parser.add_argument("--skip-verl", action="store_true", help="ours only")
    given = parser.parse_args(arguments)
    rows = workload(given.ordinary, given.hostile, given.seed)
    grades = {}

    def ours(response: str, gold: str) -> bool:
        grades[response, gold] = grade(response, gold)
        return grades[response, gold].correct

    report = score_all("prompt_aug.grading", ours, rows)
    if seconds := [grades[r, g].seconds for kind, r, g in rows if kind != "hostile"]:
        report["ms per ordinary completion, mean"] = round(1000 * sum(seconds) / len(seconds), 3)
        report["ms per ordinary completion, max"] = round(1000 * max(seconds), 1)
    statuses = Counter(grades[r, g].status for kind, r, g in rows if kind == "hostile")
    print(json.dumps({**report, "statuses of the hostile": statuses}))
    if not given.skip_verl:
        from verl.utils.reward_score.math_verify import compute_score

        theirs = score_all("verl math_verify", lambda r, g: compute_score(r, g) == 1.0, rows)
        print(json.dumps(theirs))
