"""The figures of a report as data. PNG, CSV and the interactive page are made from one record.

Each function takes one or several runs. A figure without panels has no data. With several runs
the label of a curve starts with its run's name.
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from eval.show.data import RunData, Series, apart

# The parts of a trainer step that follow one another, as timing_s/PART has them, with their labels.
# Validation and saving are not among them: they are outside verl's timer of the step.
STEP_PARTS = {
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
# The statuses of a grading that do not explain themselves (prompt_aug/grading/GRADING.md).
STATUS_NOTES = {
    "unworked": "arithmetic that is not worked out",
    "echo": "the answer only repeats the question",
    "no_answer": "no answer was found in the response",
    "unparsable": "the answer cannot be read as mathematics",
    "timeout": "grading took too long",
    "too_long": "the answer is too long to grade",
    "error": "the grader failed",
    "bad_result": "the verifier returned no finite number",
    "prompt_too_long": "the prompt does not fit into the context",
}
# Figures of metrics, by name: title, caption, and panels of (title, unit, {metric: label}).
# Left out: verl's actor/entropy, which is aggregated like the loss, so its unit depends on the
# method.
PLAIN: dict[str, tuple[str, str, list[tuple[str, str, dict[str, str]]]]] = {
    "reward": ("Reward", "mean over the rollouts of a step; its parts are accuracy (the share of "
        "right answers) and format (the reward for following the template)", [
        ("Reward, accuracy and format in training", "mean per rollout", {
            "train/accuracy": "accuracy", "train/format": "format", "critic/score/mean": "reward",
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
HELD_OUT = "Accuracy on held-out questions"
VALIDATION = "Validation accuracy in training"
MOST_POINTS = 2000  # of a curve of `logged`, which the page embeds; report.js has this number
STEP_SECONDS = "Seconds per training step"


@dataclass(frozen=True)
class Curve:
    """The points of one line; `error` is one standard error of each y, None where there is none.

    `color` is its place in the palette: equal for a measure, or a run, in all figures.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    error: Sequence[float | None] | None = None
    color: int = 0


@dataclass(frozen=True)
class Panel:
    """One pair of axes. `stacked`: the curves are parts of a whole."""

    title: str
    unit: str
    curves: Sequence[Curve]
    stacked: bool = False


@dataclass(frozen=True)
class Figure:
    """`name` is the name of its files. `log_x` selects a logarithmic x axis."""

    name: str
    title: str
    caption: str
    panels: Sequence[Panel]
    x_title: str = "training step"
    log_x: bool = False

    def as_json(self) -> dict[str, Any]:
        panels = [{**asdict(panel), "y_range": self.y_range(panel)} for panel in self.panels]
        return {**asdict(self), "panels": panels, "csv": self.as_csv()}

    def y_range(self, panel: Panel) -> tuple[float, float] | None:
        """Return the y range that panels of one unit share, from 0 for shares; else None."""
        same = [other for other in self.panels if other.unit == panel.unit]
        share = panel.unit.startswith(("percent", "share"))
        if not share and len(same) < 2:
            return None
        ends = [
            y + sign * (error or 0.0)
            for other in same
            for curve in other.curves
            for y, error in zip(curve.y, curve.error or [0.0] * len(curve.y), strict=True)
            for sign in (-1, 1)
        ]
        low, high = min(ends), max(ends)
        margin = 0.05 * (high - (0.0 if share else low)) or 0.05
        return (0.0 if share else low - margin), (high + margin if high else 1.0)

    def as_csv(self) -> str:
        """Return a line per point: panel, unit, curve, x, y, standard error."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["panel", "unit", "curve", self.x_title, "value", "standard error"])
        for panel in self.panels:
            for curve in panel.curves:
                for i, (x, y) in enumerate(zip(curve.x, curve.y, strict=True)):
                    error = curve.error[i] if curve.error else None
                    point = (f"{x:g}", f"{y:.9g}", "" if error is None else f"{error:.9g}")
                    writer.writerow([*map(cell, (panel.title, panel.unit, curve.label)), *point])
        return file.getvalue()


def cell(text: str) -> str:
    """Return a text that a spreadsheet does not run as a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


Runs = Sequence[RunData]


def _label(runs: Runs, run: RunData, label: str = "") -> str:
    if len(runs) == 1:
        return label
    return f"{run.name}: {label}" if label else run.name


def error_bar(accuracy: float, error: float | None) -> float | None:
    """Return the error in percent; None at 0 and 1, where a standard error of 0 says nothing."""
    return None if error is None or accuracy in (0.0, 1.0) else 100 * error


def accuracy_by_step(runs: Runs) -> Figure:
    """Return accuracy by step: a line per benchmark; for several runs a panel, if asked alike."""
    curves: dict[str, list[Curve]] = {}
    for number, run in enumerate(runs):
        names = list(run.rows[-1].benchmarks) if run.rows else []
        for name in [*names, TOTAL] if len(names) > 1 else names:
            scores = [{TOTAL: asdict(row.total), **row.benchmarks}[name] for row in run.rows]
            y = [100 * entry["accuracy"] for entry in scores]
            error = [error_bar(entry["accuracy"], entry["standard_error"]) for entry in scores]
            beside = (name + apart(runs, run), run.name)
            panel, label = (HELD_OUT, name) if len(runs) == 1 else beside
            color = number or len(curves.get(panel, ())) * (len(runs) == 1)
            steps = [row.step for row in run.rows]
            curves.setdefault(panel, []).append(Curve(label, steps, y, error, color))
    caption = "bars are one standard error, clustered by question; none at 0 and 100 %"
    panels = [Panel(title, "percent right", lines) for title, lines in curves.items()]
    return Figure("accuracy", "Accuracy by checkpoint", caption, panels)


def validation(runs: Runs) -> Figure:
    """Return the accuracy by data source of the validations that a training run logs."""
    curves: dict[str, list[Curve]] = {}
    for number, run in enumerate(runs):
        for key in (k for k in run.keys("val/") if k.endswith("/accuracy") and "/part/" not in k):
            source = key.removeprefix("val/").removesuffix("/accuracy")
            steps, y = run.series(key)
            errors = dict(zip(*run.series(f"val/{source}/standard_error"), strict=True))
            panel, label = (VALIDATION, source) if len(runs) == 1 else (source, run.name)
            error = [error_bar(v, errors.get(step)) for step, v in zip(steps, y, strict=True)]
            color = number or len(curves.get(panel, ())) * (len(runs) == 1)
            values = [100 * v for v in y]
            curves.setdefault(panel, []).append(Curve(label, steps, values, error, color))
    caption = (
        "questions of data.val_files, asked during training; bars are one standard error over "
        "questions"
    )
    panels = [Panel(title, "percent right", lines) for title, lines in curves.items()]
    return Figure("validation", VALIDATION, caption, panels)


def logged(runs: Runs) -> dict[str, list[Series]]:
    """Return the (steps, values) of each logged metric, one a run.

    Of more than MOST_POINTS, the lowest and the highest of each interval are kept.
    """

    def thinned(series: Series) -> Series:
        (x, y), size = series, len(series[0])
        stride = 2 * -(-size // MOST_POINTS)
        parts = [range(i, min(i + stride, size)) for i in range(0, size, stride or 1)]
        ends = {end(part, key=y.__getitem__) for part in parts for end in (min, max)}
        kept = sorted(ends) if size > MOST_POINTS else range(size)
        return [x[i] for i in kept], [float(f"{y[i]:.6g}") for i in kept]

    keys = sorted({key for run in runs for key in run.keys("")} - {"step"})
    series = {key: [thinned(run.series(key)) for run in runs] for key in keys}
    return {key: several for key, several in series.items() if any(steps for steps, _ in several)}


def status_notes(statuses: Iterable[str]) -> str:
    """Return the explanations of those statuses that need one."""
    notes = ((status, STATUS_NOTES.get(status)) for status in statuses)
    return "; ".join(f"{status.replace('_', ' ')}: {note}" for status, note in notes if note)


def pass_at_k_curves(runs: Runs) -> Figure:
    """Return pass@k over k of the first and the last checkpoint, a panel per benchmark."""
    curves: dict[str, list[Curve]] = {}
    for run in runs:
        for row in {row.step: row for row in (*run.rows[:1], *run.rows[-1:])}.values():
            for name, entry in row.benchmarks.items():
                values = sorted((int(k), 100 * value) for k, value in entry["pass_at_k"].items())
                if len(values) > 1:
                    ks, y = zip(*values, strict=True)
                    panel, label = name + apart(runs, run), f"step {row.step}"
                    drawn = curves.setdefault(panel, [])
                    drawn.append(Curve(_label(runs, run, label), ks, y, color=len(drawn)))
    caption = "unbiased, from all samples of a question; the first and the last checkpoint"
    panels = [Panel(name, "percent", lines) for name, lines in curves.items()]
    return Figure("pass_at_k", "pass@k", caption, panels, x_title="k", log_x=True)


def by_template(runs: Runs) -> Figure:
    caption = "accuracy and format reward of the training rollouts drawn with each template"
    panels = [
        (name, "mean per rollout", {f"template/{name}/{p}": p for p in ("accuracy", "format")})
        for name in sorted({name for run in runs for name in template_names(run)})
    ]
    return _metrics(runs, "templates", "Templates", caption, *panels)


def template_names(data: RunData) -> list[str]:
    """Return the templates for which the run has an accuracy or a format reward."""
    keys = (key for key in data.keys("template/") if key.endswith(("/accuracy", "/format")))
    return sorted({key.split("/", 1)[1].rsplit("/", 1)[0] for key in keys})


def step_time(runs: Runs) -> Figure:
    """Return the seconds of a training step; for one run its parts, stacked unless they overlap."""
    about = ("step_time", "Step time", "without validation and saving")
    steps, totals = runs[0].series("timing_s/step")
    if len(runs) > 1 or not steps:
        return _metrics(runs, *about, (STEP_SECONDS, "seconds", {"timing_s/step": ""}))
    by_step = {float(line["step"]): line for line in runs[0].metrics}
    parts = {}
    for part, label in STEP_PARTS.items():
        seconds = [float(by_step[step].get(f"timing_s/{part}") or 0.0) for step in steps]
        if any(seconds):
            parts[label] = seconds
    rest = [total - sum(p[i] for p in parts.values()) for i, total in enumerate(totals)]
    # If the parts overlap, stacking them would show more time than the step took.
    stacked = all(left >= -0.05 * total for left, total in zip(rest, totals, strict=True))
    parts |= {"other": [max(left, 0.0) for left in rest]} if stacked else {"whole step": totals}
    curves = [Curve(p, steps, y, color=place) for place, (p, y) in enumerate(parts.items())]
    return Figure(*about, [Panel(STEP_SECONDS, "seconds", curves, stacked)])


def _metrics(
    runs: Runs, name: str, title: str, caption: str, *panels: tuple[str, str, Mapping[str, str]]
) -> Figure:
    """Return a figure of metrics. A panel: its title, unit, and {metric: label of its curve}."""
    drawn = []
    for heading, unit, keys in panels:
        curves = [
            Curve(_label(runs, run, label), *series, color=number * len(keys) + place)
            for number, run in enumerate(runs)
            for place, (key, label) in enumerate(keys.items())
            if (series := run.series(key))[0]
        ]
        drawn += [Panel(heading, unit, curves)] if curves else []
    return Figure(name, title, caption, drawn)


def figures(runs: Runs) -> tuple[list[Figure], list[str]]:
    """Return the figures in the order of the page, and a note for each that has no data."""
    keys = sorted({key for run in runs for key in run.keys("grade/") if any(run.series(key)[1])})
    grades = {key: key.removeprefix("grade/").replace("_", " ") for key in keys}
    status = [("Grading status in training", "share of rollouts", grades)]
    notes = status_notes(key.removeprefix("grade/") for key in keys)
    about = "; ".join(filter(None, ("shares of all training rollouts", notes)))
    plain = {
        name: _metrics(runs, name, title, caption, *panels)
        for name, (title, caption, panels) in PLAIN.items()
    }
    made = [
        accuracy_by_step(runs),
        validation(runs),
        pass_at_k_curves(runs),
        plain.pop("reward"),
        by_template(runs),
        *plain.values(),
        _metrics(runs, "grades", "Grading status", about, *status),
        step_time(runs),
    ]
    # pass@k needs several samples of a question, which few request.
    absent = [f.title for f in made if not f.panels and f.name != "pass_at_k"]
    lacking = [f"no picture of {title!r}: the run has no data for it" for title in absent]
    return [figure for figure in made if figure.panels], lacking
