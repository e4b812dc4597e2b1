"""Run an experiment in the toy worlds, whose predictions are written before.

    python scripts/experiment.py NAME [--seeds 5] [--jobs 1] [--arms ...] [--out runs/laboratory]
    python scripts/experiment.py NAME --pilot 1        # seeds below 1000, never counted

NAME is a folder of examples/laboratory: experiment.yaml lists the arms, prediction.md the
expectations. Each run is trained, its checkpoints are exported and measured, and a line with commit
and seconds is appended to record.jsonl. Recorded runs are skipped; a killed run is resumed. With
``simulated: true`` in experiment.yaml a run is simulated in one process (recipe.lab.simulate) and
restarts after a kill. At the end results.md and the figures are written from the record. Deciding
arms run `--seeds` seeds, other arms at most three. With --pilot all output goes to --out.
"""

import argparse
import sys
from pathlib import Path

from prompt_aug.base.commands import make_parser, run
from prompt_aug.base.files import write_text
from prompt_aug.base.progress import Progress
from recipe.lab import page, pictures
from recipe.lab.experiment import (
    COUNTED,
    FIRST_COUNTED,
    Arm,
    Experiment,
    ExperimentError,
    load_experiment,
    names,
)
from recipe.lab.runs import read_record, run_all


def wanted(experiment: Experiment, given: argparse.Namespace) -> list[tuple[Arm, int]]:
    """Return the requested runs, all arms of one seed before the next seed."""
    arms = [experiment.arm(name) for name in given.arms or [a.name for a in experiment.arms]]
    if given.pilot is not None:
        return [(arm, given.pilot) for arm in arms]
    seeds = range(FIRST_COUNTED, FIRST_COUNTED + given.seeds)
    return [(a, s) for s in seeds for a in arms if s in experiment.seeds(a, given.seeds)]


def check(experiment: Experiment, given: argparse.Namespace) -> None:
    """Reject runs that would not count: no prediction, too many seeds, a counted pilot seed."""
    if not (experiment.folder / "prediction.md").is_file():
        raise ExperimentError(f"{experiment.folder}/prediction.md comes before any run")
    if not 1 <= given.seeds <= COUNTED:
        raise ExperimentError(f"--seeds {given.seeds} must be from 1 to {COUNTED}")
    if given.pilot is not None and not 0 <= given.pilot < FIRST_COUNTED:
        raise ExperimentError(f"--pilot {given.pilot} must be from 0 to {FIRST_COUNTED - 1}")


def carry_out(given: argparse.Namespace) -> int:
    """Make the missing runs, then write results and figures from the record."""
    experiment = load_experiment(given.name)
    check(experiment, given)
    counted = given.pilot is None
    folder = experiment.folder if counted else given.out / experiment.name / "pilot"
    record = folder / "record.jsonl"
    out = given.out / experiment.name
    with Progress(experiment.name):
        failed = run_all(
            experiment, wanted(experiment, given), record=record, out=out, jobs=given.jobs
        )
    made = read_record(record, experiment)
    shown = page.whole(experiment, made) if counted else made
    if shown:
        planned = experiment.counted if experiment.claims else given.seeds
        every = [(a.name, s) for a in experiment.arms for s in experiment.seeds(a, planned)]
        missing = sum(run not in made for run in every) if counted else 0
        write_text(folder / "results.md", page.results(experiment, shown, missing))
        pictures.draw(experiment, shown, folder)
        print(page.body(experiment, shown))
    elif made:
        print("no results yet: no arm has all of its seeds")
    return 1 if failed else 0


def main() -> int:
    example = "python scripts/experiment.py ta_grpo --pilot 1"
    parser = make_parser("python scripts/experiment.py", __doc__, example=example)
    add = parser.add_argument
    add("name", choices=names(), help="a folder of examples/laboratory")
    add("--seeds", type=int, default=5, help="of the arms that decide")
    add("--arms", nargs="+", help="default: all")
    add("--jobs", type=int, default=1, help="runs at once, each with its threads")
    add("--pilot", type=int, help="one seed below 1000, for calibration")
    add("--out", type=Path, default=Path("runs/laboratory"), help="where the runs go")
    given = parser.parse_args()
    said = "runs on record are kept; the same command continues from there"
    return run("experiment", lambda: carry_out(given), interrupted=said, progress=False)


if __name__ == "__main__":
    sys.exit(main())
