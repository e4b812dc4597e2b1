"""Section 5.2 of arXiv 2601.22478 with the control it lacks: is it the rephrasing, or the number?

    python -m prompt_aug.rephrase.diagnose QUESTIONS.parquet FOLDER --model MODEL --base-url URL \\
        [--embedder Qwen/Qwen3-Embedding-0.6B --embedder-url URL]

The paper compares G responses to a question with N x G responses to its N rephrasings, and finds
fewer groups whose rewards are all equal. But 24 responses are all equal less often than 8, whatever
they answer: for pass rates p of a Beta distribution, E[p^G + (1 - p)^G] falls with G. So this
samples (N + 1) G responses to each question, G for the paper's left side and N G for the control:

    original    all rewards of G responses to q^0 are equal
    rephrasings  all rewards of G responses to each of q^1 .. q^N are equal
    control     all rewards of N G further responses to q^0 are equal

`rephrasings - control` is the effect of rephrasing alone. Distances are 1 - cosine between embedded
responses, averaged over the pairs of a question: of one rephrasing (within) and of two (between).
Intervals are 95 % percentiles of a bootstrap over questions. Writes diagnosis.json and .png.
"""

import argparse
import asyncio
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from prompt_aug.base.commands import add_renamed, make_parser, run
from prompt_aug.base.files import lock, write_json
from prompt_aug.grading import grade_many
from prompt_aug.questions import Question, read_parquet
from prompt_aug.rephrase.generate.budget import Budget
from prompt_aug.rephrase.generate.client import Endpoint, Failure, post
from prompt_aug.rephrase.generate.prompts import RephraseError, load_prompt
from prompt_aug.rephrase.generate.store import Sampling, Store
from prompt_aug.rephrase.options import at_least, check_url
from prompt_aug.rephrase.solver import solve_requests
from prompt_aug.rephrase.stages import generate

Embed = Callable[[Sequence[str]], np.ndarray]
RESAMPLES, PARTS, PER_CALL = 2000, 20, 64
SETS = ("original", "rephrasings", "control")
EMBEDDER = "Qwen/Qwen3-Embedding-0.6B"  # the paper's authors' choice


@dataclass(frozen=True, slots=True)
class Sampled:
    """The graded responses to one question: rephrasings[0] has (N + 1) G, the others G each."""

    rewards: tuple[tuple[bool, ...], ...]
    texts: tuple[tuple[str, ...], ...]

    def sets(self, per_rephrasing: int) -> dict[str, list[tuple[int, int]]]:
        """name of `SETS` -> (rephrasing, place) of its responses."""
        count = len(self.rewards[0])
        return {
            "original": [(0, i) for i in range(per_rephrasing)],
            "rephrasings": [
                (n, i) for n in range(1, len(self.rewards)) for i in range(len(self.rewards[n]))
            ],
            "control": [(0, i) for i in range(per_rephrasing, count)],
        }


def all_equal(sampled: Sampled, per_rephrasing: int) -> dict[str, bool]:
    """For each of `SETS`, whether all its rewards are equal."""
    return {
        name: len({sampled.rewards[n][i] for n, i in places}) == 1
        for name, places in sampled.sets(per_rephrasing).items()
    }


def distances(sampled: Sampled, per_rephrasing: int, embed: Embed) -> dict[str, float]:
    """Mean of 1 - cosine over the pairs of each of `SETS`, and of the rephrasings apart.

    "rephrasings within": pairs of one rephrasing; "rephrasings between": of two.
    """
    flat = [(n, i) for n, texts in enumerate(sampled.texts) for i in range(len(texts))]
    vectors = embed([sampled.texts[n][i] for n, i in flat])
    vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    place = {key: row for row, key in enumerate(flat)}
    far = 1 - vectors @ vectors.T
    found: dict[str, float] = {}
    for name, keys in sampled.sets(per_rephrasing).items():
        pairs = list(itertools.combinations(keys, 2))
        found[name] = _mean([far[place[a], place[b]] for a, b in pairs])
        if name == "rephrasings":
            for part, same in (("within", True), ("between", False)):
                chosen = [far[place[a], place[b]] for a, b in pairs if (a[0] == b[0]) == same]
                found[f"rephrasings {part}"] = _mean(chosen)
    return found


def _mean(values: Sequence[float]) -> float:
    """NaN of none, as with one response to a rephrasing, or with one rephrasing."""
    return float(np.mean(values)) if values else float("nan")


def interval(values: Sequence[float], seed: int = 0) -> list[float]:
    """[mean, low, high]: the 95 % percentile bootstrap of a mean over questions."""
    array = np.asarray(values, dtype=float)
    rng = np.random.default_rng(seed)
    shape = (RESAMPLES // PARTS, len(array))  # in parts: all at once may not fit into memory
    means = [array[rng.integers(0, len(array), shape)].mean(axis=1) for _ in range(PARTS)]
    return [float(array.mean()), *(float(x) for x in np.percentile(means, [2.5, 97.5]))]


def summarise(rows: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Mean and interval of each column, and of the paired differences of `SETS`.

    A column that is NaN in every row is left out.
    """
    columns = {name: [float(row[name]) for row in rows] for name in rows[0]}
    pairs = [("rephrasings", "original"), ("control", "original"), ("rephrasings", "control")]
    for one, other in pairs:
        both = zip(columns[one], columns[other], strict=True)
        columns[f"{one} - {other}"] = [a - b for a, b in both]
    known = {name: [v for v in values if v == v] for name, values in columns.items()}
    return {name: interval(values) for name, values in known.items() if values}


class EndpointEmbedder:
    """`/v1/embeddings` of an OpenAI-compatible endpoint; each text is sent once."""

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        self.endpoint, self.model = endpoint, model

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        distinct = list(dict.fromkeys(text or " " for text in texts))
        found = asyncio.run(self._request(distinct))
        return np.array([found[text or " "] for text in texts])

    async def _request(self, texts: Sequence[str]) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        url = self.endpoint.url("embeddings")
        async with self.endpoint.client() as client:
            for start in range(0, len(texts), PER_CALL):
                part = texts[start : start + PER_CALL]
                try:
                    body = {"model": self.model, "input": part, "encoding_format": "float"}
                    answer = await post(client, url, body)
                    vectors = {part[e["index"]]: e["embedding"] for e in answer["data"]}
                except (Failure, KeyError, TypeError, IndexError) as error:
                    raise RephraseError(f"embedder: {error}"[:300]) from error
                if len(vectors) != len(part):
                    raise RephraseError(f"embedder: {len(vectors)} vectors for {len(part)} texts")
                found |= vectors
        return found


def sample(
    questions: Sequence[Question], options: argparse.Namespace, budget: Budget
) -> list[Sampled]:
    """All responses, from the folder or the endpoint, graded. Raises RephraseError."""
    sampling = Sampling(
        model=options.model, temperature=options.temperature, max_tokens=options.answer_tokens
    )
    store, plan, prompt = Store(options.folder), [], load_prompt("solve")
    for question in questions:
        rephrasings = list(question.rephrasings[: options.n])
        first = solve_requests(
            question, [question.text], prompt, sampling, (options.n + 1) * options.g
        )
        plan.append([*first, *solve_requests(question, rephrasings, prompt, sampling, options.g)])
    flat = [request for requests in plan for request in requests]
    endpoint = Endpoint(
        base_url=options.base_url, concurrency=options.concurrency, per_request=options.g
    )
    generate(flat, store, endpoint, budget, "responses")
    missing = sum(len(store.missing(request)) for request in flat)
    failed = sum(len(store.responses(r)) < r.samples for r in flat)
    if missing or failed:
        raise RephraseError(f"{failed} texts lack responses; run it again, or see answers.jsonl")
    said = [tuple(tuple(store.responses(r)) for r in requests) for requests in plan]
    asked = zip(questions, said, strict=True)
    pairs = [(text, list(q.answers)) for q, groups in asked for group in groups for text in group]
    grades = iter(grade_many(pairs))  # all at once: each call starts threads of its own
    return [
        Sampled(tuple(tuple(next(grades).correct for _ in g) for g in groups), groups)
        for groups in said
    ]


def plot(report: Mapping[str, Any], path: Path) -> None:
    """The shares of all-equal rewards and the distances, with intervals."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    parts = [p for p in ("all_equal", "distance") if report.get(p)]
    figure, axes = pyplot.subplots(1, len(parts), figsize=(5 * len(parts), 3.6), squeeze=False)
    titles = {"all_equal": "share with all-equal rewards", "distance": "mean pairwise distance"}
    for axis, part in zip(axes[0], parts, strict=True):
        names = [name for name in report[part] if " - " not in name]
        for place, name in enumerate(names):
            mean, low, high = report[part][name]
            axis.errorbar(place, mean, [[mean - low], [high - mean]], fmt="o", capsize=4)
        axis.set_xticks(range(len(names)), [name.replace(" ", "\n") for name in names])
        axis.set_title(titles[part])
        axis.set_ylim(bottom=0)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "python -m prompt_aug.rephrase.diagnose",
        (__doc__ or "").split("\n\n")[0],
        example="python -m prompt_aug.rephrase.diagnose train.parquet runs/diagnosis --model NAME",
    )
    parser.add_argument("questions", type=Path, help="with extra_info.rephrasings")
    parser.add_argument("folder", type=Path, help="of responses, diagnosis.json and .png")
    parser.add_argument("--model", required=True, help="as the endpoint names it")
    parser.add_argument("--base-url", help="default: OPENAI_BASE_URL, else OpenAI's")
    parser.add_argument("--n", type=int, default=3, help="rephrasings of a question")
    parser.add_argument("--g", type=int, default=8, help="responses to each rephrasing")
    parser.add_argument("--limit", type=int, help="only the first so many questions")
    parser.add_argument("--temperature", type=float, default=1.0, help="of the responses")
    parser.add_argument("--answer-tokens", type=int, default=3072, help="at most, of a response")
    parser.add_argument("--concurrency", type=int, default=16, help="requests in flight")
    parser.add_argument(
        "--embedder",
        help=f"model of /v1/embeddings (with --embedder-url {EMBEDDER}; without both no distances)",
    )
    parser.add_argument("--embedder-url", help="its endpoint (default: --base-url)")
    parser.add_argument("--max-requests", type=int, help="attempts, retries included")
    parser.add_argument("--max-total-tokens", type=int, help="of all prompts and answers")
    add_renamed(parser, "--max-tokens", "--max-total-tokens")
    return parser


def diagnose(options: argparse.Namespace) -> int:
    """Sample, grade, embed, write; 0."""
    at_least(1, options, "n", "g", "limit", "answer_tokens", "concurrency")
    at_least(1, options, "max_requests", "max_total_tokens")
    for name in ("base_url", "embedder_url"):
        check_url(name, getattr(options, name))
    if options.folder.is_file():
        raise RephraseError(f"FOLDER {options.folder} is a file: name a folder")
    if options.embedder_url and not options.embedder:
        options.embedder = EMBEDDER
    everything = read_parquet(options.questions)[: options.limit]
    questions = [q for q in everything if len(q.rephrasings) >= options.n]
    if not questions:
        raise RephraseError(f"no question of {options.questions} has {options.n} rephrasings")
    with lock(options.folder):
        budget = Budget(
            options.max_requests, options.max_total_tokens, spent=Store(options.folder).spent
        )
        sampled = sample(questions, options, budget)
        report: dict[str, Any] = {
            "questions": len(questions),
            "left_out_for_too_few_rephrasings": len(everything) - len(questions),
            "model": options.model,
            "n": options.n,
            "g": options.g,
            "columns": "mean, low, high: 95 % bootstrap over questions",
            "all_equal": summarise([all_equal(s, options.g) for s in sampled]),
        }
        if options.embedder:
            endpoint = Endpoint(base_url=options.embedder_url or options.base_url)
            embed = EndpointEmbedder(endpoint, options.embedder)
            rows = [distances(s, options.g, embed) for s in sampled]
            report |= {"embedder": options.embedder, "distance": summarise(rows)}
        write_json(options.folder / "diagnosis.json", report)
        plot(report, options.folder / "diagnosis.png")
    for part in ("all_equal", "distance"):
        for name, (mean, low, high) in report.get(part, {}).items():
            print(f"{part:9}  {name:24} {mean:7.4f}  [{low:.4f}, {high:.4f}]")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; 0 done, 1 could not, 2 wrong usage."""
    options = build_parser().parse_args(arguments)
    return run(
        "prompt_aug.rephrase.diagnose",
        lambda: diagnose(options),
        interrupted="what is answered is kept in FOLDER",
    )


if __name__ == "__main__":
    sys.exit(main())
