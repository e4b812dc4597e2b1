"""Sizes that follow from model and machine: goldens by hand for a made-up model."""

import json
import os
import re
from pathlib import Path

import pytest
from omegaconf import DictConfig

from prompt_aug.base.errors import UsageError
from recipe import shortcut
from recipe.config import sizes
from recipe.config.compose import compose_config, on_this_machine
from recipe.preflight.data import files
from recipe.preflight.machine import cpu_engine, cpu_memory
from recipe.preflight.rules import Setup
from recipe.run import host
from recipe.run.environment import ENGINE_THREADS

# Embedding 49,152 x 576 (tied); 30 layers of 3,540,096 parameters; one norm: 134,515,008 in all.
SMOLLM2 = {
    "model_type": "llama",
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "config.json").write_text(json.dumps(SMOLLM2))
    monkeypatch.setattr(sizes, "multiplies_bfloat16", lambda: True)
    monkeypatch.setattr(sizes, "total_memory", lambda: 24e9)
    return str(tmp_path)


def composed(model: str, *more: str) -> DictConfig:
    return compose_config("smollm2", ["machine=cpu", f"recipe.model_path={model}", *more])


def test_sizes_of_a_real_model(model: str) -> None:
    config = composed(model)
    rollout = config.actor_rollout_ref.rollout
    assert rollout.dtype == "bfloat16"
    assert config.actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype == "bfloat16"
    assert rollout.checkpoint_engine.update_weights_bucket_megabytes == 109  # 108 MiB, and one
    assert config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu == 2048
    assert rollout.log_prob_max_token_len_per_gpu == 2048


def test_memory_by_hand(model: str) -> None:
    shape = sizes.known_shape(model)
    assert shape is not None and shape.parameters == 134_515_008
    # 128 sequences of 416 tokens x 23,040 bytes in 16 bits
    cache = 128 * 416 * 23_040
    token = 30 * 2 * (5760 + 6144) + 49_152 * 8
    wanted = 6e9 + 18 * 134_515_008 + cache + 2 * 109e6 + 2048 * token
    assert sizes.memory(composed(model), shape) == pytest.approx(wanted)


def test_a_value_that_is_set_stays(model: str) -> None:
    config = composed(model, "actor_rollout_ref.rollout.dtype=float32")
    assert config.actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype == "float32"
    config = composed(model, "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=777")
    assert config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu == 777


def test_less_memory_gives_smaller_micro_batches(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, "total_memory", lambda: 11.5e9)
    config = composed(model)
    tokens = config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu
    assert 416 < tokens < 2048
    shape = sizes.known_shape(model)
    assert shape and sizes.memory(config, shape) <= 0.95 * 11.5e9
    assert not list(cpu_memory(Setup(config)))


@pytest.mark.parametrize(
    ("key", "value", "more"),
    [
        ("ppo_max_token_len_per_gpu", 20000, []),
        ("ppo_micro_batch_size_per_gpu", 64, ["actor_rollout_ref.actor.use_dynamic_bsz=false"]),
    ],
)
def test_what_does_not_fit_is_rejected_with_what_fits(
    model: str, key: str, value: int, more: list[str]
) -> None:
    name = f"actor_rollout_ref.actor.{key}"
    (message,) = cpu_memory(Setup(composed(model, *more, f"{name}={value}")))
    assert message.startswith(f"{name}={value}: ")
    most = re.search(r"at most (\d+)", message)
    assert most is not None
    assert not list(cpu_memory(Setup(composed(model, *more, f"{name}={most[1]}"))))


def test_a_model_that_never_fits_is_rejected(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "total_memory", lambda: 8e9)
    (message,) = cpu_memory(Setup(composed(model)))
    assert message.startswith("recipe.model_path=")


def test_the_missing_files_of_smollm2_name_the_command_that_makes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    messages = list(files(Setup(compose_config("smollm2", ["machine=cpu"]))))
    keys = ["recipe.model_path", "data.train_files", "data.val_files"]
    assert [message.partition("=")[0] for message in messages] == keys
    assert all("`bash scripts/smollm2.sh`" in message for message in messages)


def test_the_toy_stays_in_float32() -> None:
    config = compose_config("toy", [])
    assert config.actor_rollout_ref.rollout.dtype == "float32"
    assert config.actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes == 16


@pytest.mark.parametrize(
    ("given", "actor", "small", "large"),
    [
        (None, "6", "3", "6"),  # one per core that this process may use
        ("", "6", "3", "6"),
        ("1", "1", "1", "1"),
        ("5", "5", "2", "5"),
        ("8,2", "8,2", "4", "8"),  # the outer level of OpenMP
        ("many", "many", "1", "1"),  # OpenMP ignores it; so does this
    ],
)
def test_threads(
    model: str,
    monkeypatch: pytest.MonkeyPatch,
    given: str | None,
    actor: str,
    small: str,
    large: str,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    of_toy, of_model = (
        sizes.environment(compose_config("toy", [])),
        sizes.environment(composed(model)),
    )
    assert of_toy["OMP_NUM_THREADS"] == of_model["OMP_NUM_THREADS"] == actor
    assert (of_toy[ENGINE_THREADS], of_model[ENGINE_THREADS]) == (small, large)
    assert (of_toy["VLLM_CPU_KVCACHE_SPACE"], of_model["VLLM_CPU_KVCACHE_SPACE"]) == ("1", "2")


def test_the_machine_is_found_unless_it_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.yaml").write_text("defaults: [recipe]\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert on_this_machine(tmp_path, ["a=1"]) == ["machine=cpu", "a=1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    assert host.gpus_here() == 2
    two = ["machine=gpu", "trainer.n_gpus_per_node=2"]
    assert on_this_machine(tmp_path, ["machine=auto"]) == two
    assert on_this_machine(tmp_path, ["machine=cpu"]) == ["machine=cpu"]
    monkeypatch.setenv("RECIPE_MACHINE", "cpu")
    assert on_this_machine(tmp_path, []) == ["machine=cpu"]
    (tmp_path / "config.yaml").write_text("defaults: [recipe, {override machine: gpu}]\n")
    assert on_this_machine(tmp_path, []) == []


def test_an_unknown_method_names_those_that_exist() -> None:
    with pytest.raises(UsageError, match="grpo"):
        shortcut.expand("gpro", "model", "data", [])
    with pytest.raises(UsageError, match="--data"):
        shortcut.expand("grpo", "model", None, [])


def test_a_model_that_cannot_be_reached_is_rejected_before_the_data_are_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shortcut, "hub_answers", lambda _: False)
    for name in ("some/model", str(tmp_path / "none")):
        with pytest.raises(UsageError, match=f"--model {name}: "):
            shortcut.expand("grpo", name, "no data", [])
    with pytest.raises(UsageError, match="--data"):
        shortcut.expand("grpo", str(tmp_path), None, [])
    assert shortcut.reachable(str(tmp_path))


def test_the_short_form_stands_for_the_long_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(300)]
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shortcut, "hub_answers", lambda _: True)
    long = shortcut.expand("dapo", "some/model", "sums.jsonl", ["recipe.seed=3"])
    assert long[:3] == ["own", "method=dapo", "recipe.model_path=some/model"]
    assert long[-1] == "recipe.seed=3"
    assert all(Path(text.split("[")[1][:-1]).is_file() for text in long[3:5])
    made = (tmp_path / "data/sums/train.parquet").stat().st_mtime_ns
    assert shortcut.expand("dapo", "some/model", "sums.jsonl", ["recipe.seed=3"]) == long
    assert (tmp_path / "data/sums/train.parquet").stat().st_mtime_ns == made


@pytest.mark.parametrize(
    ("multiplies", "dtype", "refused"),
    [(False, "bfloat16", True), (True, "bfloat16", False), (False, "float32", False)],
)
def test_16_bits_need_a_processor_that_multiplies_them(
    monkeypatch: pytest.MonkeyPatch, model: str, multiplies: bool, dtype: str, refused: bool
) -> None:
    monkeypatch.setattr(host, "multiplies_bfloat16", lambda: multiplies)
    config = composed(model, f"actor_rollout_ref.rollout.dtype={dtype}")
    assert [message.partition(":")[0] for message in cpu_engine(Setup(config))] == (
        [f"actor_rollout_ref.rollout.dtype={dtype}"] if refused else []
    )
