"""HAPO (arXiv 2505.11225): a reward for answering in fewer tokens than ever before.

Symbols: l the tokens of a response, h the tokens of the shortest correct response to the same
question in earlier steps of this run (`recipe.trainer.question_stats`), f the length reward of a
right answer before the floor.
"""

import math

FLOOR = -0.7  # the paper's


def length_reward(length: int, shortest: int | None, correct: bool) -> float:
    """Right: max(FLOOR, f); wrong: min(0, f); with f = cos(pi / 2 * min(l / h, 2)).

    `length` (l) and `shortest` (h) in tokens; the reward has no unit and is added to the reward
    for correctness, which is 0 or 1. f falls from 1 at l = 0 through 0 at l = h to -1 from
    l = 2 h on: a right answer gains if it is shorter than all before; a wrong one gains nothing
    from being short and loses if it is long. Without history (`shortest` is None) the reward is 0.
    At l = h it is exactly 0.0: the cosine in floats is 6e-17, which would be a signal in a group
    of otherwise equal rewards.
    ValueError for a negative length, or a history of no tokens.
    """
    if length < 0 or (shortest is not None and shortest < 1):
        raise ValueError(f"length={length}, shortest={shortest}: tokens, 0 or more and 1 or more")
    if shortest is None or length == shortest:
        return 0.0
    f = math.cos(math.pi / 2 * min(length / shortest, 2.0))
    return max(FLOOR, f) if correct else min(0.0, f)
