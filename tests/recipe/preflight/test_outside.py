"""What a user adds lies in a folder of its own: the very files of recipe/README.md."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from eval.benchmarks import load, parse_request
from recipe.algorithms import ADVANTAGES, TOKEN_WEIGHTS
from recipe.config.compose import compose_config
from recipe.errors import ConfigError
from recipe.preflight.checks import validate

pytestmark = pytest.mark.config
README = Path(__file__).resolve().parents[3] / "recipe" / "README.md"
FILE = re.compile(
    r"```(?:yaml|python|csv)\n((?:# @package _global_\n)?)# (mine/\S+)\n(.*?)```", re.S
)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder mine/ of the README, in the PYTHONPATH, and its parent the working folder."""
    for package, name, text in FILE.findall(README.read_text()):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(package + text)
        assert len(text.splitlines()) < 30
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "mine")
    return tmp_path / "mine"


def test_an_example_with_its_own_method_and_templates(mine: Path) -> None:
    config = compose_config(str(mine), [])
    assert validate(config).bank.names == ("shout",)
    assert config.actor_rollout_ref.actor.loss_agg_mode == "seq-mean-token-mean"  # of grpo
    changed = compose_config(str(mine), ["method=cw_grpo", "recipe.augment.templates=null"])
    assert changed.recipe.weights.name == "gaussian_covariance"  # the project's own are still there


def test_the_advantage_and_the_token_weight_are_found_by_their_paths(mine: Path) -> None:
    recipe = compose_config(str(mine), []).recipe
    function, settings = ADVANTAGES.call(recipe.advantage)
    rewards, group = torch.tensor([0.0, 1.0, 1.0]), torch.tensor([0, 0, 0])
    assert function(rewards, group, lengths=[0, 3, 3], **settings).tolist() == [0.0, 0.0, 0.0]
    assert function(rewards, group, lengths=[2, 3, 3], **settings).tolist() == [-1.0, 0.0, 0.0]
    assert ADVANTAGES.facts(recipe.advantage.name).inputs == ("lengths",)
    function, settings = TOKEN_WEIGHTS.call(recipe.weights)
    assert settings == {"tokens": 20}
    mask = torch.ones(1, 22)
    assert function(mask, mask, mask, group[:1], **settings).sum() == 20


def test_the_loss_is_registered_by_naming_its_class(mine: Path) -> None:
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.utils.config import omega_conf_to_dataclass

    policy_loss = compose_config(str(mine), []).actor_rollout_ref.actor.policy_loss
    assert type(omega_conf_to_dataclass(policy_loss)).__name__ == "UnclippedConfig"
    loss = get_policy_loss_fn(policy_loss.loss_mode)
    old, new = torch.zeros(1, 2), torch.log(torch.tensor([[2.0, 3.0]]))
    info = SimpleNamespace(global_batch_info={"dp_size": 1, "batch_num_tokens": 4})
    mask, advantages = torch.ones(1, 2), torch.tensor([[1.0, -1.0]])
    value, _ = loss(old, new, advantages, mask, "token-mean", info)
    assert value.item() == pytest.approx((-2 + 3) / 4)  # over the mini-batch's tokens


def test_the_benchmark_is_a_file_beside_it(mine: Path) -> None:
    benchmark = load(parse_request("puzzles=mine/puzzles.yaml"), greedy=False)
    assert [(q.text, q.answers) for q in benchmark.questions] == [
        ("What is 1 + 1?", ("2",)),
        ("What is 2 + 3?", ("5",)),
    ]
    assert benchmark.samples == 4


def test_a_misspelt_key_of_an_own_method_is_refused(mine: Path) -> None:
    path = mine / "method" / "mine.yaml"
    path.write_text(path.read_text().replace("recipe:", "recipe:\n  reward: {format_wieght: 1}"))
    with pytest.raises(ConfigError, match=r"did you mean recipe\.reward\.format_weight"):
        compose_config(str(mine), [])
