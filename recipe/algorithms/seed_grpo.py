"""SEED-GRPO (arXiv 2505.12346): smaller updates on questions whose answers disagree.

Symbols: G responses of a group, K clusters of them that give the same answer, n_k responses of the
k-th, SE the semantic entropy in nats.
"""

import math
from collections import Counter
from collections.abc import Sequence

import torch

from recipe.algorithms.dr_grpo import dr_grpo
from recipe.algorithms.groups import Numbers, group_index
from recipe.algorithms.registry import advantage

# From a public reimplementation, with f = 1 / (1 + alpha x) and SE = -sum_k p_k log p_k. At this
# alpha its f and ours differ by less than 0.002. The paper's own value could not be read.
ALPHA = 0.0417


def semantic_entropy(answers: Sequence[str]) -> float:
    """SE = -(1/K) sum_k log p_k with p_k = n_k / G, over the K different answers; 0 without any.

    Each empty text, a response without an answer, is a cluster of its own. The range is from 0 (all
    the same) to log G (all different).
    Departure: the paper's p_k is the sum of the probabilities of a cluster's sampled responses.
    Those are products over hundreds of tokens, all near 0, so we use counts, as in the discrete
    semantic entropy of Farquhar et al. (Nature 630, 2024).
    """
    given = Counter(answer for answer in answers if answer)
    sizes = [*given.values(), *[1] * answers.count("")]
    if not sizes:
        return 0.0
    return -math.fsum(math.log(size / len(answers)) for size in sizes) / len(sizes)


@advantage(inputs=("answers",))
def seed_grpo(
    rewards_B: Numbers, group_B: Numbers, *, answers: Sequence[str] = (), alpha: float = ALPHA
) -> torch.Tensor:
    """A = (R - mean) (1 - alpha SE / log G), mean and SE over the group's G responses.

    R - mean, units and errors are those of `dr_grpo`; 1 - alpha x is the linear one of the forms
    that the paper names for f. `answers`: the final answer of each response, equal texts for equal
    answers (`RolloutBatch.answers`); without any, all count as the same. `alpha` in [0, 1]: 0 is
    Dr. GRPO; 1 sets the advantages of a group of G different answers to 0, even if one is right.
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha={alpha} must lie in [0, 1]: above 1 a sign may change")
    base_B = dr_grpo(rewards_B, group_B)
    if not len(answers):
        return base_B
    if len(answers) != len(base_B):
        raise ValueError(f"{len(base_B)} responses, but {len(answers)} answers")
    index_B, groups = group_index(group_B, len(base_B))
    members: list[list[str]] = [[] for _ in range(groups)]
    for group, answer in zip(index_B.tolist(), answers, strict=True):
        members[group].append(answer)
    scale = [1 - alpha * semantic_entropy(m) / math.log(max(2, len(m))) for m in members]
    return base_B * torch.tensor(scale, dtype=torch.float64)[index_B]
