"""Rephrase questions: generate candidates, check that they are the same problem, choose.

    python -m prompt_aug.rephrase QUESTIONS.parquet OUT.parquet --model MODEL --n 3

Raw answers are kept in --work by request hash and sample, so that a run that was cut, a changed
filter or a further candidate asks for nothing twice. Exit status: 0 done; 1 could not, with one
line that says why; 2 wrong usage; 3 a budget is reached; 4 some requests failed (run it again).
"""

import contextlib
import json
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from prompt_aug.errors import UsageError, UserError
from prompt_aug.files import iter_lines, lock
from prompt_aug.prepare.overlap import OverlapIndex
from prompt_aug.questions import Question, read_parquet
from prompt_aug.rephrase import options as cli
from prompt_aug.rephrase import rules
from prompt_aug.rephrase.candidates import Candidate, check_answers, decide, usable
from prompt_aug.rephrase.choose import Rate, choose
from prompt_aug.rephrase.generate.budget import Budget, BudgetError, Spending, estimate
from prompt_aug.rephrase.generate.prompts import RephraseError, load_prompt
from prompt_aug.rephrase.generate.store import Request, Store, make_request
from prompt_aug.rephrase.results import Outcome, write_results
from prompt_aug.rephrase.review import Decisions, read_decisions
from prompt_aug.rephrase.stages import SOLVED, EndedBySignalError, batch, generate, solve

DONE, FAILED, WRONG_USAGE, BUDGET_REACHED, INCOMPLETE = range(5)


class IncompleteError(RephraseError):
    """Some requests failed in a way that may pass."""


def make_requests(questions: Sequence[Question], options: Namespace) -> list[Request]:
    """A request for the candidates of each question."""
    prompt = load_prompt(options.prompt)
    return [
        make_request(
            question.uid,
            question.text,
            prompt=prompt,
            sampling=cli.sampling(options),
            samples=options.candidates,
        )
        for question in questions
    ]


def by_rules(question: Question, options: Namespace) -> list[dict[str, Any]]:
    """Candidates of the rules, in the form of a model's answers."""
    texts = rules.candidates(question.text, options.candidates)
    return [{"text": text, "model": rules.MODEL, "sample": i} for i, text in enumerate(texts)]


def dry_run(requests: Sequence[Request], store: Store, options: Namespace) -> None:
    """Print what is left to ask for, at most."""
    total = Spending()
    for request in requests:
        missing = len(store.missing(request))
        for start in range(0, missing, options.per_request):
            count = min(options.per_request, missing - start)
            total += estimate(request.messages, count, request.sampling.max_tokens)
    budget = cli.budget(options, Spending())
    cost = budget.cost(total)
    print(
        f"requests: {total.requests} (and what fails is tried up to {options.retries} times more)"
    )
    print(f"tokens of prompts: about {total.tokens_in}; of answers: at most {total.tokens_out}")
    print(f"cost: {'unknown price' if cost is None else f'at most ${cost:.2f}'}")


def read_rates(path: Path | None) -> dict[tuple[str, str], Rate]:
    """(uid, text) -> (right, responses) of a file of JSON lines. Raises RephraseError."""
    if path is None:
        return {}
    if not path.is_file():
        raise RephraseError(f"--pass-rates {path}: no such file")
    rates = {}
    for number, line in enumerate(iter_lines(path), start=1):
        try:
            right, responses = int(line["right"]), int(line["responses"])
            rates[str(line["uid"]), str(line["text"])] = (right, responses)
        except (KeyError, TypeError, ValueError) as error:
            raise RephraseError(
                f"{path}, line {number}: wants uid, text, right, responses"
            ) from error
        if not 0 <= right <= responses:
            raise RephraseError(f"{path}, line {number}: {right} right of {responses}")
    if not rates:
        raise RephraseError(f"--pass-rates {path}: no line in it")
    return rates


def benchmarks_of(options: Namespace) -> OverlapIndex | None:
    """The questions that no candidate may be."""
    if not options.against:
        return None
    from prompt_aug.prepare.__main__ import load_benchmarks

    return OverlapIndex(load_benchmarks(options.against))


def finish(
    questions: Sequence[Question],
    candidates: dict[str, list[Candidate]],
    rates: dict[tuple[str, str], Rate],
    decisions: Decisions,
    options: Namespace,
) -> None:
    """Apply the reviewer's decisions, choose, write, report."""
    take = ("accept", "doubtful") if options.take_doubtful else ("accept",)
    candidates = {uid: decide(listed, decisions) for uid, listed in candidates.items()}
    if decisions:
        applied = sum(c.reviewer is not None for listed in candidates.values() for c in listed)
        print(f"decisions: {len(decisions)} read, {applied} candidates decided")
    choices, chosen = {}, {}
    for question in questions:
        fit = usable(candidates[question.uid], take)
        texts = [question.text, *(candidate.text for candidate in fit)]
        known = {t: rates[question.uid, t] for t in texts if (question.uid, t) in rates}
        choice = choose(
            question.text, texts[1:], options.n, rates=known, per_rephrasing=options.per_rephrasing
        )
        choices[question.uid] = choice
        chosen[question.uid] = [fit[place] for place in choice.ranked]
    settings = {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items()}
    settings["prompt_sha256"] = load_prompt(options.prompt).sha256
    outcome = Outcome(questions, candidates, choices, chosen, rates)
    say(write_results(options.out, outcome, settings), options.out)


def say(report: dict[str, Any], out: Path) -> None:
    """Print the counts of a manifest."""
    shown = {key: report[key] for key in ("candidates", "verdicts", "filters", "rephrasings")}
    print(json.dumps(shown, indent=1))
    expected = report["expected_groups_with_signal"]
    if expected["questions_with_pass_rates"]:
        print(
            f"expected groups with signal: {expected['chosen']:.1f} of "
            f"{expected['questions_with_pass_rates']}, {expected['chosen_at_random']:.1f} at random"
        )
    elif set(report["rephrasings"]) == {"0"}:
        print("no candidate was chosen")
    else:
        print("chosen by distance alone: no pass rates (--solve or --pass-rates)")
    print(f"wrote {out}")


@contextlib.contextmanager
def _results_of_a_part(options: Namespace, stops: list[UserError]) -> Iterator[None]:
    """With --partial, a stop while generating is kept for the end; without, it ends the run."""
    try:
        yield
    except (BudgetError, EndedBySignalError) as error:
        if not options.partial:
            raise
        stops.append(error)


def run(options: Namespace) -> int:
    """The whole of it; the exit status."""
    cli.validate(options)
    questions = read_parquet(options.questions)[: options.limit]
    rates, decisions = read_rates(options.pass_rates), read_decisions(options.decisions)
    benchmarks = benchmarks_of(options)
    with lock(options.work):
        if options.offline:
            listed = {q.uid: check_answers(q, by_rules(q, options), benchmarks) for q in questions}
            finish(questions, listed, rates, decisions, options)
            return DONE
        store = Store(options.work)
        requests = make_requests(questions, options)
        if options.dry_run:
            dry_run(requests, store, options)
            return DONE
        budget, stops = cli.budget(options, store.spent), list[UserError]()
        if options.batch:
            complete = batch(requests, store, budget, options)
            if options.batch == "submit":
                return DONE
            if not (complete or options.partial):
                return INCOMPLETE
        else:
            with _results_of_a_part(options, stops):
                generate(requests, store, cli.endpoint(options), budget, "candidates")
        failed = count_failed(requests, store, options)
        listed = {
            question.uid: check_answers(question, store.texts(request), benchmarks)
            for question, request in zip(
                questions, tqdm(requests, desc="checks", disable=None), strict=True
            )
        }
        listed, found = solved(questions, listed, budget, stops, options)
        finish(questions, listed, found | rates, decisions, options)
    if stops:
        raise stops[0]
    return INCOMPLETE if failed else DONE


def count_failed(requests: Sequence[Request], store: Store, options: Namespace) -> int:
    """How many candidates are missing. Raises IncompleteError where results need all of them."""
    failed = sum(len(store.missing(request)) for request in requests)
    if failed and not options.partial:
        reason = store.last_failure(requests)
        raise IncompleteError(
            f"{failed} candidates failed ({reason}); run it again, or with --partial"
        )
    return failed


def solved(
    questions: Sequence[Question],
    listed: dict[str, list[Candidate]],
    budget: Budget,
    stops: list[UserError],
    options: Namespace,
) -> tuple[dict[str, list[Candidate]], dict[tuple[str, str], Rate]]:
    """The candidates and pass rates after --solve, where that is asked for."""
    if options.solve:
        spent = Store(options.work / SOLVED).spent
        with _results_of_a_part(options, stops):
            return solve(questions, listed, cli.budget(options, spent, after=budget), options)
    return listed, {}


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
