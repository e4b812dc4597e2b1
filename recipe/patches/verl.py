"""Patches of verl 0.9.1 for every process; each function states the gap that it closes."""

import functools
import os
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
import wrapt

from recipe.machine.environment import RUN_ID

NAME = "/rl-colocate-zmq-"


@wrapt.when_imported("verl.utils.model")
def load_critics(module: ModuleType) -> None:
    """Load a critic with the attention of its configuration; verl imports this at each call.

    verl loads the model of a critic with flash_attention_2, whatever attention
    ``critic.model.override_config`` names. Without the package flash-attn, which neither of our
    environments has, no critic starts (``method=ppo``, ``method=pcl``), and verl's error asks for
    the package trl.
    """

    @functools.wraps(module.load_valuehead_model)
    def load(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
        from transformers import AutoModelForTokenClassification

        return AutoModelForTokenClassification.from_pretrained(
            local_path,
            torch_dtype=torch_dtype,
            config=model_config,
            attn_implementation=model_config._attn_implementation,
            trust_remote_code=trust_remote_code,
        )

    module.load_valuehead_model = load  # type: ignore[attr-defined]


@wrapt.when_imported("verl.workers.engine.fsdp.transformer_impl")
def send_lora_unrounded(module: ModuleType) -> None:
    """LoRA: send the engine weights in the actor's precision, float32.

    With ``lora.merge=true`` verl adds the adapter to the weights and casts each to bfloat16. An
    engine in float32 then samples with other weights than the actor's, and a small adapter may
    vanish by rounding. Without LoRA verl sends float32, and every engine casts to its own dtype, as
    here.
    """

    def merged(wrapped: Any, engine: Any, args: Any, kwargs: Any) -> Iterator[tuple[str, Any]]:
        try:
            with module.merged_lora_context(engine.module, backup_adapters=True):
                params = module.normalize_peft_param_name(engine.module.state_dict())
                for name, param in module.convert_weight_keys(params, engine.module).items():
                    weight = param
                    if isinstance(param, module.DTensor):  # with offload_policy it is elsewhere
                        weight = param.to(module.get_device_id()).full_tensor()
                    # A copy: at the end the start model's weights return to this memory.
                    yield name, weight.detach().clone()
        finally:
            if engine._is_offload_param:
                module.offload_fsdp_model_to_cpu(engine.module)

    wrapt.wrap_function_wrapper(module, "FSDPEngine._merged_lora_per_tensor_param", merged)


@wrapt.when_imported("verl.workers.engine.fsdp.transformer_impl")
def seed_added_weights(module: ModuleType) -> None:
    """Draw the random weights that are added to the start model from the seed.

    verl draws a critic's value head and LoRA's A from an unseeded generator. Two runs with one seed
    would differ from the first step. Here the engine's seed draws them:
    `actor_rollout_ref.actor.fsdp_config.seed` and `critic.fsdp.seed`, by default `recipe.seed`.
    """

    def seeded(wrapped: Any, engine: Any, args: Any, kwargs: Any) -> Any:
        with torch.random.fork_rng(devices=[]):  # verl builds the model on the CPU
            torch.manual_seed(engine.engine_config.seed)
            return wrapped(*args, **kwargs)

    wrapt.wrap_function_wrapper(module, "FSDPEngine._build_module", seeded)
    wrapt.wrap_function_wrapper(module, "FSDPEngine._build_lora_module", seeded)


@wrapt.when_imported("verl.workers.engine.fsdp.transformer_impl")
def rates_above_zero(module: ModuleType) -> None:
    """Train every step with a learning rate above 0, and log the rate that it used.

    verl's warm-up begins at 0, so the first batch is generated for nothing, and verl logs the rate
    of the next step. Here a step has the larger of verl's rates for it and for the next one: 1/W to
    W/W in a warm-up of W steps, and else verl's, unless a cosine rises again. A load keeps the
    settings of this run, since the checkpoint's may be another run's, and the rate of its schedule.
    """

    def build(wrapped: Any, engine: Any, args: Any, kwargs: Any) -> Any:
        verls = wrapped(*args, **kwargs)
        rate = verls.lr_lambdas[0]
        return type(verls)(verls.optimizer, lambda step: max(rate(step), rate(step + 1)))

    def step(wrapped: Any, engine: Any, args: Any, kwargs: Any) -> float:
        used = float(engine.optimizer.param_groups[0]["lr"])
        wrapped(*args, **kwargs)
        return used

    def load(wrapped: Any, engine: Any, args: Any, kwargs: Any) -> None:
        schedule, own = engine.lr_scheduler, []
        if schedule:
            # All but amsgrad, which needs a state that the checkpoint may lack.
            names = {"initial_lr", *engine.optimizer.defaults} - {"lr", "amsgrad"}
            groups = engine.optimizer.param_groups
            own = [{name: group[name] for name in names & group.keys()} for group in groups]
        wrapped(*args, **kwargs)
        if schedule:
            for group, settings in zip(engine.optimizer.param_groups, own, strict=True):
                group.update(settings)
            schedule.base_lrs = [settings["initial_lr"] for settings in own]
            schedule.last_epoch -= 1
            schedule.step()

    wrapt.wrap_function_wrapper(module, "FSDPEngine._build_lr_scheduler", build)
    wrapt.wrap_function_wrapper(module, "FSDPEngine.lr_scheduler_step", step)
    wrapt.wrap_function_wrapper(module, "FSDPEngine.load_checkpoint", load)


def of_this_run(address: str) -> str:
    """verl's socket address with the run's id in its name; unchanged outside a run."""
    run = os.environ.get(RUN_ID)
    return address.replace(NAME, f"{NAME}{run}-", 1) if run else address


@wrapt.when_imported("verl.workers.rollout.vllm_rollout.bucketed_weight_transfer")
def separate_sockets(module: ModuleType) -> None:
    """Give sender and receiver of weights a socket of this run.

    After every step verl sends the actor's weights to the engine through a socket in /tmp named
    after the Ray job. Every run with its own Ray, as `recipe.train` starts it, is job 01000000, so
    two runs on one machine use one socket. If both send at the same time, an engine gets the other
    run's weights, or both wait forever (observed). verl's pull request 6246 separates jobs only by
    that id. Here the run's id, new for every launch, is part of the socket's name on both sides.
    """

    def initialize(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> None:
        wrapped(*args, **kwargs)
        instance.zmq_handle = of_this_run(instance.zmq_handle)

    for name in ("BucketedWeightSender", "BucketedWeightReceiver"):
        wrapt.wrap_function_wrapper(module, f"{name}.__init__", initialize)
