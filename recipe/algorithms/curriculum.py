"""A prompt curriculum: prefer questions that the model solves about half of the time.

After Prompt Curriculum Learning (PCL, arXiv 2510.01135). From k times as many candidates, PCL takes
the questions whose predicted pass rate is nearest to 0.5, where the gradient is largest.
PCL trains a value model that predicts the rate: ``recipe.curriculum.value_model``
(`recipe.trainer.critic`). Departure, the default: the estimate is the question's running pass rate
in this run. That is free, but lags behind the policy. The first estimate of a question is the pass
rate in its data row (`prompt_aug.prepare --pass-rates`), if there is one.
"""

from collections.abc import Mapping, Sequence

# Distances are rounded to this many digits: |0.3 - 0.5| and |0.7 - 0.5| differ in their last bit,
# which would prefer the easier of two questions that are equally far from the target.
DIGITS = 12


def nearest(rates: Sequence[float], target: float, count: int) -> list[int]:
    """Return the indices, ascending, of the `count` smallest |rate - target|.

    Of equal distances the earlier candidate is taken; the choice is deterministic. ValueError if
    there are fewer candidates than `count`.
    """
    if not 0 <= count <= len(rates):
        raise ValueError(f"{count} questions wanted of {len(rates)} candidates")
    distances = [round(abs(rate - target), DIGITS) for rate in rates]
    return sorted(sorted(range(len(rates)), key=distances.__getitem__)[:count])


class PassRates:
    """The running pass rate p of every question of a run, between 0 and 1.

    `target` is the pass rate to look for, `decay` the weight of the newest group.
    ValueError unless 0 <= target <= 1 and 0 < decay <= 1.
    """

    def __init__(self, *, target: float, decay: float) -> None:
        if not 0 <= target <= 1:
            raise ValueError(f"target={target}: a pass rate lies in [0, 1]")
        if not 0 < decay <= 1:
            raise ValueError(f"decay={decay}: the weight of the newest group lies in (0, 1]")
        self.target, self.decay = target, decay
        self._rates: dict[str, float] = {}

    def rate(self, uid: str) -> float:
        """Return p of the question; without an estimate the target, so that it comes first."""
        return self._rates.get(uid, self.target)

    def start(self, uid: str, rate: float) -> None:
        """Set p of a question without an estimate; ValueError outside [0, 1]."""
        if not 0 <= rate <= 1:
            raise ValueError(f"pass rate {rate} of question {uid}: a share lies in [0, 1]")
        self._rates.setdefault(uid, rate)

    def update(self, uid: str, accuracy: float) -> None:
        """p <- (1 - decay) p + decay accuracy; the first group sets p.

        `accuracy` is the share of correct responses among those of one group. ValueError outside
        [0, 1], NaN included, which would stay in p for the rest of the run.
        """
        if not 0 <= accuracy <= 1:
            raise ValueError(f"accuracy={accuracy} of question {uid}: a share lies in [0, 1]")
        rate = self._rates.get(uid, accuracy)
        self._rates[uid] = rate + self.decay * (accuracy - rate)

    def choose(self, uids: Sequence[str], count: int) -> list[int]:
        """Return the indices of the `count` questions with pass rates `nearest` to the target."""
        return nearest([self.rate(uid) for uid in uids], self.target, count)

    def state(self) -> dict[str, float]:
        """A copy of the rates, for the checkpoint; JSON keeps floats exactly."""
        return dict(self._rates)

    def load(self, state: Mapping[str, float]) -> None:
        """Replace the rates by those that `state` returned."""
        self._rates = dict(state)
