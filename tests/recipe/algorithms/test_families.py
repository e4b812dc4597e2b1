"""GDPO, SEED-GRPO, unlikeliness, GRPO-LEAD, AsymGRPO, Balanced Aggregation, 80/20, verl's.

Values by hand, the formulas of the authors' code on random batches, and laws.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from covariance_cases import close

from recipe.algorithms import ADVANTAGES, TOKEN_WEIGHTS
from recipe.algorithms.curriculum import nearest
from recipe.algorithms.dr_grpo import dr_grpo
from recipe.algorithms.hapo import length_reward
from recipe.algorithms.seed_grpo import seed_grpo, semantic_entropy

GDPO, UNLIKELY, LEAD, ASYM = (
    ADVANTAGES[name] for name in ("gdpo", "unlikeliness", "grpo_lead", "asym_grpo")
)


def batch(seed: int) -> dict[str, Any]:
    """24 responses in groups of 4, 5, 7 and 8 in mixed order, with 1 to 9 tokens each."""
    g = torch.Generator().manual_seed(seed)
    group_B = torch.repeat_interleave(torch.arange(4), torch.tensor([4, 5, 7, 8]))
    group_B = group_B[torch.randperm(24, generator=g)]
    accuracy = torch.randint(0, 2, (24,), generator=g).double()
    formats = torch.randint(0, 2, (24,), generator=g).double()
    lengths = torch.randint(1, 10, (24,), generator=g)
    mask_BT = torch.arange(9) < lengths[:, None]
    logprobs_BT = -torch.rand(24, 9, generator=g, dtype=torch.float64)
    return {
        **{"rewards_B": accuracy, "group_B": group_B, "accuracy": accuracy, "formats": formats},
        **{"lengths": lengths, "mask_BT": mask_BT, "logprobs_BT": logprobs_BT},
        "entropy_BT": torch.rand(24, 9, generator=g, dtype=torch.float64),
    }


def given(made: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: made[name] for name in ("rewards_B", "group_B", *names)}


# --- advantages -------------------------------------------------------------------------------


def test_gdpo_by_hand() -> None:
    """A format that one of four misses counts more than an answer that two of four miss."""
    accuracy, formats = [1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]
    a = 0.5 / (math.sqrt(1 / 3) + 1e-6)  # mean 1/2, squares 4/4, n - 1 = 3
    f, missed = 0.25 / (0.5 + 1e-6), -0.75 / (0.5 + 1e-6)  # mean 3/4, squares 12/16
    summed = np.array([a + f, a + f, f - a, missed - a])
    result = GDPO([2.0, 2.0, 1.0, 0.0], [3, 3, 3, 3], accuracy=accuracy, formats=formats)
    close(result, summed / (summed.std(ddof=1) + 1e-6))
    doubled = summed + np.array([f, f, f, missed])
    given = {"accuracy": accuracy, "formats": formats, "format_weight": 2.0}
    result = GDPO([2.0, 2.0, 1.0, 0.0], [3, 3, 3, 3], **given)
    close(result, doubled / (doubled.std(ddof=1) + 1e-6))


def test_unlikeliness_by_hand() -> None:
    mask_BT = torch.tensor([[1, 1], [1, 0], [1, 1], [1, 1]], dtype=torch.bool)
    logprobs_BT = torch.tensor([[-1.0, -3.0], [-1.0, 9.0], [-2.0, -2.0], [-0.5, -0.5]])
    # mean log p: -2, -1, -2, -0.5, so ranks 0, 2, 0, 3 in the group of 4
    shaped = [1.0, 1 - 0.25 * 2 / 4, 0.0, 1 - 0.25 * 3 / 4]
    result = UNLIKELY([1.0, 1.0, 0.0, 1.0], [5] * 4, mask_BT=mask_BT, logprobs_BT=logprobs_BT)
    close(result, ADVANTAGES["grpo"](shaped, [5] * 4))


def test_equal_responses_are_equally_likely() -> None:
    """Their log-probabilities differ by rounding between micro-batches and ranks."""
    mask_BT = torch.tensor([[1, 1], [1, 1], [1, 1], [1, 0]], dtype=torch.bool)
    logprobs_BT = torch.tensor([[-1.0, -3.0], [-1.0, -3.0], [-2.0, -2.0], [-0.5, 0.0]])
    rows = {"prompts": [torch.tensor([7])] * 4}
    rows["responses"] = [torch.tensor(ids) for ids in ([1, 2], [1, 2], [3, 4], [5])]
    given = {"mask_BT": mask_BT, **rows}
    wanted = UNLIKELY([1.0, 1.0, 0.0, 1.0], [5] * 4, logprobs_BT=logprobs_BT, **given)
    for row in range(2):
        computed_BT = logprobs_BT.double()
        computed_BT[row, 0] += 1e-7
        close(UNLIKELY([1.0, 1.0, 0.0, 1.0], [5] * 4, logprobs_BT=computed_BT, **given), wanted)
    # Under another prompt it is another likelihood.
    given["prompts"] = [torch.tensor([row]) for row in range(4)]
    result = UNLIKELY([1.0, 1.0, 0.0, 1.0], [5] * 4, logprobs_BT=computed_BT, **given)
    assert (result - wanted).abs().max() > 0.01


@pytest.mark.parametrize("seed", range(5))
def test_unlikeliness_is_the_authors_code(seed: int) -> None:
    """argsort of argsort of the mean log-probability, over the group, as ray_lean_trainer.py."""
    made = batch(seed)
    mean_B = (made["logprobs_BT"] * made["mask_BT"]).sum(1) / made["mask_BT"].sum(1)
    wanted = torch.zeros(24, dtype=torch.float64)
    for group in range(4):
        rows = made["group_B"] == group
        ranks = torch.argsort(torch.argsort(mean_B[rows])).double() / int(rows.sum())
        scores = made["rewards_B"][rows] * (1 - ranks * 0.25)
        wanted[rows] = (scores - scores.mean()) / (scores.std() + 1e-6)
    close(UNLIKELY(**given(made, "mask_BT", "logprobs_BT")), wanted, 1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_lead_is_the_authors_code(seed: int) -> None:
    """Its loop over groups, without the condition on 4000 tokens."""
    made = batch(seed)
    rewards = torch.where(made["accuracy"] == 1, 1.0, -1.0).double()
    wanted = torch.zeros(24, dtype=torch.float64)
    for group in range(4):
        rows = (made["group_B"] == group).nonzero().flatten().tolist()
        right = [i for i in rows if rewards[i] > 0]
        mean = sum(int(made["lengths"][i]) for i in right) / max(len(right), 1)
        std = 1.0
        if len(right) > 1:
            squares = sum((int(made["lengths"][i]) - mean) ** 2 for i in right)
            std = math.sqrt(squares / (len(right) - 1))
        for i in right:
            rewards[i] *= math.exp(-0.05 * (int(made["lengths"][i]) - mean) / (std + 1e-6))
        scores, rate = rewards[rows], len(right) / len(rows)
        for i in rows:
            score = (rewards[i] - scores.mean()) / (scores.std() + 1e-6)
            x = rate if score > 0 else 1 - rate
            wanted[i] = score * (0.4 + 1.1 / (1 + math.exp(10.0 * (x - 0.75))))
    close(LEAD(**given(made, "accuracy", "lengths")), wanted, 1e-9)


def test_asym_grpo_by_hand() -> None:
    """Pass rates 1/4 and 4/5, exponents 2 and 1/2: 3^2 and -(1/3)^(1/2); (1/4)^2 and -4^(1/2)."""
    accuracy, group_B = [1.0, 0, 0, 0, 1, 1, 1, 1, 0], [3, 3, 3, 3, 2, 2, 2, 2, 2]
    result = ASYM([9.0] * 9, group_B, accuracy=accuracy, positive=2.0, negative=0.5)
    close(result, [9, *[-math.sqrt(1 / 3)] * 3, *[1 / 16] * 4, -2])


OURS = {
    "gdpo": ("accuracy", "formats"),
    "unlikeliness": ("mask_BT", "logprobs_BT"),
    "grpo_lead": ("accuracy", "lengths"),
    "asym_grpo": ("accuracy",),
}


@pytest.mark.parametrize("name", OURS)
def test_the_order_of_rows_and_the_ids_of_groups_do_not_matter(name: str) -> None:
    made = batch(7)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(1))
    moved = {key: value[order] for key, value in made.items()}
    moved["group_B"] = 90 - 7 * moved["group_B"]
    result = ADVANTAGES[name](**given(moved, *OURS[name]))
    close(result, ADVANTAGES[name](**given(made, *OURS[name]))[order], 1e-9)


# --- token weights ----------------------------------------------------------------------------


def test_balanced_by_hand() -> None:
    """One positive response of 4 tokens, three negative of 1, 1 and 2: N = 8, P = 1.

    Two responses without a trained token, one of them in a group of its own, do not count.
    """
    lengths = torch.tensor([4, 1, 1, 2, 0, 0])
    advantages = torch.tensor([3.0, -1.0, -1.0, -1.0, 0.0, 0.0])
    mask_BT = torch.arange(4) < lengths[:, None]
    result = TOKEN_WEIGHTS["balanced"](
        -mask_BT.double(), advantages[:, None] * mask_BT, mask_BT, [*[0] * 5, 1]
    )
    wanted_B = torch.tensor([1 / 4 / 4 * 8, *[3 / 4 / 4 * 8] * 3, 0, 0], dtype=torch.float64)
    close(result, wanted_B[:, None] * mask_BT)


@pytest.mark.parametrize("seed", range(5))
def test_balanced_is_the_papers_loss(seed: int) -> None:
    """The mean over groups of n+/G mean+ + n-/G mean-, computed set by set."""
    made = batch(seed)
    mask_BT, loss_BT = made["mask_BT"], made["entropy_BT"]
    advantages_B = ADVANTAGES["grpo"](made["rewards_B"], made["group_B"])
    weights_BT = TOKEN_WEIGHTS["balanced"](
        made["logprobs_BT"], advantages_B[:, None] * mask_BT, mask_BT, made["group_B"]
    )
    result = (weights_BT * loss_BT)[mask_BT].mean()
    wanted = 0.0
    for group in range(4):
        rows = made["group_B"] == group
        for sign in (-1, 0, 1):
            subset = rows & (advantages_B.sign() == sign)
            if subset.any():
                mean = loss_BT[subset][mask_BT[subset]].mean()
                wanted += float(int(subset.sum()) / int(rows.sum()) * mean) / 4
    close(result, wanted)
    close(weights_BT[mask_BT].mean(), 1.0)


def test_high_entropy_by_hand() -> None:
    mask_BT = torch.tensor([[1, 1, 1], [1, 1, 0]], dtype=torch.bool)
    entropy_BT = torch.tensor([[0.1, 0.9, 0.3], [0.5, 0.2, 7.0]])  # the 7 is padding
    result = TOKEN_WEIGHTS["high_entropy"](
        -mask_BT.double(), mask_BT.double(), mask_BT, [0, 0], entropy_BT=entropy_BT, ratio=0.3
    )
    close(result, [[0, 2.5, 0], [2.5, 0, 0]])  # ceil(0.3 * 5) = 2 of 5 tokens


# --- verl's estimators ------------------------------------------------------------------------

VERL = {
    "opo": {},
    "rloo": {},
    "grpo": {},
    "grpo_vectorized": {"norm_adv_by_std_in_grpo": False},  # in verl a parameter, not a setting
    "grpo_passk": {},
    "reinforce_plus_plus": {"gamma": 0.5},
    "reinforce_plus_plus_baseline": {},
    "gdpo": {"gdpo_reward_weights": [1.0, 2.0]},
}


@pytest.mark.config  # imports verl
@pytest.mark.parametrize("name", VERL)
def test_verls_estimator_gets_what_verls_trainer_gives_it(name: str) -> None:
    from verl.trainer.config import AlgoConfig
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    made = batch(3)
    mask_BT = made["mask_BT"]
    inputs = {key: made[key] for key in ("mask_BT", "accuracy", "formats")}
    inputs["trained_B"] = torch.ones(24, dtype=torch.bool)
    function, arguments = ADVANTAGES.call({"name": f"verl:{name}", "arguments": VERL[name]})
    result, _ = function(made["rewards_B"], made["group_B"], **inputs, **arguments)
    scores_BT = torch.zeros(24, 9)
    scores_BT[torch.arange(24), made["lengths"] - 1] = made["rewards_B"].float()
    ones = torch.ones(24, 1, dtype=torch.int64)
    components = {
        "non_tensor_batch": {"accuracy": made["accuracy"], "format": made["formats"]},
        "batch": {"prompts": ones, "attention_mask": torch.cat([ones, mask_BT.long()], 1)},
    }
    wanted, _ = get_adv_estimator_fn(name)(
        token_level_rewards=scores_BT,
        response_mask=mask_BT.long(),
        index=np.array([f"uid-{i}" for i in made["group_B"]], dtype=object),
        config=AlgoConfig(gdpo_reward_keys=["accuracy", "format"], **VERL[name]),
        **(components if name == "gdpo" else {}),
        **(VERL[name] if name == "grpo_vectorized" else {}),
    )
    close(result, wanted.double() * mask_BT, 1e-6)
    assert result.abs().max() > 0.1


@pytest.mark.config
def test_the_baseline_of_opo_is_over_all_rows() -> None:
    """Rewards 1, 0, 1 of 1, 2 and 3 tokens: (1 + 3) / 6. The last row is not trained."""
    mask_BT = torch.arange(3) < torch.tensor([1, 2, 3])[:, None]
    trained_B = torch.tensor([True, True, False])
    function = ADVANTAGES.resolve("verl:opo")
    result, _ = function([1.0, 0.0, 1.0], [0] * 3, mask_BT=mask_BT, trained_B=trained_B)
    close(result[:2], [[1 / 3, 0, 0], [-2 / 3, -2 / 3, 0]], 1e-6)


@pytest.mark.config
def test_gae_by_hand() -> None:
    """Two responses of two tokens, rewards 1 and 0, gamma 1, lambda 0.5; a third is not trained."""
    inputs = {
        "mask_BT": torch.ones(3, 2, dtype=torch.bool),
        "values_BT": torch.tensor([[0.5, 0.25], [0.5, 0.0], [0.1, 0.9]]),
        "trained_B": torch.tensor([True, True, False]),
    }
    section = {"name": "verl:gae", "arguments": {"gamma": 1.0, "lam": 0.5}}
    function, arguments = ADVANTAGES.call(section)
    result, returns = function([1.0, 0.0, 1.0], [0, 1, 2], **inputs, **arguments)
    # delta = (-0.25, 0.75), (-0.5, 0); A_1 = delta_1 + 0.5 A_2
    raw = torch.tensor([[0.125, 0.75], [-0.5, 0.0]], dtype=torch.float64)
    close(result[:2], (raw - raw.mean()) / raw.std(), 1e-6)
    assert not result[2].any()
    # The critic learns of all three: delta = (0.8, 0.1), A_1 = 0.8 + 0.5 x 0.1.
    raw = torch.cat([raw, torch.tensor([[0.85, 0.1]], dtype=torch.float64)])
    close(returns, raw + inputs["values_BT"], 1e-6)
    inputs["trained_B"] = torch.zeros(3, dtype=torch.bool)
    result, again = function([1.0, 0.0, 1.0], [0, 1, 2], **inputs, **arguments)
    assert not result.any() and torch.equal(again, returns)
    assert ADVANTAGES.facts("verl:gae").critic and not ADVANTAGES.facts("verl:opo").critic


SEED_REWARDS, SEED_GROUP = [1.0, 1.0, 0.0, 0.0, 1.0, 0.0], [0, 0, 0, 0, 1, 1]
ANSWERS = ["right", "right", "4", "5", "right", "7"]


@pytest.mark.parametrize(
    ("answers", "entropy"),
    [
        (["4", "4", "4"], 0.0),
        (["4", "5", "6", "7"], math.log(4)),
        # shares 1/2, 1/4, 1/4: -(log 1/2 + 2 log 1/4) / 3 = 5/3 log 2
        (["4", "4", "5", "6"], 5 / 3 * math.log(2)),
        (["4", "4", "", ""], 5 / 3 * math.log(2)),  # each without an answer is its own cluster
        ([], 0.0),
    ],
)
def test_semantic_entropy_by_hand(answers: list[str], entropy: float) -> None:
    assert semantic_entropy(answers) == pytest.approx(entropy)


def test_seed_grpo_by_hand() -> None:
    """Group 0: R - mean = +-1/2, SE / log 4 = 5/6; group 1: +-1/2, SE = log 2 is the largest."""
    result = seed_grpo(SEED_REWARDS, SEED_GROUP, answers=ANSWERS, alpha=1.0)
    assert result.tolist() == pytest.approx([1 / 12, 1 / 12, -1 / 12, -1 / 12, 0, 0])
    half = seed_grpo(SEED_REWARDS, SEED_GROUP, answers=ANSWERS, alpha=0.5)
    assert half.tolist() == pytest.approx([7 / 24, 7 / 24, -7 / 24, -7 / 24, 1 / 4, -1 / 4])


@pytest.mark.parametrize("given", [{}, {"answers": ["x"] * 6}, {"answers": ANSWERS, "alpha": 0.0}])
def test_without_disagreement_or_alpha_it_is_dr_grpo(given: dict) -> None:
    assert torch.equal(
        seed_grpo(SEED_REWARDS, SEED_GROUP, **given), dr_grpo(SEED_REWARDS, SEED_GROUP)
    )


def test_the_order_of_rows_does_not_matter_to_seed_grpo() -> None:
    order = [4, 2, 0, 5, 3, 1]
    rewards, group, answers = ([x[i] for i in order] for x in (SEED_REWARDS, SEED_GROUP, ANSWERS))
    wanted = seed_grpo(SEED_REWARDS, SEED_GROUP, answers=ANSWERS)
    assert torch.allclose(seed_grpo(rewards, group, answers=answers), wanted[order])


# ------------------------------------------------------------------------- history
# Statistics of a question: HAPO's length reward (arXiv 2505.11225), the curriculum's choice.


H = 60  # tokens of the shortest correct response so far


@pytest.mark.parametrize(
    ("length", "right", "wrong"),
    [
        (0, 1.0, 0.0),
        (20, math.sqrt(3) / 2, 0.0),  # cos 30 degrees
        (30, math.sqrt(2) / 2, 0.0),  # cos 45 degrees
        (40, 0.5, 0.0),  # cos 60 degrees
        (80, -0.5, -0.5),  # cos 120 degrees
        (90, -0.7, -math.sqrt(2) / 2),  # cos 135 degrees is -0.7071, below the floor
        (100, -0.7, -math.sqrt(3) / 2),
        (120, -0.7, -1.0),  # cos 180 degrees
        (180, -0.7, -1.0),  # constant from here: cos 270 degrees would be 0 again, and 360 be 1
        (240, -0.7, -1.0),
    ],
)
def test_length_reward_by_hand(length: int, right: float, wrong: float) -> None:
    assert length_reward(length, H, True) == pytest.approx(right, abs=1e-15)
    assert length_reward(length, H, False) == pytest.approx(wrong, abs=1e-15)


def test_special_length_rewards_are_exact() -> None:
    assert math.cos(math.pi / 2) != 0.0  # the condition of this test
    for correct in (True, False):
        assert {length_reward(n, n, correct) for n in (1, 3, 7, 49, 3071, 10**6)} == {0.0}
        assert {length_reward(n, None, correct) for n in (0, 1, 5000)} == {0.0}


@pytest.mark.parametrize(
    ("count", "chosen"),
    [(0, []), (1, [4]), (2, [4, 5]), (3, [3, 4, 5]), (4, [1, 3, 4, 5]), (5, [0, 1, 3, 4, 5])],
)
def test_the_choice_by_hand(count: int, chosen: list[int]) -> None:
    """Two candidates have distance 0: the earlier one is taken first."""
    assert nearest([1.0, 0.875, 0.0, 0.625, 0.5, 0.5], 0.5, count) == chosen


@pytest.mark.parametrize("rates", [[0.3, 0.7], [0.7, 0.3]])
def test_equal_distances_on_both_sides_are_a_tie(rates: list[float]) -> None:
    """In floats 0.7 is nearer to 0.5 than 0.3 is; the earlier candidate must win all the same."""
    assert abs(0.7 - 0.5) < abs(0.3 - 0.5)  # the condition of this test
    assert nearest(rates, 0.5, 1) == [0]
