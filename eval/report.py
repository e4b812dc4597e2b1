"""Write the report of one or several runs: index.html, a PNG and a CSV of each figure.

index.html holds curves, samples and formulas, and needs no network. summary.json is written last.
--log draws the log of any verl run beside them, from a run folder that it writes into OUT/logs.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from eval.show import add_settings, charts, tables
from eval.show.answers import archive, rollouts
from eval.show.data import RunData, collect, common_settings, side_by_side, summary
from eval.show.figures import figures
from eval.show.logs import as_run
from eval.show.page import Page, results
from prompt_aug.base.commands import existing, in_columns, make_parser, nonempty_path
from prompt_aug.base.errors import UsageError, UserError
from prompt_aug.base.files import replacing, write_json, write_text
from recipe.run.folder import RunFolder


def build(
    paths: Sequence[Path], out: Path | None = None, settings: str | None = None
) -> list[RunData]:
    """Write the whole report into `out` (one run: RUN/report) and return its data."""
    if out is None and len(paths) > 1:
        raise UsageError("a report of several runs needs --out FOLDER")
    folder = out or RunFolder(paths[0]).report
    preferred = common_settings(paths) if len(paths) > 1 else None
    runs = [collect(run, settings, preferred) for run in paths]
    if len({run.name for run in runs}) != len(runs):
        raise UserError(f"two runs have the same name: {[run.name for run in runs]}")
    runs = side_by_side(runs)
    numbers = [summary(run) for run in runs]
    drawn, absent = figures(runs)
    samples, read = archive(runs), [rollouts(run) for run in paths]
    for run, lines in zip(runs, read, strict=True):
        missing = [] if lines else ["no sample rollouts: rollouts/step_N.jsonl is missing"]
        run.notes.extend([*absent, *missing])
    name = " and ".join(run.name for run in runs) if len(runs) < 4 else f"{len(runs)} runs"
    for figure in drawn:
        with replacing(folder / f"{figure.name}.png") as file:
            file.write(charts.png(figure))
        write_text(folder / f"{figure.name}.csv", figure.as_csv())
    page = Page(
        name=name,
        runs=runs,
        blocks=results(runs),
        samples=samples,
        headline=tables.headline(runs[0], numbers[0]) if len(runs) == 1 else (),
        figures=drawn,
        rollouts=read,
    )
    write_text(folder / "index.html", page.html())
    by_name = {run.name: row for run, row in zip(runs, numbers, strict=True)}
    write_json(folder / "summary.json", numbers[0] if len(runs) == 1 else by_name)
    return runs


def _report(options: argparse.Namespace) -> None:
    if not options.runs and not options.log:
        raise UsageError("name a RUN, or --log FILE")
    if options.log and not options.out:
        raise UsageError("--log FILE needs --out FOLDER")
    logs = [as_run(log, options.out / "logs" / log.stem) for log in options.log]
    runs = build([*options.runs, *logs], options.out, options.settings)
    for of, table in tables.checkpoints_of_all(runs):
        print("\n".join(filter(None, (of, in_columns(table, rule=True)))))
    for run in runs:
        name = f"{run.name}: " * (len(runs) > 1)
        if run.rows:
            settings = run.eval_settings
            text = f"template {settings['template']}, temperature {settings['temperature']:g}"
            print(f"{name}percent right, evaluated with {text}; training prints other accuracies")
        for note in run.notes:
            print(f"note: {name}{note}")
    folder = options.out or RunFolder(options.runs[0]).report
    print(f"report: {folder / 'index.html'}")


def main(arguments: Sequence[str] | None = None) -> int:
    example = "python -m eval.report runs/grpo runs/prompt_aug --out compared"
    parser = make_parser("python -m eval.report", __doc__, example=example)
    add = parser.add_argument
    add("runs", nargs="*", type=existing, metavar="RUN", help="run folders; several: side by side")
    add("--log", type=Path, action="append", default=[], metavar="FILE",
        help="console output of a verl run (repeatable)")  # fmt: skip
    add(
        "--out",
        type=nonempty_path,
        help="folder of the report (several runs: required; one: RUN/report)",
    )
    add_settings(parser)
    return parser.run(arguments, _report, "the files written so far are whole")


if __name__ == "__main__":
    raise SystemExit(main())
