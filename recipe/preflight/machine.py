"""Rules about the machine: room on the disk, GPUs, memory, loggers, a key for wandb."""

import netrc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlparse

from huggingface_hub import constants

from prompt_aug.base.places import unwritable
from recipe.config import sizes
from recipe.config.shapes import known_shape
from recipe.config.verl import A, R, own_gpus
from recipe.preflight.estimate import saved_bytes
from recipe.preflight.rules import Check, Rule, Setup, is_missing
from recipe.run import host
from recipe.run.checkpoints import tracked_step
from recipe.run.environment import gpu_count
from recipe.run.model_files import unsupported_head

LEAST_FREE = 1.0  # GiB
LOGGERS = ("wandb", "mlflow", "swanlab", "clearml", "trackio", "tensorboard")  # also packages


def room(s: Setup) -> Iterator[str]:
    """The run folder can be written, and its disk holds the first checkpoint."""
    run_dir, shape = Path(s.recipe.run_dir).resolve(), known_shape(s.recipe.model_path)
    if reason := unwritable(run_dir):
        yield f"recipe.run_dir={run_dir}: cannot write there ({reason}). Choose another folder."
        return
    needed = LEAST_FREE * 2**30
    saves = s.trainer.save_freq > 0 and not tracked_step(Path(s.trainer.default_local_dir))
    if shape and saves:  # the trainer checks the room of each later one
        needed = max(needed, saved_bytes(s, shape))
    if (free := host.free_gib(run_dir) * 2**30) < needed:
        yield (
            f"recipe.run_dir={run_dir}: {free / 1e9:.1f} GB free there, and a checkpoint and the "
            f"logs take {needed / 1e9:.1f} GB. Free some room, or choose another disk."
        )


def cache(_: Setup) -> Iterator[str]:
    """The cache of `datasets`, which copies all questions there, can be written."""
    own = os.environ.get("HF_DATASETS_CACHE")
    name, folder = ("HF_DATASETS_CACHE", own) if own else ("HF_HOME", constants.HF_HOME)
    if reason := unwritable(Path(folder)):
        yield f"{name}={folder}: cannot write there ({reason}). Set it to another folder."


def ray(s: Setup) -> Iterator[str]:
    """Ray answers at the address that is set; Ray itself would try for 14 minutes."""
    key, variable = "ray_kwargs.ray_init.address", "RAY_ADDRESS"
    for name, address in ((variable, os.environ.get(variable)), (key, s.get(key))):
        if address and (reason := host.unreachable(address)):
            yield (
                f"{name}={address}: no Ray there ({reason}). Unset it, so that the run starts its "
                "own Ray, or start one with `ray start --head`."
            )


def gpus(s: Setup) -> Iterator[str]:
    """A GPU run has its GPUs: Ray waits forever for resources that no node has."""
    # With RAY_ADDRESS the GPUs are those of a cluster, which this machine cannot count.
    if s.trainer.device != "cuda" or os.environ.get("RAY_ADDRESS"):
        return
    count = gpu_count()
    message = None
    if count == 0:
        message = (
            "trainer.device=cuda: this machine has no GPU that CUDA can use. machine=cpu runs on "
            "its cores (with a small model: the examples toy and toy_methods)."
        )
    elif s.trainer.n_gpus_per_node + own_gpus(s.config) > count:
        more = f" {R}.n_gpus_per_node" if own_gpus(s.config) else ""
        message = s.message(f"trainer.n_gpus_per_node{more}", f"this machine has {count} GPUs.")
    if message and s.here:
        yield message
    elif message:
        print(f"recipe.train: note: not on this machine: {message}", file=sys.stderr)


def cpu_memory(s: Setup) -> Iterator[str]:
    """A run on a CPU fits into memory: Ray kills its processes above 95 %."""
    shape = known_shape(s.recipe.model_path)
    if s.trainer.device != "cpu" or shape is None:
        return
    needed, total = sizes.memory(s.config, shape), sizes.total_memory()
    if needed <= 0.95 * total:
        return
    tokens = sizes.fitting_tokens(s.config, shape)
    if tokens < s.longest:
        key, remedy = "recipe.model_path", "Choose a smaller model, or GPUs (machine=gpu)"
    elif s.actor.use_dynamic_bsz:
        key, remedy = f"{A}.ppo_max_token_len_per_gpu", f"Set at most {tokens}"
    else:
        key, remedy = f"{A}.ppo_micro_batch_size_per_gpu", f"Set at most {tokens // s.longest}"
    sizes_of = f"about {needed / 1e9:.0f} GB, and this machine has {total / 1e9:.0f} GB"
    yield s.message(key, f"{sizes_of}. {remedy}.")


def cpu_engine(s: Setup) -> Iterator[str]:
    """The engine on a CPU supports the model's attention heads and a fast precision."""
    shape = known_shape(s.recipe.model_path)
    if s.trainer.device != "cpu" or shape is None:
        return
    if why := unsupported_head(shape.head_dim):
        yield s.message("recipe.model_path", f"{why}. Choose another model, or GPUs (machine=gpu).")
    slow = s.here and shape.parameters >= sizes.LARGE and not host.multiplies_bfloat16()
    if slow and str(s.rollout.dtype) not in ("float32", "fp32"):
        yield s.message(
            f"{R}.dtype",
            "this processor has no instructions for it and would be about 40 times slower than "
            "with float32. Leave it null.",
        )


def lacks_wandb_key(s: Setup) -> bool:
    """Return True if wandb would prompt for a key; its process has no terminal."""
    logger = s.trainer.logger
    offline = os.environ.get("WANDB_MODE", "").lower() in ("offline", "disabled", "dryrun")
    if "wandb" not in ([logger] if isinstance(logger, str) else logger) or offline:
        return False
    if os.environ.get("WANDB_API_KEY"):
        return False
    server = urlparse(os.environ.get("WANDB_BASE_URL", "")).hostname or "api.wandb.ai"
    path = Path(os.environ.get("NETRC") or Path.home() / ".netrc")
    try:  # `wandb login` writes the key there
        return netrc.netrc(str(path)).authenticators(server) is None
    except (OSError, netrc.NetrcParseError):
        return True


MACHINE: list[Check] = [
    *(room, cache, ray, gpus, cpu_memory, cpu_engine),
    Rule(
        "trainer.logger",
        # verl imports them last
        lambda s: any(x in s.trainer.logger and is_missing(x) for x in LOGGERS),
        "its package is not installed here. Install it, or choose another logger.",
    ),
    Rule(
        "trainer.logger",
        lacks_wandb_key,
        "there is no key for wandb. Run `wandb login`, set WANDB_API_KEY, or WANDB_MODE=offline to "
        "send the run later.",
    ),
]
