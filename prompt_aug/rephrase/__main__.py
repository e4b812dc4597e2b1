"""Rephrase questions: request candidates, check, solve and judge them, choose.

    python -m prompt_aug.rephrase QUESTIONS.parquet OUT.parquet --model MODEL --n 3 --most 12

Candidates are requested until a question has --n accepted ones, or --most candidates. Responses are
kept in OUT.work, so a second run requests only what is missing. Exit status: 0 done; 1 error;
2 wrong usage; 3 a budget is reached; 4 some requests failed (run the same command again).
"""

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from prompt_aug.base.commands import run
from prompt_aug.base.files import lock
from prompt_aug.endpoint.budget import BudgetError
from prompt_aug.rephrase.options import build_parser, validate
from prompt_aug.rephrase.pipeline import Run

NAME = "prompt_aug.rephrase"
BUDGET_REACHED, INCOMPLETE = 3, 4


def rephrase(options: Namespace) -> int:
    """Run the pipeline and return the exit status. Raises UserError."""
    validate(options)
    with lock(options.work):
        pipeline = Run(options)
        if options.dry_run:
            return say_estimates(pipeline)
        pipeline.fill()
        errors = pipeline.errors
        if not errors or options.partial:
            say_results(pipeline.finish(), pipeline)
    if pipeline.stops:
        raise pipeline.stops[0]
    if errors:
        reasons = "; ".join(f"{count} times {error}" for error, count in errors.most_common(3))
        how = "Run it again." if options.partial else "Run it again, or with --partial."
        print(f"{NAME}: {errors.total()} responses failed: {reasons}. {how}", file=sys.stderr)
    return INCOMPLETE if errors else 0


def say_estimates(pipeline: Run) -> int:
    """Print the remaining requests and tokens; return 0."""
    for name, spending in pipeline.estimates().items():
        print(f"{name}: {spending}")
    answers = len(pipeline.model.store.answers)
    source = f"of {answers} answers so far" if answers else "a guess: run with --limit=20 first"
    print(f"expected by tokens and acceptance {source}; --solve and --judge are not included")
    return 0


def say_results(report: dict[str, Any], pipeline: Run) -> None:
    """Print the counts of the manifest."""
    options = pipeline.options
    names = "candidates verdicts accepted_by filters rephrasings".split()
    print(json.dumps({name: report[name] for name in names if report[name]}, indent=1))
    if short := sum(count for n, count in report["rephrasings"].items() if int(n) < options.n):
        print(
            f"{short} questions have fewer than {options.n} rephrasings. Raise --most, or decide "
            "doubtful candidates with --solve or --judge."
        )
    print(f"spent: {pipeline.budget.spent}\nwrote {options.out}")


def main(arguments: Sequence[str] | None = None) -> int:
    options = build_parser((__doc__ or "").split("\n\n")[0]).parse_args(arguments)

    def command() -> int:
        try:
            return rephrase(options)
        except BudgetError as error:
            print(f"{NAME}: stopped: {error}", file=sys.stderr)
            return BUDGET_REACHED

    return run(NAME, command, interrupted="responses are kept in OUT.work")


if __name__ == "__main__":
    sys.exit(main())
