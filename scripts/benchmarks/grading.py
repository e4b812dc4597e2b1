"""Ordinary and hostile completions graded by this grader and by verl's, side by side.

Ordinary completions use real MATH golds if ../shared/data exists, otherwise made-up ones. Three in
four are right (as written or respelled). 64 threads send the same pairs to each grader, like an
asynchronous reward loop. verl's function is `reward_score.math_verify.compute_score`. Its limit of
30 s starts at submission, so right answers behind hostile ones can time out. Prints JSON.

``--corpus FOLDER`` grades real completions with stored verdicts: every .jsonl file below the
folder, with a response, a gold and a verdict under one of the names of `NAMES`, also nested or as
lists of equal length. If a gold is a worked solution, its end after "####" or "A:" is used. Also
prints up to 20 completions on which this grader and the verdict differ.
"""

import json
import random
import re
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pyarrow import parquet
from tqdm import tqdm

from prompt_aug.base.files import iter_lines
from prompt_aug.extraction import EXTRACTIONS, extraction
from prompt_aug.grading import grade

EXAMPLE = "--corpus completions --extraction last_number"
DATA = Path(__file__).resolve().parents[3] / "shared/data/math_level3to5"
NAMES = {  # of columns; the first that exists is used
    "response": ("response", "completion", "generation", "output", "solution"),
    "gold": ("gold", "gt", "ground_truth", "ground_truth_answer", "answer"),
    "verdict": ("is_correct", "correct", "verdict", "score"),
}
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
    """Return golds of real questions, or made-up ones if the data is missing."""
    files = sorted(DATA.glob("*train.parquet"))
    if not files:
        made = [rf"\frac{{{n}}}{{{n + 1}}}" for n in range(1, 400)]
        return made + [str(n) for n in range(400)] + [rf"{n}\sqrt{{3}}" for n in range(2, 90)]
    rewards = parquet.read_table(files[0], columns=["reward_model"])["reward_model"].to_pylist()
    return [row["ground_truth"] for row in rewards if row["ground_truth"].strip()]


def respelled(gold: str) -> str:
    """Return another spelling of the same answer."""
    text = gold.replace(r"\frac", r"\dfrac").replace("(", r"\left(").replace(")", r"\right)")
    return f" {text} ".replace("+", " + ").replace(",", ", " if "," in gold else ",")


def wrong(gold: str, another: str) -> str:
    """Return an answer that is not the gold: a number off by one, or another gold plus 1."""
    return str(int(gold) + 1) if gold.lstrip("-").isdigit() else another + " + 1"


def workload(ordinary: int, hostile: int, seed: int) -> list[tuple[str, str, str]]:
    """Return shuffled (kind, response, gold); kind is right, wrong or hostile."""
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


def field_of(node: Mapping[str, Any], kind: str) -> Any:
    return next((node[name] for name in NAMES[kind] if name in node), None)


def stored(node: Any, question: str = "", gold: Any = None) -> Iterator[tuple[str, str, str, str]]:
    """Yield (verdict, response, gold, question) of a line; the verdict is "right" or "wrong"."""
    if not isinstance(node, Mapping):
        return
    question = node.get("question") or node.get("problem") or question
    gold = field_of(node, "gold") if field_of(node, "gold") is not None else gold
    responses, verdicts = field_of(node, "response"), field_of(node, "verdict")
    if gold is not None and responses is not None and verdicts is not None:
        pairs = (responses, verdicts) if isinstance(responses, list) else ([responses], [verdicts])
        answer = re.split(r"####|\n?A:", str(gold))[-1].strip()
        for response, verdict in zip(*pairs, strict=True):
            yield "right" if float(verdict) == 1.0 else "wrong", response, answer, question
    for inner in node.values():
        yield from stored(inner, question, gold)


def score_all(
    name: str, score: Callable[[str, str], bool], rows: Sequence[tuple[str, ...]]
) -> dict[str, object]:
    """Score all rows from 64 threads and count the verdicts by kind, the first entry of a row."""
    start = time.perf_counter()
    with ThreadPoolExecutor(64) as threads:
        results = list(
            tqdm(threads.map(lambda row: score(row[1], row[2]), rows), total=len(rows), desc=name)
        )
    counts: Counter[str] = Counter()
    for (kind, *_), correct in zip(rows, results, strict=True):
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
    parser.add_argument("--corpus", type=Path, help="folder of real completions with verdicts")
    parser.add_argument("--extraction", choices=EXTRACTIONS, default="default", help="of a corpus")
    given = parser.parse_args(arguments)
    rows: Sequence[tuple[str, ...]] = workload(given.ordinary, given.hostile, given.seed)
    if given.corpus:
        files = sorted(given.corpus.rglob("*.jsonl"))
        rows = [row for file in files for line in iter_lines(file) for row in stored(line)]
    questions = {(row[1], row[2]): row[3] for row in rows if len(row) > 3}
    reading = extraction(given.extraction)
    grades = {}

    def ours(response: str, gold: str) -> bool:
        key = response, gold
        grades[key] = grade(*key, question=questions.get(key, ""), extraction=reading)
        return grades[key].correct

    report = score_all("prompt_aug.grading", ours, rows)
    differ = [row for row in rows if grades[row[1], row[2]].correct != (row[0] == "right")]
    for verdict, response, gold, *_ in differ[:20] if given.corpus else ():
        graded = grades[response, gold]
        grade_line = f"{verdict!r} stored, {graded.status}: {graded.extracted!r} for {gold!r}"
        print(f"{grade_line}; ends {response[-60:]!r}")
    statuses = Counter(grades[r, g].status for kind, r, g, *_ in rows if kind == "hostile")
    print(json.dumps({**report, "statuses of the hostile": statuses}))
    if not given.skip_verl:
        from verl.utils.reward_score.math_verify import compute_score

        theirs = score_all("verl math_verify", lambda r, g: compute_score(r, g) == 1.0, rows)
        print(json.dumps(theirs))
