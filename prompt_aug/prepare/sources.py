"""Rows of a local file, a local folder or a hub data set, and the column maps that read them."""

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field

from prompt_aug.base.hub import hub_answers
from prompt_aug.grading.extract import closed_boxes
from prompt_aug.prepare.local import SourceError, from_files, from_folder
from prompt_aug.questions import (
    Question,
    QuestionError,
    answer_texts,
    from_row,
    make_question,
    system_text,
    user_text,
)
from prompt_aug.typed import Record, Several, read_typed

PRESETS_FILE = Path(__file__).with_name("presets.yaml")
JOINED = "rephrasings of one group"  # added to a row by `filters.join_rephrasings`
TEXT_COLUMNS = ("question", "problem", "prompt", "text")
RENDERED = ("<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|begin_of_text|>")
ANSWER_COLUMNS = ("answer", "reward_model.ground_truth", "ground_truth", "final_answer")
VERL_COLUMNS = {"text": "prompt", "answer": "reward_model.ground_truth"}
IN_YAML = "Name the file and the column in a yaml file, `{}: COLUMN` (eval/README.md)."
Numbered = list[tuple[int, Question]]  # with the row number in the source
Refused = dict[int, str]  # why a row, by its number, is left out


class Columns(Record):
    """Columns of a data set; see presets.yaml for the keys. None: found by the usual names."""

    text: str | None = None
    text_else: Several[str] = ()
    answer: str | None = None
    level: str | None = None
    answer_from: str | None = None
    text_after: str | None = None
    text_before: str | None = None
    group: str | None = None
    order: str | None = None

    @property
    def whole_rows(self) -> bool:
        """True if verl's columns are read whole."""
        cut = (self.answer_from, self.text_after, self.text_before, self.group)
        return {"text": self.text, "answer": self.answer} == VERL_COLUMNS and not any(cut)


class Preset(Columns):
    """A known data set: its place on the hub and its columns; see presets.yaml for the keys."""

    hub: str
    config: str | None = None
    split: str
    files: str | None = None
    rows: Mapping[str, int] = Field(default_factory=dict)
    out: Mapping[str, str] = Field(default_factory=dict)


def command_for(path: str | Path) -> str:
    """Return the command that makes `path`, or a parquet file of the data set of that name."""
    for name, preset in load_presets().items():
        if str(path) in (name, preset.hub):
            path = name
        for split, out in preset.out.items():
            if Path(out) == Path(path):
                option = "" if split == preset.split else f" --split {split}"
                return f"python -m prompt_aug.prepare {name} {out}{option} --no-benchmarks"
    named = f"SOURCE {path}" if Path(path).suffix == ".parquet" else f"{path} OUT.parquet"
    return f"python -m prompt_aug.prepare {named} --against BENCHMARKS"


def load_presets() -> dict[str, Preset]:
    """Return the presets by name."""
    return read_typed(PRESETS_FILE, dict[str, Preset], SourceError)


def load_rows(
    source: str,
    config: str | None = None,
    split: str = "train",
    *,
    revision: str | None = None,
    files: str | None = None,
) -> Any:
    """Return the rows of `source`: a ``datasets.Dataset``, or `Rows` of a text file.

    `source` is a parquet, jsonl, json, arrow or csv file, a folder of such files, a folder of
    ``save_to_disk``, or the id of a data set on the hub (at `revision`; only its `files`, with the
    split for ``{split}``). If paths in a folder name splits, those with `split` are read. Raises
    SourceError, within seconds if the hub does not respond and the data set is not cached.
    """
    path = Path(source)
    try:
        if source and path.is_file():
            return from_files([path])
        if source and path.is_dir():
            own = path / (config or "")
            return from_folder(own if own.is_dir() else path, split)
    except SourceError:
        raise
    except Exception as error:  # datasets raises many kinds of errors
        raise SourceError(
            f"{source}: local data cannot be loaded: {_first_cause(error)}"
        ) from error
    if re.fullmatch(r"[\w.-]+/[\w.-]+", source) and not source.startswith("."):
        if files is None:
            return _from_hub(source, name=config, split=split, revision=revision)
        # datasets calls the only split of these files "train".
        file = files.format(split=split)
        return _from_hub(source, data_files=file, split="train", revision=revision)
    raise SourceError(
        f"{source!r}: neither a file, nor a folder, nor a known name, nor an id like owner/name. "
        "--help lists the presets, eval/benchmarks.yaml has the benchmarks."
    )


def _from_hub(source: str, **asked: Any) -> Any:
    import datasets  # slow, so it is imported on first use
    from huggingface_hub import constants

    offline = bool(constants.HF_HUB_OFFLINE)
    if not offline and not hub_answers(constants.ENDPOINT):
        # The clients would retry for up to a minute before they look into their cache.
        offline = constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        return datasets.load_dataset(source, **asked)
    except Exception as error:  # a gated, renamed or misspelled data set, a wrong split, ...
        why = (
            f"the hub at {constants.ENDPOINT} does not answer, or HF_HUB_OFFLINE is set, and the "
            "data set is not in the cache: give a local copy"
            if offline
            else f"is the id right, and are you allowed to read it? {_first_cause(error)}"
        )
        raise SourceError(
            f"{source}: there is no such file or folder, and as a hub data set it cannot be "
            f"loaded: {why}"
        ) from error


def _first_cause(error: BaseException) -> str:
    """Return the first line of the first error of a chain."""
    while cause := error.__cause__ or error.__context__:
        error = cause
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


def complete(
    columns: Columns,
    names: Iterable[str],
    source: str,
    *,
    answer: bool = True,
    others: Iterable[tuple[str, str | None]] = (),
    remedy: str = "Name one with --{}-column.",
) -> Columns:
    """Return `columns` with missing ones found by the usual names. Raises SourceError.

    `names` are column names; those of a record (``extra_info.question``) may be listed, or else the
    record may hold any. Without `answer` only the text is looked for. `others` are pairs of a key
    and a column that must exist. `remedy` ends the message; {} is the key.
    """
    present = set(names)

    def find(what: str, asked: str | None, usual: tuple[str, ...] = (), more: Any = ()) -> str:
        candidates = ((asked,) if asked else ()) + tuple(more) or usual
        for candidate in candidates:
            if has_column(present, candidate):
                return candidate
        raise SourceError(
            f"{source} has no column {' or '.join(candidates)} for the {what} (it has "
            f"{', '.join(sorted(present))}). {remedy.format(what)}"
        )

    found = {"text": find("text", columns.text, TEXT_COLUMNS, columns.text_else), "text_else": ()}
    for what, column in (("level", columns.level), *others):
        if column:
            find(what, column)
    if answer:
        found["answer"] = find("answer", columns.answer, ANSWER_COLUMNS)
    return columns.model_copy(update=found)


def has_column(names: Collection[str], column: str) -> bool:
    """Return True for one of `names`, and for any field of a record whose fields are not listed."""
    record = column.partition(".")[0]
    opaque = record in names and not any(name.startswith(f"{record}.") for name in names)
    return column in names or opaque


def column_names(rows: Any) -> list[str]:
    """Return the columns of `load_rows` and, with a dot, the fields of records."""

    def walk(features: Mapping[str, Any], prefix: str) -> Iterator[str]:
        for name, kind in features.items():
            yield f"{prefix}{name}"
            if isinstance(kind, Mapping):
                yield from walk(kind, f"{prefix}{name}.")

    return list(walk(rows.features, ""))


def read_level(value: Any) -> int | None:
    """Return 3 for 3, 3.0, "3", "3.0" and "Level 3"; None without a number."""
    match = re.search(r"\d+", str(value)) if value is not None else None
    return int(match.group()) if match else None


def to_question(row: Mapping[str, Any], columns: Columns, source: str, split: str) -> Question:
    """Return the question of one row. Raises QuestionError without a question or an answer.

    A row with verl's columns keeps its own data source and split.
    """
    text = question_text(row, columns)
    if marks := [mark for mark in RENDERED if mark in text]:
        raise QuestionError(
            f"the text holds {marks[0]}: it is a prompt that a chat template made, not a question. "
            "Name the column of the question (--text-column, `text` in a yaml file)."
        )
    level = read_level(field_of(row, columns.level)) if columns.level else None
    if columns.whole_rows:
        made = from_row(row)
        named = made.source if row.get("data_source") else source
        return replace(made, source=named, level=made.level if level is None else level)
    value = field_of(row, columns.text or "")
    return make_question(
        text=text,
        answers=answers_of(row, columns),
        source=source,
        split=split,
        level=level,
        rephrasings=row.get(JOINED, ()),
        system=system_text(value) if isinstance(value, list) else None,
    )


def answers_of(row: Mapping[str, Any], columns: Columns) -> list[str]:
    """Return the answers of one row. Raises QuestionError if the column does not have them."""
    value = field_of(row, columns.answer or "")
    golds = _listed(value) if isinstance(value, str) else answer_texts(value)
    return [_answer(gold, columns.answer_from) for gold in golds]


def question_text(row: Mapping[str, Any], columns: Columns) -> str:
    """Return the text of one row without the frame that the data set puts around it."""
    column = columns.text or ""
    value = field_of(row, column)
    if not isinstance(value, list):
        value = next(iter(answer_texts(value)), "")
    elif not all(isinstance(turn, Mapping) for turn in value):
        raise QuestionError(f"the column {column!r} has a list that is no chat. Name another.")
    text = user_text(value, column)
    if columns.text_after is not None:
        _, found, text = text.partition(columns.text_after)
        if not found:
            raise QuestionError(f"no {columns.text_after!r} before the question")
    if columns.text_before is not None:
        text, found, _ = text.rpartition(columns.text_before)
        if not found:
            raise QuestionError(f"no {columns.text_before!r} after the question")
    return text


def field_of(row: Mapping[str, Any], dotted: str) -> Any:
    """Return a column, or with ``record.field`` a field of a record; None without it."""
    value: Any = row
    for key in [dotted] if dotted in row else dotted.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _listed(text: str) -> Sequence[str]:
    """Return the strings of a list written as text, ``['9.6\\n']``; ``[0, 1]`` is one answer."""
    if text.startswith("[") and text.endswith("]"):
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return [text]
        if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
            return value
    return [text]


def _answer(text: str, answer_from: str | None) -> str:
    if answer_from is None:
        return text
    if answer_from == "boxed":
        if not (found := closed_boxes(text)):
            raise QuestionError("no \\boxed{...} in the solution to take the answer from")
        return found[-1][2]
    _, marker, answer = text.rpartition(answer_from)
    if not marker:
        raise QuestionError(f"no {answer_from!r} in the column to take the answer from")
    return answer
