"""Rules about LoRA: the layers with an adapter, and settings that verl would train otherwise."""

from typing import Any

import pytest
from omegaconf import OmegaConf

from recipe.errors import ConfigError
from recipe.preflight.checks import validate
from recipe.preflight.lora import LAYERS, adapted
from recipe.preflight.rules import SHORT, Setup


@pytest.fixture
def lora(toy_config: Any) -> Any:
    config = toy_config.copy()
    config.actor_rollout_ref.model.lora_rank = 8
    config.actor_rollout_ref.model.lora.merge = True
    return config


@pytest.mark.parametrize(
    ("targets", "excluded", "layers"),
    [
        ("all-linear", None, list(LAYERS)),
        ("all-linear", ["q_proj", "k_proj"], list(LAYERS[2:])),
        (["up_proj", "v_proj"], None, ["up_proj", "v_proj"]),
        (["up_proj", "v_proj"], ["v_proj"], ["up_proj"]),
    ],
)
def test_layers_with_an_adapter(lora: Any, targets: Any, excluded: Any, layers: list[str]) -> None:
    lora.actor_rollout_ref.model.target_modules = targets
    lora.actor_rollout_ref.model.exclude_modules = excluded
    validate(lora)
    assert adapted(Setup(lora)) == layers


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("{MODEL}.target_modules", ["qkv_proj"], "unknown are qkv_proj"),
        ("{MODEL}.target_modules", ["lm_head", "v_proj"], "unknown are lm_head"),
        ("{MODEL}.target_modules", ".*proj", "pattern"),
        ("{MODEL}.target_modules", None, "pattern"),
        ("{MODEL}.target_modules", [], "no layer is left"),
        ("{MODEL}.exclude_modules", list(LAYERS), "no layer is left"),
        ("{MODEL}.exclude_modules", "v_proj", "pattern"),
        ("{MODEL}.lora.merge", False, "{MODEL}.lora.merge=true"),
        ("{MODEL}.lora_adapter_path", "x", "recipe.model_path"),
        ("critic.model.lora_rank", 8, "the actor alone"),
        ("{A}.strategy", "fsdp", "{A}.strategy=fsdp2"),
        ("{A}.fsdp_config.model_dtype", "bf16", "{A}.fsdp_config.model_dtype=fp32"),
        ("{A}.fsdp_config.model_dtype", "float16", "{A}.fsdp_config.model_dtype=fp32"),
    ],
)
def test_refused_with_lora(lora: Any, key: str, value: Any, named: str) -> None:
    validate(lora)
    OmegaConf.update(lora, key.format(**SHORT), value)
    with pytest.raises(ConfigError) as refused:
        validate(lora)
    assert key.format(**SHORT) in str(refused.value)
    assert named.format(**SHORT) in str(refused.value)
