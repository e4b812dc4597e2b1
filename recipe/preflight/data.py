"""Rules about templates and data files, and the preparation of a run's questions."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, open_dict

from prompt_aug.base import tokenizers
from prompt_aug.base.files import read_json
from prompt_aug.prepare.sources import command_for
from prompt_aug.prompts import Prompts
from prompt_aug.questions import (
    SHOWN_ERRORS,
    Question,
    QuestionError,
    read_parquet,
    write_parquet,
)
from prompt_aug.templates.rendering import Overlong, tag_opened_twice
from prompt_aug.turns import control_token
from prompt_aug.typed import shown
from recipe.errors import ConfigError
from recipe.preflight.engine import ENOUGH_EPOCHS
from recipe.preflight.rules import Check, Rule, Setup, table
from recipe.preflight.sources import check_verifiers, counts_of, samples_of, weighted
from recipe.run.folder import RunFolder
from recipe.run.model_files import model_folder

SPLITS = ("train_files", "val_files")
SMOLLM2 = "bash scripts/smollm2.sh"  # makes models/smollm2* and data/smollm2
TooLong = Callable[[list[Question]], list[Overlong]]  # under the templates that may be drawn


def templates(s: Setup) -> Iterator[str]:
    """The bank can be read, and all templates that are named are in it."""
    listed = {
        "recipe.augment.templates": s.templates,
        "recipe.augment.validation_template": [s.recipe.augment.validation_template],
        "eval.template": [s.config.eval.template],
        "eval.benchmarks": [b.template for b in s.config.eval.benchmarks if b.get("template")],
    }
    unknown: dict[str, list[str]] = {}
    for key, names in listed.items():
        for name in names:
            if name not in s.bank:
                unknown.setdefault(name, []).append(f"{key}={name}")
    for name, settings in unknown.items():
        yield (
            f"{' and '.join(settings)}: no template '{name}' in the bank. Use one of "
            f"{', '.join(s.bank.names)}."
        )


PROMPTS: list[Check] = [
    templates,
    Rule(
        "recipe.augment.mode recipe.augment.templates",
        lambda s: s.recipe.augment.mode == "fixed" and len(s.templates) != 1,
        "this mode needs one template. Name one in recipe.augment.templates.",
    ),
    Rule(
        "recipe.augment.mode recipe.augment.templates",
        lambda s: s.recipe.augment.mode != "fixed" and len(s.templates) == 1,
        "there is one template to draw from. Set recipe.augment.templates=null for all of the bank "
        "or name several, or set recipe.augment.mode=fixed.",
    ),
    Rule(
        "recipe.augment.weights",
        lambda s: s.recipe.augment.weights and len(s.recipe.augment.weights) != len(s.templates),
        "the number of weights is not that of the templates. Give one for each, or null.",
    ),
    Rule(
        "recipe.reward.overlong.buffer data.max_response_length",
        lambda s: (
            s.reward.overlong.enable and s.reward.overlong.buffer > s.data.max_response_length
        ),
        "every response would be penalized. Set a smaller buffer.",
    ),
    *table("prompts"),
]

# ------------------------------------------------------------------------- files


def maker(path: str) -> str:
    """Return the command that makes a missing model folder or data file."""
    return SMOLLM2 if path.startswith(("models/smollm2", "data/smollm2/")) else command_for(path)


def files(s: Setup) -> Iterator[str]:
    """The model and the data files exist."""
    model, found = s.model.path, []
    if not model:
        found.append("recipe.model_path: not set. Name a model folder or a hub id.")
    elif maker(model) == SMOLLM2 and not Path(model).is_dir():
        found.append(f"recipe.model_path={model}: no such folder. Make it: `{SMOLLM2}`.")
    elif not s.is_built(model):
        found += model_folder(model)
    own = {key: [p for p in paths_of(s.data[key]) if not s.is_built(p)] for key in SPLITS}
    for key in SPLITS:
        if not paths_of(s.data[key]):
            found.append(f"data.{key}: not set. Name a parquet file of questions.")
        held_out = " Or hold out questions of your own: prepare them with --validation N."
        remedy = held_out if key == "val_files" else ""
        found += [
            f"data.{key}={path}: no such file. Make it: `{maker(path)}`.{remedy}"
            for path in own[key]
            if not Path(path).exists()
        ]
    yield from found


def too_few(questions: int, s: Setup) -> Iterator[str]:
    """Yield what is wrong with a training set of `questions` questions."""
    questions = limited(questions, s)
    if questions < s.batch:
        yield (
            f"data.train_batch_size={s.batch}: there are {questions} training questions. Set a "
            "smaller batch, or give more questions."
        )
        return
    curriculum, epochs = s.curriculum, s.trainer.total_epochs
    seen = s.batch * curriculum.candidates
    seen *= s.recipe.dynamic_sampling.max_gen_batches if s.filter.enable else 1
    if curriculum.enable and questions < seen:
        yield (
            f"recipe.curriculum.candidates={curriculum.candidates}: a step reads {seen} questions "
            "(data.train_batch_size x candidates, with dynamic sampling x "
            f"recipe.dynamic_sampling.max_gen_batches), and there are {questions}. Lower it."
        )
    if epochs != ENOUGH_EPOCHS and (s.filter.enable or curriculum.enable):
        yield (
            f"trainer.total_epochs={epochs}: with dynamic sampling or a curriculum a step reads "
            "more than one batch of questions, and verl does not count them. Leave the key alone "
            "and set trainer.total_training_steps."
        )


def limited(questions: int, s: Setup) -> int:
    """Return the number of training questions after ``data.train_max_samples``."""
    most = s.data.get("train_max_samples", -1)
    return most if 0 <= most < questions else questions


def paths_of(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or [])


def load_tokenizer(config: DictConfig) -> Any:
    """Return the tokenizer of the start model; ConfigError if it cannot be loaded."""
    try:
        return tokenizers.load_tokenizer(config.actor_rollout_ref.model.path)
    except tokenizers.TokenizerError as error:
        path = config.actor_rollout_ref.model.path
        raise ConfigError(f"recipe.model_path={path}: {error}") from error


FILES: list[Check] = [files]

# ------------------------------------------------------------------------- questions of a run


def prepare_data(config: DictConfig, prompts: Prompts, tokenizer: Any) -> dict[str, Any]:
    """Check the questions, write them into the run folder, and point verl at them.

    A training question is kept if it fits ``data.max_prompt_length`` under every template that may
    be drawn: draws change with the epoch. A validation question is measured under its own fixed
    template. Returns the record of data/manifest.json, which names every question dropped.
    """
    setup, augment, report = Setup(config), config.recipe.augment, dict[str, Any]()
    everything: list[Question] = []
    trained: set[str] = set()
    folder = RunFolder(Path(config.recipe.run_dir))
    drawn = {
        ("train", "train_files"): list(augment.templates or prompts.bank.names),
        ("test", "val_files"): [augment.validation_template],
    }
    for (split, key), names in drawn.items():
        paths = paths_of(config.data[key])
        questions = [q for path in paths for q in read_questions(path, key, tokenizer, config)]
        own = sum(question.system is not None for question in questions)
        if own and len(names) > 1 and augment.system == "row":
            raise ConfigError(
                f"data.{key}: {own} questions have a system prompt, which would replace those of "
                f"{len(names)} templates. Set recipe.augment.mode=fixed with one template, or "
                "recipe.augment.system=template to ignore the rows' own."
            )
        too_long = functools.partial(
            prompts.overlong, names=names, tokenizer=tokenizer, limit=config.data.max_prompt_length
        )
        kept, dropped = fitting(questions, too_long, config, key)
        check_tags(split, names, prompts, kept[0], tokenizer)
        rows, samples = kept, None
        if split == "test":
            kept, samples = samples_of(rows, setup.rollout.val_kwargs.n)
        counts: dict[str, Any] = {"questions": len(kept)}
        everything += kept
        if split == "train":
            kept, rephrasings = fit_rephrasings(kept, too_long, config)
            kept = only_question(weighted(kept, config.recipe.source_weights), config)
            if found := list(too_few(len(kept), setup)):
                raise ConfigError("\n".join(found))
            counts["steps_per_epoch"] = limited(len(kept), setup) // setup.batch
            limit_steps(config, counts["steps_per_epoch"])
            counts.update(rephrasings)
            trained = {question.uid for question in kept}
        else:
            best, written = config.recipe.keep_best, {f"val/{q.source}/accuracy" for q in kept}
            if best and best not in written:
                raise ConfigError(
                    f"recipe.keep_best={best}: no validation on data.val_files writes it. Set "
                    f"{' or '.join(sorted(written))}."
                )
            check_held_out(kept, trained, setup)
        graded = bool(config.recipe.reward.verifiers)  # by functions that may read any column
        digest = questions_digest(rows if samples else kept, graded)
        counts |= {"digest": digest, "rows_of_source": counts_of(kept)}
        check_same_questions(folder, split, f"data.{key}", digest)
        path = folder.data(split)
        write_parquet([dataclasses.replace(q, split=split) for q in kept], path, samples)
        report[split] = counts | {
            "max_prompt_length": int(config.data.max_prompt_length),
            "dropped": [dataclasses.asdict(d) for d in dropped],
        }
        with open_dict(config):
            config.data[key] = [str(path)]
            # verl would filter again, by the tokenizer's chat template, and without one drop all.
            config.data.filter_overlong_prompts = False
    return report | {"verifiers": check_verifiers(config, everything)}


def read_rows(path: str, key: str) -> list[Question]:
    """Return the questions of a file; ConfigError with the key if they cannot be read."""
    try:
        return read_parquet(path)
    except QuestionError as error:
        raise ConfigError(f"data.{key}={error}") from error


def read_questions(path: str, key: str, tokenizer: Any, config: Any) -> list[Question]:
    """Return the questions of a file; ConfigError if a text of one contains a special token."""
    questions, count = read_rows(path, key), int(config.recipe.rephrasings.count)
    found = []
    for row, question in enumerate(questions):
        system = question.system if config.recipe.augment.system == "row" else None
        texts = (question.text, system or "", *question.rephrasings[:count])
        if token := control_token(texts, tokenizer):
            found.append(f"row {row} (question {question.uid}): {token}")
    if found:
        raise ConfigError(
            f"data.{key}={path}: a special token of the tokenizer could end its turn "
            f"(found: {len(found)}): {', '.join(found[:SHOWN_ERRORS])}. Rewrite or drop them."
        )
    return questions


def check_tags(
    split: str, names: list[str], prompts: Prompts, question: Question, tokenizer: Any
) -> None:
    """Reject templates that require a tag, such as ``<think>``, that the prompt opens already."""
    tags = {
        name: tag
        for name in names
        if (tag := tag_opened_twice(prompts.bank[name], question, tokenizer, prompts.form))
    }
    if tags:
        key = "templates" if split == "train" else "validation_template"
        raise ConfigError(
            f"recipe.augment.{key}={shown(list(tags))}: the tokenizer's chat template opens "
            f"{', '.join(dict.fromkeys(tags.values()))}, which these templates open or require in "
            "the response. Leave them out, set recipe.augment.style=raw, or, if the chat template "
            "reads it, +data.apply_chat_template_kwargs.enable_thinking=false."
        )


def check_held_out(questions: list[Question], trained: set[str], s: Setup) -> None:
    """Warn of validation questions that are trained on; reject them if they select a checkpoint.

    `recipe.keep_best` reads one data source, the guard reads all. With ``recipe.one_question``
    validation may contain the one question.
    """
    if not (shared := [question for question in questions if question.uid in trained]):
        return
    told = f"{len(shared)} of {len(questions)} questions are also in data.train_files"
    guarded = s.recipe.guard.action == "stop"
    best = s.recipe.keep_best in {f"val/{question.source}/accuracy" for question in shared}
    if (best or guarded) and s.recipe.one_question is None:
        key, off = ("guard.action", "warn") if guarded else ("keep_best", "null")
        raise ConfigError(
            f"{s.named(f'recipe.{key}')}: needs held-out accuracy, and of data.val_files {told}. "
            f"Remove them from one of the files, or set recipe.{key}={off}."
        )
    print(f"data.val_files: {told}; their accuracy is not held out")


def limit_steps(config: DictConfig, steps_per_epoch: int) -> None:
    """Lower ``trainer.total_training_steps`` to the steps of ``trainer.total_epochs``.

    verl would end there too, but without saving the last steps.
    """
    most = config.trainer.total_epochs * steps_per_epoch
    config.trainer.total_training_steps = min(config.trainer.total_training_steps, most)


def questions_digest(questions: Sequence[Question], rows: bool = False) -> str:
    """Return the SHA-256 of the questions in their order, with `rows` of all their columns."""
    lines = [
        json.dumps([q.text, list(q.answers), list(q.rephrasings), *filter(None, more)])
        for q, more in ((q, (q.system, q.row if rows else None)) for q in questions)
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def check_same_questions(folder: RunFolder, split: str, key: str, now: str) -> None:
    """Reject a resume with other questions than those of the earlier steps, before files change.

    config.yaml has only the name of the file. With other content the order of questions, the draws
    of templates and the questions' histories would belong to another set.
    """
    if not folder.metrics.exists() or not folder.data_manifest.is_file():
        return
    if read_json(folder.data_manifest).get(split, {}).get("digest", now) != now:
        raise ConfigError(
            f"{key}: the questions are not those of the earlier steps of {folder.root} "
            f"(data/{split}.parquet there). Restore the file, or choose another folder with "
            "recipe.run_dir=..."
        )


def fitting(
    questions: list[Question], too_long: TooLong, config: Any, key: str
) -> tuple[list[Question], list[Overlong]]:
    """Return the questions that fit the prompt limit under all templates, and the others."""
    limit, dropped = int(config.data.max_prompt_length), too_long(questions)
    gone = {d.uid for d in dropped}
    kept = [q for q in questions if q.uid not in gone]
    if not kept:
        raise ConfigError(
            f"data.max_prompt_length={limit}: all {len(questions)} questions of data.{key} are "
            "longer under the templates drawn. Raise it."
        )
    if dropped:
        worst = max(dropped, key=lambda d: d.length)
        print(
            f"data.{key}: dropped {len(gone)} of {len(questions)} questions longer than "
            f"{limit} tokens (question {worst.uid}: {worst.length} under {worst.template})"
        )
    return kept, dropped


def fit_rephrasings(
    questions: list[Question], too_long: TooLong, config: Any
) -> tuple[list[Question], dict[str, int]]:
    """Return the questions with the first `recipe.rephrasings.count` that fit, and their counts."""
    count, limit = int(config.recipe.rephrasings.count), int(config.data.max_prompt_length)
    if not count:
        return questions, {}
    listed = [(q, text) for q in questions for text in q.rephrasings[:count]]
    texts = [dataclasses.replace(q, text=text, uid=str(i)) for i, (q, text) in enumerate(listed)]
    long = {int(d.uid) for d in too_long(texts)}
    used: dict[str, list[str]] = {q.uid: [] for q in questions}
    for i, (question, text) in enumerate(listed):
        if i not in long:
            used[question.uid].append(text)
    if not (total := sum(map(len, used.values()))):
        raise ConfigError(
            f"recipe.rephrasings.count={count}: no question of data.train_files has a rephrasing "
            f"of at most data.max_prompt_length={limit} tokens. Add rephrasings to the data, or "
            "set recipe.rephrasings.count=0."
        )
    kept = [dataclasses.replace(q, rephrasings=tuple(used[q.uid])) for q in questions]
    missing = sum(len(q.rephrasings) < count for q in kept)
    if missing:
        print(f"{missing} of {len(kept)} questions have fewer than {count} rephrasings in use")
    return kept, {"rephrasings": total, "rephrasings_too_long": len(long), "with_fewer": missing}


def only_question(questions: list[Question], config: Any) -> list[Question]:
    """Return the one question of 1-shot RLVR, repeated to a full batch; else all questions.

    ``recipe.one_question`` is its uid, or its row number from 0 among those that fit.
    """
    wanted = config.recipe.one_question
    if wanted is None:
        return questions
    for i, question in enumerate(questions):
        if question.uid == wanted or (isinstance(wanted, int) and i == wanted):
            return [question] * int(config.data.train_batch_size)
    raise ConfigError(
        f"recipe.one_question={wanted}: no such question. Give the uid or the row number of one of "
        f"the {len(questions)} in data.train_files."
    )
