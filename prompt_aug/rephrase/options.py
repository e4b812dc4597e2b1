"""The command line of `python -m prompt_aug.rephrase` and what it says, checked."""

import argparse
import math
import os
import urllib.parse
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from prompt_aug.commands import add_renamed, make_parser
from prompt_aug.errors import UsageError
from prompt_aug.rephrase.generate.budget import Budget, Price, Spending, price_of
from prompt_aug.rephrase.generate.client import KEY_VARIABLE, Endpoint
from prompt_aug.rephrase.generate.store import Sampling


def build_parser(description: str) -> argparse.ArgumentParser:
    """All options; `validate` refuses those that do not go together."""
    parser = make_parser(
        "python -m prompt_aug.rephrase",
        description,
        example="python -m prompt_aug.rephrase train.parquet rephrased.parquet --model NAME",
    )
    parser.add_argument("questions", type=Path, help="a parquet file of prompt_aug.prepare")
    parser.add_argument("out", type=Path, help="the parquet file to write")
    parser.add_argument("--n", type=int, default=3, help="rephrasings wanted for each question")
    parser.add_argument("--candidates", type=int, help="candidates asked for (default: 2 n)")
    parser.add_argument("--limit", type=int, help="only the first so many questions")
    parser.add_argument("--work", type=Path, help="folder of raw answers (default: OUT.work)")
    _add_model(parser.add_argument_group("model"))
    _add_budget(parser.add_argument_group("budget, over all runs in the same --work"))
    _add_checks(parser.add_argument_group("checks and selection"))
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--dry-run", action="store_true", help="print requests, tokens and cost")
    mode.add_argument(
        "--batch", choices=("submit", "collect"), help="the endpoint's batch files, at half price"
    )
    mode.add_argument(
        "--offline", action="store_true", help="rules in place of a model: a rehearsal"
    )
    parser.add_argument(
        "--partial", action="store_true", help="write results of what there is, also after a stop"
    )
    return parser


def _add_model(group: Any) -> None:
    group.add_argument("--model", help="as the endpoint names it")
    group.add_argument("--base-url", help=f"default: OpenAI's; the key is read from {KEY_VARIABLE}")
    group.add_argument("--prompt", default="default", help="default, paper, or a file")
    group.add_argument("--temperature", type=float, default=1.0, help="of the candidates")
    group.add_argument("--top-p", type=float, default=1.0, help="of the candidates")
    group.add_argument("--answer-tokens", type=int, default=1024, help="at most, of one candidate")
    group.add_argument("--per-request", type=int, default=8, help="candidates of one request (n)")
    group.add_argument("--concurrency", type=int, default=16, help="requests in flight")
    group.add_argument("--retries", type=int, default=6, help="of one request, by the client")
    group.add_argument("--timeout", type=float, default=300.0, help="seconds for one attempt")


def _add_budget(group: Any) -> None:
    group.add_argument("--max-requests", type=int, help="attempts, retries included")
    group.add_argument("--max-total-tokens", type=int, help="of all prompts and answers")
    add_renamed(group, "--max-tokens", "--max-total-tokens")
    group.add_argument("--max-cost", help="dollars")
    group.add_argument("--price", nargs=2, metavar=("IN", "OUT"), help="dollars per million tokens")


def _add_checks(group: Any) -> None:
    group.add_argument(
        "--against", action="append", default=[], help="[NAME=]SOURCE[@SPLIT]: refuse its questions"
    )
    group.add_argument("--take-doubtful", action="store_true", help="use doubtful ones, too")
    group.add_argument("--decisions", type=Path, help="what a reviewer saved from the review page")
    group.add_argument("--solve", type=int, default=0, help="answers of --solver to each")
    group.add_argument("--solver", help="model of --solve (default: --model)")
    group.add_argument("--solver-url", help="its endpoint (default: --base-url)")
    group.add_argument("--solver-tokens", type=int, default=2048, help="at most, of one answer")
    group.add_argument("--pass-rates", type=Path, help="json lines of uid, text, right, responses")
    group.add_argument(
        "--per-rephrasing", type=int, default=8, help="G, the responses to each rephrasing"
    )


def validate(options: argparse.Namespace) -> None:
    """Raises UsageError for what cannot be done, before anything is read or sent."""
    options.candidates = options.candidates or 2 * options.n
    options.work = options.work or options.out.with_name(options.out.name + ".work")
    positive = (
        "n candidates limit per_request concurrency answer_tokens solver_tokens per_rephrasing"
    )
    at_least(1, options, *positive.split(), "per_rephrasing", "max_requests", "max_total_tokens")
    at_least(0, options, "solve", "retries", "temperature")
    if options.candidates < options.n:
        raise UsageError(f"--candidates {options.candidates} is fewer than --n {options.n}")
    for name, most in (("top_p", 1.0), ("timeout", math.inf)):
        if not 0 < getattr(options, name) <= most:
            raise UsageError(f"--{name.replace('_', '-')} {getattr(options, name)}: out of range")
    for name in ("base_url", "solver_url"):
        check_url(name, getattr(options, name))
    _validate_what_is_asked(options)
    if options.out.is_dir():
        raise UsageError(f"OUT {options.out} is a folder: name a file")
    if options.work.exists() and not options.work.is_dir():
        raise UsageError(f"--work {options.work} is a file: name a folder")
    if options.out.resolve() == options.questions.resolve():
        raise UsageError("OUT is the file of the questions: name another")


def _validate_what_is_asked(options: argparse.Namespace) -> None:
    if not options.offline and not options.model:
        raise UsageError("name a --model, or rehearse with --offline")
    if options.offline and options.solve:
        raise UsageError("--offline asks no model: leave out --solve")
    if options.solve and not (options.solver or options.model):
        raise UsageError("--solve needs a --solver")


def at_least(least: int, options: argparse.Namespace, *names: str) -> None:
    """Raises UsageError where an option that is given is less than `least`."""
    for name in names:
        value = getattr(options, name)
        if value is not None and not value >= least:
            raise UsageError(f"--{name.replace('_', '-')} must be {least} or more")


def check_url(name: str, url: str | None) -> None:
    """Raises UsageError for what is not the address of a server."""
    parts = urllib.parse.urlsplit(url or "http://x")
    if parts.scheme not in ("http", "https") or not parts.netloc or " " in (url or ""):
        raise UsageError(
            f"--{name.replace('_', '-')} {url}: an address like http://localhost:8000/v1 is wanted"
        )


def sampling(options: argparse.Namespace) -> Sampling:
    return Sampling(
        model=options.model,
        temperature=options.temperature,
        top_p=options.top_p,
        max_tokens=options.answer_tokens,
    )


def endpoint(options: argparse.Namespace) -> Endpoint:
    return Endpoint(
        base_url=options.base_url or os.environ.get("OPENAI_BASE_URL"),
        concurrency=options.concurrency,
        retries=options.retries,
        timeout=options.timeout,
        per_request=options.per_request,
    )


def solver_sampling(options: argparse.Namespace) -> Sampling:
    return Sampling(model=options.solver or options.model, max_tokens=options.solver_tokens)


def solver_endpoint(options: argparse.Namespace) -> Endpoint:
    own = endpoint(options)
    return replace(own, base_url=options.solver_url or own.base_url, per_request=options.solve)


def price(options: argparse.Namespace, model: str, base_url: str | None) -> Price | None:
    """What --price says, or the table of a kept library."""
    if options.price:
        try:
            values = [Decimal(text) / 10**6 for text in options.price]
        except InvalidOperation:
            raise UsageError(f"--price {options.price}: two numbers, dollars per million") from None
        if not all(value.is_finite() and value >= 0 for value in values):
            raise UsageError(f"--price {options.price}: two numbers, 0 or more")
        return Price(*values)
    return price_of(model, base_url, batch=bool(options.batch))


def budget(options: argparse.Namespace, spent: Spending, after: Budget | None = None) -> Budget:
    """The limits, with what is spent already. Raises UsageError.

    With `after`, the budget of the solver: what that of the candidates has left.
    """
    try:
        cost = None if options.max_cost is None else Decimal(options.max_cost)
    except InvalidOperation:
        raise UsageError(f"--max-cost {options.max_cost}: a number of dollars") from None
    if cost is not None and not (cost.is_finite() and cost > 0):
        raise UsageError(f"--max-cost {options.max_cost}: a number of dollars above 0")
    model, url = options.model, endpoint(options).base_url
    if after is not None:
        model, url = solver_sampling(options).model, solver_endpoint(options).base_url
    used = after.spent if after else Spending()
    left = {
        "max_requests": (options.max_requests, used.requests),
        "max_tokens": (options.max_total_tokens, used.tokens_in + used.tokens_out),
        "max_cost": (cost, (after and after.cost(used)) or 0),
    }
    limits: dict[str, Any] = {
        name: None if limit is None else limit - gone for name, (limit, gone) in left.items()
    }
    return Budget(**limits, price=price(options, model, url), spent=spent)
