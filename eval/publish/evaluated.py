"""One evaluated checkpoint of a run, read for those who publish it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.errors import EvaluationError
from eval.report.data import choose_evaluation
from eval.score import Lines, read_scored
from prompt_aug.base.files import read_json
from recipe.run.folder import EvaluationFolder, RunFolder


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluated:
    """The scores of a checkpoint; `record` is its scores.json."""

    run: Path
    step: int
    folder: EvaluationFolder
    record: Mapping[str, Any]

    @property
    def model(self) -> str:
        """A name for what was evaluated."""
        return f"{self.run.resolve().name}-step_{self.step}"

    @property
    def settings(self) -> Mapping[str, Any]:
        return dict(self.record["settings"])

    @property
    def benchmarks(self) -> Mapping[str, Mapping[str, Any]]:
        return dict(self.record["benchmarks"])

    def samples(self, benchmark: str) -> Iterator[tuple[dict[str, Any], Lines]]:
        """Each question with its graded samples."""
        yield from read_scored(self.folder.benchmark(benchmark), self.benchmarks[benchmark])


def evaluated(run: Path, settings: str | None, steps: Sequence[int] | None) -> list[Evaluated]:
    """The scored checkpoints of a run by step; `steps`: these only."""
    folders = choose_evaluation(RunFolder(run).evaluation, settings, [])
    if missing := sorted(set(steps or ()) - set(folders)):
        raise EvaluationError(f"{run} has no scores of the steps {missing}: {sorted(folders)}")
    if not folders:
        raise EvaluationError(f"{run} has no scores: run `python -m eval.sweep {run}` first")
    return [
        Evaluated(
            run=run, step=number, folder=EvaluationFolder(path),
            record=read_json(EvaluationFolder(path).scores),
        )
        for number, path in folders.items()
        if steps is None or number in steps
    ]  # fmt: skip
