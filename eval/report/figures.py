"""The figures of a report as data, from which PNG and CSV are made.

Each function takes one or several runs. A figure without panels has no data. With several runs
the label of a curve starts with its run's name.
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from eval.report.data import RunData, Series

# The parts of a trainer step that follow one another, as timing_s/PART has them, with their labels.
# Validation and saving are not among them: they are outside verl's timer of the step.
STEP_PARTS = {
    "step": "whole step",
    "gen": "generation",
    "reward": "rewards",
    "old_log_prob": "old log-probabilities",
    "ref": "reference log-probabilities",
    "values": "critic's values",
    "adv": "advantages",
    "update_critic": "critic update",
    "update_actor": "actor update",
    "update_weights": "weights to the engine",
}
# Figures of metrics, by name: title, caption, and panels of (title, unit, {metric: label}).
# Left out: verl's actor/entropy, which is aggregated like the loss, so its unit depends on the
# method; response_length/clip_ratio, the share of responses as long as the step's longest.
PLAIN: dict[str, tuple[str, str, list[tuple[str, str, dict[str, str]]]]] = {
    "reward": ("Reward", "mean over the rollouts of a step; its parts are accuracy (the share of "
        "right answers) and format (the reward for following the template)", [
        ("Reward, accuracy and format in training", "mean per rollout", {
            "critic/score/mean": "reward", "train/accuracy": "accuracy", "train/format": "format",
        }),
    ]),
    "no_signal": (
        "Zero-variance groups",
        "all rollouts of the question have the same reward, so their advantages are 0",
        [("Zero-variance groups", "share of groups", {"train/no_signal_groups": ""})],
    ),
    "entropy": ("Entropy", "mean over response tokens", [
        ("Policy entropy", "nats per token", {"train/entropy": ""}),
    ]),
    "response_length": ("Response length", "mean over the rollouts, and the truncated share", [
        ("Response length", "tokens", {"response_length/mean": ""}),
        ("Truncated", "share of responses", {"train/truncated": ""}),
    ]),
    "optimization": ("Optimization", "means over the mini-batches of a step", [
        ("Gradient norm", "L2 norm", {"actor/grad_norm": ""}),
        ("KL to the sampling policy", "nats per token", {"actor/ppo_kl": ""}),
        ("Clipped tokens", "share", {"actor/pg_clipfrac": ""}),
    ]),
}  # fmt: skip
TOTAL = "all questions"
MOST_POINTS = 2000  # of a curve of `logged`, which the page embeds


@dataclass(frozen=True)
class Curve:
    """The points of one line; `error` is one standard error of each y."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    error: Sequence[float] | None = None


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    unit: str
    curves: Sequence[Curve]


@dataclass(frozen=True)
class Figure:
    """Panels over the training steps. `name` is the name of its files."""

    name: str
    title: str
    caption: str
    panels: Sequence[Panel]

    def as_csv(self) -> str:
        """Return a line per point: panel, unit, curve, x, y, standard error."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["panel", "unit", "curve", "training step", "value", "standard error"])
        for panel in self.panels:
            for curve in panel.curves:
                for i, (x, y) in enumerate(zip(curve.x, curve.y, strict=True)):
                    error = "" if curve.error is None else f"{curve.error[i]:.9g}"
                    point = (f"{x:g}", f"{y:.9g}", error)
                    writer.writerow([panel.title, panel.unit, curve.label, *point])
        return file.getvalue()


Runs = Sequence[RunData]


def accuracy_by_step(runs: Runs) -> Figure:
    found = []
    for run in runs:
        names, steps = list(run.rows[-1].benchmarks) if run.rows else [], [r.step for r in run.rows]
        for name in [*names, TOTAL] if len(names) > 1 else names:
            entries = [{TOTAL: asdict(row.total), **row.benchmarks}[name] for row in run.rows]
            y, error = ([e[key] or 0.0 for e in entries] for key in ("accuracy", "standard_error"))
            found.append((name, run.name, steps, y, error))
    caption = "bars are one standard error, clustered by question"
    return _scores("accuracy", "Accuracy by checkpoint", caption, found, len(runs) > 1)


def validation(runs: Runs) -> Figure:
    """Return the accuracy by data source of the validations that a training run logs."""
    found = []
    for run in runs:
        keys = [k for k in run.keys("val/") if k.endswith("/accuracy") and "/part/" not in k]
        for source in (key.removeprefix("val/").removesuffix("/accuracy") for key in keys):
            steps, y = run.series(f"val/{source}/accuracy")
            errors = dict(zip(*run.series(f"val/{source}/standard_error"), strict=True))
            found.append((source, run.name, steps, y, [errors.get(step, 0.0) for step in steps]))
    caption = "questions of data.val_files; bars are one standard error over questions"
    return _scores("validation", "Validation accuracy in training", caption, found, len(runs) > 1)


def _scores(
    name: str,
    title: str,
    caption: str,
    found: Iterable[tuple[str, str, Sequence[float], Sequence[float], Sequence[float]]],
    several: bool,
) -> Figure:
    """Return a line per benchmark; for several runs a panel per benchmark with a line per run."""
    panels: dict[str, list[Curve]] = {}
    for of, run, steps, shares, errors in found:
        panel, label = (of, run) if several else (title, of)
        y, error = [100 * x for x in shares], [100 * x for x in errors]
        panels.setdefault(panel, []).append(Curve(label, steps, y, error))
    made = [Panel(panel, "percent right", curves) for panel, curves in panels.items()]
    return Figure(name, title, caption, made)


def logged(runs: Runs) -> dict[str, list[Series]]:
    """Return the (steps, values) of each logged metric, one a run, with at most MOST_POINTS."""

    def thinned(series: Series) -> Series:
        stride = -(-len(series[0]) // MOST_POINTS) or 1
        return series[0][::stride], [float(f"{y:.6g}") for y in series[1][::stride]]

    keys = sorted({key for run in runs for key in run.keys("")} - {"step"})
    found = {key: [thinned(run.series(key)) for run in runs] for key in keys}
    return {key: several for key, several in found.items() if any(steps for steps, _ in several)}


def by_template(runs: Runs) -> Figure:
    parts = ("accuracy", "format")
    keys = {key for run in runs for key in run.keys("template/") if key.endswith(parts)}
    panels = [
        (name, "mean per rollout", {f"template/{name}/{part}": part for part in parts})
        for name in sorted({key.split("/", 1)[1].rsplit("/", 1)[0] for key in keys})
    ]
    caption = "accuracy and format reward of the training rollouts drawn with each template"
    return _metrics(runs, "templates", "Templates", caption, *panels)


def _metrics(
    runs: Runs, name: str, title: str, caption: str, *panels: tuple[str, str, Mapping[str, str]]
) -> Figure:
    """Return a figure of metrics. A panel: its title, unit, and {metric: label of its curve}."""
    found = []
    for heading, unit, keys in panels:
        curves = [
            Curve(": ".join(filter(None, (run.name * (len(runs) > 1), label))), *series)
            for run in runs
            for key, label in keys.items()
            if (series := run.series(key))[0]
        ]
        found += [Panel(heading, unit, curves)] if curves else []
    return Figure(name, title, caption, found)


def figures(runs: Runs) -> list[Figure]:
    """Return the figures that have data, in the order of the page."""
    found = sorted({key for run in runs for key in run.keys("grade/") if any(run.series(key)[1])})
    grades = {key: key.removeprefix("grade/").replace("_", " ") for key in found}
    parts = list(STEP_PARTS.items())[: 1 if len(runs) > 1 else None]
    times = {f"timing_s/{part}": label for part, label in parts}
    plain = {
        name: _metrics(runs, name, title, caption, *panels)
        for name, (title, caption, panels) in PLAIN.items()
    }
    made = [
        accuracy_by_step(runs),
        validation(runs),
        plain.pop("reward"),
        by_template(runs),
        *plain.values(),
        _metrics(runs, "grades", "Grading status", "shares of all training rollouts",
            ("Grading status in training", "share of rollouts", grades)),
        _metrics(runs, "step_time", "Step time", "without validation and saving",
            ("Seconds per training step", "seconds", times)),
    ]  # fmt: skip
    return [figure for figure in made if figure.panels]
