"""The critic computes attention as its configuration says, with or without flash-attn.

verl 0.9.1 loads the model of a critic with flash_attention_2, whatever attention
``critic.model.override_config`` names. Without the package flash-attn, which
neither of our environments has, no critic starts (``method=ppo``, ``method=pcl``), and verl's error
asks for the package trl.
"""

import functools
from types import ModuleType
from typing import Any

import wrapt


@wrapt.when_imported("verl.utils.model")
def adapt(module: ModuleType) -> None:
    """Replace the function that loads the model; verl imports it at every call."""

    @functools.wraps(module.load_valuehead_model)
    def load(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
        from transformers import AutoModelForTokenClassification

        return AutoModelForTokenClassification.from_pretrained(
            local_path,
            torch_dtype=torch_dtype,
            config=model_config,
            attn_implementation=model_config._attn_implementation,
            trust_remote_code=trust_remote_code,
        )

    module.load_valuehead_model = load  # type: ignore[attr-defined]
