"""Rows of a local file, a local folder or a hub data set, and the column maps that read them."""

import csv
import io
import json
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from prompt_aug.base.errors import UserError
from prompt_aug.base.places import hub_answers
from prompt_aug.grading.extract import closed_boxes
from prompt_aug.questions import (
    Question,
    QuestionError,
    Reading,
    answer_texts,
    from_row,
    in_double,
    listed,
    make_question,
    user_text,
)
from prompt_aug.typed import Record, Several, read_typed

PRESETS_FILE = Path(__file__).with_name("presets.yaml")
JOINED = "rephrasings of one group"  # added to a row by `filters.join_rephrasings`
TEXT_COLUMNS = ("question", "problem", "prompt", "text")
RENDERED = ("<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|begin_of_text|>")
ANSWER_COLUMNS = ("answer", "reward_model.ground_truth", "ground_truth", "final_answer")
VERL_COLUMNS = {"text": "prompt", "answer": "reward_model.ground_truth"}
CONFIGS = re.compile(r"[Aa]vailable[\w ]*: \[(.+?)\]")  # of a data set, in the error of `datasets`
IN_YAML = "name the file and the column in a yaml file, `{}: COLUMN`: eval/README.md"
Numbered = list[tuple[int, Question]]  # with the row number in the source
Refused = dict[int, str]  # why a row, by its number, is left out
KINDS = (".parquet", ".jsonl", ".json", ".csv")


class SourceError(UserError, ValueError):
    """A source that cannot be read. The message says what to do."""


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
    """Return the rows of `source`: a ``datasets.Dataset``, or a list for a text file.

    `source` is a parquet, jsonl, json or csv file, a folder of such files, a folder of
    ``save_to_disk``, or the id of a data set on the hub (at `revision`; only its `files`, with the
    split for ``{split}``). `datasets` finds the files of a split in a folder; files without the
    name of a split are "train". Raises SourceError, within seconds if the hub does not respond and
    the data set is not cached.
    """
    path, (hub, named) = Path(source), split_config(source)
    try:
        if source and path.is_file():
            return from_files([path])
        if source and path.is_dir():
            own = path / (config or "")
            return from_folder(own if own.is_dir() else path, split)
    except SourceError:
        raise
    except Exception as error:  # datasets raises many kinds of errors
        if configs := CONFIGS.search(str(error)):
            raise SourceError(f"{source}: name the folder of one of {configs[1]}.") from error
        remedy = ". Save it as UTF-8, not cp1252 or UTF-16" * isinstance(error, UnicodeError)
        raise SourceError(
            f"{source}: local data cannot be loaded: {_first_cause(error)}{remedy}"
        ) from error
    if re.fullmatch(r"[\w.-]+/[\w.-]+", hub) and not hub.startswith("."):
        if files is None:
            return _from_hub(hub, name=config or named, split=split, revision=revision)
        # datasets calls the only split of these files "train".
        file = files.format(split=split)
        return _from_hub(hub, data_files=file, split="train", revision=revision)
    raise SourceError(
        f"{source!r}: neither a file, nor a folder, nor a known name, nor an id like owner/name. "
        "--help lists the presets, eval/ask/benchmarks.yaml has the benchmarks."
    )


def local_files(path: Path) -> list[Path]:
    """Return the files of a local source, sorted; none of a hub data set."""
    within = (file for file in path.rglob("*") if file.suffix in (*KINDS, ".arrow"))
    return sorted(file for file in (path, *within) if file.is_file())


def split_config(source: str) -> tuple[str, str | None]:
    """Return (id, CONFIG) of ``ID:CONFIG``, a configuration of a hub data set."""
    hub, colon, config = source.rpartition(":")
    found = colon and re.fullmatch(r"[\w.-]+/[\w.-]+", hub) and not Path(source).exists()
    return (hub, config) if found else (source, None)


def _from_hub(source: str, **arguments: Any) -> Any:
    import datasets
    from huggingface_hub import constants

    offline = bool(constants.HF_HUB_OFFLINE)
    if not offline and not hub_answers(constants.ENDPOINT):
        # The clients would retry for up to a minute before they look into their cache.
        offline = constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        return _exact(datasets.load_dataset(source, **arguments))
    except Exception as error:  # a gated, renamed or misspelled data set, a wrong split, ...
        if configs := CONFIGS.search(str(error)):
            raise SourceError(
                f"{source}: choose a configuration, as {source}:NAME (in a yaml file `config`), of "
                f"{configs[1]}"
            ) from error
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


def _fields(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the fields of records, and for each that holds records, their fields."""
    values: dict[str, list[Any]] = {}
    for name, value in (item for record in records for item in record.items()):
        values.setdefault(name, []).extend([value] if isinstance(value, Mapping) else [])
    return {name: _fields(records_of) or None for name, records_of in values.items()}


def from_files(names: Sequence[str | Path]) -> Any:
    """Return the rows of files of one kind and folder, in order."""
    paths = [Path(name) for name in names]
    if len({path.parent for path in paths}) > 1:
        raise SourceError(f"{paths[0]}: its split has files in several folders. Name one of them.")
    # Not with load_dataset, which returns its cached copy of a changed file of the same time stamp,
    # and turns 1.50 into 1.5, "NA" into null and large integers into floats.
    kinds = {path.suffix for path in paths}
    if len(kinds) != 1 or not kinds <= set(KINDS):
        raise SourceError(f"{paths[0]}: known are files ending in {', '.join(KINDS)}")
    if (kind := kinds.pop()) == ".parquet":
        tables = [pq.read_table(path) for path in paths]
        return _dataset(pa.concat_tables(tables, promote_options="default"))
    read = _csv_rows if kind == ".csv" else _json_rows
    if rows := [row for path in paths for row in read(path)]:
        columns = _fields(rows)
        return [{name: row.get(name) for name in columns} for row in rows]
    raise SourceError(f"{paths[0]}: an empty file. Name one with rows.")


def _dataset(table: pa.Table) -> Any:
    import datasets  # slow, so it is imported on first use

    table = in_double(table).replace_schema_metadata()
    return datasets.Dataset(datasets.table.InMemoryTable(table))


def _exact(rows: Any) -> Any:
    """Return the rows of `datasets` with `in_double` precision."""
    single = re.search("float(16|32)", str(rows.features))
    return _dataset(rows.with_format("arrow")[:]) if single else rows


def _csv_rows(path: Path) -> list[dict[str, str]]:
    text = path.read_bytes().decode("utf-8-sig")
    csv.field_size_limit(2**31 - 1)  # Python's own limit is below a long solution
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        names = reader.fieldnames or ()
        if len(names) == 1 and (mark := re.search("[;\t|]", names[0])):
            raise SourceError(f"{path}: its columns end at {mark[0]!r}. Write commas.")
        rows = []
        for row in reader:
            if len({*names}) < len(names) or None in row or None in row.values():
                raise csv.Error("a column name twice, or a row with more or fewer columns")
            rows.append(row)
    except csv.Error as error:
        raise SourceError(f"{path}, line {reader.line_num}: broken csv ({error})") from None
    return rows


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(record := dict(pairs)) < len(pairs):
        key = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {key!r} twice in {record!r:.100}")
    return record


def _json_rows(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file: one a line, or one array, also as the only or `data` value."""
    text = path.read_bytes().decode("utf-8-sig")
    read, broken = json.JSONDecoder(object_pairs_hook=_unique).decode, (ValueError, RecursionError)
    try:
        rows = read(text)
    except broken as first:  # one object a line, or broken
        rows = []
        for number, line in enumerate(text.split("\n"), start=1):  # a string may hold U+2028
            try:
                rows += [read(line)] if line.strip() else []
            except broken as error:
                why = error if rows else first
                raise SourceError(f"{path}, line {number}: broken JSON ({why})") from None
    lists = [rows]
    if isinstance(rows, dict):
        lists = [rows.get("data"), *(rows.values() if len(rows) == 1 else ())]
    rows = next((value for value in lists if isinstance(value, list)), [rows])
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise SourceError(f"{path}, row {number}: {row!r:.60} is no JSON object. Correct it.")
    return rows


def from_folder(path: Path, split: str) -> Any:
    """Return the rows of a split of a folder of files, or of a folder of `save_to_disk`."""
    import datasets

    if any((path / name).is_file() for name in ("state.json", "dataset_dict.json")):
        loaded = datasets.load_from_disk(str(path))
        splits: Mapping[str, Any] = loaded if isinstance(loaded, dict) else {split: loaded}
        read: Callable[[Any], Any] = _exact
    else:
        if len(kinds := {f.suffix for f in path.rglob("*")} & {*KINDS} - {".json"}) > 1:
            raise SourceError(f"{path}: it has files ending in {', '.join(kinds)}. Name one.")
        with tempfile.TemporaryDirectory() as cache:  # the user's may be read-only
            builder = datasets.load_dataset_builder(str(path), cache_dir=cache)
        splits, read = builder.config.data_files or {}, from_files
    if split not in splits:
        listed = ", ".join(map(str, splits))
        raise SourceError(f"{path} has no split {split!r}. Choose one of {listed}.")
    return read(splits[split])


def complete(
    columns: Columns,
    names: Iterable[str],
    source: str,
    *,
    answer: bool = True,
    others: Iterable[tuple[str, str | None]] = (),
    remedy: str = "name one with --{}-column",
) -> Columns:
    """Return `columns` with missing ones found by the usual names. Raises SourceError.

    `names` are column names; those of a record (``extra_info.question``) may be listed, or else the
    record may hold any. Without `answer` only the text is looked for. `others` are pairs of a key
    and a column that must exist. `remedy` ends the message; {} is the key.
    """
    present, missing = set(names), []

    def find(what: str, wanted: str | None, usual: tuple[str, ...] = (), more: Any = ()) -> str:
        candidates = ((wanted,) if wanted else ()) + tuple(more) or usual
        for candidate in candidates:
            if has_column(present, candidate):
                return candidate
        hint = remedy.format(what) if what in ("text", "answer") or remedy == IN_YAML else "preset"
        missing.append(f"{' or '.join(candidates)} for the {what} ({hint})")
        return ""

    text = find("text", columns.text, TEXT_COLUMNS, columns.text_else)
    resolved: dict[str, Any] = {"text": text, "text_else": ()}
    for what, column in (("level", columns.level), *others):
        if column:
            find(what, column)
    if answer:
        resolved["answer"] = find("answer", columns.answer, ANSWER_COLUMNS)
    if missing:
        listed, has = ", and no column ".join(missing), ", ".join(sorted(present))
        raise SourceError(f"{source} has no column {listed}. It has {has}.")
    return columns.model_copy(update=resolved)


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

    return list(walk(_fields(rows) if isinstance(rows, list) else rows.features, ""))


def read_level(value: Any) -> int | None:
    """Return 3 for 3, 3.0, "3", "3.0" and "Level 3"; None without a number."""
    match = re.search(r"(?<!\d)\d{1,18}(?!\d)", str(value))
    return int(match.group()) if match else None


def to_question(
    row: Mapping[str, Any], columns: Columns, source: str, split: str, reading: Reading = "one"
) -> Question:
    """Return the question of one row. Raises QuestionError without a question or an answer.

    A row with verl's columns keeps its own data source and split; `reading` is that of `from_row`.
    """
    own = from_row(row, reading) if columns.whole_rows else None
    text = own.text if own else question_text(row, columns)
    if marks := [mark for mark in RENDERED if mark in text]:
        raise QuestionError(
            f"the text holds {marks[0]}: it is a prompt that a chat template made, not a question. "
            "Name the column of the question (--text-column, `text` in a yaml file)."
        )
    level = read_level(field_of(row, columns.level)) if columns.level else None
    if own:
        named = own.source if row.get("data_source") else source
        return replace(own, source=named, level=own.level if level is None else level)
    value = field_of(row, columns.text or "")
    chat = value if isinstance(value, list) else ()
    return make_question(
        text=text,
        answers=answers_of(row, columns),
        source=source,
        split=split,
        level=level,
        rephrasings=row.get(JOINED, ()),
        system=next((m.get("content") for m in chat if m.get("role") == "system"), None),
    )


def answers_of(row: Mapping[str, Any], columns: Columns) -> list[str]:
    """Return the answers of one row. Raises QuestionError if the column does not have them."""
    value = field_of(row, columns.answer or "")
    golds = listed(value) if isinstance(value, str) else answer_texts(value)
    return [_answer(gold, columns.answer_from) for gold in golds]


def question_text(row: Mapping[str, Any], columns: Columns) -> str:
    """Return the text of one row without the frame that the data set puts around it."""
    column = columns.text or ""
    value = field_of(row, column)
    if not isinstance(value, list):
        value = next(iter(answer_texts(value)), "")
    text = user_text(value, column)
    if columns.text_after is not None:
        _, mark, text = text.partition(columns.text_after)
        if not mark:
            raise QuestionError(f"no {columns.text_after!r} before the question")
    if columns.text_before is not None:
        text, mark, _ = text.rpartition(columns.text_before)
        if not mark:
            raise QuestionError(f"no {columns.text_before!r} after the question")
    return text


def field_of(row: Mapping[str, Any], dotted: str) -> Any:
    """Return a column, or with ``record.field`` a field of a record; None without it."""
    value: Any = row
    for key in [dotted] if dotted in row else dotted.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _answer(text: str, answer_from: str | None) -> str:
    if answer_from is None:
        return text
    if answer_from == "boxed":
        if not (boxes := closed_boxes(text)):
            raise QuestionError("no \\boxed{...} in the solution to take the answer from")
        return boxes[-1][2]
    _, marker, answer = text.rpartition(answer_from)
    if not marker:
        raise QuestionError(f"no {answer_from!r} in the column to take the answer from")
    return answer
