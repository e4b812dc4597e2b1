"""Train: ``python -m recipe.train EXAMPLE [hydra overrides]``.

EXAMPLE is the name of a folder in examples/, or the path of a folder that holds a config.yaml.
Everything that can be refused is refused before Ray starts. The same command after a kill goes on
from the last checkpoint of the run folder. A SIGTERM saves the last finished step and ends the run;
exit code 75 says that the same command goes on (recipe/run/stop.py).
"""

import argparse
import errno
import os
import secrets
import shutil
import signal
import sys
import traceback
from pathlib import Path

from omegaconf import DictConfig, OmegaConf, open_dict

from prompt_aug.errors import UserError
from prompt_aug.files import lock, write_json, write_text
from recipe.checks import data as preflight
from recipe.checks import verl as preflight_verl
from recipe.checks.algorithm import check_algorithm
from recipe.checks.checkpoints import check_checkpoints
from recipe.checks.prompts import check_same_prompts
from recipe.config.compose import check_same_run, compose_config
from recipe.errors import ConfigError, ExhaustedError
from recipe.patches import weight_socket as isolation
from recipe.run import checkpoints, processes, progress, stop
from recipe.run import folder as run_folder
from recipe.toy import build as toy

FULL = 2**26  # bytes free under which a failed write is put down to the full disk

# What the CPU run wants of its libraries; a value that is already set wins.
CPU_ENVIRONMENT = {
    "VERL_PLATFORM": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING",
    # Without this vLLM turns the executor "uni" (see config/machine/cpu.yaml) back into "mp".
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "GLOO_SOCKET_IFNAME": "lo",
}
ENVIRONMENT = {
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_USAGE_STATS_ENABLED": "0",
    "HYDRA_FULL_ERROR": "1",
    # FlashInfer's sampler is compiled at its first use, with nvcc; a seed needs vLLM's own anyway.
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    # An import error of our plug-in stops a process here; verl swallows it in an entry point.
    "VERL_USE_EXTERNAL_MODULES": "recipe.plugin",
}


def set_environment(config: DictConfig) -> None:
    """Set what the libraries read at import; every process of the run inherits it."""
    wanted = dict(ENVIRONMENT)
    if config.trainer.device == "cpu":
        wanted.update(CPU_ENVIRONMENT)
        wanted["OMP_NUM_THREADS"] = str(len(os.sched_getaffinity(0)))
    run_dir = str(Path(config.recipe.run_dir).resolve())
    wanted.update(TENSORBOARD_DIR=f"{run_dir}/tensorboard", WANDB_DIR=run_dir)
    for key, value in wanted.items():
        os.environ.setdefault(key, value)
    if os.environ.get("CUDA_VISIBLE_DEVICES"):  # SLURM's GRES sets both, and verl refuses to choose
        os.environ.pop("ROCR_VISIBLE_DEVICES", None)
    os.environ[processes.MARK] = run_dir
    os.environ[isolation.RUN_ID] = secrets.token_hex(6)


def prepare(config: DictConfig) -> None:
    """Everything that can be refused, in the order of what it costs; then config.yaml.

    Paths become absolute: actors may run on another node or in another folder.
    """
    run_dir = Path(config.recipe.run_dir).resolve()
    with open_dict(config):
        config.trainer.default_local_dir = str(Path(config.trainer.default_local_dir).resolve())
        config.recipe.run_dir = str(run_dir)
    preflight_verl.check_verl(config)
    preflight_verl.check_batches(config)
    preflight_verl.check_lengths(config)
    bank = preflight.check_recipe(config)
    check_algorithm(config)
    for told in check_checkpoints(config):
        print(f"recipe.train: {told}", file=sys.stderr)
    preflight.check_port()
    built = toy.attach(config) if config.recipe.toy.enable else None
    preflight.check_files(config, built)
    if not config.actor_rollout_ref.model.path:
        raise ConfigError("recipe.model_path is not set: name a model folder or a hub id")
    folder = run_folder.RunFolder(run_dir)
    check_same_run(config, folder.config)
    prompts = check_same_prompts(config, folder)
    if config.recipe.toy.enable:
        toy.build(config)
    shown = OmegaConf.to_yaml(config, resolve=True)  # with the user's own data files
    from transformers import AutoTokenizer  # seconds; a refusal above comes without them

    tokenizer = AutoTokenizer.from_pretrained(config.actor_rollout_ref.model.path)
    report = preflight.prepare_data(config, bank, tokenizer)
    write_json(folder.data_manifest, report)
    prompts.write(folder.prompts)
    write_text(folder.config, shown)


def run(config: DictConfig) -> None:
    """Ray, the task runner, the training loop; ends every process it started, however it ends."""
    run_dir = str(config.recipe.run_dir)
    processes.end(run_dir)  # what a killed run may have left
    reaper = processes.start_reaper(run_dir)
    signals = stop.Signals(Path(run_dir))
    signals.listen()
    try:
        import ray
        from verl.trainer.main_ppo import run_ppo
        from verl.trainer.ppo.utils import need_critic, need_reference_policy
        from verl.utils.config import validate_config

        import recipe.plugin  # noqa: F401  (its own traceback, should it fail)
        from recipe.trainer.task_runner import RecipeTaskRunner

        validate_config(
            config=config,
            use_reference_policy=need_reference_policy(config),
            use_critic=need_critic(config),
        )
        set_ray(config)
        try:
            with progress.follow(config):
                runner = signals.once_ray_runs(ray.remote(RecipeTaskRunner))
                run_ppo(config, task_runner_class=runner)
        finally:
            ray.shutdown()
    finally:
        processes.end(run_dir)
        if reaper.stdin:
            reaper.stdin.close()
        reaper.wait()


def set_ray(config: DictConfig) -> None:
    """What Ray is told: our variables for actors on other nodes, whose cluster, how loud.

    Without RAY_ADDRESS a run starts its own Ray: by itself Ray would join any that it finds on
    the machine, another run's for instance.
    """
    loggers = ["TENSORBOARD_DIR", "WANDB_DIR", "WANDB_MODE"]
    names = [*ENVIRONMENT, *CPU_ENVIRONMENT, *loggers, "OMP_NUM_THREADS"]
    names += [processes.MARK, isolation.RUN_ID, stop.DEADLINE]
    values = {name: os.environ[name] for name in names if name in os.environ}
    with open_dict(config):
        OmegaConf.update(config, "ray_kwargs.ray_init.runtime_env.env_vars", values, force_add=True)
        if "RAY_ADDRESS" not in os.environ and not config.ray_kwargs.ray_init.get("address"):
            OmegaConf.update(config, "ray_kwargs.ray_init.address", "local", force_add=True)
        if "RAY_ADDRESS" in os.environ:  # attached to a cluster, Ray refuses to be told its size
            for size in ("num_cpus", "num_gpus"):
                OmegaConf.update(config, f"ray_kwargs.ray_init.{size}", None, force_add=True)
        shown = bool(config.recipe.worker_logs)
        OmegaConf.update(config, "ray_kwargs.ray_init.log_to_driver", shown, force_add=True)


def explain(error: BaseException, run_dir: Path) -> str:
    """What to do about an error of a run, as far as its chain of causes and the disk tell.

    torch reports a full disk as a wrong position in its file, so the room left is looked at too.
    """
    # Ray raises what an actor raised as a subclass of that error's class, and keeps it as `cause`.
    if isinstance(error, ExhaustedError):
        return (
            f"{getattr(error, 'cause', error)}\n"
            "dynamic sampling found too few questions with a signal; the last finished step is "
            "saved, and the command goes on from it"
        )
    full = shutil.disk_usage(run_dir).free < FULL
    if full or os.strerror(errno.ENOSPC) in "".join(traceback.format_exception(error)):
        return (
            "the disk is full; what was written stays: free some room and start the same command "
            "again, it goes on from the last checkpoint"
        )
    return (
        "the run stopped, its traceback is above; the same command goes on from the last "
        "checkpoint. Logs of single workers: recipe.worker_logs=true shows them"
    )


def finished(config: DictConfig) -> bool:
    """True where the last step is there: its checkpoint, or its line where none are saved."""
    done = checkpoints.tracked_step(Path(config.trainer.default_local_dir)) or 0
    if config.trainer.save_freq <= 0:
        lines = run_folder.read_metrics(Path(config.recipe.run_dir))
        done = max([done, *(line["step"] for line in lines)])
    return bool(done and done >= config.trainer.total_training_steps)


def start(example: str, overrides: list[str]) -> int:
    """Compose, refuse or prepare, run; returns the exit code."""
    try:
        config = compose_config(example, overrides)
        set_environment(config)
        preflight.check_room(Path(config.recipe.run_dir), config.recipe.min_free_gib)
        held = lock(Path(config.recipe.run_dir))
        prepare(config)
    except (UserError, ValueError, KeyError, OSError) as error:
        print(f"recipe.train: {error}", file=sys.stderr)
        return 1
    with held:
        if finished(config):
            print(f"recipe.train: all steps of {config.recipe.run_dir} are done already")
            return 0
        try:
            run_folder.record_environment(Path(config.recipe.run_dir))
            run(config)
        except stop.StoppedError as error:
            told = f"ended early, the same command goes on: {error.__cause__ or error}"
            print(f"recipe.train: {told}", file=sys.stderr)
            return stop.AGAIN
        except Exception as error:  # the boundary of the command: told, then the exit code
            traceback.print_exc()
            message = explain(error, Path(config.recipe.run_dir))
            print(f"recipe.train: {message}", file=sys.stderr)
            return 1
    print(f"recipe.train: done, run folder {config.recipe.run_dir}")
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m recipe.train", description=__doc__)
    parser.add_argument("example", help="a folder in examples/, or the path of one")
    parser.add_argument("overrides", nargs="*", help="hydra overrides, key=value")
    parsed = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # SLURM's way to say: end now
    return start(parsed.example, parsed.overrides)


if __name__ == "__main__":
    sys.exit(main())
