"""Benchmarks, and the questions that a request selects.

benchmarks.yaml has those with a name. A user's own is a yaml file of its own, NAME=PATH.yaml. Keys:

    questions      the number of different questions; another number in the data is rejected
    hub, revision, config, split   the data set on the hub;  or
    file           parquet, csv, jsonl or json, relative to the yaml file
    text, answer   columns (default: the usual names);  level: a column of difficulty
    answer_from    the answer is the text after the last occurrence of this string
    options        columns of wrong options: a multiple-choice question, graded by its letter
    template       template of its questions; overrides the evaluation's template
    tolerance      relative error at which a number is right, if the gold is a decimal number
    samples        per question when sampling (default: its rows); greedy decoding takes one
    sha256         digest of all questions and answers, in any order; other content is rejected
    copies         digests of other complete copies, by their source
    licence        as its owners state it

Rows are read as those of training data. Columns may be fields of records (``meta.answer``).

A hub data set without sha256 is identified by its revision, and without a revision by `copies`. A
local file with a known name must match one of the digests, and may have other columns.
"""

import functools
import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from prompt_aug.base.errors import UserError
from prompt_aug.grading.grader import LETTERS
from prompt_aug.prepare.sources import (
    IN_YAML,
    VERL_COLUMNS,
    Columns,
    SourceError,
    column_names,
    complete,
    field_of,
    has_column,
    load_rows,
    to_question,
)
from prompt_aug.questions import (
    Question,
    QuestionError,
    Reading,
    answer_texts,
    count_repeats,
    make_question,
    read_all,
)
from prompt_aug.typed import Part, Positive, Record, Several, Text, closest, parse_typed, read_typed
from recipe.config.evaluation import BenchmarkRequest, Samples

KNOWN = Path(__file__).with_suffix(".yaml")
FILES = (".yaml", ".yml", ".json", ".jsonl", ".csv", ".parquet")
Lettered = tuple[str, tuple[str, ...], tuple[str, ...]]  # question with options, letter, options


class Benchmark(Record):
    """Record of a benchmark, keys as above. `read_benchmark` makes `file` absolute."""

    questions: Positive
    hub: Text | None = None
    revision: Text | None = None
    config: Text | None = None
    split: Text = "test"
    file: Text | None = None
    text: Text | None = None
    answer: Text | None = None
    level: Text | None = None
    answer_from: Text | None = None
    options: Several[Text] = ()
    template: Text | None = None
    tolerance: Part | None = None
    samples: Samples = 1
    sha256: Text | None = None
    copies: dict[str, str] = Field(default_factory=dict)
    licence: str = ""

    @model_validator(mode="after")
    def _consistent(self) -> "Benchmark":
        if (self.hub is None) == (self.file is None):
            raise ValueError("give one of hub and file")
        if self.options and not self.answer:
            raise ValueError("options need the column of the answer")
        return self

    def digests(self, *, local: bool) -> set[str]:
        """Return the digests that its content may have; an empty set allows any."""
        own = {self.sha256} if self.sha256 else set()
        if local or (self.hub and not own and self.revision is None):
            own |= set(self.copies.values())
        return own


@dataclass(frozen=True, kw_only=True)
class LoadedBenchmark:
    """The questions to ask, in file order.

    `size` is the number of questions of the whole benchmark, `sha256` the digest of those asked.
    """

    name: str
    path: str
    questions: tuple[Question, ...]
    size: int
    samples: int
    sha256: str
    template: str | None = None
    tolerance: float | None = None


def read_benchmark(path: Path) -> Benchmark:
    benchmark = read_typed(path, Benchmark, UserError)
    file = benchmark.file and str((path.parent / benchmark.file).resolve())
    return benchmark.model_copy(update={"file": file})


@functools.cache
def known_benchmarks() -> Mapping[str, Benchmark]:
    return read_typed(KNOWN, dict[str, Benchmark], UserError)


def parse_request(text: str) -> BenchmarkRequest:
    """Parse NAME, NAME=PATH or NAME=PATH:SAMPLES. `load` rejects an unknown NAME."""
    stem, file = Path(text).stem, Path(text).suffix in FILES
    if file and "=" not in text:
        raise UserError(f"--benchmark {text}: a file. Give it a name: {stem}={text}")
    match = re.fullmatch(r"([^=]+)(?:=(.*?)(?::(\d+))?)?", text)
    name, path, samples = match.groups() if match else (text, None, None)
    record = {"name": name, "path": path, "samples": samples and int(samples)}
    return parse_typed(record, BenchmarkRequest, f"benchmark {text!r}", UserError)


def load_benchmark(
    request: BenchmarkRequest,
    *,
    greedy: bool,
    max_questions: int | None = None,
    samples: int | None = None,
    reading: Reading = "one",
) -> LoadedBenchmark:
    """Read a benchmark, check its size and content, and take its first `max_questions`.

    `reading` is how the run reads the messages of verl's rows.

    Samples per question: one if `greedy`, else those of the request, else `samples`, else the rows
    of a question or the benchmark's own number if it is larger.
    """
    name, path = request.name, None if request.path is None else Path(request.path)
    if name.endswith(FILES):  # as scores.json, which lies beside the folders of the benchmarks
        raise UserError(f"benchmark {name}: the name of a file. Choose another: NAME={path}")
    record = ours = known_benchmarks().get(name)
    if path is not None and path.suffix in (".yaml", ".yml"):
        record, path = read_benchmark(path), None
    if record is None and path is None:
        raise UserError(
            f"unknown benchmark {name!r}{closest(name, known_benchmarks()) or ':'} Write NAME=PATH "
            f"or NAME=PATH:SAMPLES, or a known name: {', '.join(known_benchmarks())}"
        )
    benchmark = record or Benchmark(questions=1, file=str(path))
    source = str(path or benchmark.file or f"hub:{benchmark.hub}")
    rows = _questions(name, path, benchmark, reading)
    counted = count_repeats(rows)
    if ours is record is not None and len(rows) == record.questions:
        counted = [(question, 1) for question in rows]  # its published denominator
    questions, repeats = [question for question, _ in counted], min(n for _, n in counted)
    if record is not None and len(questions) != record.questions:
        raise UserError(
            f"{name} has {record.questions} questions, but {source} has {len(questions)}: use "
            "another name, or the right file"
        )
    allowed, digest = benchmark.digests(local=path is not None), content_digest(questions)
    if allowed and digest not in allowed:
        raise UserError(
            f"{name}: the content of {source} has the digest {digest} and not "
            f"{' or '.join(sorted(d[:12] for d in allowed))}: its questions or answers have "
            "changed. Use the published file, or another name: --benchmark NAME=PATH"
        )
    kept = tuple(questions[:max_questions])
    wanted = 1 if greedy else request.samples or samples or max(repeats, benchmark.samples)
    if len(rows) > len(questions):
        print(
            f"note: {name}: {len(rows)} rows hold {len(questions)} questions. Repeated rows count "
            f"as samples of one question: samples={wanted}."
        )
    return LoadedBenchmark(
        name=name,
        path=source,
        questions=kept,
        size=len(questions),
        samples=wanted,
        sha256=content_digest(kept),
        template=benchmark.template,
        tolerance=benchmark.tolerance,
    )


def _questions(
    name: str, path: Path | None, benchmark: Benchmark, reading: Reading
) -> list[Question]:
    """Read `path`, or the benchmark's own file or hub data set."""
    file = path or (Path(benchmark.file) if benchmark.file else None)
    if file is not None and not file.exists():
        raise UserError(f"benchmark {name}: {file} does not exist")
    source = str(file or benchmark.hub)
    try:
        rows = load_rows(source, benchmark.config, benchmark.split, revision=benchmark.revision)
        names = column_names(rows)
        if path is not None:
            benchmark = _of_copy(benchmark, names)
        columns = _columns(benchmark, names, source)
        return read_all(
            rows, functools.partial(_question, columns, benchmark, name, reading), source
        )
    except (SourceError, QuestionError) as error:
        reason = str(error) if file else f"{error} (give a file: --benchmark {name}=PATH)"
        raise UserError(f"benchmark {name}: {reason}") from error


def _of_copy(benchmark: Benchmark, names: Collection[str]) -> Benchmark:
    """Return the record of a known benchmark for a local copy, which may have other columns."""
    named = (benchmark.text, benchmark.answer, *benchmark.options)
    gone = [] if benchmark.level and has_column(names, benchmark.level) else ["level"]
    options = benchmark.options
    if not all(has_column(names, column) for column in named if column):
        gone, options = [*gone, "text", "answer"], ()
        gone += ["answer_from"] * _has_verl_columns(names)  # whose golds are final
    return benchmark.model_copy(update={**dict.fromkeys(gone), "options": options})


def _has_verl_columns(names: Collection[str]) -> bool:
    return all(has_column(names, column) for column in VERL_COLUMNS.values())


def _columns(benchmark: Benchmark, names: Collection[str], source: str) -> Columns:
    """Return the columns of text, answer and level; verl's, as in training, if none is named."""
    keys = ("text", "answer", "level", "answer_from")
    given = Columns(**{key: getattr(benchmark, key) for key in keys})
    if _has_verl_columns(names) and not (given.text or given.answer):
        given = given.model_copy(update=VERL_COLUMNS)
    others = [("options", column) for column in benchmark.options]
    return complete(given, names, source, others=others, remedy=IN_YAML)


def _question(
    columns: Columns, benchmark: Benchmark, name: str, reading: Reading, row: Mapping[str, Any]
) -> Question:
    """Return the question of one row. Raises QuestionError."""
    made = to_question(row, columns, name, "test", reading)
    if not benchmark.options:
        return made
    values = [field_of(row, column) for column in benchmark.options]
    wrong = [text.strip() for text in answer_texts(values) if text.strip()]
    text, answers, options = multiple_choice(made.text, made.answers[0], wrong)
    kept = {key: getattr(made, key) for key in ("source", "split", "level", "earlier", "row")}
    return make_question(text=text, answers=answers, options=options, **kept)


def multiple_choice(text: str, right: str, wrong: Sequence[str]) -> Lettered:
    """Return the question with its options in random order.

    A hash of (question, option) gives the order, so it is the same on every machine. Two wrong
    options may be equal, as in two questions of GPQA-Diamond.
    """

    def key(option: str) -> str:
        return hashlib.sha256(f"0\0{text}\0{option}".encode()).hexdigest()

    options = sorted([right, *wrong], key=key)
    if not wrong or right in wrong or len(options) > len(LETTERS):
        raise QuestionError(
            f"options: {len(wrong)} wrong ones, or one that equals the right one: {text[:60]!r}"
        )
    listing = "\n".join(f"({LETTERS[i]}) {option}" for i, option in enumerate(options))
    shown = f"{text}\n{listing}\nAnswer with the letter of the right option."
    return shown, (LETTERS[options.index(right)],), tuple(options)


def content_digest(questions: Sequence[Question]) -> str:
    """Return the digest of the uids, which ignore the order and white space."""
    return hashlib.sha256("\n".join(sorted(q.uid for q in questions)).encode()).hexdigest()
