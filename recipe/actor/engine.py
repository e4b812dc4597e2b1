"""verl's FSDP engine with prefix trees: the actor and the reference model on a CPU.

Loaded by ``actor_rollout_ref.model.external_lib=recipe.actor.engine`` (config/machine/cpu.yaml).
With ``recipe.patches.cpu.engines`` verl's own engine runs, which computes each row separately.
tests/recipe/actor compares values and gradients of the two.
"""

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla, get_policy_loss_fn
from verl.utils import tensordict_utils as tu
from verl.utils import torch_functional as functional
from verl.utils.model import extract_multi_modal_inputs
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

import recipe.patches.cpu.engines  # noqa: F401  (verl's own classes for the device cpu)
from recipe.actor.prefix_tree import FULL, SLIDING, Forest, batches, padded_batches, plant
from recipe.patches.logprobs import logprobs_of_nodes, part_size

# Model types in which tokens interact only through causal attention.
SUPPORTED = ("gemma", "gemma3_text", "granite", "llama", "olmo2", "qwen2", "qwen3", "smollm3")
# Settings that must be off, with verl's value where the key is absent.
NOT_PLAIN = {
    "use_remove_padding": True,
    "use_fused_kernels": False,
    "distillation_use_topk": False,
    "distillation_only": False,
}
# Values of a node's logits, by the key `calculate_NAME` of a micro-batch.
STATISTICS = {
    "entropy": functional.entropy_from_logits,
    "sum_pi_squared": functional.calculate_sum_pi_squared_from_logits,
}
# Keys of a batch or micro-batch, set by `PrefixTreeEngine` and `by_prefix`.
SKIPS_ZEROS = "rows_without_advantage_have_no_gradient"
NO_GRADIENT = "no_gradient"
SEPARATE = "rows_are_computed_separately"


def supported(model: torch.nn.Module) -> bool:
    """Return whether the model has causal attention by a mask, and no dropout."""
    config: Any = model.config
    known = {*(getattr(config, "layer_types", None) or [FULL])} <= {FULL, SLIDING}
    # Only SDPA accepts a boolean mask: "eager" would add it to the scores.
    by_mask = config.model_type in SUPPORTED and config._attn_implementation == "sdpa"
    one_way = not getattr(config, "use_bidirectional_attention", False)
    causal = getattr(config, "is_causal", True) and one_way
    # Rows that share a node would share its dropout mask.
    dropout = config.attention_dropout or any(
        isinstance(part, torch.nn.Dropout) and part.p > 0 for part in model.modules()
    )
    return bool(known and by_mask and causal and not dropout)


def is_zero_without_advantage(loss_function: Any) -> bool:
    """Return whether the gradient of verl's loss is exactly 0 where all advantages are 0.

    True for the clipped surrogate alone; a KL term or an entropy bonus has a gradient of its own.
    """
    config: Any = getattr(loss_function, "keywords", {}).get("config")
    mode = getattr(getattr(config, "policy_loss", None), "loss_mode", None)
    plain = mode == "vanilla" and get_policy_loss_fn(mode) is compute_policy_loss_vanilla
    return plain and not config.use_kl_loss and not config.entropy_coeff


def by_prefix(data: TensorDict, **options: Any) -> tuple[list[TensorDict], list[list[int]]]:
    """Replaces verl's `prepare_micro_batches`: a token budget counts shared prefixes once.

    verl balances rows over micro-batches by length, which scatters the rows of a question. Here
    rows with common prefixes are in one micro-batch. Rows without any advantage come first, in
    micro-batches of their own, which need no backward pass (`SKIPS_ZEROS`). The last micro-batch
    always has one: FSDP reduces the gradients there, and Adam needs them, if only zeros.
    """
    dynamic = tu.get_non_tensor_data(data, "use_dynamic_bsz", True)
    group = options.get("dp_group")
    ranks = torch.distributed.get_world_size(group) if group is not None else 1
    # A critic sets no such key: it computes rows separately, so that no token would count once.
    separate = tu.get_non_tensor_data(data, SEPARATE, True)
    packed = tu.get_non_tensor_data(data, "use_remove_padding", True)
    # Several ranks must have equally many micro-batches.
    if not dynamic or ranks > 1 or (separate and packed):
        return VERLS(data=data, **options)
    split = padded_batches if separate else batches
    rows = [row.tolist() for row in data["input_ids"].unbind()]
    skips = tu.get_non_tensor_data(data, SKIPS_ZEROS, False)
    silent = [False] * len(rows)
    if skips:
        silent = [not bool(row.any()) for row in data["advantages"].unbind()]
    indices: list[list[int]] = []
    micro_batches = []
    for kind in (True, False):
        chosen = [index for index, is_silent in enumerate(silent) if is_silent is kind]
        for part in split([rows[i] for i in chosen], data["max_token_len_per_gpu"]):
            indices.append([chosen[i] for i in part])
            micro_batches.append(tu.index_select_tensor_dict(data, indices[-1]))
            tu.assign_non_tensor(micro_batches[-1], **{NO_GRADIENT: kind})
    tu.assign_non_tensor(micro_batches[-1], **{NO_GRADIENT: False})
    return micro_batches, indices


VERLS = transformer_impl.prepare_micro_batches
transformer_impl.prepare_micro_batches = by_prefix


class PrefixTreeEngine(FSDPEngineWithLMHead):
    """Computes the common prefixes of a micro-batch's rows once.

    With dynamic micro-batches (`by_prefix`) logits are computed only where they are read: a prompt
    needs those of its last token alone. Unsupported inputs fall back to verl's implementation:
    packed rows, fused kernels, images, distillation, other types of models.

    Overrides of verl:
      forward_backward_batch  whether rows without advantage have no gradient, or share no prefix
      forward_step            no graph for a micro-batch of such rows
      prepare_model_inputs    a forest instead of padded rows
      prepare_model_outputs   the value of every token from its node
    """

    _read: Tensor | None = None  # nodes whose logits are read in this forward pass; None: all
    _head: torch.nn.Module | None = None  # the output matrix that selects them

    def forward_backward_batch(
        self, data: TensorDict, loss_function: Callable[..., Any], forward_only: bool = False
    ) -> Any:
        skips = not forward_only and is_zero_without_advantage(loss_function)
        separate = not supported(self.module)
        tu.assign_non_tensor(data, **{SKIPS_ZEROS: skips, SEPARATE: separate})
        return super().forward_backward_batch(data, loss_function, forward_only)

    def forward_step(
        self, micro_batch: TensorDict, loss_function: Callable[..., Any], forward_only: bool
    ) -> Any:
        if forward_only or not tu.get_non_tensor_data(micro_batch, NO_GRADIENT, False):
            return super().forward_step(micro_batch, loss_function, forward_only)
        with torch.no_grad():
            loss, output = super().forward_step(micro_batch, loss_function, forward_only)
        return loss.detach().requires_grad_(), output  # verl calls backward(): a leaf, no effect

    def prepare_model_inputs(self, micro_batch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        if not self._plain(micro_batch):
            return super().prepare_model_inputs(micro_batch)
        rows = micro_batch["input_ids"]
        forest = plant([row.tolist() for row in rows.unbind()])
        # As in verl, the label of a row's last token is the next row's first token; that value is
        # never read.
        arguments = {"forest": forest, "labels": rows.values().roll(-1)}
        if NO_GRADIENT in micro_batch and "prompts" in micro_batch:  # of `by_prefix`
            arguments["token"] = response_places(micro_batch)
            self._read, arguments["node"] = forest.node_N[arguments["token"]].unique(
                return_inverse=True
            )
            if self._head is None:
                self._head = self.module.get_output_embeddings()
                self._head.register_forward_pre_hook(self._select)
        return forest.inputs(self.module.config), arguments

    def _select(self, _: torch.nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if self._read is None:
            return inputs
        return (inputs[0].flatten(0, 1)[self._read].unsqueeze(0),)

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
        self._read = None
        forest: Forest | None = output_args.get("forest")
        if forest is None:
            return super().prepare_model_outputs(
                output, output_args, micro_batch, logits_processor_func
            )
        labels = output_args["labels"]
        token, node = output_args.get("token"), output_args.get("node", forest.node_N)
        logits = output.logits.flatten(0, 1)
        temperature = torch.tensor(float(micro_batch["temperature"]))
        if temperature != 1.0:  # as in verl: with its floor, in the dtype of the logits
            logits = logits / temperature.clamp(min=1e-8).to(logits.dtype)
        read = labels if token is None else labels[token]
        values = {"log_probs": logprobs_of_nodes(logits, read, node)}
        for name, function in STATISTICS.items():
            if tu.get_non_tensor_data(micro_batch, f"calculate_{name}", False):
                # A part at a time: the softmax of all would be two more copies of the logits.
                of_nodes = torch.cat([function(part) for part in logits.split(part_size(logits))])
                values[name] = of_nodes.gather(0, node)
        if token is not None:  # values of the prompts are not read
            values = {
                name: value.new_zeros(len(labels)).index_put((token,), value)
                for name, value in values.items()
            }
        offsets = micro_batch["input_ids"].offsets()
        return {
            name: torch.nested.nested_tensor_from_jagged(value, offsets)
            for name, value in values.items()
        }


def response_places(micro_batch: Any) -> Tensor:
    """Return the places whose value is read, in the concatenated rows: those before a response's.

    The value at a place is that of the token after it (verl's `no_padding_2_padding`).
    """
    ends = micro_batch["input_ids"].offsets()[1:].tolist()
    lengths = micro_batch["responses"].offsets().diff().tolist()
    return torch.cat(
        [torch.arange(end - n - 1, end - 1) for end, n in zip(ends, lengths, strict=True)]
    )


for backends in EngineRegistry._engines["language_model"].values():
    if "cpu" in backends and issubclass(PrefixTreeEngine, backends["cpu"]):
        backends["cpu"] = PrefixTreeEngine
