"""Exports of scores and samples, one module each: ``python -m eval.publish RUN``."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.score import Lines, read_scored
from recipe.run.folder import EvaluationFolder


@dataclass(frozen=True)
class Evaluated:
    """A scored checkpoint of a run. `record` is its scores.json."""

    run: Path
    step: int
    folder: EvaluationFolder
    record: Mapping[str, Any]

    @property
    def model(self) -> str:
        """The name of the model that was evaluated."""
        return f"{self.run.resolve().name}-step_{self.step}"

    @property
    def benchmarks(self) -> Mapping[str, Mapping[str, Any]]:
        return self.record["benchmarks"]

    def samples(self, benchmark: str) -> list[tuple[dict[str, Any], Lines]]:
        """Return each question with its graded samples."""
        return read_scored(self.folder.benchmark(benchmark), self.benchmarks[benchmark])

    def generation(self, **names: str) -> dict[str, Any]:
        """Return recorded sampling settings, renamed: `names` maps new names to settings keys."""
        settings = self.record["settings"]
        return {n: settings[key] for n, key in names.items() if key in settings}
