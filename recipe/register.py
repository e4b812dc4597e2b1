"""Functions of this project under verl's names, for verl's own trainer.

    VERL_USE_EXTERNAL_MODULES=recipe.register python -m verl.trainer.main_ppo \\
        algorithm.adv_estimator=recipe/maxrl reward.custom_reward_function.path=pkg://recipe.register

``recipe/NAME`` is each advantage that needs only rewards and groups. `compute_score` is the grader.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from verl.trainer.ppo.core_algos import register_adv_est

from recipe.algorithms import ADVANTAGES


def estimator(advantage: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """Return an advantage as verl calls it: (rewards, mask, index) -> (advantages, returns).

    Both are B x T in the dtype of the rewards, computed in float64 as in `recipe.train`.
    """

    def estimate(
        token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: Any, **_: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        group_B = np.unique(np.asarray(index).astype(str), return_inverse=True)[1]
        values_B = advantage(token_level_rewards.double().sum(-1), group_B)
        advantages_BT = (values_B[:, None] * response_mask).to(token_level_rewards.dtype)
        return advantages_BT, advantages_BT

    return estimate


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    **_: Any,
) -> dict[str, Any]:
    """Return 1 or 0, and the answer, from the grader; `extra_info` may have the ``question``."""
    from prompt_aug.grading import grade  # needs math-verify, which verl does not
    from prompt_aug.questions import answer_texts

    found = grade(
        solution_str, answer_texts(ground_truth), question=(extra_info or {}).get("question")
    )
    return {
        "score": float(found.correct),
        "acc": float(found.correct),
        "pred": found.extracted or "",
    }


for _name, _function in ADVANTAGES.items():
    _facts = ADVANTAGES.facts(_name)
    if _facts.uses_rewards and not (_facts.inputs or _facts.rephrasings or _facts.critic):
        register_adv_est(f"recipe/{_name}")(estimator(_function))
