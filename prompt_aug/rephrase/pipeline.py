"""The pipeline: request candidates until there are enough, check, solve and judge them, choose."""

import asyncio
import contextlib
import math
import signal
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from prompt_aug.base.errors import UserError
from prompt_aug.base.progress import Progress
from prompt_aug.endpoint.budget import Budget, BudgetError, Spending
from prompt_aug.endpoint.client import Endpoint
from prompt_aug.prepare.overlap import OverlapIndex
from prompt_aug.questions import Question, read_parquet
from prompt_aug.rephrase import options as cli
from prompt_aug.rephrase import rules
from prompt_aug.rephrase.candidates import Candidate, check_answers, decide, usable
from prompt_aug.rephrase.choose import Rate, choose
from prompt_aug.rephrase.generate.client import Generation, estimate
from prompt_aug.rephrase.generate.prompts import CANDIDATE, SLOT, RephraseError, load_prompt
from prompt_aug.rephrase.generate.store import Request, Sampling, Store, make_request
from prompt_aug.rephrase.inputs import read_candidates, read_decisions, read_rates
from prompt_aug.rephrase.results import Outcome, write_results
from prompt_aug.rephrase.solver import answers_of, judged, solved

FIRST_GUESS, LEAST_GUESS = 0.5, 0.1  # share of candidates that is accepted
Responses = Mapping[str, Sequence[dict[str, Any]]]  # by uid


class EndedBySignalError(RephraseError):
    """A signal asked for the end; completed requests are kept."""


class Stage:
    """A model of the pipeline: its prompt, its endpoint, and the responses kept of it."""

    def __init__(self, title: str, options: Namespace) -> None:
        name, url, folder, option, tokens, self.samples = {
            "candidates": (options.model, None, "", "prompt", options.answer_tokens, 0),
            "solver": (
                *(options.solve, options.solve_url, "solved", "solve_prompt"),
                *(options.solve_tokens, options.answers),
            ),
            "judge": (
                *(options.judge, options.judge_url, "judged", "judge_prompt"),
                *(options.solve_tokens, 1),
            ),
        }[title]
        slots = (SLOT, CANDIDATE) if title == "judge" else (SLOT,)
        self.title, self.name, self.store = title, name, Store(options.work / folder)
        self.prompt = load_prompt(
            getattr(options, option), option=f"--{option.replace('_', '-')}", slots=slots
        )
        self.sampling = Sampling(
            model=name or "",
            temperature=0.0 if title == "judge" else options.temperature,
            top_p=options.top_p,
            max_tokens=tokens,
        )
        self.endpoint = cli.endpoint(options, name or "", url)

    def request(self, uid: str, text: str, candidate: str = "") -> Request:
        """Return the request for the stage's number of responses to these texts."""
        return make_request(
            uid, text, candidate, prompt=self.prompt, sampling=self.sampling, samples=self.samples
        )

    def send(self, requests: Iterable[Request], budget: Budget) -> None:
        """Request what is missing."""
        generate(requests, self.store, self.endpoint, budget, self.title)


def generate(
    requests: Iterable[Request], store: Store, endpoint: Endpoint, budget: Budget, title: str
) -> None:
    """Request what is missing, with progress; SIGINT and SIGTERM end it at the next response."""
    missing = [request for request in requests if store.missing(request)]
    if not missing:
        return

    async def run(bar: Progress) -> None:
        generation, loop = Generation(store, endpoint, budget), asyncio.get_running_loop()

        def report(answers: int) -> None:
            bar.update(answers)
            bar.note = str(budget.spent)

        def stop() -> None:
            why = "stopped by a signal. Run the same command again to resume."
            generation.stop(EndedBySignalError(why))
            for number in (signal.SIGINT, signal.SIGTERM):  # a second one ends it at once
                loop.remove_signal_handler(number)

        generation.report = report
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, stop)
        await generation.run(missing)

    total = sum(len(store.missing(request)) for request in missing)
    with Progress(title, total, "answers") as bar:
        asyncio.run(run(bar))


class Run:
    """One run of the pipeline: its settings, its stages, and what is known of each question."""

    def __init__(self, options: Namespace) -> None:
        self.options = options
        self.questions = read_parquet(options.questions)[: options.limit]
        self.benchmarks: OverlapIndex | None = None
        if options.against:
            from prompt_aug.prepare.__main__ import load_benchmarks

            self.benchmarks = OverlapIndex(load_benchmarks(options.against))
        self.given, self.decisions = (
            read_rates(options.pass_rates),
            read_decisions(options.decisions),
        )
        self.rates: dict[tuple[str, str], Rate] = {}  # of the solver, by uid and text
        self.listed: dict[str, list[Candidate]] = {question.uid: [] for question in self.questions}
        self.stops: list[UserError] = []
        self.failed: set[str] = set()  # uids of requests that failed in this run
        self.model, self.solver, self.judge = (
            Stage(title, options) for title in ("candidates", "solver", "judge")
        )
        named = [stage for stage in (self.model, self.solver, self.judge) if stage.name]
        spent = Spending()
        for stage in named:
            spent = spent.plus(stage.store.spent.at(stage.endpoint.price))
        self.budget = cli.budget(options, spent, [stage.endpoint for stage in named])
        asked = [] if options.source or options.offline else self.questions
        self.requests = [self.model.request(q.uid, q.text) for q in asked]
        self.request_more({})

    def request_more(self, more: Mapping[str, int]) -> None:
        """Set the samples of each request: those requested before, and `more`."""
        self.requests = [
            replace(
                r, samples=min(self.options.most, self.model.store.asked(r) + more.get(r.uid, 0))
            )
            for r in self.requests
        ]

    def wanting(self) -> dict[str, int]:
        """Return how many further candidates each question needs, by the acceptance so far."""
        accepted = {uid: len(usable(several)) for uid, several in self.listed.items()}
        candidates = sum(map(len, self.listed.values()))
        share = sum(accepted.values()) / candidates if candidates else FIRST_GUESS
        return {
            r.uid: math.ceil((self.options.n - accepted[r.uid]) / max(share, LEAST_GUESS))
            for r in self.requests
            if accepted[r.uid] < self.options.n
            and r.uid not in self.failed
            and self.model.store.asked(r) < self.options.most
        }

    def responses(self) -> Responses:
        """Return the candidates' raw responses that there are."""
        return {r.uid: self.model.store.texts(r) for r in self.requests}

    def fill(self) -> None:
        """Take the candidates of the rules or a file, or request until no question needs more."""
        if self.options.offline:
            self.decide({q.uid: rules.responses(q.text, self.options.most) for q in self.questions})
        elif self.options.source:
            self.decide(read_candidates(self.options.source, self.questions))
        else:
            self.decide(self.responses())
        while (more := self.wanting()) and not self.stops:
            self.request_more(more)
            with self.stoppable():
                self.model.send(self.requests, self.budget)
            self.decide({u: several for u, several in self.responses().items() if u in more})
            self.failed |= {r.uid for r in self.requests if self.model.store.missing(r)}

    def decide(self, responses: Responses) -> None:
        """Check, solve and judge the candidates of these questions."""
        asked = [q for q in self.questions if responses.get(q.uid)]
        extra = self.options.allow_extra
        for question in asked:
            self.listed[question.uid] = check_answers(
                question, responses[question.uid], self.benchmarks, allow_extra=extra
            )
        with self.stoppable():
            if self.options.solve and not self.stops:
                self._solve(asked)
            if self.options.judge and not self.stops:
                self._judge(asked)

    def _solve(self, asked: Sequence[Question]) -> None:
        """Apply the solver's answers to what the checks did not reject, and keep its pass rates."""
        requests: dict[tuple[str, str], Request] = {}
        for question in asked:
            fit = [c.text for c in self.listed[question.uid] if c.verdict != "reject"]
            for text in dict.fromkeys([question.text, *fit] if fit else []):
                requests[question.uid, text] = self.solver.request(question.uid, text)
        self.solver.send(requests.values(), self.budget)
        for question in asked:
            found = {
                text: answers_of(question, self.solver.store.responses(request))
                for (uid, text), request in requests.items()
                if uid == question.uid
            }
            self.rates |= {(question.uid, text): answers.rate for text, answers in found.items()}
            self.listed[question.uid] = [
                c
                if c.verdict == "reject"
                else solved(c, found[question.text], found[c.text], self.options.agree)
                for c in self.listed[question.uid]
            ]

    def _judge(self, asked: Sequence[Question]) -> None:
        """Apply a judge's comparison to what is doubtful, and not by the solver."""
        requests = {
            (question.uid, c.text): self.judge.request(question.uid, question.text, c.text)
            for question in asked
            for c in self.listed[question.uid]
            if c.verdict == "doubtful" and not c.doubted_by_a_model
        }
        self.judge.send(requests.values(), self.budget)
        said = {place: self.judge.store.responses(r) for place, r in requests.items()}
        for question in asked:
            self.listed[question.uid] = [
                judged(c, found[0]) if (found := said.get((c.uid, c.text))) else c
                for c in self.listed[question.uid]
            ]

    @contextlib.contextmanager
    def stoppable(self) -> Iterator[None]:
        """With --partial, keep a stop for the end; without, it ends the run."""
        try:
            yield
        except (BudgetError, EndedBySignalError) as error:
            if not self.options.partial:
                raise
            self.stops.append(error)

    def finish(self) -> dict[str, Any]:
        """Apply the reviewer's decisions, choose and write; return the manifest's content."""
        options, rates = self.options, self.rates | self.given
        take = ("accept", "doubtful") if options.take_doubtful else ("accept",)
        listed = {uid: decide(several, self.decisions) for uid, several in self.listed.items()}
        choices, chosen = {}, {}
        for question in self.questions:
            fit = usable(listed[question.uid], take)
            choice = choose(
                question.text,
                [candidate.text for candidate in fit],
                options.n,
                rates={text: rate for (uid, text), rate in rates.items() if uid == question.uid},
                per_rephrasing=options.per_rephrasing,
            )
            choices[question.uid] = choice
            chosen[question.uid] = [fit[place] for place in choice.ranked]
        settings = {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items()}
        settings["prompt_sha256"] = self.model.prompt.sha256
        outcome = Outcome(self.questions, listed, choices, chosen, rates)
        own = [self.rates[q.uid, q.text] for q in self.questions if (q.uid, q.text) in self.rates]
        answered = sum(right >= options.agree for right, _ in own)
        solver = {"asked": len(own), "answered": answered} if options.solve else None
        return write_results(options.out, outcome, settings, solver)

    def estimates(self) -> dict[str, Spending]:
        """Return what is expected and at most left to request, by the token counts so far."""
        self.decide(self.responses())
        guess, store, model = self.wanting(), self.model.store, self.model
        totals = {"expected": Spending(), "at most": Spending()}
        known = store.spent.tokens_out / len(store.answers) if store.answers else None
        for request in (r for r in self.requests if r.uid in guess):
            left = self.options.most - store.asked(request)
            tokens = self.options.answer_tokens
            for name, count, each in (
                ("expected", min(left, guess[request.uid]), known or tokens / 4),
                ("at most", left, tokens),
            ):
                requests = math.ceil(count / self.options.per_request)
                read = requests * estimate(model.endpoint, request, 1).tokens_in
                spent = Spending(requests, read, int(count * each)).at(model.endpoint.price)
                totals[name] = totals[name].plus(spent)
        return totals
