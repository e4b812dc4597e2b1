"""Check that a world shows its mechanism: ``python -m recipe.lab.card EXPERIMENT [--seeds 3]``.

Simulates the arms of the experiment's `mechanism` with pilot seeds, which are never counted. Prints
a card: the mechanism's figure, its bound and the checkpoints. Run it before any method under test.
"""

import argparse
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prompt_aug.base.commands import make_parser, run
from prompt_aug.base.files import write_text
from recipe.errors import ConfigError
from recipe.lab import page
from recipe.lab.experiment import Experiment, load_experiment
from recipe.lab.runs import Lines, read_record, run_all
from recipe.run.environment import describe

SHOWN = ("greedy", "pass@1", "pass@16", "entropy", "entropy on filler")


def mechanism(experiment: Experiment, lines: Lines) -> str:
    """Return a sentence that says if the runs in `lines` show the world's mechanism."""
    wanted = experiment.mechanism
    if wanted is None:
        return "The experiment states no mechanism."
    about = f"`{wanted.figure}` of `{wanted.arm}`"
    values = page.of_figure(experiment.arm(wanted.arm), lines, wanted.figure)
    if wanted.minus:
        arm, figure = wanted.minus
        other = page.of_figure(experiment.arm(arm), lines, figure)
        values = {s: v - other[s] for s, v in values.items() if s in other}
        about = f"{about} - `{figure}` of `{arm}`"
    if not values:
        return f"Mechanism: unknown, no run of {about}."
    found = statistics.fmean(values.values())
    verdict = "present" if found >= wanted.least else "**absent: draw no conclusion**"
    return (
        f"Mechanism {verdict}: {about} is {found:.3f} "
        f"({len(values)} seeds), wanted at least {wanted.least:g}."
    )


def checkpoints(experiment: Experiment, lines: Lines) -> str:
    """Return a table with a row per checkpoint: the means over seeds of `SHOWN`."""
    template = experiment.measure.templates[0]
    found: dict[int, list[Mapping[str, float]]] = {}
    for line in lines.values():
        for step, numbers in line["measured"].items():
            found.setdefault(int(step), []).append(numbers[template])
    shown = [key for key in SHOWN if all(key in n for ns in found.values() for n in ns)]
    rows = [["step", *shown]]
    for step, numbers in sorted(found.items()):
        means = (statistics.fmean(n[key] for n in numbers) for key in shown)
        rows.append([str(step), *(f"{mean:.3f}" for mean in means)])
    return page.markdown(rows)


def card(experiment: Experiment, lines: Lines, origin: Mapping[str, Any]) -> str:
    """Return the card; `origin` has the keys commit and uncommitted_changes."""
    names = list(dict.fromkeys(arm for arm, _ in lines))
    seeds = sorted({seed for _, seed in lines})
    tables = "\n\n".join(
        f"Arm `{name}`:\n\n" + checkpoints(experiment, {k: lines[k] for k in lines if k[0] == name})
        for name in names
    )
    changes = ", with uncommitted changes" if origin["uncommitted_changes"] else ""
    return (
        f"# {experiment.arm(names[0]).world}: mechanism\n\n{mechanism(experiment, lines)}\n\n"
        f"{tables}\n\nExperiment {experiment.name}, simulated, pilot seeds "
        f"{', '.join(map(str, seeds))}: means over seeds of {experiment.measure.questions} "
        f"held-out questions, {experiment.measure.samples} samples at temperature 1, template "
        f'{experiment.measure.templates[0]}. Entropy in nats per token; "entropy on filler" is the '
        f"share of it on letters of the world's filler.\n\n`python -m recipe.lab.card "
        f"{experiment.name} --seeds {len(seeds)}`, commit {str(origin['commit'])[:7]}{changes}.\n"
    )


def carry_out(given: argparse.Namespace) -> int:
    """Make the missing runs and print the card."""
    experiment = load_experiment(given.experiment)
    if not experiment.simulated or experiment.mechanism is None:
        raise ConfigError(
            f"experiment {experiment.name}: not simulated or without a mechanism. Choose one whose "
            "experiment.yaml has both keys."
        )
    wanted = experiment.mechanism
    names = dict.fromkeys((wanted.arm, *(wanted.minus or ())[:1]))
    out = given.out / experiment.name
    record = out / "pilots.jsonl"
    runs = [(experiment.arm(name), seed) for seed in range(1, given.seeds + 1) for name in names]
    failed = run_all(experiment, runs, record=record, out=out, jobs=given.jobs)
    known = read_record(record, experiment)
    if lines := {(a.name, s): known[a.name, s] for a, s in runs if (a.name, s) in known}:
        text = card(experiment, lines, describe())
        if given.file:
            write_text(given.file, text)
        print(f"\n{text}")
    return 1 if failed else 0


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser(
        "python -m recipe.lab.card", __doc__, example="python -m recipe.lab.card edge --seeds 3"
    )
    parser.add_argument("experiment", help="a simulated one of examples/laboratory")
    parser.add_argument("--seeds", type=int, default=3, help="pilot seeds, from 1")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once, one core each")
    parser.add_argument("--out", type=Path, default=Path("runs/laboratory"), help="of the runs")
    parser.add_argument("--file", type=Path, help="a markdown file for the card")
    given = parser.parse_args(arguments)
    return run("recipe.lab.card", lambda: carry_out(given), interrupted="finished runs are kept")


if __name__ == "__main__":
    sys.exit(main())
