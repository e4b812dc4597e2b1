"""Statistics of questions across steps: HAPO's history and the curriculum's pass rates.

    h <- min(h, l over the step's correct responses)       tokens of the shortest correct response
    p <- (p + accuracy of the group) / 2                   pass rate; the first group sets p

Both are sections of the configuration (``recipe.history``, ``recipe.curriculum``). They are kept on
the driver and saved in the checkpoint. A step must not be its own history, so it is recorded after
its rewards were computed.
"""

from collections.abc import Collection, Sequence
from typing import Any

from omegaconf import DictConfig

from recipe.algorithms.curriculum import nearest
from recipe.algorithms.rollouts import RolloutBatch
from recipe.trainer.metrics import values_by_id
from recipe.trainer.order import group_id


class QuestionStats:
    """Statistics of questions, keyed by hash, and of this step's groups, by the trainer's ids."""

    def __init__(self, recipe: DictConfig) -> None:
        self.history, self.curriculum = recipe.history, recipe.curriculum
        self.shortest: dict[str, int] = {}
        self.rates: dict[str, float] = {}
        self.question_of: dict[str, str] = {}  # of the groups in flight
        self.predicted: dict[str, float] = {}  # pass rates of their questions, by the value model

    @property
    def candidates(self) -> int:
        """Batches of candidate questions for every batch that is used."""
        return int(self.curriculum.candidates) if self.curriculum.enable else 1

    def start(self, questions: Sequence[str], measured: Sequence[float | None]) -> None:
        """Start from the pass rates measured before training, where the data has them."""
        for question, rate in zip(questions, measured, strict=True):
            if rate is not None:
                self.rates.setdefault(question, rate)

    def choose(
        self, questions: Sequence[str], count: int, predicted: Sequence[float] | None = None
    ) -> list[int]:
        """Indices of the candidates nearest to the target, by `predicted` rates if given."""
        target = self.curriculum.target  # also of unknown questions, so that they come first
        if predicted is None:
            return nearest([self.rates.get(q, target) for q in questions], target, count)
        chosen = nearest(predicted, target, count)
        self.predicted.update({questions[i]: predicted[i] for i in chosen})
        return chosen

    def fetch(self, groups: Sequence[str], questions: Sequence[str]) -> None:
        """Record the question of each group that is requested."""
        self.question_of.update(zip(groups, questions, strict=True))

    def see_group(self, group: str, accuracy: float) -> None:
        """Record the pass rate of a group, once; dynamic sampling reports evicted groups."""
        question = self.question_of.pop(group, None)
        if self.curriculum.enable and question is not None:
            rate = self.rates.get(question, accuracy)
            self.rates[question] = rate + 0.5 * (accuracy - rate)

    def shortest_of(self, questions: Sequence[str]) -> list[int | None]:
        """Tokens of each question's shortest correct response in earlier steps, or None."""
        return [self.shortest.get(question) for question in questions]

    def see_step(self, rollouts: RolloutBatch, in_flight: Collection[str] = ()) -> dict[str, float]:
        """Record a step and return metrics; call it after the rewards of the step were computed.

        `in_flight`: groups of later steps, which an asynchronous trainer has requested.
        """
        metrics: dict[str, float] = {}
        if self.history.enable:
            rows = zip(rollouts.questions, rollouts.lengths, rollouts.accuracy, strict=True)
            for question, length, accuracy in rows:
                if accuracy == 1.0 and length:
                    self.shortest[question] = min(length, self.shortest.get(question, length))
        if self.curriculum.enable:
            groups = [group_id(key) for key in rollouts.keys]
            means = [sum(g) / len(g) for g in values_by_id(groups, rollouts.accuracy)]
            for group, accuracy in zip(dict.fromkeys(groups), means, strict=True):
                self.see_group(group, accuracy)
            rates = self.rates.values()
            metrics["curriculum/questions_seen"] = float(len(rates))
            metrics["curriculum/pass_rate"] = sum(rates) / len(rates)
            if self.predicted:
                pairs = dict.fromkeys(zip(groups, rollouts.questions, strict=True))
                errors = [
                    abs(self.predicted[question] - mean)
                    for (_, question), mean in zip(pairs, means, strict=True)
                ]
                metrics["curriculum/value_error"] = sum(errors) / len(errors)
        self.question_of = {g: q for g, q in self.question_of.items() if g in in_flight}
        later = set(self.question_of.values())
        self.predicted = {q: rate for q, rate in self.predicted.items() if q in later}
        return metrics

    def state(self) -> dict[str, Any]:
        """The state for the checkpoint, as JSON."""
        state: dict[str, Any] = {"shortest": dict(self.shortest), "pass_rates": dict(self.rates)}
        if self.question_of:
            state |= {"question_of": dict(self.question_of), "predicted": dict(self.predicted)}
        return state

    def load(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned; checkpoints of older versions have none."""
        self.shortest = dict(state.get("shortest", {}))
        self.rates = dict(state.get("pass_rates", {}))
        self.question_of = dict(state.get("question_of", {}))
        self.predicted = dict(state.get("predicted", {}))
