"""The command line of `python -m prompt_aug.rephrase`, validated."""

import argparse
import os
from pathlib import Path
from typing import Any

from prompt_aug.base.commands import at_least, check_url, make_parser
from prompt_aug.base.errors import UsageError
from prompt_aug.endpoint.client import KEY_VARIABLE, Endpoint


def build_parser(description: str) -> argparse.ArgumentParser:
    """Return the parser; `validate` rejects combinations."""
    name = "python -m prompt_aug.rephrase"
    example = f"{name} train.parquet rephrased.parquet --model NAME"
    parser = make_parser(name, description, example=example)
    add: Any = parser.add_argument
    add("questions", type=Path, help="a parquet file of prompt_aug.prepare")
    add("out", type=Path, help="the parquet file to write")
    add("--n", type=int, default=3, help="rephrasings wanted for each question")
    add("--most", type=int, help="candidates requested for one question, at most (default: 4 n)")
    add("--limit", type=int, help="only the first so many questions")
    add("--partial", action="store_true", help="write results even if requests failed or stopped")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--dry-run", action="store_true", help="print requests and tokens")
    mode.add_argument("--offline", action="store_true", help="toy world: rules instead of a model")
    mode.add_argument("--from", dest="source", type=Path, help="read candidates from this file")
    add = parser.add_argument_group("model").add_argument
    add("--model", help="as the endpoint names it")
    add("--base-url", help=f"default: OpenAI's; the key is read from {KEY_VARIABLE}")
    add("--prompt", default="default", choices=("default", "paper"), help="the instruction")
    add("--answer-tokens", type=int, default=2048, help="of one response, at most")
    add("--concurrency", type=int, default=16, help="requests in flight")
    add("--timeout", type=float, default=300.0, help="seconds for one attempt, until its last byte")
    add = parser.add_argument_group("budget, of all stages and runs of OUT").add_argument
    add("--max-requests", type=int, help="attempts, retries included")
    add("--max-total-tokens", type=int, help="of prompts and responses")
    add = parser.add_argument_group("verdicts and selection").add_argument
    add("--against", action="append", default=[], help="reject what [NAME=]SOURCE[@SPLIT] has")
    add("--solve", metavar="MODEL", help="accept what this model solves")
    add("--solve-url", help="its endpoint (default: --base-url)")
    add("--answers", type=int, default=4, help="answers to each candidate and question")
    add("--agree", type=int, default=3, help="right answers that accept a candidate")
    add("--judge", metavar="MODEL", help="compares the texts where no solver decided")
    add("--take-doubtful", action="store_true", help="use candidates that only the checks doubt")
    return parser


def validate(options: argparse.Namespace) -> None:
    """Reject invalid options before anything is read or sent. Raises UsageError."""
    options.most = options.most or 4 * options.n
    options.work = options.out.with_name(options.out.name + ".work")
    ones = "n most limit concurrency answer_tokens agree answers max_requests max_total_tokens"
    at_least(1, options, *ones.split())
    check_url(options, "base_url", "solve_url")
    o = options
    for wrong, why in (
        (o.n > o.most, f"--most={o.most}: less than --n={o.n}"),
        (o.agree > o.answers, f"--answers={o.answers}: less than --agree={o.agree}"),
        (not o.timeout > 0, f"--timeout={o.timeout}: not above 0. Use 300."),
        (o.out.is_dir(), f"OUT={o.out}: a folder. Name a file."),
        (o.out.resolve() == o.questions.resolve(), "OUT: the file of the questions. Name another."),
        (not (o.offline or o.source or o.model), "--model: missing. Name it, or use --from=FILE."),
        (o.offline and (o.solve or o.judge), "--offline: no requests. Remove --solve and --judge."),
    ):
        if wrong:
            raise UsageError(why)


def endpoint(options: argparse.Namespace, url: str | None) -> Endpoint:
    """Return the endpoint of a stage."""
    url = url or options.base_url or os.environ.get("OPENAI_BASE_URL")
    return Endpoint(
        base_url=url,
        concurrency=options.concurrency,
        timeout=options.timeout,
    )
