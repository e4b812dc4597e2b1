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
# What recipe.train checks, and what the process of the trainer computes.
PROGRAM = """
import sys
sys.path.insert(0, {helpers!r})
from omegaconf import OmegaConf
from recipe.config.compose import compose_config
from recipe.preflight.algorithm import ALGORITHM
from recipe.preflight.rules import Setup, messages
config = compose_config("grpo", {overrides!r})
print(messages(ALGORITHM, Setup(config)))
config.recipe.reward.overlong.enable = True
print(messages(ALGORITHM, Setup(config)))
from rollout_batches import synthetic
from recipe.algorithms.compute import compute_advantages
batch = synthetic([1.0, 0.0], [[-1.0, -2.0]] * 2, [[1, 1], [1, 0]], [0, 0])
print(compute_advantages(batch, config.recipe).advantages_BT.tolist())
"""


@pytest.mark.config
def test_a_function_from_a_folder_outside_the_repository(tmp_path: Path) -> None:
    """Composed, validated and computed by its path alone: 4 R / tokens, then half of it."""
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "mine.py").write_text(MINE)
    listed = [
        "recipe.advantage.name=my_package.mine.shorter_is_better",
        "recipe.advantage.arguments={scale: 4.0}",
        "recipe.weights.name=my_package.mine.half",
    ]
    program = PROGRAM.format(helpers=str(ROOT / "tests" / "helpers"), overrides=listed)
    path = os.pathsep.join([str(ROOT), str(tmp_path)])
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    accepted, refused, computed = done.stdout.splitlines()[-3:]
    assert (accepted, computed) == ("[]", "[[1.0, 1.0], [0.0, 0.0]]")
    assert "my_package.mine.shorter_is_better" in refused and "negative" in refused


def test_every_algorithm_of_the_folder_is_registered() -> None:
    names = (
        "grpo dr_grpo ta_grpo ta_grpo_star rloo maxrl none seed_grpo gdpo unlikeliness "
        "grpo_lead asym_grpo sdpo"
    )
    assert set(ADVANTAGES) == set(names.split())
    assert set(TOKEN_WEIGHTS) == {"gaussian_covariance", "clip_cov", "balanced", "high_entropy"}
    assert ADVANTAGES.facts("maxrl") == Facts(nonnegative_rewards=True)
    assert ADVANTAGES.facts("ta_grpo_star").group == "rephrasing"


def test_a_dotted_path_is_resolved_and_its_arguments_are_passed() -> None:
    registry = Registry("some.name")
    assert registry.resolve("recipe.algorithms.grpo.grpo") is ADVANTAGES["grpo"]
    for arguments, passed in (({"x": 1}, {"x": 1}), (None, {})):
        assert registry.call({"name": "math.sqrt", "arguments": arguments})[1] == passed
    with pytest.raises(ConfigError, match=r"some\.name=sqrt"):
        registry.resolve("sqrt")


OBJECTS = """
import functools
from dataclasses import dataclass

def scaled(rewards_B, group_B, *, scale=1.0):
    return scale * rewards_B

@dataclass
class Scaled:
    by: float = 1.0

    def __call__(self, rewards_B, group_B, *, scale=1.0):
        return self.by * scale * rewards_B

half, instance = functools.partial(scaled, scale=0.5), Scaled()
"""


@pytest.mark.parametrize("name", ["callables.half", "callables.instance"])
def test_a_callable_object_is_a_function(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "callables.py").write_text(OBJECTS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "callables", raising=False)
    function, arguments = ADVANTAGES.call({"name": name, "arguments": {"scale": 2.0}})
    assert function(3.0, 0, **arguments) == 6.0 and ADVANTAGES.facts(name) == Facts()
    with pytest.raises(ConfigError, match=r"recipe\.advantage\.arguments: .* takes no scael"):
        ADVANTAGES.call({"name": name, "arguments": {"scael": 2.0}})


def test_a_decorator_of_another_package_takes_no_name_of_this_folder() -> None:
    @advantage()
    def grpo(rewards_B: object, group_B: object) -> object:
        return rewards_B

    assert ADVANTAGES["grpo"] is not grpo
