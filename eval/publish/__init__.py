"""Exports of scores and samples, one module each: ``python -m eval.publish RUN``."""

from dataclasses import dataclass
from pathlib import Path

from eval.score import Scored


@dataclass(frozen=True)
class Evaluated(Scored):
    """A scored checkpoint of a run, and the name of its model."""

    run: Path
    step: int

    @property
    def model(self) -> str:
        return f"{self.run.resolve().name}-step_{self.step}"
