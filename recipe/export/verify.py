"""Verify that a merged model equals its shards, without verl's code.

The merger concatenates the pieces of a tensor. Here each piece of each rank is compared with the
merged tensor at the place that its rank and its placements give it, and all pieces of one replica
must cover the tensor.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from prompt_aug.base.errors import UserError
from recipe.export import Lora, MismatchError
from recipe.export import lora as adapters
from recipe.export.shards import load_shard
from recipe.machine import model_files
from recipe.run.checkpoints import shard_name


def load_shards(source: Path, world_size: int) -> list[adapters.State]:
    """Return the state dict of each rank, memory-mapped."""
    return [
        load_shard(source / shard_name("model", world_size, rank)) for rank in range(world_size)
    ]


def _place(part: DTensor, rank: int) -> tuple[slice, ...]:
    """Return the place of the part that `rank` holds in the whole tensor."""
    mesh = part.device_mesh
    # The mesh in a file is that of the process which wrote it.
    if (mesh.mesh == rank).nonzero().tolist() != [list(mesh.get_coordinate() or ())]:
        raise MismatchError(f"the shard of rank {rank} was written by another rank")
    shape, start = compute_local_shape_and_global_offset(part.shape, mesh, part.placements)
    return tuple(slice(s, s + n) for s, n in zip(start, shape, strict=True))


def _pieces(parts: list[torch.Tensor]) -> Iterator[tuple[tuple[slice, ...], torch.Tensor]]:
    """Yield (place, local values) of each rank's part of one entry. Raises MismatchError."""
    for rank, part in enumerate(parts):
        if isinstance(part, DTensor):
            yield _place(part, rank), part._local_tensor
        else:
            yield tuple(slice(0, n) for n in part.shape), part


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def compare(
    shards: list[adapters.State],
    model: adapters.State,
    dtype: torch.dtype,
    added: adapters.State | None = None,
) -> int:
    """Check that `model` equals `shards` cast to `dtype`, bit for bit; return its elements.

    `added`: what an adapter adds to weights, by name. Each tensor must be covered by its pieces and
    be finite. MismatchError names the entry.
    """
    for rank, shard in enumerate(shards):
        if set(shard) != set(model):
            odd = sorted(set(shard) ^ set(model))
            raise MismatchError(
                f"rank {rank} and the merged model differ in {len(odd)} names: {', '.join(odd[:3])}"
            )
    elements = 0
    for name, tensor in model.items():
        parts = [shard[name] for shard in shards]
        wanted = dtype if parts[0].is_floating_point() else parts[0].dtype
        if tensor.shape != parts[0].shape or tensor.dtype != wanted:
            raise MismatchError(
                f"{name}: merged {tensor.dtype} {tuple(tensor.shape)}, "
                f"shards {wanted} {tuple(parts[0].shape)}"
            )
        covered = torch.zeros(tensor.shape, dtype=torch.bool)
        for place, local in _pieces(parts):
            if added and name in added:
                local = local + added[name][place]
            if not bool(torch.isfinite(local).all()):
                raise MismatchError(f"{name} holds values that are not finite: training diverged")
            if not torch.equal(_bits(tensor[place]), _bits(local.to(wanted))):
                raise MismatchError(f"{name}: the merged values differ from the shards")
            covered[place] = True
        if not bool(covered.all()):
            raise MismatchError(f"{name}: the shards do not cover the whole tensor")
        elements += tensor.numel()
    return elements


def without_adapter(
    shards: list[adapters.State], target: Path, lora: Lora
) -> tuple[list[adapters.State], adapters.State]:
    """Return the start model's shards and what the written adapter adds to them."""
    from safetensors.torch import load_file

    adapter = {}
    for name in filter(adapters.is_adapter, shards[0]):
        parts = [shard[name] for shard in shards]
        adapter[name] = torch.full(parts[0].shape, torch.nan)
        for place, local in _pieces(parts):
            adapter[name][place] = local.float()
    written = load_file(target / adapters.FOLDER / "adapter_model.safetensors")
    wanted = adapters.peft_names(adapter)
    if written.keys() != wanted.keys() or any(
        not torch.equal(written[name].float(), value) for name, value in wanted.items()
    ):
        raise MismatchError("the written adapter differs from the shards, or is not finite")
    start = [
        {adapters.plain(n): t for n, t in shard.items() if not adapters.is_adapter(n)}
        for shard in shards
    ]
    added = adapters.deltas(adapter, lora)
    if strange := added.keys() - start[0].keys():
        raise MismatchError(f"the adapter is of layers that the model has not: {min(strange)}")
    return start, added


def verify(
    source: Path,
    target: Path,
    dtype: torch.dtype,
    world_size: int,
    loader: Any,
    lora: Lora | None = None,
) -> int:
    """Compare what loads of `target` with the checkpoint; return the number of parameters."""
    shards = load_shards(source, world_size)
    model, info = loader.from_pretrained(target, dtype=dtype, output_loading_info=True)
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info.get(problem):
            raise MismatchError(
                f"the merged model loads with {problem}: {sorted(info[problem])[:3]}"
            )
    added: adapters.State = {}
    if lora:
        shards, added = without_adapter(shards, target, lora)
    compare(shards, model.state_dict(), dtype, added)
    try:
        model_files.compare(str(target), model_files.describe(str(source / "huggingface")), ())
    except UserError as error:
        raise MismatchError(f"the exported tokenizer or configuration: {error}") from error
    return sum(parameter.numel() for parameter in model.parameters())
