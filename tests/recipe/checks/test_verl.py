"""What verl would ignore or find out late is refused before Ray starts."""

import copy
import inspect
from typing import Any

import pytest
import ray
import transfer_queue.interface
from omegaconf import OmegaConf, open_dict

from recipe.checks import verl as preflight_verl
from recipe.errors import ConfigError
from recipe.trainer import task_runner


@pytest.fixture
def config(toy_config: Any) -> Any:
    return toy_config


def changed(config: Any, **settings: Any) -> Any:
    """`config` with ``a__b=value`` as the value of the key a.b."""
    dotted = [f"{key.replace('__', '.')}={value}" for key, value in settings.items()]
    return OmegaConf.merge(config, OmegaConf.from_dotlist(dotted))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"data": {"train_batch_size": 30}},
            "not a multiple of actor_rollout_ref.actor.ppo_mini_batch_size=8",
        ),
        (
            {"actor_rollout_ref": {"actor": {"ppo_micro_batch_size_per_gpu": 48}}},
            "does not divide the 64 rows",
        ),
        (
            {"actor_rollout_ref": {"rollout": {"log_prob_micro_batch_size_per_gpu": 100}}},
            "does not divide the 128 rows",
        ),
        ({"trainer": {"n_gpus_per_node": 3}}, "does not divide over 3 data-parallel ranks"),
    ],
)
def test_batches_that_do_not_divide_are_refused(config: Any, change: dict, message: str) -> None:
    preflight_verl.check_batches(config)  # as it stands it is fine
    with pytest.raises(ConfigError, match=message):
        preflight_verl.check_batches(OmegaConf.merge(config, change))


ACTOR, ROLLOUT = "actor_rollout_ref__actor", "actor_rollout_ref__rollout"


@pytest.mark.parametrize(
    "key", ["ulysses_sequence_parallel_size", "fsdp_config__ulysses_sequence_parallel_size"]
)
def test_sequence_parallelism_by_either_key_leaves_fewer_ranks(config: Any, key: str) -> None:
    eight = changed(config, trainer__n_gpus_per_node=8)
    assert preflight_verl.data_parallel_ranks(eight) == 8
    assert preflight_verl.data_parallel_ranks(changed(eight, **{f"{ACTOR}__{key}": 2})) == 4


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("custom_reward_function__path", "x.py", "no effect"),
        ("reward__custom_reward_function__path", "x.py", "no effect"),
        ("trainer__balance_batch", "false", "no effect"),
        ("reward__reward_model__enable", "true", "this project's grader"),
        ("distillation__enabled", "true", "asks no teacher"),
        ("actor_rollout_ref__model__lora_rank", "8", "only full-parameter training"),
        ("actor_rollout_ref__model__lora_adapter_path", "x", "only full-parameter training"),
        ("trainer__resume_mode", "disable", "another folder"),
        ("trainer__resume_mode", "resume_path", "recipe.model_path"),
        (f"{ACTOR}__checkpoint__async_save", "true", "from its first step"),
        (f"{ROLLOUT}__full_determinism", "true", "would be the same"),
        ("trainer__v1__trainer_mode", "separate_async", "must be recipe_sync"),
    ],
)
def test_what_would_be_ignored_or_break_a_promise_is_refused(
    config: Any, key: str, value: str, message: str
) -> None:
    preflight_verl.check_verl(config)
    with pytest.raises(ConfigError, match=message):
        preflight_verl.check_verl(changed(config, **{key: value}))


@pytest.mark.parametrize("key", ["mm_processor_kwargs"])
def test_arguments_of_a_processor_that_nobody_reads_are_refused(config: Any, key: str) -> None:
    """They are no keys of verl's, so any would pass from a file."""
    assert config.data[key] == {}
    given = copy.deepcopy(config)
    with open_dict(given):
        given.data[key] = {"size": 3}
    with pytest.raises(ConfigError, match=rf"data\.{key}=.* has no effect"):
        preflight_verl.check_verl(given)


def test_the_longest_prompt_and_response_must_fit(config: Any) -> None:
    longest = config.data.max_prompt_length + config.data.max_response_length
    fits = changed(config, **{f"{ROLLOUT}__max_model_len": longest})
    preflight_verl.check_lengths(fits)
    for value in (longest - 1, "null"):
        with pytest.raises(ConfigError, match="silently cut responses"):
            preflight_verl.check_lengths(changed(fits, **{f"{ROLLOUT}__max_model_len": value}))
    for key, dynamic in (
        (f"{ACTOR}__ppo_max_token_len_per_gpu", f"{ACTOR}__use_dynamic_bsz"),
        (f"{ROLLOUT}__log_prob_max_token_len_per_gpu", f"{ROLLOUT}__log_prob_use_dynamic_bsz"),
    ):
        short = changed(fits, **{key: longest - 1})
        preflight_verl.check_lengths(changed(short, **{dynamic: "false"}))
        with pytest.raises(ConfigError, match=f"{longest} or more"):
            preflight_verl.check_lengths(changed(short, **{dynamic: "true"}))
        halves = {key: (longest + 1) // 2, f"{ACTOR}__ulysses_sequence_parallel_size": 2}
        preflight_verl.check_lengths(changed(fits, **{dynamic: "true", **halves}))


def test_a_joint_limit_of_prompt_and_response_has_to_be_said(config: Any) -> None:
    short = changed(config, **{f"{ROLLOUT}__max_model_len": config.data.max_prompt_length + 1})
    with pytest.raises(ConfigError, match=r"recipe\.rollout\.joint_limit=true"):
        preflight_verl.check_lengths(short)
    preflight_verl.check_lengths(changed(short, recipe__rollout__joint_limit="true"))


def test_the_reference_model_has_sequence_ranks_of_its_own(config: Any) -> None:
    """verl's new key of the actor says nothing of the reference model, the old one does."""
    longest = config.data.max_prompt_length + config.data.max_response_length
    halves = {
        f"{ACTOR}__use_dynamic_bsz": "true",
        f"{ROLLOUT}__log_prob_use_dynamic_bsz": "true",
        "actor_rollout_ref__ref__log_prob_use_dynamic_bsz": "true",
        f"{ACTOR}__ppo_max_token_len_per_gpu": (longest + 1) // 2,
        f"{ROLLOUT}__log_prob_max_token_len_per_gpu": (longest + 1) // 2,
        "actor_rollout_ref__ref__log_prob_max_token_len_per_gpu": (longest + 1) // 2,
    }
    old = "ulysses_sequence_parallel_size"  # the reference model's follows the actor's
    both = {f"{ACTOR}__{old}": 2, f"actor_rollout_ref__ref__{old}": 2}
    preflight_verl.check_lengths(changed(config, **halves, **both))
    new = changed(config, **halves, **{f"{ACTOR}__fsdp_config__ulysses_sequence_parallel_size": 2})
    with pytest.raises(ConfigError, match=r"actor_rollout_ref\.ref\.log_prob_max_token_len"):
        preflight_verl.check_lengths(new)
    preflight_verl.check_lengths(
        changed(new, actor_rollout_ref__ref__fsdp_config__ulysses_sequence_parallel_size=2)
    )


def test_micro_batches_of_the_reference_model_are_of_its_own_ranks(config: Any) -> None:
    """128 responses on 2 GPUs: 64 on a rank, but 128 where two ranks share a sequence."""
    ref = "actor_rollout_ref__ref"
    two = changed(
        config,
        trainer__n_gpus_per_node=2,
        **{f"{ACTOR}__use_kl_loss": "true", f"{ACTOR}__ppo_micro_batch_size_per_gpu": 32},
        **{f"{ROLLOUT}__log_prob_micro_batch_size_per_gpu": 64},
        **{f"{ref}__log_prob_micro_batch_size_per_gpu": 128},
    )
    with pytest.raises(ConfigError, match=r"ref\.log_prob_micro.*divide the 64 rows"):
        preflight_verl.check_batches(two)
    key = f"{ref}__fsdp_config__ulysses_sequence_parallel_size"
    preflight_verl.check_batches(changed(two, **{key: 2}))


def test_a_second_run_in_a_ray_cluster_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def get_actor(name: str, namespace: str) -> str:
        asked.append((name, namespace))
        if len(asked) == 1:
            raise ValueError("no such actor")
        return "the controller of another run"

    monkeypatch.setattr(ray, "get_actor", get_actor)
    task_runner.refuse_shared_queue()
    with pytest.raises(RuntimeError, match="one Ray cluster per run"):
        task_runner.refuse_shared_queue()
    # The names that TransferQueue itself uses: a look-up under others would never refuse.
    source = inspect.getsource(transfer_queue.interface)
    assert 'ray.get_actor("TransferQueueController", namespace="transfer_queue")' in source
    assert asked == [("TransferQueueController", "transfer_queue")] * 2


@pytest.mark.parametrize(
    ("attention", "installed", "ranks", "message"),
    [
        ("sdpa", False, 1, None),
        ("flash_attention_2", True, 2, None),
        ("flash_attention_2", False, 1, "flash-attn is not installed"),
        (None, False, 1, "flash-attn is not installed"),  # what verl takes by itself
        ("sdpa", True, 2, "flash_attention_2 alone"),
    ],
)
def test_an_attention_that_cannot_run_is_refused(
    toy_config: Any,
    monkeypatch: pytest.MonkeyPatch,
    attention: str | None,
    installed: bool,
    ranks: int,
    message: str | None,
) -> None:
    config = copy.deepcopy(toy_config)
    config.actor_rollout_ref.model.override_config.attn_implementation = attention
    config.actor_rollout_ref.actor.ulysses_sequence_parallel_size = ranks
    found = object() if installed else None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: found)
    if message is None:
        preflight_verl.check_attention(config)
    else:
        with pytest.raises(ConfigError, match=message):
            preflight_verl.check_attention(config)
