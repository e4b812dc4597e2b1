"""The figures of a report as data: drawn as PNG, shown in the page, written as CSV from one record.

Each function takes the runs, one or several, and returns a `Figure`, or None where no run has data
for it. Of several runs a curve's label begins with its run's name.
"""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from eval.report.data import RunData

REWARD_PARTS = {
    "critic/score/mean": "reward",
    "train/accuracy": "accuracy",
    "train/format": "format",
}
LENGTHS = {
    "response_length/mean": ("Response length", "tokens"),
    # Not verl's response_length/clip_ratio: that is the share as long as the longest of the step.
    "train/truncated": ("Cut at the limit", "share of responses"),
}
UPDATES = {
    "actor/grad_norm": ("Gradient norm", "L2 norm"),
    "actor/ppo_kl": ("KL to the sampling policy", "nats per token"),
    "actor/pg_clipfrac": ("Clipped tokens", "share"),
}
# The parts of a trainer step that follow one another; what is left of the step is "other".
# Validation and saving come every few steps and lie outside verl's timer of the step.
STEP_PARTS = (
    *("gen", "reward", "old_log_prob", "ref", "values"),
    *("adv", "update_critic", "update_actor", "update_weights"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """Points of one line; `error` is one standard error of each y, where there is one."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    error: Sequence[float] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """One pair of axes; `stacked`: the curves are parts of a whole."""

    title: str
    unit: str
    curves: Sequence[Curve]
    stacked: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """`name` is that of its files; `log_x`: the axis is logarithmic at first."""

    name: str
    title: str
    caption: str
    panels: Sequence[Panel]
    x_title: str = "training step"
    log_x: bool = False

    def as_json(self) -> dict[str, Any]:
        """What the page is given."""
        return {**asdict(self), "y_range": self.y_range()}

    def y_range(self) -> tuple[float, float] | None:
        """The range of y that panels of one unit share; None of one panel, or of several units."""
        if len(self.panels) < 2 or len({panel.unit for panel in self.panels}) > 1:
            return None
        ends = [
            y + sign * error
            for panel in self.panels
            for curve in panel.curves
            for y, error in zip(curve.y, curve.error or [0.0] * len(curve.y), strict=True)
            for sign in (-1, 1)
        ]
        margin = 0.05 * (max(ends) - min(ends)) or 0.05
        return min(ends) - margin, max(ends) + margin

    def as_csv(self) -> str:
        """A line per point: panel, unit, curve, x, y, standard error."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["panel", "unit", "curve", self.x_title, "value", "standard error"])
        for panel in self.panels:
            for curve in panel.curves:
                for i, (x, y) in enumerate(zip(curve.x, curve.y, strict=True)):
                    error = "" if curve.error is None else f"{curve.error[i]:.9g}"
                    writer.writerow([panel.title, panel.unit, curve.label, f"{x:g}", f"{y:.9g}",
                                     error])  # fmt: skip
        return file.getvalue()


Runs = Sequence[RunData]
Draw = Callable[[Runs], Figure | None]


def _label(runs: Runs, run: RunData, label: str = "") -> str:
    if len(runs) == 1:
        return label
    return f"{run.name}: {label}" if label else run.name


def accuracy(runs: Runs) -> Figure | None:
    """Accuracy by step: of one run a line per benchmark, of several a panel per benchmark."""
    last = [run.rows[-1] for run in runs if run.rows]
    names = list(dict.fromkeys(name for row in last for name in row.benchmarks))
    if not names:
        return None
    parts = {name: [_accuracy_curve(runs, run, name) for run in runs] for name in names}
    curves = {name: [c for c in found if c is not None] for name, found in parts.items()}
    if len(names) > 1:
        curves["all questions"] = [_total_curve(runs, run) for run in runs if run.rows]
    unit = "per cent right"
    if len(runs) == 1:
        lines = [curve for found in curves.values() for curve in found]
        panels = [Panel(title="Accuracy on held-out questions", unit=unit, curves=lines)]
    else:
        panels = [Panel(title=name, unit=unit, curves=found) for name, found in curves.items()]
    return Figure(
        name="accuracy",
        title="Accuracy by checkpoint",
        caption="bars are one standard error, clustered by question",
        panels=panels,
    )


def _accuracy_curve(runs: Runs, run: RunData, name: str) -> Curve | None:
    rows = [row for row in run.rows if name in row.benchmarks]
    if not rows:
        return None
    entries = [row.benchmarks[name] for row in rows]
    return Curve(
        label=_label(runs, run, name if len(runs) == 1 else ""),
        x=[row.step for row in rows],
        y=[100 * entry["accuracy"] for entry in entries],
        error=[100 * (entry["standard_error"] or 0.0) for entry in entries],
    )


def _total_curve(runs: Runs, run: RunData) -> Curve:
    return Curve(
        label=_label(runs, run, "all questions" if len(runs) == 1 else ""),
        x=[row.step for row in run.rows],
        y=[100 * row.total.accuracy for row in run.rows],
        error=[100 * (row.total.standard_error or 0.0) for row in run.rows],
    )


def pass_at_k(runs: Runs) -> Figure | None:
    """pass@k over k of the first and the last checkpoint, a panel per benchmark."""
    curves: dict[str, list[Curve]] = {}
    for run in runs:
        ends = dict.fromkeys(row.step for row in [*run.rows[:1], *run.rows[-1:]])
        for row in (row for row in run.rows if row.step in ends):
            for name, entry in row.benchmarks.items():
                values = {int(k): 100 * value for k, value in entry["pass_at_k"].items()}
                if len(values) > 1:
                    label, ks = _label(runs, run, f"step {row.step}"), sorted(values)
                    curve = Curve(label=label, x=ks, y=[values[k] for k in ks])
                    curves.setdefault(name, []).append(curve)
    if not curves:
        return None
    return Figure(
        name="pass_at_k",
        title="pass@k",
        caption="unbiased, from all samples of a question; the first and the last checkpoint",
        panels=[Panel(title=n, unit="per cent", curves=found) for n, found in curves.items()],
        x_title="k",
        log_x=True,
    )


def templates(runs: Runs) -> Figure | None:
    """Accuracy and format reward by template, a panel each."""
    names = sorted({name for run in runs for name in template_names(run)})
    parts = ("accuracy", "format")
    keys = {name: {f"template/{name}/{part}": part for part in parts} for name in names}
    panels = [_metrics(runs, name, "mean per rollout", found) for name, found in keys.items()]
    caption = "accuracy and format reward of the training rollouts drawn with each template"
    return _figure("templates", "Templates", caption, panels)


def template_names(data: RunData) -> list[str]:
    """The templates for which the run has an accuracy or a format reward."""
    keys = data.keys("template/")
    wanted = ("/accuracy", "/format")
    return sorted({key.split("/", 1)[1].rsplit("/", 1)[0] for key in keys if key.endswith(wanted)})


def grades(runs: Runs) -> Figure | None:
    """The share of training rollouts by grading status, without those that never occurred."""
    keys = {key for run in runs for key in run.keys("grade/") if any(run.series(key)[1])}
    labels = {key: key.removeprefix("grade/") for key in sorted(keys)}
    panel = _metrics(runs, "Grading status in training", "share of rollouts", labels)
    return _figure("grades", "What the grader said", "shares of all training rollouts", [panel])


def step_time(runs: Runs) -> Figure | None:
    """Where a training step spends its seconds; of one run the parts, stacked to the whole step."""
    if len(runs) > 1:
        panel = _metrics(runs, "Seconds per training step", "seconds", {"timing_s/step": ""})
    else:
        panel = _parts_of_a_step(runs[0])
    return _figure("step_time", "Step time", "without validation and saving", [panel])


def _parts_of_a_step(run: RunData) -> Panel | None:
    steps, whole = run.series("timing_s/step")
    if not steps:
        return None
    by_step = {float(line["step"]): line for line in run.metrics}
    parts = {}
    for part in STEP_PARTS:
        seconds = [float(by_step[step].get(f"timing_s/{part}") or 0.0) for step in steps]
        if any(seconds):
            parts[part] = seconds
    rest = [total - sum(p[i] for p in parts.values()) for i, total in enumerate(whole)]
    # Where the parts overlap, stacking them would draw time that was never spent.
    stacked = all(left >= -0.05 * total for left, total in zip(rest, whole, strict=True))
    parts |= {"other": [max(left, 0.0) for left in rest]} if stacked else {"step": whole}
    curves = [Curve(label=name, x=steps, y=values) for name, values in parts.items()]
    return Panel(title="Seconds per training step", unit="seconds", curves=curves, stacked=stacked)


def _metrics(runs: Runs, title: str, unit: str, keys: Mapping[str, str]) -> Panel | None:
    """Metrics over one axis; `keys` maps a key to its label."""
    curves = [
        Curve(label=_label(runs, run, label), x=series[0], y=series[1])
        for run in runs
        for key, label in keys.items()
        if (series := run.series(key))[0]
    ]
    return Panel(title=title, unit=unit, curves=curves) if curves else None


def _figure(name: str, title: str, caption: str, panels: Sequence[Panel | None]) -> Figure | None:
    found = [panel for panel in panels if panel is not None]
    return Figure(name=name, title=title, caption=caption, panels=found) if found else None


def _one(name: str, title: str, caption: str, panel: tuple[str, str, dict[str, str]]) -> Draw:
    """A figure of one panel: (its title, unit, metric keys and their labels)."""
    return lambda runs: _figure(name, title, caption, [_metrics(runs, *panel)])


def _several(name: str, title: str, caption: str, keys: Mapping[str, tuple[str, str]]) -> Draw:
    """A figure of a panel per metric, for metrics of different units: key -> (title, unit)."""
    return lambda runs: _figure(
        name, title, caption, [_metrics(runs, *keys[key], {key: ""}) for key in keys]
    )


# In the order of the page; the titles are named where a run has no data.
FIGURES: Mapping[str, Draw] = {
    "Accuracy by checkpoint": accuracy,
    "pass@k": pass_at_k,
    "Reward": _one(
        "reward",
        "Reward",
        "mean over the rollouts of a step; accuracy and format are its parts",
        ("Reward, accuracy and format in training", "mean per rollout", REWARD_PARTS),
    ),
    "Templates": templates,
    "Groups without signal": _one(
        "no_signal",
        "Groups without signal",
        "all rollouts of the question got the same reward, so it teaches nothing",
        ("Share of groups without signal", "share of groups", {"train/no_signal_groups": ""}),
    ),
    # Not verl's actor/entropy: that is aggregated as the loss is, so its unit is the method's.
    "Entropy": _one(
        "entropy",
        "Entropy",
        "mean over response tokens, in nats",
        ("Policy entropy", "nats per token", {"train/entropy": ""}),
    ),
    "Response length": _several(
        "response_length",
        "Response length",
        "mean over the rollouts of a step, and the share of them cut at the limit",
        LENGTHS,
    ),
    "Optimisation": _several(
        "optimisation", "Optimisation", "means over the mini-batches of a step", UPDATES
    ),
    "What the grader said": grades,
    "Step time": step_time,
}


def figures(runs: Runs) -> tuple[list[Figure], list[str]]:
    """Every figure that the runs have data for, and a note for each that they have not."""
    found, absent = [], []
    for title, make in FIGURES.items():
        figure = make(runs)
        if figure is not None:
            found.append(figure)
        elif title != "pass@k":  # needs several samples of a question, which few ask for
            absent.append(f"no picture of {title!r}: the run has no data for it")
    return found, absent
