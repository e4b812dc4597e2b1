"""From the name of an example to its resolved configuration; and whether a folder is that run's."""

import functools
import importlib.util
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from recipe.errors import ConfigError

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CONFIG = Path(__file__).resolve().parent


def example_folder(example: str) -> Path:
    """The folder of an example, by name or path; ConfigError with the known names."""
    for folder in (EXAMPLES / example, Path(example)):
        if (folder / "config.yaml").is_file():
            return folder.resolve()
    known = sorted(str(p.parent.relative_to(EXAMPLES)) for p in EXAMPLES.rglob("config.yaml"))
    raise ConfigError(
        f"no example '{example}': known are {', '.join(known)}; or name a folder with a config.yaml"
    )


def search_path(*folders: Path) -> str:
    """The override that adds `folders` and verl's own configuration to hydra's search path.

    As a file path: ``pkg://verl`` would import verl before its platform is chosen.
    """
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("verl is not installed: see `python -m recipe.doctor`")
    verl = Path(spec.submodule_search_locations[0]) / "trainer" / "config"
    return f"hydra.searchpath=[{','.join(f'file://{p}' for p in (*folders, verl))}]"


def compose_config(example: str, overrides: list[str]) -> DictConfig:
    """The resolved configuration of an example; ConfigError for an unknown key."""
    folder = example_folder(example)
    try:
        with initialize_config_dir(str(folder), version_base=None):
            config = compose("config", overrides=[search_path(CONFIG), *overrides])
            body: Any = OmegaConf.load(folder / "config.yaml")
            groups = tuple(str(v) for v in _group_choices(body))
            body.pop("defaults", None)
        # Hydra lets a yaml file add any key; merging into the closed schema does not.
        OmegaConf.merge(_schema(groups), body)
        OmegaConf.resolve(config)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(f"{folder.name}/config.yaml or an override: {error}") from error
    return config


@functools.cache
def _schema(groups: tuple[str, ...]) -> DictConfig:
    """All keys that there are with these groups; merge it, do not change it."""
    with initialize_config_dir(str(CONFIG), version_base=None):
        schema = compose("recipe", overrides=[search_path(), *groups])
    OmegaConf.set_struct(schema, True)
    return schema


def _group_choices(body: Any) -> list[str]:
    """``override machine: cpu`` of a defaults list as an override: ``machine=cpu``."""
    choices = []
    for entry in body.get("defaults", []):
        if OmegaConf.is_dict(entry):
            for key, value in entry.items():
                if value is not None:  # hydra takes null in a file, not as an override
                    choices.append(f"{str(key).removeprefix('override ').lstrip('/')}={value}")
    return choices


STEPS = "trainer.total_training_steps"
# Keys that may differ when a run goes on: how often to save, where to log, memory; and STEPS where
# the learning rate does not depend on it.
FREE = (
    "trainer.save_freq",
    "trainer.test_freq",
    "trainer.logger",
    "eval",
    "recipe.min_free_gib",
    "recipe.save_rollouts_every",
    "recipe.worker_logs",
    "recipe.keep_every",
    "recipe.keep_best",
    "trainer.max_actor_ckpt_to_keep",
    "recipe.save_tensors_every",
    "recipe.dynamic_sampling",  # what a run that ended for want of a signal asks to change
    "ray_kwargs",
    # QuestionStats: what a run that ran out of it has to lower; results change by rounding alone.
    "actor_rollout_ref.rollout.gpu_memory_utilization",
    "actor_rollout_ref.rollout.max_num_seqs",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu",
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu",
    "trainer.max_actor_ckpt_to_keep",
)


def check_same_run(config: DictConfig, path: Path) -> None:
    """Refuse to go on in a folder where another experiment, by its config.yaml, has done a step."""
    if not path.is_file() or not (path.parent / "metrics.jsonl").exists():
        return
    before, now = (
        OmegaConf.load(path),
        OmegaConf.create(OmegaConf.to_container(config, resolve=True)),
    )
    for free in (*FREE, STEPS) if _steps_are_free(config) else FREE:
        for side in (before, now):
            OmegaConf.update(side, free, None, force_add=True)
    if before != now:
        keys = _differing(OmegaConf.to_container(before), OmegaConf.to_container(now))
        raise ConfigError(
            f"the run folder {path.parent} holds a run with other settings "
            f"({', '.join(keys[:5])}): choose another folder with recipe.run_dir=..., "
            "or move this one away"
        )


def _steps_are_free(config: DictConfig) -> bool:
    """Whether the learning rate of a step is the same however many steps a run has."""
    optim = config.actor_rollout_ref.actor.optim
    by_share = optim.lr_warmup_steps <= 0 and optim.lr_warmup_steps_ratio > 0
    return optim.lr_scheduler_type == "constant" and not by_share


def _differing(a: Any, b: Any, prefix: str = "") -> list[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        keys = sorted({*a, *b}, key=str)
        return [k for key in keys for k in _differing(a.get(key), b.get(key), f"{prefix}{key}.")]
    return [] if a == b else [prefix.rstrip(".")]
