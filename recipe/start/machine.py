"""Rules about the machine: disk, GPUs, driver, compiler, memory, loggers, a key for wandb."""

import math
import netrc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlparse

from huggingface_hub import constants

from prompt_aug.base.places import unwritable
from recipe.config.verl import A, R, own_gpus
from recipe.machine import host, memory, sizes
from recipe.machine.environment import gpu_count
from recipe.machine.memory import Estimate, Numbers, gpu_of
from recipe.machine.model_files import unsupported_head
from recipe.machine.shapes import Shape, known_shape
from recipe.run.checkpoints import DELETED, saved_steps, surplus, tracked_step
from recipe.start.attention import planned
from recipe.start.engine import adapted
from recipe.start.rules import Check, Rule, Setup, is_missing, note

LEAST_FREE, LEAST_SHARED = 1.0, 0.25  # GiB of the run's disk and of /dev/shm
# Bytes a second of a process that saves, and how many save at that rate. A shared disk may be slow:
# together they write 0.8 GB/s, as NFS over a network of 10 Gbit/s.
SAVE_RATE, SAVING = 1e8, 8
UNSYNCED = f"{A}.fsdp_config.use_no_sync_for_gradient_accumulation"
BUCKET = f"{R}.checkpoint_engine.update_weights_bucket_megabytes"
GIB = 2**30
VERL = "0.9.1"  # the release that this project extends
CUDA = 13000  # 13.0, of the builds of torch and vLLM
MOMENTS = {"AdamW8bit": 2, "SGD": 0}  # bytes a parameter; others have two in its precision
TOLERATED = 1.1  # of a GPU's memory: estimates may be too high (examples/SIZES.md)
LOGGERS = ("wandb", "mlflow", "swanlab", "clearml", "trackio", "tensorboard")  # also packages


def numbers(s: Setup, shape: Shape) -> Numbers:
    """Return the numbers that determine memory and time of a run of a model."""
    actor, rollout, fsdp = s.actor, s.rollout, s.actor.fsdp_config
    size = 4 if fsdp.model_dtype in (None, "fp32", "float32") else 2
    dynamic, ranks = bool(actor.use_dynamic_bsz), s.sequence_ranks()
    fixed = -(-s.micro_rows * s.longest // ranks)  # a GPU has a part of each sequence
    offloaded = bool(fsdp.offload_policy and actor.strategy == "fsdp2")
    offload = {"parameters": fsdp.param_offload, "moments": fsdp.optimizer_offload}
    return Numbers(
        shape=shape,
        gpus=s.gpus,
        engine_gpus=s.engine_gpus,
        tensor=rollout.tensor_model_parallel_size,
        fsdp_size=fsdp.fsdp_size,
        sequence_ranks=ranks,
        mini_rows=s.mini_rows,
        critic_rows=s.config.critic.ppo_mini_batch_size * rollout.n if s.critic else 0,
        tokens=actor.ppo_max_token_len_per_gpu if dynamic else fixed,
        dynamic=dynamic,
        responses=s.batch * rollout.n,
        longest_prompt=s.data.max_prompt_length,
        longest_response=s.data.max_response_length,
        parameter_bytes=size,
        moment_bytes=MOMENTS.get(str(actor.optim.optimizer), 2 * size),
        adapter=shape.adapter(rank, adapted(s)) if (rank := s.model.lora_rank) else 0,
        unsynced=bool(s.get(UNSYNCED)),
        fused=bool(s.model.use_fused_kernels),
        masked=bool(s.model.use_remove_padding and planned(s)[0] == "sdpa"),
        offloaded=offloaded,
        beside_engine=tuple(x for x, off in offload.items() if not (off or offloaded)),
        utilization=rollout.gpu_memory_utilization,
        sequences=rollout.max_num_seqs,
        passes=2 if s.reference else 1,
        epochs=actor.ppo_epochs,
        values=s.facts.critic,
        test_freq=s.trainer.test_freq,
    )


def saved_bytes(s: Setup) -> int:
    """Return the bytes of a checkpoint; 0 for an unknown shape."""
    shape = known_shape(s.recipe.model_path)
    return numbers(s, shape).saved_bytes() if shape else 0


def save_seconds(s: Setup) -> float:
    """Return a cautious guess of the seconds of a save; 0 for an unknown shape."""
    return saved_bytes(s) / (SAVE_RATE * min(s.gpus, SAVING))


def room(s: Setup) -> Iterator[str]:
    """The run folder can be written, and the disk of its checkpoints holds the next one."""
    # checkpoints/ may be a link to another disk
    run_dir, saves = (Path(x).resolve() for x in (s.recipe.run_dir, s.trainer.default_local_dir))
    if reason := unwritable(run_dir) or unwritable(saves):
        yield f"recipe.run_dir={run_dir}: cannot write there ({reason}). Choose another folder."
        return
    step, steps = tracked_step(saves) or 0, saved_steps(saves)
    # A new one is whole before an older one is deleted. Those that a kill has left make room: a
    # start deletes them, or the step is saved again.
    gone = surplus(steps, step, s.trainer.max_actor_ckpt_to_keep, s.recipe.keep_every, None)
    left = len(gone) > bool(s.recipe.keep_best) or max(steps, default=0) > step
    left = step > 0 and (left or any(saves.glob(f"{DELETED}*")))
    saving = s.trainer.save_freq > 0 and step < s.trainer.total_training_steps and not left
    for folder, text, needed in (
        (saves, "a checkpoint takes", saved_bytes(s) if saving else 0),
        (run_dir, "the logs take", LEAST_FREE * GIB),
    ):
        if (free := host.free_gib(folder) * GIB) < needed:
            yield (
                f"recipe.run_dir={run_dir}: {free / 1e9:.1f} GB free in {folder}, and {text} "
                f"{needed / 1e9:.1f} GB. Free some room, or choose another disk."
            )
            return


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
    if s.trainer.device == "cpu" and s.here and host.visible_gpus() > host.gpus_here():
        note("on the CPU: this environment has no engine for the GPUs here, environment.yml has.")
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
        message = s.message(
            f"trainer.n_gpus_per_node{more}", f"this machine has {count} GPUs. Set as many."
        )
    if message and s.here:
        yield message
    elif message:
        note(f"not on this machine: {message}")


def environment(s: Setup) -> Iterator[str]:
    """verl, and for GPUs the driver, VERL_PLATFORM and a C compiler, are what a run needs."""
    if (found := host.installed("verl")) != VERL:
        yield f"verl={found}: this project extends {VERL}. Install it: requirements/README.md."
    free, shape = host.free_gib(Path("/dev/shm")), known_shape(s.model.path)
    message = (
        f"/dev/shm: {free:.2f} GiB free for weights and messages of NCCL. In a container: start it "
        "with --shm-size=2g or --ipc=host."
    )
    weights = 4 * shape.parameters / GIB if shape else math.inf
    if s.here and s.trainer.device == "cpu" and min(weights, s.get(BUCKET) / 1024) > free:
        yield message  # writing more would kill the process
    elif s.here and free < LEAST_SHARED:
        note(message)
    if not s.here or s.trainer.device != "cuda":
        return
    key = "trainer.device=cuda"
    if (version := host.driver_cuda() or CUDA) < CUDA:
        yield (
            f"{key}: the driver supports CUDA {version // 1000}.{version % 1000 // 10}, and torch "
            "and vLLM need 13.0. Install driver 580 or newer, or NVIDIA's package cuda-compat-13-0 "
            "with its folder in LD_LIBRARY_PATH."
        )
    if os.environ.get("VERL_PLATFORM", "").lower() == "cpu":
        yield f"{key} with VERL_PLATFORM=cpu: verl would use the CPU. Unset the variable."
    # As Triton looks for it.
    names = [os.environ["CC"]] if os.environ.get("CC") else ["gcc", "clang"]
    if not any(map(shutil.which, names)):
        yield (
            f"{key}: Triton compiles kernels with a C compiler, and {' or '.join(names)} is not "
            "here. Install gcc (conda: c-compiler and cxx-compiler), or set CC."
        )


def misfits(s: Setup, e: Estimate) -> Iterator[tuple[float, str]]:
    """Yield a share of a GPU's memory above 1, with a message, for each part that does not fit."""
    room, actor = e.gpu.memory, e.actor_memory()
    share = f"{R}.gpu_memory_utilization"
    both = e.engine_room() + (0 if own_gpus(s.config) else e.beside_engine())
    # of an engine that stays while the actor trains
    awake = [x for x in (f"{R}.free_cache_engine", f"{R}.enable_sleep_mode") if not s.get(x)]
    offload = " and ".join(f"{A}.fsdp_config.{x}_offload=true" for x in ("param", "optimizer"))
    tokens = "max_token_len" if s.actor.use_dynamic_bsz else "micro_batch_size"
    key, remedy = f"{A}.ppo_{tokens}_per_gpu", "Lower it, or take more GPUs."
    if actor["states"] > room:
        key, remedy = "recipe.model_path", "Take more GPUs, or train LoRA (examples/lora)."
    elif actor["whole gradients"]:
        key, remedy = UNSYNCED, "Set it to false."
    cache = "the engine's weights and the cache of one longest sequence"
    parts = [
        (sum(actor.values()), room, key, f"the actor. {remedy}"),
        (both, room, share, f"engine and trained states. Lower it, or set {offload}."),
        (
            sum(actor.values()) + e.engine_room() if awake and not own_gpus(s.config) else 0,
            room,
            " ".join(awake),
            f"the actor beside an engine that stays. Set true, or lower {share}.",
        ),
        (
            e.engine_memory(),
            e.engine_room(),
            share,
            f"{cache}. Raise it, or {R}.tensor_model_parallel_size.",
        ),
    ]
    for needed, given, name, text in parts:
        if needed > given:
            amounts = f"about {needed / GIB:.1f} of a GPU's {given / GIB:.1f} GiB"
            yield needed / given, s.message(name, f"{amounts} for {text}")


def gpu_memory(s: Setup) -> Iterator[str]:
    """Actor and engine fit into a GPU, by estimate; up to a tenth above it is noted."""
    shape = known_shape(s.recipe.model_path)
    if s.trainer.device != "cuda" or shape is None:
        return
    name, gpu, known = gpu_of(s.gpu, here=s.here)
    for share, message in misfits(s, Estimate(numbers(s, shape), gpu)):
        if known and share > TOLERATED and (s.here or s.gpu):
            yield message
        else:
            note(f"on {name}: {message}")


def cpu_memory(s: Setup) -> Iterator[str]:
    """A run on a CPU fits into memory: Ray kills its processes above 95 %."""
    shape = known_shape(s.recipe.model_path)
    if s.trainer.device != "cpu" or shape is None:
        return
    run, total = sizes.on_cpu(s.config, shape), memory.total_memory()
    needed = run.needed()
    if needed <= 0.95 * total:
        return
    tokens = run.fitting_tokens()
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
            "this processor has no instructions for it and would be 8 to 37 times slower than "
            "with float32. Leave it null.",
        )


def lacks_wandb_key(s: Setup) -> bool:
    """Return True if wandb would prompt for a key; its process has no terminal."""
    logger = s.trainer.logger
    offline = os.environ.get("WANDB_MODE", "").lower() in ("offline", "disabled", "dryrun")
    if "wandb" not in ([logger] if isinstance(logger, str) else logger) or offline:
        return False
    given = os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE")
    if given or is_missing("wandb"):
        return False
    from wandb.sdk.wandb_setup import _setup  # slow to import; setup() would start a process

    # `wandb login --host` keeps it in a file
    server = urlparse(_setup(start_service=False).settings.base_url)
    path = Path(os.environ.get("NETRC") or Path.home() / ".netrc")
    try:  # `wandb login` writes the key there
        keys = netrc.netrc(str(path)).hosts  # with its port, if it has one
        return not {server.netloc, server.hostname, "default"} & keys.keys()
    except (OSError, netrc.NetrcParseError):
        return True


MACHINE: list[Check] = [environment, room, cache, ray, gpus, gpu_memory, cpu_memory, cpu_engine]
MACHINE += [
    Rule(
        "trainer.logger",
        # verl imports them last
        lambda s: any(x in s.trainer.logger and is_missing(x) for x in LOGGERS),
        "its package is not installed here. Install it, or choose another logger.",
    ),
    Rule(
        "trainer.logger",
        lambda s: "file" in s.trainer.logger,
        "each start overwrites its file, also when a run resumes. Remove it: metrics.jsonl of the "
        "run has a line for each step.",
    ),
    Rule(
        "trainer.logger",
        lacks_wandb_key,
        "there is no key for wandb. Run `wandb login`, set WANDB_API_KEY, or WANDB_MODE=offline to "
        "send the run later.",
    ),
]
