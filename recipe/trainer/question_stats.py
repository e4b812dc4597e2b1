"""What a run remembers of its questions from visit to visit: HAPO's history and the curriculum.

Both are sections of the configuration (``recipe.history``, ``recipe.curriculum``), both live on
the driver, and both travel with the checkpoint, so that a resumed run goes on with what it knew.
"""

from collections.abc import Sequence
from typing import Any

from omegaconf import DictConfig

from recipe.algorithms.curriculum import PassRates
from recipe.algorithms.hapo import ShortestCorrect, length_reward
from recipe.trainer.batch import Rows


class QuestionStats:
    """`recipe` is the section of that name. Visits are the trainer's uids, questions the hashes."""

    def __init__(self, recipe: DictConfig) -> None:
        self.history, self.curriculum = recipe.history, recipe.curriculum
        self.shortest = ShortestCorrect()
        self.rates = PassRates(target=self.curriculum.target, decay=self.curriculum.decay)
        self.question_of: dict[str, str] = {}  # of the visits of this step

    @property
    def candidates(self) -> int:
        """How many batches of questions are looked at for every one that is used."""
        return int(self.curriculum.candidates) if self.curriculum.enable else 1

    def choose(self, questions: Sequence[str], count: int) -> list[int]:
        """Which of the candidate questions to use: those nearest to the curriculum's target."""
        return self.rates.choose(questions, count)

    def fetch(self, visits: Sequence[str], questions: Sequence[str]) -> None:
        """Note which question each visit of the step is of."""
        self.question_of.update(zip(visits, questions, strict=True))

    def see_visit(self, visit: str, accuracy: float) -> None:
        """A visit's pass rate, once; dynamic sampling tells those that may never be trained on."""
        question = self.question_of.pop(visit, None)
        if self.curriculum.enable and question is not None:
            self.rates.update(question, accuracy)

    def shape(self, rows: Rows) -> tuple[list[float], dict[str, float]]:
        """(rewards with HAPO's length reward, its metrics), by the history before this step."""
        rewards = rows.rewards()
        if not self.history.enable:
            return rewards, {}
        extra = []
        visited = zip(rows.questions(), rows.lengths(), rows.accuracies(), strict=True)
        for question, length, accuracy in visited:
            known = self.shortest.shortest(question)
            value = length_reward(length, known, accuracy == 1.0, float(self.history.floor))
            extra.append(float(self.history.weight) * value)
        known_share = sum(self.shortest.shortest(q) is not None for q in rows.questions())
        metrics = {
            "history/reward": sum(extra) / len(extra),
            "history/known": known_share / len(extra),
        }
        return [r + e for r, e in zip(rewards, extra, strict=True)], metrics

    def see_step(self, rows: Rows) -> dict[str, float]:
        """Remember the step; called after `shape`, so that a step never sees itself."""
        metrics: dict[str, float] = {}
        if self.history.enable:
            correct = [accuracy == 1.0 for accuracy in rows.accuracies()]
            self.shortest.update(rows.questions(), rows.lengths(), correct)
        if self.curriculum.enable:
            visits: dict[str, list[float]] = {}
            for visit, accuracy in zip(rows.columns["uid"], rows.accuracies(), strict=True):
                visits.setdefault(str(visit), []).append(accuracy)
            for visit, accuracies in visits.items():
                self.see_visit(visit, sum(accuracies) / len(accuracies))
            known = self.rates.state().values()
            metrics["curriculum/questions_seen"] = float(len(known))
            metrics["curriculum/pass_rate"] = sum(known) / len(known)
        self.question_of.clear()
        return metrics

    def state(self) -> dict[str, Any]:
        """What goes into the checkpoint, as JSON."""
        return {"shortest": self.shortest.state(), "pass_rates": self.rates.state()}

    def load(self, state: dict[str, Any]) -> None:
        """Go on with what `state` returned; a checkpoint from before this existed has none."""
        self.shortest.load(state.get("shortest", {}))
        self.rates.load(state.get("pass_rates", {}))
