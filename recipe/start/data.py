"""Rules about templates, the model and data files, and the number of questions."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prompt_aug.base import tokenizers
from prompt_aug.base.files import read_json, sha256
from prompt_aug.questions import held_out_of, manifest_of
from recipe.errors import ConfigError
from recipe.machine.model_files import model_folder
from recipe.start.rules import Check, Rule, Setup

SPLITS = ("train_files", "val_files")
SMOLLM2 = "bash scripts/smollm2.sh"  # makes models/smollm2* and data/smollm2
PREPARE = "python -m prompt_aug.prepare SOURCE {} --against BENCHMARKS"  # --help lists presets


def templates(s: Setup) -> Iterator[str]:
    """The bank can be read, and all templates that are named are in it."""
    listed = {
        "recipe.augment.templates": s.templates,
        "recipe.augment.validation_template": [s.recipe.augment.validation_template],
        "eval.template": [s.config.eval.template],
        "eval.benchmarks": [b.template for b in s.config.eval.benchmarks if b.get("template")],
    }
    missing: dict[str, list[str]] = {}
    for key, names in listed.items():
        for name in names:
            if name not in s.bank:
                missing.setdefault(name, []).append(f"{key}={name}")
    for name, settings in missing.items():
        yield (
            f"{' and '.join(settings)}: no template '{name}' in the bank. Use one of "
            f"{', '.join(s.bank.names)}."
        )


PROMPTS: list[Check] = [
    templates,
    Rule(
        "recipe.augment.mode recipe.augment.templates",
        lambda s: (s.recipe.augment.mode == "fixed") != (len(s.templates) == 1),
        "one template to draw from needs recipe.augment.mode=fixed, and several another mode. Name "
        "the templates in recipe.augment.templates (null: all of the bank), or change the mode.",
    ),
    Rule(
        "recipe.augment.style recipe.augment.mode recipe.reward.format_weight",
        lambda s: (
            s.recipe.augment.style == "row"
            and (s.recipe.augment.mode != "fixed" or s.reward.format_weight)
        ),
        "the rows' own messages are in no template. Set recipe.augment.mode=fixed and "
        "recipe.reward.format_weight=0, or another style.",
    ),
    Rule(
        "recipe.reward.overlong.buffer data.max_response_length",
        lambda s: (
            s.reward.overlong.enable and s.reward.overlong.buffer > s.data.max_response_length
        ),
        "every response would be penalized. Set a smaller buffer.",
    ),
]


def maker(path: str) -> str:
    """Return the command that makes a missing model folder or data file."""
    if path.startswith(("models/smollm2", "data/smollm2/")):
        return SMOLLM2
    return PREPARE.format(path if path.endswith(".parquet") else "OUT.parquet")


def files(s: Setup) -> Iterator[str]:
    """The model and the data files exist."""
    model = s.model.path
    if not model:
        yield "recipe.model_path: not set. Name a model folder or a hub id."
    elif maker(model) == SMOLLM2 and not Path(model).is_dir():
        yield f"recipe.model_path={model}: no such folder. Make it: `{SMOLLM2}`."
    else:
        yield from model_folder(model)
    held_out = " Or hold out questions of your own: prepare them with --validation N."
    for key, remedy in zip(SPLITS, ("", held_out), strict=True):
        if not (paths := paths_of(s.data[key])):
            yield f"data.{key}: not set. Name a parquet file of questions."
        for path in paths:
            if not Path(path).exists():
                yield f"data.{key}={path}: no such file. Make it: `{maker(path)}`.{remedy}"


def one_preparation(s: Setup) -> Iterator[str]:
    """A training file and the questions held out of it are of one preparation; others may be any.

    Otherwise both could hold the same questions.
    """
    train, validation = ([Path(x).resolve() for x in paths_of(s.data[key])] for key in SPLITS)
    for out in train:
        beside = held_out_of(out)
        if beside not in validation or not beside.exists():
            continue
        paths = manifest_of(out), manifest_of(beside)
        made, held = (read_json(path) if path.exists() else {} for path in paths)
        # Earlier versions wrote the number of held-out questions alone.
        digest = made.get("held_out_sha256", "held_out" in made)
        if held.get("held_out_of") == out.name and digest not in (True, sha256(beside)):
            yield (
                f"data.val_files={beside}: not the questions held out of {out}, whose "
                "preparation was interrupted or repeated. Prepare both again."
            )


def too_few(questions: int, s: Setup) -> Iterator[str]:
    """Yield what is wrong with a training set of `questions` questions."""
    questions = limited(questions, s)
    if questions < s.batch:
        yield (
            f"data.train_batch_size={s.batch}: there are {questions} training questions. Set a "
            "smaller batch, or give more questions."
        )
        return
    curriculum = s.curriculum
    seen = s.batch * curriculum.candidates
    seen *= s.recipe.dynamic_sampling.max_gen_batches if s.filter.enable else 1
    if curriculum.enable and questions < seen:
        yield (
            f"recipe.curriculum.candidates={curriculum.candidates}: a step reads {seen} questions "
            "(data.train_batch_size x candidates, with dynamic sampling x "
            f"recipe.dynamic_sampling.max_gen_batches), and there are {questions}. Lower it."
        )


def limited(questions: int, s: Setup) -> int:
    """Return the number of training questions after ``data.train_max_samples``."""
    most = s.data.get("train_max_samples", -1)
    return most if 0 <= most < questions else questions


def paths_of(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or [])


def load_tokenizer(s: Setup) -> Any:
    """Return the tokenizer of the start model; ConfigError if it cannot be loaded."""
    try:
        return tokenizers.load_tokenizer(s.model.path)
    except tokenizers.TokenizerError as error:
        raise ConfigError(f"recipe.model_path={s.model.path}: {error}") from error


FILES: list[Check] = [files, one_preparation]
