"""What the machine must have before Ray starts: room on the disk, a port, a GPU, a logger's key."""

import netrc
import os
import sys
from pathlib import Path
from urllib.parse import urlparse

from omegaconf import DictConfig

from prompt_aug.base.places import unwritable
from recipe.errors import ConfigError
from recipe.plan.estimate import checkpoint_bytes
from recipe.plan.shapes import check_heads, shape_of
from recipe.run import host
from recipe.run.checkpoints import tracked_step
from recipe.run.environment import gpu_count

WANDB = "api.wandb.ai"


def check_machine(config: DictConfig, *, here: bool = True) -> None:
    """Refuse a machine on which the run would fail after minutes; writes nothing.

    A run that is only planned (not `here`) may be for another machine's GPUs: those missing are
    told, not refused.
    """
    check_room(Path(config.recipe.run_dir), config.recipe.min_free_gib)
    check_port()
    try:
        check_gpus(config)
    except ConfigError as error:
        if here:
            raise
        print(f"recipe.train: not on this machine: {error}", file=sys.stderr)
    check_first_checkpoint(config)
    check_heads(config)
    check_loggers(config)


def check_room(run_dir: Path, gib: float) -> None:
    """Refuse a run folder that cannot be made or written, or on a nearly full disk."""
    if reason := unwritable(run_dir):
        raise ConfigError(
            f"recipe.run_dir={run_dir}: cannot write there ({reason}): choose another folder with "
            "recipe.run_dir=..."
        )
    free = host.free_gib(run_dir)
    if free < gib:
        raise ConfigError(
            f"{free:.2f} GiB free for the run folder {run_dir}, {gib} wanted "
            "(recipe.min_free_gib): free some room or choose another folder with recipe.run_dir=..."
        )


def check_first_checkpoint(config: DictConfig) -> None:
    """Refuse a disk that does not hold one checkpoint, where the model's shape is known.

    The trainer asks for the room of each later one, by the size of the one before.
    """
    name, run_dir = config.recipe.model_path, Path(config.recipe.run_dir).resolve()
    if config.trainer.save_freq <= 0 or tracked_step(Path(config.trainer.default_local_dir)):
        return
    try:
        wanted = checkpoint_bytes(shape_of(name)) if name else 0
    except ConfigError:  # another kind of model, or one of the hub that the table does not know
        return
    free = host.free_gib(run_dir) * 2**30
    if free < wanted:
        raise ConfigError(
            f"a checkpoint of {name} takes {wanted / 1e9:.0f} GB, and the disk of {run_dir} has "
            f"{free / 1e9:.0f} GB free: free some room, or choose another disk with "
            "recipe.run_dir=..."
        )


def check_port() -> None:
    """Refuse a machine where no TCP port can be had: Ray, gloo and vLLM each want some."""
    try:
        host.free_port()
    except OSError as error:
        raise ConfigError(
            f"no free TCP port on 127.0.0.1 ({error.strerror}); Ray, gloo and vLLM need some: "
            f"{host.PORT_REMEDY}"
        ) from error


def check_gpus(config: DictConfig) -> None:
    """Refuse a GPU run without its GPUs: Ray waits forever for resources that no node has.

    With RAY_ADDRESS the GPUs are those of another cluster, which this machine cannot count.
    """
    if config.trainer.device != "cuda" or "RAY_ADDRESS" in os.environ:
        return
    wanted, found = config.trainer.n_gpus_per_node, gpu_count()
    if found == 0:
        raise ConfigError(
            "trainer.device=cuda, but this machine has no GPU that CUDA can use: machine=cpu runs "
            "on its cores (with a small model: the examples toy and toy_methods)"
        )
    if wanted > found:
        raise ConfigError(
            f"trainer.n_gpus_per_node={wanted}, but this machine has {found}: set it to {found}"
        )


def check_loggers(config: DictConfig) -> None:
    """Refuse wandb without a key: it asks for one on a terminal that its process does not have."""
    logger = config.trainer.logger
    offline = os.environ.get("WANDB_MODE", "").lower() in ("offline", "disabled", "dryrun")
    if "wandb" not in ([logger] if isinstance(logger, str) else logger) or offline:
        return
    if not os.environ.get("WANDB_API_KEY") and not _in_netrc(WANDB):
        raise ConfigError(
            "trainer.logger has wandb, but there is no key for it: run `wandb login`, set "
            "WANDB_API_KEY, or WANDB_MODE=offline to send the run later"
        )


def _in_netrc(default_host: str) -> bool:
    """Whether the user's netrc file, where `wandb login` writes, names wandb's server."""
    server = urlparse(os.environ.get("WANDB_BASE_URL", "")).hostname or default_host
    path = Path(os.environ.get("NETRC") or Path.home() / ".netrc")
    try:
        return netrc.netrc(str(path)).authenticators(server) is not None
    except (OSError, netrc.NetrcParseError):
        return False
