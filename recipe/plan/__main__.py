"""Plan a run: ``python -m recipe.plan EXAMPLE --gpus 16 [--gpu h100-80] [hydra overrides]``.

Memory of a GPU, rollout waves, size of a checkpoint and hours, by the formulas of
recipe/plan/estimate.py from the example's configuration. Starts nothing and loads no model: the
shape comes from a local config.json, recipe/plan/shapes.json or the cache of Hugging Face. Nothing
of it was measured on a GPU; the hours stand and fall with --mean-response, --mfu and --traffic.
What breaks first on the way to 100 nodes: recipe/plan/GROWTH.md.
"""

import sys
from argparse import Namespace
from typing import Any

from prompt_aug.base.commands import make_parser, run
from prompt_aug.base.errors import UsageError
from recipe.config.compose import compose_config
from recipe.errors import ConfigError
from recipe.plan import estimate
from recipe.plan.estimate import Assumptions, Work
from recipe.plan.shapes import GPUS, Gpu, Shape, check_heads, shape_of
from recipe.plan.work import work_of

GIB = 2**30


def memory_lines(shape: Shape, work: Work, gpu: Gpu) -> list[str]:
    """The part on memory; a line that begins with NO says what does not fit."""
    memory = estimate.actor_memory(shape, work)
    cache = estimate.cache_tokens(shape, work, gpu)
    names = ("states", "gathered", "activations", "logits", "mask", "total")
    parts = ", ".join(f"{name} {getattr(memory, name) / GIB:.1f}" for name in names)
    responses = work.questions * work.responses
    together = memory.states + gpu.memory * work.utilisation
    lines = [
        f"parameters     {shape.parameters:,}",
        f"actor          GiB on a GPU, micro-batches of {work.micro_tokens:,} tokens: {parts}",
        f"engine         KV cache {max(0, cache):,} tokens of {shape.kv_bytes:,} bytes, "
        f"{estimate.at_once(shape, work, gpu)} sequences at once",
        f"rollouts       {responses:,} responses of a step over "
        f"{work.gpus // work.tensor_parallel} engines: "
        f"{estimate.waves(responses, shape, work, gpu)} waves",
        f"checkpoint     {estimate.checkpoint_bytes(shape) / 1e9:.1f} GB",
    ]
    if memory.total > gpu.memory:
        lines.append(
            f"NO             the actor wants {memory.total / GIB:.1f} of {gpu.memory / GIB:.1f} "
            "GiB: lower actor_rollout_ref.actor.ppo_max_token_len_per_gpu, or take more GPUs"
        )
    if together > gpu.memory:
        lines.append(
            "NO             the actor's states stay on the GPU beside the engine: lower "
            "actor_rollout_ref.rollout.gpu_memory_utilization"
        )
    if cache < work.prompt + work.response:
        lines.append(
            "NO             the KV cache does not hold one longest sequence: raise "
            "actor_rollout_ref.rollout.gpu_memory_utilization or "
            "actor_rollout_ref.rollout.tensor_model_parallel_size"
        )
    return lines


def hour_lines(shape: Shape, work: Work, gpu: Gpu, assume: Assumptions) -> list[str]:
    seconds = estimate.step_seconds(shape, work, gpu, assume)
    hours = estimate.run_hours(shape, work, gpu, assume)
    parts = ", ".join(f"{name} {value:.0f}" for name, value in seconds.items())
    return [
        f"step           {sum(seconds.values()):.0f} s: {parts}",
        f"run            {work.steps} steps and {work.validations} validations of "
        f"{work.validation} responses: {hours:.1f} h, {hours * work.gpus:.0f} GPU hours",
        f"assumed        mean prompt {work.mean_prompt}, mean response {work.mean_response} "
        f"tokens, {assume.mfu:.0%} of the peak in the actor, {assume.traffic:.0%} of the "
        f"bandwidth in the engine, {assume.overhead:.0f} s of a step besides; not measured on a "
        "GPU",
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser(
        "python -m recipe.plan", __doc__, example="python -m recipe.plan dapo --gpus 16"
    )
    add: Any = parser.add_argument
    add("example", help="a folder in examples/, or the path of one")
    add("overrides", nargs="*", help="hydra overrides, key=value")
    add("--gpus", type=int, default=8, help="all together")
    add("--gpu", choices=list(GPUS), default="h100-80", help="what each of them is")
    add("--mean-response", type=int, help="tokens; default: half of data.max_response_length")
    add("--validation", type=int, default=500, help="responses of one validation")
    add(
        "--mfu",
        type=float,
        default=Assumptions().mfu,
        help="share of the peak FLOP/s that an update reaches",
    )
    add(
        "--traffic",
        type=float,
        default=Assumptions().traffic,
        help="share of the peak memory traffic that generation reaches",
    )
    options = parser.parse_intermixed_args(arguments)
    return run("recipe.plan", lambda: plan(options), interrupted="nothing was changed")


def check_options(options: Namespace) -> None:
    """Refuse numbers that no run has; UsageError with all of them, one a line."""
    above0 = ("a number above 0, at most 1", lambda share: 0 < share <= 1)
    count = ("at least 1", lambda number: number >= 1)
    wanted = {
        "gpus": count,
        "mean_response": count,
        "validation": ("at least 0", lambda number: number >= 0),
        "mfu": above0,
        "traffic": above0,
    }
    given = vars(options)
    wrong = [
        f"--{name.replace('_', '-')} {given[name]}: should be {said}"
        for name, (said, holds) in wanted.items()
        if given[name] is not None and not holds(given[name])
    ]
    if wrong:
        raise UsageError("\n".join(wrong))


def plan(options: Namespace) -> int:
    """Print the plan; 1 where the run does not fit."""
    check_options(options)
    config = compose_config(options.example, options.overrides)
    if not config.recipe.model_path:
        raise ConfigError("recipe.model_path is not set: name a model to plan for")
    shape, gpu = shape_of(config.recipe.model_path), GPUS[options.gpu]
    check_heads(config)
    work = work_of(config, options.gpus, options.mean_response, options.validation)
    assume = Assumptions(mfu=options.mfu, traffic=options.traffic)
    lines = memory_lines(shape, work, gpu)
    if estimate.at_once(shape, work, gpu):
        lines += hour_lines(shape, work, gpu, assume)
    print(f"{options.example}: {config.recipe.model_path} on {options.gpus} x {options.gpu}")
    print("\n".join(lines))
    return int(any(line.startswith("NO ") for line in lines))


if __name__ == "__main__":
    sys.exit(main())
