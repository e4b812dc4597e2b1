"""The pipeline: request candidates until there are enough, check and solve them, choose.

OUT.parquet                  what `recipe.train` reads: extra_info.rephrasings, by rank
OUT.parquet.candidates.jsonl every candidate: verdict, reasons, source, rank
OUT.parquet.manifest.json    counts, settings, digests; written last
"""

import math
import os
from argparse import Namespace
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from prompt_aug.base.files import sha256, write_json, write_lines
from prompt_aug.endpoint import Budget, BudgetError, Spending
from prompt_aug.endpoint.client import Endpoint
from prompt_aug.prepare.__main__ import load_benchmarks
from prompt_aug.prepare.filters import OverlapIndex
from prompt_aug.questions import Question, manifest_of, read_parquet, write_parquet
from prompt_aug.rephrase.candidates import (
    Candidate,
    accepted,
    answers_of,
    check_answers,
    choose,
    rule_responses,
    solved,
)
from prompt_aug.rephrase.stage import PROMPTS, Request, Sampling, Stage

FIRST_GUESS, LEAST_GUESS = 0.5, 0.1  # share of candidates that is accepted
GUESSED_TOKENS = 256  # of one candidate
Responses = Mapping[str, Sequence[dict[str, Any]]]  # by uid


class Run:
    """One run of the pipeline: its settings, its stages, and what is known of each question."""

    def __init__(self, options: Namespace) -> None:
        self.options = options
        self.questions = read_parquet(options.questions)[: options.limit]
        self.benchmarks = OverlapIndex(load_benchmarks(options.against))
        self.listed: dict[str, list[Candidate]] = {question.uid: [] for question in self.questions}
        self.stop: BudgetError | None = None
        self.failed: set[str] = set()  # keys of requests that failed in this run
        self.errors = Counter[str]()  # of them
        self.model = self._stage("candidates", "", options.model, None, options.prompt)
        self.solver = self._stage("solver", "solved", options.solve, options.solve_url, "solve")
        spent = self.model.store.spent.plus(self.solver.store.spent)
        self.budget = Budget(options.max_requests, options.max_total_tokens, spent)
        questions = [] if options.offline else self.questions
        # A question may be in several rows.
        made = (self.model.request(q.uid, q.text, samples=0) for q in questions)
        self.requests = list({request.uid: request for request in made}.values())
        self.request_more({})

    def _stage(
        self, title: str, folder: str, model: str | None, url: str | None, prompt: str
    ) -> Stage:
        """Return a stage whose responses are in this folder of OUT.work; without `model` unused."""
        o = self.options
        url = url or o.base_url or os.environ.get("OPENAI_BASE_URL")
        at = Endpoint(base_url=url, concurrency=o.concurrency, timeout=o.timeout)
        sampling = Sampling(model or "", max_tokens=o.answer_tokens)
        return Stage(title, o.work / folder, at, PROMPTS[prompt]["text"], sampling)

    def request_more(self, more: Mapping[str, int]) -> None:
        """Set the samples of each request: those requested before, and `more`."""
        before, most = self.model.store.requested, self.options.most
        self.requests = [
            r._replace(samples=min(most, before[r.key] + more.get(r.uid, 0))) for r in self.requests
        ]

    def wanting(self) -> dict[str, int]:
        """Estimate the further candidates that each question needs, from the acceptance rate."""
        counts = {uid: len(accepted(several)) for uid, several in self.listed.items()}
        candidates = sum(map(len, self.listed.values()))
        share = sum(counts.values()) / candidates if candidates else FIRST_GUESS
        return {
            r.uid: math.ceil((self.options.n - counts[r.uid]) / max(share, LEAST_GUESS))
            for r in self.requests
            if counts[r.uid] < self.options.n
            and r.key not in self.failed
            and self.model.store.requested[r.key] < self.options.most
        }

    def responses(self) -> Responses:
        """Return the raw responses so far, from the rules or the model."""
        if self.options.offline:
            return {q.uid: rule_responses(q.text, self.options.most) for q in self.questions}
        answered = self.model.store.answered
        return {r.uid: [a for a in answered(r) if a["text"]] for r in self.requests}

    def fill(self) -> None:
        """Check the candidates so far, and request more until no question needs any."""
        self.decide(self.responses())
        while (more := self.wanting()) and not self.stop:
            self.request_more(more)
            self.send(self.model, self.requests)
            self.decide({u: several for u, several in self.responses().items() if u in more})

    def send(self, stage: Stage, requests: Collection[Request]) -> None:
        """Request what is missing. A reached budget is kept for the end of the run."""
        if self.options.dry_run or self.stop:  # stored responses count all the same
            return
        try:
            stage.send(requests, self.budget)
        except BudgetError as error:
            self.stop = error
        lost = [request for request in requests if stage.store.lost(request)]
        self.failed |= {request.key for request in lost}
        self.errors += stage.store.failed(lost)

    def decide(self, responses: Responses) -> None:
        """Check and solve the candidates of these questions."""
        questions = [q for q in self.questions if responses.get(q.uid)]
        for question in questions:
            listed = check_answers(question, responses[question.uid], self.benchmarks)
            self.listed[question.uid] = listed
        if self.options.solve:
            self._solve(questions)

    def _solve(self, questions: Sequence[Question]) -> None:
        """Apply the solver's answers to what the checks did not reject."""
        own, requests = {q.uid: q for q in questions}, dict[str, dict[str, Request]]()
        for uid, question in own.items():
            if fit := [c.text for c in self.listed[uid] if c.verdict != "reject"]:
                requests[uid] = {
                    text: self.solver.request(uid, text, samples=self.options.answers)
                    for text in (question.text, *fit)
                }
        self.send(self.solver, [r for by_text in requests.values() for r in by_text.values()])
        answered, agree = self.solver.store.answered, self.options.agree
        for uid, by_text in requests.items():
            graded = {text: answers_of(own[uid], answered(r)) for text, r in by_text.items()}
            first, listed = graded[own[uid].text], self.listed[uid]
            for place, c in enumerate(listed):
                if c.verdict != "reject":
                    others = [x.text for x in accepted(listed) if x is not c]
                    listed[place] = solved(c, first, graded[c.text], agree, others)

    def finish(self) -> dict[str, Any]:
        """Choose, and write all three files, the manifest last; return the manifest's content."""
        options, chosen = self.options, dict[str, list[Candidate]]()
        for q in self.questions:
            fit = accepted(self.listed[q.uid])
            ranked = choose(q.text, [candidate.text for candidate in fit], options.n)
            chosen[q.uid] = [fit[place] for place in ranked]
        files = (options.out, options.out.with_name(f"{options.out.name}.candidates.jsonl"))
        manifest = manifest_of(options.out)
        manifest.unlink(missing_ok=True)
        texts = {uid: tuple(c.text for c in several) for uid, several in chosen.items()}
        made = [replace(q, rephrasings=texts[q.uid]) for q in self.questions]
        write_parquet(made, options.out)
        ranks = {id(c): rank for several in chosen.values() for rank, c in enumerate(several)}
        listed = (c for several in self.listed.values() for c in several)
        write_lines(files[1], (asdict(c) | {"rank": ranks.get(id(c))} for c in listed))
        settings = {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items()}
        settings["prompt_sha256"] = self.model.prompt_sha256
        report = self._summary(chosen) | {"settings": settings}
        report["sha256"] = {path.name: sha256(path) for path in files}
        write_json(manifest, report)
        return report

    def _summary(self, chosen: Mapping[str, Sequence[Candidate]]) -> dict[str, Any]:
        listed = [candidate for group in self.listed.values() for candidate in group]
        filters = Counter(
            f for c in listed for f in {f"{r.filter}: {r.verdict}" for r in c.reasons}
        )
        sizes = Counter(len(chosen[q.uid]) for q in self.questions)
        return {
            "questions": len(self.questions),
            "candidates": len(listed),
            "verdicts": dict(sorted(Counter(c.verdict for c in listed).items())),
            "accepted_by": dict(Counter(c.path for c in listed if c.verdict == "accept")),
            "filters": dict(filters.most_common()),
            "rephrasings": {str(count): number for count, number in sorted(sizes.items())},
        }

    def estimates(self) -> dict[str, Spending]:
        """Return the expected and the largest possible further spending, from counts so far."""
        self.decide(self.responses())
        guess, store = self.wanting(), self.model.store
        mean = store.spent.tokens_out / len(store.answers) if store.answers else GUESSED_TOKENS
        totals = {"expected": Spending(), "at most": Spending()}
        for request in (r for r in self.requests if r.uid in guess):
            left = self.options.most - store.requested[request.key]
            counts = (min(left, guess[request.uid]), mean), (left, self.options.answer_tokens)
            for name, (count, tokens) in zip(totals, counts, strict=True):
                requests = math.ceil(count / self.model.endpoint.per_request)
                read = requests * self.model.estimate(request, 1).tokens_in
                totals[name] = totals[name].plus(Spending(requests, read, int(count * tokens)))
        return totals
