"""From rewards to token advantages: groups, weights, what is left out, functions from outside."""

from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from rollout_batches import synthetic

from recipe.algorithms.clip_cov import clip_cov
from recipe.algorithms.compute import compute_advantages, group_of, logprob_temperature
from recipe.algorithms.covariance import covariance_metrics, token_covariance
from recipe.algorithms.rollouts import RolloutBatch
from recipe.errors import ConfigError

# One group of one question: two responses to q^0 (both right), two to q^1 (one right).
REWARDS = [1.0, 1.0, 1.0, 0.0]
LOGPROBS = [[-1.0, -2.0], [-0.5, -0.1], [-3.0, 0.0], [-1.0, -4.0]]
MASK = [[1, 1], [1, 1], [1, 0], [1, 1]]


def rollouts(**changes: Any) -> RolloutBatch:
    return synthetic(REWARDS, LOGPROBS, MASK, [0] * 4, [0, 0, 1, 1], **changes)


def settings(
    name: str = "grpo", group: str | None = None, weights: str = "none", changes: Any = None
) -> Any:
    chosen = {
        "advantage": {"name": name, "group": group, "arguments": None},
        "weights": {
            "name": weights,
            "gaussian_covariance": {"preset": "paper", "sigma": None},
            "clip_cov": {"ratio": 1.0, "lower": 0.5, "upper": 9.0},
        },
        "history": {"enable": False},
    }
    return OmegaConf.merge(OmegaConf.create(chosen), OmegaConf.create(changes or {}))


def test_joint_and_per_rephrasing_normalisation_by_hand() -> None:
    joint = compute_advantages(rollouts(), settings("ta_grpo")).advantages_BT
    # mean 3/4, unbiased std sqrt((3/16 + 9/16) / 3) = 1/2: A = 1/2, 1/2, 1/2, -3/2
    expected = torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.5, 0.0], [-1.5, -1.5]]).double()
    torch.testing.assert_close(joint, expected, atol=1e-5, rtol=0)
    star = compute_advantages(rollouts(), settings("ta_grpo_star")).advantages_BT
    # q^0's group has no signal; q^1's: mean 1/2, std sqrt(1/2): A = +-1/sqrt(2)
    half = 0.5**0.5
    expected = torch.tensor([[0, 0], [0, 0], [half, 0], [-half, -half]]).double()
    torch.testing.assert_close(star, expected, atol=1e-5, rtol=0)
    corner = compute_advantages(rollouts(), settings("grpo", "rephrasing")).advantages_BT
    torch.testing.assert_close(corner, star)
    assert not torch.allclose(joint, star)  # the two groupings do differ
    assert group_of(settings("ta_grpo_star").advantage) == "rephrasing"


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
    assert "weights/min" not in plain.metrics
    assert plain.metrics["covariance/std"] == weighted.metrics["covariance/std"] > 0


def test_weights_see_the_log_probabilities_that_they_ask_for() -> None:
    """At another temperature: the weights change, the advantages under them do not."""
    other = torch.tensor([[-2.0, -2.0], [-0.1, -0.1], [-9.0, 0.0], [-1.0, -1.0]]).double()
    wanted = settings(weights="gaussian_covariance")
    here = compute_advantages(rollouts(), wanted)
    there = compute_advantages(rollouts(weight_logprobs_BT=other), wanted)
    assert not torch.allclose(here.advantages_BT, there.advantages_BT)
    assert logprob_temperature(wanted.weights) is None  # the rollout's
    code = {"gaussian_covariance": {"preset": "official_code"}}
    assert logprob_temperature({"name": "gaussian_covariance", **code}) == 1.0
    code["gaussian_covariance"]["logprob_temperature"] = 0.7
    assert logprob_temperature({"name": "gaussian_covariance", **code}) == 0.7
    assert logprob_temperature({"name": "none", **code}) is None


def test_clipped_tokens_lose_their_advantage_and_a_seed_draws_the_same() -> None:
    plain = compute_advantages(rollouts(), settings()).advantages_BT
    wanted = settings(weights="clip_cov")
    clipped, again = (compute_advantages(rollouts(seed=3), wanted) for _ in range(2))
    assert clipped.metrics["weights/zero"] > 0
    assert torch.equal(clipped.advantages_BT, again.advantages_BT)
    drawn = clipped.advantages_BT
    assert torch.equal(drawn[drawn != 0], plain[drawn != 0])


def large(filled: bool) -> RolloutBatch:
    """Eight groups of four responses of 16 tokens; four of the groups only fill up the batch."""
    random = torch.Generator().manual_seed(0)
    logprobs_BT = -torch.rand(32, 16, generator=random).double() * 6
    rewards_B = torch.rand(32, generator=random).double()
    trained_B = torch.arange(32) < 16
    groups = [i // 4 for i in range(32)]
    return synthetic(
        rewards_B.tolist(),
        logprobs_BT,
        torch.ones(32, 16),
        groups,
        trained_B=trained_B if filled else torch.ones(32, dtype=torch.bool),
    )


def test_groups_that_only_fill_up_the_batch_leave_before_draws_and_statistics() -> None:
    """They would take draws from the trained ones: 29 of 64 in a batch where half was filled up."""
    clip = {"ratio": 0.05, "lower": 0.1, "upper": 50.0}
    wanted = settings(weights="clip_cov", changes={"weights": {"clip_cov": clip}})
    made = compute_advantages(large(filled=True), wanted)
    assert (made.advantages_BT[16:] == 0).all()
    # int(0.05 x 256 trained tokens), all of them among the trained
    assert int((made.advantages_BT[:16] == 0).sum()) == 12
    assert made.metrics["weights/zero"] == pytest.approx(12 / 256)
    # negative control: with the other groups in it, draws fall there as well
    whole = compute_advantages(large(filled=False), wanted)
    assert int((whole.advantages_BT[16:] == 0).sum()) > 5
    half = large(filled=True)
    tokens = (half.logprobs_BT[:16], plain(half)[:16], torch.ones(16, 16), half.group_B[:16])
    expected = covariance_metrics(token_covariance(*tokens), torch.ones(16, 16))
    assert {key: made.metrics[key] for key in expected} == expected
    drawn = clip_cov(*tokens, **clip, key_B=half.key_B[:16])
    assert torch.equal(drawn == 0, made.advantages_BT[:16] == 0)


def plain(batch: RolloutBatch) -> torch.Tensor:
    return compute_advantages(batch, settings()).advantages_BT


def test_a_response_that_is_left_out_still_counts_in_its_group() -> None:
    out = torch.tensor([True, False, True, True])
    made = compute_advantages(rollouts(trained_B=out), settings())
    assert made.advantages_BT[1].tolist() == [0, 0]
    assert torch.equal(made.advantages_BT[out], plain(rollouts())[out])


def test_hapo_by_hand() -> None:
    """h = 2 tokens for all: l = 2 right gets 0, l = 1 right cos(pi/4) / 2, l = 2 wrong 0."""
    history = {"enable": True, "weight": 0.5, "floor": -0.7}
    made = compute_advantages(
        rollouts(shortest=[2, None, 2, 2]), settings(changes={"history": history})
    )
    assert made.rewards_B.tolist() == pytest.approx([1, 1, 1 + 0.5 * 0.5**0.5, 0])
    assert made.metrics["history/known"] == 0.75
    assert made.metrics["history/reward"] == pytest.approx(0.5 * 0.5**0.5 / 4)
    off = compute_advantages(rollouts(shortest=[2, None, 2, 2]), settings())
    assert off.rewards_B.tolist() == REWARDS and "history/known" not in off.metrics


def test_answers_reach_an_advantage_that_asks_for_them() -> None:
    sections = settings("seed_grpo", changes={"advantage": {"arguments": {"alpha": 1}}})
    same = compute_advantages(rollouts(answers=["right"] * 3 + ["3"]), sections)
    torn = compute_advantages(rollouts(answers=["right", "4", "5", "3"]), sections)
    assert torn.advantages_BT.abs().max() == 0  # four different answers: entropy is log 4
    assert same.advantages_BT.abs().max() > 0


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"advantage": {"name": "gpro"}}, "advantage.name=gpro: known are .*grpo.*dotted path"),
        (
            {"weights": {"name": "gauss"}},
            "weights.name=gauss: known are balanced, clip_cov, gaussian",
        ),
        ({"advantage": {"name": "no_such.module.f"}}, "No module named 'no_such'.*PYTHONPATH"),
        ({"advantage": {"name": "recipe.algorithms.grpo.nope"}}, "has no attribute 'nope'"),
        ({"advantage": {"name": "recipe.algorithms.grpo.EPSILON"}}, "is not a function"),
        (
            {"advantage": {"name": "seed_grpo", "arguments": {"alpha": 2}}},
            r"recipe.advantage.arguments: alpha=2.0 must lie in \[0, 1\]",
        ),
        (
            {"weights": {"name": "clip_cov", "clip_cov": {"ratio": 0}}},
            "recipe.weights.clip_cov: ratio=0.0",
        ),
    ],
)
def test_what_is_not_there_is_named(sections: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compute_advantages(rollouts(), settings(changes=sections))


def bad_shape(rewards_B: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
    return rewards_B[:2]


def not_finite(rewards_B: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
    return rewards_B / 0


@pytest.mark.parametrize("name", ["bad_shape", "not_finite"])
def test_a_wrong_result_of_a_function_from_outside_stops_the_step(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from recipe.algorithms import ADVANTAGES

    monkeypatch.setitem(ADVANTAGES, "mine", globals()[name])
    with pytest.raises(ValueError, match=r"advantages of shape .* must be finite and of shape"):
        compute_advantages(rollouts(), settings("mine"))
