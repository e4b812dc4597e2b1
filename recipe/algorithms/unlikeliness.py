"""Unlikeliness reward (arXiv 2506.02355): right answers that were likely anyway earn less."""

from collections.abc import Sequence

import torch

from recipe.algorithms.groups import Numbers, float64, group_index, group_sum
from recipe.algorithms.grpo import grpo
from recipe.algorithms.registry import advantage


@advantage(
    inputs=("logprobs_BT", "mask_BT", "prompts", "responses"),
    nonnegative_rewards=True,
    equal_accuracy=True,
)
def unlikeliness(
    rewards_B: Numbers,
    group_B: Numbers,
    *,
    logprobs_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    prompts: Sequence[torch.Tensor] = (),
    responses: Sequence[torch.Tensor] = (),
    beta: float = 0.25,
) -> torch.Tensor:
    """A = grpo(R'),  R'_i = R_i (1 - beta rank_i / G).

    rank_i, from 0, counts the responses of the group of G that are less likely than i by the mean
    log-probability of their tokens (nats) under the policy that starts the step. A wrong answer
    (R = 0) stays at 0. `beta` in [0, 1]; the authors' runs use 0.25. Errors as `grpo`.
    Equal responses to one prompt, both given as token ids, are equally likely, although their
    computed log-probabilities differ in the last digits if they were in different micro-batches.
    A group of right answers only has a signal too; `algorithm.filter_groups` would evict it.
    Source: `ray_lean_trainer.py` of the authors' repository (AndreHe02/rewarding-unlikely-release).
    Departures: equally likely responses share a rank, so that the order of rows does not matter;
    the paper's text ranks by the probability of the whole response, its code by the mean.
    """
    if not 0 <= beta <= 1:
        raise ValueError(f"beta={beta}: must lie in [0, 1]")
    rewards = float64(rewards_B)
    index_B, groups = group_index(group_B, len(rewards))
    count_B = group_sum(torch.ones_like(rewards), index_B, groups)[index_B]
    tokens_B = mask_BT.sum(1).clamp(min=1)
    mean_B = torch.where(mask_BT, logprobs_BT, 0.0).double().sum(1) / tokens_B
    ids = zip(prompts, responses, strict=True)
    keys = [(tuple(p.tolist()), tuple(r.tolist())) for p, r in ids] or range(len(mean_B))
    first: dict[object, int] = {}
    first_B = torch.tensor([first.setdefault(key, i) for i, key in enumerate(keys)])
    mean_B = mean_B.scatter_reduce(0, first_B, mean_B, "amin")[first_B]
    same = index_B[:, None] == index_B
    rank_B = (same & (mean_B < mean_B[:, None])).sum(1)
    return grpo(rewards * (1 - beta * rank_B / count_B), group_B)
