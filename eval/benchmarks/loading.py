"""From a request to the questions of a benchmark, counted and digested."""

import csv
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eval.benchmarks.record import (
    MOST_SAMPLES,
    Benchmark,
    known_benchmark,
    known_benchmarks,
    read_benchmark,
)
from eval.errors import EvaluationError
from prompt_aug.grading.choice import LETTERS
from prompt_aug.prepare.sources import Columns, SourceError, complete, load_rows, read_level
from prompt_aug.questions import Question, make_question, read_parquet


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkRequest:
    """What the user asked for; None: the known one's source, samples, template."""

    name: str
    path: str | None = None
    samples: int | None = None
    template: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedBenchmark:
    """Questions in file order, `size` of the whole benchmark, and the digest of what is asked.

    `template` is its own, None where it is asked with that of the evaluation.
    """

    name: str
    path: str
    questions: tuple[Question, ...]
    size: int
    samples: int
    sha256: str
    template: str | None = None


def parse_request(text: str) -> BenchmarkRequest:
    """Read ``name``, ``name=PATH`` or ``name=PATH:SAMPLES``."""
    name, separator, rest = text.partition("=")
    name = name.strip()
    if not separator:
        if name not in known_benchmarks():
            raise EvaluationError(
                f"benchmark {text!r} has no file and is not a known name; "
                f"write {name}=PATH, or one of {', '.join(known_benchmarks())}"
            )
        return BenchmarkRequest(name=name)
    path, colon, samples = rest.rpartition(":")
    if not (colon and samples.isdigit()):
        path, samples = rest, ""
    if not name or not path:
        raise EvaluationError(f"benchmark {text!r}: write NAME=PATH or NAME=PATH:SAMPLES")
    if not all(c.isalnum() or c in "._-" for c in name) or name.startswith("."):
        raise EvaluationError(f"benchmark name {name!r} names files: use letters, digits, . _ -")
    if samples and not 1 <= int(samples) <= MOST_SAMPLES:
        raise EvaluationError(f"benchmark {text!r}: from 1 to {MOST_SAMPLES} samples of a question")
    return BenchmarkRequest(name=name, path=path, samples=int(samples) if samples else None)


def suite_requests(folder: Path) -> list[BenchmarkRequest]:
    """The five benchmarks of a published evaluation suite, one Arrow folder each."""
    members = [b for b in known_benchmarks().values() if b.suite_folder is not None]
    missing = [b.suite_folder for b in members if not (folder / str(b.suite_folder)).is_dir()]
    if missing:
        raise EvaluationError(f"evaluation suite {folder} lacks the folders {missing}")
    return [BenchmarkRequest(name=b.name, path=str(folder / str(b.suite_folder))) for b in members]


def load(
    request: BenchmarkRequest,
    *,
    greedy: bool,
    max_questions: int | None = None,
    samples: int | None = None,
) -> LoadedBenchmark:
    """Read a benchmark, check its size and content, and take the first `max_questions` of it.

    Samples of a question: those of the request, else `samples`, else one for greedy decoding and
    the benchmark's own number for sampling.
    """
    benchmark, path = _resolve(request)
    questions = _questions(benchmark, path, request.name)
    source = str(path or (benchmark and (benchmark.file or f"hub:{benchmark.hub}")))
    if benchmark is not None and len(questions) != benchmark.questions:
        raise EvaluationError(
            f"{request.name} has {benchmark.questions} questions, but {source} has "
            f"{len(questions)}: give it another name, or the right file"
        )
    allowed = benchmark.digests(local=path is not None) if benchmark is not None else set()
    if allowed and content_digest(questions) not in allowed:
        raise EvaluationError(
            f"{request.name}: the content of {source} has the digest {content_digest(questions)} "
            f"and not {' or '.join(sorted(d[:12] for d in allowed))}: its questions or answers "
            "have changed. Take the published file, or another name: --benchmark NAME=PATH"
        )
    kept, own = tuple(questions[:max_questions]), benchmark.template if benchmark else None
    default = 1 if greedy or benchmark is None else benchmark.samples
    asked = samples or default if request.samples is None else request.samples
    return LoadedBenchmark(
        name=request.name,
        path=source,
        questions=kept,
        size=len(questions),
        samples=_checked_samples(request.name, asked),
        sha256=content_digest(kept),
        template=request.template or own,
    )


def _resolve(request: BenchmarkRequest) -> tuple[Benchmark | None, Path | None]:
    """(its record, the file given in place of the record's source)."""
    if request.path is None:
        return known_benchmark(request.name), None
    path = Path(request.path)
    if path.suffix in (".yaml", ".yml"):
        return read_benchmark(path, request.name), None
    return known_benchmarks().get(request.name), path


def _checked_samples(name: str, samples: int) -> int:
    if not 1 <= samples <= MOST_SAMPLES:
        raise EvaluationError(
            f"benchmark {name}: {samples} samples of a question, possible are 1 to {MOST_SAMPLES}"
        )
    return samples


def _questions(benchmark: Benchmark | None, path: Path | None, name: str) -> list[Question]:
    if path is None:
        assert benchmark is not None
        if benchmark.file is not None:
            return _from_file(Path(benchmark.file), benchmark)
        try:
            rows = load_rows(
                str(benchmark.hub), benchmark.config, benchmark.split, revision=benchmark.revision
            )
        except SourceError as error:
            raise EvaluationError(
                f"cannot load {name} ({error}). Give a file: --benchmark {name}=PATH"
            ) from error
        return _from_rows(rows, rows.column_names, benchmark)
    local = benchmark or Benchmark(name=name, questions=1, file=str(path))
    return _from_file(path, local)


def _from_file(path: Path, benchmark: Benchmark) -> list[Question]:
    """A parquet file of `prompt_aug.questions`, a csv, or anything that `load_rows` reads."""
    if not path.exists():
        raise EvaluationError(f"benchmark {benchmark.name}: {path} does not exist")
    if path.suffix == ".parquet":
        return read_parquet(path)
    if path.suffix == ".csv":
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows: Any = list(csv.DictReader(file))
        names = list(rows[0]) if rows else []
    else:
        rows = load_rows(str(path), split=benchmark.split)
        names = rows.column_names
    # A local copy may have names of its own; those of the record belong to the copy on the hub.
    own = [c for c in (benchmark.text, benchmark.answer, *benchmark.options) if c is not None]
    if not set(own) <= set(names):
        benchmark = replace(benchmark, text=None, answer=None, level=None, options=())
    return _from_rows(rows, names, benchmark)


def _from_rows(rows: Any, names: Sequence[str], benchmark: Benchmark) -> list[Question]:
    name, asked = benchmark.name, Columns(text=benchmark.text, answer=benchmark.answer)
    try:
        columns = complete(asked, names, name)
    except SourceError as error:
        raise EvaluationError(f"benchmark {name}: {error}") from error
    questions = []
    for number, row in enumerate(rows):
        text = str(row[str(columns.text)] or "").strip()
        answers = answer_texts(row[str(columns.answer)], benchmark.answer_from)
        if not answers or not text:
            raise EvaluationError(f"benchmark {name}: row {number} has no question or no answer")
        options: tuple[str, ...] = ()
        if benchmark.options:
            wrong = [str(row[column]).strip() for column in benchmark.options]
            text, answers, options = multiple_choice(
                text, answers[0], wrong, benchmark.shuffle_seed
            )
        level = read_level(row.get(benchmark.level)) if benchmark.level else None
        made = make_question(
            text=text, answers=answers, source=name, split="test", level=level, options=options
        )
        questions.append(made)
    return questions


def answer_texts(value: object, answer_from: str | None = None) -> tuple[str, ...]:
    """A gold answer as texts: a list means that any matches; 142.0 stored as a float is 142.

    With `answer_from` what follows this string for the last time, nothing where it is missing.
    """
    if value is None:
        return ()
    if isinstance(value, float):
        return (str(int(value)) if value.is_integer() else repr(value),)
    if isinstance(value, str | int):
        text = str(value)
        if answer_from is not None:
            _, found, text = text.rpartition(answer_from)
            text = text if found else ""
        return (text.strip(),) if text.strip() else ()
    if isinstance(value, Sequence):
        parts = (text for item in value for text in answer_texts(item, answer_from))
        return tuple(dict.fromkeys(parts))
    raise EvaluationError(f"a gold answer of type {type(value).__name__} is not supported: {value}")


def multiple_choice(
    text: str, right: str, wrong: Sequence[str], seed: int
) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """(the question with lettered options, the right letter, the options in their order).

    The order is that of a hash of (seed, question, option): no clock, no row number, so the same
    on every machine and after any change of the file's order. Two wrong options may be the same,
    as in two questions of GPQA-Diamond; they stand in the order of their columns.
    """

    def key(option: str) -> str:
        return hashlib.sha256(f"{seed}\0{text}\0{option}".encode()).hexdigest()

    options = sorted([right, *wrong], key=key)
    if right in wrong or len(options) > len(LETTERS):
        raise EvaluationError(f"a wrong option is the right one, or too many: {text[:60]!r}")
    listed = "\n".join(f"({LETTERS[i]}) {option}" for i, option in enumerate(options))
    asked = f"{text}\n{listed}\nAnswer with the letter of the right option."
    return asked, (LETTERS[options.index(right)],), tuple(options)


def content_digest(questions: Sequence[Question]) -> str:
    """The digest of questions and answers: of their uids, so whatever the order and white space."""
    return hashlib.sha256("\n".join(sorted(q.uid for q in questions)).encode()).hexdigest()
