"""The advantages and the grader under verl's names, called as verl's trainer calls them."""

import dataclasses

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY
from verl.trainer.ppo.ray_trainer import compute_advantage
from verl.trainer.ppo.reward import get_custom_reward_fn

import recipe.register
from recipe.algorithms import ADVANTAGES
from recipe.algorithms.compute import compute_advantages
from recipe.start.functions import trial_batch

NAMES = ["dr_grpo", "grpo", "maxrl", "rloo"]


def test_advantages_of_rewards_and_groups_are_registered() -> None:
    ours = {name for name in ADV_ESTIMATOR_REGISTRY if str(name).startswith("recipe/")}
    assert ours == {f"recipe/{name}" for name in NAMES}
    assert {"ta_grpo", "seed_grpo", "gdpo"} <= set(ADVANTAGES)  # which need more


@pytest.mark.parametrize("name", NAMES)
def test_verl_computes_the_advantages_of_this_project(name: str) -> None:
    from verl import DataProto

    batch = trial_batch(8, 1)
    rewards_B = torch.rand(16, generator=torch.Generator().manual_seed(1)).double().float()
    rewards_B[8:] = 4 / 3  # equal: no signal, also after rounding
    batch = dataclasses.replace(batch, reward_B=rewards_B.double())
    section = {"name": name, "group": None, "arguments": None}
    settings = {"advantage": section, "weights": {"name": "none"}, "history": {"enable": False}}
    expected_BT = compute_advantages(batch, settings).advantages_BT
    order = torch.randperm(16, generator=torch.Generator().manual_seed(2))
    rewards_BT = torch.zeros(batch.mask_BT.shape)
    rewards_BT[torch.arange(16), torch.tensor(batch.lengths) - 1] = rewards_B
    tensors = {"token_level_rewards": rewards_BT, "response_mask": batch.mask_BT.long()}
    uids = np.array([f"q{group}" for group in batch.group_B.tolist()], dtype=object)
    data = DataProto.from_dict(
        {key: value[order] for key, value in tensors.items()}, {"uid": uids[order.numpy()]}
    )
    made = compute_advantage(data, f"recipe/{name}", config=OmegaConf.create({}))
    difference = made.batch["advantages"].double() - expected_BT.float().double()[order]
    assert difference.abs().max() < 1e-12
    assert expected_BT[:8].abs().max() > 0.1 and not expected_BT[8:].any()


def test_the_grader_is_verls_reward_function() -> None:
    function = {"path": "pkg://recipe.register", "name": "compute_score"}
    score = get_custom_reward_fn(OmegaConf.create({"reward": {"custom_reward_function": function}}))
    assert score is not None
    given = {"data_source": "s", "ground_truth": "1/2", "extra_info": {"question": "0.25 + 0.25?"}}
    right, wrong, echo = (
        score(solution_str=f"It is \\boxed{{{text}}}.", **given)
        for text in ("0.5", "0.6", "0.25 + 0.25")
    )
    assert right == {"score": 1.0, "acc": 1.0, "pred": "0.5"}
    assert (wrong["score"], echo["score"]) == (0.0, 0.0)
    for gold in (["1", "2"], {"target": ["2"]}, 2.0):
        assert recipe.register.compute_score("s", "\\boxed{2}", gold)["score"] == 1.0
