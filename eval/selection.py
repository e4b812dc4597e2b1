"""Picks a checkpoint of a run by its accuracy on a validation split; the report says which and how.

A score on the questions that a checkpoint was picked by is too high: of many checkpoints with noise
the luckiest wins. So the questions must have been held out of the training data
(`python -m prompt_aug.prepare ... --validation N`), and are then no benchmark. Picking on a test
set is possible with --on-test-set, and marked wherever the result stands.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.command import add_settings, existing, run_command, text
from eval.errors import EvaluationError
from eval.report.data import choose_evaluation
from prompt_aug.base.commands import make_parser
from prompt_aug.base.files import read_json, read_lines, write_json
from prompt_aug.questions import VALIDATION, read_parquet
from recipe.run.folder import EvaluationFolder, RunFolder


def why_no_validation(run: Path, benchmark: str, evaluated: Mapping[int, Path]) -> str:
    """Why the questions are not a validation split of the run's training data; "" if they are."""
    folder = EvaluationFolder(evaluated[max(evaluated)]).benchmark(benchmark)
    asked = {question["uid"] for question in read_lines(folder.questions)}
    path = Path(str(read_json(folder.scores).get("path") or ""))
    if path.suffix != ".parquet" or not path.is_file():
        return f"{path} is not an existing parquet file"
    splits = {question.uid: question.split for question in read_parquet(path)}
    if any(splits.get(uid) != VALIDATION for uid in asked):
        return f"{path} has questions that are not of the split {VALIDATION!r}"
    trained = RunFolder(run).data("train")
    if not trained.is_file():
        return f"{trained}, which names the questions trained on, is missing"
    shared = asked & {question.uid for question in read_parquet(trained)}
    return f"{len(shared)} of its questions were trained on" if shared else ""


def scores_by_step(evaluated: Mapping[int, Path], benchmark: str) -> dict[int, float]:
    """The accuracy of every checkpoint on the benchmark; all of them must have been asked."""
    found = {}
    for step, path in evaluated.items():
        entry = read_json(EvaluationFolder(path).scores)["benchmarks"].get(benchmark)
        if entry is None:
            raise EvaluationError(f"step {step} is not evaluated on {benchmark}: run eval.sweep")
        found[step] = float(entry["accuracy"])
    return found


def pick(scores: Mapping[int, float]) -> int:
    """The step of the highest accuracy; of equals the earliest."""
    return min(scores, key=lambda step: (-scores[step], step))


def select(
    run: Path, benchmark: str, settings: str | None = None, on_test_set: bool = False
) -> dict[str, Any]:
    """Write selection.json beside the evaluation's settings, and return it."""
    evaluated = choose_evaluation(RunFolder(run).evaluation, settings, [])
    if not evaluated:
        raise EvaluationError(f"{run} has no scores: run `python -m eval.sweep {run}` first")
    scores = scores_by_step(evaluated, benchmark)
    reason = why_no_validation(run, benchmark, evaluated)
    if reason and not on_test_set:
        raise EvaluationError(
            f"{benchmark} is not a validation split of the training data: {reason}. Hold one out "
            "with `python -m prompt_aug.prepare ... --validation N`, or add --on-test-set, which "
            "the report will say"
        )
    record = {
        "step": pick(scores),
        "benchmark": benchmark,
        "kind": "test" if reason else VALIDATION,
        "reason": reason,
        "scores": {str(step): score for step, score in scores.items()},
    }
    write_json(EvaluationFolder(evaluated[max(evaluated)]).selection, record)
    return record


def _select(options: argparse.Namespace) -> None:
    record = select(options.run, options.benchmark, options.settings, options.on_test_set)
    for step, score in record["scores"].items():
        mark = "  <- picked" if int(step) == record["step"] else ""
        print(f"step {step}: {score:.4f}{mark}")
    if record["kind"] != VALIDATION:
        print(f"warning: picked on a test set ({record['reason']}); its score there is too high")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = make_parser(
        "python -m eval.selection",
        __doc__,
        example="python -m eval.selection runs/grpo --benchmark held_out",
    )
    add = parser.add_argument
    add("run", type=existing, help="run folder")
    add("--benchmark", type=text, required=True, help="the questions to pick by")
    add_settings(parser)
    add(
        "--on-test-set",
        action="store_true",
        help="pick by questions that are not a validation split",
    )
    return run_command(parser, arguments, _select, "nothing was picked")


if __name__ == "__main__":
    sys.exit(main())
