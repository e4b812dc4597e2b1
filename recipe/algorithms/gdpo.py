"""GDPO (arXiv 2601.05242): each reward is normalized in its group before the rewards are summed."""

from collections.abc import Sequence

import torch

from recipe.algorithms.groups import Numbers
from recipe.algorithms.grpo import EPSILON, grpo
from recipe.algorithms.registry import advantage


@advantage(inputs=("accuracy", "formats"), parts=("accuracy", "format"))
def gdpo(
    rewards_B: Numbers,
    group_B: Numbers,
    *,
    accuracy: Sequence[float],
    formats: Sequence[float],
    format_weight: float = 1.0,
) -> torch.Tensor:
    """A = S / (std S + 1e-6),  S = grpo(accuracy) + format_weight grpo(format).

    `grpo` normalizes over the group; std (n - 1) is over all responses of the batch, where the mean
    of S is 0 because it is 0 in every group. `accuracy` (0 or 1) and `formats` (0 to 1) are the
    rewards of each response; of `rewards_B` only the length is checked.
    Returns float64 of shape B; 0 in groups with equal accuracy and equal format. Errors as `grpo`.
    GRPO on the sum gives (right, no format) and (wrong, format) the same advantage; here the part
    that is rarer in the group counts more.
    Departure: the authors' verl code and verl's ``gdpo`` (as ``verl:gdpo``) take mean and std over
    tokens, so that long responses count more; their TRL code takes them over responses, as here.
    """
    if len(torch.as_tensor(rewards_B)) != len(accuracy):
        raise ValueError(f"{len(torch.as_tensor(rewards_B))} rewards, {len(accuracy)} accuracies")
    sum_B = grpo(accuracy, group_B) + float(format_weight) * grpo(formats, group_B)
    if len(sum_B) < 2:
        return torch.zeros_like(sum_B)
    return sum_B / (sum_B.std() + EPSILON)
