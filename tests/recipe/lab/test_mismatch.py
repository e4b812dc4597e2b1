"""A perturbed sampler in the simulator: what it samples, and verl's correction of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_model import save_tiny

from prompt_aug.questions import make_question, write_parquet
from recipe.config.compose import compose_config
from recipe.errors import ConfigError
from recipe.lab.decoder import Decoder
from recipe.lab.rollouts import perturbed
from recipe.lab.simulator import Simulator
from recipe.preflight.checks import check

pytestmark = pytest.mark.config
TIS = (
    "algorithm.rollout_correction.rollout_is=token",
    "algorithm.rollout_correction.rollout_is_threshold=1.1",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("mismatch")
    save_tiny(made / "model", seed=3)
    asked = [
        make_question(text=f"What is {i} + 1?", answers=(str(i + 1),), source="s", split="train")
        for i in range(4)
    ]
    write_parquet(asked, made / "train.parquet")
    return made


def first_step(folder: Path, name: str, *overrides: str) -> tuple[dict[str, Any], Any]:
    """(metrics, tensors) of the first step of the experiment's example on a tiny model."""
    run = folder / name
    settings = [
        *(f"recipe.run_dir={run}", f"recipe.model_path={folder / 'model'}", "recipe.seed=5"),
        *(f"data.train_files=[{folder / 'train.parquet'}]", "recipe.save_tensors_every=1"),
        *("data.max_response_length=6", "actor_rollout_ref.rollout.n=4"),
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
    ]
    config = compose_config("laboratory/mismatch", [*settings, *overrides])
    metrics = Simulator(config).step()
    return metrics, np.load(run / "tensors" / "step_1.npz")


def test_a_noise_of_0_changes_no_number(folder: Path) -> None:
    plain, columns = first_step(folder, "plain")
    zero, same = first_step(folder, "zero", "recipe.toy.sampler_noise=0")
    del plain["timing_s/step"], zero["timing_s/step"]
    assert plain == zero
    assert all(np.array_equal(columns[name], same[name]) for name in columns)
    assert np.array_equal(columns["old_log_probs"], columns["rollout_log_probs"])


def test_the_sampler_is_perturbed_and_the_old_log_probabilities_are_not(folder: Path) -> None:
    metrics, columns = first_step(folder, "noisy", "recipe.toy.sampler_noise=0.3", *TIS)
    policy = Decoder.load(folder / "model")
    lengths = columns["lengths"].tolist()
    prompts = [[t for t in row if t >= 0] for row in columns["prompts"].tolist()]
    rows = [
        [*prompt, *ids[:length]]
        for prompt, ids, length in zip(prompts, columns["responses"].tolist(), lengths, strict=True)
    ]
    ends = np.cumsum([len(row) for row in rows])
    for name, model in (
        ("old_log_probs", policy),
        ("rollout_log_probs", perturbed(policy, 0.3, seed=5)),
    ):
        found = model.logprobs(rows, 1.0, entropy=False)["log_probs"].detach().numpy()
        for i, (end, length) in enumerate(zip(ends, lengths, strict=True)):
            wanted = found[end - length - 1 : end - 1]
            np.testing.assert_allclose(columns[name][i, :length], wanted, atol=1e-5)
    ratio = np.exp(columns["old_log_probs"] - columns["rollout_log_probs"])
    inside = np.arange(ratio.shape[1]) < np.array(lengths)[:, None]
    assert ratio[inside].max() > 1.1 > ratio[inside].min()  # some weights are truncated
    expected = np.minimum(ratio, 1.1)[inside].mean()
    assert metrics["rollout_corr/rollout_is_mean"] == pytest.approx(expected, rel=1e-5)


def test_a_perturbed_copy_is_a_function_of_its_seed(folder: Path) -> None:
    policy = Decoder.load(folder / "model")
    before = {name: w.clone() for name, w in policy.weights.items()}
    one, again, other = (perturbed(policy, 0.1, seed).weights for seed in (1, 1, 2))
    name = "model.layers.0.mlp.down_proj.weight"
    assert torch.equal(one[name], again[name]) and not torch.equal(one[name], other[name])
    relative = (one[name] / before[name] - 1).std().item()
    assert relative == pytest.approx(0.1, rel=0.05)  # of 8192 weights
    assert all(torch.equal(before[key], policy.weights[key]) for key in before)


def test_the_engine_cannot_be_perturbed(folder: Path) -> None:
    config = compose_config("laboratory/mismatch", ["recipe.toy.sampler_noise=0.02"])
    with pytest.raises(ConfigError, match=r"recipe\.toy\.sampler_noise=0\.02: .*recipe\.lab"):
        check(config, here=False)
