"""Stages that send requests: candidates, answers of a solver, judgments of a judge."""

import asyncio
import contextlib
import signal
from argparse import Namespace
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from tqdm import tqdm

from prompt_aug.questions import Question
from prompt_aug.rephrase import options as cli
from prompt_aug.rephrase.candidates import Candidate
from prompt_aug.rephrase.choose import Rate
from prompt_aug.rephrase.generate.budget import Budget
from prompt_aug.rephrase.generate.client import Endpoint, Generation
from prompt_aug.rephrase.generate.prompts import CANDIDATE, SLOT, RephraseError, load_prompt
from prompt_aug.rephrase.generate.store import Request, Store, make_request
from prompt_aug.rephrase.solver import answers_of, judged, solve_requests, solved

SOLVED, JUDGED = "solved", "judged"  # folders of responses, in --work
Listed = dict[str, list[Candidate]]


class EndedBySignalError(RephraseError):
    """A signal asked for the end; completed requests are kept."""


def generate(
    requests: Sequence[Request], store: Store, endpoint: Endpoint, budget: Budget, title: str
) -> None:
    """Request what is missing, with progress; SIGINT and SIGTERM end it at the next response."""
    open_requests = [request for request in requests if store.missing(request)]
    total = sum(len(store.missing(request)) for request in open_requests)

    async def run(bar: Any) -> None:
        generation = Generation(store, endpoint, budget)

        def report(answers: int) -> None:
            bar.update(answers)
            bar.set_postfix_str(budget.summary(), refresh=False)

        def stop() -> None:
            generation.stop(
                EndedBySignalError("stopped by a signal. Run the same command again to resume.")
            )
            for number in (signal.SIGINT, signal.SIGTERM):  # a second one ends it at once
                loop.remove_signal_handler(number)

        generation.report = report
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, stop)
        await generation.run(open_requests)

    if open_requests:
        with tqdm(total=total, desc=title, unit="answer", mininterval=1.0, disable=None) as bar:
            asyncio.run(run(bar))


def solve(
    questions: Sequence[Question], listed: Listed, budget: Budget, options: Namespace
) -> tuple[Listed, dict[tuple[str, str], Rate]]:
    """Return the candidates after --solve, and pass rates by uid and text."""
    store, prompt = (
        Store(options.work / SOLVED),
        load_prompt(options.solve_prompt, option="--solve-prompt"),
    )
    texts = {
        q.uid: list(
            dict.fromkeys([q.text, *(c.text for c in listed[q.uid] if c.verdict != "reject")])
        )
        for q in questions
    }
    sampling = cli.sampling(options, options.solve, options.solve_tokens)
    requests = {
        q.uid: solve_requests(q, texts[q.uid], prompt, sampling, options.answers)
        for q in questions
        if len(texts[q.uid]) > 1
    }
    flat = [request for several in requests.values() for request in several]
    generate(flat, store, cli.endpoint(options, options.solve, options.solve_url), budget, "solver")
    after, rates = dict(listed), dict[tuple[str, str], Rate]()
    for question in (q for q in questions if q.uid in requests):
        pairs = zip(texts[question.uid], requests[question.uid], strict=True)
        found = {text: answers_of(question, request, store) for text, request in pairs}
        rates |= {(question.uid, text): answers.rate for text, answers in found.items()}
        after[question.uid] = [
            c
            if c.verdict == "reject"
            else solved(c, found[question.text], found[c.text], options.agree)
            for c in listed[question.uid]
        ]
    return after, rates


def judge(
    questions: Sequence[Question], listed: Listed, budget: Budget, options: Namespace
) -> Listed:
    """Return the candidates after --judge, which is asked about those that are still doubtful."""
    store = Store(options.work / JUDGED)
    prompt = load_prompt(options.judge_prompt, option="--judge-prompt", slots=(SLOT, CANDIDATE))
    sampling = cli.sampling(options, options.judge, options.solve_tokens, temperature=0.0)
    asked: dict[tuple[str, str], Request] = {}
    for question in questions:
        for candidate in listed[question.uid]:
            if candidate.verdict == "doubtful" and not candidate.doubted_by_a_model:
                asked[question.uid, candidate.text] = make_request(
                    question.uid,
                    question.text,
                    candidate.text,
                    prompt=prompt,
                    sampling=sampling,
                    samples=1,
                )
    endpoint = cli.endpoint(options, options.judge, options.judge_url)
    generate(list(asked.values()), store, endpoint, budget, "judge")
    after: Listed = defaultdict(list)
    for candidate in (c for several in listed.values() for c in several):
        request = asked.get((candidate.uid, candidate.text))
        found = store.responses(request) if request else []
        after[candidate.uid].append(judged(candidate, found[0]) if found else candidate)
    return {uid: after[uid] for uid in listed}


def answerable(
    rates: Mapping[tuple[str, str], Rate], questions: Sequence[Question], agree: int
) -> dict[str, int]:
    """Count the questions that the solver was asked, and answered in their own wording."""
    own = [rates[q.uid, q.text] for q in questions if (q.uid, q.text) in rates]
    return {"asked": len(own), "answered": sum(right >= agree for right, _ in own)}
