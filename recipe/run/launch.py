"""From a checked configuration to the training: Ray, the task runner, and how a run ends."""

import errno
import os
import secrets
import shutil
import traceback
from pathlib import Path

from omegaconf import DictConfig, OmegaConf, open_dict

from prompt_aug.errors import UserError
from prompt_aug.files import write_text
from recipe.run import checkpoints, environment, folder, processes, progress, stop

FULL = 2**26  # with fewer bytes free, a write that failed did so for want of room


def set_environment(config: DictConfig) -> None:
    """Set what the libraries read at import; every process of the run inherits it."""
    cpu = config.trainer.device == "cpu"
    run_dir = str(Path(config.recipe.run_dir).resolve())
    more = {"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))} if cpu else {}
    more |= {"TENSORBOARD_DIR": f"{run_dir}/tensorboard", "WANDB_DIR": run_dir}
    environment.set_defaults(cpu=cpu, **more)
    if os.environ.get("CUDA_VISIBLE_DEVICES"):  # SLURM's GRES sets both, and verl refuses to choose
        os.environ.pop("ROCR_VISIBLE_DEVICES", None)
    os.environ[environment.RUN_DIR] = run_dir
    os.environ[environment.RUN_ID] = secrets.token_hex(6)


def run(config: DictConfig) -> None:
    """Ray, the task runner, the training loop; ends every process it started, however it ends."""
    run_dir = str(config.recipe.run_dir)
    processes.end(run_dir)  # what a killed run may have left
    reaper = processes.start_reaper(run_dir)
    environment.keep_wandb_run(Path(run_dir))
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
    with open_dict(config):
        OmegaConf.update(
            config,
            "ray_kwargs.ray_init.runtime_env.env_vars",
            environment.inherited(),
            force_add=True,
        )
        if "RAY_ADDRESS" not in os.environ and not config.ray_kwargs.ray_init.get("address"):
            OmegaConf.update(config, "ray_kwargs.ray_init.address", "local", force_add=True)
        if "RAY_ADDRESS" in os.environ:  # attached to a cluster, Ray refuses to be told its size
            for size in ("num_cpus", "num_gpus"):
                OmegaConf.update(config, f"ray_kwargs.ray_init.{size}", None, force_add=True)
        shown = bool(config.recipe.worker_logs)
        OmegaConf.update(config, "ray_kwargs.ray_init.log_to_driver", shown, force_add=True)


def finished(config: DictConfig) -> bool:
    """True where the last step is there: its checkpoint, or its line where none are saved."""
    done = checkpoints.tracked_step(Path(config.trainer.default_local_dir)) or 0
    if config.trainer.save_freq <= 0:
        lines = folder.read_metrics(Path(config.recipe.run_dir))
        done = max([done, *(line["step"] for line in lines)])
    return bool(done and done >= config.trainer.total_training_steps)


def how_to_go_on(config: DictConfig) -> str:
    """What of a run that has stopped is saved, and what the same command does then."""
    run_dir = config.recipe.run_dir
    saved = checkpoints.tracked_step(Path(config.trainer.default_local_dir))
    done = max((line["step"] for line in folder.read_metrics(Path(run_dir))), default=0)
    if saved:
        return f"step {saved} is saved in {run_dir}: the same command goes on from there"
    every = f"trainer.save_freq={config.trainer.save_freq}"
    if done:
        return f"{done} steps were done and none was saved ({every}): the same command starts anew"
    return "no step was done: the same command starts from the beginning"


def explain(error: BaseException, config: DictConfig) -> str:
    """The cause of a run's end in one line, as far as its errors and the disk tell, and what to do.

    The whole traceback goes to logs/error.txt of the run folder. torch reports a full disk as a
    wrong position in its file, so the room left is looked at too.
    """
    run_dir = Path(config.recipe.run_dir)
    # Ray raises what an actor raised as a subclass of that error's class, and keeps it as `cause`.
    if isinstance(error, UserError):
        return f"{getattr(error, 'cause', error)}\n{how_to_go_on(config)}"
    if (run_dir / stop.HUNG).exists():
        return f"{(run_dir / stop.HUNG).read_text(encoding='utf-8')}\n{how_to_go_on(config)}"
    told = "".join(traceback.format_exception(error))
    full = shutil.disk_usage(run_dir).free < FULL or os.strerror(errno.ENOSPC) in told
    if full:
        return (
            f"the disk of {run_dir} is full: free some room, then start the same command again\n"
            f"{how_to_go_on(config)}"
        )
    path = run_dir / "logs" / "error.txt"
    write_text(path, told)
    return (
        f"the run stopped: {first_cause(error)}\nthe whole traceback is in {path}; "
        f"recipe.worker_logs=true shows what the workers print\n{how_to_go_on(config)}"
    )


def first_cause(error: BaseException) -> str:
    """The error that began a chain, as one line: its class and message.

    A remote error's text ends with the traceback of the process in which it happened.
    """
    while (cause := getattr(error, "cause", None) or error.__cause__) is not None:
        error = cause
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if "Traceback" in str(error) and lines:
        return lines[-1]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
