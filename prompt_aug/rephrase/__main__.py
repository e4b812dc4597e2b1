"""Rephrase questions: request candidates, check and solve them, choose.

    python -m prompt_aug.rephrase QUESTIONS.parquet OUT.parquet --model MODEL --n 3 --most 12

Candidates are requested until a question has --n accepted ones, or --most candidates. Responses are
kept in OUT.work, so a second run requests only what is missing. Exit status: 0 done; 1 error;
2 wrong usage; 3 a budget is reached; 4 some requests failed (run the same command again).
"""

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any

from prompt_aug.base.commands import at_least, check_url, make_parser, nonempty_path, run_command
from prompt_aug.base.errors import UsageError
from prompt_aug.base.files import lock
from prompt_aug.endpoint.client import KEY_VARIABLE
from prompt_aug.rephrase.pipeline import Run

NAME = "prompt_aug.rephrase"
BUDGET_REACHED, INCOMPLETE = 3, 4


def build_parser(description: str) -> ArgumentParser:
    """Return the parser; `validate` rejects combinations."""
    name = "python -m prompt_aug.rephrase"
    example = f"{name} train.parquet rephrased.parquet --model NAME"
    parser = make_parser(name, description, example=example)
    add: Any = parser.add_argument
    add("questions", type=nonempty_path, help="a parquet file of prompt_aug.prepare")
    add("out", type=nonempty_path, help="the parquet file to write")
    add("--n", type=int, default=3, help="rephrasings wanted for each question")
    add("--most", type=int, help="candidates requested for one question, at most (default: 4 n)")
    add("--limit", type=int, help="only the first so many questions")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--dry-run", action="store_true", help="print requests and tokens")
    mode.add_argument("--offline", action="store_true", help="toy world: rules instead of a model")
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
    return parser


def validate(options: Namespace) -> None:
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
        (not (o.offline or o.model), "--model: missing. Name it."),
    ):
        if wrong:
            raise UsageError(why)


def rephrase(options: Namespace) -> int:
    """Run the pipeline and return the exit status. Raises UserError."""
    validate(options)
    with lock(options.work):
        pipeline = Run(options)
        if options.dry_run:
            return say_estimates(pipeline)
        pipeline.fill()
        say_results(pipeline.finish(), pipeline)
    if pipeline.stop:
        print(f"{NAME}: stopped: {pipeline.stop}", file=sys.stderr)
        return BUDGET_REACHED
    if errors := pipeline.errors:
        reasons = "; ".join(f"{count} times {error}" for error, count in errors.most_common(3))
        again = f"{errors.total()} responses failed: {reasons}. Run it again."
        print(f"{NAME}: {again}", file=sys.stderr)
    return INCOMPLETE if errors else 0


def say_estimates(pipeline: Run) -> int:
    """Print the remaining requests and tokens; return 0."""
    for name, spending in pipeline.estimates().items():
        print(f"{name}: {spending}")
    answers = len(pipeline.model.store.answers)
    source = f"of {answers} answers so far" if answers else "a guess: run with --limit=20 first"
    print(f"expected by tokens and acceptance {source}; --solve is not included")
    return 0


def say_results(report: dict[str, Any], pipeline: Run) -> None:
    """Print the counts of the manifest."""
    options = pipeline.options
    names = "candidates verdicts accepted_by filters rephrasings".split()
    print(json.dumps({name: report[name] for name in names if report[name]}, indent=1))
    if short := sum(count for n, count in report["rephrasings"].items() if int(n) < options.n):
        more = "Raise --most, or decide doubtful candidates with --solve."
        more = "The rules are of the toy world. Name a --model." if options.offline else more
        print(f"{short} questions have fewer than {options.n} rephrasings. {more}")
    print(f"spent: {pipeline.budget.spent}\nwrote {options.out}")


def main(arguments: Sequence[str] | None = None) -> int:
    options = build_parser((__doc__ or "").split("\n\n")[0]).parse_args(arguments)
    return run_command(
        NAME, lambda: rephrase(options), interrupted="responses are kept in OUT.work"
    )


if __name__ == "__main__":
    sys.exit(main())
