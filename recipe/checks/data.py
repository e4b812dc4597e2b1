"""The templates and the questions of a run, checked before Ray starts.

Nothing is written but the checked questions of the run.
"""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, open_dict

from prompt_aug.base import tokenizers
from prompt_aug.base.files import read_json
from prompt_aug.prepare.sources import command_for
from prompt_aug.prompts import Prompts
from prompt_aug.questions import Question, read_parquet, write_parquet
from prompt_aug.templates import Bank, Overlong, UnknownTemplateError
from recipe.errors import ConfigError
from recipe.run.folder import RunFolder


def check_templates(config: DictConfig) -> Prompts:
    """Refuse unknown templates and settings of `recipe.augment` that contradict; the record."""
    augment, reward = config.recipe.augment, config.recipe.reward
    try:
        prompts = Prompts.from_config(config)  # BankError for a missing or malformed bank
    except UnknownTemplateError as error:
        raise ConfigError(f"recipe.augment.validation_template: {error}") from error
    bank = prompts.bank
    names = list(augment.templates or bank.names)
    _check_known(config, names, bank)
    if augment.mode == "fixed" and len(names) != 1:
        raise ConfigError(
            f"recipe.augment.mode=fixed wants one name in recipe.augment.templates, not "
            f"{len(names)}"
        )
    if augment.mode != "fixed" and len(names) == 1:
        raise ConfigError(
            f"recipe.augment.mode={augment.mode} has one template to draw from, {names[0]}: set "
            "recipe.augment.templates=null for all of the bank or name several, or set "
            "recipe.augment.mode=fixed"
        )
    if augment.weights and len(augment.weights) != len(names):
        raise ConfigError(
            f"recipe.augment.weights has {len(augment.weights)} values for {len(names)} templates: "
            "give one for each, or null for equal ones"
        )
    limit = config.data.max_response_length
    if reward.overlong.enable and reward.overlong.buffer > limit:
        raise ConfigError(
            f"recipe.reward.overlong.buffer={reward.overlong.buffer} is more than "
            f"data.max_response_length={limit}: every response would be punished; set it lower"
        )
    if config.recipe.one_question == "?":
        raise ConfigError(
            "recipe.one_question: the method is about one question; give its uid or its row number"
        )
    return prompts


def _check_known(config: DictConfig, names: list[str], bank: Bank) -> None:
    """Refuse names of templates that the bank does not have, also those of evaluation."""
    own = [entry["template"] for entry in config.eval.benchmarks if entry.get("template")]
    for key, listed in (
        ("recipe.augment.templates", names),
        ("eval.template", [config.eval.template]),
        ("eval.benchmarks", own),
    ):
        for name in listed:
            if name not in bank.names:
                raise ConfigError(
                    f"{key}: no template '{name}' in the bank: known are {', '.join(bank.names)}"
                )


def read_questions(files: Any, key: str) -> list[Question]:
    """The questions of a file or list of files named by the setting `key`."""
    paths = _paths(files)
    if not paths:
        raise ConfigError(f"{key} is not set: name a parquet file of questions")
    return [question for path in paths for question in read_parquet(path)]


def load_tokenizer(config: DictConfig) -> Any:
    """The tokenizer of the start model; ConfigError where the model cannot be had."""
    try:
        return tokenizers.load_tokenizer(config.actor_rollout_ref.model.path)
    except tokenizers.TokenizerError as error:
        raise ConfigError(f"recipe.model_path: {error}") from error


def prepare_data(config: DictConfig, prompts: Prompts, tokenizer: Any) -> dict[str, Any]:
    """Check the questions, write them into the run folder, and point verl at them.

    A training question stays if it fits ``data.max_prompt_length`` under every template that may
    be drawn: draws change with the epoch. A validation question is measured under its own fixed
    template. Returns the record of data/manifest.json, which names every question dropped.
    """
    augment, report = config.recipe.augment, {}
    drawn = {
        ("train", "train_files"): list(augment.templates or prompts.bank.names),
        ("test", "val_files"): [augment.validation_template],
    }
    for (split, key), names in drawn.items():
        questions = read_questions(config.data[key], f"data.{key}")
        check_own_systems(questions, names, config, key)
        kept, dropped = fitting(questions, prompts, names, tokenizer, config, key)
        counts: dict[str, Any] = {"questions": len(kept)}
        if split == "train":
            kept, rephrasings = fit_rephrasings(kept, prompts, names, tokenizer, config)
            kept = only_question(kept, config)
            check_enough(len(kept), config)
            counts.update(rephrasings)
        else:
            check_best(kept, config)
        folder = RunFolder(Path(config.recipe.run_dir))
        counts["digest"] = digest(kept)
        check_same_questions(folder, split, f"data.{key}", counts["digest"])
        path = folder.data(split)
        write_parquet([dataclasses.replace(q, split=split) for q in kept], path)
        report[split] = counts | {
            "max_prompt_length": int(config.data.max_prompt_length),
            "dropped": [dataclasses.asdict(d) for d in dropped],
        }
        with open_dict(config):
            config.data[key] = [str(path)]
    return report


def digest(questions: Sequence[Question]) -> str:
    """SHA-256 of the questions in their order: texts, answers and rephrasings."""
    lines = [
        json.dumps(
            [q.text, list(q.answers), list(q.rephrasings), *([q.system] if q.system else [])]
        )
        for q in questions
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def check_same_questions(folder: RunFolder, split: str, key: str, now: str) -> None:
    """Refuse to go on with other questions than those of the earlier steps; before a file changes.

    config.yaml only names the file: its content may have changed since. The order of questions, the
    epochs of the templates' draws and the questions' histories would be those of another set.
    """
    if not folder.metrics.exists() or not folder.data_manifest.is_file():
        return
    before = read_json(folder.data_manifest).get(split, {}).get("digest", now)
    if before != now:
        raise ConfigError(
            f"{key}: the questions are not those of the earlier steps of {folder.root} "
            f"(data/{split}.parquet there has them): take the file of then, or choose another "
            "folder with recipe.run_dir=..."
        )


def check_best(questions: list[Question], config: DictConfig) -> None:
    """Refuse a `recipe.keep_best` that no validation of these questions writes."""
    key = config.recipe.keep_best
    written = sorted({f"val/{question.source}/accuracy" for question in questions})
    if key and key not in written:
        raise ConfigError(
            f"recipe.keep_best={key}: a validation on data.val_files writes {', '.join(written)}"
        )


def check_enough(questions: int, config: DictConfig) -> None:
    """Refuse fewer training questions than a step looks at."""
    batch, recipe = config.data.train_batch_size, config.recipe
    most = config.data.get("train_max_samples", -1)
    if 0 <= most < questions:
        questions = most  # data.train_max_samples
    if questions < batch:
        raise ConfigError(
            f"{questions} training questions are fewer than data.train_batch_size={batch}"
        )
    refills = recipe.dynamic_sampling.max_gen_batches
    seen = batch * recipe.curriculum.candidates
    seen *= refills if config.algorithm.filter_groups.enable else 1
    if recipe.curriculum.enable and questions < seen:
        raise ConfigError(
            f"{questions} training questions are fewer than the {seen} that the curriculum looks "
            "at in a step (data.train_batch_size x recipe.curriculum.candidates, with dynamic "
            "sampling x max_gen_batches): it would take the same ones several times"
        )


def check_own_systems(
    questions: list[Question], names: list[str], config: DictConfig, key: str
) -> None:
    """Refuse system prompts of rows that would replace those of several templates."""
    own = sum(question.system is not None for question in questions)
    if own and len(names) > 1 and config.recipe.augment.system == "row":
        raise ConfigError(
            f"data.{key}: {own} questions have a system prompt, which would replace those of "
            f"{len(names)} templates. Set recipe.augment.mode=fixed with one template, or "
            "recipe.augment.system=template to ignore the rows' own."
        )


def fitting(
    questions: list[Question],
    prompts: Prompts,
    names: list[str],
    tokenizer: Any,
    config: Any,
    key: str,
) -> tuple[list[Question], list[Overlong]]:
    """(questions that fit the prompt limit under all templates `names`, those that do not)."""
    limit = int(config.data.max_prompt_length)
    dropped = prompts.overlong(questions, names, tokenizer, limit)
    gone = {d.uid for d in dropped}
    kept = [q for q in questions if q.uid not in gone]
    if not kept:
        raise ConfigError(
            f"data.{key}: all {len(questions)} questions are longer than "
            f"data.max_prompt_length={limit} tokens under the templates drawn: raise it"
        )
    if dropped:
        worst = max(dropped, key=lambda d: d.length)
        print(
            f"data.{key}: dropped {len(gone)} of {len(questions)} questions longer than "
            f"{limit} tokens (question {worst.uid}: {worst.length} under {worst.template})"
        )
    return kept, dropped


def fit_rephrasings(
    questions: list[Question], prompts: Prompts, names: list[str], tokenizer: Any, config: Any
) -> tuple[list[Question], dict[str, int]]:
    """(questions with the rephrasings in use, those that fit the prompt limit; their counts)."""
    count = int(config.recipe.rephrasings.count)
    if not count:
        return questions, {}
    limit = int(config.data.max_prompt_length)
    listed = [(q, text) for q in questions for text in q.rephrasings[:count]]
    texts = [dataclasses.replace(q, text=text, uid=str(i)) for i, (q, text) in enumerate(listed)]
    long = {int(d.uid) for d in prompts.overlong(texts, names, tokenizer, limit)}
    fitting: dict[str, list[str]] = {q.uid: [] for q in questions}
    for i, (question, text) in enumerate(listed):
        if i not in long:
            fitting[question.uid].append(text)
    used = sum(map(len, fitting.values()))
    if not used:
        raise ConfigError(
            f"recipe.rephrasings.count={count}, but no question of data.train_files has one "
            f"of at most data.max_prompt_length={limit} tokens: add rephrasings to the data, or "
            "set recipe.rephrasings.count=0"
        )
    kept = [dataclasses.replace(q, rephrasings=tuple(fitting[q.uid])) for q in questions]
    missing = sum(len(q.rephrasings) < count for q in kept)
    if missing:
        print(f"{missing} of {len(kept)} questions have fewer than {count} rephrasings in use")
    counts = {"rephrasings": used, "rephrasings_too_long": len(long), "with_fewer": missing}
    return kept, counts


def only_question(questions: list[Question], config: Any) -> list[Question]:
    """For 1-shot RLVR: the one question, as often as a batch is long; else all questions.

    ``recipe.one_question`` is its uid, or its row number from 0 among those that fit.
    """
    wanted = config.recipe.one_question
    if wanted is None:
        return questions
    for i, question in enumerate(questions):
        if question.uid == wanted or (isinstance(wanted, int) and i == wanted):
            return [question] * int(config.data.train_batch_size)
    raise ConfigError(
        f"recipe.one_question={wanted}: no such question; give the uid or the row number of one of "
        f"the {len(questions)} in data.train_files"
    )


def check_files(config: DictConfig, built: Path | None) -> None:
    """Refuse a model and data that are not named, and data files that are not there.

    `built` is the folder in which the toy world will be made, if one is wanted.
    """
    model = config.actor_rollout_ref.model.path
    if not model:
        raise ConfigError("recipe.model_path is not set: name a model folder or a hub id")
    if built is None or not Path(model).is_relative_to(built):
        check_model_folder(model)
    missing = []
    for key in ("train_files", "val_files"):
        paths = _paths(config.data[key])
        if not paths:
            raise ConfigError(f"data.{key} is not set: name a parquet file of questions")
        for path in paths:
            mine = built is not None and Path(path).is_relative_to(built)
            if not mine and not Path(path).exists():
                missing.append(f"data.{key}: {path}: no such file. Make it: `{command_for(path)}`")
    if missing:
        raise ConfigError("\n".join(missing))


def check_model_folder(model: str) -> None:
    """Refuse a path that holds no model; what may be a hub id is left to transformers.

    That comes later: its import takes seconds.
    """
    a_path = model.startswith(("/", ".", "~")) or model.count("/") > 1
    if a_path and not Path(model).is_dir():
        raise ConfigError(
            f"recipe.model_path={model}: no such folder, and no hub id, which is OWNER/NAME"
        )
    if a_path and not (Path(model) / "config.json").is_file():
        raise ConfigError(f"recipe.model_path={model}: no model, there is no config.json in it")


def check_own(config: DictConfig, built: Path, questions: int) -> None:
    """Refuse, before a toy world is made, what stands beside it: the user's own data and model.

    `built` is the folder of the toy world, `questions` how many it has for training. Questions that
    are too long are not dropped yet: `prepare_data` counts once more without them.
    """
    own = {
        key: [path for path in _paths(config.data[key]) if not Path(path).is_relative_to(built)]
        for key in ("train_files", "val_files")
    }
    rows = {key: sum(len(read_parquet(path)) for path in own[key]) for key in own}
    if not Path(config.actor_rollout_ref.model.path).is_relative_to(built):
        load_tokenizer(config)
    if config.recipe.one_question is None:
        made = len(own["train_files"]) < len(_paths(config.data.train_files))
        check_enough(rows["train_files"] + questions * made, config)


def _paths(files: Any) -> list[str]:
    return [files] if isinstance(files, str) else list(files or [])
