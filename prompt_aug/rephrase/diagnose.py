"""Separate the effects of rephrasing and of more responses (arXiv 2601.22478, section 5.2).

    python -m prompt_aug.rephrase.diagnose QUESTIONS.parquet FOLDER --model MODEL --base-url URL \\
        [--embedder Qwen/Qwen3-Embedding-0.6B --embedder-url URL]

The paper finds that the rewards of N x G responses to N rephrasings are all equal less often than
those of G responses to the question. But 24 rewards are all equal less often than 8, for any
prompt. This command therefore adds a control and compares the shares of all-equal rewards among:

    original     G responses to q^0
    rephrasings  N G responses, G to each of q^1 .. q^N
    control      N G further responses to q^0

`rephrasings - control` is the effect of rephrasing alone. Distances are means of 1 - cosine over
pairs of responses to one rephrasing (within) or two (between). Writes diagnosis.json and .png.
"""

import argparse
import itertools
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from prompt_aug.base.commands import add_renamed, at_least, check_url, make_parser, run
from prompt_aug.base.files import lock, write_json
from prompt_aug.endpoint.budget import Budget
from prompt_aug.endpoint.client import Endpoint
from prompt_aug.grading import grade_many
from prompt_aug.questions import Question, read_parquet
from prompt_aug.rephrase.generate.client import Stage
from prompt_aug.rephrase.generate.embed import Embed, embedder, unit_rows
from prompt_aug.rephrase.generate.prompts import RephraseError, load_prompt
from prompt_aug.rephrase.generate.store import Sampling

RESAMPLES = 2000
EMBEDDER = "Qwen/Qwen3-Embedding-0.6B"  # the paper's authors' choice


class Sampled(NamedTuple):
    """The responses to one question: (N + 1) G to the question, then G to each rephrasing."""

    asked: Sequence[int]  # 0 for the question, n for its n-th rephrasing
    rewards: Sequence[bool]
    texts: Sequence[str]

    def sets(self, per_rephrasing: int) -> dict[str, slice]:
        """Return the places of the responses of each set."""
        own = list(self.asked).count(0)
        parts = slice(per_rephrasing), slice(own, None), slice(per_rephrasing, own)
        return dict(zip(("original", "rephrasings", "control"), parts, strict=True))


def all_equal(sampled: Sampled, per_rephrasing: int) -> dict[str, bool]:
    """Return {set: True if all its rewards are equal}."""
    sets = sampled.sets(per_rephrasing)
    return {name: len(set(sampled.rewards[part])) == 1 for name, part in sets.items()}


def distances(sampled: Sampled, per_rephrasing: int, embed: Embed) -> dict[str, float]:
    """Return the mean of 1 - cosine over the pairs of each set; NaN without a pair."""
    vectors, asked = unit_rows(embed(sampled.texts)), np.asarray(sampled.asked)
    one, two = np.triu_indices(len(asked), 1)
    far, same = (1 - vectors @ vectors.T)[one, two], asked[one] == asked[two]
    pairs: dict[str, np.ndarray] = {}
    for name, part in sampled.sets(per_rephrasing).items():
        (member := np.zeros(len(asked), dtype=bool))[part] = True
        pairs[name] = member[one] & member[two]
    both = pairs["rephrasings"]
    pairs |= {"rephrasings within": both & same, "rephrasings between": both & ~same}
    return {n: float(far[pair].mean()) if pair.any() else math.nan for n, pair in pairs.items()}


def interval(values: Sequence[float], seed: int = 0) -> list[float]:
    """Return [mean, low, high], the 95 % percentile bootstrap of a mean over questions."""
    array, rng = np.asarray(values, dtype=float), np.random.default_rng(seed)
    means = [rng.choice(array, len(array)).mean() for _ in range(RESAMPLES)]
    return [float(array.mean()), *(float(x) for x in np.percentile(means, [2.5, 97.5]))]


def summarise(rows: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Return [mean, low, high] of each column and of the paired differences of sets, NaN aside."""
    columns = {name: [float(row[name]) for row in rows] for name in rows[0]}
    for other, one in itertools.combinations(("original", "control", "rephrasings"), 2):
        both = zip(columns[one], columns[other], strict=True)
        columns[f"{one} - {other}"] = [a - b for a, b in both]
    known = {name: [v for v in values if v == v] for name, values in columns.items()}
    return {name: interval(values) for name, values in known.items() if values}


def sample(questions: Sequence[Question], options: argparse.Namespace) -> list[Sampled]:
    """Return all responses, from the store or the endpoint, graded. Raises RephraseError."""
    url = options.base_url or os.environ.get("OPENAI_BASE_URL")
    concurrency, n = options.concurrency, options.n
    endpoint = Endpoint(base_url=url, concurrency=concurrency, per_request=options.g)
    sampling = Sampling(options.model, options.temperature, 1.0, options.answer_tokens)
    stage = Stage("responses", options.folder, endpoint, load_prompt("solve"), sampling)
    store = stage.store
    texts = [[(q.text, n + 1), *((text, 1) for text in q.rephrasings[:n])] for q in questions]
    plan = [
        [stage.request(q.uid, text, samples=k * options.g) for text, k in asked]
        for q, asked in zip(questions, texts, strict=True)
    ]
    flat = [request for requests in plan for request in requests]
    stage.send(flat, Budget(options.max_requests, options.max_total_tokens, spent=store.spent))
    if failed := sum(len(store.responses(r)) < r.samples for r in flat):
        raise RephraseError(f"{failed} texts lack responses. Run it again, or see answers.jsonl.")
    said = [[(n, t) for n, r in enumerate(asked) for t in store.responses(r)] for asked in plan]
    both = zip(questions, said, strict=True)  # graded at once: each call starts threads
    grades = iter(grade_many((text, list(q.answers)) for q, group in both for _, text in group))
    return [
        Sampled([n for n, _ in group], [next(grades).correct for _ in group], [t for _, t in group])
        for group in said
    ]


def plot(report: Mapping[str, Any], path: Path) -> None:
    """Write the shares of all-equal rewards and the distances, with intervals."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    titles = {"all_equal": "share with all-equal rewards", "distance": "mean pairwise distance"}
    parts = [part for part in titles if report.get(part)]
    figure, axes = pyplot.subplots(1, len(parts), figsize=(5 * len(parts), 3.6), squeeze=False)
    for axis, part in zip(axes[0], parts, strict=True):
        shown = {name: values for name, values in report[part].items() if " - " not in name}
        for place, (mean, low, high) in enumerate(shown.values()):
            axis.errorbar(place, mean, [[mean - low], [high - mean]], fmt="o", capsize=4)
        axis.set_xticks(range(len(shown)), [name.replace(" ", "\n") for name in shown])
        axis.set(title=titles[part], ylim=(0, None))
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def diagnose(options: argparse.Namespace) -> None:
    """Sample and grade the responses, embed them if requested, and write the report."""
    ones = "n g limit answer_tokens concurrency max_requests max_total_tokens"
    at_least(1, options, *ones.split())
    check_url(options, "base_url", "embedder_url")
    if options.folder.is_file():
        raise RephraseError(f"FOLDER={options.folder}: a file. Name a folder.")
    everything = read_parquet(options.questions)[: options.limit]
    questions = [q for q in everything if len(q.rephrasings) >= options.n]
    if not questions:
        raise RephraseError(f"no question of {options.questions} has {options.n} rephrasings")
    with lock(options.folder):
        sampled = sample(questions, options)
        report: dict[str, Any] = {
            "questions": len(questions),
            "left_out_for_too_few_rephrasings": len(everything) - len(questions),
            **{name: getattr(options, name) for name in ("model", "n", "g")},
            "columns": "mean, low, high: 95 % bootstrap over questions",
            "all_equal": summarise([all_equal(s, options.g) for s in sampled]),
        }
        if model := options.embedder or (EMBEDDER if options.embedder_url else None):
            embed = embedder(model, options.embedder_url or options.base_url)
            rows = [distances(s, options.g, embed) for s in sampled]
            report |= {"embedder": model, "distance": summarise(rows)}
        write_json(options.folder / "diagnosis.json", report)
        plot(report, options.folder / "diagnosis.png")
    for part in ("all_equal", "distance"):
        for name, (mean, low, high) in report.get(part, {}).items():
            print(f"{part:9}  {name:24} {mean:7.4f}  [{low:.4f}, {high:.4f}]")


def main(arguments: Sequence[str] | None = None) -> int:
    name, summary = "prompt_aug.rephrase.diagnose", (__doc__ or "").split("\n\n")[0]
    example = f"python -m {name} train.parquet runs/diagnosis --model NAME"
    parser = make_parser(f"python -m {name}", summary, example=example)
    add = parser.add_argument
    add("questions", type=Path, help="with extra_info.rephrasings")
    add("folder", type=Path, help="of responses, diagnosis.json and .png")
    add("--model", required=True, help="as the endpoint names it")
    add("--base-url", help="default: OPENAI_BASE_URL, else OpenAI's")
    add("--n", type=int, default=3, help="rephrasings of a question")
    add("--g", type=int, default=8, help="responses to each rephrasing")
    add("--limit", type=int, help="only the first so many questions")
    add("--temperature", type=float, default=1.0, help="of the responses")
    add("--answer-tokens", type=int, default=3072, help="at most, of a response")
    add("--concurrency", type=int, default=16, help="requests in flight")
    add("--embedder", help=f"model of /v1/embeddings (with --embedder-url: {EMBEDDER})")
    add("--embedder-url", help="its endpoint (default: --base-url)")
    add("--max-requests", type=int, help="attempts, retries included")
    add("--max-total-tokens", type=int, help="of all prompts and answers")
    add_renamed(parser, "--max-tokens", "--max-total-tokens")
    options = parser.parse_args(arguments)
    return run(name, lambda: diagnose(options), interrupted="responses are kept in FOLDER")


if __name__ == "__main__":
    sys.exit(main())
