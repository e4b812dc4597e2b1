r"""Pass rates of questions, measured by a sweep of the start model over the training questions.

    python -m eval.sweep --model MODEL --out measured --temperature 1 \
        --benchmark train=data/train.parquet:8
    python -m prompt_aug.prepare data/train.parquet data/band.parquet --no-benchmarks \
        --pass-rates measured/SETTINGS/MODEL/train --keep 0.2 0.8

A band removes questions that never or rarely give GRPO a gradient. DAPO's dynamic sampling (arXiv
2503.14476) removes those at 0 and 1 during training.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from prompt_aug.base.errors import UsageError
from prompt_aug.base.files import iter_lines
from prompt_aug.prepare.sources import Numbered, Refused, SourceError

Band = tuple[float, float] | None
GRADES = "grades.jsonl"  # in the folder of a benchmark


def read_pass_rates(place: Path) -> dict[str, float]:
    """Return the share of right samples by uid, from grades.jsonl or the folder that holds it."""
    path = place / GRADES if place.is_dir() else place
    if not path.is_file():
        raise SourceError(
            f"--pass-rates {place}: there is no {GRADES}. Name the folder of a benchmark in the "
            "output of eval.sweep, OUT/SETTINGS/CHECKPOINT/BENCHMARK."
        )
    verdicts: dict[str, list[bool]] = defaultdict(list)
    for line in iter_lines(path):
        if "uid" in line and isinstance(line.get("correct"), bool):  # the first line is a head
            verdicts[line["uid"]].append(line["correct"])
    if not verdicts:
        raise SourceError(f"--pass-rates {path}: no verdicts. Name a {GRADES} of eval.sweep.")
    return {uid: sum(right) / len(right) for uid, right in verdicts.items()}


def outside(questions: Numbered, rates: Mapping[str, float], band: Band) -> Refused:
    """Return the questions outside the `band` or without a rate; none without a band."""
    if not any(question.uid in rates for _, question in questions):
        raise SourceError(
            "--pass-rates: no question of SOURCE was measured. The sweep must have read the same "
            "questions and answers, for example the file that prompt_aug.prepare wrote."
        )
    if band is None:
        return {}
    found = ((number, rates.get(question.uid)) for number, question in questions)
    return {
        number: "not measured" if rate is None else f"{rate:.3f}, not in {band[0]:g} to {band[1]:g}"
        for number, rate in found
        if rate is None or not band[0] <= rate <= band[1]
    }


def checked_band(given: Sequence[float] | None, measured: bool) -> Band:
    """Return the two numbers of --keep; both belong to the band. Raises UsageError."""
    if given is None:
        return None
    low, high = given
    if not measured or not 0 <= low <= high <= 1:
        why = "write two shares, the lower one first" if measured else "it needs --pass-rates"
        raise UsageError(f"--keep {low:g} {high:g}: {why}")
    return low, high
