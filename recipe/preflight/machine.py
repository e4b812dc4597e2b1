"""Rules about the machine: room on the disk, a port, GPUs, a key for wandb."""

import netrc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlparse

from prompt_aug.base.places import unwritable
from recipe.config import sizes
from recipe.config.shapes import known_shape
from recipe.preflight.engine import attention_heads
from recipe.preflight.estimate import saved_bytes
from recipe.preflight.rules import Check, Rule, Setup, is_missing
from recipe.run import host
from recipe.run.checkpoints import tracked_step
from recipe.run.environment import gpu_count
from recipe.run.model_files import unsupported_head

LEAST_FREE = 1.0  # GiB
WANDB = "api.wandb.ai"
LOGGERS = ("wandb", "mlflow", "swanlab", "clearml", "trackio", "tensorboard")  # also packages


def room(s: Setup) -> Iterator[str]:
    """The run folder can be written, and its disk has some room."""
    run_dir = Path(s.recipe.run_dir)
    if reason := unwritable(run_dir):
        yield f"recipe.run_dir={run_dir}: cannot write there ({reason}). Choose another folder."
    elif (free := host.free_gib(run_dir)) < LEAST_FREE:
        yield (
            f"recipe.run_dir={run_dir}: {free:.2f} GiB free there, and a run needs {LEAST_FREE}. "
            "Free some room, or choose another folder."
        )


def home(s: Setup) -> Iterator[str]:
    """HOME can be written: Ray and vLLM keep files there."""
    folder = Path.home()
    if reason := unwritable(folder):
        yield (
            f"HOME={folder}: cannot write there ({reason}), and Ray and vLLM keep files there. Set "
            "HOME to a folder that you can write, and HF_HOME to the models and data you have."
        )


def ray(s: Setup) -> Iterator[str]:
    """Ray answers at the address that is set."""
    key, variable = "ray_kwargs.ray_init.address", "RAY_ADDRESS"
    for name, address in ((variable, os.environ.get(variable)), (key, s.get(key))):
        if address and (reason := host.unreachable(address)):
            yield (
                f"{name}={address}: no Ray there ({reason}). Unset it, so that the run starts its "
                "own Ray, or start one with `ray start --head`."
            )


def port(s: Setup) -> Iterator[str]:
    """A TCP port is free: Ray, gloo and vLLM each need some."""
    try:
        host.free_port()
    except OSError as error:
        yield (
            f"no free TCP port on 127.0.0.1 ({error.strerror}), which Ray, gloo and vLLM need. "
            f"{host.PORT_REMEDY[:1].upper()}{host.PORT_REMEDY[1:]}."
        )


def gpus(s: Setup) -> Iterator[str]:
    """A GPU run has its GPUs: Ray waits forever for resources that no node has."""
    # With RAY_ADDRESS the GPUs are those of a cluster, which this machine cannot count.
    if s.trainer.device != "cuda" or os.environ.get("RAY_ADDRESS"):
        return
    wanted, found = s.trainer.n_gpus_per_node, gpu_count()
    message = None
    if found == 0:
        message = (
            "trainer.device=cuda: this machine has no GPU that CUDA can use. machine=cpu runs on "
            "its cores (with a small model: the examples toy and toy_methods)."
        )
    elif wanted > found:
        message = f"trainer.n_gpus_per_node={wanted}: this machine has {found}. Set it to {found}."
    if message and s.here:
        yield message
    elif message:
        print(f"recipe.train: note: not on this machine: {message}", file=sys.stderr)


def cpu_memory(s: Setup) -> Iterator[str]:
    """A run on a CPU fits into memory: Ray kills its processes above 95 %."""
    shape = known_shape(s.recipe.model_path)
    if s.trainer.device != "cpu" or shape is None:
        return
    wanted, total = sizes.memory(s.config, shape), sizes.total_memory()
    if wanted <= 0.95 * total:
        return
    fitting = sizes.fitting_tokens(s.config, shape)
    if fitting < s.longest:
        yield (
            f"recipe.model_path={s.recipe.model_path}: about {wanted / 1e9:.0f} GB, and this "
            f"machine has {total / 1e9:.0f} GB. Choose a smaller model, or GPUs (machine=gpu)."
        )
    elif s.actor.use_dynamic_bsz:
        key = "ppo_max_token_len_per_gpu"
        yield (
            f"actor_rollout_ref.actor.{key}={s.actor[key]}: about {wanted / 1e9:.0f} GB, and this "
            f"machine has {total / 1e9:.0f} GB. Unset it, or set at most {fitting}."
        )
    else:
        key, most = "ppo_micro_batch_size_per_gpu", max(1, fitting // s.longest)
        yield (
            f"actor_rollout_ref.actor.{key}={s.actor[key]}: about {wanted / 1e9:.0f} GB, and this "
            f"machine has {total / 1e9:.0f} GB. Set it to {most} or less, or set use_dynamic_bsz."
        )


def cpu_heads(s: Setup) -> Iterator[str]:
    """The engine on a CPU supports the size of the model's attention heads."""
    model, shape = s.recipe.model_path, known_shape(s.recipe.model_path)
    if s.on_cpu and shape and (why := unsupported_head(shape.head_dim)):
        yield f"recipe.model_path={model}: {why}. Choose another model, or GPUs (machine=gpu)."


def cpu_precision(s: Setup) -> Iterator[str]:
    """The processor multiplies the numbers of a large model's engine and passes."""
    key, shape = "actor_rollout_ref.rollout.dtype", known_shape(s.recipe.model_path)
    if s.trainer.device != "cpu" or not s.here or host.multiplies_bfloat16():
        return
    large = shape is not None and shape.parameters >= sizes.LARGE
    if large and (dtype := str(s.get(key))) not in ("float32", "fp32"):
        yield (
            f"{key}={dtype}: this processor has no instructions for it and would be about 40 times "
            "slower than with float32. Leave it null."
        )


def first_checkpoint(s: Setup) -> Iterator[str]:
    """The disk holds one checkpoint; the trainer checks the room of each later one."""
    shape, run_dir = known_shape(s.recipe.model_path), Path(s.recipe.run_dir).resolve()
    if shape is None or s.trainer.save_freq <= 0 or unwritable(run_dir):
        return
    if tracked_step(Path(s.trainer.default_local_dir)):
        return
    wanted = saved_bytes(s, shape)
    free = host.free_gib(run_dir) * 2**30
    if free < wanted:
        yield (
            f"recipe.run_dir={run_dir}: a checkpoint of {s.recipe.model_path} takes "
            f"{wanted / 1e9:.0f} GB, and the disk has {free / 1e9:.0f} GB free. Free some room, or "
            "choose another disk."
        )


def lacks_wandb_key(s: Setup) -> bool:
    """Return True if wandb would prompt for a key; its process has no terminal."""
    logger = s.trainer.logger
    offline = os.environ.get("WANDB_MODE", "").lower() in ("offline", "disabled", "dryrun")
    if "wandb" not in ([logger] if isinstance(logger, str) else logger) or offline:
        return False
    if os.environ.get("WANDB_API_KEY"):
        return False
    server = urlparse(os.environ.get("WANDB_BASE_URL", "")).hostname or WANDB
    path = Path(os.environ.get("NETRC") or Path.home() / ".netrc")
    try:  # `wandb login` writes the key there
        return netrc.netrc(str(path)).authenticators(server) is None
    except (OSError, netrc.NetrcParseError):
        return True


MACHINE: list[Check] = [
    Rule(
        "trainer.logger",
        # verl imports them last
        lambda s: any(x in s.trainer.logger and is_missing(x) for x in LOGGERS),
        "its package is not installed here. Install it, or choose another logger.",
    ),
    room,
    home,
    ray,
    port,
    gpus,
    cpu_memory,
    cpu_heads,
    cpu_precision,
    first_checkpoint,
    attention_heads,
    Rule(
        "trainer.logger",
        lacks_wandb_key,
        "there is no key for wandb. Run `wandb login`, set WANDB_API_KEY, or WANDB_MODE=offline to "
        "send the run later.",
    ),
]
