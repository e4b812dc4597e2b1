"""Overrides of own functions and of the model, the sources of values, and a folder of the user."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from page_commands import write_files

from eval.ask.benchmarks import load_benchmark, parse_request
from recipe.algorithms import ADVANTAGES, TOKEN_WEIGHTS
from recipe.config import show
from recipe.config.compose import compose_config
from recipe.errors import ConfigError
from recipe.start.checks import validate
from recipe.start.rules import Setup


@pytest.mark.config
def test_arguments_of_an_own_function_are_set_by_key() -> None:
    keys = ["recipe.weights.arguments.power=0.7", "+recipe.weights.arguments.kind=a"]
    config = compose_config("toy", [*keys, "recipe.run_dir=runs/mine", "recipe.seed=7"])
    assert config.recipe.weights.arguments == {"power": 0.7, "kind": "a"}
    assert config.trainer.default_local_dir == "runs/mine/checkpoints"
    assert config.data.seed == config.actor_rollout_ref.rollout.seed == 7


LOSS = "actor_rollout_ref.actor.policy_loss"


@pytest.mark.config
@pytest.mark.parametrize("plus", ["", "+", "++"])
def test_a_field_of_an_own_loss_is_set_by_key(plus: str) -> None:
    field = f"{plus}{LOSS}.alpha=0.2"
    config = compose_config("toy", [f"{LOSS}._target_=losses.Mine", field])
    assert config.actor_rollout_ref.actor.policy_loss.alpha == 0.2
    with pytest.raises(ConfigError, match=rf"^no key '{LOSS}\.alpha'"):  # of verl's own class
        compose_config("toy", [field])


MODEL, OTHER = "actor_rollout_ref.model.path", "Qwen/Qwen2.5-Math-7B"


@pytest.mark.config
def test_all_keys_of_the_model_follow_verls() -> None:
    config = compose_config("grpo", [f"{MODEL}={OTHER}"])
    assert config.recipe.model_path == config.critic.model.path == OTHER
    same = [f"{MODEL}={OTHER}", f"recipe.model_path={OTHER}"]
    assert compose_config("grpo", same) == config
    with pytest.raises(ConfigError, match=f"{MODEL}={OTHER} with recipe.model_path=other: "):
        compose_config("grpo", [f"{MODEL}={OTHER}", "recipe.model_path=other"])


@pytest.mark.config
def test_every_key_and_its_value_are_listed() -> None:
    lines = show.every_key("toy", ["recipe.weights.arguments.k=1"]).splitlines()
    assert {"recipe.weights.arguments.k=1", "data.train_batch_size=16"} <= {*lines}


@pytest.mark.config
def test_values_of_a_method_that_the_example_replaces_are_named() -> None:
    def replaced(*overrides: str) -> set[str]:
        with pytest.raises(ConfigError) as refused:
            show.notes("ta_grpo", ["method=prompt_aug", *overrides])
        return {line.partition("=")[0] for line in str(refused.value).splitlines()}

    chosen = ["recipe.augment.mode=per_question", "recipe.augment.templates=[abel]"]
    left = {"recipe.augment.mode", "recipe.augment.templates"}
    assert replaced() - replaced(*chosen) == left and replaced(*chosen)
    assert show.notes("ta_grpo", ["method=grpo"]) == []
    assert "one_question" not in str(show.notes("one_shot", ["method=one_shot"]))  # a ?
    assert len(show.notes("grpo", ["method=cispo"])) == 1  # a KL term, as its baseline has


# ------------------------------------------------------------------------- outside
# What a user adds lies in a folder of its own: the very files of recipe/README.md.


README = Path(__file__).resolve().parents[3] / "recipe" / "README.md"


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder mine/ of the README, in the PYTHONPATH, and its parent the working folder."""
    write_files(README.read_text(), tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "mine")
    return tmp_path / "mine"


@pytest.mark.config
def test_an_example_with_its_own_method_templates_and_benchmark(mine: Path) -> None:
    config = compose_config(str(mine), [])
    validate(setup := Setup(config))
    assert setup.bank.names == ("shout",)
    assert config.actor_rollout_ref.actor.loss_agg_mode == "seq-mean-token-mean"  # of grpo
    benchmark = load_benchmark(parse_request("puzzles=mine/puzzles.yaml"), greedy=False)
    assert [question.answers for question in benchmark.questions] == [("2",), ("5",)]
    assert benchmark.samples == 4


@pytest.mark.config
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


@pytest.mark.config
def test_the_loss_is_registered_by_naming_its_class(mine: Path) -> None:
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.utils.config import omega_conf_to_dataclass

    policy_loss = compose_config(str(mine), []).actor_rollout_ref.actor.policy_loss
    assert type(omega_conf_to_dataclass(policy_loss)).__name__ == "UnclippedConfig"
    loss = get_policy_loss_fn(policy_loss.loss_mode)
    old, new = torch.zeros(1, 2), torch.log(torch.tensor([[2.0, 3.0]]))
    info = SimpleNamespace(global_batch_info={"dp_size": 1, "batch_num_tokens": 4})
    mask, advantages = torch.ones(1, 2), torch.tensor([[1.0, -1.0]])
    given = {"advantages": advantages, "response_mask": mask, "loss_agg_mode": "token-mean"}
    value, _ = loss(
        old_log_prob=old, log_prob=new, **given, config=info, rollout_is_weights=None
    )  # as verl calls it
    assert value.item() == pytest.approx((-2 + 3) / 4)  # over the mini-batch's tokens
    value, _ = loss(
        old_log_prob=old, log_prob=new, **given, config=info, rollout_is_weights=0.5 * mask
    )
    assert value.item() == pytest.approx((-2 + 3) / 8)
