"""CW-GRPO's gradient through w: equal to autograd of the authors' loss."""

import functools
import itertools
from typing import Any

import pytest
import torch
from covariance_cases import close, example
from omegaconf import OmegaConf
from rollout_batches import synthetic

from recipe.algorithms.compute import compute_advantages, ratio_temperature
from recipe.algorithms.cw_grpo import CHOICES, PRESETS, gaussian_covariance, through_weights
from recipe.algorithms.tokens import validated
from recipe.config.compose import compose_config
from recipe.start.algorithm import known_token_weight
from recipe.start.rules import Setup

RESPONSE, TOKEN = "seq-mean-token-mean", "token-mean"
MODES = [RESPONSE, TOKEN]
WORDS, WIDTH, ROWS = 11, 12, 12
GROUP = [0] * 6 + [1] * 6


@functools.cache
def batch(seed: int) -> tuple[torch.Tensor, ...]:
    """Features, a parameter matrix, sampled words, mask and advantages of two groups."""
    random = torch.Generator().manual_seed(seed)
    features = torch.randn(ROWS, WIDTH, 6, generator=random).double()
    theta = torch.randn(6, WORDS, generator=random).double()
    chances = (features @ theta).softmax(-1).view(-1, WORDS)
    words_BT = torch.multinomial(chances, 1, generator=random).view(ROWS, WIDTH)
    lengths_B = torch.randint(1, WIDTH, (ROWS,), generator=random)
    lengths_B[-1] = WIDTH
    mask_BT = (torch.arange(WIDTH)[None] < lengths_B[:, None]).double()
    rewards = torch.tensor([[1.0, 0, 0, 0, 1, 0], [1, 1, 0, 1, 1, 0]]).double()
    advantages = (rewards - rewards.mean(1, keepdim=True)) / rewards.std(1, keepdim=True)
    return features, theta, words_BT, mask_BT, advantages.flatten()


def logprobs(features: torch.Tensor, theta: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    every = (features @ theta).log_softmax(-1)
    return every.gather(-1, words[..., None]).squeeze(-1)


def authors_gradient(seed: int, mode: str, choices: dict[str, str]) -> torch.Tensor:
    """The gradient of mean(w r A) in theta, w with its graph: sums over a batch of whole groups.

    Written from the paper's formula and the four choices that it leaves open; no 1e-8 in sigma.
    """
    features, theta, words, mask, advantages = batch(seed)
    theta = theta.clone().requires_grad_()
    x = logprobs(features, theta, words)
    groups = [[i for i in range(ROWS) if GROUP[i] == g] for g in (0, 1)]
    covariances: dict[int, torch.Tensor] = {}
    for rows in groups:
        real = [(i, t) for i in rows for t in range(WIDTH) if mask[i, t]]
        for i in rows:
            own = [t for t in range(WIDTH) if mask[i, t]]
            over = {
                "sequence": x[i, own],
                "group": torch.stack([x[place] for place in real]),
                "batch": x[mask == 1],
            }[choices["centre"]]
            a = {
                "responses": advantages[rows].mean(),
                "tokens": torch.stack([advantages[i] for i, _ in real]).mean(),
                "batch": (advantages[:, None] * mask).sum() / mask.sum(),
            }[choices["advantage_centre"]]
            covariances[i] = (x[i, own] - over.mean()) * (advantages[i] - a)
    kernels: dict[int, torch.Tensor] = {}
    for rows in groups:
        scope = rows if choices["sigma"] == "group" else range(ROWS)
        sigma = torch.cat([covariances[i] for i in scope]).std(unbiased=False)
        for i in rows:
            kernels[i] = torch.exp(-(covariances[i] ** 2) / (2 * sigma**2))
    total = torch.zeros((), dtype=torch.float64)
    for rows in groups:
        scope = range(ROWS) if choices["normaliser"] == "batch" else rows
        count = sum(len(kernels[i]) for i in scope)
        if choices["normaliser"] == "padded":
            count = len(rows) * max(len(kernels[i]) for i in rows)
        for i in rows:
            w = kernels[i] * count / torch.cat([kernels[j] for j in scope]).sum()
            own = x[i, : len(w)]
            loss = w * (own - own.detach()).exp() * advantages[i]
            total = total + (loss.mean() / ROWS if mode == RESPONSE else loss.sum() / mask.sum())
    return torch.autograd.grad(total, theta)[0]


def our_gradient(seed: int, mode: str, choices: dict[str, str]) -> torch.Tensor:
    """The gradient of verl's loss on A_eff, at the first update."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.workers.config.actor import ActorConfig

    features, theta, words, mask, advantages = batch(seed)
    inputs = (logprobs(features, theta, words), advantages[:, None] * mask, mask, GROUP)
    effective_BT = sum_of(inputs, mode, choices)
    assert not effective_BT[mask == 0].any()
    theta = theta.clone().requires_grad_()
    x = logprobs(features, theta, words)
    config = ActorConfig(
        strategy="fsdp", rollout_n=6, ppo_micro_batch_size_per_gpu=ROWS, loss_agg_mode=mode
    )
    loss, _ = get_policy_loss_fn("vanilla")(x.detach(), x, effective_BT, mask, mode, config)
    return -torch.autograd.grad(loss, theta)[0]


def parts(inputs: Any, mode: str, choices: dict[str, str]) -> tuple[torch.Tensor, torch.Tensor]:
    """(w, g) of a batch."""
    weight = functools.partial(gaussian_covariance, *inputs, **choices)
    return through_weights(lambda traced: weight(tokens=traced), validated(*inputs), mode)


def sum_of(inputs: Any, mode: str, choices: dict[str, str]) -> torch.Tensor:
    weights_BT, added_BT = parts(inputs, mode, choices)
    return weights_BT * inputs[1] + added_BT


def distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


EVERY = [dict(zip(CHOICES, values, strict=True)) for values in itertools.product(*CHOICES.values())]


@pytest.mark.parametrize("mode", MODES)
def test_one_update_is_that_of_the_authors_loss(mode: str) -> None:
    for choices in (*PRESETS.values(), *EVERY):
        ours, theirs = our_gradient(1, mode, choices), authors_gradient(1, mode, choices)
        assert distance(ours, theirs) < 1e-6, choices  # verl adds 1e-8 to a count


def test_equal_rewards_and_empty_rows_add_nothing() -> None:
    logprobs_BT, _, mask_BT, group_B = example()
    mask_BT[5:8] = 0
    mask_BT[8:] = 0  # a group without tokens
    for value in (0.0, 1.1):
        inputs = (logprobs_BT, torch.full_like(logprobs_BT, value), mask_BT, group_B)
        for preset, mode in itertools.product(PRESETS.values(), MODES):
            weights_BT, added_BT = parts(inputs, mode, preset)
            assert torch.equal(added_BT, torch.zeros_like(added_BT))
            assert bool(torch.isfinite(weights_BT).all())


def recipe(gradient: str | None, preset: str = "paper") -> Any:
    section = {"preset": preset, "gradient": gradient}
    return OmegaConf.create(
        {
            "advantage": {"name": "dr_grpo", "arguments": None},
            "weights": {"name": "gaussian_covariance", "gaussian_covariance": section},
            "history": {"enable": False},
        }
    )


def test_a_step_adds_the_part_and_logs_its_size() -> None:
    """Two responses, A = +-1/2 and one group: c = (x - mean) A."""
    logprobs_BT, mask_BT = [[-1.0, -1.2], [-0.5, -0.4]], [[1, 1], [1, 1]]
    rollouts = synthetic([1.0, 0.0], logprobs_BT, mask_BT, [0, 0])
    made = compute_advantages(rollouts, recipe("through"), RESPONSE)
    plain_BT = torch.tensor([[0.5, 0.5], [-0.5, -0.5]]).double()
    inputs = (rollouts.weight_logprobs_BT, plain_BT, mask_BT, [0, 0])
    weights_BT, added_BT = parts(inputs, RESPONSE, PRESETS["paper"])
    total_BT = weights_BT * plain_BT + added_BT
    close(made.advantages_BT, total_BT)
    flipped = sum(total_BT[i, t].item() * (0.5 - i) < 0 for i in (0, 1) for t in (0, 1))
    assert 0 < flipped < 4
    assert made.metrics["weights/through_flipped"] == flipped / 4
    assert made.metrics["weights/through_max"] == pytest.approx(float(total_BT.abs().max()))
    ratio = float(added_BT.norm() / (weights_BT * plain_BT).norm())
    assert made.metrics["weights/through_ratio"] == pytest.approx(ratio)
    detached = compute_advantages(rollouts, recipe("detached"), RESPONSE)
    close(detached.advantages_BT, weights_BT * plain_BT)
    assert "weights/through_ratio" not in detached.metrics


def test_the_ratio_has_the_temperature_of_the_weights_only_through_them() -> None:
    cases = [("paper", "through", None), ("official_code", "through", 1.0)]
    cases += [(preset, "detached", None) for preset in PRESETS]
    for preset, gradient, wanted in cases:
        assert ratio_temperature(recipe(gradient, preset).weights) == wanted
    assert ratio_temperature({"name": "none"}) is None


CODE = "recipe.weights.gaussian_covariance.preset=official_code"


@pytest.mark.config
@pytest.mark.parametrize(
    ("example", "changes", "wanted"),
    [
        ("smollm2", "", "through"),  # one update of the whole batch, at temperature 1
        ("toy_methods", "", "detached"),  # several updates of a batch
        ("cw_grpo", "machine=cpu", "detached"),  # sampled at 0.7, log pi at 0.7
        ("cw_grpo", f"machine=cpu {CODE}", "through"),  # log pi at 1, and so the ratio
        ("smollm2", "actor_rollout_ref.actor.ppo_epochs=2", "detached"),
        ("smollm2", "actor_rollout_ref.actor.policy_loss.loss_mode=gspo", "detached"),
        ("smollm2", "algorithm.rollout_correction.rollout_is=token", "detached"),
        ("smollm2", "recipe.weights.arguments.logprob_temperature=0.5", "detached"),
        ("smollm2", "recipe.weights.gaussian_covariance.gradient=detached", "detached"),
    ],
)
def test_the_default_is_through_exactly_where_that_is_the_gradient(
    example: str, changes: str, wanted: str
) -> None:
    weights = compose_config(example, ["method=cw_grpo", *changes.split()]).recipe.weights
    assert weights.gaussian_covariance.gradient == wanted


@pytest.mark.config
def test_asked_for_by_name_elsewhere_it_is_rejected() -> None:
    through = "recipe.weights.gaussian_covariance.gradient=through"
    for name, key in (("toy_methods", "ppo_mini_batch_size"), ("smollm2", "")):
        setup = Setup(compose_config(name, ["method=cw_grpo", through]))
        errors = "".join(known_token_weight(setup))
        assert bool(errors) == bool(key) and key in errors
