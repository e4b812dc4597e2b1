"""What a user adds lies in a folder of his own: an example, a method, templates, an advantage."""

from pathlib import Path

import pytest
import torch

from recipe.algorithms import ADVANTAGES
from recipe.checks import validate
from recipe.config.compose import compose_config
from recipe.errors import ConfigError

pytestmark = pytest.mark.config

EXAMPLE = """
defaults:
  - recipe
  - override machine: cpu
  - override scale: toy
  - override method: mine
  - _self_
recipe: {name: mine}
"""
METHOD = """
# @package _global_
defaults: [grpo, _self_]
recipe:
  advantage: {name: my_advantages.median}
  augment: {bank: BANK, templates: [shout], validation_template: shout}
"""
ADVANTAGE = """
def median(rewards_B, group_B):
    out = rewards_B.double().clone()
    for group in group_B.unique():
        rows = group_B == group
        out[rows] -= out[rows].median()
    return out
"""
BANK = """
templates:
  shout:
    category: free-form
    user: "{question} ANSWER IN A BOX!"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "method").mkdir()
    (tmp_path / "config.yaml").write_text(EXAMPLE)
    (tmp_path / "bank.yaml").write_text(BANK)
    (tmp_path / "method" / "mine.yaml").write_text(
        METHOD.strip().replace("BANK", str(tmp_path / "bank.yaml"))
    )
    (tmp_path / "my_advantages.py").write_text(ADVANTAGE)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_an_example_with_its_own_method_templates_and_advantage(folder: Path) -> None:
    config = compose_config(str(folder), [])
    assert validate(config).names == ("shout",)
    assert config.actor_rollout_ref.actor.loss_agg_mode == "seq-mean-token-mean"  # of grpo
    function, settings = ADVANTAGES.call(config.recipe.advantage)
    values = function(torch.tensor([0.0, 1.0, 1.0]), torch.tensor([0, 0, 0]), **settings)
    assert values.tolist() == [-1.0, 0.0, 0.0]
    other = compose_config(str(folder), ["method=cw_grpo", "recipe.augment.templates=null"])
    assert other.recipe.weights.name == "gaussian_covariance"  # the project's own are still there


def test_a_misspelt_key_of_an_own_method_is_refused(folder: Path) -> None:
    path = folder / "method" / "mine.yaml"
    path.write_text(path.read_text() + "\n  reward: {format_wieght: 1}\n")
    with pytest.raises(ConfigError, match=r"did you mean recipe\.reward\.format_weight"):
        compose_config(str(folder), [])
