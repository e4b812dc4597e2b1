"""Text of results.md from the record of an experiment: verdicts, tables and differences."""

import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from recipe.lab.experiment import Arm, Claim, Experiment, ExperimentError
from recipe.lab.paired import differences, half_width, holm, sign_flip_p
from recipe.lab.pictures import pictures
from recipe.lab.runs import BIN, Lines, by_seed

LAST_BINS = 2  # of a curve: its value at the end
CAUTION = (
    "Compare arms with different numbers of seeds only by their paired differences. `train/...` is "
    "measured on each arm's own training prompts (templates, rephrasings, kept groups). Held-out "
    "measurements use the same questions in all arms. Names such as `qwen-math` are prompt "
    "templates, not models."
)


def figures(line: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of one run that are compared: of its checkpoints and its curves."""
    found = {}
    steps = line["measured"]
    for template, numbers in steps[max(steps, key=int)].items():
        most = max(int(key[5:]) for key in numbers if key.startswith("pass@"))
        for key in ("greedy", "pass@1", "entropy", f"pass@{most}", "format"):
            if key in numbers:  # older lines have no format
                found[f"{template} {key}"] = numbers[key]
        first = steps[min(steps, key=int)].get(template, {})
        if "entropy on filler" in first:  # older lines do not say
            found[f"{template} entropy on filler, start"] = first["entropy on filler"]
        path = [steps[step][template]["pass@1"] for step in sorted(steps, key=int)]
        found[f"{template} pass@1, best - last"] = max(path) - path[-1]
        found[f"{template} pass@1, largest fall"] = largest_fall(path)
    for key, values in line["curves"].items():
        for name, bins in (("end", values[-LAST_BINS:]), ("mean", values)):
            if known := [value for value in bins if value is not None]:  # see `runs.binned`
                found[f"{key}, {name}"] = statistics.fmean(known)
    return found


def largest_fall(path: Sequence[float]) -> float:
    """Return the largest drop from a checkpoint to any later one, even if recovered afterwards."""
    return max(max(path[: i + 1]) - value for i, value in enumerate(path))


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; the first row is the header."""
    head, *others = rows
    return "\n".join("| " + " | ".join(r) + " |" for r in (head, ["---"] * len(head), *others))


def of_arm(arm: Arm, lines: Lines) -> dict[str, dict[int, float]]:
    """Return {figure: {seed: value}} of the runs of an arm on record."""
    found: dict[str, dict[int, float]] = {}
    for seed, line in by_seed(arm.name, lines).items():
        for key, value in figures(line).items():
            found.setdefault(key, {})[seed] = value
    return found


def of_figure(arm: Arm, lines: Lines, figure: str) -> dict[int, float]:
    """Return {seed: value}; for "abel+formal pass@1" the values are means over both templates."""
    names, space, key = figure.partition(" ")
    found = of_arm(arm, lines)
    parts = [found.get(f"{name}{space}{key}", {}) for name in names.split("+")]
    return {s: statistics.fmean(p[s] for p in parts) for s in set.intersection(*map(set, parts))}


def table(experiment: Experiment, lines: Lines) -> str:
    """Return mean and standard deviation over seeds of every figure, in a column per arm."""
    found = {arm.name: of_arm(arm, lines) for arm in experiment.arms}
    values = {name: of for name, of in found.items() if of}
    rows = [["", *values], ["seeds", *(str(len(by_seed(name, lines))) for name in values)]]
    for key in dict.fromkeys(key for of in values.values() for key in of):
        rows.append([key, *(_cell(of.get(key, {}).values()) for of in values.values())])
    return markdown(rows)


def verdicts(experiment: Experiment, lines: Lines) -> str:
    """Return a row for each claim: its effect, interval, p values and verdict.

    The first claim is tested alone, the others together by Holm's method, at 0.05. Equality is
    tested by the 95 % interval, which must lie within the margin. The table is empty until all runs
    of the first claim are on record. The other claims are added when all of their runs are.
    """
    made = made_arms(experiment, lines)
    ready = [made.issuperset(claim.arms) for claim in experiment.claims]
    if not ready or not ready[0]:
        return ""
    claims = experiment.claims if all(ready) else experiment.claims[:1]
    effects = [_effect(experiment, lines, claim) for claim in claims]
    found = [sign_flip_p(effect) for effect in effects]
    adjusted = [*found[:1], *holm(found[1:])]
    rows = [["claim", "effect", "95 % interval", "p", "adjusted p", "verdict"]]
    for claim, effect, p, corrected in zip(claims, effects, found, adjusted, strict=True):
        mean, half = statistics.fmean(effect), half_width(effect)
        verdict = "undecided"
        if claim.margin is not None:
            if abs(mean) + half < claim.margin:
                verdict = f"**equal within {claim.margin:g}**"
        elif corrected < 0.05:
            met = (mean > 0) == (claim.direction == "above")
            verdict = "**met**" if met else "**the reverse**"
        numbers = (f"{mean:+.3f}", _interval(effect), f"{p:.2g}", f"{corrected:.2g}")
        rows.append([claim.claim, *numbers, verdict])
    return markdown(rows)


def made_arms(experiment: Experiment, lines: Lines) -> set[str]:
    """Return the arms whose counted runs are all on record."""
    return {
        arm.name
        for arm in experiment.arms
        if all((arm.name, s) in lines for s in experiment.seeds(arm, experiment.counted))
    }


def _effect(experiment: Experiment, lines: Lines, claim: Claim) -> list[float]:
    """Return the claim's difference, or difference of differences, for each seed."""
    seeds = experiment.seeds(experiment.arm(claim.arms[0]), experiment.counted)
    values = []
    for name in claim.arms:
        found = of_figure(experiment.arm(name), lines, claim.figure)
        if not found.keys() >= set(seeds):
            raise ExperimentError(
                f"{experiment.name}: claims: figure={claim.figure}: not on record for {name} "
                "in all of its runs. Name a figure that they measure."
            )
        values.append(np.array([found[seed] for seed in seeds]))
    if len(values) == 4:
        values = [values[0] - values[2], values[1] - values[3]]
    return list(values[0] - values[1])


def summary(experiment: Experiment, lines: Lines) -> str:
    """Return a row per arm: figures, and pass@1 minus that of its world's first arm, by seed."""
    template = experiment.measure.templates[0]
    heads = ["pass@1", "pass@1, best - last", f"pass@{experiment.measure.samples}", "entropy"]
    keys = [f"{template} {head}" for head in heads]
    rows = [["arm", "seeds", *heads, "pass@1 - baseline", "95 % interval", "p"]]
    baselines: dict[str, Arm] = {}
    for arm in experiment.arms:
        baseline = baselines.setdefault(arm.world, arm)
        found = of_arm(arm, lines)
        if not found:
            continue
        paired = differences(found[keys[0]], of_arm(baseline, lines).get(keys[0], {}))
        shown = ["", "", ""]
        if arm is not baseline and paired:
            interval = f"±{half_width(paired):.3f}" if len(paired) > 1 else ""
            shown = [f"{statistics.fmean(paired):+.3f}", interval, f"{sign_flip_p(paired):.3g}"]
        cells = (_cell(found[key].values()) for key in keys)
        rows.append([arm.name, str(len(found[keys[0]])), *cells, *shown])
    return markdown(rows)


def checkpoints(experiment: Experiment, lines: Lines) -> str:
    """Return pass@1 of every checkpoint, mean over seeds."""
    every = sorted({int(step) for line in lines.values() for step in line["measured"]})
    rows = [["pass@1", "template", *(f"step {s}" for s in every)]]
    for arm in experiment.arms:
        own = [line["measured"] for line in by_seed(arm.name, lines).values()]
        for template in experiment.measure.templates:
            at = [[m.get(str(step), {}).get(template) for m in own] for step in every]
            found = [[n["pass@1"] for n in numbers if n] for numbers in at]
            if any(found):
                cells = (f"{statistics.fmean(values):.3f}" if values else "" for values in found)
                rows.append([arm.name, template, *cells])
    return markdown(rows)


def _cell(values: Collection[float]) -> str:
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.3f}{spread}"


def _interval(paired: Sequence[float]) -> str:
    mean, half = statistics.fmean(paired), half_width(paired)
    return f"{mean - half:+.3f} to {mean + half:+.3f}"


def comparisons(experiment: Experiment, lines: Lines) -> str:
    """Return mean differences, paired by seed, with 95 % intervals; bold if 0 is outside."""
    rows = [["", "seeds", "difference", "95 % interval"]]
    for one, other in experiment.compare:
        a, b = (of_arm(experiment.arm(name), lines) for name in (one, other))
        for key in a:
            paired = differences(a[key], b.get(key, {}))
            if not paired:
                continue
            mean, interval = statistics.fmean(paired), ""
            mark = "**" if abs(mean) > half_width(paired) else ""
            if len(paired) > 1:
                interval = _interval(paired)
            shown = f"{mark}{mean:+.3f}{mark}"
            rows.append([f"{one} - {other}: {key}", str(len(paired)), shown, interval])
    return markdown(rows)


def other_starts(experiment: Experiment, lines: Lines) -> str:
    """Return a warning about compared runs of one seed and world with different start models.

    Machines round differently, so the start model of a world and seed can differ between them. The
    check compares the measurements of step 0. It skips pairs of a simulated and a real arm, whose
    samples differ.
    """
    found = []
    for one, other in experiment.compare:
        a, b = experiment.arm(one), experiment.arm(other)
        if (a.world, experiment.simulates(a)) != (b.world, experiment.simulates(b)):
            continue
        for seed in sorted(s for name, s in lines if name == one and (other, s) in lines):
            if _start(lines[one, seed]) != _start(lines[other, seed]):
                found.append(f"{one} - {other} of seed {seed}")
    if not found:
        return ""
    return (
        "\n\n**Different start models**, probably taught on two machines, whose floats differ: "
        f"{', '.join(found)}. These differences include that of the start models."
    )


def _start(line: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Return {template: (pass@1, greedy)} of the first checkpoint on record, the start model."""
    first = line["measured"][min(line["measured"], key=int)]
    return {template: (n["pass@1"], n["greedy"]) for template, n in first.items()}


def runs(lines: Lines) -> str:
    """Return a row per arm: seeds, commits of training and measurement, median seconds."""
    rows = [["arm", "seeds", "commits", "seconds, median"]]
    for name in sorted({name for name, _ in lines}):
        own = by_seed(name, lines).values()
        commits = dict.fromkeys(map(_commit, own))
        median = statistics.median(line["seconds"] for line in own)
        rows.append([name, str(len(own)), ", ".join(commits), f"{median:.0f}"])
    return markdown(rows)


def _commit(line: Mapping[str, Any]) -> str:
    commit = str(line["commit"]) + (" with changes" if line["uncommitted_changes"] else "")
    at = line.get("measured_at")  # older lines do not say
    return commit + (f" (measured at {at})" if at and at not in commit else "")


def whole(experiment: Experiment, lines: Lines) -> Lines:
    """Return the runs to show: if claims are tested, only those of arms with all their runs."""
    if not experiment.claims:
        return lines
    made = made_arms(experiment, lines)
    return {key: line for key, line in lines.items() if key[0] in made}


def results(experiment: Experiment, lines: Lines, missing: int) -> str:
    """Return the text of results.md."""
    name = experiment.name
    left = f"**{missing} counted runs are still to be made.** " if missing else ""
    drawn = [f"![{p.title}]({p.file})" for p in pictures(experiment, lines)]
    first = f"\n\n{drawn.pop(0)}" if experiment.simulated and drawn else ""
    asked = _asked(experiment, lines)
    steps = "Simulated steps" if experiment.simulated else "Steps"
    count = experiment.worlds
    shared = f" The seeds share {count} sets of questions and start models." if count else ""
    return (
        f"# {name}: what was measured\n\nWritten by `python scripts/experiment.py {name}`. {left}"
        f"{steps}: {experiment.steps}; checkpoints measured on {asked} test "
        f"questions x {experiment.measure.samples} samples at temperature 1. Mean ± standard "
        f"deviation over seeds.{shared}\n\n"
        f"{body(experiment, lines)}{first}"
        f"{other_starts(experiment, lines)}\n\n## Appendix\n\n{CAUTION}\n\n"
        f"{checkpoints(experiment, lines)}\n\nTraining curves are "
        f"means over {BIN} steps.\n\n" + "\n".join(drawn) + f"\n\n{runs(lines)}\n"
    )


def body(experiment: Experiment, lines: Lines) -> str:
    """Return the tables: verdicts and arms if simulated, otherwise every figure and comparison."""
    if not experiment.simulated:
        return (
            f"{table(experiment, lines)}\n\nA curve's end is the mean of its last "
            f"{BIN * LAST_BINS} steps.\n\n## Paired by seed\n\nBold: 0 lies outside "
            "the interval (Student's t; many comparisons are listed, and one in twenty of those "
            f"without any effect would be bold).\n\n{comparisons(experiment, lines)}"
        )
    decided = verdicts(experiment, lines)
    if decided:
        decided = (
            f"## Verdicts\n\n{decided}\n\np: exact sign-flip test; adjusted by Holm's method over "
            "all claims but the first.\n\n"
        )
    return (
        f"{decided}## Arms\n\n{summary(experiment, lines)}\n\nOnly the claims are tests; the p "
        "values of this table are not adjusted. Arms with missing runs are left out."
    )


def _asked(experiment: Experiment, lines: Lines) -> int:
    """Return the number of questions on record; rounding of level shares can change it."""
    found = [n for line in lines.values() for m in line["measured"].values() for n in m.values()]
    return next((n["questions"] for n in found if "questions" in n), experiment.measure.questions)
