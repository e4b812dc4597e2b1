"""What a run would do and write, told by ``recipe.train EXAMPLE --dry-run``."""

import json
import math
import tempfile
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from prompt_aug.templates import Bank
from recipe.checks.data import load_tokenizer, prepare_data
from recipe.run import checkpoints as saved_checkpoints

CHECKPOINT_BYTES = 12  # a parameter: the weight and two Adam moments in float32


def describe(config: DictConfig, bank: Bank) -> str:
    """Steps, responses, checkpoints and disk of a checked configuration, a line each.

    Reads the questions as the run would; writes nothing but a temporary folder.
    """
    steps = int(config.trainer.total_training_steps)
    saved = saved_checkpoints.tracked_step(Path(config.trainer.default_local_dir)) or 0
    groups, size = int(config.data.train_batch_size), int(config.actor_rollout_ref.rollout.n)
    updates = groups // int(config.actor_rollout_ref.actor.ppo_mini_batch_size)
    updates *= int(config.actor_rollout_ref.actor.ppo_epochs)
    more = ""
    if config.algorithm.filter_groups.enable:
        most = config.recipe.dynamic_sampling.max_gen_batches
        more = f"; dynamic sampling generates up to {most} times as many"
    lines = {
        "run folder": config.recipe.run_dir,
        "start model": config.actor_rollout_ref.model.path,
        "questions": questions(config, bank),
        "steps": f"{steps}" + (f", of which {saved} are done and saved" if saved else ""),
        "responses": f"{groups} questions x {size} = {groups * size} a step, "
        f"{groups * size * max(0, steps - saved):,} to come, of at most "
        f"{config.data.max_response_length} tokens{more}",
        "updates": f"{updates} optimizer steps a step, {updates * steps:,} in all",
        "checkpoints": checkpoints(config, steps),
    }
    width = max(map(len, lines))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in lines.items())


def questions(config: DictConfig, bank: Bank) -> str:
    """How many training and validation questions fit, or that the toy world is not made yet."""
    made = [Path(p) for p in [*config.data.train_files, *config.data.val_files]]
    if config.recipe.toy.enable and not all(p.exists() for p in made):
        return f"of the toy world {config.recipe.toy.world}, which the run makes first"
    kept = config.recipe.run_dir, config.data.train_files, config.data.val_files
    with tempfile.TemporaryDirectory() as scratch:
        config.recipe.run_dir = scratch
        report = prepare_data(config, bank, load_tokenizer(config))
    config.recipe.run_dir, config.data.train_files, config.data.val_files = kept
    return ", ".join(
        f"{report[split]['questions']} for {use} ({len(report[split]['dropped'])} too long)"
        for split, use in (("train", "training"), ("test", "validation"))
    )


def checkpoints(config: DictConfig, steps: int) -> str:
    """How many checkpoints are kept at once, and how much room they take."""
    every = int(config.trainer.save_freq)
    if every <= 0:
        return f"none (trainer.save_freq={every}): a run that is stopped starts anew"
    count = math.ceil(steps / every)  # the last step is saved in any case
    kept = min(count, config.trainer.max_actor_ckpt_to_keep or count)
    told = f"{count}, one every {every} steps"
    told += f", of which the last {kept} are kept" if kept < count else ""
    parameters = count_parameters(config.actor_rollout_ref.model.path)
    if parameters is None:
        return f"{told}; {CHECKPOINT_BYTES} bytes a parameter each (the model is not on this disk)"
    size = parameters * CHECKPOINT_BYTES / 1e9
    return f"{told}; {size:.2f} GB each, {kept * size:.1f} GB in all"


def count_parameters(model: Any) -> int | None:
    """The parameters of a model folder, from the headers of its .safetensors; None without any.

    A header is 8 bytes, its length n, then n bytes of JSON: {name: {dtype, shape, ...}}.
    """
    files = sorted(Path(str(model)).glob("*.safetensors"))
    total = 0
    for path in files:
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        total += sum(math.prod(v["shape"]) for k, v in header.items() if k != "__metadata__")
    return total if files else None
