"""Prepare the questions of a run: select them from the data files, and write them for verl."""

import dataclasses
import functools
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, open_dict

from prompt_aug.base.commands import python_command
from prompt_aug.extraction import extraction
from prompt_aug.grading.pool import GraderError
from prompt_aug.questions import (
    SHOWN_ERRORS,
    VALIDATION,
    Question,
    QuestionError,
    count_repeats,
    is_record,
    read_parquet,
    to_row,
    write_parquet,
)
from prompt_aug.templates.rendering import Form, Overlong, tag_opened_twice
from prompt_aug.turns import control_token
from prompt_aug.typed import Positive, read_record, shown, stored
from prompt_aug.verifiers import Verified, verifier_row, verifiers_of
from recipe.errors import ConfigError
from recipe.run.folder import RunFolder
from recipe.start.data import limited, paths_of, too_few
from recipe.start.rules import Setup

WEIGHTS, VERIFIERS = "recipe.source_weights", "recipe.reward.verifiers"
TooLong = Callable[[list[Question]], list[Overlong]]  # under the templates that may be drawn


@dataclass
class Split:
    """Questions of training or validation, and their record in data/manifest.json.

    `available` are those of the files, also those over the prompt limit.
    """

    questions: list[Question]
    available: list[Question]
    record: dict[str, Any]
    samples: list[int] | None = None  # of each question, in validation


def prepare_data(s: Setup, tokenizer: Any) -> dict[str, Any]:
    """Write the questions into the run folder, and point verl at them; return their record.

    Raises ConfigError before anything is written.
    """
    train = training(s, tokenizer)
    test = validation(s, tokenizer, {q.uid for q in train.questions})
    record = {"train": train.record, "test": test.record}
    record["verifiers"] = check_verifiers(s.reward, [*train.available, *test.available])
    for name, key, split in (("train", "train_files", train), ("test", "val_files", test)):
        kept = {VALIDATION: VALIDATION} if name == "test" else {}  # eval.selection asks for it
        rows = [dataclasses.replace(q, split=kept.get(q.split, name)) for q in split.questions]
        write_parquet(rows, s.folder.data(name), split.samples)
        with open_dict(s.config):
            s.data[key] = [str(s.folder.data(name))]
    # verl would filter again, by the tokenizer's chat template, and without one drop all.
    s.data.filter_overlong_prompts = False
    s.trainer.total_training_steps = last_step(s.config, train.record["steps_per_epoch"])
    return record


def training(s: Setup, tokenizer: Any) -> Split:
    """Select the training questions: those that fit under every template that may be drawn.

    Draws change with the epoch.
    """
    kept, too_long, dropped, available = fitting(s, tokenizer, "train_files", s.templates)
    check_tags(s, "templates", s.templates, kept[0], tokenizer)
    record: dict[str, Any] = {"questions": len(kept)}
    rows, rephrasings = fit_rephrasings(kept, too_long, s)
    rows = only_question(weighted(rows, s.recipe.source_weights), s)
    if errors := list(too_few(len(rows), s)):
        raise ConfigError("\n".join(errors))
    record["steps_per_epoch"] = limited(len(rows), s) // s.batch
    record |= rephrasings | recorded(s, "train", rows, rows, dropped)
    return Split(rows, available, record)


def validation(s: Setup, tokenizer: Any, trained: set[str]) -> Split:
    """Select the validation questions: those that fit under their own template."""
    names = [s.recipe.augment.validation_template]
    rows, _, dropped, available = fitting(s, tokenizer, "val_files", names)
    check_tags(s, "validation_template", names, rows[0], tokenizer)
    kept, samples = samples_of(rows, s.rollout.val_kwargs.n)
    best, written = s.recipe.keep_best, {f"val/{q.source}/accuracy" for q in kept}
    if best and best not in written:
        raise ConfigError(
            f"recipe.keep_best={best}: no validation on data.val_files writes it. Set "
            f"{' or '.join(sorted(written))}."
        )
    check_held_out(kept, trained, s)
    record = recorded(s, "test", rows if samples else kept, kept, dropped)
    return Split(kept, available, {"questions": len(kept), **record}, samples)


def recorded(
    s: Setup, split: str, rows: list[Question], kept: list[Question], dropped: list[Overlong]
) -> dict[str, Any]:
    """Return the record of a split; ConfigError if the run's earlier steps had other `rows`.

    config.yaml has only the name of the file. With other content the order of questions, the draws
    of templates and the questions' histories would belong to another set.
    """
    folder = s.folder
    # Own verifiers may read any column.
    digest = questions_digest(rows, bool(s.reward.verifiers))
    if folder.begun and folder.data_manifest.is_file():
        key = "train_files" if split == "train" else "val_files"
        if read_manifest(folder).get(split, {}).get("digest", digest) != digest:
            raise ConfigError(
                f"data.{key}: the questions are not those of the earlier steps of {folder.root} "
                f"(data/{split}.parquet there). Restore the file, or choose another folder with "
                "recipe.run_dir=..."
            )
    return {
        "digest": digest,
        "rows_of_source": counts_of(kept),
        "max_prompt_length": int(s.data.max_prompt_length),
        "dropped": [dataclasses.asdict(d) for d in dropped],
    }


def read_manifest(folder: RunFolder) -> dict[str, Any]:
    """Return data/manifest.json of a run. Raises FileError."""
    split = stored(steps_per_epoch=Positive, digest=str)
    types = {"train": split, "test": split, "own_functions": dict[str, str]}
    return read_record(folder.data_manifest, **types)


def last_step(config: DictConfig, steps_per_epoch: int) -> int:
    """Return ``trainer.total_training_steps``, or the steps of ``trainer.total_epochs`` if fewer.

    verl would end there too, but without saving the last steps.
    """
    steps, epochs = config.trainer.total_training_steps, config.trainer.total_epochs
    return int(min(steps, epochs * steps_per_epoch))


def read_questions(s: Setup, path: str, key: str, tokenizer: Any) -> list[Question]:
    """Return the questions of a file; ConfigError if a text of one contains a special token."""
    style, system = s.recipe.augment.style, s.recipe.augment.system
    try:
        questions = read_parquet(path, Form(style=style, system=system).reading)
    except QuestionError as error:
        raise ConfigError(f"data.{key}={error}") from error
    errors, count = [], int(s.rephrasings)
    for row, question in enumerate(questions if style != "row" else ()):
        own = question.system if system == "row" else None
        texts = (question.text, own or "", *question.rephrasings[:count])
        if token := control_token(texts, tokenizer):
            errors.append(f"row {row} (question {question.uid}): {token}")
    if errors:
        raise ConfigError(
            f"data.{key}={path}: a special token of the tokenizer could end its turn "
            f"(found: {len(errors)}): {', '.join(errors[:SHOWN_ERRORS])}. Rewrite or drop them."
        )
    return questions


def fitting(
    s: Setup, tokenizer: Any, key: str, names: list[str]
) -> tuple[list[Question], TooLong, list[Overlong], list[Question]]:
    """Return the questions of ``data.KEY`` that fit the prompt limit under all templates.

    Also the function that measures questions, those that are too long, and all.
    """
    limit = int(s.data.max_prompt_length)
    too_long = functools.partial(s.prompts.overlong, names=names, tokenizer=tokenizer, limit=limit)
    paths = paths_of(s.data[key])
    questions = [q for path in paths for q in read_questions(s, path, key, tokenizer)]
    graded = s.reward.verifiers or {}
    records = [q for q in questions if q.source not in graded and any(map(is_record, q.answers))]
    if records:
        raise ConfigError(
            f"data.{key}: {len(records)} answers are records, as {records[0].answers[0]:.60}, and "
            f"never earned. Set {VERIFIERS}.{records[0].source}, or write them as text."
        )
    own = sum(question.system is not None for question in questions)
    if own and len(names) > 1 and s.recipe.augment.system == "row":
        raise ConfigError(
            f"data.{key}: {own} questions have a system prompt, which would replace those of "
            f"{len(names)} templates. Set recipe.augment.mode=fixed with one template, or "
            "recipe.augment.system=template to ignore the rows' own."
        )
    dropped = too_long(questions)
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
    return kept, too_long, dropped, questions


def check_tags(s: Setup, key: str, names: list[str], question: Question, tokenizer: Any) -> None:
    """Reject templates that require a tag, such as ``<think>``, that the prompt opens already."""
    tags = {
        name: tag
        for name in names
        if (tag := tag_opened_twice(s.prompts.bank[name], question, tokenizer, s.prompts.form))
    }
    if tags:
        raise ConfigError(
            f"recipe.augment.{key}={shown(list(tags))}: the tokenizer's chat template opens "
            f"{', '.join(dict.fromkeys(tags.values()))}, which these templates open or require in "
            "the response. Leave them out, set recipe.augment.style=raw, or, if the chat template "
            "reads it, +data.apply_chat_template_kwargs.enable_thinking=false."
        )


def fit_rephrasings(
    questions: list[Question], too_long: TooLong, s: Setup
) -> tuple[list[Question], dict[str, int]]:
    """Return the questions with the first `recipe.rephrasings.count` that fit, and their counts."""
    count, limit = int(s.rephrasings), int(s.data.max_prompt_length)
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
        file = paths_of(s.data.train_files)[0]
        make = python_command("prompt_aug.rephrase", file, "OUT.parquet", "--model", "NAME")
        raise ConfigError(
            f"recipe.rephrasings.count={count}: no question of data.train_files has a rephrasing "
            f"of at most data.max_prompt_length={limit} tokens. Make some: `{make}`, or choose a "
            "method without them."
        )
    kept = [dataclasses.replace(q, rephrasings=tuple(used[q.uid])) for q in questions]
    missing = sum(len(q.rephrasings) < count for q in kept)
    if missing:
        print(f"{missing} of {len(kept)} questions have fewer than {count} rephrasings in use")
    return kept, {"rephrasings": total, "rephrasings_too_long": len(long), "with_fewer": missing}


def only_question(questions: list[Question], s: Setup) -> list[Question]:
    """Return the one question of 1-shot RLVR, repeated to a full batch; else all questions.

    ``recipe.one_question`` is its uid, or its row number from 0 among those that fit.
    """
    chosen = s.recipe.one_question
    if chosen is None:
        return questions
    for i, question in enumerate(questions):
        if question.uid == chosen or (isinstance(chosen, int) and i == chosen):
            return [question] * int(s.batch)
    raise ConfigError(
        f"recipe.one_question={chosen}: no such question. Give the uid or the row number of one of "
        f"the {len(questions)} in data.train_files."
    )


def check_held_out(questions: list[Question], trained: set[str], s: Setup) -> None:
    """Warn of validation questions that are trained on; reject them if they select a checkpoint.

    With ``recipe.one_question`` validation may contain the one question.
    """
    if not (shared := [question for question in questions if question.uid in trained]):
        return
    overlap = f"{len(shared)} of {len(questions)} questions are also in data.train_files"
    best = s.recipe.keep_best in {f"val/{question.source}/accuracy" for question in shared}
    if best and s.recipe.one_question is None:
        raise ConfigError(
            f"{s.named('recipe.keep_best')}: needs held-out accuracy, and of data.val_files "
            f"{overlap}. Remove them from one of the files, or set recipe.keep_best=null."
        )
    print(f"data.val_files: {overlap}; their accuracy is not held out")


def questions_digest(questions: Sequence[Question], rows: bool = False) -> str:
    """Return the SHA-256 of the questions in their order, with `rows` of all their columns."""
    lines = []
    for q in questions:
        # Of a system prompt alone its text.
        earlier = "\n".join(content for _, content in q.earlier)
        more = filter(None, (earlier, q.row if rows else None))
        lines.append(json.dumps([q.text, list(q.answers), list(q.rephrasings), *more]))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def weighted(questions: Sequence[Question], weights: Mapping[str, float] | None) -> list[Question]:
    """Return the rows of an epoch, in which each source has its share of `weights`.

    Every question occurs at least once. Counts within a source differ by at most one. The questions
    of the source with the most questions per weight occur once. verl shuffles the rows.
    """
    if not weights:
        return list(questions)
    sources: dict[str, list[Question]] = {}
    for question in questions:
        sources.setdefault(question.source, []).append(question)
    if set(weights) != set(sources):
        raise ConfigError(
            f"{WEIGHTS}={shown(sorted(weights))}: the sources of data.train_files are "
            f"{', '.join(sorted(sources))}. Give each a weight."
        )
    total = max(len(rows) / weights[name] for name, rows in sources.items())
    counts = {name: round(total * weights[name]) for name in sources}
    return [rows[i % len(rows)] for name, rows in sources.items() for i in range(counts[name])]


def samples_of(rows: list[Question], n: int) -> tuple[list[Question], list[int] | None]:
    """Return the validation questions, and if rows repeat them, the samples of each.

    verl counts each row as a question, so the standard error would be too small.
    """
    counted = count_repeats(rows)
    if len(counted) == len(rows):
        return rows, None
    print(
        f"data.val_files: {len(rows)} rows hold {len(counted)} questions. Repeated rows count "
        "as samples of one question."
    )
    return [question for question, _ in counted], [n * count for _, count in counted]


def counts_of(questions: Iterable[Question]) -> dict[str, int]:
    """Return the number of rows of each source."""
    return dict(sorted(Counter(question.source for question in questions).items()))


def check_verifiers(reward: DictConfig, questions: Sequence[Question]) -> dict[str, Any]:
    """Call each verifier on the first row of its source; return their entries for the manifest.

    The responses are the gold answer and the empty text. Raises ConfigError if a source has no row,
    or if a call fails, as every call of the training would.
    """
    verifiers = verifiers_of(reward.verifiers, reward.verifier_limits)
    first: dict[str, Question] = {}
    for question in questions:
        first.setdefault(question.source, question)
    errors = []
    try:
        for source, path in verifiers.functions.items():
            if source not in first:
                errors.append(
                    f"{VERIFIERS}.{source}={path}: no row of data.train_files or data.val_files "
                    f"has the data_source {source}. Use one of {', '.join(first)}."
                )
                continue
            row = verifier_row(to_row(first[source]))
            for response in (first[source].answers[0], ""):
                graded = verifiers.grade(response, row, extraction(reward.extraction))
                if graded.status not in ("correct", "wrong"):
                    errors.append(_failure(source, path, response, graded))
                    break
        record = verifiers.record(set(first))
    except GraderError as error:
        raise ConfigError(str(error)) from error
    if errors:
        raise ConfigError("\n".join(errors))
    return record


def _failure(source: str, path: str, response: str, graded: Verified) -> str:
    limited = graded.status == "timeout" or "memory" in graded.detail
    more = ", or raise recipe.reward.verifier_limits" if limited else ""
    return (
        f"{VERIFIERS}.{source}={path}: on the first row of {source} with the response "
        f"{response[:60]!r} it ends with {graded.status} ({graded.detail}). Correct the "
        f"function{more}."
    )
