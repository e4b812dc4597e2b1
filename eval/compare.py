"""Compare two evaluated models over the same questions: difference, interval and p-value.

A and B are runs (their picked or last checkpoint) or folders DIR/SETTINGS/MODEL of evaluated
models. All numbers are paired by question, over all questions and per benchmark and level. With
--out the disagreements can be browsed in DIR/index.html.
"""

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from eval import EvaluationError
from eval.command import add_settings, run_command
from eval.metrics import Difference, Estimate, of_means, over_questions, paired
from eval.report.answers import archive
from eval.report.data import CheckpointRow, RunData, collect, question_means
from eval.report.page import Block, Page
from eval.report.tables import Table, interval, p_value, points, share
from eval.score import Scored, require_one_grader
from eval.settings import differences
from prompt_aug.base.commands import existing, in_columns, make_parser, nonempty_path
from prompt_aug.base.errors import UsageError
from prompt_aug.base.files import read_json, write_json, write_text
from recipe.run.folder import EvaluationFolder

SAME = ("sha256:", "extraction:", "tolerance:", "verifiers:")  # the questions and their grading
NOTE = (
    "Percent of samples right, ± one standard error clustered by question. B - A in points with "
    "its 95 % interval, paired by question; p by random signs, not corrected for the number of "
    "rows. The last column counts the questions on which B is better and worse."
)


@dataclass(frozen=True)
class Side(Scored):
    """One of the two models, with its label."""

    name: str

    @property
    def picked_by(self) -> str | None:
        """The validation questions by which a checkpoint of its run was picked."""
        return self.selection.validated_by if self.selection else None


class Answered(NamedTuple):
    """A question with its level and both shares of right samples."""

    benchmark: str
    level: int | None
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


def read_side(given: Path, settings: str | None) -> Side:
    """Return the result of a run, or the evaluated model of a folder."""
    folder = EvaluationFolder(given)
    if folder.scores.exists() and folder.settings.exists():
        scored = Scored(folder, read_json(folder.scores))
    else:
        run = collect(given, settings)
        if not run.rows:
            raise EvaluationError(f"{given} has no scores: run `python -m eval.sweep {given}`")
        scored = run.result.scored
    *above, settings_name, model = scored.folder.root.resolve().parts
    owner = above[-2] if above[-1] == "eval" else above[-1]
    return Side(scored.folder, scored.record, f"{owner}/{settings_name}/{model}")


def answered(a: Side, b: Side) -> list[Answered]:
    """Return the questions of the benchmarks that both have. Raises EvaluationError."""
    if not (names := shared_benchmarks(a, b)):
        raise EvaluationError(
            f"no benchmark in common: {sorted(a.benchmarks)} and {sorted(b.benchmarks)}"
        )
    require_one_grader({f"{s.name}/{n}": s.benchmarks[n]["grader"] for s in (a, b) for n in names})
    questions = []
    for name in names:
        changed = differences(a.benchmarks[name]["settings"], b.benchmarks[name]["settings"])
        if changes := [line for line in changed if line.startswith(SAME)]:
            raise EvaluationError(
                f"{name}: the two were asked other questions or graded differently "
                f"({'; '.join(changes)}). Evaluate both with the same file and options."
            )
        theirs = _questions(b, name)
        for key, (question, mean) in _questions(a, name).items():
            questions.append(Answered(name, question["level"], mean, theirs[key][1]))
    return questions


def shared_benchmarks(a: Side, b: Side) -> list[str]:
    """Return the benchmarks that both have, without the one that picked a checkpoint."""
    names = [name for name in a.benchmarks if name in b.benchmarks]
    return [name for name in names if name not in (a.picked_by, b.picked_by)] or names


def notes_of(a: Side, b: Side) -> list[str]:
    """Return what differs between the two evaluations, and what is left out."""
    in_a, in_b, names = set(a.benchmarks), set(b.benchmarks), shared_benchmarks(a, b)
    pairs = {"": (a.record["settings"], b.record["settings"])}
    pairs |= {f"{n}: ": (a.benchmarks[n]["settings"], b.benchmarks[n]["settings"]) for n in names}
    notes = [f"{of}settings differ: {d}" for of, pair in pairs.items() for d in differences(*pair)]
    for place, listed in (
        ("only in A", in_a - in_b),
        ("only in B", in_b - in_a),
        ("left out, because a checkpoint was picked by it", in_a & in_b - set(names)),
    ):
        notes += [f"{place}: {', '.join(sorted(listed))}"] if listed else []
    if kept := {a.picked_by, b.picked_by} & set(names):
        notes.append(f"a checkpoint was picked by {kept.pop()}: its score there is too high")
    return notes


def _questions(side: Side, name: str) -> dict[tuple[str, int], tuple[dict[str, Any], float]]:
    """Return (question, mean) by (uid, index), where the index counts questions of equal uid."""
    seen, by_key = Counter[str](), {}
    for line, mean in side.means(name):
        by_key[line["uid"], seen[line["uid"]]] = (line, float(mean))
        seen[line["uid"]] += 1
    return by_key


def compare_group(group: str, questions: Sequence[Answered]) -> ComparedGroup:
    """Compare B with A over `questions`. The benchmarks are strata of the standard errors."""
    parts = [list(part) for _, part in groupby(questions, lambda q: q.benchmark)]
    return ComparedGroup(
        group=group,
        a=over_questions([of_means([q.a for q in part]) for part in parts]),
        b=over_questions([of_means([q.b for q in part]) for part in parts]),
        difference=paired([q.a for q in questions], [q.b for q in questions]),
        better=sum(q.b > q.a for q in questions),
        worse=sum(q.b < q.a for q in questions),
    )


def compare(a: Side, b: Side) -> dict[str, list[ComparedGroup]]:
    """Return the rows by title: over all questions, by benchmark, by level."""
    questions = answered(a, b)
    groups: dict[str, dict[str, list[Answered]]] = {
        title: defaultdict(list) for title in ("Benchmarks", "By level")
    }
    for question in questions:
        groups["Benchmarks"][question.benchmark].append(question)
        if question.level is not None:
            groups["By level"][f"{question.benchmark}, level {question.level}"].append(question)
    rows = {
        title: [compare_group(name, part) for name, part in sorted(parts.items())]
        for title, parts in groups.items()
        if len(parts) > 1
    }
    label = "all" if "Benchmarks" in rows else questions[0].benchmark
    return {"All questions": [compare_group(label, questions)], **rows}


def table(a: Side, b: Side, rows: Sequence[ComparedGroup]) -> Table:
    head = ["questions of", "n", f"A: {a.name}", f"B: {b.name}", "B - A", "95 % interval", "p"]
    cells = [[*head, "better / worse"]]
    for row in rows:
        of, difference = [row.group, str(row.difference.questions)], row.difference
        gain = [points(difference), interval(difference), p_value(difference)]
        counts = f"{row.better} / {row.worse}"
        cells.append([*of, share(row.a), share(row.b), *gain, counts])
    return cells


def _as_run(side: Side, names: Sequence[str]) -> RunData:
    """Convert a side to a `RunData` with one checkpoint, for the page of the report."""
    entries = {name: side.benchmarks[name] for name in names}
    total = of_means(question_means(entries, entries))
    row = CheckpointRow(int(side.record["step"] or 0), side, entries, total, gain=None)
    return RunData(name=side.name, config={}, environment={}, metrics=[], rows=[row])


def write_page(out: Path, a: Side, b: Side, rows: Mapping[str, Sequence[ComparedGroup]]) -> None:
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
    add("--out", type=nonempty_path, help="folder of a page with the tables and all answers")
    return run_command(parser, arguments, _compare, "nothing is changed")


if __name__ == "__main__":
    sys.exit(main())
