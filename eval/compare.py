"""Compare two evaluated models over the same questions: difference, interval and p-value.

A and B are runs (their picked or last checkpoint) or folders DIR/SETTINGS/MODEL of evaluated
models. All numbers are paired by question, over all questions and per benchmark, level and
template. With --out the disagreements can be browsed in DIR/index.html.
"""

import argparse
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from eval import EvaluationError
from eval.command import add_settings, path, run_command
from eval.metrics import Difference, Estimate, accuracy, mean_over_questions, paired
from eval.report.answers import archive
from eval.report.data import CheckpointRow, RunData, asked, collect
from eval.report.page import Block, Page
from eval.report.tables import Table, interval, p_value, points, share
from eval.score import read_questions, require_one_grader
from eval.settings import differences
from prompt_aug.base.commands import existing, in_columns, make_parser
from prompt_aug.base.errors import UsageError
from prompt_aug.base.files import read_json, write_json, write_text
from prompt_aug.questions import VALIDATION
from recipe.run.folder import EvaluationFolder

GRADING = ("extraction:", "tolerance:", "verifiers:")  # settings of the grading
NOTE = (
    "Percent of samples right, ± one standard error clustered by question. B - A in points with "
    "its 95 % interval, paired by question; p by random signs, not corrected for the number of "
    "rows. The last column counts the questions on which B is better and worse."
)


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two models: its label, files and scores."""

    name: str
    folder: EvaluationFolder
    record: Mapping[str, Any]


@dataclass(frozen=True)
class Answered:
    """A question with its level, its template in A and B, and both shares of right samples."""

    benchmark: str
    level: int | None
    template: str
    a: float
    b: float


@dataclass(frozen=True, kw_only=True)
class ComparedGroup:
    """The comparison over some questions; `better` and `worse` count those where B is."""

    group: str
    a: Estimate
    b: Estimate
    difference: Difference
    better: int
    worse: int

    def cells(self) -> list[str]:
        counts, found = f"{self.better} / {self.worse}", self.difference
        sides = [str(found.questions), share(self.a), share(self.b)]
        return [self.group, *sides, points(found), interval(found), p_value(found), counts]


def read_side(given: Path, settings: str | None) -> Side:
    """Return the result of a run, or the evaluated model of a folder."""
    folder = EvaluationFolder(given)
    if not (folder.scores.exists() and folder.settings.exists()):
        below = sorted(p.parent for p in given.glob("*/*/scores.json") if p.parent.is_dir())
        if not (given / "config.yaml").exists() and below:
            raise EvaluationError(
                f"{given} holds several evaluations. Name one: {', '.join(map(str, below))}"
            )
        run = collect(given, settings)
        if not run.rows:
            raise EvaluationError(f"{given} has no scores: run `python -m eval.sweep {given}`")
        folder = run.evaluated[run.result.step]
    record = read_json(folder.scores)
    names = folder.root.resolve().parts
    owner = names[-4] if names[-3] == "eval" else names[-3]
    return Side(name=f"{owner}/{names[-1]}", folder=folder, record=record)


def answered(a: Side, b: Side) -> list[Answered]:
    """Return the questions of the benchmarks that both have. Raises EvaluationError."""
    one, other = a.record["benchmarks"], b.record["benchmarks"]
    if not (names := shared_benchmarks(a, b)):
        raise EvaluationError(f"no benchmark in common: {sorted(one)} and {sorted(other)}")
    asked_a, asked_b = ({n: asked(side[n]) for n in names} for side in (one, other))
    if changed := [n for n in names if asked_a[n]["sha256"] != asked_b[n]["sha256"]]:
        raise EvaluationError(
            f"{', '.join(changed)}: the two were asked different questions. Evaluate both with the "
            "same file and --max-questions."
        )
    require_one_grader({f"{s.name}/{n}": s.record["benchmarks"][n]["grader"]
                        for s in (a, b) for n in names})  # fmt: skip
    for name in names:
        changed = differences(asked_a[name], asked_b[name])
        if graded := [line for line in changed if line.startswith(GRADING)]:
            raise EvaluationError(
                f"{name}: the two were graded differently ({'; '.join(graded)}). Evaluate both "
                "with the same options"
            )
    found = []
    for name in names:
        theirs = _questions(b, name)
        for key, (question, mean) in _questions(a, name).items():
            other_question, other_mean = theirs[key]
            templates = dict.fromkeys((question["template"], other_question["template"]))
            level, template = question["level"], " -> ".join(templates)
            found.append(Answered(name, level, template, mean, other_mean))
    return found


def shared_benchmarks(a: Side, b: Side) -> list[str]:
    """Return the benchmarks that both have, without the one that picked a checkpoint."""
    names = [name for name in a.record["benchmarks"] if name in b.record["benchmarks"]]
    picked = {picked_by(a), picked_by(b)}
    return [name for name in names if name not in picked] or names


def picked_by(side: Side) -> str | None:
    """Return the validation questions by which a checkpoint of this run was picked."""
    path = side.folder.selection
    selection = read_json(path) if path.exists() else {}
    return selection["benchmark"] if selection.get("kind") == VALIDATION else None


def notes_of(a: Side, b: Side) -> list[str]:
    """Return what differs between the two evaluations, and what is left out."""
    one, other, names = a.record["benchmarks"], b.record["benchmarks"], shared_benchmarks(a, b)
    pairs = {"": (a.record["settings"], b.record["settings"])}
    pairs |= {f"{name}: ": (asked(one[name]), asked(other[name])) for name in names}
    notes = [f"{of}settings differ: {d}" for of, pair in pairs.items() for d in differences(*pair)]
    for label, alone in (("A", set(one) - set(other)), ("B", set(other) - set(one))):
        notes += [f"only in {label}: {', '.join(sorted(alone))}"] if alone else []
    if left := set(one) & set(other) - set(names):
        notes.append(f"left out, because a checkpoint was picked by it: {', '.join(sorted(left))}")
    if kept := {picked_by(a), picked_by(b)} & set(names):
        notes.append(f"a checkpoint was picked by {kept.pop()}: its score there is too high")
    return notes


def _questions(side: Side, name: str) -> dict[tuple[str, int], tuple[dict[str, Any], float]]:
    """Return (question, mean) by (uid, index), where the index counts questions of equal uid."""
    entry, seen = side.record["benchmarks"][name], Counter[str]()
    lines, found = read_questions(side.folder.benchmark(name), entry), {}
    for line, mean in zip(lines, entry["question_means"], strict=True):
        found[line["uid"], seen[line["uid"]]] = (line, float(mean))
        seen[line["uid"]] += 1
    return found


def compare_group(group: str, questions: Sequence[Answered]) -> ComparedGroup:
    """Compare B with A over `questions`. The benchmarks are strata of the standard errors."""
    parts = [list(part) for _, part in groupby(questions, lambda q: q.benchmark)]
    return ComparedGroup(
        group=group,
        a=mean_over_questions([[[q.a] for q in part] for part in parts]),
        b=mean_over_questions([[[q.b] for q in part] for part in parts]),
        difference=paired([q.a for q in questions], [q.b for q in questions]),
        better=sum(q.b > q.a for q in questions),
        worse=sum(q.b < q.a for q in questions),
    )


def compare(a: Side, b: Side) -> dict[str, list[ComparedGroup]]:
    """Return the rows by title: over all questions and benchmarks, by level, by template."""
    questions = answered(a, b)
    groups: dict[str, dict[str, list[Answered]]] = {
        title: defaultdict(list) for title in ("Benchmarks", "By level", "By template")
    }
    for question in questions:
        groups["Benchmarks"][question.benchmark].append(question)
        if question.level is not None:
            groups["By level"][f"{question.benchmark}, level {question.level}"].append(question)
        groups["By template"][question.template].append(question)
    rows = {
        title: [compare_group(name, part) for name, part in sorted(found.items())]
        for title, found in groups.items()
        if len(found) > 1
    }
    label = "all" if "Benchmarks" in rows else questions[0].benchmark
    return {"All questions": [compare_group(label, questions)], **rows}


def table(a: Side, b: Side, rows: Sequence[ComparedGroup]) -> Table:
    head = ["questions of", "n", f"A: {a.name}", f"B: {b.name}", "B - A", "95 % interval", "p"]
    return [[*head, "better / worse"], *(row.cells() for row in rows)]


def _as_run(side: Side, names: Sequence[str]) -> RunData:
    """Convert a side to a `RunData` with one checkpoint, for the page of the report."""
    step = int(side.record["step"] or 0)
    entries = {name: side.record["benchmarks"][name] for name in names}
    total = accuracy([[mean] for entry in entries.values() for mean in entry["question_means"]])
    row = CheckpointRow(step=step, benchmarks=entries, total=total, gain=None)
    return RunData(
        name=side.name, config={}, environment={}, metrics=[], rows=[row],
        eval_settings=side.record["settings"], evaluated={step: side.folder},
    )  # fmt: skip


def write_page(out: Path, a: Side, b: Side, rows: Mapping[str, Sequence[ComparedGroup]]) -> None:
    """Write index.html with the tables and all answers, and comparison.json."""
    runs = [_as_run(side, shared_benchmarks(a, b)) for side in (a, b)]
    samples = archive(runs)
    for point in samples.index["checkpoints"]:
        point["step"] = None  # the name of the side already contains it
    blocks = [Block(note="  \n".join([NOTE, *notes_of(a, b)]), level=2, id="checkpoints")]
    blocks += [Block(title, "", table(a, b, part)) for title, part in rows.items()]
    name = f"{a.name} and {b.name}"
    page = Page(name=name, runs=runs, blocks=blocks, samples=samples, rollouts=[[], []])
    write_text(out / "index.html", page.html())
    groups = {title: [asdict(row) for row in part] for title, part in rows.items()}
    write_json(out / "comparison.json", {"a": a.name, "b": b.name, "groups": groups})


def _compare(options: argparse.Namespace) -> None:
    a, b = (read_side(given, options.settings) for given in (options.a, options.b))
    if a.folder.root.resolve() == b.folder.root.resolve():
        raise UsageError(f"A and B are the same evaluation: {a.folder.root}")
    if a.name == b.name:  # one model under two settings
        roots = [side.folder.root.resolve() for side in (a, b)]
        common = os.path.commonpath(roots)
        a, b = (
            replace(s, name=str(r.relative_to(common))) for s, r in zip((a, b), roots, strict=True)
        )
    rows = compare(a, b)
    for title, part in rows.items():
        print(f"{title}\n{in_columns(table(a, b, part), rule=True)}\n")
    for line in notes_of(a, b):
        print(f"note: {line}")
    if options.out:
        write_page(options.out, a, b, rows)
        print(f"disagreements: {options.out / 'index.html'}?differ=yes#answers")


def main(arguments: Sequence[str] | None = None) -> int:
    example = "python -m eval.compare runs/grpo runs/prompt_aug --out compared"
    parser = make_parser("python -m eval.compare", __doc__, example=example)
    add = parser.add_argument
    add("a", type=existing, metavar="A", help="a run, or a folder of an evaluated model")
    add("b", type=existing, metavar="B", help="the other one; the difference is B - A")
    add_settings(parser)
    add("--out", type=path, help="folder of a page with the tables and all answers")
    return run_command(parser, arguments, _compare, "nothing is changed")


if __name__ == "__main__":
    sys.exit(main())
