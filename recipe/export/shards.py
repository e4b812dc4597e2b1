"""Divide the FSDP2 shards of a checkpoint over another number of ranks.

When a run resumes on another number of ranks, `recipe.train` calls `reshard` in a process of its
own, since it initializes torch.distributed as each new rank in turn. The recorded number of ranks
changes after all new files are written, so the checkpoint is complete at any moment.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.testing._internal.distributed.fake_pg import FakeStore

from prompt_aug.base.files import read_json, replacing, write_json
from recipe.errors import ConfigError
from recipe.run.checkpoints import RANKS, SHARDS, shard_name, shard_paths


def merged(parts: Sequence[DTensor], rank: int = 0, ranks: int = 1) -> torch.Tensor:
    """Return the chunk of `rank` among `ranks` of the tensor whose parts are given in order.

    Reads only the parts that the chunk overlaps. FSDP divides as ``torch.chunk`` does: every part
    has ceil(n / ranks) rows, the last ones fewer or none.
    """
    # The last dimension of the mesh shards; a first one ("ddp") only replicates.
    placement = parts[0].placements[-1]
    if placement.is_replicate():
        return parts[0]._local_tensor
    if not placement.is_shard():
        raise ConfigError(f"a tensor is {placement}: such shards cannot be merged")
    dim, rows = placement.dim, parts[0].shape[placement.dim]
    size, old = -(-rows // ranks), -(-rows // len(parts))
    low, high = min(rank * size, rows), min((rank + 1) * size, rows)
    first = min(low // old, len(parts) - 1)
    read = [part._local_tensor for part in parts[first : max(first + 1, -(-high // old))]]
    joined = torch.cat(read, dim)
    chunk = joined.narrow(dim, low - first * old if high > low else 0, high - low)
    # torch.save would write the whole storage of a view.
    return joined if chunk.shape == joined.shape else chunk.clone()


def load_shard(path: Path) -> Any:
    """Read a shard; it runs no code."""
    return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


def divided(parts: list[Any], mesh: DeviceMesh, where: str = "") -> Any:
    """Return this rank's shard of a nested state; `parts` are the shards of the old ranks."""
    first = parts[0]
    if isinstance(first, dict):
        return {
            key: divided([part[key] for part in parts], mesh, f"{where}.{key}") for key in first
        }
    if isinstance(first, DTensor):
        last = mesh.ndim - 1
        return DTensor.from_local(
            merged(parts, mesh.get_local_rank(last), mesh.size(last)),
            mesh,
            [Replicate()] * last + [first.placements[-1]],
            run_check=False,
            shape=first.shape,
            stride=first.stride(),
        )
    if isinstance(first, torch.Tensor) and any(not torch.equal(first, part) for part in parts):
        raise ConfigError(
            f"{where.lstrip('.')} is not the same on all ranks and does not state its placement. "
            "Resume with as many ranks as before"
        )
    return first


def reshard(folder: Path, ranks: int, device: str = "cpu", fsdp_size: int = -1) -> None:
    """Divide the shards in ``global_step_N/actor`` or ``critic`` over `ranks`.

    The old files are deleted at the end.
    """
    record = read_json(folder / RANKS)
    before = int(record["world_size"])
    if before == ranks:  # a killed call may have left the old files
        _delete(folder, keep=ranks)
        return
    if record.get("FSDP_version") != 2:
        raise ConfigError(
            "actor_rollout_ref.actor.strategy=fsdp: its optimizer state is flat and cannot be "
            "divided over another number of ranks. Resume with as many ranks as before"
        )
    shape: tuple[int, ...] = (ranks,)
    names: tuple[str, ...] = ("fsdp",)
    if 0 < fsdp_size < ranks:
        shape, names = (ranks // fsdp_size, fsdp_size), ("ddp", "fsdp")
    for rank in range(ranks):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
        try:
            _write(folder, before, rank, init_device_mesh(device, shape, mesh_dim_names=names))
        finally:
            dist.destroy_process_group()
    write_json(folder / RANKS, {**record, "world_size": ranks, "fsdp_size": fsdp_size})
    _delete(folder, keep=ranks)


def _delete(folder: Path, keep: int) -> None:
    """Delete the shards of other numbers of ranks than `keep`."""
    for path in (path for kind in SHARDS for path in shard_paths(folder, kind)):
        if f"_world_size_{keep}_rank_" not in path.name:
            path.unlink()


def _write(folder: Path, before: int, rank: int, mesh: DeviceMesh) -> None:
    """Write the files of a new rank from those of the `before` old ones."""
    ranks = mesh.size()
    for kind in ("model", "optimizer"):
        paths = [folder / shard_name(kind, before, old) for old in range(before)]
        states = [load_shard(path) for path in paths if path.exists()]
        if states:
            with replacing(folder / shard_name(kind, ranks, rank)) as file:
                torch.save(divided(shards_of(states), mesh), file)
    extra = folder / shard_name("extra", before, rank % before)
    if extra.exists():  # the schedule, and random states, of which a new rank copies one
        shutil.copyfile(extra, folder / shard_name("extra", ranks, rank))


def shards_of(states: list[Any]) -> list[Any]:
    """Return the states that together hold all tensors: of all ranks, or of the first replica."""

    def find(value: Any) -> DTensor | None:
        if isinstance(value, dict):
            return next((x for x in map(find, value.values()) if x is not None), None)
        return value if isinstance(value, DTensor) else None

    tensor = find(states[0])
    return states if tensor is None else states[: tensor.device_mesh.shape[-1]]
