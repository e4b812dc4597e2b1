"""A checkpoint with verl's files and without a model."""

from pathlib import Path

import torch

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
