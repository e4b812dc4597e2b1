"""Build a toy world once, keep it in a cache, and point a configuration at it.

    <cache>/<digest>/{train,validation,test}.parquet  model/  manifest.json (last)

The digest covers world, seed, templates, and the source of the modules in `CONTENT`. One process at
a time builds a world in <cache>/.<digest>/new. It deletes files that a killed process left there.
"""

import hashlib
import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from prompt_aug.base.files import InUseError, lock
from prompt_aug.base.progress import Progress
from prompt_aug.questions import write_parquet
from prompt_aug.templates import Bank, load_bank, render
from recipe.toy.demonstrations import demonstration
from recipe.toy.world import (
    SPLITS,
    Problem,
    World,
    all_problems,
    load_world,
    phrase,
    problems,
    rephrasings,
    split_of,
    to_question,
)

MANIFEST = "manifest.json"
# Modules whose source is part of the digest.
CONTENT = ("world", "demonstrations", "warmup")


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Settings that determine a built world, together with the source code and the bank."""

    world: World
    templates: tuple[str, ...]  # those that the start model is taught; (): only the questions
    seed: int

    def record(self) -> dict[str, Any]:
        """Return the settings as JSON, for the digest and the manifest."""
        return {
            "world": {"name": self.world.name, **self.world.record()},
            "templates": list(self.templates),
            "seed": self.seed,
        }


def digest(settings: Settings, bank: Bank) -> str:
    """Return 16 hex digits over the settings, the bank and the source of `CONTENT`."""
    source = "".join(Path(__file__).with_name(f"{name}.py").read_text() for name in CONTENT)
    templates = repr([bank[n] for n in bank.names])
    content = json.dumps(settings.record(), sort_keys=True) + templates + source
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def shipped_start(settings: Settings, bank: Bank) -> Path:
    """Return the file of the start model, in float16; it exists only for the quick start.

    The name is a digest of the taught world, templates and seed, not of code or tokenizer. The
    quick start has equal weights on every machine. A taught model differs, because rounding depends
    on the processor. `scripts/ship_start.py` writes the file.
    """
    world = settings.world.record()
    taught = {key: world[key] for key in ("levels", "slips", "updates")}
    prompts = [render(bank[name], "?", None).text for name in bank.names]
    content = json.dumps([taught, prompts, settings.templates, settings.seed], sort_keys=True)
    key = hashlib.sha256(content.encode()).hexdigest()[:16]
    return Path(__file__).with_name("start") / f"{key}.safetensors"


def corpus(world: World, bank: Bank) -> list[str]:
    """Return the texts for the tokenizer's merges: prompts and answers of the world."""
    samples = problems(world, "train", 400, seed=0)
    words = [phrase(p, i) for p in samples for i in rephrasings(p, 0)]
    frames = [render(bank[name], words[0], None).text for name in bank.names]
    answers = [demonstration(p, name) for p in samples[:40] for name in bank.names]
    return words + frames * 50 + answers


def settings_of(config: DictConfig, bank: Bank) -> Settings:
    """Return the settings of ``recipe.toy``; its keys override the world.

    With the user's own start model no model is taught.
    """
    toy: Any = OmegaConf.to_container(config.recipe.toy, resolve=True)
    world = load_world(toy["world"])
    sizes = {s: int(toy[f"{s}_questions"]) for s in SPLITS if toy[f"{s}_questions"] is not None}
    updates = world.updates if toy["updates"] is None else int(toy["updates"])
    questions = world.questions.model_copy(update=sizes)
    settings = Settings(
        world=world.model_copy(update={"questions": questions, "updates": updates}),
        templates=tuple(toy["templates"] or bank.names),
        seed=int(config.recipe.seed),
    )
    model = str(Path(toy["cache"]).resolve() / digest(settings, bank) / "model")
    if config.recipe.model_path in (None, model):
        return settings
    return replace(settings, templates=())


def folder_of(config: DictConfig, bank: Bank) -> Path:
    """Return the folder of a configuration's toy world in the cache, built or not."""
    return Path(config.recipe.toy.cache).resolve() / digest(settings_of(config, bank), bank)


def is_missing(config: DictConfig) -> bool:
    """Return True if `config`, after `attach`, names files of a toy world that is not built."""
    if not config.recipe.toy.enable:
        return False
    folder = folder_of(config, load_bank(config.recipe.augment.bank))
    return str(folder) in str(config) and not (folder / MANIFEST).is_file()


def build(config: DictConfig) -> Path:
    """Return the folder of the toy world of `config`; build it unless it is in the cache."""
    bank = load_bank(config.recipe.augment.bank)
    return make(settings_of(config, bank), bank, Path(config.recipe.toy.cache))


def make(settings: Settings, bank: Bank, cache: Path) -> Path:
    """Return the folder of a world in `cache`; build it, or wait for the process that does."""
    folder = cache.resolve() / digest(settings, bank)
    place, name = folder.with_name(f".{folder.name}"), settings.world.name
    if (folder / MANIFEST).is_file():
        return folder
    # Without the lock, two processes would train one model twice, and the second would replace the
    # files that the first has begun to use.
    try:
        held = lock(place)
    except InUseError:
        print(f"toy world {name}: waiting for the process that teaches its model", flush=True)
        held = lock(place, wait=True)
    with held:
        if not (folder / MANIFEST).is_file():
            shutil.rmtree(place / "new", ignore_errors=True)
            _teach(settings, bank, place / "new")
            shutil.rmtree(folder, ignore_errors=True)
            (place / "new").replace(folder)
    return folder


def _teach(settings: Settings, bank: Bank, folder: Path) -> None:
    """Write questions, start model and, last, the manifest of a world into `folder`."""
    tokenizer = write_data(settings, bank, folder)
    made: dict[str, Any] = {}
    if settings.templates:
        made = _teach_model(settings, bank, tokenizer, folder / "model")
    (folder / MANIFEST).write_text(json.dumps(settings.record() | made, indent=2))


def _teach_model(settings: Settings, bank: Bank, tokenizer: Any, folder: Path) -> dict[str, Any]:
    """Write the start model; return its size, and the loss and time of its teaching."""
    # These imports take seconds, so a rejected or finished run skips them.
    from safetensors.torch import load_model
    from transformers.utils.logging import disable_progress_bar

    from recipe.toy.warmup import WarmUp, build_model, train

    world, seed = settings.world, settings.seed
    model = build_model(tokenizer, seed)
    frames = [bank[name] for name in settings.templates]
    disable_progress_bar()
    if (shipped := shipped_start(settings, bank)).is_file():
        print(f"toy world {world.name}: start model from {shipped.name}", flush=True)
        load_model(model, shipped)
        loss, seconds = None, 0.0
    else:
        print(f"toy world {world.name}: teaching the start model", flush=True)
        warm_up = WarmUp(updates=world.updates, seed=seed)
        taught = demonstrated(world, seed)
        with Progress("teach", world.updates, "updates") as bar:
            loss = train(model, tokenizer, world, taught, frames, warm_up, bar.update)
            seconds = bar.clock() - bar.began
    model.save_pretrained(folder)
    return {"parameters": model.num_parameters(), "warmup_loss": loss, "seconds": seconds}


def write_data(settings: Settings, bank: Bank, folder: Path) -> Any:
    """Write the questions of a world into `folder`, and the tokenizer of its start model if any."""
    from recipe.toy.warmup import build_tokenizer

    folder.mkdir(parents=True)
    for split, count in settings.world.questions.model_dump().items():
        chosen = problems(settings.world, split, count, settings.seed)
        questions = [to_question(p, split, settings.seed) for p in chosen]
        write_parquet(questions, folder / f"{split}.parquet")
    if not settings.templates:
        return None
    tokenizer = build_tokenizer(corpus(settings.world, bank))
    tokenizer.save_pretrained(folder / "model")
    return tokenizer


def demonstrated(world: World, seed: int) -> list[Problem]:
    """Return about 10,000 problems of "train", repeated so that each level has its share."""
    balanced: list[Problem] = []
    pool = [p for p in all_problems(world) if split_of(p, seed) == "train"]
    for number, level in enumerate(world.levels, start=1):
        of_level = [p for p in pool if p.level == number]
        wanted = round(10_000 * level.share)
        balanced += (of_level * (wanted // len(of_level) + 1))[:wanted]
    return balanced


def attach(config: DictConfig) -> Path | None:
    """Set the missing paths of `config` to those of its toy world; return its folder, unbuilt.

    The world's test questions are evaluated only in a run that validates on the world. If the model
    and all data are the user's, set `recipe.toy.enable` to False and return None.
    """
    folder = folder_of(config, load_bank(config.recipe.augment.bank))
    with open_dict(config):
        if config.recipe.model_path is None:
            config.recipe.model_path = str(folder / "model")
            config.actor_rollout_ref.model.path = str(folder / "model")
            config.critic.model.path = config.actor_rollout_ref.model.path
        config.data.train_files = config.data.train_files or [str(folder / "train.parquet")]
        if not config.data.val_files:
            config.data.val_files = [str(folder / "validation.parquet")]
            test = {"name": "toy_test", "path": str(folder / "test.parquet"), "samples": 1}
            config.eval.benchmarks = config.eval.benchmarks or [test]
        used = (config.recipe.model_path, config.data.train_files, config.data.val_files)
        if not any(str(folder) in str(path) for path in used):
            config.recipe.toy.enable = False
            return None
    return folder
