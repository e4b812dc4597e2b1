"""Pick a checkpoint of a run by its accuracy on a validation split.

The accuracy of the best of many checkpoints is biased upward on the questions used to pick it. So
the questions must have been held out of the training data (`python -m prompt_aug.prepare ...
--validation N`), and they do not count as a benchmark. --on-test-set picks on other questions; the
report marks the result.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from eval.scores.score import Selection, read_questions
from eval.show import add_settings
from eval.show.data import asked_differently, scored_steps
from prompt_aug.base.commands import existing, make_parser
from prompt_aug.base.errors import UserError
from prompt_aug.base.files import read_json, write_json
from prompt_aug.questions import VALIDATION, read_parquet
from recipe.run.folder import EvaluationFolder, RunFolder


def why_no_validation(run: Path, benchmark: str, folder: EvaluationFolder) -> str:
    """Return why the questions are no validation split of the training data, or ""."""
    files = folder.benchmark(benchmark)
    uids = {question["uid"] for question in read_questions(files)}
    path = Path(str(read_json(files.scores).get("path") or ""))
    if path.suffix != ".parquet" or not path.is_file():
        return f"{path} is not an existing parquet file"
    splits = {question.uid: question.split for question in read_parquet(path, "last")}
    if any(splits.get(uid) != VALIDATION for uid in uids):
        return f"{path} has questions that are not of the split {VALIDATION!r}"
    trained = RunFolder(run).data("train")
    if not trained.is_file():
        return f"{trained}, which lists the training questions, is missing"
    shared = uids & {question.uid for question in read_parquet(trained, "last")}
    return f"{len(shared)} of its questions were trained on" if shared else ""


def pick_checkpoint(
    run: Path, benchmark: str, settings: str | None = None, on_test_set: bool = False
) -> Selection:
    """Write selection.json beside the evaluation's settings, and return it."""
    scored, scores = scored_steps(run, settings), dict[int, float]()
    for step, evaluated in scored.items():
        if benchmark not in evaluated.benchmarks:
            raise UserError(f"step {step} is not evaluated on {benchmark}: run eval.sweep")
        scores[step] = float(evaluated.benchmarks[benchmark]["accuracy"])
    end, last = scored[max(scored)], scored[max(scored)].folder
    if differing := [s for s, x in scored.items() if asked_differently(end, x, [benchmark])]:
        raise UserError(
            f"{benchmark} was asked or graded differently at the steps {differing} than at step "
            f"{max(scored)}: run eval.sweep for all steps with the same options"
        )
    reason = why_no_validation(run, benchmark, last)
    if reason and not on_test_set:
        raise UserError(
            f"{benchmark} is not a validation split of the training data: {reason}. Hold questions "
            "out with `python -m prompt_aug.prepare ... --validation N`, or add --on-test-set: the "
            "report then marks the result"
        )
    picked = Selection(
        step=min(scores, key=lambda step: (-scores[step], step)),  # the earliest of equal ones
        benchmark=benchmark,
        kind="test" if reason else "validation",
        reason=reason,
        scores={str(step): score for step, score in scores.items()},
    )
    write_json(last.selection, picked.model_dump())
    return picked


def _select(options: argparse.Namespace) -> None:
    picked = pick_checkpoint(options.run, options.benchmark, options.settings, options.on_test_set)
    for step, score in picked.scores.items():
        mark = "  <- picked" if int(step) == picked.step else ""
        print(f"step {step}: {score:.4f}{mark}")
    if picked.kind == "test":
        print(f"warning: picked on a test set ({picked.reason}); its score there is too high")


def main(arguments: Sequence[str] | None = None) -> int:
    example = "python -m eval.selection runs/grpo --benchmark held_out"
    parser = make_parser("python -m eval.selection", __doc__, example=example)
    add = parser.add_argument
    add("run", type=existing, help="run folder")
    add("--benchmark", required=True, help="the questions to pick by")
    add_settings(parser)
    add("--on-test-set", action="store_true", help="pick by questions that are no validation split")
    return parser.run(arguments, _select, "nothing was picked")


if __name__ == "__main__":
    raise SystemExit(main())
