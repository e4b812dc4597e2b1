"""Rows of a local file, a local folder or a hub data set, and the column maps that read them."""

import ast
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml

from prompt_aug.grading.extract import closed_boxes
from prompt_aug.prepare.text_files import SourceError, csv_rows, require_json_lines, require_utf8
from prompt_aug.questions import Question, QuestionError, make_question, system_text, user_text

PRESETS_FILE = Path(__file__).with_name("presets.yaml")
BUILDERS = {
    ".parquet": "parquet",
    ".jsonl": "json",
    ".json": "json",
    ".arrow": "arrow",
    ".csv": "csv",
}
JOINED = "rephrasings of one group"  # a row's own, made by `rephrased.join`
HUB_SECONDS = 3.0  # what the hub has to answer in before it counts as unreachable
TEXT_COLUMNS = ("question", "problem", "prompt", "text")
RENDERED = ("<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|begin_of_text|>")
ANSWER_COLUMNS = ("answer", "reward_model.ground_truth", "ground_truth", "final_answer")


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """Where a data set keeps what; see presets.yaml for the keys. None: found by usual names."""

    text: str | None = None
    text_else: tuple[str, ...] = ()
    answer: str | None = None
    level: str | None = None
    answer_from: str | None = None
    text_after: str | None = None
    text_before: str | None = None
    levels: tuple[int, ...] = ()
    group: str | None = None
    order: str | None = None
    rephrasings: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """A known data set: its place on the hub and its columns."""

    name: str
    hub: str
    config: str | None
    split: str
    columns: Columns
    files: str | None = None
    rows: Mapping[str, int] = field(default_factory=dict)
    out: Mapping[str, str] = field(default_factory=dict)


def command_for(path: str | Path) -> str:
    """The command that makes `path`, where it is one of the files that the examples read."""
    for name, preset in load_presets().items():
        for split, out in preset.out.items():
            if Path(out) == Path(path):
                option = "" if split == preset.split else f" --split {split}"
                return f"python -m prompt_aug.prepare {name} {out}{option} --no-benchmarks"
    return f"python -m prompt_aug.prepare SOURCE {path} --against BENCHMARKS"


def load_presets(path: Path = PRESETS_FILE) -> dict[str, Preset]:
    """The presets by name."""
    presets = {}
    keys = {field.name for field in fields(Columns)}
    for name, entry in yaml.safe_load(path.read_text(encoding="utf-8")).items():
        columns = {key: entry.pop(key) for key in list(entry) if key in keys}
        for key in ("levels", "text_else"):
            columns[key] = tuple(columns.get(key, ()))
        entry.setdefault("config", None)
        presets[name] = Preset(name=name, columns=Columns(**columns), **entry)
    return presets


def load_rows(
    source: str,
    config: str | None = None,
    split: str = "train",
    *,
    revision: str | None = None,
    files: str | None = None,
) -> Any:
    """The rows of `source`, an indexable ``datasets.Dataset``.

    `source` is a parquet, jsonl, json, arrow or csv file, a folder that ``save_to_disk`` wrote (of
    one data set, or of several with `split` naming one), a folder of such files, or the id of a
    data set on the hub (at `revision`; of its files only `files`, with the split's name in
    place of ``{split}``). Raises SourceError; where the hub does not answer and the data set is not
    in the cache, within seconds.
    """
    import datasets  # deferred: it takes a second

    path = Path(source)
    try:
        if source and path.is_file():
            return _from_files(datasets, [path])
        if source and path.is_dir():
            return _from_folder(datasets, path, split)
    except SourceError:
        raise
    except Exception as error:  # datasets raises many kinds; each must end as one readable line
        raise SourceError(
            f"{source}: local data cannot be loaded: {_first_cause(error)}"
        ) from error
    if re.fullmatch(r"[\w.-]+/[\w.-]+", source) and not source.startswith("."):
        if files is None:
            return _from_hub(datasets, source, name=config, split=split, revision=revision)
        # All that is read of these files is one split, which datasets calls "train".
        file = files.format(split=split)
        return _from_hub(datasets, source, data_files=file, split="train", revision=revision)
    raise SourceError(f"{source!r}: neither a file, nor a folder, nor an id like owner/name")


def hub_answers(endpoint: str, seconds: float = HUB_SECONDS) -> bool:
    """Whether anything answers at `endpoint` (through a proxy, if one is set) within `seconds`."""
    answered = threading.Event()

    def ask() -> None:
        request = urllib.request.Request(endpoint, method="HEAD")
        try:
            with urllib.request.urlopen(request, timeout=seconds):
                answered.set()
        except urllib.error.HTTPError:  # an answer too, such as "not allowed"
            answered.set()
        except (OSError, ValueError):
            pass

    # In a thread: looking up a name has no time limit of its own.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(seconds)
    return answered.is_set()


def _from_hub(datasets: Any, source: str, **asked: Any) -> Any:
    from huggingface_hub import constants

    offline = bool(constants.HF_HUB_OFFLINE)
    if not offline and not hub_answers(constants.ENDPOINT):
        # The clients would try again for up to a minute before they look into their cache.
        offline = constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        return datasets.load_dataset(source, **asked)
    except Exception as error:  # a gated, a renamed or a misspelt data set, a wrong split, ...
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
    """The first line of the error at the head of the chain: what went wrong, not what followed."""
    while cause := error.__cause__ or error.__context__:
        error = cause
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


def _from_files(datasets: Any, paths: list[Path]) -> Any:
    kinds = {path.suffix for path in paths}
    if len(kinds) != 1 or not kinds <= set(BUILDERS):
        raise SourceError(f"{paths[0]}: known are files ending in {', '.join(BUILDERS)}")
    builder = BUILDERS[kinds.pop()]
    if builder == "csv":  # datasets would guess types: 1.50 is 1.5 to it, and NA no answer
        rows = [row for path in paths for row in csv_rows(path)]
        return datasets.Dataset.from_list(rows)
    if builder == "json":  # datasets would put other characters in the place of broken ones
        for path in paths:
            require_utf8(path)
    for path in paths:
        if not path.stat().st_size:
            raise SourceError(f"{path}: an empty file. Name one with rows.")
    files = [str(path) for path in paths]
    try:
        return datasets.load_dataset(builder, data_files=files, split="train")
    except Exception:  # datasets names neither the file nor the line
        for path in paths:
            if path.suffix == ".jsonl":
                require_json_lines(path)
        raise


def _from_folder(datasets: Any, path: Path, split: str) -> Any:
    if (path / "dataset_dict.json").is_file():
        splits = datasets.load_from_disk(str(path))
        if split not in splits:
            raise SourceError(f"{path} has no split {split!r}: choose one of {list(splits)}")
        return splits[split]
    if (path / "state.json").is_file():
        return datasets.load_from_disk(str(path))
    for suffix in BUILDERS:
        if files := sorted(path.rglob(f"*{suffix}")):
            return _from_files(datasets, files)
    raise SourceError(f"{path}: no file ending in {', '.join(BUILDERS)} in this folder")


def complete(
    columns: Columns, names: Iterable[str], source: str, *, answer: bool = True
) -> Columns:
    """`columns` with missing ones found among the usual names; SourceError if there is none.

    `names` are of the columns; those of a record (``extra_info.question``) may be among them, or
    the record stands for all that it may hold. Without `answer` only the text is looked for.
    """
    present = set(names)

    def there(column: str) -> bool:
        record = column.partition(".")[0]
        opaque = record in present and not any(n.startswith(f"{record}.") for n in present)
        return column in present or opaque

    def find(given: tuple[str, ...], usual: tuple[str, ...], what: str) -> str:
        candidates = given or usual
        for candidate in candidates:
            if there(candidate):
                return candidate
        raise SourceError(
            f"{source} has no column {' or '.join(candidates)} for the {what} (it has "
            f"{', '.join(sorted(present))}): name one with --{what}-column"
        )

    def given(column: str | None) -> tuple[str, ...]:
        return () if column is None else (column,)

    texts = (*given(columns.text), *columns.text_else)
    text = find(texts, TEXT_COLUMNS, "text")
    if columns.level is not None:
        find(given(columns.level), (), "level")
    gold = find(given(columns.answer), ANSWER_COLUMNS, "answer") if answer else columns.answer
    return replace(columns, text=text, text_else=(), answer=gold)


def column_names(rows: Any) -> list[str]:
    """The columns of a ``datasets.Dataset``, and with a dot what their records hold."""

    def walk(features: Mapping[str, Any], prefix: str) -> Iterator[str]:
        for name, kind in features.items():
            yield f"{prefix}{name}"
            if isinstance(kind, Mapping):
                yield from walk(kind, f"{prefix}{name}.")

    return list(walk(rows.features, ""))


def read_level(value: Any) -> int | None:
    """3 for 3, 3.0, "3", "3.0" and "Level 3"; None where there is no number."""
    match = re.search(r"\d+", str(value)) if value is not None else None
    return int(match.group()) if match else None


def to_question(row: Mapping[str, Any], columns: Columns, source: str, split: str) -> Question:
    """The question of one row; QuestionError if it has none, or no answer."""
    text = question_text(row, columns)
    if marks := [mark for mark in RENDERED if mark in text]:
        raise QuestionError(
            f"the text holds {marks[0]}: it is a prompt that a chat template made, not a question; "
            "name the column of the question with --text-column"
        )
    level = read_level(_get(row, columns.level)) if columns.level else None
    value = _get(row, columns.text or "")
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
    """The answers of one row; QuestionError where the column does not have them."""
    return [_answer(value, columns.answer_from) for value in _golds(row, columns)]


def question_text(row: Mapping[str, Any], columns: Columns) -> str:
    """The text of one row without the frame that the data set puts around it."""
    column = columns.text or ""
    value = _get(row, column)
    if not isinstance(value, list):
        value = "" if value is None else str(value)
    return _between(user_text(value, column), columns.text_after, columns.text_before)


def kept_levels(rows: Any, columns: Columns) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(row number, row) of the rows whose level is wanted."""
    for number, row in enumerate(rows):
        if columns.levels and read_level(_get(row, columns.level or "")) not in columns.levels:
            continue
        yield number, row


def _get(row: Mapping[str, Any], dotted: str) -> Any:
    value: Any = row
    for key in dotted.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _golds(row: Mapping[str, Any], columns: Columns) -> list[str]:
    value = _get(row, columns.answer or "")
    if value is None:
        return []
    if isinstance(value, list | tuple):
        return [str(item) for item in value]
    text = str(value)
    if text.startswith("[") and text.endswith("]"):
        return _listed(text)
    return [text]


def _listed(text: str) -> list[str]:
    """The strings of a list written as text, ``['9.6\\n']``; an interval ``[0, 1]`` stays."""
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
        found = closed_boxes(text)
        if not found:
            raise QuestionError("no \\boxed{...} in the solution to take the answer from")
        return found[-1][2]
    _, marker, answer = text.rpartition(answer_from)
    if not marker:
        raise QuestionError(f"no {answer_from!r} in the column to take the answer from")
    return answer


def _between(text: str, after: str | None, before: str | None) -> str:
    if after is not None:
        _, found, text = text.partition(after)
        if not found:
            raise QuestionError(f"the frame {after!r} does not stand before the question")
    if before is not None:
        text, found, _ = text.rpartition(before)
        if not found:
            raise QuestionError(f"the frame {before!r} does not stand after the question")
    return text
