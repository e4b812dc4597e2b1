"""What a run would do and write, told by ``recipe.train EXAMPLE --dry-run``."""

import dataclasses
import statistics
import tempfile
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from prompt_aug.prompts import Prompts
from prompt_aug.questions import read_parquet
from recipe.algorithms.compute import group_of
from recipe.errors import ConfigError
from recipe.preflight.data import load_tokenizer, prepare_data
from recipe.preflight.estimate import Assumptions, checkpoint_bytes, run_hours
from recipe.preflight.plan import work_of
from recipe.preflight.shapes import GPUS, shape_of
from recipe.run import checkpoints as saved_checkpoints
from recipe.run import host
from recipe.run.folder import read_metrics

GPU = "h100-80"  # what the hours are estimated for


def describe(config: DictConfig, prompts: Prompts) -> str:
    """Method, reward, steps, checkpoints, disk and hours of a checked configuration, a line each.

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
        "method": method(config),
        "reward": reward(config.recipe.reward),
        "learning rate": learning_rate(config.actor_rollout_ref.actor.optim),
        "questions": questions(config, prompts),
        "steps": f"{steps}" + (f", of which {saved} are done and saved" if saved else ""),
        "responses": f"{groups} questions x {size} = {groups * size} a step, "
        f"{groups * size * max(0, steps - saved):,} to come, of at most "
        f"{config.data.max_response_length} tokens{more}",
        "updates": f"{updates} optimizer steps a step, {updates * steps:,} in all",
        "checkpoints": checkpoints(config, steps),
        "hours": hours(config, steps - saved),
    }
    width = max(map(len, lines))
    told = [f"{name:<{width}}  {value}" for name, value in lines.items()]
    return "\n".join([*told, *first_prompt(config, prompts)])


def first_prompt(config: DictConfig, prompts: Prompts) -> list[str]:
    """The first training question under the first template; nothing before there is a toy world."""
    paths = list(config.data.train_files)
    if not all(Path(path).exists() for path in paths):
        return []
    question = read_parquet(paths[0])[0]
    name = (config.recipe.augment.templates or prompts.bank.names)[0]
    prompt = prompts.render(name, question.text, load_tokenizer(config), question.system)
    return [f"first prompt, template {name}:", prompt.shown()]


def method(config: DictConfig) -> str:
    """Advantage, token weights, loss and clip, after the name of the file in config/method."""
    recipe, actor = config.recipe, config.actor_rollout_ref.actor
    chosen = HydraConfig.get().runtime.choices.get("method") if HydraConfig.initialized() else None
    parts = [
        f"advantage {recipe.advantage.name} over each {group_of(recipe.advantage)}",
        f"weights {recipe.weights.name}",
        f"loss {actor.policy_loss.loss_mode} ({actor.loss_agg_mode})",
        f"clip {actor.clip_ratio_low}, {actor.clip_ratio_high}",
        f"KL loss {actor.kl_loss_coef}" if actor.use_kl_loss else "no KL loss",
    ]
    return (f"{chosen}: " if chosen else "") + ", ".join(parts)


def reward(section: DictConfig) -> str:
    """The formula of `recipe.rollout.reward` with its settings."""
    told = "accuracy"
    if section.format_weight:
        told += f" + {section.format_weight} x format"
        told += " (of right answers)" if section.format_gated else ""
    if section.overlong.enable:
        told += f" - up to {section.overlong.factor} over the last {section.overlong.buffer} tokens"
    return told


def learning_rate(optim: DictConfig) -> str:
    """The rate, its schedule and its warmup."""
    steps = optim.lr_warmup_steps
    if steps > 0:
        warmup = f"warmup over {steps} updates"
    elif optim.lr_warmup_steps_ratio:
        warmup = f"warmup over {optim.lr_warmup_steps_ratio:.0%} of the updates"
    else:
        warmup = "no warmup"
    return f"{optim.lr}, {optim.lr_scheduler_type}, {warmup}"


def hours(config: DictConfig, steps: int) -> str:
    """Of the `steps` to come: as measured in the run folder, else as `recipe.plan` estimates."""
    lines = read_metrics(Path(config.recipe.run_dir))
    measured = [line["timing_s/step"] for line in lines if "timing_s/step" in line]
    if measured:
        step = statistics.median(measured)
        return f"{steps * step / 3600:.2g}, at {step:.1f} s a step as in the run folder"
    gpus = config.trainer.nnodes * config.trainer.n_gpus_per_node
    try:
        shape = shape_of(str(config.recipe.model_path))
    except ConfigError:
        shape = None
    if config.trainer.device == "cpu" or shape is None:
        return "unknown: no step was measured in the run folder"
    work = dataclasses.replace(work_of(config), steps=steps)
    told = run_hours(shape, work, GPUS[GPU], Assumptions())
    return f"{told:.1f} on {gpus} x {GPU}, estimated by recipe.plan and not measured"


def questions(config: DictConfig, prompts: Prompts) -> str:
    """How many training and validation questions fit, or that the toy world is not made yet."""
    made = [Path(p) for p in [*config.data.train_files, *config.data.val_files]]
    if config.recipe.toy.enable and not all(p.exists() for p in made):
        return f"of the toy world {config.recipe.toy.world}, which the run makes first"
    kept = config.recipe.run_dir, config.data.train_files, config.data.val_files
    with tempfile.TemporaryDirectory() as scratch:
        config.recipe.run_dir = scratch
        report = prepare_data(config, prompts, load_tokenizer(config))
    config.recipe.run_dir, config.data.train_files, config.data.val_files = kept
    return ", ".join(
        f"{report[split]['questions']} for {use} ({len(report[split]['dropped'])} too long)"
        for split, use in (("train", "training"), ("test", "validation"))
    )


def checkpoints(config: DictConfig, steps: int) -> str:
    """How many checkpoints are kept in the end, and the most room that they take.

    The retention is `recipe.run.checkpoints.surplus` itself, applied to all steps that are saved.
    """
    every = int(config.trainer.save_freq)
    if every <= 0:
        return f"none (trainer.save_freq={every}): a run that is stopped starts from scratch"
    saved = [*range(every, steps, every), steps]  # the last step is saved in any case
    last = config.trainer.max_actor_ckpt_to_keep
    gone = saved_checkpoints.surplus(saved, steps, last, config.recipe.keep_every, None)
    # The best one may be among the others.
    kept = len(saved) - len(gone) + (1 if gone and config.recipe.keep_best else 0)
    most = kept + (1 if gone else 0)  # what is saved is whole before an older one goes
    told = f"{len(saved)}, one every {every} steps"
    told += f", of which {kept} are kept" if gone else ""
    size = checkpoint_size(config.actor_rollout_ref.model.path)
    if size is None:
        return f"{told}; 12 bytes a parameter each (the model is not on this disk)"
    told += f"; {size / 1e9:.2f} GB each, at most {most * size / 1e9:.1f} GB in all"
    free = host.free_gib(Path(config.recipe.run_dir)) * 2**30
    return told + (f": MORE THAN THE {free / 1e9:.0f} GB FREE THERE" if most * size > free else "")


def checkpoint_size(model: Any) -> int | None:
    """Bytes of a checkpoint of a model folder or of a known hub id; None where neither is known."""
    try:
        return checkpoint_bytes(shape_of(str(model)))
    except ConfigError:
        return None
