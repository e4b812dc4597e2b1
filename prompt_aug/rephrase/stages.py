"""The stages that ask an endpoint: candidates, and a solver's answers to them."""

import asyncio
import contextlib
import signal
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import openai
from tqdm import tqdm

from prompt_aug.questions import Question
from prompt_aug.rephrase import options as cli
from prompt_aug.rephrase.candidates import Candidate
from prompt_aug.rephrase.choose import Rate
from prompt_aug.rephrase.generate.batch import Batches
from prompt_aug.rephrase.generate.budget import Budget
from prompt_aug.rephrase.generate.client import Endpoint, Generation, RefusedError
from prompt_aug.rephrase.generate.prompts import RephraseError
from prompt_aug.rephrase.generate.store import Request, Store
from prompt_aug.rephrase.solver import agreement, answers_of, judge, solve_requests

SOLVED = "solved"  # the folder of the solver's answers, in --work


class EndedBySignalError(RephraseError):
    """A signal asked for the end; what is answered is kept."""


def generate(
    requests: Sequence[Request], store: Store, endpoint: Endpoint, budget: Budget, title: str
) -> None:
    """Ask for all that is missing, with progress; SIGINT and SIGTERM end it cleanly."""
    open_requests = [request for request in requests if store.missing(request)]
    total = sum(request.samples for request in requests)
    done = total - sum(len(store.missing(request)) for request in open_requests)

    async def run(bar: Any) -> None:
        generation = Generation(store, endpoint, budget)

        def report(answers: int) -> None:
            bar.update(answers)
            cost = budget.cost(budget.spent)
            bar.set_postfix_str("" if cost is None else f"${cost:.3f}", refresh=False)

        generation.report = report
        loop = asyncio.get_running_loop()
        stop = EndedBySignalError(
            "stopped by a signal; what is answered is kept: run it again to continue"
        )
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, generation.stop, stop)
        await generation.run(open_requests)

    if open_requests:
        with tqdm(total=total, initial=done, desc=title, unit="answer", mininterval=1.0) as bar:
            asyncio.run(run(bar))
    print(f"{title}: {budget.summary()}")


def batch(requests: Sequence[Request], store: Store, budget: Budget, options: Namespace) -> bool:
    """Submit or collect batches; whether nothing is missing any more. Raises RefusedError."""
    endpoint = cli.endpoint(options)
    with endpoint.batch_client() as client:
        try:
            batches = Batches(options.work, client, store)
            if options.batch == "submit":
                lines = batches.submit(requests, budget, endpoint.per_request)
                print(f"submitted {lines} requests; collect them with --batch collect")
                return False
            statuses = batches.collect(requests)
        except openai.OpenAIError as error:
            raise RefusedError(f"batches: {type(error).__name__}: {error}"[:500]) from error
    missing = sum(len(store.missing(request)) for request in requests)
    shown = ", ".join(f"{count} {status}" for status, count in statuses.items()) or "none open"
    print(f"batches: {shown}; {missing} candidates are missing")
    return not missing


def solve(
    questions: Sequence[Question],
    candidates: Mapping[str, Sequence[Candidate]],
    budget: Budget,
    options: Namespace,
) -> tuple[dict[str, list[Candidate]], dict[tuple[str, str], Rate]]:
    """(candidates with the solver's doubts, pass rates by uid and text).

    Rejected candidates are not answered.
    """
    store, sampling = Store(options.work / SOLVED), cli.solver_sampling(options)
    texts = {
        q.uid: [q.text, *dict.fromkeys(c.text for c in candidates[q.uid] if c.verdict != "reject")]
        for q in questions
    }
    requests = {q.uid: solve_requests(q, texts[q.uid], sampling, options.solve) for q in questions}
    flat = [request for listed in requests.values() for request in listed]
    generate(flat, store, cli.solver_endpoint(options), budget, "solver")
    judged: dict[str, list[Candidate]] = {}
    rates: dict[tuple[str, str], Rate] = {}
    for question in tqdm(questions, desc="grading", disable=None):
        found = {
            text: answers_of(question, request, store)
            for text, request in zip(texts[question.uid], requests[question.uid], strict=True)
        }
        own = found[question.text]
        rates |= {(question.uid, text): answers.rate for text, answers in found.items()}
        judged[question.uid] = [
            judge(
                replace(c, source=c.source | {"solver": agreement(own, found[c.text])}),
                own,
                found[c.text],
            )
            if c.text in found and c.verdict != "reject"
            else c
            for c in candidates[question.uid]
        ]
    return judged, rates
