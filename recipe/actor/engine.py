"""verl's FSDP engine with prefix trees: the actor and the reference model on a CPU.

Named by ``actor_rollout_ref.model.external_lib`` (`config/machine/cpu.yaml`). With
``recipe.patches.cpu.engines`` in its place the engine is verl's own, which computes each row by
itself; `scripts/bench.py step` compares the times, tests/recipe/actor the values and gradients.
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

# Causal attention is the only way in which a token of these sees others.
KNOWN = ("llama", "qwen2", "qwen3")
# What makes verl's batch anything but plain rows of text.
NOT_PLAIN = {
    "use_remove_padding": True,  # verl's values where the key is absent
    "use_fused_kernels": False,
    "distillation_use_topk": False,
    "distillation_only": False,
}


def suits(model: torch.nn.Module) -> bool:
    """Whether a forest is the same for it: full causal attention by a mask, nothing drawn."""
    config: Any = model.config
    full = set(getattr(config, "layer_types", None) or ["full_attention"]) == {"full_attention"}
    # Only SDPA takes a mask of booleans: "eager" would add it to the scores.
    known = config.model_type in KNOWN and config._attn_implementation == "sdpa"
    causal = getattr(config, "is_causal", True)
    # What a dropout draws for a node all rows through it would share.
    drawn = config.attention_dropout or any(
        isinstance(part, torch.nn.Dropout) and part.p > 0 for part in model.modules()
    )
    return bool(full and known and causal and not drawn)


def values_of(logits_NV: Tensor, labels: Tensor, node: Tensor) -> Tensor:
    """log softmax(logits[node])[labels], float32, of logits of nodes that several tokens share."""
    chosen = logits_NV.flatten().gather(0, node * logits_NV.shape[-1] + labels).float()
    lse_N = torch.cat([part.float().logsumexp(-1) for part in logits_NV.split(CHUNK)])
    return chosen - lse_N.gather(0, node)


class PrefixTreeEngine(FSDPEngineWithLMHead):
    """Rows of a micro-batch that begin alike share the computation of their beginning.

    The largest micro-batches share most. What this does not know goes verl's way: packed rows,
    fused kernels, images, distillation, models of other kinds.

    Overrides of verl:
      prepare_model_inputs    a forest in place of padded rows
      prepare_model_outputs   every token's value from the node that it shares
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
        # As in verl the last token of a row has the first one of the next as its label; nothing
        # reads that value.
        return inputs, {"forest": forest, "labels": rows.values().roll(-1)}

    def _plain(self, micro_batch: Any) -> bool:
        """Whether the micro-batch is rows of text from position 0, at one temperature."""
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
        return from_0 and suits(self.module)

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
        if temperature != 1.0:  # as verl does it: its floor, and in the dtype of the logits
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
