"""Describe what a run would do and write: ``recipe.train EXAMPLE --dry-run``.

`estimate` returns the lines on memory and hours on GPUs; recipe/machine/memory.py has the formulas,
examples/SIZES.md measurements, GROWTH.md the way to 100 nodes.
"""

import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from prompt_aug.base.errors import UsageError
from prompt_aug.base.tokenizers import DATE, reads_date
from prompt_aug.prompts import Prompt
from prompt_aug.questions import read_parquet
from prompt_aug.typed import shown
from recipe.algorithms import TOKEN_WEIGHTS
from recipe.algorithms.compute import group_of
from recipe.algorithms.sdpo import HINT
from recipe.config.compose import not_through
from recipe.config.verl import SEPARATE, own_gpus
from recipe.machine import host, sizes
from recipe.machine.memory import FAST, GPUS, MEAN_PROMPT, SLOW, Estimate, gpu_of, total_memory
from recipe.machine.shapes import known_shape, shape_of
from recipe.run import checkpoints as saved_checkpoints
from recipe.run.folder import read_metrics
from recipe.start.attention import planned
from recipe.start.data import limited, load_tokenizer
from recipe.start.engine import actor_rows, engine_gpus, layers, micro_batches
from recipe.start.machine import GIB, numbers, saved_bytes
from recipe.start.questions import prepare_data
from recipe.start.rules import Setup, refuse

VALIDATION = 500  # responses, assumed
MOST_EPOCHS = 20


def on_gpus(config: DictConfig, gpus: int | None, gpu: str | None) -> None:
    """Set the number of all GPUs of a run, those of engines included. Raises UsageError."""
    if (gpus or gpu) and config.trainer.device != "cuda":
        raise UsageError("--gpus and --gpu: no effect with machine=cpu. Leave it out.")
    if gpu and gpu not in GPUS:
        raise UsageError(f"--gpu={gpu}: unknown. Known are {', '.join(GPUS)}.")
    if gpus and gpus <= (own := own_gpus(config)):
        raise UsageError(
            f"--gpus={gpus}: the engines alone have {own} (actor_rollout_ref.rollout.nnodes x "
            "n_gpus_per_node). Set more."
        )
    if gpus:
        config.trainer.nnodes, config.trainer.n_gpus_per_node = 1, gpus - own_gpus(config)


def estimate(s: Setup, *, needed: bool) -> str:
    """Return the lines on memory and hours of a run on GPUs; "" on a CPU or for an unknown shape.

    `needed`: raise ConfigError for an unknown shape. Sizes that do not divide raise it, too. The
    modes are compared on the same GPUs, all that the run has.
    """
    find = shape_of if needed else known_shape
    shape = find(s.recipe.model_path or "") if s.trainer.device == "cuda" else None
    if shape is None:
        return ""
    refuse([layers, engine_gpus, actor_rows, micro_batches], s)
    gpus = s.gpus + own_gpus(s.config)
    name, gpu, _ = gpu_of(s.gpu, here=s.here)
    e = Estimate(replace(numbers(s, shape), gpus=gpus, engine_gpus=gpus), gpu)
    first = f"estimate       {s.recipe.model_path} on {gpus} x {name}"
    return "\n".join([first, *memory_lines(e), *(hour_lines(s, e) if e.at_once() else [])])


def memory_lines(e: Estimate) -> list[str]:
    """Return the lines on memory and disk."""
    n, memory = e.numbers, e.actor_memory()
    waves = e.waves(n.responses)
    parts = ", ".join(f"{name} {value / GIB:.1f}" for name, value in memory.items())
    fitting = max(1, e.cache_tokens() // e.length)  # sequences
    fewer = -(-n.responses // (e.engines * fitting))
    more = f", {fewer} with max_num_seqs={fitting}" if fewer < waves else ""
    return [
        f"parameters     {e.shape.parameters:,}",
        f"actor          GiB on a GPU, micro-batches of {n.micro_tokens:,} tokens: {parts}, "
        f"total {sum(memory.values()) / GIB:.1f}",
        f"engine         KV cache of {max(0, e.cache_tokens()):,} tokens, {e.at_once()} sequences "
        f"at once; {n.responses:,} responses of a step over {e.engines} engines in "
        f"{waves} waves{more}",
        f"checkpoint     {n.saved_bytes() / 1e9:.1f} GB",
    ]


def asynchronous_lines(s: Setup, e: Estimate) -> Iterator[str]:
    """Yield a line for each asynchronous mode: seconds of a step, and the gain over recipe_sync.

    Of the GPUs, the engines of the separate mode get the number with the shortest slow step.
    """
    modes, n = s.trainer.v1, e.numbers
    own = modes.separate_async if s.mode == SEPARATE else modes.colocate_async
    window = own.num_warmup_batches
    seconds = partial(Estimate.asynchronous_seconds, window=window)
    divided = [e.with_own_gpus(gpus) for gpus in range(n.tensor, n.gpus, n.tensor)]
    mini_batches = (n.mini_rows, n.critic_rows)
    divided = [x for x in divided if not any(y % x.numbers.ranks for y in mini_batches)]
    split = min(divided, key=lambda x: seconds(x, speed=SLOW, separate=True), default=None)
    for name, plan, separate in (("asynchronous", e, False), ("separate", split, True)):
        if plan is None:  # one GPU
            continue
        times = [seconds(plan, speed=speed, separate=separate) for speed in (FAST, SLOW)]
        sync = [sum(e.step_seconds(speed).values()) for speed in (FAST, SLOW)]
        gain = sorted(x / y for x, y in zip(sync, times, strict=True))
        own = f", {plan.numbers.engine_gpus} GPUs for engines" if separate else ""
        yield (
            f"{name:<15}{times[0]:.0f} to {times[1]:.0f} s with W = {window}{own} "
            f"(examples/prompt_aug_async): {gain[0]:.2f} to {gain[1]:.2f} times as fast, at best"
        )


def hour_lines(s: Setup, e: Estimate) -> list[str]:
    """Return the lines on time, from the fast assumption to the slow one."""
    fast, slow = e.step_seconds(FAST), e.step_seconds(SLOW)
    parts = ", ".join(f"{name} {fast[name]:.0f} to {slow[name]:.0f}" for name in fast)
    steps = s.trainer.total_training_steps
    times = [e.hours(steps, VALIDATION, speed) for speed in (FAST, SLOW)]
    gpu_hours = " to ".join(f"{value * e.numbers.gpus:.0f}" for value in times)
    return [
        f"step           {sum(fast.values()):.0f} to {sum(slow.values()):.0f} s: {parts}",
        *asynchronous_lines(s, e),
        f"run            {steps} steps, each validation of {VALIDATION} responses: "
        f"{times[0]:.1f} to {times[1]:.1f} h, {gpu_hours} GPU hours",
        f"assumed        mean prompt {MEAN_PROMPT}, mean response {e.mean_response} tokens; actor "
        f"{SLOW.mfu:.0%} to {FAST.mfu:.0%} of the peak, engine {SLOW.traffic:.0%} to "
        f"{FAST.traffic:.0%} of the bandwidth; no time for offloading",
    ]


def describe(s: Setup) -> str:
    """Return method, reward, steps, checkpoints, disk and hours of a checked configuration.

    Reads the questions as the run would; writes nothing but a temporary folder.
    """
    with tempfile.TemporaryDirectory() as scratch:
        trial = Setup(s.config.copy())  # prepare_data writes into its folder and changes it
        trial.recipe.run_dir = scratch
        tokenizer, prompts = load_tokenizer(s), s.prompts
        report = prepare_data(trial, tokenizer)
        question = read_parquet(trial.data.train_files[0], prompts.form.reading)[0]
        name = s.templates[0]
        render = partial(prompts.render, name, tokenizer=tokenizer, earlier=question.earlier)
        prompt = render(question.text)
    steps = int(trial.trainer.total_training_steps)
    saved = saved_checkpoints.tracked_step(Path(s.trainer.default_local_dir)) or 0
    groups, size = int(s.batch), int(s.rollout.n)
    updates = groups // int(s.mini) * int(s.actor.ppo_epochs)
    candidates = s.curriculum.candidates if s.curriculum.enable else 1
    epochs = steps * candidates / report["train"]["steps_per_epoch"]
    many = epochs > MOST_EPOCHS and s.recipe.one_question is None
    much = f", MORE THAN {MOST_EPOCHS}" if many else ""
    more = least = ""
    if s.filter.enable:
        least = "at least "
        most = s.recipe.dynamic_sampling.max_gen_batches
        more = f"; dynamic sampling generates up to {most} times as many"
    lines = {
        "run folder": s.recipe.run_dir,
        "start model": s.model.path,
        "method": method(s),
        "templates": templates(s),
        "date": f"always {DATE:%d %b %Y}" if reads_date(tokenizer) else "",
        "reward": reward(s),
        "hint": hint(s, render, question.text),
        "questions": questions(report, s),
        "steps": f"{steps} ({least}{epochs:.3g} epochs{much})"
        + (f", of which {saved} are done and saved" if saved else ""),
        "responses": f"{groups} questions x {size} = {groups * size} a step, "
        f"{groups * size * max(0, steps - saved):,} to come, of at most "
        f"{s.data.max_response_length} tokens{more}",
        "updates": f"{updates} optimizer steps a step, {updates * steps:,} in all",
        "attention": ", ".join(planned(s)),
        "checkpoints": checkpoints(s, steps),
        "hours": hours(s, steps - saved),
        "memory": memory(s) if s.trainer.device == "cpu" else "",
    }
    width = max(map(len, lines))
    rows = [f"{key:<{width}}  {value}" for key, value in lines.items() if value]
    first = "first prompt" + ("" if prompts.form.style == "row" else f", template {name}")
    return "\n".join([*rows, f"{first}:", prompt.shown()])


def method(s: Setup) -> str:
    """Return the parts of the update, after the name of the method's file."""
    recipe, actor = s.recipe, s.actor
    chosen = HydraConfig.get().runtime.choices.get("method") if HydraConfig.initialized() else None
    weights = called(recipe.weights)
    if recipe.weights.name == "gaussian_covariance":
        keys = not_through(s.config)
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


def templates(s: Setup) -> str:
    """Return the templates of the training prompts, and the mode in which one is drawn."""
    if s.prompts.form.style == "row":
        return ""
    mode = f"; recipe.augment.mode={s.recipe.augment.mode}" if len(s.templates) > 1 else ""
    return ", ".join(s.templates) + mode


def reward(s: Setup) -> str:
    """Return the formula of `recipe.rollout.reward` with its settings, and what is added to it."""
    section, history = s.reward, s.recipe.history
    own = [f"{path} ({source})" for source, path in (section.verifiers or {}).items()]
    text = " or ".join([*own, "accuracy"])
    if section.format_weight:
        text += f" + {section.format_weight} x format"
    if section.overlong.enable:
        text += f" - up to {section.overlong.factor} over the last {section.overlong.buffer} tokens"
    if history.enable:
        text += f" + {history.weight} x length reward (of the question's shortest right response)"
    if s.algorithm.use_kl_in_reward:
        text += f" - {s.algorithm.kl_ctrl.kl_coef} x KL"
    return text if s.facts.uses_rewards else "none is used"


def hint(s: Setup, render: Callable[[str], Prompt], question: str) -> str:
    """Return how long a right response may be as the hint of SDPO's teacher; "" without one."""
    if "hinted_logprobs_BT" not in s.facts.inputs:
        return ""
    text = HINT.replace("{question}", question).replace("{solution}", "")
    room = max(0, int(s.data.max_prompt_length) - len(render(text).ids))
    return f"right responses of at most {room} tokens, beside the question below; longer: left out"


def hours(s: Setup, steps: int) -> str:
    """Return the hours of `steps` at the pace of the run folder, "" without a step there."""
    lines = read_metrics(s.folder.root)
    if not (measured := [line["timing_s/step"] for line in lines if "timing_s/step" in line]):
        return ""
    step = statistics.median(measured)
    return f"{steps * step / 3600:.2g}, at {step:.1f} s a step as in the run folder"


def memory(s: Setup) -> str:
    """Return the peak of a run on this CPU machine, by the formula of `recipe.machine.memory`."""
    if (shape := known_shape(s.recipe.model_path)) is None:
        return "unknown before the model is made"
    needed, total = sizes.on_cpu(s.config, shape).needed() / 1e9, total_memory() / 1e9
    tokens = f", micro-batches of {s.actor.ppo_max_token_len_per_gpu:,} tokens"
    text = f"about {needed:.1f} of {total:.1f} GB, {s.rollout.dtype}"
    return text + (tokens if s.actor.use_dynamic_bsz else "")


def questions(report: dict[str, Any], s: Setup) -> str:
    """Return how many questions are trained and validated on, and how a step selects its own."""
    recipe, curriculum = s.recipe, s.curriculum
    counts = {split: report[split]["questions"] for split in ("train", "test")}
    counts["train"] = limited(counts["train"], s)
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


def checkpoints(s: Setup, steps: int) -> str:
    """Return how many checkpoints are kept in the end, and the most disk space that they take.

    Applies the retention of a run, `recipe.run.checkpoints.surplus`, to all steps that are saved.
    """
    every = int(s.trainer.save_freq)
    if every <= 0:
        return f"none (trainer.save_freq={every}): a run that is stopped starts from scratch"
    saved = [*range(every, steps, every), steps]  # the last step is saved in any case
    last = s.trainer.max_actor_ckpt_to_keep
    gone = saved_checkpoints.surplus(saved, steps, last, s.recipe.keep_every, None)
    # The best one may be among the others.
    kept = len(saved) - len(gone) + (1 if gone and s.recipe.keep_best else 0)
    most = kept + (1 if gone else 0)  # a new one is whole before an older one is deleted
    text = f"{len(saved)}, one every {every} steps"
    text += f", of which {kept} are kept" if gone else ""
    if not (size := saved_bytes(s)):
        return f"{text}; 12 bytes a parameter each"
    text += f"; {size / 1e9:.2f} GB each, at most {most * size / 1e9:.1f} GB in all"
    free = host.free_gib(Path(s.trainer.default_local_dir).resolve()) * 2**30
    return text + (f": MORE THAN THE {free / 1e9:.0f} GB FREE THERE" if most * size > free else "")
