"""The record of an experiment as results.md: verdicts, tables and differences."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from recipe.lab.experiment import Arm, Claim, Experiment, ExperimentError
from recipe.lab.paired import holm, paired_difference, sign_flip_p
from recipe.lab.pictures import pictures
from recipe.lab.runs import BIN, Lines

LAST_BINS = 2  # of a curve: its value at the end
CAUTION = (
    "Compare arms with different numbers of seeds only by their paired differences. `train/...` is "
    "measured on each arm's own training prompts (templates, rephrasings, kept groups). Held-out "
    "measurements use the same questions in all arms. Names such as `qwen-math` are prompt "
    "templates, not models."
)


def figures(line: dict[str, Any]) -> dict[str, float]:
    """The numbers of one run that are compared: of its last checkpoint, and the ends of curves."""
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


def of_arm(arm: Arm, lines: Lines) -> dict[str, dict[int, float]]:
    """{figure: {seed: value}} of the runs of an arm on record."""
    found: dict[str, dict[int, float]] = {}
    for (name, seed), line in sorted(lines.items()):
        if name == arm.name:
            for key, value in figures(line).items():
                found.setdefault(key, {})[seed] = value
    return found


def of_figure(arm: Arm, lines: Lines, figure: str) -> dict[int, float]:
    """{seed: value} of a figure; that of "abel+formal pass@1" is the mean over both templates."""
    names, space, key = figure.partition(" ")
    found = of_arm(arm, lines)
    parts = [found.get(f"{name}{space}{key}", {}) for name in names.split("+")]
    return {s: statistics.fmean(p[s] for p in parts) for s in set.intersection(*map(set, parts))}


def table(experiment: Experiment, lines: Lines) -> str:
    """Return mean and standard deviation over seeds of every figure, in a column per arm."""
    values = {arm.name: of_arm(arm, lines) for arm in experiment.arms}
    shown = [name for name, found in values.items() if found]
    keys = list(dict.fromkeys(key for name in shown for key in values[name]))
    seeds = [str(len({s for n, s in lines if n == name})) for name in shown]
    rows = [["", *shown], ["---"] * (len(shown) + 1), ["seeds", *seeds]]
    for key in keys:
        cells = [values[name].get(key) for name in shown]
        rows.append([key, *(_cell(cell) for cell in cells)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def verdicts(experiment: Experiment, lines: Lines) -> str:
    """Return a row for each claim: its effect, interval and p, and whether the runs decide it.

    The first claim is tested alone, the others together by Holm's method, at 0.05. Equality is
    tested by the 95 % interval, which must lie within the margin. The table is empty until all runs
    of the first claim are on record; the others are added when all of theirs are.
    """
    claims, secondary = experiment.claims[:1], experiment.claims[1:]
    if not all(_complete(experiment, lines, claim) for claim in claims):
        return ""
    if all(_complete(experiment, lines, claim) for claim in secondary):
        claims = experiment.claims
    pairs = [_pair(experiment, lines, claim) for claim in claims]
    found = [p for pair in pairs if (p := sign_flip_p(*pair)) is not None]
    adjusted = [*found[:1], *holm(found[1:])]
    rows = [["claim", "effect", "95 % interval", "p", "adjusted p", "verdict"], ["---"] * 6]
    for claim, pair, p, corrected in zip(claims, pairs, found, adjusted, strict=True):
        effect = paired_difference(*pair)
        assert effect is not None and effect.half_width is not None
        low, high = effect.mean - effect.half_width, effect.mean + effect.half_width
        verdict = "undecided"
        if claim.margin is not None:
            if max(-low, high) < claim.margin:
                verdict = f"**decided: equal within {claim.margin:g}**"
        elif corrected < 0.05:
            met = (effect.mean > 0) == (claim.direction == "above")
            verdict = "**decided: met**" if met else "**decided: the reverse**"
        effects = (f"{effect.mean:+.3f}", f"{low:+.3f} to {high:+.3f}")
        rows.append([claim.claim, *effects, f"{p:.2g}", f"{corrected:.2g}", verdict])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) if claims else ""


def _complete(experiment: Experiment, lines: Lines, claim: Claim) -> bool:
    arms = [experiment.arm(name) for name in claim.arms]
    return all((a.name, s) in lines for a in arms for s in experiment.seeds(a, experiment.counted))


def _pair(
    experiment: Experiment, lines: Lines, claim: Claim
) -> tuple[dict[int, float], dict[int, float]]:
    """The two figures whose difference the claim is about, by seed."""
    arms = [experiment.arm(name) for name in claim.arms]
    counted = [experiment.seeds(arm, experiment.counted) for arm in arms]
    values = [
        {s: value for s, value in of_figure(arm, lines, claim.figure).items() if s in seeds}
        for arm, seeds in zip(arms, counted, strict=True)
    ]
    for arm, found, seeds in zip(arms, values, counted, strict=True):
        if found.keys() != set(seeds):
            raise ExperimentError(
                f"{experiment.name}: claims: figure={claim.figure}: not on record for {arm.name} "
                "in all of its runs. Name a figure that they measure."
            )
    a, b, *more = values
    for one, other in zip(more[::2], more[1::2], strict=True):
        a = {seed: value - one[seed] for seed, value in a.items()}
        b = {seed: value - other[seed] for seed, value in b.items()}
    return a, b


def summary(experiment: Experiment, lines: Lines) -> str:
    """Return a row per arm: its figures, and pass@1 minus its world's first arm, paired by seed."""
    template = experiment.measure.templates[0]
    most = f"pass@{experiment.measure.samples}"
    heads = ["pass@1", "pass@1, best - last", most, "entropy"]
    keys = [f"{template} {head}" for head in heads]
    rows = [["arm", "seeds", *heads, "pass@1 - baseline", "95 % interval", "p"], ["---"] * 9]
    baselines: dict[str, Arm] = {}
    for arm in experiment.arms:
        baseline = baselines.setdefault(arm.world, arm)
        found = of_arm(arm, lines)
        if not found:
            continue
        pair = (found[keys[0]], of_arm(baseline, lines).get(keys[0], {}))
        difference, p = paired_difference(*pair), sign_flip_p(*pair)
        shown = ["", "", ""]
        if arm is not baseline and difference and p is not None:
            half = difference.half_width
            interval = f"±{half:.3f}" if half is not None else ""
            shown = [f"{difference.mean:+.3f}", interval, f"{p:.3g}"]
        rows.append([arm.name, str(len(pair[0])), *(_cell(found[key]) for key in keys), *shown])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def checkpoints(experiment: Experiment, lines: Lines) -> str:
    """pass@1 of every checkpoint, mean and standard deviation over seeds."""
    shown: dict[tuple[str, str], dict[int, dict[int, float]]] = {}
    for (name, seed), line in sorted(lines.items()):
        for step, templates in line["measured"].items():
            for template, numbers in templates.items():
                steps = shown.setdefault((name, template), {})
                steps.setdefault(int(step), {})[seed] = numbers["pass@1"]
    every = sorted({step for steps in shown.values() for step in steps})
    rows = [["pass@1", "template", *(f"step {s}" for s in every)], ["---"] * (len(every) + 2)]
    for arm in experiment.arms:
        for template in experiment.measure.templates:
            if (arm.name, template) in shown:
                steps = shown[arm.name, template]
                rows.append([arm.name, template, *(_cell(steps.get(s)) for s in every)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _cell(values: Mapping[int, float] | None) -> str:
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values.values()):.3f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values.values()):.3f}{spread}"


def comparisons(experiment: Experiment, lines: Lines) -> str:
    """Mean differences, paired by seed, with 95 % intervals; bold where 0 is outside."""
    rows = [["", "seeds", "difference", "95 % interval"], ["---"] * 4]
    for one, other in experiment.compare:
        a, b = (of_arm(experiment.arm(name), lines) for name in (one, other))
        for key in a:
            found = paired_difference(a[key], b.get(key, {}))
            if found is None:
                continue
            interval, mark = "", "**" if found.counts else ""
            if found.half_width is not None:
                low, high = found.mean - found.half_width, found.mean + found.half_width
                interval = f"{low:+.3f} to {high:+.3f}"
            shown = f"{mark}{found.mean:+.3f}{mark}"
            rows.append([f"{one} - {other}: {key}", str(found.seeds), shown, interval])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def other_starts(experiment: Experiment, lines: Lines) -> str:
    """Return a warning about compared runs of one seed and world with different start models.

    A start model is a function of world and seed on one machine. On another machine, where floats
    may round differently, another model results. The check compares the measurements of step 0,
    whose samples differ between a simulated arm and one of the real stack: such pairs are skipped.
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
    """Return a row per arm: its seeds, commits, those of other measurements, median seconds."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for (name, _), line in sorted(lines.items()):
        found.setdefault(name, []).append(line)
    rows = [["arm", "seeds", "commits", "seconds, median"], ["---"] * 4]
    for name, own in found.items():
        commits = {_commit(line): None for line in own}
        median = statistics.median(line["seconds"] for line in own)
        rows.append([name, str(len(own)), ", ".join(commits), f"{median:.0f}"])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _commit(line: Mapping[str, Any]) -> str:
    commit = str(line["commit"]) + (" with changes" if line["uncommitted_changes"] else "")
    at = line.get("measured_at")  # older lines do not say
    return commit + (f" (measured at {at})" if at and at not in commit else "")


def whole(experiment: Experiment, lines: Lines) -> Lines:
    """Return the runs of the arms that have all; where claims are tested, nobody looks before."""
    if not experiment.claims:
        return lines
    plan = {a.name: experiment.seeds(a, experiment.counted) for a in experiment.arms}
    arms = [name for name, seeds in plan.items() if all((name, seed) in lines for seed in seeds)]
    return {key: line for key, line in lines.items() if key[0] in arms}


def results(experiment: Experiment, lines: Lines, missing: int) -> str:
    """The whole of results.md."""
    name = experiment.name
    left = f"**{missing} counted runs are still to be made.** " if missing else ""
    drawn = [f"![{p.title}]({p.file})" for p in pictures(experiment, lines)]
    first = f"\n\n{drawn.pop(0)}" if experiment.simulated and drawn else ""
    asked = _asked(experiment, lines)
    steps = "Simulated steps" if experiment.simulated else "Steps"
    count = experiment.worlds
    shared = f", which share {count} sets of questions with start model" if count else ""
    return (
        f"# {name}: what was measured\n\nWritten by `python scripts/experiment.py {name}`. {left}"
        f"{steps}: {experiment.steps}; checkpoints measured on {asked} test "
        f"questions x {experiment.measure.samples} samples at temperature 1, each question in one "
        f"wording. Mean ± standard deviation over seeds{shared}.\n\n"
        f"{body(experiment, lines)}{first}"
        f"{other_starts(experiment, lines)}\n\n## Appendix\n\n{CAUTION}\n\n"
        f"{checkpoints(experiment, lines)}\n\nTraining curves are "
        f"means over {BIN} steps.\n\n" + "\n".join(drawn) + f"\n\n{runs(lines)}\n"
    )


def body(experiment: Experiment, lines: Lines) -> str:
    """The tables: of a simulated experiment its claims, of an older one every figure."""
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
        "values of this table are not adjusted. An arm is shown once all of its runs are on record."
    )


def _asked(experiment: Experiment, lines: Lines) -> int:
    """Return the number of questions on record; rounding of level shares can change it."""
    found = [n for line in lines.values() for m in line["measured"].values() for n in m.values()]
    return next((n["questions"] for n in found if "questions" in n), experiment.measure.questions)
