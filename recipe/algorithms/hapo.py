"""HAPO (arXiv 2505.11225): a reward for answering in fewer tokens than ever before.

Symbols: l the tokens of a response, h the tokens of the shortest correct response to the same
question in earlier steps of this run, f the length reward of a right answer before the floor.
"""

import math
from collections.abc import Mapping, Sequence


def length_reward(length: int, shortest: int | None, correct: bool, floor: float = -0.7) -> float:
    """Right: max(floor, f); wrong: min(0, f); with f = cos(pi / 2 * min(l / h, 2)).

    `length` (l) and `shortest` (h) in tokens; the reward has no unit and is added to the reward
    for correctness, which is 0 or 1. f falls from 1 at l = 0 through 0 at l = h to -1 from
    l = 2 h on: a right answer gains if it is shorter than all before; a wrong one gains nothing
    from being short and loses if it is long. Without history (`shortest` is None) the reward is 0.
    At l = h it is exactly 0.0: the cosine in floats is 6e-17, which would be a signal in a group
    of otherwise equal rewards.
    ValueError for a negative length, a history of no tokens, or a floor outside [-1, 0].
    """
    if length < 0 or (shortest is not None and shortest < 1):
        raise ValueError(f"length={length}, shortest={shortest}: tokens, 0 or more and 1 or more")
    if not -1 <= floor <= 0:
        raise ValueError(f"floor={floor}: the most a right answer may lose lies in [-1, 0]")
    if shortest is None or length == shortest:
        return 0.0
    f = math.cos(math.pi / 2 * min(length / shortest, 2.0))
    return max(floor, f) if correct else min(0.0, f)


class ShortestCorrect:
    """h of every question: the tokens of its shortest correct response so far in this run.

    A correct response of the current step must not be its own history, so read `shortest` for the
    whole step before you call `update`.
    """

    def __init__(self) -> None:
        self._tokens: dict[str, int] = {}

    def shortest(self, uid: str) -> int | None:
        """h in tokens; None while no response to the question was correct."""
        return self._tokens.get(uid)

    def update(self, uids: Sequence[str], lengths: Sequence[int], correct: Sequence[bool]) -> None:
        """h <- min(h, l over the step's correct responses), one entry per response in each list.

        ValueError for lists of different lengths and for a correct response of no tokens; h is
        then unchanged.
        """
        rows = zip(uids, lengths, correct, strict=True)
        found = [(uid, int(length)) for uid, length, right in rows if right]
        empty = [uid for uid, length in found if length < 1]
        if empty:
            raise ValueError(f"a correct response of no tokens, to question {empty[0]}")
        for uid, length in found:
            self._tokens[uid] = min(length, self._tokens.get(uid, length))

    def state(self) -> dict[str, int]:
        """A copy of the values, for the checkpoint."""
        return dict(self._tokens)

    def load(self, state: Mapping[str, int]) -> None:
        """Replace the values by those that `state` returned."""
        self._tokens = dict(state)
