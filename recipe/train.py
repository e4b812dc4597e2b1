"""Train: ``python -m recipe.train EXAMPLE [hydra overrides]``.

EXAMPLE is the name of a folder in examples/, or the path of a folder that holds a config.yaml.
Everything that can be refused is refused before Ray starts. The same command after a kill goes on
from the last checkpoint of the run folder.
"""

import argparse
import errno
import importlib.util
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from recipe import preflight, processes, run_folder

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
CONFIG = Path(__file__).resolve().parent / "config"

# What the CPU run wants of its libraries; a value that is already set wins.
CPU_ENVIRONMENT = {
    "VERL_PLATFORM": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "GLOO_SOCKET_IFNAME": "lo",
}
ENVIRONMENT = {
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_USAGE_STATS_ENABLED": "0",
    "HYDRA_FULL_ERROR": "1",
    # An import error of our plug-in stops a process here; verl swallows it in an entry point.
    "VERL_USE_EXTERNAL_MODULES": "recipe.plugin",
}


def example_folder(example: str) -> Path:
    """The folder of an example, by name or path; Refused with the known names."""
    for folder in (EXAMPLES / example, Path(example)):
        if (folder / "config.yaml").is_file():
            return folder.resolve()
    known = sorted(p.parent.name for p in EXAMPLES.glob("*/config.yaml"))
    raise preflight.Refused(
        f"no example '{example}': known are {', '.join(known)}; or name a folder with a config.yaml"
    )


def search_path(*folders: Path) -> str:
    """The override that adds `folders` and verl's own configuration to hydra's search path.

    As a file path: ``pkg://verl`` would import verl before its platform is chosen.
    """
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        raise preflight.Refused("verl is not installed: see `python -m recipe.doctor`")
    verl = Path(spec.submodule_search_locations[0]) / "trainer" / "config"
    return f"hydra.searchpath=[{','.join(f'file://{p}' for p in (*folders, verl))}]"


def compose_config(example: str, overrides: list[str]) -> DictConfig:
    """The resolved configuration of an example; Refused for a key that the schema does not know."""
    folder = example_folder(example)
    try:
        with initialize_config_dir(str(folder), version_base=None):
            config = compose("config", overrides=[search_path(CONFIG), *overrides])
            body = OmegaConf.load(folder / "config.yaml")
            groups = [str(v) for v in _group_choices(body)]
            body.pop("defaults", None)
        with initialize_config_dir(str(CONFIG), version_base=None):
            schema = compose("recipe", overrides=[search_path(), *groups])
        # Hydra lets a yaml file add any key; merging into the closed schema does not.
        OmegaConf.set_struct(schema, True)
        OmegaConf.merge(schema, body)
        OmegaConf.resolve(config)
    except (HydraException, OmegaConfBaseException) as error:
        raise preflight.Refused(f"{folder.name}/config.yaml or an override: {error}") from error
    return config


def _group_choices(body: Any) -> list[str]:
    """``override machine: cpu`` in a defaults list, as the command line says it: ``machine=cpu``."""
    choices = []
    for entry in body.get("defaults", []):
        if OmegaConf.is_dict(entry):
            for key, value in entry.items():
                choices.append(f"{str(key).removeprefix('override ').lstrip('/')}={value}")
    return choices


def set_environment(config: DictConfig) -> None:
    """Set what the libraries read at import; every process of the run inherits it."""
    wanted = dict(ENVIRONMENT)
    if config.trainer.device == "cpu":
        wanted.update(CPU_ENVIRONMENT)
        threads = str(max(1, (os.cpu_count() or 1)))
        wanted["OMP_NUM_THREADS"] = threads
    for key, value in wanted.items():
        os.environ.setdefault(key, value)
    os.environ[processes.MARK] = str(config.recipe.run_dir)


def prepare(config: DictConfig) -> None:
    """Everything that can be refused, in the order of what it costs; then config.yaml.

    Paths become absolute: actors may run on another node or in another folder.
    """
    run_dir = Path(config.recipe.run_dir).resolve()
    with open_dict(config):
        config.trainer.default_local_dir = str(
            Path(config.trainer.default_local_dir).resolve()
        )
        config.recipe.run_dir = str(run_dir)
    preflight.check_verl(config)
    preflight.check_batches(config)
    bank = preflight.check_recipe(config)
    preflight.check_room(run_dir, config.recipe.min_free_gib)
    preflight.check_port()
    if config.recipe.toy.enable:
        from recipe.toy import build

        build.attach(config)
    if not config.actor_rollout_ref.model.path:
        raise preflight.Refused("recipe.model_path is not set: name a model folder or a hub id")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(config.actor_rollout_ref.model.path)
    report = preflight.prepare_data(config, bank, tokenizer)
    run_folder.write_json(run_dir / "data" / "manifest.json", report)
    check_same_run(config, run_dir / "config.yaml")
    run_folder.write_text(run_dir / "config.yaml", OmegaConf.to_yaml(config, resolve=True))
    run_folder.write_json(run_dir / "environment.json", run_folder.environment())


# Keys that may differ when a run goes on: how long, how often to save, where to log.
FREE = ("trainer.total_training_steps", "trainer.save_freq", "trainer.test_freq", "trainer.logger",
        "eval", "recipe.min_free_gib", "recipe.save_rollouts_every", "ray_kwargs")


def check_same_run(config: DictConfig, path: Path) -> None:
    """Refuse to go on in a folder whose config.yaml says another experiment."""
    if not path.is_file():
        return
    before, now = OmegaConf.load(path), OmegaConf.create(OmegaConf.to_container(config, resolve=True))
    for free in FREE:
        for side in (before, now):
            OmegaConf.update(side, free, None, force_add=True)
    if before != now:
        keys = _differing(OmegaConf.to_container(before), OmegaConf.to_container(now))
        raise preflight.Refused(
            f"the run folder {path.parent} holds a run with other settings ({', '.join(keys[:5])}): "
            "choose another folder with recipe.run_dir=..., or move this one away"
        )


def _differing(a: Any, b: Any, prefix: str = "") -> list[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        keys = sorted({*a, *b}, key=str)
        return [k for key in keys for k in _differing(a.get(key), b.get(key), f"{prefix}{key}.")]
    return [] if a == b else [prefix.rstrip(".")]


def run(config: DictConfig) -> None:
    """Ray, the task runner, the training loop; ends every process it started, however it ends."""
    run_dir = str(config.recipe.run_dir)
    processes.end(run_dir)  # what a killed run may have left
    reaper = processes.start_reaper(run_dir)
    try:
        import ray
        from verl.trainer.main_ppo import run_ppo
        from verl.trainer.ppo.utils import need_critic, need_reference_policy
        from verl.utils.config import validate_config

        import recipe.plugin  # noqa: F401  (its own traceback, should it fail)
        from recipe.task_runner import RecipeTaskRunner

        validate_config(
            config=config,
            use_reference_policy=need_reference_policy(config),
            use_critic=need_critic(config),
        )
        forward_environment(config)
        try:
            run_ppo(config, task_runner_class=ray.remote(RecipeTaskRunner))
        finally:
            ray.shutdown()
    finally:
        processes.end(run_dir)
        if reaper.stdin:
            reaper.stdin.close()
        reaper.wait()


def forward_environment(config: DictConfig) -> None:
    """Hand the variables set here to actors on other nodes too, through Ray's runtime_env."""
    names = [*ENVIRONMENT, *CPU_ENVIRONMENT, processes.MARK, "OMP_NUM_THREADS"]
    values = {name: os.environ[name] for name in names if name in os.environ}
    with open_dict(config):
        OmegaConf.update(config, "ray_kwargs.ray_init.runtime_env.env_vars", values, force_add=True)


def explain(error: BaseException) -> str | None:
    """A message for what a user can mend, found in a chain of causes; None for the rest."""
    text = "".join(traceback.format_exception(error))
    if os.strerror(errno.ENOSPC) in text:
        return (
            "the disk is full: what is written stays; free some room and start the same command "
            "again, it goes on from the last checkpoint"
        )
    return None


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m recipe.train", description=__doc__)
    parser.add_argument("example", help="a folder in examples/, or the path of one")
    parser.add_argument("overrides", nargs="*", help="hydra overrides, key=value")
    parsed = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # SLURM's way to say: end now
    try:
        config = compose_config(parsed.example, parsed.overrides)
        set_environment(config)
        with run_folder.lock(Path(config.recipe.run_dir)):
            prepare(config)
            run(config)
    except (preflight.Refused, KeyError, ValueError, FileNotFoundError, RuntimeError) as error:
        message = explain(error)
        if message is None and not isinstance(error, preflight.Refused):
            traceback.print_exc()
        print(f"recipe.train: {message or error}", file=sys.stderr)
        return 1
    print(f"recipe.train: done, run folder {config.recipe.run_dir}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
