"""Build the toy world once, keep it in a cache, and point a configuration at it.

    <cache>/<digest>/{train,validation,test}.parquet  model/  manifest.json (last)

The digest is that of everything the content depends on: settings, templates, and the source of the
modules that make it. A folder without a manifest is a build that was cut: it is built again.
"""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from prompt_aug.questions import write_parquet
from prompt_aug.templates import Bank, load_bank, render
from recipe.toy import world
from recipe.toy.demonstrations import demonstration

MANIFEST = "manifest.json"
CONTENT = ("world", "demonstrations", "tokenizer", "warmup")  # modules that decide the content


def digest(settings: dict[str, Any], bank: Bank) -> str:
    """16 hex digits over the settings, the bank and the source of `CONTENT`."""
    source = "".join(Path(__file__).with_name(f"{name}.py").read_text() for name in CONTENT)
    content = json.dumps(settings, sort_keys=True) + repr([bank[n] for n in bank.names]) + source
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def corpus(bank: Bank) -> list[str]:
    """The texts that the tokenizer's merges are learned from: prompts and answers of the world."""
    samples = world.problems("train", 400, seed=0)
    texts = [world.to_question(p, "train", 0) for p in samples]
    words = [text for q in texts for text in (q.text, *q.neighbours)]
    frames = [render(bank[name], words[0], None).text for name in bank.names]
    answers = [demonstration(p, name) for p in samples[:40] for name in bank.names]
    return words + frames * 50 + answers


def settings_of(config: DictConfig, bank: Bank) -> dict[str, Any]:
    """What the content of a toy world depends on, from ``recipe.toy`` and ``recipe.seed``."""
    toy: Any = OmegaConf.to_container(config.recipe.toy, resolve=True)
    return {
        "sizes": {s: int(toy[f"{s}_questions"]) for s in world.SPLITS},
        "templates": list(toy["templates"] or bank.names),
        "seed": int(config.recipe.seed),
        "updates": int(toy["updates"]),
    }


def folder_of(config: DictConfig, bank: Bank) -> Path:
    """Where the toy world of a configuration lies in the cache, built or not."""
    return Path(config.recipe.toy.cache).resolve() / digest(settings_of(config, bank), bank)


def build(config: DictConfig) -> Path:
    """The folder of the toy world of `config`, from the cache or built now."""
    bank = load_bank(config.recipe.augment.bank)
    settings, folder = settings_of(config, bank), folder_of(config, bank)
    if (folder / MANIFEST).is_file():
        return folder
    # Seconds of imports, which a refused or finished run does without.
    from recipe.toy.tokenizer import build_tokenizer
    from recipe.toy.warmup import WarmUp, build_model, train

    seed, names = settings["seed"], settings["templates"]
    beside = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    for split, count in settings["sizes"].items():
        chosen = world.problems(split, count, seed)
        write_parquet(
            [world.to_question(p, split, seed) for p in chosen], beside / f"{split}.parquet"
        )
    tokenizer = build_tokenizer(corpus(bank))
    model = build_model(tokenizer, seed)
    pool = [p for p in world.all_problems() if world.split_of(p, seed) == "train"]
    loss = train(
        model,
        tokenizer,
        _balanced(pool),
        [bank[name] for name in names],
        WarmUp(updates=settings["updates"], seed=seed),
    )
    model.save_pretrained(beside / "model")
    tokenizer.save_pretrained(beside / "model")
    record = {**settings, "parameters": model.num_parameters(), "warmup_loss": loss}
    (beside / MANIFEST).write_text(json.dumps(record, indent=2))
    shutil.rmtree(folder, ignore_errors=True)
    beside.replace(folder)
    return folder


def _balanced(pool: list[world.Problem]) -> list[world.Problem]:
    """The problems repeated so that each level has its share of `world.LEVELS`."""
    balanced: list[world.Problem] = []
    for level, (_, share) in world.LEVELS.items():
        of_level = [p for p in pool if p.level == level]
        wanted = round(10_000 * share)
        balanced += (of_level * (wanted // len(of_level) + 1))[:wanted]
    return balanced


def attach(config: DictConfig) -> Path:
    """Set the paths of `config` that are not set to those of its toy world; builds nothing.

    Returns the folder in which `build` will make it.
    """
    folder = folder_of(config, load_bank(config.recipe.augment.bank))
    with open_dict(config):
        if config.recipe.model_path is None:
            config.recipe.model_path = str(folder / "model")
            config.actor_rollout_ref.model.path = str(folder / "model")
        config.data.train_files = config.data.train_files or [str(folder / "train.parquet")]
        config.data.val_files = config.data.val_files or [str(folder / "validation.parquet")]
        if not config.eval.benchmarks:
            path = str(folder / "test.parquet")
            config.eval.benchmarks = [{"name": "toy_test", "path": path, "samples": 1}]
    return folder
