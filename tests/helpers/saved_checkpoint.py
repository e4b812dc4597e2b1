"""Checkpoints with verl's files; shards as the ranks of FSDP2 save them, by one process."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tiny_model import save_tokenizer
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from prompt_aug.base.files import write_json
from recipe.run import checkpoints


def save(folder: Path, step: int, lr: float = 0.1, ranks: int = 1) -> Path:
    """A checkpoint of `ranks` with an optimizer of no parameters."""
    made = folder / f"global_step_{step}"
    (made / "actor").mkdir(parents=True)
    group = {"lr": lr, "initial_lr": lr, "betas": (0.9, 0.99), "weight_decay": 0.0}
    states = {
        "model": {"w": torch.ones(3)},
        "optim": {"state": {}, "param_groups": [group]},
        "extra_state": {"lr_scheduler": {"base_lrs": [lr], "_last_lr": [lr], "last_epoch": step}},
    }
    for kind, state in states.items():
        for rank in range(ranks):
            torch.save(state, made / "actor" / f"{kind}_world_size_{ranks}_rank_{rank}.pt")
    write_json(made / "actor" / "fsdp_config.json", {"FSDP_version": 2, "world_size": ranks})
    torch.save({"position": step}, made / checkpoints.DATA)
    write_json(made / checkpoints.STATE, {"batches_fetched": step})
    return made


def write_shards(
    folder: Path, state: dict[str, torch.Tensor], ranks: int = 2, replicas: int = 1
) -> None:
    """Divide the rows of each float tensor over `ranks`, in each of `replicas`."""
    used = slice(0 if replicas > 1 else 1, 2)  # dimensions of the mesh
    shape, names = (replicas, ranks)[used], ("ddp", "fsdp")[used]
    placements = [Replicate(), Shard(0)][used]
    world = ranks * replicas
    for rank in range(world):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        shards = dict(state)
        for name, full in state.items():
            if full.is_floating_point():
                local = [*full.chunk(ranks), *[full[:0]] * ranks][rank % ranks].clone()
                kept = {"shape": full.shape, "stride": full.stride(), "run_check": False}
                shards[name] = DTensor.from_local(local, mesh, placements, **kept)
        torch.save(shards, folder / f"model_world_size_{world}_rank_{rank}.pt")
        dist.destroy_process_group()


def save_checkpoint(model: Any, actor: Path) -> None:
    """Write what verl's checkpoint manager does on each of two ranks: shards, model, tokenizer."""
    actor.mkdir(parents=True)
    write_shards(actor, model.state_dict())
    model.config.architectures = ["Qwen2ForCausalLM"]
    model.config.attn_implementation = "flash_attention_2"  # written too, and not installed here
    model.config.save_pretrained(actor / "huggingface")
    save_tokenizer(actor / "huggingface")
    write_json(actor / "fsdp_config.json", {"FSDP_version": 2, "world_size": 2})
