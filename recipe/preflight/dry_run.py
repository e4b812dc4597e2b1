"""Describe what a run would do and write: ``recipe.train EXAMPLE --dry-run``."""

import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from prompt_aug.base.tokenizers import DATE, reads_date
from prompt_aug.prompts import Prompt, Prompts
from prompt_aug.questions import read_parquet
from prompt_aug.typed import shown
from recipe.algorithms import ADVANTAGES, TOKEN_WEIGHTS
from recipe.algorithms.compute import group_of
from recipe.algorithms.sdpo import HINT
from recipe.config import sizes
from recipe.config.compose import not_through
from recipe.config.shapes import known_shape
from recipe.preflight.attention import planned
from recipe.preflight.data import limited, load_tokenizer
from recipe.preflight.estimate import FAST, GPUS, SLOW, Estimate, saved_bytes
from recipe.preflight.questions import prepare_data
from recipe.preflight.rules import Setup
from recipe.run import checkpoints as saved_checkpoints
from recipe.run import host
from recipe.run.folder import read_metrics

GPU, VALIDATION = "h100-80", 500  # assumed for the hours: GPU, responses of a validation
MOST_EPOCHS = 20


def describe(config: DictConfig, prompts: Prompts) -> str:
    """Return method, reward, steps, checkpoints, disk and hours of a checked configuration.

    Reads the questions as the run would; writes nothing but a temporary folder.
    """
    with tempfile.TemporaryDirectory() as scratch:
        trial = config.copy()
        trial.recipe.run_dir = scratch
        tokenizer = load_tokenizer(trial)
        report = prepare_data(trial, prompts, tokenizer)
        question = read_parquet(trial.data.train_files[0])[0]
        name = (config.recipe.augment.templates or prompts.bank.names)[0]
        render = partial(prompts.render, name, tokenizer=tokenizer, earlier=question.earlier)
        prompt = render(question.text)
    actor, steps = config.actor_rollout_ref.actor, int(trial.trainer.total_training_steps)
    saved = saved_checkpoints.tracked_step(Path(config.trainer.default_local_dir)) or 0
    groups, size = int(config.data.train_batch_size), int(config.actor_rollout_ref.rollout.n)
    updates = groups // int(actor.ppo_mini_batch_size) * int(actor.ppo_epochs)
    candidates = config.recipe.curriculum.candidates if config.recipe.curriculum.enable else 1
    epochs = steps * candidates / report["train"]["steps_per_epoch"]
    many = epochs > MOST_EPOCHS and config.recipe.one_question is None
    much = f", MORE THAN {MOST_EPOCHS}" if many else ""
    more = least = ""
    if config.algorithm.filter_groups.enable:
        least = "at least "
        most = config.recipe.dynamic_sampling.max_gen_batches
        more = f"; dynamic sampling generates up to {most} times as many"
    lines = {
        "run folder": config.recipe.run_dir,
        "start model": config.actor_rollout_ref.model.path,
        "method": method(config),
        "templates": templates(config.recipe.augment, prompts),
        "date": f"always {DATE:%d %b %Y}" if reads_date(tokenizer) else "",
        "reward": reward(config),
        "hint": hint(config, render, question.text),
        "questions": questions(report, Setup(config)),
        "steps": f"{steps} ({least}{epochs:.3g} epochs{much})"
        + (f", of which {saved} are done and saved" if saved else ""),
        "responses": f"{groups} questions x {size} = {groups * size} a step, "
        f"{groups * size * max(0, steps - saved):,} to come, of at most "
        f"{config.data.max_response_length} tokens{more}",
        "updates": f"{updates} optimizer steps a step, {updates * steps:,} in all",
        "attention": ", ".join(planned(Setup(config))),
        "checkpoints": checkpoints(config, steps),
        "hours": hours(config, steps - saved),
        "memory": memory(config) if config.trainer.device == "cpu" else "",
    }
    width = max(map(len, lines))
    rows = [f"{key:<{width}}  {value}" for key, value in lines.items() if value]
    first = "first prompt" + ("" if prompts.form.style == "row" else f", template {name}")
    return "\n".join([*rows, f"{first}:", prompt.shown()])


def method(config: DictConfig) -> str:
    """Return the parts of the update, after the name of the method's file."""
    recipe, actor = config.recipe, config.actor_rollout_ref.actor
    chosen = HydraConfig.get().runtime.choices.get("method") if HydraConfig.initialized() else None
    weights = called(recipe.weights)
    if recipe.weights.name == "gaussian_covariance":
        keys = not_through(config)
        if TOKEN_WEIGHTS.call(recipe.weights)[1]["gradient"] == "through":
            weights += " with the ratio at temperature 1"
        elif keys:
            weights += f" (not through because of {keys})"
    count, ratio = recipe.rephrasings.count, recipe.rephrasings.ratio
    return (f"{chosen}: " if chosen else "") + (
        f"advantage {called(recipe.advantage)} over each {group_of(recipe.advantage)}, "
        f"weights {weights}, "
        + (f"{count} rephrasings with {ratio} ratios, " if count else "")
        + f"loss {actor.policy_loss.loss_mode} ({actor.loss_agg_mode}), "
        f"clip {actor.clip_ratio_low}, {actor.clip_ratio_high}, "
        + ("without truncated responses, " if recipe.overlong_filter else "")
        + (f"entropy bonus {actor.entropy_coeff}, " if actor.entropy_coeff else "")
        + (f"KL loss {actor.kl_loss_coef}" if actor.use_kl_loss else "no KL loss")
    )


def called(section: DictConfig) -> str:
    """Return the name of a function with the arguments that the configuration gives it."""
    given = {**(section.get(section.name) or {}), **(section.arguments or {})}
    arguments = ", ".join(f"{key}={shown(value)}" for key, value in given.items())
    return f"{section.name}({arguments})" if given else str(section.name)


def templates(section: DictConfig, prompts: Prompts) -> str:
    """Return the templates of the training prompts, and the mode in which one is drawn."""
    if prompts.form.style == "row":
        return ""
    names = section.templates or prompts.bank.names
    return ", ".join(names) + (f"; recipe.augment.mode={section.mode}" if len(names) > 1 else "")


def reward(config: DictConfig) -> str:
    """Return the formula of `recipe.rollout.reward` with its settings, and what is added to it."""
    section, history = config.recipe.reward, config.recipe.history
    own = [f"{path} ({source})" for source, path in (section.verifiers or {}).items()]
    text = " or ".join([*own, "accuracy"])
    if section.format_weight:
        text += f" + {section.format_weight} x format"
    if section.overlong.enable:
        text += f" - up to {section.overlong.factor} over the last {section.overlong.buffer} tokens"
    if history.enable:
        text += f" + {history.weight} x length reward (of the question's shortest right response)"
    if config.algorithm.use_kl_in_reward:
        text += f" - {config.algorithm.kl_ctrl.kl_coef} x KL"
    return text if ADVANTAGES.facts(config.recipe.advantage.name).uses_rewards else "none is used"


def hint(config: DictConfig, render: Callable[[str], Prompt], question: str) -> str:
    """Return how long a right response may be as the hint of SDPO's teacher; "" without one."""
    if "hinted_logprobs_BT" not in ADVANTAGES.facts(config.recipe.advantage.name).inputs:
        return ""
    text = HINT.replace("{question}", question).replace("{solution}", "")
    room = max(0, int(config.data.max_prompt_length) - len(render(text).ids))
    return f"right responses of at most {room} tokens, beside the question below; longer: left out"


def hours(config: DictConfig, steps: int) -> str:
    """Return the hours of `steps`, measured in the run folder or estimated by `recipe.plan`."""
    lines = read_metrics(Path(config.recipe.run_dir))
    if measured := [line["timing_s/step"] for line in lines if "timing_s/step" in line]:
        step = statistics.median(measured)
        return f"{steps * step / 3600:.2g}, at {step:.1f} s a step as in the run folder"
    shape = known_shape(config.recipe.model_path)
    if config.trainer.device == "cpu" or shape is None:
        return "unknown until the run folder has a step"
    run = Estimate(Setup(config), shape, GPUS[GPU])
    fast, slow = (run.hours(steps, VALIDATION, speed) for speed in (FAST, SLOW))
    return f"{fast:.1f} to {slow:.1f} on {run.setup.gpus} x {GPU}, estimated as by recipe.plan"


def memory(config: DictConfig) -> str:
    """Return the peak of a run on this CPU machine, by the formula of `recipe.config.sizes`."""
    shape, actor = known_shape(config.recipe.model_path), config.actor_rollout_ref.actor
    if shape is None:
        return "unknown before the model is made"
    text = (
        f"about {sizes.memory(config, shape) / 1e9:.1f} of {sizes.total_memory() / 1e9:.1f} GB, "
        f"{config.actor_rollout_ref.rollout.dtype}"
    )
    tokens = f", micro-batches of {actor.ppo_max_token_len_per_gpu:,} tokens"
    return text + (tokens if actor.use_dynamic_bsz else "")


def questions(report: dict[str, Any], setup: Setup) -> str:
    """Return how many questions are trained and validated on, and how a step selects its own."""
    recipe, curriculum = setup.recipe, setup.curriculum
    counts = {split: report[split]["questions"] for split in ("train", "test")}
    counts["train"] = limited(counts["train"], setup)
    one = "" if recipe.one_question is None else f"question {recipe.one_question} of "
    text = one + ", ".join(
        f"{counts[split]} for {use} ({len(report[split]['dropped'])} too long)"
        for split, use in (("train", "training"), ("test", "validation"))
    )
    if counts["test"] > counts["train"] and not one:
        text += ": MORE HELD OUT THAN TRAINED"
    if recipe.source_weights:
        text += f"; weighted {shown(dict(recipe.source_weights))}"
    if curriculum.enable:
        by = "the value model" if curriculum.value_model else "this run"
        text += f"; 1 in {curriculum.candidates}, of pass rates (by {by}) near {curriculum.target}"
    return text


def checkpoints(config: DictConfig, steps: int) -> str:
    """Return how many checkpoints are kept in the end, and the most disk space that they take.

    Applies the retention of a run, `recipe.run.checkpoints.surplus`, to all steps that are saved.
    """
    every = int(config.trainer.save_freq)
    if every <= 0:
        return f"none (trainer.save_freq={every}): a run that is stopped starts from scratch"
    saved = [*range(every, steps, every), steps]  # the last step is saved in any case
    last = config.trainer.max_actor_ckpt_to_keep
    gone = saved_checkpoints.surplus(saved, steps, last, config.recipe.keep_every, None)
    # The best one may be among the others.
    kept = len(saved) - len(gone) + (1 if gone and config.recipe.keep_best else 0)
    most = kept + (1 if gone else 0)  # a new one is whole before an older one is deleted
    text = f"{len(saved)}, one every {every} steps"
    text += f", of which {kept} are kept" if gone else ""
    shape = known_shape(config.actor_rollout_ref.model.path)
    if shape is None:
        return f"{text}; 12 bytes a parameter each"
    size = saved_bytes(Setup(config), shape)
    text += f"; {size / 1e9:.2f} GB each, at most {most * size / 1e9:.1f} GB in all"
    free = host.free_gib(Path(config.recipe.run_dir)) * 2**30
    return text + (f": MORE THAN THE {free / 1e9:.0f} GB FREE THERE" if most * size > free else "")
