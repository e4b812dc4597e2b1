"""Overrides as a user types them: paths with any characters, arguments of own functions by key."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser

from eval.benchmarks import load, parse_request
from recipe.algorithms import ADVANTAGES, TOKEN_WEIGHTS
from recipe.config import show
from recipe.config.compose import compose_config, readable
from recipe.errors import ConfigError
from recipe.preflight.checks import validate

PATHS = [
    *("runs/mein lauf ü", "runs/it's #1 & (2)", "runs/a=b", "runs/100%", "C:\\runs\\x", "läufe/é"),
    *("runs/名前", "runs/a{b}", "runs/$HOME;x"),
]


@pytest.mark.parametrize("path", PATHS)
def test_a_path_reaches_the_configuration_as_it_was_typed(path: str) -> None:
    text = readable(f"recipe.run_dir={path}")
    assert OverridesParser.create().parse_override(text).value() == path
    assert readable(text) == text


@pytest.mark.parametrize(
    "text",
    [
        *("recipe.seed=3", "a.b=[1, 2]", "a.b={c: d}", "a.b='quoted, text'", "+a.b=null", "~a.b"),
        *("a=1,2", "a=[ü]", "method=dapo", "recipe.seed", "a=${recipe.name}", "a=~/x", "a="),
    ],
)
def test_what_is_hydras_syntax_is_left_to_hydra(text: str) -> None:
    assert readable(text) == text


@pytest.mark.config
def test_arguments_of_an_own_function_are_set_by_key() -> None:
    keys = ["recipe.weights.arguments.power=0.7", "+recipe.weights.arguments.kind=ü"]
    config = compose_config("toy", [*keys, "recipe.run_dir=runs/mein lauf ü", "recipe.seed=7"])
    assert config.recipe.weights.arguments == {"power": 0.7, "kind": "ü"}
    assert config.trainer.default_local_dir == "runs/mein lauf ü/checkpoints"
    assert config.data.seed == config.actor_rollout_ref.rollout.seed == 7


LOSS = "actor_rollout_ref.actor.policy_loss"


@pytest.mark.config
@pytest.mark.parametrize("plus", ["", "+", "++"])
def test_a_field_of_an_own_loss_is_set_by_key(plus: str, tmp_path: Path) -> None:
    field = f"{plus}{LOSS}.alpha=0.2"
    config = compose_config("toy", [f"{LOSS}._target_=losses.Mine", field])
    assert config.actor_rollout_ref.actor.policy_loss.alpha == 0.2
    own = "actor_rollout_ref: {actor: {policy_loss: {_target_: losses.Mine, alpha: 0.5}}}\n"
    head = "defaults: [recipe, _self_]\nrecipe: {name: x}\ntrainer: {total_training_steps: 1}\n"
    (tmp_path / "config.yaml").write_text(head + own)
    config = compose_config(str(tmp_path), [field])
    assert config.actor_rollout_ref.actor.policy_loss.alpha == 0.2
    with pytest.raises(ConfigError, match=rf"^no key '{LOSS}\.alpha'"):  # of verl's own class
        compose_config("toy", [field])


MODEL, OTHER = "actor_rollout_ref.model.path", "Qwen/Qwen2.5-Math-7B"


@pytest.mark.config
def test_all_keys_of_the_model_follow_verls(tmp_path: Path) -> None:
    config = compose_config("grpo", [f"{MODEL}={OTHER}"])
    assert config.recipe.model_path == config.critic.model.path == OTHER
    same = [f"{MODEL}={OTHER}", f"recipe.model_path={OTHER}"]
    assert compose_config("grpo", same) == config
    with pytest.raises(ConfigError, match=f"{MODEL}={OTHER} with recipe.model_path=other: "):
        compose_config("grpo", [f"{MODEL}={OTHER}", "recipe.model_path=other"])
    own = "defaults: [recipe, override scale: math_train, _self_]\nrecipe: {name: x}\n"
    own += "actor_rollout_ref: {model: {path: '${recipe.name}/model'}}\n"
    (tmp_path / "config.yaml").write_text(own)
    config = compose_config(str(tmp_path), [])
    assert config.recipe.model_path == config.critic.model.path == "x/model"
    with pytest.raises(ConfigError, match=f"{MODEL}=x/model with recipe.model_path=other: "):
        compose_config(str(tmp_path), ["recipe.model_path=other"])


@pytest.mark.config
def test_the_difference_from_the_defaults() -> None:
    """One line a key; what is set to its default is not in it."""
    text = show.with_sources("toy", ["recipe.seed=42", "recipe.weights.arguments.k=1"], True)
    shown = dict(line.split("  # ")[0].strip().split("=", 1) for line in text.splitlines())
    assert shown["data.train_batch_size"] == "16" and shown["recipe.weights.arguments.k"] == "1"
    assert not {"recipe.seed", "data.seed", "algorithm.adv_estimator"} & set(shown)
    assert len(shown) < 100 < len(show.with_sources("toy", []).splitlines())


@pytest.mark.config
def test_values_of_a_method_that_the_example_replaces_are_named() -> None:
    replaced = show.overruled("ta_grpo", ["method=prompt_aug"])
    assert "published/ta_grpo.yaml" in replaced["recipe.augment.mode"]
    chosen = ["recipe.augment.mode=per_question", "recipe.augment.templates=[abel]"]
    left = show.overruled("ta_grpo", ["method=prompt_aug", *chosen])
    assert replaced.keys() - left.keys() == {"recipe.augment.mode", "recipe.augment.templates"}
    assert show.overruled("ta_grpo", ["method=grpo"]) == {}
    assert show.overruled("cw_grpo", []) == {}
    placeholder = "recipe.one_question"  # ? in the method's file
    assert placeholder not in show.overruled("one_shot", ["method=one_shot"])
    with pytest.raises(ConfigError, match="augment"):
        show.notes("ta_grpo", ["method=prompt_aug"])
    assert len(show.notes("grpo", ["method=cispo"])) == 1  # a KL term, as its baseline has


# ------------------------------------------------------------------------- outside
# What a user adds lies in a folder of its own: the very files of recipe/README.md.


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


@pytest.mark.config
def test_an_example_with_its_own_method_and_templates(mine: Path) -> None:
    config = compose_config(str(mine), [])
    assert validate(config).bank.names == ("shout",)
    assert config.actor_rollout_ref.actor.loss_agg_mode == "seq-mean-token-mean"  # of grpo
    changed = compose_config(str(mine), ["method=cw_grpo", "recipe.augment.templates=null"])
    assert changed.recipe.weights.name == "gaussian_covariance"  # the project's own are still there


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
    value, _ = loss(old, new, advantages, mask, "token-mean", info)
    assert value.item() == pytest.approx((-2 + 3) / 4)  # over the mini-batch's tokens


@pytest.mark.config
def test_the_benchmark_is_a_file_beside_it(mine: Path) -> None:
    benchmark = load(parse_request("puzzles=mine/puzzles.yaml"), greedy=False)
    assert [(q.text, q.answers) for q in benchmark.questions] == [
        ("What is 1 + 1?", ("2",)),
        ("What is 2 + 3?", ("5",)),
    ]
    assert benchmark.samples == 4


@pytest.mark.config
def test_a_misspelt_key_of_an_own_method_is_refused(mine: Path) -> None:
    path = mine / "method" / "mine.yaml"
    path.write_text(path.read_text().replace("recipe:", "recipe:\n  reward: {format_wieght: 1}"))
    with pytest.raises(ConfigError, match=r"did you mean recipe\.reward\.format_weight"):
        compose_config(str(mine), [])
