"""Rephrase questions: request candidates, check, solve and judge them, choose.

    python -m prompt_aug.rephrase QUESTIONS.parquet OUT.parquet --model MODEL --n 3 --most 12

Candidates are requested until a question has --n accepted ones, or --most candidates. Responses are
kept in --work, so a second run requests only what is missing. Exit status: 0 done; 1 error;
2 wrong usage; 3 a budget is reached; 4 some requests failed (run the same command again).
"""

import contextlib
import json
import math
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from prompt_aug.base.errors import UsageError, UserError
from prompt_aug.base.files import iter_lines, lock
from prompt_aug.prepare.overlap import OverlapIndex
from prompt_aug.questions import Question, normalise, read_parquet
from prompt_aug.rephrase import options as cli
from prompt_aug.rephrase import rules
from prompt_aug.rephrase.candidates import check_answers, decide, usable
from prompt_aug.rephrase.choose import Rate, choose
from prompt_aug.rephrase.generate.budget import Budget, BudgetError, Spending, estimate
from prompt_aug.rephrase.generate.client import Endpoint
from prompt_aug.rephrase.generate.prompts import RephraseError, load_prompt
from prompt_aug.rephrase.generate.store import Request, Store, make_request
from prompt_aug.rephrase.results import Outcome, write_results
from prompt_aug.rephrase.review import read_decisions
from prompt_aug.rephrase.stages import (
    JUDGED,
    SOLVED,
    EndedBySignalError,
    Listed,
    answerable,
    generate,
    judge,
    solve,
)

DONE, FAILED, WRONG_USAGE, BUDGET_REACHED, INCOMPLETE = range(5)
FIRST_GUESS = 0.5  # share of candidates that is accepted, before any is known
Rates = dict[tuple[str, str], Rate]


class IncompleteError(RephraseError):
    """Some requests failed in a way that may pass."""


class Run:
    """One run of the pipeline: its settings, stores, and what is known of each question."""

    def __init__(self, options: Namespace) -> None:
        self.options = options
        self.questions = read_parquet(options.questions)[: options.limit]
        self.store = Store(options.work)
        self.benchmarks = _benchmarks(options)
        self.stops: list[UserError] = []
        self.given, self.rates = read_rates(options.pass_rates), Rates()
        self.decisions = read_decisions(options.decisions)
        self.listed: Listed = {question.uid: [] for question in self.questions}
        self.requests: list[Request] = []
        self.failed: set[str] = set()  # uids of requests that failed in this run
        stages = [
            ("", options.model, options.base_url),
            (SOLVED, options.solve, options.solve_url),
            (JUDGED, options.judge, options.judge_url),
        ]
        ends = {folder: cli.endpoint(options, model, url) for folder, model, url in stages if model}
        spent = Spending()
        for folder, end in ends.items():
            spent = spent.plus(Store(options.work / folder).spent.at(end.price))
        self.endpoint: Endpoint | None = ends.get("")
        self.budget: Budget = cli.budget(options, spent, list(ends.values()))
        if self.endpoint and not (options.source or options.offline):
            prompt = load_prompt(options.prompt)
            sampling = cli.sampling(options, options.model, options.answer_tokens)
            self.requests = [
                make_request(q.uid, q.text, prompt=prompt, sampling=sampling, samples=0)
                for q in self.questions
            ]

    def with_samples(self, more: dict[str, int]) -> None:
        """Set the samples of each request: those requested before, and `more`."""
        self.requests = [
            replace(r, samples=min(self.options.most, self.store.asked(r) + more.get(r.uid, 0)))
            for r in self.requests
        ]

    def accepted(self, uid: str) -> int:
        """Count the accepted candidates of a question, each text once."""
        return len(usable(self.listed[uid]))

    def wanting(self) -> dict[str, int]:
        """Return how many further candidates each question needs, by the acceptance so far."""
        candidates = sum(map(len, self.listed.values()))
        accepted = sum(self.accepted(uid) for uid in self.listed)
        share = max(accepted / candidates, 0.1) if candidates else FIRST_GUESS
        wanted = {}
        for request in self.requests:
            missing = self.options.n - self.accepted(request.uid)
            if request.uid in self.failed:
                continue
            if missing > 0 and self.store.asked(request) < self.options.most:
                wanted[request.uid] = math.ceil(missing / share)
        return wanted

    def until_enough(self) -> None:
        """Request, check, solve and judge until no question needs more, or a stop."""
        assert self.endpoint is not None
        self.with_samples({})
        self.verdicts({r.uid: self.store.texts(r) for r in self.requests})
        while (more := self.wanting()) and not self.stops:
            self.with_samples(more)
            with self.stoppable():
                generate(self.requests, self.store, self.endpoint, self.budget, "candidates")
            new = {r.uid: self.store.texts(r) for r in self.requests if r.uid in more}
            self.verdicts(new)
            self.failed |= {r.uid for r in self.requests if self.store.missing(r)}

    def verdicts(self, responses: dict[str, list[dict[str, Any]]]) -> None:
        """Check, solve and judge the candidates of these questions."""
        asked = [q for q in self.questions if responses.get(q.uid)]
        extra = self.options.allow_extra
        listed = {
            q.uid: check_answers(q, responses[q.uid], self.benchmarks, allow_extra=extra)
            for q in asked
        }
        with self.stoppable():
            if self.options.solve and asked and not self.stops:
                listed, rates = solve(asked, listed, self.budget, self.options)
                self.rates |= rates
            if self.options.judge and asked and not self.stops:
                listed = judge(asked, listed, self.budget, self.options)
        self.listed |= listed

    @contextlib.contextmanager
    def stoppable(self) -> Iterator[None]:
        """With --partial, keep a stop for the end; without, it ends the run."""
        try:
            yield
        except (BudgetError, EndedBySignalError) as error:
            if not self.options.partial:
                raise
            self.stops.append(error)

    def finish(self) -> None:
        """Apply the reviewer's decisions, choose, write, report."""
        options = self.options
        take = ("accept", "doubtful") if options.take_doubtful else ("accept",)
        rates, decisions = self.rates | self.given, self.decisions
        listed = {uid: decide(several, decisions) for uid, several in self.listed.items()}
        if decisions:
            applied = sum(c.reviewer is not None for several in listed.values() for c in several)
            print(f"decisions: {len(decisions)} read, {applied} candidates decided")
        choices, chosen = {}, {}
        for question in self.questions:
            fit = usable(listed[question.uid], take)
            texts = [question.text, *(candidate.text for candidate in fit)]
            known = {t: rates[question.uid, t] for t in texts if (question.uid, t) in rates}
            choice = choose(
                question.text,
                texts[1:],
                options.n,
                rates=known,
                per_rephrasing=options.per_rephrasing,
            )
            choices[question.uid] = choice
            chosen[question.uid] = [fit[place] for place in choice.ranked]
        settings = {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items()}
        settings["prompt_sha256"] = load_prompt(options.prompt).sha256
        outcome = Outcome(self.questions, listed, choices, chosen, rates)
        solver = answerable(self.rates, self.questions, options.agree) if options.solve else None
        report = write_results(options.out, outcome, settings, solver)
        _say(report, options, self.budget)


def _benchmarks(options: Namespace) -> OverlapIndex | None:
    if not options.against:
        return None
    from prompt_aug.prepare.__main__ import load_benchmarks

    return OverlapIndex(load_benchmarks(options.against))


def _say(report: dict[str, Any], options: Namespace, budget: Budget) -> None:
    """Print the counts of a manifest, and what would help."""
    names = ("candidates", "verdicts", "accepted_by", "filters", "rephrasings", "solver")
    print(json.dumps({name: report[name] for name in names if report[name]}, indent=1))
    short = sum(count for n, count in report["rephrasings"].items() if int(n) < options.n)
    if short:
        doubtful = report["verdicts"].get("doubtful", 0)
        advice = [f"raise --most={options.most}"]
        if doubtful and not options.solve:
            advice.append(f"--solve=MODEL decides most of the {doubtful} doubtful candidates")
        elif doubtful and not options.judge:
            advice.append(f"--judge=MODEL decides the {doubtful} doubtful candidates")
        print(f"{short} questions have fewer than {options.n} rephrasings: {'; '.join(advice)}")
    expected = report["expected_groups_with_signal"]
    if count := expected["questions_with_pass_rates"]:
        chosen, random = expected["chosen"], expected["chosen_at_random"]
        print(f"expected groups with signal: {chosen:.1f} of {count}, {random:.1f} at random")
    print(f"chosen by {report['chosen_by']}\nspent: {budget.summary()}\nwrote {options.out}")


def read_rates(path: Path | None) -> Rates:
    """Return (uid, text) -> (right, responses) of a file of JSON lines. Raises RephraseError."""
    if path is None:
        return {}
    if not path.is_file():
        raise RephraseError(f"--pass-rates={path}: no such file")
    rates = {}
    for number, line in enumerate(iter_lines(path), start=1):
        try:
            right, responses = int(line["right"]), int(line["responses"])
            rates[str(line["uid"]), str(line["text"])] = (right, responses)
        except (KeyError, TypeError, ValueError) as error:
            needs = "needs uid, text, right, responses"
            raise RephraseError(f"{path}, line {number}: {needs}") from error
        if not 0 <= right <= responses:
            raise RephraseError(f"{path}, line {number}: {right} right of {responses}")
    if not rates:
        raise RephraseError(f"--pass-rates={path}: empty")
    return rates


def imported(path: Path, questions: Sequence[Question]) -> dict[str, list[dict[str, Any]]]:
    """Return the candidates of --from by uid, in the form of a model's responses."""
    if not path.is_file():
        raise RephraseError(f"--from={path}: no such file")
    if path.suffix == ".parquet":
        lines = [{"question": q.text, "rephrasings": q.rephrasings} for q in read_parquet(path)]
    else:
        lines = list(iter_lines(path))
    uids = {normalise(question.text): question.uid for question in questions}
    found: dict[str, list[dict[str, Any]]] = {question.uid: [] for question in questions}
    unknown = 0
    for number, line in enumerate(lines, start=1):
        texts = line.get("rephrasings") if "rephrasings" in line else [line.get("text")]
        if not isinstance(texts, list | tuple) or not all(isinstance(t, str) for t in texts):
            raise RephraseError(f"--from={path}, line {number}: needs uid or question, and text")
        uid = line.get("uid") or uids.get(normalise(str(line.get("question"))))
        if uid not in found:
            unknown += 1
            continue
        known = len(found[uid])
        found[uid] += [
            {"text": t, "model": path.name, "sample": known + i} for i, t in enumerate(texts)
        ]
    print(f"--from: {sum(map(len, found.values()))} candidates; {unknown} lines of other questions")
    if not any(found.values()):
        raise RephraseError(f"--from={path}: no candidate of a question of QUESTIONS")
    return found


def dry_run(run: Run) -> None:
    """Print what is expected and at most left to request, from the token counts so far."""
    options, price = run.options, run.endpoint.price if run.endpoint else None
    run.with_samples({})
    run.verdicts({r.uid: run.store.texts(r) for r in run.requests})
    guess, most, expected = run.wanting(), Spending(), Spending()
    answers = len(run.store.answers)
    per_answer = run.store.spent.tokens_out / answers if answers else options.answer_tokens / 4

    def needs(count: int, tokens: float, request: Request) -> Spending:
        requests = math.ceil(count / options.per_request)
        read = estimate(request.messages, 1, 1).tokens_in
        return Spending(requests, requests * read, int(count * tokens))

    for request in (r for r in run.requests if r.uid in guess):
        left = options.most - run.store.asked(request)
        most = most.plus(needs(left, options.answer_tokens, request))
        expected = expected.plus(needs(min(left, guess[request.uid]), per_answer, request))
    source = f"of {answers} answers so far" if answers else "a guess: run with --limit=20 first"
    for name, total in (("expected", expected), ("at most", most)):
        cost = f"${total.at(price).dollars:.2f}" if price else "unknown price"
        tokens = f"{total.tokens_in} + {total.tokens_out} tokens"
        print(f"{name}: {total.requests} requests, {tokens}, {cost}")
    print(f"expected by tokens and acceptance {source}; --solve and --judge are not included")


def run(options: Namespace) -> int:
    """Run the command; the exit status."""
    cli.validate(options)
    with lock(options.work):
        pipeline = Run(options)
        if options.dry_run:
            dry_run(pipeline)
            return DONE
        if options.offline:
            pipeline.verdicts({q.uid: by_rules(q, options) for q in pipeline.questions})
        elif options.source:
            pipeline.verdicts(imported(options.source, pipeline.questions))
        else:
            pipeline.until_enough()
        failed = pipeline.store.failed(r for r in pipeline.requests if pipeline.store.missing(r))
        if failed and not options.partial:
            raise IncompleteError(_failures(failed))
        pipeline.finish()
    if pipeline.stops:
        raise pipeline.stops[0]
    return INCOMPLETE if failed else DONE


def by_rules(question: Question, options: Namespace) -> list[dict[str, Any]]:
    """Return candidates of the rules, in the form of a model's responses."""
    texts = rules.candidates(question.text, options.most)
    return [{"text": text, "model": rules.MODEL, "sample": i} for i, text in enumerate(texts)]


def _failures(failed: Any) -> str:
    listed = "; ".join(f"{count} times {error}" for error, count in failed.most_common(3))
    return f"{failed.total()} candidates failed: {listed}. Run it again, or with --partial."


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; the exit statuses are in the help."""
    options = cli.build_parser((__doc__ or "").split("\n\n")[0]).parse_args(arguments)
    try:
        return run(options)
    except BudgetError as error:
        print(f"prompt_aug.rephrase: stopped: {error}", file=sys.stderr)
        return BUDGET_REACHED
    except IncompleteError as error:
        print(f"prompt_aug.rephrase: {error}", file=sys.stderr)
        return INCOMPLETE
    except (UserError, OSError) as error:
        print(f"prompt_aug.rephrase: {error}", file=sys.stderr)
        return WRONG_USAGE if isinstance(error, UsageError) else FAILED


if __name__ == "__main__":
    sys.exit(main())
