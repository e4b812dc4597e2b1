"""Rows of local files, as they stand in them."""

import contextlib
import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from prompt_aug.base.errors import UserError

KINDS = (".parquet", ".jsonl", ".json", ".arrow", ".csv")
SPLITS = {"train", "training", "test", "validation", "valid", "val", "dev", "eval"}


class SourceError(UserError, ValueError):
    """A source that cannot be read. The message says what to do."""


class Rows(list[dict[str, Any]]):
    """Rows of local files, as they stand; every row has all columns."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.features = _fields(rows)
        self.column_names = list(self.features)
        super().__init__({name: row.get(name) for name in self.column_names} for row in rows)


def _fields(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the fields of records, and for each that holds records, their fields."""
    values: dict[str, list[Any]] = {}
    for name, value in (item for record in records for item in record.items()):
        values.setdefault(name, []).extend([value] if isinstance(value, Mapping) else [])
    return {name: _fields(found) or None for name, found in values.items()}


def from_files(paths: Sequence[Path]) -> Any:
    """Return the rows of files of one kind, in order."""
    import datasets

    # Not with load_dataset, which returns its cached copy of a changed file of the same time stamp,
    # and turns 1.50 into 1.5, "NA" into null and large integers into floats.
    kinds = {path.suffix for path in paths}
    if len(kinds) != 1 or not kinds <= set(KINDS):
        raise SourceError(f"{paths[0]}: known are files ending in {', '.join(KINDS)}")
    kind = kinds.pop()
    if kind == ".arrow":
        return datasets.concatenate_datasets([datasets.Dataset.from_file(str(p)) for p in paths])
    if kind == ".parquet":
        table = pa.concat_tables([pq.read_table(path) for path in paths], promote_options="default")
        single = [field.name for field in table.schema if field.type == pa.float32()]
        for name in single:  # as a Python number, 0.1 would be 0.10000000149011612
            at = table.column_names.index(name)
            table = table.set_column(at, name, table[name].cast(pa.string()))
        return datasets.Dataset(datasets.table.InMemoryTable(table))
    read = _csv_rows if kind == ".csv" else _json_rows
    if rows := [row for path in paths for row in read(path)]:
        return Rows(rows)
    raise SourceError(f"{paths[0]}: an empty file. Name one with rows.")


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SourceError(f"{path} is not UTF-8 text ({error}). Convert it.") from None


def _csv_rows(path: Path) -> list[dict[str, str]]:
    reader = csv.DictReader(io.StringIO(_text(path), newline=""), strict=True)
    try:
        rows, names = list(reader), reader.fieldnames or ()
    except csv.Error as error:
        raise SourceError(
            f"{path}, line {reader.line_num}: broken csv ({error}). Separate the columns by "
            "commas, and double the quotes inside a quoted text."
        ) from None
    if repeated := [name for name in names if names.count(name) > 1]:
        raise SourceError(f"{path}: two columns are called {repeated[0]}. Rename one.")
    for number, row in enumerate(rows):
        if None in row or None in row.values():
            raise SourceError(f"{path}: row {number} has not as many columns as the first line")
    return rows


def _json_rows(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file: one a line, one array or, in a .json, a single one."""
    text = _text(path)
    if path.suffix == ".json":
        with contextlib.suppress(ValueError, RecursionError):
            whole = json.loads(text)
            rows = whole if isinstance(whole, list) else [whole]
            if all(isinstance(row, dict) for row in rows):
                return rows
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):  # a string may hold U+2028
        try:
            row = json.loads(line) if line.strip() else {}
        except (ValueError, RecursionError) as error:
            raise SourceError(f"{path}, line {number}: broken JSON ({error})") from None
        if not isinstance(row, dict):
            raise SourceError(f"{path}, line {number}: no JSON object. Write one a line.")
        rows += [row] if line.strip() else []
    return rows


def from_folder(path: Path, split: str) -> Any:
    """Return the rows of the files in a folder, or of a folder of `save_to_disk`."""
    import datasets

    if (path / "dataset_dict.json").is_file():
        splits = datasets.load_from_disk(str(path))
        if split not in splits:
            raise SourceError(f"{path} has no split {split!r}: choose one of {list(splits)}")
        return splits[split]
    if (path / "state.json").is_file():
        return datasets.load_from_disk(str(path))
    found = {kind: files for kind in KINDS if (files := sorted(path.rglob(f"*{kind}")))}
    if len(found) > 1:
        found.pop(".json", None)  # often a description of the data
    if not found:
        raise SourceError(f"{path}: no file ending in {', '.join(KINDS)} in this folder")
    if len(found) > 1:
        raise SourceError(f"{path}: it has files ending in {', '.join(found)}. Name one of them.")
    (files,) = found.values()
    return from_files(_of_split(path, files, split))


def _of_split(folder: Path, files: Sequence[Path], split: str) -> Sequence[Path]:
    """Return the files whose path in `folder` names `split`; all if no path names a split.

    Raises SourceError if others name one, and for files of several folders (configurations).
    """
    words = {}
    for file in files:
        name = str(file.relative_to(folder)).lower()
        words[file] = {*re.split(r"[\W\d_]+", name), *re.split(r"\W+", name)}
    if any(found & SPLITS for found in words.values()):
        files = [file for file in files if split.lower() in words[file]]
        if not files:
            named = ", ".join(sorted(SPLITS & set().union(*words.values())))
            raise SourceError(f"{folder} has no file of the split {split!r} (it has {named})")
    if len({file.parent for file in files}) > 1:
        raise SourceError(f"{folder}: files lie in several folders. Name one of them.")
    return files
