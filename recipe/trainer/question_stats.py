"""Statistics of questions across steps: HAPO's history and the curriculum's pass rates.

Both are sections of the configuration (``recipe.history``, ``recipe.curriculum``). They are kept on
the driver and saved in the checkpoint.
"""

from collections.abc import Sequence
from typing import Any

from omegaconf import DictConfig

from recipe.algorithms.curriculum import PassRates, nearest
from recipe.algorithms.hapo import ShortestCorrect
from recipe.algorithms.rollouts import RolloutBatch
from recipe.trainer.metrics import values_by_id
from recipe.trainer.order import group_id


class QuestionStats:
    """Statistics of questions; `recipe` is the section of that name.

    Groups are named by the trainer's ids, questions by their hashes.
    """

    def __init__(self, recipe: DictConfig) -> None:
        self.history, self.curriculum = recipe.history, recipe.curriculum
        self.shortest = ShortestCorrect()
        self.rates = PassRates(target=self.curriculum.target, decay=self.curriculum.decay)
        self.question_of: dict[str, str] = {}  # of the groups of this step
        self.predicted: dict[str, float] = {}  # pass rates by the value model, of this step

    @property
    def candidates(self) -> int:
        """Batches of candidate questions for every batch that is used."""
        return int(self.curriculum.candidates) if self.curriculum.enable else 1

    def start(self, questions: Sequence[str], measured: Sequence[float | None]) -> None:
        """Take the pass rates from before training, where the data has them, as estimates."""
        for question, rate in zip(questions, measured, strict=True):
            if rate is not None:
                self.rates.start(question, rate)

    def choose(
        self, questions: Sequence[str], count: int, predicted: Sequence[float] | None = None
    ) -> list[int]:
        """Indices of the candidates to use: those nearest to the curriculum's target.

        `predicted` are the pass rates by the value model, None without one.
        """
        if predicted is None:
            return self.rates.choose(questions, count)
        chosen = nearest(predicted, self.curriculum.target, count)
        self.predicted.update({questions[i]: predicted[i] for i in chosen})
        return chosen

    def fetch(self, groups: Sequence[str], questions: Sequence[str]) -> None:
        """Record the question of each group of the step."""
        self.question_of.update(zip(groups, questions, strict=True))

    def see_group(self, group: str, accuracy: float) -> None:
        """Record the pass rate of a group, once; dynamic sampling reports evicted groups."""
        question = self.question_of.pop(group, None)
        if self.curriculum.enable and question is not None:
            self.rates.update(question, accuracy)

    def shortest_of(self, questions: Sequence[str]) -> list[int | None]:
        """Tokens of each question's shortest correct response in earlier steps, or None."""
        return [self.shortest.shortest(question) for question in questions]

    def see_step(self, rollouts: RolloutBatch) -> dict[str, float]:
        """Record a step and return metrics; call it after the rewards of the step were computed."""
        metrics: dict[str, float] = {}
        if self.history.enable:
            right = [accuracy == 1.0 for accuracy in rollouts.accuracy]
            self.shortest.update(rollouts.questions, rollouts.lengths, right)
        if self.curriculum.enable:
            groups = [group_id(key) for key in rollouts.keys]
            means = [sum(g) / len(g) for g in values_by_id(groups, rollouts.accuracy)]
            for group, accuracy in zip(dict.fromkeys(groups), means, strict=True):
                self.see_group(group, accuracy)
            known = self.rates.state().values()
            metrics["curriculum/questions_seen"] = float(len(known))
            metrics["curriculum/pass_rate"] = sum(known) / len(known)
            if self.predicted:
                asked = dict.fromkeys(zip(groups, rollouts.questions, strict=True))
                errors = [
                    abs(self.predicted[question] - mean)
                    for (_, question), mean in zip(asked, means, strict=True)
                ]
                metrics["curriculum/value_error"] = sum(errors) / len(errors)
        self.question_of.clear()
        self.predicted.clear()
        return metrics

    def state(self) -> dict[str, Any]:
        """The state for the checkpoint, as JSON."""
        return {"shortest": self.shortest.state(), "pass_rates": self.rates.state()}

    def load(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned; checkpoints of older versions have none."""
        self.shortest.load(state.get("shortest", {}))
        self.rates.load(state.get("pass_rates", {}))
