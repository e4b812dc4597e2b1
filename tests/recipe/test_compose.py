"""The composition that tests use is hydra's own."""

from pathlib import Path

import hydra
import pytest
from omegaconf import OmegaConf

from recipe import train
from recipe.config import compose
from recipe.config.base import quoted
from recipe.errors import ConfigError

pytestmark = pytest.mark.config
ASYNC = "trainer.v1.trainer_mode=recipe_colocate_async"
SEPARATE = "trainer.v1.trainer_mode=recipe_separate_async"
CORRECTION = "algorithm.rollout_correction"


@pytest.mark.parametrize(
    "command",
    [
        ["toy", "machine=gpu", "recipe.seed=7"],
        ["toy_methods", "method=cw_grpo", "recipe.run_dir=x", "recipe.weights.arguments.a=3"],
        ["ta_grpo", "published=corrected", "+data.apply_chat_template_kwargs={a: false}"],
        ["lora", "method=ppo", "scale=open_rs", "recipe.seed=1003"],
    ],
    ids=lambda command: command[0],
)
def test_a_composition_of_the_tests_is_hydras(
    monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    def text() -> str:
        return OmegaConf.to_yaml(compose.compose_config(command[0], command[1:]))

    assert compose.compose is not hydra.compose
    quick = [text() for _ in range(2)]
    monkeypatch.setattr(compose, "compose", hydra.compose)
    assert quick == [text()] * 2


TEXTS = [
    "my run (1)",
    "ü, x = y",
    "o'brien",
    "a=b",
    "a,b",
    "f(x)",
    "#1 & co; 50 %",
    "/x/[1]",
    "~/x",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_that_hydra_cannot_read_is_taken_as_it_is(text: str) -> None:
    config = compose.compose_config("toy", [f"recipe.run_dir={text}"])
    assert config.recipe.run_dir == text


@pytest.mark.parametrize("text", [*TEXTS, "null", "12", "true", "1e3", "[1]", "{a", " a ", "a\\"])
def test_a_quoted_text_is_read_as_it_is(text: str) -> None:
    config = compose.compose_config("toy", [f"data.train_files=[{quoted(text)}]"])
    assert list(config.data.train_files) == [text]


def test_a_list_that_hydra_cannot_read_is_refused_with_the_way_to_quote() -> None:
    with pytest.raises(ConfigError, match=r"KEY=\['my file'\]"):
        compose.compose_config("toy", ["data.train_files=[a ü.parquet]"])
    value = ["a ü.parquet"]
    config = compose.compose_config("toy", [f"data.train_files={value}"])
    assert list(config.data.train_files) == value


@pytest.mark.parametrize(
    ("overrides", "correction"),
    [
        ([], None),
        ([ASYNC], "token"),
        ([SEPARATE], "token"),
        ([ASYNC, f"{CORRECTION}.rollout_is=null"], None),
    ],
)
def test_stale_rollouts_are_corrected_by_default(
    overrides: list[str], correction: str | None
) -> None:
    config = compose.compose_config("toy", overrides)
    assert config.algorithm.rollout_correction.rollout_is == correction


@pytest.mark.parametrize(
    "override",
    [
        "data.apply_chat_template_kwargs=false",
        "actor_rollout_ref.actor.fsdp_config.mixed_precision=bf16",
        "actor_rollout_ref.model.override_config=2",
        "actor_rollout_ref.model.override_config=eager",
    ],
)
def test_an_open_section_takes_no_value(override: str) -> None:
    with pytest.raises(ConfigError, match="this is a section of keys"):
        compose.compose_config("toy", [override])


@pytest.mark.parametrize(
    "arguments",
    [["grpo", "--model", "", "--data", ""], ["toy", "--data", " "], ["toy", "--set", "LR=1"]],
)
def test_options_without_effect_are_refused(arguments: list[str]) -> None:
    try:
        assert train.main(arguments) == 2
    except SystemExit as error:
        assert error.code == 2


def test_the_window_is_read_only_by_the_asynchronous_trainer() -> None:
    for value, message in (
        ("colocate_async.num_warmup_batches=3", "no effect with .*=recipe_sync"),
        ("colocate_async.num_warmup_batches=-1", "-1"),
        ("separate_async.num_warmup_batches=3", "no effect with .*=recipe_sync"),
    ):
        with pytest.raises(ConfigError, match=message):
            compose.compose_config("toy", [f"trainer.v1.{value}"])


@pytest.mark.parametrize(
    ("command", "buffer"),
    [
        (["toy_methods", "method=dapo"], 16),  # of 80 tokens
        (["own", "method=dapo", "machine=cpu"], 204),  # of 1,024
        (["own", "method=dapo", "data.max_response_length=4"], 1),
        (["own", "method=dapo", "recipe.reward.overlong.buffer=7"], 7),
        (["dapo"], 512),  # the scale sets it
    ],
)
def test_the_overlong_penalty_is_over_a_fifth_of_the_limit(command: list[str], buffer: int) -> None:
    config = compose.compose_config(command[0], command[1:])
    assert config.recipe.reward.overlong.buffer == buffer


@pytest.mark.parametrize(
    ("command", "mini_batch"),
    [
        (["own", "data.train_batch_size=4"], 4),
        (["own", "method=ppo", "data.train_batch_size=6"], 6),
        (["own", "data.train_batch_size=8", "actor_rollout_ref.actor.ppo_mini_batch_size=2"], 2),
        (["own"], 32),
        (["math_methods", "scale=math_level3to5", "data.train_batch_size=64"], 32),  # a paper's
    ],
)
def test_a_mini_batch_of_an_own_run_is_its_batch(command: list[str], mini_batch: int) -> None:
    config = compose.compose_config(command[0], command[1:])
    assert config.actor_rollout_ref.actor.ppo_mini_batch_size == mini_batch
    assert config.critic.ppo_mini_batch_size == mini_batch


def test_a_path_names_the_users_folder_and_a_name_the_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy/config.yaml").write_text("defaults: [recipe]\n")
    assert compose.example_folder("./toy") == compose.example_folder("toy/") == tmp_path / "toy"
    assert compose.example_folder("toy") == compose.EXAMPLES / "toy"
