"""Grades ordinary and hostile completions with this grader and with verl's, side by side.

    python scripts/bench_grading.py [--ordinary 1024] [--hostile 32] [--skip-verl]
    python scripts/bench_grading.py --arithmetic

The second form answers what the grader's own arithmetic (evaluate.py, arithmetic.py) is worth: the
same pairs with it and without it, the share that needs a worker, the time, and the verdicts that
differ. Its pairs are those of the first form and closed forms of numbers.

Ordinary completions: real MATH golds where ../shared/data is beside the checkout, else made-up
ones; three in four right (as written or respelled), one in four wrong. Both graders get the same
pairs in one call of 64 threads, as an asynchronous reward loop would send them. verl's function is
its `reward_score.math_verify.compute_score`; its 30 s clock starts at submission, so hostile
answers starve right ones behind them.
"""

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

from pyarrow import parquet
from tqdm import tqdm

from prompt_aug.commands import make_parser
from prompt_aug.grading import grade, quantities
from prompt_aug.grading.arithmetic import Unsupported
from prompt_aug.grading.evaluate import Value
from prompt_aug.grading.pool import Verdict, default_pool

DATA = Path(__file__).resolve().parents[2] / "shared/data/math_level3to5"
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


def run(
    name: str, score: Callable[[str, str], bool], rows: list[tuple[str, str, str]]
) -> dict[str, object]:
    """Scores all rows from 64 threads; counts who was scored right."""
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
        **sorted_counts(counts),
    }


def sorted_counts(counts: Counter[str]) -> dict[str, int]:
    """Counts in a stable order."""
    return dict(sorted(counts.items()))


CLOSED_FORMS = (
    (r"i(2-i)", "1+2i", True),
    (r"e^{i\pi/3}", r"\frac{1}{2}+\frac{\sqrt{3}}{2}i", True),
    (r"\sqrt[3]{-8}", "-2", True),
    (r"\sin 18^\circ", r"\frac{\sqrt{5}-1}{4}", True),
    (r"\sqrt{2+\sqrt{2+\sqrt{2}}}", r"2\cos\frac{\pi}{16}", True),
    (r"\frac{2+3i}{1-i}", r"-\frac{1}{2}+\frac{5}{2}i", True),
    (r"0.\overline{36}", r"\frac{4}{11}", True),
    (r"\sqrt{2}+10^{-60}", r"\sqrt{2}", False),
    (r"e^{\pi\sqrt{163}}", "262537412640768744", False),
    ("9^{9^{9}}", "5", False),
)


def arithmetic_report(rows: list[tuple[str, str, str]]) -> dict[str, object]:
    """With the grader's own arithmetic and without it: worker calls, seconds, verdicts."""
    pairs = [(response, gold) for kind, response, gold in rows if kind != "hostile"]
    pairs += [(rf"\boxed{{{pred}}}", gold) for pred, gold, _ in CLOSED_FORMS]
    grade(r"\boxed{(x+1)(x+2)}", "x^2+3x+2")  # starts a worker
    pool, read = default_pool(), quantities.evaluate
    verify = pool.verify
    report: dict[str, object] = {"pairs": len(pairs)}
    verdicts = {}
    for name in ("with", "without"):
        calls: list[str] = []

        def counted(gold: str, pred: str, calls: list[str] = calls) -> Verdict:
            calls.append(pred)
            return verify(gold, pred)

        def unreadable(text: str) -> Value:
            raise Unsupported(text)

        with patch.object(pool, "verify", counted):
            quantities.evaluate = read if name == "with" else unreadable
            start = time.perf_counter()
            graded = [grade(response, gold) for response, gold in pairs]
            quantities.evaluate = read
        verdicts[name] = [result.correct for result in graded]
        report[f"{name}: share that needs a worker"] = round(len(calls) / len(pairs), 4)
        report[f"{name}: ms per pair"] = round(1000 * (time.perf_counter() - start) / len(pairs), 2)
        truth = [right for _, _, right in CLOSED_FORMS]
        report[f"{name}: closed forms right"] = sum(
            a == b for a, b in zip(verdicts[name][-len(truth) :], truth, strict=True)
        )
    report["other verdicts"] = [
        pair
        for pair, a, b in zip(pairs, verdicts["with"], verdicts["without"], strict=True)
        if a != b and pair[1] not in [gold for _, gold, _ in CLOSED_FORMS]
    ][:20]
    return report


def main() -> None:
    """Runs both and prints one JSON line for each."""
    parser = make_parser(
        "python scripts/bench_grading.py",
        __doc__,
        example="python scripts/bench_grading.py --ordinary 256 --skip-verl",
    )
    parser.add_argument("--ordinary", type=int, default=1024, help="ordinary completions")
    parser.add_argument("--hostile", type=int, default=32, help="hostile ones, long to work out")
    parser.add_argument("--seed", type=int, default=0, help="of the choice and the order")
    parser.add_argument("--skip-verl", action="store_true", help="ours alone")
    parser.add_argument(
        "--arithmetic",
        action="store_true",
        help="the second form: with and without our own arithmetic",
    )
    options = parser.parse_args()
    rows = workload(options.ordinary, options.hostile, options.seed)
    if options.arithmetic:
        print(json.dumps(arithmetic_report(rows), indent=1))
        return

    grades = {}

    def ours(response: str, gold: str) -> bool:
        result = grade(response, gold)
        grades[response, gold] = result
        return result.correct

    report = run("prompt_aug.grading", ours, rows)
    calm = [grades[r, g].seconds for kind, r, g in rows if kind != "hostile"]
    if calm:
        report["ms per ordinary completion, mean"] = round(1000 * sum(calm) / len(calm), 3)
        report["ms per ordinary completion, max"] = round(1000 * max(calm), 1)
    report["statuses of the hostile"] = dict(
        Counter(grades[r, g].status for kind, r, g in rows if kind == "hostile")
    )
    print(json.dumps(report))
    if not options.skip_verl:
        from verl.utils.reward_score.math_verify import compute_score

        print(json.dumps(run("verl math_verify", lambda r, g: compute_score(r, g) == 1.0, rows)))


if __name__ == "__main__":
    main()
