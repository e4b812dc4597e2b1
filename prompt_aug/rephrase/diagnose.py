"""Separate the effects of rephrasing and of more responses (arXiv 2601.22478, section 5.2).

    python -m prompt_aug.rephrase.diagnose QUESTIONS.parquet FOLDER --model MODEL --base-url URL

The paper finds that the rewards of N x G responses to N rephrasings are all equal less often than
those of G responses to the question. But 24 rewards are all equal less often than 8, for any
prompt. This command therefore adds a control and compares the shares of all-equal rewards among:

    original     G responses to q^0
    rephrasings  N G responses, G to each of q^1 .. q^N
    control      N G further responses to q^0

`rephrasings - control` is the effect of rephrasing alone. Writes diagnosis.json.
"""

import argparse
import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from prompt_aug.base.commands import at_least, check_url, make_parser, run
from prompt_aug.base.files import lock, write_json
from prompt_aug.endpoint.budget import Budget
from prompt_aug.endpoint.client import Endpoint
from prompt_aug.grading import grade_many
from prompt_aug.questions import Question, read_parquet
from prompt_aug.rephrase.stage import RephraseError, Stage, load_prompt
from prompt_aug.rephrase.store import Sampling

RESAMPLES = 2000


class Sampled(NamedTuple):
    """The responses to one question: (N + 1) G to the question, then G to each rephrasing."""

    rephrasings: Sequence[int]  # 0 for the question, n for its n-th rephrasing
    rewards: Sequence[bool]

    def sets(self, per_rephrasing: int) -> dict[str, slice]:
        """Return the places of the responses of each set."""
        own = list(self.rephrasings).count(0)
        parts = slice(per_rephrasing), slice(own, None), slice(per_rephrasing, own)
        return dict(zip(("original", "rephrasings", "control"), parts, strict=True))


def all_equal(sampled: Sampled, per_rephrasing: int) -> dict[str, bool]:
    """Return {set: True if all its rewards are equal}."""
    sets = sampled.sets(per_rephrasing)
    return {name: len(set(sampled.rewards[part])) == 1 for name, part in sets.items()}


def interval(values: Sequence[float], seed: int = 0) -> list[float]:
    """Return [mean, low, high], the 95 % percentile bootstrap of a mean over questions."""
    array, rng = np.asarray(values, dtype=float), np.random.default_rng(seed)
    means = [rng.choice(array, len(array)).mean() for _ in range(RESAMPLES)]
    return [float(array.mean()), *(float(x) for x in np.percentile(means, [2.5, 97.5]))]


def summarise(rows: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Return [mean, low, high] of each column and of the paired differences of sets."""
    columns = {name: [float(row[name]) for row in rows] for name in rows[0]}
    for second, first in itertools.combinations(("original", "control", "rephrasings"), 2):
        both = zip(columns[first], columns[second], strict=True)
        columns[f"{first} - {second}"] = [a - b for a, b in both]
    return {name: interval(values) for name, values in columns.items()}


def sample(questions: Sequence[Question], options: argparse.Namespace) -> list[Sampled]:
    """Return all responses, from the store or the endpoint, graded. Raises RephraseError."""
    url, n = options.base_url or os.environ.get("OPENAI_BASE_URL"), options.n
    endpoint = Endpoint(base_url=url, per_request=options.g)
    sampling = Sampling(options.model, temperature=1.0, max_tokens=options.answer_tokens)
    stage = Stage("responses", options.folder, endpoint, load_prompt("solve"), sampling)
    store = stage.store
    texts = [[(q.text, n + 1), *((text, 1) for text in q.rephrasings[:n])] for q in questions]
    plan = [
        [stage.request(q.uid, text, samples=k * options.g) for text, k in requests]
        for q, requests in zip(questions, texts, strict=True)
    ]
    flat = [request for requests in plan for request in requests]
    stage.send(flat, Budget(spent=store.spent))
    if failed := sum(len(store.responses(r)) < r.samples for r in flat):
        raise RephraseError(f"{failed} texts lack responses. Run it again, or see answers.jsonl.")
    groups = [
        [(n, t) for n, r in enumerate(requests) for t in store.responses(r)] for requests in plan
    ]
    both = zip(questions, groups, strict=True)  # graded at once: each call starts threads
    grades = iter(grade_many((text, list(q.answers)) for q, group in both for _, text in group))
    return [
        Sampled([n for n, _ in group], [next(grades).correct for _ in group]) for group in groups
    ]


def diagnose(options: argparse.Namespace) -> None:
    """Sample and grade the responses, and write the report."""
    at_least(1, options, "n", "g", "limit", "answer_tokens")
    check_url(options, "base_url")
    if options.folder.is_file():
        raise RephraseError(f"FOLDER={options.folder}: a file. Name a folder.")
    everything = read_parquet(options.questions)[: options.limit]
    questions = [q for q in everything if len(q.rephrasings) >= options.n]
    if not questions:
        raise RephraseError(f"no question of {options.questions} has {options.n} rephrasings")
    with lock(options.folder):
        sampled = sample(questions, options)
        report = {
            "questions": len(questions),
            "left_out_for_too_few_rephrasings": len(everything) - len(questions),
            **{name: getattr(options, name) for name in ("model", "n", "g")},
            "columns": "mean, low, high: 95 % bootstrap over questions",
        }
        shares = summarise([all_equal(s, options.g) for s in sampled])
        write_json(options.folder / "diagnosis.json", report | {"all_equal": shares})
    for name, (mean, low, high) in shares.items():
        print(f"{name:24} {mean:7.4f}  [{low:.4f}, {high:.4f}]")


def main(arguments: Sequence[str] | None = None) -> int:
    name, summary = "prompt_aug.rephrase.diagnose", (__doc__ or "").split("\n\n")[0]
    example = f"python -m {name} train.parquet runs/diagnosis --model NAME"
    parser = make_parser(f"python -m {name}", summary, example=example)
    add = parser.add_argument
    add("questions", type=Path, help="with extra_info.rephrasings")
    add("folder", type=Path, help="of responses and diagnosis.json")
    add("--model", required=True, help="as the endpoint names it")
    add("--base-url", help="default: OPENAI_BASE_URL, else OpenAI's")
    add("--n", type=int, default=3, help="rephrasings of a question")
    add("--g", type=int, default=8, help="responses to each rephrasing")
    add("--answer-tokens", type=int, default=3072, help="at most, of a response")
    add("--limit", type=int, help="only the first so many questions")
    options = parser.parse_args(arguments)
    return run(name, lambda: diagnose(options), interrupted="responses are kept in FOLDER")


if __name__ == "__main__":
    sys.exit(main())
