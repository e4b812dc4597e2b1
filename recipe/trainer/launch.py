"""Run a validated configuration: Ray, the task runner, the training loop."""

import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recipe.config import verl
from recipe.machine import environment, sizes
from recipe.run import checkpoints, ending, folder, processes, progress, stop

POLL = 2.0  # seconds between two checks of Ray's head process
SPARE_SLOTS = 8  # of Ray, for the task runner and other actors of a run
DRAIN = 2.0  # seconds in which Ray delivers the last lines that a failed worker printed


def set_environment(config: DictConfig) -> None:
    """Set the variables that libraries read at import; every process of the run inherits them."""
    cpu = config.trainer.device == "cpu"
    run_dir = str(Path(config.recipe.run_dir).resolve())
    more = sizes.environment(config) if cpu else {}
    more["TENSORBOARD_DIR"] = str(folder.RunFolder(Path(run_dir)).tensorboard)
    more["WANDB_DIR"] = run_dir
    environment.set_defaults(cpu=cpu, **more)
    if cpu:  # whose number of devices Ray would compare with it
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    # SLURM's GRES sets both, which verl rejects; on a CPU Ray sets CUDA's for each actor.
    if cpu or os.environ.get("CUDA_VISIBLE_DEVICES"):
        os.environ.pop("ROCR_VISIBLE_DEVICES", None)
    os.environ[environment.RUN_DIR] = run_dir
    os.environ[environment.RUN_ID] = secrets.token_hex(6)


def train(config: DictConfig) -> None:
    """Start Ray, the task runner and the training; at the end stop every process of the run."""
    run_dir = str(config.recipe.run_dir)
    processes.end(run_dir)  # those that a killed run may have left
    # First of all processes, since a SIGKILL may come at any moment.
    reaper = processes.start_reaper(run_dir)
    environment.keep_wandb_run(folder.RunFolder(Path(run_dir)).wandb_run)
    try:
        with (
            progress.diverted(folder.RunFolder(Path(run_dir)).log) as out,
            progress.follow(config, out) as say,
        ):
            end = partial(leave, Path(run_dir), say)
            _train(config, stop.SignalHandler(Path(run_dir), say, end))
    finally:
        processes.end(run_dir)
        # The reaper last: if this process is killed above, the reaper ends the others.
        if reaper.stdin:
            reaper.stdin.close()
        reaper.wait()


def _train(config: DictConfig, handler: stop.SignalHandler) -> None:
    run_dir = Path(config.recipe.run_dir)
    print(f"{ending.BEGINS}{time.strftime('%Y-%m-%d %H:%M:%S')} {' '.join(sys.argv)}", flush=True)
    import ray
    from verl.trainer.main_ppo import run_ppo
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    import recipe.plugin  # noqa: F401  (if it fails: its own traceback)
    from recipe.trainer.task_runner import RecipeTaskRunner

    validate_config(
        config=config,
        use_reference_policy=need_reference_policy(config),
        use_critic=need_critic(config),
    )
    set_ray(config)
    progress.reached(run_dir, "verl imported")

    task = partial(run_ppo, config, task_runner_class=ray.remote(RecipeTaskRunner))
    try:
        wait(in_thread(task), config, ray.is_initialized, handler)
    except ray.exceptions.RayError:  # re-raised after a failed worker's last lines
        time.sleep(DRAIN)
        raise
    finally:
        ray.shutdown()


def in_thread(task: Callable[[], object]) -> Future[object]:
    """Run `task` in a thread, in which Ray sets no signal handler in Python."""
    done: Future[object] = Future()
    # `timeout` and a shell's `kill %1` send SIGTERM to the launcher's process group, and a Ray that
    # gets it could not save. Popen calls the hook since Ray gives it a preexec_fn.
    os.register_at_fork(after_in_child=os.setpgrp)

    def work() -> None:
        # A closed terminal signals every process: those that this thread starts inherit the mask.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
        try:
            done.set_result(task())
        except BaseException as error:  # raised again by `done.result`
            done.set_exception(error)

    threading.Thread(target=work, daemon=True).start()  # a daemon does not delay Ctrl-C
    return done


def wait(
    done: Future[object],
    config: DictConfig,
    ray_runs: Callable[[], bool],
    handler: stop.SignalHandler,
) -> None:
    """Wait for the result; if Ray's head process has ended, leave with the reason.

    Ray itself would end this process a minute later, silently.
    """
    heads: list[Any] | None = None
    while not futures.wait([done], timeout=POLL).done:
        if heads is None and ray_runs():
            # ray.init has set a handler in C++, which calls ours and aborts this process 3 s later.
            handler.listen()
            heads = processes.heads(str(config.recipe.run_dir))
        if any(map(processes.is_dead, heads or [])) and not done.done():
            text = f"Ray's head process ({processes.HEAD}) has ended: it was killed, or has crashed"
            handler.leave(1, f"{text}\n{ending.how_to_go_on(config)}")
            return
    done.result()


def leave(run_dir: Path, say: Callable[[str], None], code: int, message: str) -> None:
    """Record and print the reason, then end this process."""
    try:
        ending.record(folder.RunFolder(run_dir), code, message)
        say(f"recipe.train: {message}")
    finally:  # whatever happens, for example if the terminal is gone
        os._exit(code)  # the reaper ends all others


def set_ray(config: DictConfig) -> None:
    """Set Ray's options: environment variables of actors on other nodes, cluster, log output.

    Without RAY_ADDRESS a run starts its own Ray; by default Ray would join any cluster on the
    machine, such as another run's. Ray's CPUs are slots, not cores: verl's actors reserve three for
    each GPU and one for each unit of the TransferQueue, and with fewer they would wait forever.
    """
    init, units = config.ray_kwargs.ray_init, config.transfer_queue.backend.SimpleStorage
    # The output of workers on all nodes goes through this process to logs/train.log.
    options: dict[str, Any] = {"log_to_driver": True}
    options["runtime_env.env_vars"] = environment.inherited()
    if config.trainer.device == "cpu":  # on a GPU a cycle may hold its memory
        options["runtime_env.worker_process_setup_hook"] = "prompt_aug.base.commands.collect_rarely"
    if not init.get("num_cpus"):
        gpus = config.trainer.n_gpus_per_node + verl.own_gpus(config)
        slots = 3 * gpus + units.num_data_storage_units + SPARE_SLOTS
        options["num_cpus"] = max(len(os.sched_getaffinity(0)), slots)
    if os.environ.get("RAY_ADDRESS"):  # attached to a cluster, Ray rejects a size
        options |= {"num_cpus": None, "num_gpus": None}
    elif not init.get("address"):
        options["address"] = "local"
        if init.get("num_gpus"):  # a CPU's, which Ray cannot count
            options["num_gpus"] = init.num_gpus + verl.own_gpus(config)
    for key, value in options.items():
        OmegaConf.update(config, f"ray_kwargs.ray_init.{key}", value, force_add=True)


def finished(config: DictConfig) -> bool:
    """Return whether the last step has its checkpoint, or its line if no checkpoints are saved."""
    done = checkpoints.tracked_step(Path(config.trainer.default_local_dir)) or 0
    if config.trainer.save_freq <= 0:
        lines = folder.read_metrics(Path(config.recipe.run_dir))
        done = max([done, *(line["step"] for line in lines)])
    return bool(done and done >= config.trainer.total_training_steps)
