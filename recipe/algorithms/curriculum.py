"""A prompt curriculum: prefer questions that the model solves about half of the time.

From k times as many candidates, Prompt Curriculum Learning (PCL, arXiv 2510.01135) takes the
questions whose predicted pass rate is nearest to 0.5, where the gradient is largest. PCL predicts
the rate with a value model: ``recipe.curriculum.value_model`` (`recipe.trainer.critic`). Departure:
by default the estimate is the question's running pass rate in this run
(`recipe.trainer.question_stats`), which costs nothing but lags behind the policy. The first
estimate is the pass rate in the data row (`prompt_aug.prepare --pass-rates`), if there is one.
Asynchronous trainers and dynamic sampling take questions one by one: each is the best of its own k.
"""

from collections.abc import Sequence

# Distances are rounded to this many digits: |0.3 - 0.5| and |0.7 - 0.5| differ in their last bit,
# which would prefer the easier of two questions that are equally far from the target.
DIGITS = 12


def nearest(rates: Sequence[float], target: float, count: int) -> list[int]:
    """Return, ascending, the indices of the `count` smallest |rate - target|; ties: the earlier."""
    if not 0 <= count <= len(rates):
        raise ValueError(f"{count} questions wanted of {len(rates)} candidates")
    distances = [round(abs(rate - target), DIGITS) for rate in rates]
    return sorted(sorted(range(len(rates)), key=distances.__getitem__)[:count])
