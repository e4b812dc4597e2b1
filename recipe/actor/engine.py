"""verl's FSDP engine with prefix trees: the actor and the reference model on a CPU.

Loaded by ``actor_rollout_ref.model.external_lib=recipe.actor.engine`` (config/machine/cpu.yaml).
With ``recipe.patches.cpu.engines`` verl's own engine runs, which computes each row separately.
tests/recipe/actor compares values and gradients of the two.
"""

from typing import Any

import torch
from torch import Tensor
from verl.utils import tensordict_utils as tu
from verl.utils import torch_functional as functional
from verl.utils.model import extract_multi_modal_inputs
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

import recipe.patches.cpu.engines  # noqa: F401  (verl's own classes for the device cpu)
from recipe.actor.prefix_tree import Forest, plant
from recipe.patches.logprobs import CHUNK

# Model types in which tokens interact only through causal attention.
SUPPORTED = ("llama", "qwen2", "qwen3")
# Settings that must be off, with verl's value where the key is absent.
NOT_PLAIN = {
    "use_remove_padding": True,
    "use_fused_kernels": False,
    "distillation_use_topk": False,
    "distillation_only": False,
}


def supported(model: torch.nn.Module) -> bool:
    """Return whether the model has full causal attention by a mask, and no dropout."""
    config: Any = model.config
    full = set(getattr(config, "layer_types", None) or ["full_attention"]) == {"full_attention"}
    # Only SDPA accepts a boolean mask: "eager" would add it to the scores.
    by_mask = config.model_type in SUPPORTED and config._attn_implementation == "sdpa"
    causal = getattr(config, "is_causal", True)
    # Rows that share a node would share its dropout mask.
    dropout = config.attention_dropout or any(
        isinstance(part, torch.nn.Dropout) and part.p > 0 for part in model.modules()
    )
    return bool(full and by_mask and causal and not dropout)


def values_of(logits_NV: Tensor, labels: Tensor, node: Tensor) -> Tensor:
    """log softmax(logits[node])[labels], float32; several tokens may share the logits of a node."""
    chosen = logits_NV.flatten().gather(0, node * logits_NV.shape[-1] + labels).float()
    lse_N = torch.cat([part.float().logsumexp(-1) for part in logits_NV.split(CHUNK)])
    return chosen - lse_N.gather(0, node)


class PrefixTreeEngine(FSDPEngineWithLMHead):
    """Computes the common prefixes of a micro-batch's rows once.

    The largest micro-batches share most. Unsupported inputs fall back to verl's implementation:
    packed rows, fused kernels, images, distillation, other types of models.

    Overrides of verl:
      prepare_model_inputs    a forest instead of padded rows
      prepare_model_outputs   the value of every token from its node
    """

    def prepare_model_inputs(self, micro_batch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        if not self._plain(micro_batch):
            return super().prepare_model_inputs(micro_batch)
        rows = micro_batch["input_ids"]
        forest = plant([row.tolist() for row in rows.unbind()])
        inputs = {
            "input_ids": forest.ids_FL,
            "attention_mask": forest.sees_F1LL,
            "position_ids": forest.depth_FL,
        }
        # As in verl, the label of a row's last token is the next row's first token; that value is
        # never read.
        return inputs, {"forest": forest, "labels": rows.values().roll(-1)}

    def _plain(self, micro_batch: Any) -> bool:
        """Return whether the micro-batch is rows of text from position 0, at one temperature."""
        if any(tu.get_non_tensor_data(micro_batch, k, absent) for k, absent in NOT_PLAIN.items()):
            return False
        rows, positions = micro_batch["input_ids"], micro_batch["position_ids"]
        if isinstance(micro_batch["temperature"], Tensor) or positions.dim() != 2:
            return False
        if extract_multi_modal_inputs(micro_batch.get("multi_modal_inputs", [])):
            return False
        offsets = rows.offsets()
        start = offsets[:-1].repeat_interleave(offsets.diff())
        from_0 = torch.equal(positions.values(), torch.arange(int(offsets[-1])) - start)
        return from_0 and supported(self.module)

    def prepare_model_outputs(
        self, output: Any, output_args: dict[str, Any], micro_batch: Any, logits_processor_func: Any
    ) -> dict[str, Tensor]:
        forest: Forest | None = output_args.get("forest")
        if forest is None:
            return super().prepare_model_outputs(
                output, output_args, micro_batch, logits_processor_func
            )
        logits = output.logits.flatten(0, 1)
        temperature = torch.tensor(float(micro_batch["temperature"]))
        if temperature != 1.0:  # as in verl: with its floor, in the dtype of the logits
            logits = logits / temperature.clamp(min=1e-8).to(logits.dtype)
        values = {"log_probs": values_of(logits, output_args["labels"], forest.node_N)}
        if tu.get_non_tensor_data(micro_batch, "calculate_entropy", False):
            entropy = functional.entropy_from_logits(logits)
            values["entropy"] = entropy.gather(0, forest.node_N)
        if tu.get_non_tensor_data(micro_batch, "calculate_sum_pi_squared", False):
            squares = functional.calculate_sum_pi_squared_from_logits(logits)
            values["sum_pi_squared"] = squares.gather(0, forest.node_N)
        offsets = micro_batch["input_ids"].offsets()
        return {
            name: torch.nested.nested_tensor_from_jagged(value, offsets)
            for name, value in values.items()
        }


for backends in EngineRegistry._engines["language_model"].values():
    if "cpu" in backends and issubclass(PrefixTreeEngine, backends["cpu"]):
        backends["cpu"] = PrefixTreeEngine
