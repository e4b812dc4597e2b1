"""Grade samples and write scores with their settings and denominators.

`python -m eval.score FOLDER` grades the stored samples again, for example after a change of the
grader. It needs no model and no engine.
"""

import argparse
import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from eval.ask.engine import SAMPLE_KEY, SampleKey
from eval.ask.questions import TOO_LONG, Lines
from eval.ask.samples import GRADE, QUESTION, Sample, SampleFiles, read_records
from eval.scores import metrics
from prompt_aug.base.commands import existing, make_parser, python_command
from prompt_aug.base.errors import UserError
from prompt_aug.base.estimates import all_table, no_signal_table, pass_table, powers
from prompt_aug.base.files import FileError, read_json, read_lines, write_json, write_lines
from prompt_aug.base.progress import Progress
from prompt_aug.extraction import BESIDE, extraction, verdicts
from prompt_aug.grading import VERSION, Grade, grade_many, normal_form
from prompt_aug.grading.extract import extract
from prompt_aug.grading.normalize import canonical
from prompt_aug.grading.units import split_unit, units_contradict
from prompt_aug.prompts import Prompts
from prompt_aug.questions import VALIDATION
from prompt_aug.templates import Template
from prompt_aug.typed import Record, Share, Text, read_record, read_typed, stored
from prompt_aug.verifiers import Verified, Verifiers, verifiers_of
from recipe.machine import environment
from recipe.run.folder import BenchmarkFolder, EvaluationFolder

REFLECTION = ("rethink", "recheck", "recalculate")  # counted by arXiv 2504.20571, Figure 4
# A gold with a decimal point or a power of ten is a measurement, any other is exact.
MEASURED = re.compile(r"\d\.\d|\.\d|\d[eE][-+]?\d|10\s*\^")
UNASKED = {"tokens": 0, "finish_reason": TOO_LONG, "correct": False, "status": TOO_LONG}


def _key(question: Mapping[str, Any], sample: int) -> SampleKey:
    return question["uid"], question["prompt_sha256"], sample


def grade_samples(
    questions: Sequence[Mapping[str, Any]],
    samples: Mapping[SampleKey, Sample],
    template: Template,
    settings: Mapping[str, Any],
    title: str,
) -> Lines:
    """Grade the first ``settings["samples"]`` samples of each question, as training does.

    Each line also has the verdicts under `BESIDE`. A wrong number within the relative `tolerance`
    of a decimal gold counts as right. A question with a `row` is graded by its verifier.
    """
    wanted: dict[SampleKey, Mapping[str, Any]] = {
        _key(question, sample): question
        for question in questions
        for sample in range(settings["samples"] if question["asked"] else 0)
    }
    if lost := [key for key in wanted if key not in samples]:
        raise UserError(f"{title}: {len(lost)} samples are missing: run eval.sweep again")
    grades: dict[SampleKey, Grade] = {}
    how = extraction(settings["extraction"], template)
    with Progress(title, len(wanted), "samples") as bar:
        if own := [key for key, question in wanted.items() if "row" in question]:
            rows = [(samples[key]["response"], wanted[key]["row"]) for key in own]
            made = _verifiers(settings).grade_many(rows, how, on_grade=lambda _: bar.update())
            grades.update(zip(own, made, strict=True))
        rest = {key: question for key, question in wanted.items() if key not in grades}
        answers = [
            (samples[key]["response"], q["gold"], q["question"], q.get("options", ()))
            for key, q in rest.items()
        ]
        graded = grade_many(answers, extraction=how, on_grade=lambda _: bar.update())
        grades.update(zip(rest, graded, strict=True))
    return [
        _graded_line(key, grades[key], samples[key], question, template, settings)
        for key, question in wanted.items()
    ]


def _verifiers(settings: Mapping[str, Any]) -> Verifiers:
    return verifiers_of(settings["verifiers"]["functions"], settings["verifiers"]["limits"])


def _graded_line(
    key: SampleKey,
    grade: Grade,
    sample: Sample,
    question: Mapping[str, Any],
    template: Template,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    line = {
        **dict(zip(SAMPLE_KEY, key, strict=True)),
        "correct": bool(grade.correct),
        "extracted": grade.extracted,
        "form": None if grade.extracted is None else normal_form(grade.extracted),
        "status": str(grade.status),
    }
    if not sample["response"].strip():
        line["status"] = sample.get("endpoint_status", line["status"])
    if isinstance(grade, Verified):
        line["under"] = dict.fromkeys(BESIDE, line["correct"])  # no extraction changes it
        line |= {"parts": {"score": grade.score, **grade.parts}, "detail": grade.detail}
    else:
        under = verdicts(settings["extraction"], grade, sample, question, template)
        line["under"] = under
        tolerance = settings.get("tolerance")
        if tolerance and grade.status != "echo":  # which earns nothing, however close
            if is_close(grade.extracted, question["gold"], tolerance):
                line |= {"correct": True, "status": "correct"}
            for name in BESIDE:
                answer = extract(sample["response"], extraction(name, template))
                under[name] |= is_close(answer, question["gold"], tolerance)
    return line


def is_close(answer: str | None, golds: Sequence[str], tolerance: float) -> bool:
    """Return True if `answer` is a number within `tolerance` of one of the decimal `golds`.

    Units that contradict the gold's are wrong at any distance, as they are for the grader. Percent
    may be meant as hundredths, as for the grader: 45.1 % is near 0.45.
    """
    number = None if answer is None else _number(answer)
    if number is None:
        return False
    for gold in golds:
        if MEASURED.search(gold) and (wanted := _number(gold)):
            readings = (1, 100) if "%" in str(answer) and "%" not in gold else (1,)
            error = min(abs(number[0] / reading - wanted[0]) for reading in readings)
            near = error <= Fraction(str(tolerance)) * abs(wanted[0])
            if near and not units_contradict(number[1], wanted[1]):
                return True
    return False


def _number(text: str) -> tuple[Fraction, str | None] | None:
    """Return (value, unit) of a number, None for any other text."""
    try:  # an irrational number has the form 3.46+i0
        value = Fraction(normal_form(text).removesuffix("+i0"))
        return value, split_unit(canonical(text))[1]
    except (ValueError, ArithmeticError):
        return None


def join(
    questions: Sequence[Mapping[str, Any]],
    samples: Mapping[SampleKey, Sample],
    grades: Sequence[Mapping[str, Any]],
    count: int,
) -> list[Lines]:
    """Return the `count` samples of each question with their verdicts, in order."""
    graded = {tuple(grade[name] for name in SAMPLE_KEY): grade for grade in grades}

    def line(question: Mapping[str, Any], sample: int) -> dict[str, Any]:
        key = _key(question, sample)
        if not question["asked"]:
            return {**UNASKED, "sample": sample}
        if key not in samples or key not in graded:
            raise UserError(
                f"sample {sample} of question {key[0]} is missing or not graded: run eval.sweep"
            )
        return {**samples[key], **graded[key]}

    return [[line(question, sample) for sample in range(count)] for question in questions]


def order_of(questions: Lines) -> str:
    """Return the digest of the questions in their order, which `question_means` share."""
    return hashlib.sha256("\n".join(q["uid"] for q in questions).encode()).hexdigest()


def read_questions(folder: BenchmarkFolder) -> Lines:
    return read_records(folder.questions, QUESTION)


ASKED = dict.fromkeys(("questions", "of", "samples"), int)
ENTRY = {  # types of the keys of a benchmark's scores.json
    **{"model": dict[str, Any], "path": str, "settings": stored(*ASKED, **ASKED)},
    **{"grader": str, "samples": int},
    **{"accuracy": float, "standard_error": float | None, "question_means": list[Share]},
    **{"pass_at_k": dict[str, float], "status_rates": dict[str, float], "truncation_rate": float},
    "mean_tokens": float | None,
}
_entry: Any = stored(*ENTRY, **ENTRY)
SCORES = {  # of a checkpoint's
    **dict.fromkeys(("identity", "environment"), dict[str, Any]),
    "settings": stored("template", template=str),
    **{"grader": str, "benchmarks": dict[str, _entry]},
}


def entry_of(folder: BenchmarkFolder) -> dict[str, Any]:
    return read_record(folder.scores, *ENTRY, **ENTRY)


def read_scores(folder: EvaluationFolder) -> dict[str, Any]:
    return read_record(folder.scores, *SCORES, **SCORES)


class Selection(Record):
    """The checkpoint that eval.selection picked; `scores` are the accuracies by step."""

    step: int
    benchmark: Text
    kind: Literal["test", "validation"]  # whether its questions were held out for validation
    reason: str  # why they were not
    scores: dict[str, float]

    @property
    def validated_by(self) -> str | None:
        """The benchmark, if it is a validation split."""
        return self.benchmark if self.kind == VALIDATION else None


@dataclass(frozen=True)
class Scored:
    """A scored checkpoint. `record` is its scores.json."""

    folder: EvaluationFolder
    record: Mapping[str, Any]

    @property
    def benchmarks(self) -> Mapping[str, Mapping[str, Any]]:
        return self.record["benchmarks"]

    def asked(self, benchmark: str) -> dict[str, Any]:
        """Return how a benchmark was asked and graded, without the seed, which only draws."""
        entry = self.benchmarks[benchmark]
        how = {**self.record["settings"], **entry["settings"], "order": entry.get("order")}
        return {name: value for name, value in how.items() if name != "seed"}

    def only(self, names: Iterable[str]) -> "Scored":
        entries = {name: self.benchmarks[name] for name in names}
        return Scored(self.folder, {**self.record, "benchmarks": entries})

    @property
    def selection(self) -> Selection | None:
        """The result of eval.selection under these settings."""
        path = self.folder.selection
        return read_typed(path, Selection, UserError) if path.exists() else None

    def questions(self, benchmark: str) -> Lines:
        """Return the questions of its `question_means`, in their order.

        A sweep rewrites the questions before it samples, and the scores after grading. Raises
        UserError between the two.
        """
        folder, entry = self.folder.benchmark(benchmark), self.benchmarks[benchmark]
        questions = read_questions(folder)
        if order_of(questions) != entry.get("order"):
            raise UserError(
                f"{folder.root}: its sweep is not finished, or older than this version. Run "
                f"eval.sweep again, or `{python_command('eval.score', self.folder.root)}`."
            )
        return questions

    def means(self, benchmark: str) -> Iterator[tuple[dict[str, Any], float]]:
        """Yield each question with its share of right samples."""
        means = self.benchmarks[benchmark]["question_means"]
        return zip(self.questions(benchmark), means, strict=True)

    def samples(self, benchmark: str) -> Iterator[tuple[dict[str, Any], Lines]]:
        files, entry = self.folder.benchmark(benchmark), self.benchmarks[benchmark]
        questions, samples = self.questions(benchmark), SampleFiles(files, entry["model"]).load()
        lines = read_records(files.grades, GRADE, first=2)
        table = join(questions, samples, lines, entry["settings"]["samples"])
        return zip(questions, table, strict=True)


def score(table: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Return the scores of one benchmark. Rates are shares of all samples, in [0, 1].

    `endpoint_statuses` lists the questions for which an endpoint gave no whole answer.
    """
    correct = np.array([[float(sample["correct"]) for sample in row] for row in table])
    answers = [[sample.get("form") for sample in row] for row in table]
    lines = [sample for row in table for sample in row]
    statuses, total = Counter(line["status"] for line in lines), len(lines)
    texts = (line.get("response", "").lower() for line in lines)
    tokens = [n for line in lines if (n := line["tokens"]) is not None]  # a server may report none
    parts: dict[str, list[float]] = defaultdict(list)  # of the results of verifiers
    endpoint: dict[str, list[str]] = defaultdict(list)  # uids by status
    for line in lines:
        if "endpoint_status" in line:
            endpoint[line["endpoint_status"]].append(line["uid"])
        for name, value in line.get("parts", {}).items():
            parts[name].append(value)
    part_means = {name: float(np.mean(values)) for name, values in sorted(parts.items())}
    no_signal, ks = metrics.at_powers(correct, no_signal_table), powers(len(table[0]))
    return {
        **asdict(metrics.accuracy(correct)),
        "samples": total,
        "accuracy_under": {
            name: sum(line.get("under", {}).get(name, False) for line in lines) / total
            for name in BESIDE
        },
        "interval": list(metrics.accuracy_interval(correct)),
        "pass_at_k": metrics.at_powers(correct, pass_table),
        "pass_all_k": metrics.at_powers(correct, all_table),
        "no_signal_k": {k: v for k, v in no_signal.items() if k != "1"},  # one has no group
        "majority_at_k": {str(k): metrics.majority(answers, correct, k) for k in ks},
        "status_rates": {name: count / total for name, count in sorted(statuses.items())},
        **({"parts": part_means} if part_means else {}),
        **({"endpoint_statuses": endpoint} if endpoint else {}),
        "truncation_rate": sum(line["finish_reason"] == "length" for line in lines) / total,
        "reflection_rate": sum(any(w in text for w in REFLECTION) for text in texts) / total,
        "mean_tokens": float(np.mean(tokens)) if tokens else None,
        "question_means": correct.mean(axis=1).tolist(),
    }


def read_entry(
    folder: EvaluationFolder, name: str, identity: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the scores of a benchmark that `combine` has included, else None.

    None also for other weights than `identity`, other settings or questions, or another grader.
    """
    files = folder.benchmark(name)
    try:
        entry = entry_of(files)
        asked = (entry["model"], entry["settings"], entry["grader"], entry["order"])
        order = order_of(read_lines(files.questions))
        same = asked == (identity, settings, VERSION, order)
        return entry if same and name in read_json(folder.scores)["benchmarks"] else None
    except (FileError, KeyError):
        return None


def score_benchmark(
    folder: BenchmarkFolder,
    identity: Mapping[str, Any],
    template: Template,
    questions: Lines,
    samples: Mapping[SampleKey, Sample],
    *,
    settings: Mapping[str, Any],
    path: str,
) -> None:
    """Grade the samples of one benchmark. Write grades.jsonl, then scores.json."""
    settings = {"extraction": "default", **settings}
    if used := settings.get("verifiers"):  # their files may have changed since
        settings["verifiers"] = _verifiers(settings).record(set(used["functions"]))
    grades = grade_samples(questions, samples, template, settings, f"grade {folder.root.name}")
    head = {"grader": VERSION, "model": dict(identity)}
    write_lines(folder.grades, [head, *grades])
    table = join(questions, samples, grades, settings["samples"])
    # The digest of a benchmark does not depend on its order, and `question_means` have it.
    record = {"settings": settings, "path": path, **head, "order": order_of(questions)}
    write_json(folder.scores, {**record, **score(table)})


def combine(
    folder: EvaluationFolder, step: int | None, model: str, identity: Mapping[str, Any]
) -> dict[str, Any]:
    """Write scores.json of a checkpoint from the entries of its benchmarks, and return it.

    Entries of other weights than `identity`, or of another grader, are left out. Other workers may
    finish benchmarks at the same time, so the entries are read again until nothing has changed.
    """
    while True:
        stored = _entries(folder, identity)
        entries = {name: entry for name, entry in stored.items() if entry["grader"] == VERSION}
        if old := sorted(set(stored) - set(entries)):
            print(
                f"note: {folder.root}: left out, because another version of the grader has graded "
                f"it: {', '.join(old)}. Run `{python_command('eval.score', folder.root)}`."
            )
        if not entries:
            raise UserError(f"{folder.root}: no scores of this model. Run eval.sweep again.")
        parts = [metrics.of_means(entry["question_means"]) for entry in entries.values()]
        record = {
            "step": step,
            "model": model,
            "identity": dict(identity),
            "settings": read_json(folder.settings),
            "grader": VERSION,
            "benchmarks": entries,
            "average": {
                "benchmarks": sorted(entries),
                "per_question": asdict(metrics.over_questions(parts)),
                "per_benchmark": asdict(metrics.over_benchmarks(parts)),
            },
            "environment": environment.describe(),
        }
        write_json(folder.scores, record)
        if _entries(folder, identity) == stored:
            return record


def _entries(folder: EvaluationFolder, identity: Mapping[str, Any]) -> dict[str, Any]:
    entries = dict[str, Any]()
    for name in folder.benchmarks():
        try:
            entry = entry_of(folder.benchmark(name))
        except FileError as error:  # the others' scores do not wait for it
            print(f"note: {folder.root}: {name} is left out: {error}")
            continue
        if entry["model"] == dict(identity):
            entries[name] = entry
    return entries


def require_one_grader(versions: Mapping[str, str]) -> None:
    """Reject scores of different grader versions; `versions` maps a name to its version."""
    if len(set(versions.values())) > 1:
        listed = ", ".join(f"{name}: {version[:8]}" for name, version in sorted(versions.items()))
        raise UserError(
            f"graded by different versions of the grader ({listed}): run `python -m eval.score "
            "FOLDER`, which grades the stored samples again without an engine"
        )


def regrade(folder: EvaluationFolder) -> dict[str, Any]:
    bank, before = Prompts.read(folder.prompts).bank, read_scores(folder)
    for name, entry in _entries(folder, before["identity"]).items():
        files = folder.benchmark(name)
        questions, samples = read_questions(files), SampleFiles(files, entry["model"]).load()
        if order_of(questions) != entry.get("order", order_of(questions)):
            raise UserError(
                f"{files.questions}: {len(questions)} questions, not the "
                f"{entry['settings']['questions']} of its scores in their order. Run eval.sweep "
                "again, which writes them from the benchmark."
            )
        record = {key: entry[key] for key in ("settings", "path")}
        template = bank[questions[0]["template"]]
        score_benchmark(files, entry["model"], template, questions, samples, **record)
    return combine(folder, before["step"], before["model"], before["identity"])


def _regrade_all(options: argparse.Namespace) -> None:
    # Only the folder of a checkpoint has a settings file beside it, that of a benchmark has none.
    found = options.folder.rglob("scores.json")
    paths = sorted(found, key=lambda p: (p.parents[1], len(p.parent.name), p))  # step 9, step 10
    folders = [f for path in paths if (f := EvaluationFolder(path.parent)).settings.exists()]
    if not folders:
        raise UserError(f"no scores.json under {options.folder}: run eval.sweep first")
    for folder in folders:
        average = regrade(folder)["average"]["per_question"]
        print(f"{folder.root}: accuracy {average['accuracy']:.4f}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser("python -m eval.score", __doc__, example="python -m eval.score runs/toy")
    parser.add_argument("folder", type=existing, help="a run, its eval/, or any folder inside it")
    return parser.run(arguments, _regrade_all, "what was graded is saved")
