"""SDPO (arXiv 2601.20802): the policy under a hint teaches the policy without it."""

from collections.abc import Sequence

import torch

from recipe.algorithms.groups import Numbers, group_index
from recipe.algorithms.registry import advantage

HINT = "{question}\n\nA correct solution:\n\n{solution}\n\nNow solve the question yourself."


def solutions(
    accuracy: Sequence[float], texts: Sequence[str], group_B: Numbers
) -> list[str | None]:
    """Return for each response the group's first right response other than itself, or None."""
    index_B, groups = group_index(group_B, len(texts))
    right: list[list[int]] = [[] for _ in range(groups)]
    for row, (group, value) in enumerate(zip(index_B.tolist(), accuracy, strict=True)):
        if value == 1:
            right[group].append(row)
    others = ([i for i in right[group] if i != row] for row, group in enumerate(index_B.tolist()))
    return [texts[rows[0]] if rows else None for rows in others]


@advantage(inputs=("logprobs_BT", "hinted_logprobs_BT"), parts=("accuracy",), equal_accuracy=True)
def sdpo(
    rewards_B: Numbers,
    group_B: Numbers,
    *,
    logprobs_BT: torch.Tensor,
    hinted_logprobs_BT: torch.Tensor | None,
) -> torch.Tensor:
    """A_it = log pi(o_it | q', o_i<t) - log pi(o_it | q, o_i<t), in nats, float64 of shape (B, T).

    q' is the question with a right response of the same group in `HINT`. Without one the
    trainer gives equal log-probabilities, and A = 0. A group of right answers only has a signal,
    too; `algorithm.filter_groups` would evict it. `rewards_B` is not read. A pass over tokens
    drawn from pi makes this the gradient of the reverse KL from the policy to the teacher.
    ValueError without `hinted_logprobs_BT`, and for another shape.

    Source: the authors' code (lasgroup/SDPO at 0e6d510, `compute_self_distillation_loss`) with
    full_logit_distillation=False, alpha=1, is_clip=2. `method=sdpo` takes CISPO's loss, whose ratio
    is cut at 2, as there. Departures: the teacher is the policy that starts the step, not a moving
    average of weights (theirs: 0.05 a step); the same policy is the student in A at every
    mini-batch; a mini-batch is divided by all its tokens, not by those with a hint; no feedback of
    an environment; a hint keeps its `<think>` part (theirs loses it); a hint whose prompt is longer
    than `data.max_prompt_length` is left out (theirs: 10,240 tokens), so long responses teach less.
    The paper's main results compare the 100 likeliest tokens instead of one.
    """
    del rewards_B, group_B
    if hinted_logprobs_BT is None or hinted_logprobs_BT.shape != logprobs_BT.shape:
        raise ValueError(f"log-probabilities under the hint must have shape {logprobs_BT.shape}")
    return hinted_logprobs_BT.double() - logprobs_BT.double()
