"""Compare two evaluated models, or arms of several runs: difference, interval and p-value.

A and B are runs (their picked or last checkpoint) or folders DIR/SETTINGS/MODEL of evaluated
models. All numbers are paired by question, over all questions and per benchmark and level. With
--out the disagreements can be browsed in DIR/index.html.

--arm NAME RUN RUN ... is one arm, each run with a seed of its own. The others are compared with the
first one: intervals for new seeds and new questions, runs paired by seed. Without RUNs an arm is
read from --lines. --protocol prints the contrasts and the verdict of a protocol by its lines.
"""

import argparse
import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from eval.ask.settings import differences
from eval.scores.metrics import Difference, Estimate, of_means, over_questions, paired
from eval.scores.score import Scored, read_scores, require_one_grader
from eval.show import add_settings, arms
from eval.show.answers import archive
from eval.show.data import CheckpointRow, RunData, collect, question_means, scored_steps
from eval.show.page import Block, Page
from eval.show.tables import Table, interval, p_value, points, share
from prompt_aug.base.commands import existing, in_columns, make_parser, nonempty_path
from prompt_aug.base.errors import UsageError, UserError
from prompt_aug.base.files import write_json, write_text
from prompt_aug.typed import parse_typed
from recipe.run.folder import CHECKPOINT, EvaluationFolder, RunFolder, numbered

SAME = ("sha256:", "extraction:", "tolerance:", "verifiers:")  # the questions and their grading
NOTE = (
    "Percent of samples right, ± one standard error clustered by question. B - A in points with "
    "its 95 % interval, paired by question; p by random signs, not corrected for the number of "
    "rows. The last column counts the questions on which B is better and worse."
)


@dataclass(frozen=True)
class Side(Scored):
    """One of the two models, with its label, and a note on the run's other checkpoints."""

    name: str
    unscored: str | None = None

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
    folder, note = EvaluationFolder(given), None
    if folder.scores.exists() and folder.settings.exists():
        scored = Scored(folder, read_scores(folder))
    else:
        run = collect(given, settings)
        if not run.rows:
            raise UserError(f"{given} has no scores: run `python -m eval.sweep {given}`")
        scored, note = run.result.scored, unscored(given, [row.step for row in run.rows])
    *above, settings_name, model = scored.folder.root.resolve().parts
    owner = above[-2] if above[-1] == "eval" else above[-1]
    return Side(scored.folder, scored.record, f"{owner}/{settings_name}/{model}", note)


def unscored(run: Path, scored: Collection[int]) -> str | None:
    """Return a note on the checkpoints without scores: the sweep may not be finished."""
    files = RunFolder(run)
    saved = numbered(files.checkpoints, CHECKPOINT) | numbered(files.exports, "step_")
    steps = [str(step) for step in sorted(saved) if step not in scored]
    return f"{run}: not evaluated: steps {', '.join(steps)}. Run eval.sweep." if steps else None


def answered(a: Side, b: Side) -> list[Answered]:
    """Return the questions of the benchmarks that both have. Raises UserError."""
    if not (names := shared_benchmarks(a, b)):
        raise UserError(
            f"no benchmark in common: {sorted(a.benchmarks)} and {sorted(b.benchmarks)}"
        )
    require_one_grader({f"{s.name}/{n}": s.benchmarks[n]["grader"] for s in (a, b) for n in names})
    questions = []
    for name in names:
        changed = differences(a.benchmarks[name]["settings"], b.benchmarks[name]["settings"])
        if changes := [line for line in changed if line.startswith(SAME)]:
            raise UserError(
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
    return notes + [note for note in (a.unscored, b.unscored) if note]


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
    sides = [given for given in (options.a, options.b) if given]
    if (bool(sides), bool(options.arm), bool(options.protocol)).count(True) != 1 or len(sides) == 1:
        raise UsageError("give one of: two runs A B, --arm twice or more, --protocol FILE")
    of_arms = options.lines or options.set or options.step is not None or options.k != [1]
    if of_arms and not options.arm:
        raise UsageError("--lines, --set, --step and --k: only with --arm")
    if options.out and not sides:
        raise UsageError("--out: only with two runs A B")
    if options.protocol:
        return _compare_protocols(options.protocol)
    if options.arm:
        return _compare_arms(options)
    a, b = (read_side(given, options.settings) for given in sides)
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
    return None


def _compare_protocols(paths: Sequence[Path]) -> None:
    """Print the contrasts whose arms have all their runs: no verdict on a part of them.

    A pilot or search, which has no primary contrast, shows the runs that it has; others step 0.
    """
    studies = [(of, lines, of.lacking(lines)) for of, lines in map(arms.read_protocol, paths)]
    for protocol, _, lacking in studies:
        if runs := [run for of in lacking.values() for run in of]:
            print(f"note: {protocol.claim}: not complete, runs without lines: {runs}")
    primary = [
        arms.compare_arms(lines, protocol.primary)
        for protocol, lines, lacking in studies
        if protocol.primary and not protocol.primary.arms & lacking.keys()
    ]
    if primary:  # before an exploratory contrast can fail
        print(arms.described(primary, "Primary contrasts"))
    for protocol, lines, lacking in studies:
        if each := [line for line in lines if not (protocol.primary and line["step"])]:
            begun = {*itertools.chain.from_iterable(lacking.values())}
            print(arms.each_run(each, f"{protocol.claim}, each run", begun))
        whole = [c for c in protocol.exploratory if not c.arms & lacking.keys()]
        if others := [arms.compare_arms(lines, contrast) for contrast in whole]:
            print(arms.described(others, f"{protocol.claim}, exploratory"))
        for gate in (gate for gate in protocol.gates if not gate.arms & lacking.keys()):
            print(arms.gate_text(lines, gate))


def _compare_arms(options: argparse.Namespace) -> None:
    if missing := [str(path) for path in options.lines if not path.is_file()]:
        raise UsageError(f"--lines {missing[0]}: no such file")
    lines = [line for path in options.lines for line in arms.read_results(path)]
    for name, *runs in options.arm:
        for run in map(Path, runs):
            scored = scored_steps(run, options.settings)
            lines += arms.lines_of(name, run, scored)
            if note := unscored(run, scored):
                print(f"note: {note}")
    names = [name for name, *_ in options.arm]
    if len({*names}) < len(names):
        raise UsageError("--arm: a name twice. Give all runs of an arm at once.")
    lines = [line for line in lines if line["arm"] in names]
    sets = options.set or sorted({line["set"] for line in lines})
    steps = [{line["step"] for line in lines if line["arm"] == name} for name in names]
    if len(names) < 2 or not (common := set.intersection(*steps)):
        raise UsageError(f"--arm: two arms with a step in common are needed, not {names}")
    step = max(common) if options.step is None else options.step
    compared = []
    for name, of, k in itertools.product(names[1:], sets, options.k):
        given = {"arm": name, "baseline": names[0], "set": of, "step": step, "k": k}
        contrast = parse_typed(given, arms.Contrast, "--arm", UserError)
        compared.append(arms.compare_arms(lines, contrast))
    print(arms.described(compared, "Arms"))


def main(arguments: Sequence[str] | None = None) -> int:
    example = """python -m eval.compare runs/grpo runs/prompt_aug --out compared
  python -m eval.compare --arm grpo runs/g0 runs/g1 --arm cw_grpo runs/c0 runs/c1 --k 1 8"""
    parser = make_parser("python -m eval.compare", __doc__, example=example)
    add = parser.add_argument
    add("a", type=existing, nargs="?", metavar="A", help="a run or evaluated model")
    add("b", type=existing, nargs="?", metavar="B", help="the other; the difference is B - A")
    add_settings(parser)
    add("--out", type=nonempty_path, help="folder of a page with the tables and all answers")
    add("--arm", nargs="+", action="append", default=[], metavar=("NAME", "RUN"),
        help="an arm and its runs; the first arm is the baseline")  # fmt: skip
    add("--lines", nargs="+", type=Path, default=[], help="JSONL files of scripts/study.py")
    add("--protocol", nargs="+", type=Path, default=[], help="yaml files beside their lines")
    add("--set", nargs="+", help="of --arm: question sets (default: all)")
    add("--step", type=int, help="of --arm: the step (default: the last one of all arms)")
    add("--k", nargs="+", type=int, default=[1], help="of --arm: k of pass@k")
    return parser.run(arguments, _compare, "nothing is changed")
