"""Questions: one record, its content hash, and verl-style parquet files of them.

    uid = first 16 hex digits of SHA-256(JSON [normalised text, normalised answers])

Normalization is NFC, with each run of white space replaced by one space. The uid does not depend on
the row, the file, the source or the split, so the same question has the same draws everywhere.
"""

import ast
import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from prompt_aug.base.errors import UserError
from prompt_aug.base.files import replacing
from prompt_aug.grading.grader import LETTERS

UID_LENGTH = 16
Turns = tuple[tuple[str, str], ...]  # (role, content) of the messages of a chat
Reading = Literal["one", "last", "all"]  # of a row's messages, see `from_row`
SHOWN_ERRORS = 10
INT64 = 2**63  # the range of a parquet column
# The texts of Python's infinity and NaN, which other programs write, and numbers that may overflow.
_INFINITE = re.compile(r"[-+]?(inf|infinity|\d+\.?\d*e\+?\d+)|(?-i:nan|NaN)", re.IGNORECASE)
_TEXTS = pa.list_(pa.string())
_EXTRA = {
    "uid": pa.string(),
    "split": pa.string(),
    "index": pa.int64(),
    "level": pa.int64(),
    "answers": _TEXTS,
    "options": _TEXTS,
    "rephrasings": _TEXTS,
    "pass_rate": pa.float64(),
    "row": pa.string(),
}
SCHEMA = pa.schema(
    {
        "data_source": pa.string(),
        "prompt": pa.list_(pa.struct({"role": pa.string(), "content": pa.string()})),
        "ability": pa.string(),
        "reward_model": pa.struct({"style": pa.string(), "ground_truth": pa.string()}),
        "extra_info": pa.struct(_EXTRA),
    }
)
VALIDATION = "validation"  # the split of questions that were held out of the training data


def held_out_of(out: Path) -> Path:
    """Return the file of the questions that `prompt_aug.prepare` holds out of OUT."""
    return out.with_name(f"{out.stem}.{VALIDATION}.parquet")


def manifest_of(out: Path) -> Path:
    """Return the manifest of a file that `prompt_aug.prepare` wrote."""
    return out.with_name(f"{out.name}.manifest.json")


class QuestionError(UserError, ValueError):
    """A file or row that cannot be read as questions. The message says which and what to do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A question; any of `answers` is right, also for its `rephrasings`.

    With `options`, which its text lists as (A), (B), ..., an answer is a letter. `earlier` are
    the row's messages before the question, such as its system prompt. `pass_rate` is the share of
    right answers that a model gave before training. `row` is the JSON of the row's columns, for
    verifiers, if this record lacks some.
    """

    uid: str
    text: str
    answers: tuple[str, ...]
    source: str
    split: str = "train"
    level: int | None = None
    rephrasings: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    earlier: Turns = ()
    pass_rate: float | None = None
    row: str | None = None

    @property
    def system(self) -> str | None:
        """The row's own system prompt."""
        return dict(self.earlier).get("system")


def normalise(text: str) -> str:
    """Return NFC text with single spaces and none at the ends."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def make_question(
    *,
    text: str,
    answers: Sequence[str],
    source: str,
    rephrasings: Sequence[str] = (),
    system: str | None = None,
    **more: Any,
) -> Question:
    """Return a question with its uid; text and answers are trimmed. `more` are other fields.

    Raises QuestionError for an empty text, an answer that is missing, empty, infinite or NaN, and
    for lone surrogates, which no file can hold.
    """
    if isinstance(answers, str):
        raise QuestionError(f"answers must be a list of strings, got the string {answers!r}")
    if not isinstance(system, str | None):
        raise QuestionError("the content of a system message is no text. Write or drop it.")
    text, golds = text.strip(), tuple(dict.fromkeys(answer.strip() for answer in answers))
    if not text:
        raise QuestionError("the question text is empty")
    if not golds or not all(golds):
        raise QuestionError(f"no answer, or an empty one, for the question {text[:60]!r}")
    if wrong := [g for g in golds if _INFINITE.fullmatch(g) and not math.isfinite(float(g))]:
        raise QuestionError(f"the answer {wrong[0]!r} is no number: write \\infty for infinity")
    content = json.dumps([normalise(text), [normalise(answer) for answer in golds]])
    uid = hashlib.sha256(content.encode()).hexdigest()[:UID_LENGTH]
    others = tuple(text for text in rephrasings if text.strip())
    more |= {"earlier": (("system", system),)} if system else {}
    whole = json.dumps([text, golds, source, others, more], ensure_ascii=False)
    if half := re.search(r"[\ud800-\udfff]", whole):
        raise QuestionError(f"{half[0]!r} is half a character (a lone surrogate). Correct it.")
    return Question(uid=uid, text=text, answers=golds, source=source, rephrasings=others, **more)


def to_row(question: Question, index: int = 0) -> dict[str, Any]:
    """Return the verl-style row; training and validation files have the same columns."""
    extra = {name: index if name == "index" else getattr(question, name) for name in _EXTRA}
    return {
        "data_source": question.source,
        "prompt": [
            {"role": role, "content": content}
            for role, content in (*question.earlier, ("user", question.text))
        ],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": question.answers[0]},
        "extra_info": {n: list(v) if isinstance(v, tuple) else v for n, v in extra.items()},
    }


def from_row(row: Mapping[str, Any], reading: Reading = "one") -> Question:
    """Return the question of a verl-style row, also of one without our `extra_info`.

    Such a row gives its system message, its user message and ``reward_model.ground_truth``, a
    string or a list. Raises QuestionError without a question or an answer, and for other messages,
    images or videos, which templates do not support. The `reading` "last" allows any messages
    before the user's last one, and "all" also keeps the blanks around that one.
    """
    for column in ("images", "videos"):
        if row.get(column) is not None and len(row[column]):
            raise QuestionError(f"the column {column!r} is not empty: questions are text. Drop it.")
    extra, reward_model = row.get("extra_info") or {}, row.get("reward_model") or {}
    if not isinstance(extra, Mapping) or not isinstance(reward_model, Mapping):
        raise QuestionError("extra_info or reward_model is text: both are records. Convert them.")
    gold, golds = reward_model.get("ground_truth"), extra.get("answers")
    if isinstance(gold, Mapping):
        try:
            gold = answer_texts(gold)
        except QuestionError:  # of a verifier
            gold = json.dumps(gold, default=str)
    if isinstance(gold, str) and len(one := listed(gold)) == 1 and not OF_CODE.search(one[0]):
        gold = one[0]  # '["34"]' of Skywork-OR1
    level, rate = extra.get("level"), extra.get("pass_rate")
    # Another file's field of that name need not hold the gold, or be a list.
    named = isinstance(golds, list | tuple) and golds and gold in (None, *golds)
    answers = answer_texts(golds if named else gold)
    made = make_question(
        text=user_text(row.get("prompt"), "prompt", last=reading != "one"),
        answers=answers,
        source=str(row.get("data_source") or "unknown"),
        split=str(extra.get("split") or "train"),
        level=int(level) if isinstance(level, int | float) and abs(level) < INT64 else None,
        rephrasings=answer_texts(extra.get("rephrasings")),
        options=_options(extra.get("options"), answers),
        pass_rate=_rate(rate),
    )
    chat = () if isinstance(row["prompt"], str) else row["prompt"]
    roles = [message.get("role") for message in chat]
    is_question = roles in ([], ["user"], ["system", "user"])
    if not is_question if reading == "one" else roles[-1:] not in ([], ["user"]):
        raise QuestionError(
            f"the column 'prompt' has the roles {', '.join(map(str, roles))}: a question is one "
            "user message after an optional system message. Write it as such or drop the row."
        )
    if roles:
        earlier, text = turns_of(chat)
        made = replace(made, earlier=earlier, text=text if reading == "all" else made.text)
    ours = extra.get("uid") == made.uid and set(extra) <= _EXTRA.keys()
    return replace(made, row=extra.get("row") if ours else _columns(row, made))


def is_record(gold: str) -> bool:
    """Return True for an object or a list of texts as JSON or Python, the gold of a verifier."""
    return re.match(r"[{\[]\s*[\"']", gold) is not None


def _options(value: Any, answers: Sequence[str]) -> tuple[str, ...]:
    """Return the texts of lettered options, or () unless the answers are among their letters."""
    if isinstance(value, Mapping):
        value = [value[letter] for letter in LETTERS[: len(value)] if letter in value]
    if not isinstance(value, list | tuple) or not all(isinstance(v, str | int) for v in value):
        return ()
    texts = answer_texts(value)
    pairs = list(zip(LETTERS, texts, strict=False))
    bare = tuple(re.sub(rf"^\(?{letter}[.):]\s*", "", text) for letter, text in pairs)
    if not set(bare) & set(texts):
        texts = bare
    return texts if {*answers} <= {*LETTERS[: len(texts)]} else ()


OF_CODE = re.compile(r"""\b(?:assert|import|def|print)\b|^\s*\{\s*["']""")  # read by a verifier


def listed(text: str) -> Sequence[str]:
    """Return the strings of a list written as text, ``['9.6\\n']``; ``[0, 1]`` is one answer."""
    if text.startswith("[") and text.endswith("]"):
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return [text]
        if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
            return value
    return [text]


def _rate(value: Any) -> float | None:
    """Return a pass rate; None without one. Raises QuestionError outside [0, 1]."""
    if value is None or value != value:
        return None
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise QuestionError(f"extra_info.pass_rate={value}: a share lies in [0, 1]. Correct it.")
    return float(value)


def _columns(row: Mapping[str, Any], made: Question) -> str | None:
    """Return the columns of a row but `prompt` as JSON; None if `made` has them unchanged."""
    held = to_row(made)
    del held["extra_info"]["index"]
    sections = ("reward_model", "extra_info")
    columns = {name: value for name, value in row.items() if name != "prompt"}
    if all(
        value == held.get(name)
        or (isinstance(value, Mapping) and name in sections and value.items() <= held[name].items())
        for name, value in columns.items()
    ):
        return None
    try:
        return json.dumps(columns, default=str)
    except (TypeError, ValueError, RecursionError) as error:
        raise QuestionError(f"its columns cannot be written as JSON: {error}") from error


def read_parquet(path: str | Path, reading: Reading = "one") -> list[Question]:
    """Return the questions of a verl-style parquet file, in row order; see `from_row`.

    Raises QuestionError for a missing, unreadable or empty file, and for rows without a question
    or an answer, with their numbers (from 0).
    """
    path = Path(path)
    if not path.is_file():
        raise QuestionError(f"{path}: no such file; `python -m prompt_aug.prepare` makes one")
    try:
        table = in_double(pq.read_table(path))
    except (pa.ArrowInvalid, OSError) as error:
        raise QuestionError(
            f"{path}: not a readable parquet file ({error}). Convert it with "
            "`python -m prompt_aug.prepare`."
        ) from error
    if missing := {"prompt", "reward_model"} - set(table.column_names):
        raise QuestionError(
            f"{path}: lacks the columns {sorted(missing)} of a verl-style file (it has "
            f"{table.column_names}). Convert it with `python -m prompt_aug.prepare`."
        )
    return read_all(table.to_pylist(), partial(from_row, reading=reading), path)


def in_double(table: pa.Table) -> pa.Table:
    """Return a table whose numbers of 16 and 32 bits are the shortest decimals of that value.

    In double precision, 7.7 of 32 bits would be 7.699999809265137.
    """

    def decimal(value: Any, kind: Any) -> Any:
        if isinstance(value, dict):
            return {name: decimal(part, kind.field(name).type) for name, part in value.items()}
        if pa.types.is_map(kind) and value is not None:
            return [{"key": key, "value": decimal(part, kind.item_type)} for key, part in value]
        if isinstance(value, list):
            return [decimal(part, kind.value_type) for part in value]
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        small = value is not None and kind in (pa.float16(), pa.float32())
        return float(str(kind.to_pandas_dtype()(value))) if small else value

    for place, field in enumerate(table.schema):
        if re.search(r"\b(half)?float\b", str(field.type)):
            values = [decimal(value, field.type) for value in table.column(place).to_pylist()]
            table = table.set_column(place, field.name, pa.array(values))
    return table


def read_all(
    rows: Iterable[Mapping[str, Any]], read: Callable[[Any], Question], source: str | Path
) -> list[Question]:
    """Return `read` of every row. Raises QuestionError with the numbers of the rows it rejects."""
    questions, errors = [], []
    for number, row in enumerate(rows):
        try:
            questions.append(read(row))
        except QuestionError as error:
            errors.append(f"row {number}: {error}")
    if errors:
        more = f"\n  and {len(errors) - SHOWN_ERRORS} more" if len(errors) > SHOWN_ERRORS else ""
        listed = "\n  ".join(errors[:SHOWN_ERRORS])
        raise QuestionError(
            f"{source}: {len(errors)} of {len(errors) + len(questions)} rows cannot be used. "
            f"Correct them, or drop them (`python -m prompt_aug.prepare` does):\n  {listed}{more}"
        )
    if not questions:
        raise QuestionError(f"{source}: has no rows")
    return questions


def count_repeats(questions: Iterable[Question]) -> list[tuple[Question, int]]:
    """Return the distinct questions in order, each with its number of rows.

    Some files, such as verl's of AIME, hold a question once per sample.
    """
    rows: dict[tuple[Any, ...], list[Question]] = {}
    for q in questions:
        rows.setdefault((q.uid, q.text, q.earlier, q.source), []).append(q)
    return [(group[0], len(group)) for group in rows.values()]


def write_parquet(
    questions: Sequence[Question], path: str | Path, samples: Sequence[int] | None = None
) -> None:
    """Write the questions atomically. Raises QuestionError if there are none.

    `samples`: responses per question, which override verl's `n`.
    """
    if not questions:
        raise QuestionError(f"no questions to write to {path}")
    rows = [to_row(question, index) for index, question in enumerate(questions)]
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    if samples is not None:
        table = table.append_column("__rollout_n__", pa.array(samples, pa.int64()))
    with replacing(Path(path)) as file:
        pq.write_table(table, file)


def turns_of(chat: Iterable[Mapping[str, Any]]) -> tuple[Turns, str]:
    """Return the messages before the question, and the question, which ends the chat.

    Raises QuestionError for a message without role or text.
    """
    turns: list[tuple[Any, Any]] = [(turn.get("role"), turn.get("content")) for turn in chat]
    if not all(isinstance(part, str) for turn in turns for part in turn):
        raise QuestionError("a message has no role, or no text as its content. Write or drop it.")
    return tuple(turns[:-1]), turns[-1][1]


def user_text(
    prompt: str | Iterable[Mapping[str, Any]] | None, column: str, last: bool = False
) -> str:
    """Return a text prompt, or the user message of a chat, with `last` the last of several.

    Raises QuestionError, with the `column`, if a chat has none or several.
    """
    if isinstance(prompt, str):
        if re.match(r'\s*\[\s*\{\s*"(role|content)"', prompt):
            raise QuestionError(
                f"the column {column!r} holds a chat as text. Convert it to a list."
            )
        return prompt
    chat = prompt if isinstance(prompt, Iterable) else [prompt] if prompt else []
    if not all(isinstance(turn, Mapping) for turn in chat):
        raise QuestionError(f"the column {column!r} is neither text nor a chat. Name another.")
    messages = [m["content"] for m in chat if m.get("role") == "user" and m.get("content")]
    if not messages:
        raise QuestionError(f"the column {column!r} has no user message")
    if len(messages) > 1 and not last:
        raise QuestionError(
            f"the column {column!r} has {len(messages)} user messages, and a question is one. "
            "Write them as one or drop the row."
        )
    if not isinstance(messages[-1], str):
        raise QuestionError(f"the column {column!r} holds parts (an image?): questions are text")
    return messages[-1]


def answer_texts(value: Any) -> tuple[str, ...]:
    """Return one value, or each of a list, as texts; none for null and NaN. 142.0 is 142, 1e23 a 1
    and 23 zeros: the shortest decimal of a float, whose exact value has digits that nobody wrote.

    A record that holds one text is that text. Raises QuestionError for bytes and other records.
    """
    if isinstance(value, Mapping):
        texts = {text for part in value.values() for text in answer_texts(part) if text.strip()}
        if len(texts) == 1:
            return tuple(texts)
    if isinstance(value, bytes | Mapping):
        kind = type(value).__name__
        raise QuestionError(f"a value of type {kind} is no text: {value!r:.60}. Write it as text.")
    if isinstance(value, Iterable) and not isinstance(value, str):
        return tuple(text for item in value for text in answer_texts(item))
    if isinstance(value, float) and not value.is_integer():
        return (repr(value),) if math.isfinite(value) else ()
    whole = int(Decimal(repr(value))) if isinstance(value, float) else value
    return () if value is None else (str(whole),)
