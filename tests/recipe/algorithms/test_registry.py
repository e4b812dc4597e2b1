"""Functions of this folder are found by themselves; a user's own by its path, from anywhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from recipe.algorithms import ADVANTAGES, TOKEN_WEIGHTS
from recipe.algorithms.registry import Facts, Registry, advantage
from recipe.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]
MINE = '''
"""A user's own module, in a folder of its own."""
import torch
from recipe.algorithms.registry import advantage

@advantage(nonnegative_rewards=True, inputs=("lengths",))
def shorter_is_better(rewards_B, group_B, *, lengths, scale=1.0):
    """A = scale * R / (tokens of the response); 0 for wrong ones."""
    return scale * rewards_B / torch.tensor(lengths)

def half(logprobs_BT, advantages_BT, mask_BT, group_B):
    return torch.full_like(logprobs_BT, 0.5) * mask_BT
'''
# What recipe.train checks, and what the process of the trainer computes, each in one of its own.
PROGRAM = """
import sys
sys.path.insert(0, {helpers!r})
from omegaconf import OmegaConf
from recipe.config.compose import compose_config
from recipe.checks.algorithm import check_algorithm
config = compose_config("grpo", {overrides!r})
check_algorithm(config)
from rollout_batches import synthetic
from recipe.algorithms.compute import compute_advantages
batch = synthetic([1.0, 0.0], [[-1.0, -2.0]] * 2, [[1, 1], [1, 0]], [0, 0])
print(compute_advantages(batch, config.recipe).advantages_BT.tolist())
"""


def outside(folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    (folder / "my_package").mkdir()
    (folder / "my_package" / "mine.py").write_text(MINE)
    listed = [
        "recipe.advantage.name=my_package.mine.shorter_is_better",
        "recipe.advantage.arguments={scale: 4.0}",
        "recipe.weights.name=my_package.mine.half",
        *overrides,
    ]
    program = PROGRAM.format(helpers=str(ROOT / "tests" / "helpers"), overrides=listed)
    path = os.pathsep.join([str(ROOT), str(folder)])
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )


@pytest.mark.config
def test_a_function_from_a_folder_outside_the_repository(tmp_path: Path) -> None:
    """4 R / tokens, then half of it; it is composed, checked and computed by its path alone."""
    done = outside(tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[[1.0, 1.0], [0.0, 0.0]]"


@pytest.mark.config
def test_what_it_says_of_itself_is_checked(tmp_path: Path) -> None:
    done = outside(tmp_path, "recipe.reward.overlong.enable=true")
    assert done.returncode == 1
    assert "my_package.mine.shorter_is_better" in done.stderr and "negative" in done.stderr


def test_every_file_of_the_folder_is_in_it() -> None:
    assert {
        "grpo",
        "dr_grpo",
        "ta_grpo",
        "ta_grpo_star",
        "rloo",
        "maxrl",
        "none",
        "seed_grpo",
        "gdpo",
        "unlikeliness",
        "grpo_lead",
    } == set(ADVANTAGES)
    weights = {"gaussian_covariance", "clip_cov", "balanced", "high_entropy"}
    assert set(TOKEN_WEIGHTS) == weights
    assert ADVANTAGES.facts("maxrl") == Facts(nonnegative_rewards=True)
    assert ADVANTAGES.facts("ta_grpo_star").group == "rephrasing"


def test_a_path_finds_what_a_name_does_not() -> None:
    registry = Registry("some.name")
    assert registry.resolve("recipe.algorithms.grpo.grpo") is ADVANTAGES["grpo"]
    assert registry.call({"name": "math.sqrt", "arguments": {"x": 1}})[1] == {"x": 1}
    assert registry.call({"name": "math.sqrt", "arguments": None})[1] == {}
    with pytest.raises(ConfigError, match=r"some\.name=sqrt: known are"):
        registry.resolve("sqrt")


def test_a_decorator_outside_does_not_take_a_name_here() -> None:
    @advantage()
    def grpo(rewards_B: object, group_B: object) -> object:
        return rewards_B

    assert ADVANTAGES["grpo"] is not grpo
