"""The benchmarks: their names, sources, fields and, above all, their denominators.

A known name carries the number of questions it must have, and a file or data set with another
number is refused: a score over 498 of 500 questions is not a MATH500 score. Any other name is
free and has the size of its file.

Specifications of a benchmark: ``name`` (a known one, from its hub id), ``name=PATH`` or
``name=PATH:SAMPLES``. PATH is a parquet file of `prompt_aug.questions`, or an Arrow data-set
folder as ``datasets.save_to_disk`` writes it.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.errors import EvaluationError
from prompt_aug.questions import Question, make_question, read_parquet


@dataclass(frozen=True, kw_only=True, slots=True)
class Benchmark:
    """A published benchmark. `samples` is used when sampling; greedy decoding takes one.

    `hub` is (data-set id, configuration, split); None where only files are known. The hub's copies
    may differ in wording from those in a published evaluation suite; the count is checked.
    """

    name: str
    questions: int
    hub: tuple[str, str | None, str] | None
    text_field: str = "problem"
    answer_field: str = "answer"
    samples: int = 1
    suite_folder: str | None = None


KNOWN: Mapping[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark(
            name="aime24",
            questions=30,
            hub=("HuggingFaceH4/aime_2024", None, "train"),
            samples=32,
            suite_folder="aime",
        ),
        Benchmark(name="aime25", questions=30, hub=("math-ai/aime25", None, "test"), samples=32),
        Benchmark(
            name="amc",
            questions=83,
            hub=("AI-MO/aimo-validation-amc", None, "train"),
            samples=32,
            suite_folder="amc",
        ),
        Benchmark(
            name="math500",
            questions=500,
            hub=("HuggingFaceH4/MATH-500", None, "test"),
            samples=4,
            suite_folder="math",
        ),
        Benchmark(
            name="minerva",
            questions=272,
            hub=("math-ai/minervamath", None, "test"),
            text_field="question",
            samples=4,
            suite_folder="minerva",
        ),
        Benchmark(
            name="olympiadbench",
            questions=675,
            hub=("knoveleng/OlympiadBench", None, "train"),
            text_field="question",
            samples=4,
            suite_folder="olympiad_bench",
        ),
        Benchmark(
            name="gpqa-diamond",
            questions=198,
            hub=("Idavidrein/gpqa", "gpqa_diamond", "train"),
            text_field="Question",
            answer_field="Correct Answer",
            samples=8,
        ),
    )
}
CHOICES = "ABCD"
MOST_SAMPLES = 100_000  # of a question: more is a typing error, and would not fit into memory
TEXT_FIELDS = ("problem", "question", "text")


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkRequest:
    """What the user asked for; `path` None means the hub, `samples` None the default."""

    name: str
    path: str | None = None
    samples: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedBenchmark:
    """Questions in file order, `size` of the whole benchmark, and a digest of what is asked."""

    name: str
    path: str
    questions: tuple[Question, ...]
    size: int
    samples: int
    sha256: str


def parse_request(text: str) -> BenchmarkRequest:
    """Read ``name``, ``name=PATH`` or ``name=PATH:SAMPLES``."""
    name, separator, rest = text.partition("=")
    name = name.strip()
    if not separator:
        if name not in KNOWN:
            raise EvaluationError(
                f"benchmark {text!r} has no file and is not a known name; "
                f"write {name}=PATH, or one of {', '.join(KNOWN)}"
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
    members = [b for b in KNOWN.values() if b.suite_folder is not None]
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
    """Read a benchmark, check its size, and take the first `max_questions` of it.

    Samples of a question: those of the request, else `samples`, else one for greedy decoding and
    the benchmark's own number for sampling.
    """
    known = KNOWN.get(request.name)
    if request.path is None:
        questions = _from_hub(_require_known(request.name))
    else:
        questions = _from_path(Path(request.path), request.name, known)
    if known is not None and len(questions) != known.questions:
        raise EvaluationError(
            f"{request.name} has {known.questions} questions, but {request.path or known.hub} has "
            f"{len(questions)}: give it another name, or the right file"
        )
    kept = tuple(questions[:max_questions])
    default = 1 if greedy or known is None else known.samples
    return LoadedBenchmark(
        name=request.name,
        path=request.path or f"hub:{_require_known(request.name).hub}",
        questions=kept,
        size=len(questions),
        samples=_checked_samples(
            request.name, samples or default if request.samples is None else request.samples
        ),
        sha256=_digest(kept),
    )


def _checked_samples(name: str, samples: int) -> int:
    if not 1 <= samples <= MOST_SAMPLES:
        raise EvaluationError(
            f"benchmark {name}: {samples} samples of a question, possible are 1 to {MOST_SAMPLES}"
        )
    return samples


def _require_known(name: str) -> Benchmark:
    if name not in KNOWN:
        raise EvaluationError(f"unknown benchmark {name!r}; known: {', '.join(KNOWN)}")
    return KNOWN[name]


def _from_path(path: Path, name: str, known: Benchmark | None) -> list[Question]:
    if path.is_dir():
        import datasets  # deferred: it takes a second, and a parquet file needs none of it

        try:
            rows = datasets.load_from_disk(str(path))
        except (FileNotFoundError, ValueError) as error:
            raise EvaluationError(
                f"{path} is no Arrow data-set folder ({error}); give one that save_to_disk wrote, "
                "or a parquet file"
            ) from error
        if isinstance(rows, datasets.DatasetDict):
            raise EvaluationError(f"{path} holds several data sets: name one of {list(rows)}")
        # A file keeps its own names; those of the table belong to the copy on the hub.
        text_field = next((f for f in TEXT_FIELDS if f in rows.column_names), "")
        if not text_field or "answer" not in rows.column_names:
            raise EvaluationError(
                f"{path} has the columns {rows.column_names}; needed: answer, and one of "
                f"{', '.join(TEXT_FIELDS)}"
            )
        return _from_rows(rows, name, text_field, "answer")
    if not path.exists():
        raise EvaluationError(f"benchmark {name}: {path} does not exist")
    return read_parquet(path)


def _from_hub(benchmark: Benchmark) -> list[Question]:
    import datasets

    if benchmark.hub is None:
        raise EvaluationError(f"{benchmark.name} is on no hub: write {benchmark.name}=PATH")
    identifier, configuration, split = benchmark.hub
    try:
        rows = datasets.load_dataset(identifier, configuration, split=split)
    except Exception as error:  # the hub client raises many kinds; each means the same here
        raise EvaluationError(
            f"cannot load {benchmark.name} from the hub data set {identifier!r} "
            f"({type(error).__name__}: {error}). Without network, or without access to a gated "
            f"data set, give a file: --benchmark {benchmark.name}=PATH"
        ) from error
    if benchmark.name == "gpqa-diamond":
        return [_multiple_choice(row) for row in rows]
    return _from_rows(rows, benchmark.name, benchmark.text_field, benchmark.answer_field)


def _from_rows(rows: Any, name: str, text_field: str, answer_field: str) -> list[Question]:
    questions = []
    for number, row in enumerate(rows):
        answers = answer_texts(row[answer_field])
        if not answers or not str(row[text_field]).strip():
            raise EvaluationError(f"benchmark {name}: row {number} has no question or no answer")
        text = str(row[text_field])
        questions.append(make_question(text=text, answers=answers, source=name, split="test"))
    return questions


def answer_texts(value: object) -> tuple[str, ...]:
    """A gold answer as texts: a list means that any matches; 142.0 stored as a float is 142."""
    if value is None:
        return ()
    if isinstance(value, float):
        return (str(int(value)) if value.is_integer() else repr(value),)
    if isinstance(value, str | int):
        return (str(value).strip(),) if str(value).strip() else ()
    if isinstance(value, Sequence):
        return tuple(dict.fromkeys(text for item in value for text in answer_texts(item)))
    raise EvaluationError(f"a gold answer of type {type(value).__name__} is not supported: {value}")


def _multiple_choice(row: Mapping[str, Any]) -> Question:
    """GPQA: four options in an order that is a pure function of their texts, never of a clock."""
    right = str(row["Correct Answer"]).strip()
    options = [right, *(str(row[f"Incorrect Answer {i}"]).strip() for i in (1, 2, 3))]
    text = str(row["Question"]).strip()

    def key(option: str) -> str:
        return hashlib.sha256(f"{text}\0{option}".encode()).hexdigest()

    options.sort(key=key)
    listed = "\n".join(f"({CHOICES[i]}) {option}" for i, option in enumerate(options))
    return make_question(
        text=f"{text}\n{listed}\nAnswer with the letter of the right option.",
        answers=(CHOICES[options.index(right)],),
        source="gpqa-diamond",
        split="test",
    )


def _digest(questions: Sequence[Question]) -> str:
    content = json.dumps([[q.text, list(q.answers)] for q in questions])
    return hashlib.sha256(content.encode()).hexdigest()
