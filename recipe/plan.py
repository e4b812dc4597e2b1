"""Plan a run: ``python -m recipe.plan EXAMPLE --gpus 16 [--gpu h100-80] [hydra overrides]``.

Prints the memory of a GPU, rollout waves, the size of a checkpoint and hours, by the formulas of
recipe/preflight/estimate.py. Starts nothing and loads no model: the shape comes from a local
config.json, recipe/config/shapes.json or the cache of Hugging Face. The hours depend on
--mean-response, --mfu and --traffic; what a GPU showed of them is in examples/SIZES.md. What breaks
first on the way to 100 nodes: recipe/preflight/GROWTH.md.
"""

import dataclasses
import sys
from argparse import Namespace
from typing import Any

from prompt_aug.base.commands import at_least, make_parser, run
from prompt_aug.base.errors import UsageError
from recipe.config.compose import compose_config
from recipe.config.shapes import GPUS, shape_of
from recipe.errors import ConfigError
from recipe.preflight import estimate
from recipe.preflight.estimate import MFU, TRAFFIC, Work, work_of

GIB = 2**30


def memory_lines(work: Work) -> list[str]:
    """Return the lines on memory; one that begins with NO says what does not fit."""
    shape, gpu, memory = work.shape, work.gpu, estimate.actor_memory(work)
    cache, total = estimate.cache_tokens(work), sum(memory.values())
    parts = ", ".join(f"{k} {v / GIB:.1f}" for k, v in (memory | {"total": total}).items())
    responses, engines = work.questions * work.responses, work.gpus // work.tensor_parallel
    saved = estimate.checkpoint_bytes(shape, work.adapter, work.critic)
    lines = [
        f"parameters     {shape.parameters:,}"
        + (f", and {work.adapter:,} of LoRA, which are trained" if work.adapter else ""),
        f"actor          GiB on a GPU, micro-batches of {work.micro_tokens:,} tokens: {parts}",
        *[f"reference      {4 * shape.parameters / GIB:.1f} GiB of host memory over all nodes"]
        * (work.reference and not work.adapter),
        f"engine         KV cache {max(0, cache):,} tokens of {shape.kv_bytes:,} bytes, "
        f"{estimate.at_once(work)} sequences at once",
        f"rollouts       {responses:,} responses of a step over {engines} engines "
        f"in {estimate.waves(responses, work)} waves",
        f"checkpoint     {saved * work.gpus // work.shards / 1e9:.1f} GB",
    ]
    role, fsdp = "actor_rollout_ref.rollout", "actor_rollout_ref.actor.fsdp_config"
    if total > gpu.memory:
        remedy = "lower actor_rollout_ref.actor.ppo_max_token_len_per_gpu, or take more GPUs"
        if memory["states"] > gpu.memory:
            remedy = "take more GPUs"
            if not work.adapter:
                remedy += ", or train LoRA (actor_rollout_ref.model.lora_rank, examples/lora)"
        lines.append(
            f"NO             the actor wants {total / GIB:.1f} of {gpu.memory / GIB:.1f} "
            f"GiB: {remedy}"
        )
    if estimate.beside_engine(work) + gpu.memory * work.utilisation > gpu.memory:
        lines.append(
            "NO             the trained states stay on the GPU beside the engine: lower "
            f"{role}.gpu_memory_utilization, or set {fsdp}.param_offload=true and "
            f"{fsdp}.optimizer_offload=true"
        )
    if cache < work.prompt + work.response:
        lines.append(
            "NO             the KV cache does not hold one longest sequence: raise "
            f"{role}.gpu_memory_utilization or {role}.tensor_model_parallel_size"
        )
    return lines


def hour_lines(work: Work, sweep: int = 0) -> list[str]:
    """Return the lines on time; with `sweep` responses also that of evaluating a checkpoint."""
    seconds, hours = estimate.step_seconds(work), estimate.run_hours(work)
    engine = dataclasses.replace(work, gpus=work.tensor_parallel)
    tested = estimate.rollout_seconds(sweep, engine) / 3600
    line = f"sweep          a checkpoint, {sweep:,} responses: {tested:.1f} h on {engine.gpus} GPU"
    parts = ", ".join(f"{name} {value:.0f}" for name, value in seconds.items())
    return [
        f"step           {sum(seconds.values()):.0f} s: {parts}",
        f"run            {work.steps} steps and {work.validations} validations of "
        f"{work.validation} responses: {hours:.1f} h, {hours * work.gpus:.0f} GPU hours",
        *([line] if sweep else []),
        f"assumed        mean prompt {work.mean_prompt}, mean response {work.mean_response} "
        f"tokens, {work.mfu:.0%} of the peak in the actor, {work.traffic:.0%} of the "
        f"bandwidth in the engine, {work.overhead:.0f} s of a step besides, no time for "
        "offloading; what a GPU showed of these: examples/SIZES.md",
    ]


def gpu_name(text: str) -> str:
    """Return the first GPU whose name begins with `text`."""
    return next((name for name in GPUS if name.startswith(text.lower())), text)


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser(
        "python -m recipe.plan", __doc__, example="python -m recipe.plan dapo --gpus 16"
    )
    add: Any = parser.add_argument
    add("example", help="a folder in examples/, or the path of one")
    add("overrides", nargs="*", default=[], metavar="KEY=VALUE", help="hydra overrides")
    add("--gpus", type=int, help="default: trainer.nnodes x trainer.n_gpus_per_node")
    add("--gpu", choices=list(GPUS), default="h100-80", type=gpu_name,
        help="what each of them is, or the beginning of a name")  # fmt: skip
    add("--mean-response", type=int, help="tokens; default: half of the longest response")
    add("--validation", type=int, default=500, help="responses of one validation")
    add("--sweep", type=int, default=0, metavar="RESPONSES",
        help="questions x samples of an evaluated checkpoint: estimate its hours")  # fmt: skip
    add("--mfu", type=float, default=MFU, help="share of the peak FLOP/s in an update")
    add("--traffic", type=float, default=TRAFFIC, help="of the bandwidth in generation")
    options = parser.parse_intermixed_args(arguments)
    return run("recipe.plan", lambda: plan(options), interrupted="nothing was changed")


def plan(options: Namespace) -> int:
    """Print the plan; returns 1 where the run does not fit."""
    at_least(1, options, "gpus", "mean_response")
    at_least(0, options, "validation", "sweep")
    for name in ("mfu", "traffic"):
        if not 0 < getattr(options, name) <= 1:
            raise UsageError(f"--{name}={getattr(options, name)}: not above 0 and at most 1")
    config = compose_config(options.example, options.overrides)
    if not config.recipe.model_path:
        raise ConfigError("recipe.model_path: not set. Name a model to plan for.")
    if options.gpus:
        config.trainer.nnodes, config.trainer.n_gpus_per_node = 1, options.gpus
    work = work_of(config, shape_of(config.recipe.model_path), GPUS[options.gpu])
    mean = options.mean_response or work.mean_response
    if mean > work.response:
        raise UsageError(
            f"--mean-response {mean} is more than data.max_response_length={work.response}"
        )
    assumed = {"mfu": options.mfu, "traffic": options.traffic, "validation": options.validation}
    work = dataclasses.replace(work, mean_response=mean, **assumed)
    lines = memory_lines(work)
    if estimate.at_once(work):
        lines += hour_lines(work, options.sweep)
    print(f"{options.example}: {config.recipe.model_path} on {work.gpus} x {options.gpu}")
    print("\n".join(lines))
    return int(any(line.startswith("NO ") for line in lines))


if __name__ == "__main__":
    sys.exit(main())
