"""Estimate memory, disk and hours of a run: ``python -m recipe.plan EXAMPLE --gpus 16``.

Starts nothing and loads no model; recipe/preflight/estimate.py has the formulas, examples/SIZES.md
measurements, recipe/preflight/GROWTH.md the way to 100 nodes. Exit code 1 if the run does not fit.
"""

import functools
import sys
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from prompt_aug.base.commands import at_least, make_parser, run
from recipe.config.compose import compose_config
from recipe.config.shapes import shape_of
from recipe.config.verl import SEPARATE, A, R, own_gpus
from recipe.preflight.engine import actor_rows, engine_gpus, micro_batches
from recipe.preflight.estimate import FAST, GPUS, MEAN_PROMPT, SLOW, Estimate, saved_bytes
from recipe.preflight.rules import Setup, refuse

GIB = 2**30


def memory_lines(e: Estimate) -> list[str]:
    """Return the lines on memory and disk."""
    memory = e.actor_memory()
    parts = ", ".join(f"{name} {value / GIB:.1f}" for name, value in memory.items())
    return [
        f"parameters     {e.shape.parameters:,}",
        f"actor          GiB on a GPU, micro-batches of {e.micro_tokens:,} tokens: {parts}, "
        f"total {sum(memory.values()) / GIB:.1f}",
        f"engine         KV cache of {max(0, e.cache_tokens()):,} tokens, {e.at_once()} sequences "
        f"at once; {e.responses:,} responses of a step over {e.engines} engines in "
        f"{e.waves(e.responses)} waves",
        f"checkpoint     {saved_bytes(e.setup, e.shape) / 1e9:.1f} GB",
    ]


def problems(e: Estimate) -> Iterator[str]:
    """Yield a line with a remedy for each part that does not fit into the memory of a GPU."""
    room, memory = e.gpu.memory, e.actor_memory()
    if (total := sum(memory.values())) > room:
        remedy = f"lower {A}.ppo_max_token_len_per_gpu, or take more GPUs"
        if memory["states"] > room:
            remedy = "take more GPUs, or train LoRA (examples/lora)"
        yield f"the actor needs {total / GIB:.1f} of {room / GIB:.1f} GiB: {remedy}"
    if e.beside_engine() + room * e.setup.rollout.gpu_memory_utilization > room:
        yield (
            f"the trained states stay on the GPU beside the engine: lower "
            f"{R}.gpu_memory_utilization, or set {A}.fsdp_config.param_offload=true and "
            f"{A}.fsdp_config.optimizer_offload=true"
        )
    if e.cache_tokens() < e.setup.longest:
        yield (
            f"the KV cache does not hold one longest sequence: raise {R}.gpu_memory_utilization or "
            f"{R}.tensor_model_parallel_size"
        )


def asynchronous_lines(e: Estimate) -> Iterator[str]:
    """Yield a line for each asynchronous mode: seconds of a step, and the gain over recipe_sync.

    Of the GPUs, the engines of the separate mode get the number with the shortest slow step.
    """
    modes, mode = e.setup.trainer.v1, e.setup.mode
    own = modes.separate_async if mode == SEPARATE else modes.colocate_async
    window = own.num_warmup_batches
    seconds = functools.partial(Estimate.asynchronous_seconds, window=window)
    divided = [e.with_own_gpus(n) for n in range(e.tensor, e.setup.gpus, e.tensor)]
    divided = [x for x in divided if not [*actor_rows(x.setup), *engine_gpus(x.setup)]]
    split = min(divided, key=lambda x: seconds(x, speed=SLOW, separate=True), default=None)
    for name, plan, separate in (("asynchronous", e, False), ("separate", split, True)):
        if plan is None:  # one GPU
            continue
        times = [seconds(plan, speed=speed, separate=separate) for speed in (FAST, SLOW)]
        sync = [sum(e.step_seconds(speed).values()) for speed in (FAST, SLOW)]
        gain = sorted(x / y for x, y in zip(sync, times, strict=True))
        own = f", {plan.setup.engine_gpus} GPUs for engines" if separate else ""
        yield (
            f"{name:<15}{times[0]:.0f} to {times[1]:.0f} s with W = {window}{own} "
            f"(examples/prompt_aug_async): {gain[0]:.2f} to {gain[1]:.2f} times as fast, at best"
        )


def hour_lines(e: Estimate, validation: int) -> list[str]:
    """Return the lines on time, from the fast assumption to the slow one."""
    fast, slow = e.step_seconds(FAST), e.step_seconds(SLOW)
    parts = ", ".join(f"{name} {fast[name]:.0f} to {slow[name]:.0f}" for name in fast)
    steps = e.setup.trainer.total_training_steps
    hours = [e.hours(steps, validation, speed) for speed in (FAST, SLOW)]
    gpu_hours = " to ".join(f"{value * e.setup.gpus:.0f}" for value in hours)
    return [
        f"step           {sum(fast.values()):.0f} to {sum(slow.values()):.0f} s: {parts}",
        *asynchronous_lines(e),
        f"run            {steps} steps, each validation of {validation} responses: "
        f"{hours[0]:.1f} to {hours[1]:.1f} h, {gpu_hours} GPU hours",
        f"assumed        mean prompt {MEAN_PROMPT}, mean response {e.mean_response} tokens; actor "
        f"{SLOW.mfu:.0%} to {FAST.mfu:.0%} of the peak, engine {SLOW.traffic:.0%} to "
        f"{FAST.traffic:.0%} of the bandwidth; no time for offloading",
    ]


def plan(options: Namespace) -> int:
    """Print the plan; returns 1 if the run does not fit."""
    at_least(1, options, "gpus", "mean_response", "validation")
    config = compose_config(options.example, options.overrides)
    nodes, gpus = config.trainer.nnodes, config.trainer.n_gpus_per_node
    if options.gpus or own_gpus(config):  # the modes are compared on the same GPUs, all of them
        total = options.gpus or nodes * gpus + own_gpus(config)
        config.trainer.nnodes, config.trainer.n_gpus_per_node = 1, total
        config.actor_rollout_ref.rollout.nnodes = 0
    setup = Setup(config)
    refuse([engine_gpus, actor_rows, micro_batches], setup)
    shape = shape_of(config.recipe.model_path or "")
    e = Estimate(setup, shape, GPUS[options.gpu], options.mean_response or 0)
    print(f"{options.example}: {config.recipe.model_path} on {setup.gpus} x {options.gpu}")
    misfits = [f"NO             {text}" for text in problems(e)]
    times = hour_lines(e, options.validation) if e.at_once() else []
    print("\n".join([*memory_lines(e), *times, *misfits]))
    return int(bool(misfits))


def main(arguments: list[str] | None = None) -> int:
    example = "python -m recipe.plan dapo --gpus 16"
    parser = make_parser("python -m recipe.plan", __doc__, example=example)
    add: Any = parser.add_argument
    add("example", help="a folder in examples/, or the path of one")
    add("overrides", nargs="*", default=[], metavar="KEY=VALUE", help="hydra overrides")
    add("--gpus", type=int, help="default: trainer.nnodes x trainer.n_gpus_per_node")
    add("--gpu", choices=list(GPUS), default="h100-80", help="the type of each")
    add("--mean-response", type=int, help="tokens; default: half of the longest response")
    add("--validation", type=int, default=500, help="responses of one validation")
    options = parser.parse_intermixed_args(arguments)
    return run("recipe.plan", lambda: plan(options), interrupted="nothing was changed")


if __name__ == "__main__":
    sys.exit(main())
