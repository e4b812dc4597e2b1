"""Tune an arm on pilot seeds: ``python -m recipe.lab.tune EXPERIMENT ARM KEY=A,B,... [...]``.

Every combination of the values is simulated with the same pilot seeds, which are never counted and
have their own questions and start models. The best has the highest mean held-out pass@1 at the last
step. For a fair comparison, tune both methods over grids of equal size. Writes
OUT/EXPERIMENT-ARM.md; runs on record are kept.
"""

import argparse
import itertools
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from prompt_aug.base.commands import make_parser, run
from prompt_aug.base.errors import UsageError
from prompt_aug.base.files import write_text
from recipe.errors import ConfigError
from recipe.lab import page
from recipe.lab.experiment import Arm, Experiment, load_experiment
from recipe.lab.runs import Lines, check_arm, read_record, run_all
from recipe.run.environment import commit, set_defaults


def combinations(grid: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the overrides of every combination; `grid` holds hydra sweeps, ``key=a,b``."""
    values = []
    for given in grid:
        try:
            sweep = OverridesParser.create().parse_override(given)
        except HydraException as error:
            raise UsageError(f"{given}: not KEY=A,B,... ({error}). Correct it.") from error
        key = sweep.get_key_element()
        choices = sweep.sweep_string_iterator() if sweep.is_sweep_override() else ()
        values.append([f"{key}={choice}" for choice in choices] or [given])
    return list(itertools.product(*values))


def planned(experiment: Experiment, arm: Arm, grid: Sequence[str]) -> Experiment:
    """Return the experiment whose arms are the combinations for `arm`, without claims."""
    if not experiment.simulates(arm):
        raise ConfigError(f"{experiment.name} {arm.name}: not simulated. Choose another arm.")
    arms = tuple(
        arm.model_copy(update={"name": f"{arm.name}_{i}", "set": (*arm.set, *chosen)})
        for i, chosen in enumerate(combinations(grid))
    )
    return experiment.model_copy(update={"arms": arms, "claims": (), "compare": ()})


def written(plan: Experiment, lines: Lines, grid: Sequence[str], seeds: int) -> str:
    """Return the table of the combinations, the best first."""
    figure = f"{plan.measure.templates[0]} pass@1"
    found = {
        chosen: page.of_figure(arm, lines, figure)
        for arm, chosen in zip(plan.arms, combinations(grid), strict=True)
    }
    mean = {chosen: statistics.fmean(values.values()) for chosen, values in found.items() if values}
    rows = [["settings", figure, "by seed"]]
    for chosen in sorted(mean, key=mean.__getitem__, reverse=True):
        each = ", ".join(f"{value:.3f}" for _, value in sorted(found[chosen].items()))
        rows.append([f"`{' '.join(chosen)}`", f"{mean[chosen]:.3f}", each])
    made = f"{plan.steps} steps, {seeds} pilot seeds, simulated; commit {str(commit())[:12]}."
    return f"{page.markdown(rows)}\n\n{made}\n"


def carry_out(given: argparse.Namespace) -> int:
    """Make the missing runs and write the table."""
    experiment = load_experiment(given.experiment)
    plan = planned(experiment, experiment.arm(given.arm), given.grid)
    set_defaults(cpu=True)
    check_arm(plan, plan.arms[0])
    record, seeds = given.out / experiment.name / "tuning.jsonl", range(1, given.seeds + 1)
    wanted = [(arm, seed) for seed in seeds for arm in plan.arms]
    failed = run_all(plan, wanted, record=record, out=given.out / plan.name, jobs=given.jobs)
    lines = {key: line for key, line in read_record(record, plan).items() if key[1] in seeds}
    text = written(plan, lines, given.grid, given.seeds)
    path = given.out / f"{experiment.name}-{given.arm}.md"
    write_text(path, f"# {given.arm} in {experiment.name}: tuning\n\n{text}")
    print(f"\n{text}\nwritten to {path}")
    return 1 if failed else 0


def main(arguments: list[str] | None = None) -> int:
    lr = "actor_rollout_ref.actor.optim.lr=3e-5,1e-4,3e-4"
    example = f"python -m recipe.lab.tune mismatch tis {lr} --jobs 2"
    parser = make_parser("python -m recipe.lab.tune", __doc__, example=example)
    parser.add_argument("experiment", help="a simulated one of examples/laboratory")
    parser.add_argument("arm", help="one of its arms")
    parser.add_argument("grid", nargs="+", metavar="KEY=A,B,...", help="values to combine")
    parser.add_argument("--seeds", type=int, default=3, help="pilot seeds: 1 to this number")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once, one core each")
    parser.add_argument("--out", type=Path, default=Path("runs/tuning"), help="runs and page")
    given = parser.parse_intermixed_args(arguments)
    return run("recipe.lab.tune", lambda: carry_out(given), interrupted="finished runs are kept")


if __name__ == "__main__":
    sys.exit(main())
