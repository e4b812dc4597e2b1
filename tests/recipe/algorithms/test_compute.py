"""From rewards to token advantages: groups, weights, excluded rows, user functions."""

import functools
from typing import Any

import pytest
import torch
from covariance_cases import close, token_covariance
from omegaconf import OmegaConf
from rollout_batches import synthetic

from recipe.algorithms import ADVANTAGES, TOKEN_WEIGHTS
from recipe.algorithms.clip_cov import clip_cov
from recipe.algorithms.compute import compute_advantages, logprob_temperature
from recipe.algorithms.covariance import covariance_metrics
from recipe.algorithms.registry import Facts, Registry, advantage
from recipe.algorithms.rollouts import RolloutBatch
from recipe.algorithms.tokens import BLOCK, row_sums, validated
from recipe.errors import ConfigError
from recipe.start.functions import trial_batch

# One group of one question: two responses to q^0 (both right), two to q^1 (one right).
REWARDS = [1.0, 1.0, 1.0, 0.0]
LOGPROBS = [[-1.0, -2.0], [-0.5, -0.1], [-3.0, 0.0], [-1.0, -4.0]]
MASK = [[1, 1], [1, 1], [1, 0], [1, 1]]


def rollouts(**changes: Any) -> RolloutBatch:
    return synthetic(REWARDS, LOGPROBS, MASK, [0] * 4, [0, 0, 1, 1], **changes)


def settings(name: str = "grpo", weights: str = "none", changes: Any = None) -> Any:
    chosen = {
        "advantage": {"name": name, "arguments": None},
        "weights": {
            "name": weights,
            "gaussian_covariance": {"preset": "paper", "sigma": None},
            "clip_cov": {"ratio": 1.0, "lower": 0.5, "upper": 9.0},
        },
        "history": {"enable": False},
    }
    return OmegaConf.merge(OmegaConf.create(chosen), OmegaConf.create(changes or {}))


def unweighted(batch: RolloutBatch) -> torch.Tensor:
    return compute_advantages(batch, settings()).advantages_BT


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        # mean 3/4, unbiased std sqrt((3/16 + 9/16) / 3) = 1/2
        ("ta_grpo", [[0.5, 0.5], [0.5, 0.5], [0.5, 0], [-1.5, -1.5]]),
        # q^0: zero variance; q^1: mean 1/2, std sqrt(1/2), A = +-1/sqrt(2)
        ("ta_grpo_star", [[0, 0], [0, 0], [0.5**0.5, 0], [-(0.5**0.5)] * 2]),
    ],
)
def test_joint_and_separate_groups_by_hand(name: str, wanted: list) -> None:
    close(compute_advantages(rollouts(), settings(name)).advantages_BT, wanted, 1e-5)


def test_weights_multiply_the_advantages_and_are_logged() -> None:
    plain = compute_advantages(rollouts(), settings())
    weighted = compute_advantages(rollouts(), settings(weights="gaussian_covariance"))
    real = torch.tensor(MASK).bool()
    ratio = (weighted.advantages_BT / plain.advantages_BT)[real]
    assert ratio.mean().item() == pytest.approx(1.0)  # the weights of a group have mean 1
    assert ratio.min().item() == pytest.approx(weighted.metrics["weights/min"])
    assert weighted.metrics["weights/effective_tokens"] == pytest.approx(
        (ratio.sum() ** 2 / (7 * (ratio**2).sum())).item()
    )
    assert weighted.advantages_BT[~real].tolist() == [0.0]
    assert plain.metrics["covariance/std"] == weighted.metrics["covariance/std"] > 0


def test_weights_use_log_probabilities_at_their_own_temperature() -> None:
    shifted_BT = torch.tensor([[-2.0, -2.0], [-0.1, -0.1], [-9.0, 0.0], [-1.0, -1.0]]).double()
    wanted = settings(weights="gaussian_covariance")
    here = compute_advantages(rollouts(), wanted)
    there = compute_advantages(rollouts(weight_logprobs_BT=shifted_BT), wanted)
    assert not torch.allclose(here.advantages_BT, there.advantages_BT)
    assert logprob_temperature(wanted.weights) is None  # the rollout's
    code = {"preset": "official_code"}
    for name, section, result in (
        ("gaussian_covariance", code, 1.0),
        ("gaussian_covariance", {**code, "logprob_temperature": 0.7}, 0.7),
        ("none", code, None),
    ):
        assert logprob_temperature({"name": name, "gaussian_covariance": section}) == result


def large(filler: bool) -> RolloutBatch:
    """Eight groups of four responses of 16 tokens; the last four may be filler groups."""
    random = torch.Generator().manual_seed(0)
    logprobs_BT = -torch.rand(32, 16, generator=random).double() * 6
    rewards_B = torch.rand(32, generator=random).double()
    trained_B = (torch.arange(32) < 16) | torch.tensor(not filler)
    groups = [i // 4 for i in range(32)]
    return synthetic(
        rewards_B.tolist(), logprobs_BT, torch.ones(32, 16), groups, trained_B=trained_B
    )


def test_filler_groups_take_part_in_no_draw_and_no_statistics() -> None:
    clip = {"ratio": 0.05, "lower": 0.1, "upper": 50.0}
    wanted = settings(weights="clip_cov", changes={"weights": {"clip_cov": clip}})
    half = large(filler=True)
    made = compute_advantages(half, wanted)
    assert (made.advantages_BT[16:] == 0).all()
    # int(0.05 x 256 trained tokens), all of them among the trained
    assert int((made.advantages_BT[:16] == 0).sum()) == 12
    assert made.metrics["weights/zero"] == pytest.approx(12 / 256)
    # Negative control: if those groups are trained, some draws fall on them.
    full = compute_advantages(large(filler=False), wanted)
    assert int((full.advantages_BT[16:] == 0).sum()) > 5
    tokens = (half.logprobs_BT[:16], unweighted(half)[:16], torch.ones(16, 16), half.group_B[:16])
    expected = covariance_metrics(token_covariance(*tokens), torch.ones(16, 16))
    assert {key: made.metrics[key] for key in expected} == expected
    drawn = clip_cov(*tokens, **clip, key_B=half.key_B[:16])
    assert torch.equal(drawn == 0, made.advantages_BT[:16] == 0)
    assert not torch.equal(clip_cov(*tokens, **clip), drawn)  # without the keys of the rows


def test_an_excluded_response_still_counts_in_its_group() -> None:
    kept = torch.tensor([True, False, True, True])
    made = compute_advantages(rollouts(trained_B=kept), settings())
    assert made.advantages_BT[1].tolist() == [0, 0]
    assert torch.equal(made.advantages_BT[kept], unweighted(rollouts())[kept])


def test_hapo_by_hand() -> None:
    """h = 2 tokens for all: l = 2 right gets 0, l = 1 right cos(pi/4) / 2, l = 2 wrong 0."""
    history = {"enable": True, "weight": 0.5}
    made = compute_advantages(
        rollouts(shortest=[2, None, 2, 2]), settings(changes={"history": history})
    )
    assert made.rewards_B.tolist() == pytest.approx([1, 1, 1 + 0.5 * 0.5**0.5, 0])
    assert made.metrics["history/known"] == 0.75
    assert made.metrics["history/reward"] == pytest.approx(0.5 * 0.5**0.5 / 4)
    half_right = rollouts(shortest=[2, None, 2, 2], accuracy=[1.0, 1.0, 0.5, 0.0])
    made = compute_advantages(half_right, settings(changes={"history": history}))
    assert made.rewards_B.tolist() == [1, 1, 1, 0]  # graded as wrong: no reward for being short
    off = compute_advantages(rollouts(shortest=[2, None, 2, 2]), settings())
    assert off.rewards_B.tolist() == REWARDS


@pytest.mark.parametrize("rows", [0, 1, BLOCK, 2 * BLOCK + 1])
def test_sums_by_blocks_of_rows_are_those_of_the_whole(rows: int) -> None:
    draw = torch.Generator().manual_seed(rows)
    left, right = torch.randn(2, rows, 30, dtype=torch.float64, generator=draw)
    assert torch.equal(row_sums(torch.mul, left, right), (left * right).sum(1))


@pytest.mark.parametrize("beyond", [0.0, -7.0, float("nan"), float("-inf")])
def test_values_where_the_mask_is_0_are_ignored(beyond: float) -> None:
    matrix = torch.tensor([[-1.0, -2.0], [-3.0, beyond]], dtype=torch.float64)
    tokens = validated(matrix, torch.ones(2, 2), [[1, 1], [1, 0]], [0, 0])
    assert tokens.logprobs_BT.tolist() == [[-1.0, -2.0], [-3.0, 0.0]]
    assert tokens.advantages_BT.tolist() == [[1.0, 1.0], [1.0, 0.0]]
    assert tokens.mean(tokens.logprobs_BT, "group").tolist() == [-2.0, -2.0]


def test_an_advantage_receives_the_answers_that_it_requires() -> None:
    sections = settings("seed_grpo", changes={"advantage": {"arguments": {"alpha": 1}}})
    same = compute_advantages(rollouts(answers=["right"] * 3 + ["3"]), sections)
    different = compute_advantages(rollouts(answers=["right", "4", "5", "3"]), sections)
    assert different.advantages_BT.abs().max() == 0  # four different answers: entropy is log 4
    assert same.advantages_BT.abs().max() > 0


# ------------------------------------------------------------------------- registry
# Functions of this folder are found by themselves; a user's own by its path, from anywhere.


def test_every_algorithm_of_the_folder_is_registered() -> None:
    names = (
        "grpo dr_grpo ta_grpo ta_grpo_star rloo maxrl none seed_grpo gdpo unlikeliness "
        "grpo_lead asym_grpo sdpo"
    )
    assert set(ADVANTAGES) == set(names.split())
    assert set(TOKEN_WEIGHTS) == {"gaussian_covariance", "clip_cov", "balanced", "high_entropy"}
    assert ADVANTAGES.facts("maxrl") == Facts(nonnegative_rewards=True)
    assert ADVANTAGES.facts("ta_grpo_star").group == "rephrasing"


def test_the_arguments_are_plain_lists_as_in_the_launch_checks() -> None:
    section = OmegaConf.create({"name": "math.dist", "arguments": {"p": [1], "q": {"a": [2]}}})
    arguments = ADVANTAGES.call(section)[1]
    assert type(arguments["p"]) is list and type(arguments["q"]["a"]) is list


def test_a_partial_has_the_facts_of_its_function(monkeypatch: pytest.MonkeyPatch) -> None:
    function = functools.partial(ADVANTAGES["ta_grpo_star"])
    monkeypatch.setattr("math.own", function, raising=False)
    assert ADVANTAGES.facts("math.own").group == "rephrasing"
    advantage(group="question")(function)  # its own
    assert ADVANTAGES.facts("math.own").group == "question"


def test_a_function_that_writes_into_its_arguments_changes_no_reward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def centred(rewards_B: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
        rewards_B -= rewards_B.mean()
        return rewards_B

    def sized(logprobs_BT: Any, advantages_BT: Any, mask_BT: Any, group_B: Any) -> torch.Tensor:
        return advantages_BT.abs_()

    monkeypatch.setattr("math.centred", centred, raising=False)
    monkeypatch.setattr("math.sized", sized, raising=False)
    batch = trial_batch(4, 1)
    recipe = {"advantage": {"name": "math.centred"}, "weights": {"name": "math.sized"}}
    made = compute_advantages(batch, {**recipe, "history": {"enable": False}}, "token-mean")
    assert made.rewards_B.tolist() == batch.accuracy
    assert made.advantages_BT.min() == -0.25  # -1/2 by its size of 1/2


def test_a_dotted_path_is_resolved_and_its_arguments_are_passed() -> None:
    registry = Registry("some.name")
    assert registry.resolve("recipe.algorithms.grpo.grpo") is ADVANTAGES["grpo"]
    for arguments, passed in (({"x": 1}, {"x": 1}), (None, {})):
        assert registry.call({"name": "math.sqrt", "arguments": arguments})[1] == passed
    with pytest.raises(ConfigError, match=r"some\.name=sqrt"):
        registry.resolve("sqrt")
