"""verl's own merger of FSDP shards, at a dtype that the user states.

Imports verl, so set the environment that chooses its platform first (`recipe.export`).
"""

import contextlib
import io
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from verl.model_merger.base_model_merger import ModelMergerConfig
from verl.model_merger.fsdp_model_merger import FSDPModelMerger, merge_non_dtensor_shards

from prompt_aug.base.files import read_json, write_json
from recipe.export import Lora
from recipe.export import lora as adapters
from recipe.export.shards import load_shard, merged
from recipe.machine import model_files
from recipe.run.checkpoints import shard_name


class StatedDtypeMerger(FSDPModelMerger):
    """`FSDPModelMerger` without its cast: verl 0.9.1 makes every tensor bfloat16, always.

    The shards are float32 master weights; a run whose engine computes in float32 would be
    evaluated with other weights than it trained. tests/recipe/patches/test_cpu.py fails when verl
    no longer casts. Shards are read with ``weights_only=True``: they run no code. An adapter is
    added to the weights, and written beside them, before verl's merger would drop it.

    Overrides of verl:
      __init__                      takes the dtype and the adapter's scale, and drops the attention
      load_generation_config        None: transformers refuses to write some that it reads, so the
                                    export writes the file itself
      _load_rank_zero_state_dict    reads with weights_only=True
      _load_and_merge_state_dicts   the same, adds the adapter, and casts to the dtype; does not
                                    call verl's
    """

    def __init__(self, config: ModelMergerConfig, dtype: torch.dtype, lora: Lora | None) -> None:
        super().__init__(config)
        # Of the run; this machine may lack its package or its GPU.
        self.model_config._attn_implementation = None
        self.dtype, self.lora = dtype, lora

    def load_generation_config(self, warn_if_missing: bool = True) -> None:
        return None

    def _load_shard(self, world_size: int, rank: int) -> dict[str, Any]:
        return load_shard(Path(self.config.local_dir) / shard_name("model", world_size, rank))

    def _load_rank_zero_state_dict(self, world_size: int) -> dict[str, Any]:
        return self._load_shard(world_size, 0)

    def _load_and_merge_state_dicts(
        self,
        world_size: int,
        total_shards: int,
        mesh_shape: tuple[int, ...],
        mesh_dim_names: tuple[str, ...],
    ) -> dict[str, torch.Tensor]:
        shards = [self._load_shard(world_size, rank) for rank in range(total_shards)]

        def full(name: str) -> torch.Tensor:
            parts = [shard.pop(name) for shard in shards]
            is_sharded = isinstance(parts[0], DTensor)
            return merged(parts) if is_sharded else merge_non_dtensor_shards(name, parts)

        added: adapters.State = {}
        if self.lora:
            adapter = {name: full(name) for name in sorted(filter(adapters.is_adapter, shards[0]))}
            added = adapters.deltas(adapter, self.lora)
            adapters.write(Path(self.config.target_dir) / adapters.FOLDER, adapter, self.lora)
        weights = {}
        for name in sorted(shards[0]):
            plain, value = adapters.plain(name), full(name)
            if plain in added:
                value = value + added.pop(plain)
            weights[plain] = value.to(self.dtype) if value.is_floating_point() else value
        return weights


def merge(source: Path, target: Path, dtype: torch.dtype, lora: Lora | None) -> type:
    """Merge the shards of `source` (…/actor) into `target`; return the class that loads it."""
    here = model_files.describe(str(source / "huggingface"))
    config = ModelMergerConfig(
        operation="merge",
        backend="fsdp",
        local_dir=str(source),
        target_dir=str(target),
        hf_model_config_path=str(source / "huggingface"),
    )
    merger = StatedDtypeMerger(config, dtype, lora)
    with contextlib.redirect_stdout(io.StringIO()):
        merger.merge_and_save()
        merger.cleanup()
    stated = read_json(target / "config.json")  # verl's merger always states bfloat16
    stated.pop("torch_dtype", None)
    stated["dtype"] = str(dtype).removeprefix("torch.")
    write_json(target / "config.json", stated)
    for path in target.rglob("*.safetensors"):  # written with mode 0600
        path.chmod((target / "config.json").stat().st_mode)
    model_files.write_generation(target, here)
    return merger.get_transformers_auto_model_class()
