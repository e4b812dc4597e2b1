"""The command line of `python -m prompt_aug.rephrase`, validated."""

import argparse
import contextlib
import os
from decimal import Decimal, InvalidOperation
from functools import partial
from pathlib import Path
from typing import Any

import genai_prices

from prompt_aug.base.commands import add_renamed, at_least, check_url, make_parser
from prompt_aug.base.errors import UsageError
from prompt_aug.endpoint.budget import Budget, Price, Spending
from prompt_aug.endpoint.client import KEY_VARIABLE, Endpoint

MILLION = 10**6


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
    add("--work", type=Path, help="folder of raw responses (default: OUT.work)")
    add("--partial", action="store_true", help="write results even if requests failed or stopped")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--dry-run", action="store_true", help="print requests, tokens and cost")
    mode.add_argument("--offline", action="store_true", help="test run: rules instead of a model")
    mode.add_argument("--from", dest="source", type=Path, help="read candidates from this file")
    add = parser.add_argument_group("model").add_argument
    add("--model", help="as the endpoint names it")
    add("--base-url", help=f"default: OpenAI's; the key is read from {KEY_VARIABLE}")
    add("--prompt", default="default", help="default, paper, or a file (text or yaml)")
    add("--temperature", type=float, default=1.0, help="of the candidates and answers")
    add("--top-p", type=float, default=1.0, help="of the candidates and answers")
    add("--answer-tokens", type=int, default=1024, help="at most, of one candidate")
    add("--per-request", type=int, default=8, help="responses of one request (n)")
    add("--concurrency", type=int, default=16, help="requests in flight")
    add("--retries", type=int, default=6, help="of one request")
    add("--timeout", type=float, default=300.0, help="seconds for one attempt, until its last byte")
    add = parser.add_argument_group("budget, of all stages and runs in --work").add_argument
    add("--max-requests", type=int, help="attempts, retries included")
    add("--max-total-tokens", type=int, help="of prompts and responses")
    add("--max-cost", help="dollars")
    add("--price", nargs=2, metavar=("IN", "OUT"), help="dollars per million tokens, all models")
    add_renamed(parser, "--max-tokens", "--max-total-tokens")
    add = parser.add_argument_group("verdicts and selection").add_argument
    add("--against", action="append", default=[], help="reject what [NAME=]SOURCE[@SPLIT] has")
    add("--allow-extra", action="store_true", help="an added sentence with a quantity is doubtful")
    add("--solve", metavar="MODEL", help="accept what this model solves")
    add("--solve-url", help="its endpoint (default: --base-url)")
    add("--solve-prompt", default="solve", help="solve, or a file with {question}")
    add("--solve-tokens", type=int, default=2048, help="at most, of an answer or a judgment")
    add("--answers", type=int, default=4, help="answers to each candidate and question")
    add("--agree", type=int, default=3, help="right answers that accept a candidate")
    add("--judge", metavar="MODEL", help="compares the texts where no solver decided")
    add("--judge-url", help="its endpoint (default: --base-url)")
    add("--judge-prompt", default="judge", help="judge, or a file with {question} and {candidate}")
    add("--take-doubtful", action="store_true", help="use candidates that only the checks doubt")
    add("--decisions", type=Path, help="what a reviewer saved from the review page")
    add("--pass-rates", type=Path, help="json lines of uid, text, right, responses")
    add("--per-rephrasing", type=int, default=8, help="G, the responses to each rephrasing")
    return parser


def validate(options: argparse.Namespace) -> None:
    """Reject invalid options before anything is read or sent. Raises UsageError."""
    options.most = options.most or 4 * options.n
    options.work = options.work or options.out.with_name(options.out.name + ".work")
    ones = "n most limit per_request concurrency answer_tokens agree answers solve_tokens"
    at_least(1, options, *ones.split(), "per_rephrasing", "max_requests", "max_total_tokens")
    at_least(0, options, "retries", "temperature")
    check_url(options, "base_url", "solve_url", "judge_url")
    o, work_is_file = options, options.work.exists() and not options.work.is_dir()
    for wrong, why in (
        (o.n > o.most, f"--most={o.most}: less than --n={o.n}"),
        (o.agree > o.answers, f"--answers={o.answers}: less than --agree={o.agree}"),
        (not 0 < o.top_p <= 1, f"--top-p={o.top_p}: not above 0 and at most 1. Use 1."),
        (not o.timeout > 0, f"--timeout={o.timeout}: not above 0. Use 300."),
        (o.out.is_dir(), f"OUT={o.out}: a folder. Name a file."),
        (work_is_file, f"--work={o.work}: a file. Name a folder."),
        (o.out.resolve() == o.questions.resolve(), "OUT: the file of the questions. Name another."),
        (not (o.offline or o.source or o.model), "--model: missing. Name it, or use --from=FILE."),
        (o.offline and (o.solve or o.judge), "--offline: no requests. Remove --solve and --judge."),
    ):
        if wrong:
            raise UsageError(why)


def endpoint(options: argparse.Namespace, model: str, url: str | None) -> Endpoint:
    """Return the endpoint of a stage, with the price of its model."""
    url = url or options.base_url or os.environ.get("OPENAI_BASE_URL")
    price = price_of(model, url)
    if options.price:
        read, written = (_dollars("--price", text) / MILLION for text in options.price)
        price = read, written
    names = "concurrency retries timeout per_request".split()
    return Endpoint(base_url=url, price=price, **{name: getattr(options, name) for name in names})


def price_of(model: str, base_url: str | None) -> Price | None:
    """Return the price of a model at an endpoint, None if `genai_prices` has none."""
    of = partial(genai_prices.calc_price, model_ref=model, provider_api_url=base_url)
    read, written = (genai_prices.Usage(input_tokens=n, output_tokens=1 - n) for n in (1, 0))
    try:
        return of(read).total_price, of(written).total_price
    except LookupError:
        return None


def _dollars(name: str, text: str) -> Decimal:
    with contextlib.suppress(InvalidOperation):
        if (value := Decimal(text)).is_finite() and value >= 0:
            return value
    raise UsageError(f"{name}={text}: not a number of dollars")


def budget(options: argparse.Namespace, spent: Spending, endpoints: list[Endpoint]) -> Budget:
    """Return the limits of all stages. Raises UsageError for a limit that cannot be kept."""
    cost = None if options.max_cost is None else _dollars("--max-cost", options.max_cost)
    if cost is not None and any(endpoint.price is None for endpoint in endpoints):
        how = "Use --max-total-tokens or --price IN OUT."
        raise UsageError(f"--max-cost={cost}: no price of a model is known. {how}")
    return Budget(options.max_requests, options.max_total_tokens, cost, spent)
