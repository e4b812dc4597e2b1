"""The pictures of a report, as PNG bytes, in colours that the colour-blind can tell apart.

Every function returns None where the run has nothing to draw. Thin lines are single steps, strong
ones running means.
"""

import io
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from eval.report.data import RunData, Series

# Okabe and Ito's palette, darkest first.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#444444")
STACK_COLOURS = (*COLOURS, "#F0E442", "#999999", "#66A61E", "#882255", "#DDCC77")
MARKERS = "osD^vP*"
STYLE: Any = {  # Any: matplotlib types each key of its own
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.labelcolor": "#333333",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#E4E4E4",
    "axes.axisbelow": True,
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "figure.dpi": 144,
}
# The parts of a trainer step that follow one another; what is left of the step is "other".
# Validation and saving come every few steps and lie outside verl's timer of the step.
STEP_PARTS = (
    "gen",
    "reward",
    "old_log_prob",
    "ref",
    "values",
    "adv",
    "update_critic",
    "update_actor",
    "update_weights",
)


def running_mean(values: Sequence[float], window: int) -> NDArray[np.float64]:
    """Mean of each value and its neighbours, `window` of them at most, fewer at the ends."""
    array = np.asarray(values, dtype=np.float64)
    half = window // 2
    sums = np.concatenate([[0.0], np.cumsum(array)])
    low = np.maximum(np.arange(len(array)) - half, 0)
    high = np.minimum(np.arange(len(array)) + half + 1, len(array))
    return (sums[high] - sums[low]) / (high - low)


def plain(text: str) -> str:
    """`text` as it stands: matplotlib reads what stands between two dollars as a formula."""
    return text.replace("$", r"\$")


def accuracy(data: RunData) -> bytes | None:
    """Accuracy by step, one line per benchmark, bars of one standard error."""
    if not data.rows:
        return None
    steps = [row.step for row in data.rows]
    figure, (axes,) = _figure("Accuracy on held-out questions")
    names = list(data.rows[-1].benchmarks)
    for name, colour, marker in zip(names, cycle(COLOURS), cycle(MARKERS), strict=False):
        entries = [row.benchmarks[name] for row in data.rows]
        _error_line(
            axes,
            steps,
            [100 * entry["accuracy"] for entry in entries],
            [100 * (entry["standard_error"] or 0.0) for entry in entries],
            (plain(name), colour, marker),
        )
    if len(names) > 1:
        means = [100 * row.total.accuracy for row in data.rows]
        errors = [100 * (row.total.standard_error or 0.0) for row in data.rows]
        _error_line(axes, steps, means, errors, ("all questions", "#000000", "X"), width=2.6)
    axes.set_ylabel("per cent right, ±1 standard error")
    if len(steps) <= 12:
        axes.set_xticks(steps)
    low, high = axes.get_ylim()
    axes.set_ylim(max(-3.0, low), min(103.0, high))
    if len(names) > 1:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    return _png(figure)


def grades(data: RunData) -> bytes | None:
    """The share of training rollouts by grading status, without those that never occurred."""
    occurred = [key for key in data.keys("grade/") if any(data.series(key)[1])]
    keys = {key: key.removeprefix("grade/") for key in occurred}
    return lines(data, "Grading status in training", "share of rollouts", keys)


def lines(data: RunData, title: str, unit: str, keys: Mapping[str, str]) -> bytes | None:
    """Several metrics over one axis; `keys` maps a metric key to its label."""
    present = {plain(v): data.series(k) for k, v in keys.items() if data.series(k)[0]}
    if not present:
        return None
    figure, (axes,) = _figure(title)
    for (label, series), colour in zip(present.items(), cycle(COLOURS), strict=False):
        _smooth_line(axes, series, label, colour)
    axes.set_ylabel(unit)
    if len(present) > 1:
        axes.legend(loc="best", frameon=False)
    return _png(figure)


def panels(data: RunData, keys: Mapping[str, tuple[str, str]]) -> bytes | None:
    """One small panel per metric, for metrics of different units: key -> (title, unit)."""
    present = {key: labels for key, labels in keys.items() if data.series(key)[0]}
    if not present:
        return None
    figure, all_axes = _figure(*[title for title, _ in present.values()])
    for axes, (key, (_, unit)), colour in zip(
        all_axes, present.items(), cycle(COLOURS), strict=False
    ):
        _smooth_line(axes, data.series(key), "", colour)
        axes.set_ylabel(unit)
    return _png(figure)


def templates(data: RunData) -> bytes | None:
    """Accuracy and format reward by template, a panel each, on shared axes."""
    names = template_names(data)
    if not names:
        return None
    columns = min(4, len(names))
    rows = -(-len(names) // columns)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.0, 0.7 + 2.0 * rows), layout="constrained")
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
        for axes, name in zip(grid, names, strict=False):
            axes.set_title(plain(name), fontsize=9)
            for part, colour in (("accuracy", COLOURS[0]), ("format", COLOURS[1])):
                _smooth_line(axes, data.series(f"template/{name}/{part}"), part, colour)
            axes.set_ylim(-0.05, 1.05)
        for axes in grid[len(names) :]:
            axes.set_visible(False)
        handles, labels = grid[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper right", ncols=2, frameon=False)
        figure.supxlabel("training step", fontsize=10)
        return _png(figure)


def step_time(data: RunData) -> bytes | None:
    """Where a training step spends its seconds, parts stacked up to the whole step."""
    steps, whole = data.series("timing_s/step")
    if not steps:
        return None
    by_step = {float(line["step"]): line for line in data.metrics}
    parts = {}
    for part in STEP_PARTS:
        seconds = [float(by_step[step].get(f"timing_s/{part}") or 0.0) for step in steps]
        if any(seconds):
            parts[part] = np.array(seconds)
    rest = np.array(whole) - sum(parts.values(), np.zeros(len(whole)))
    figure, (axes,) = _figure("Seconds per training step")
    if (rest >= -0.05 * np.array(whole)).all():
        parts["other"] = np.maximum(rest, 0.0)
        axes.stackplot(steps, list(parts.values()), labels=list(parts), colors=STACK_COLOURS)
    else:  # the parts overlap: stacking them would draw time that was never spent
        for (name, values), colour in zip(parts.items(), cycle(COLOURS), strict=False):
            axes.plot(steps, values, label=name, color=colour)
        axes.plot(steps, whole, label="step", color="#000000", linewidth=2.2)
    axes.set_ylabel("seconds")
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), reverse=True, frameon=False)
    return _png(figure)


def template_names(data: RunData) -> list[str]:
    """The templates for which the run has an accuracy or a format reward."""
    keys = data.keys("template/")
    wanted = ("/accuracy", "/format")
    return sorted({key.split("/", 1)[1].rsplit("/", 1)[0] for key in keys if key.endswith(wanted)})


def _figure(*titles: str) -> tuple[Figure, list[Axes]]:
    with mpl.rc_context(STYLE):
        height = 3.5 if len(titles) == 1 else 2.9
        figure = Figure(figsize=(9.0, height), layout="constrained")
        grid = figure.subplots(1, len(titles), squeeze=False).flatten().tolist()
        for axes, title in zip(grid, titles, strict=True):
            axes.set_title(title)
            axes.set_xlabel("training step")
            axes.xaxis.get_major_locator().set_params(integer=True)
        return figure, grid


def _error_line(
    axes: Axes,
    steps: Sequence[int],
    means: Sequence[float],
    errors: Sequence[float],
    look: tuple[str, str, str],
    width: float = 1.8,
) -> None:
    label, colour, marker = look
    axes.errorbar(
        steps, means, yerr=errors, label=label, color=colour, marker=marker, ms=5.5,
        linewidth=width, capsize=3,
    )  # fmt: skip


def _smooth_line(axes: Axes, series: Series, label: str, colour: str) -> None:
    steps, values = series
    if len(steps) < 12:
        axes.plot(steps, values, color=colour, label=label, linewidth=1.8, marker="o", ms=3.5)
        return
    axes.plot(steps, values, color=colour, alpha=0.3, linewidth=0.9)
    smooth = running_mean(values, max(5, len(values) // 20))
    axes.plot(steps, smooth, color=colour, label=label, linewidth=2.0)


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    # No time stamp or version inside, so that the same run gives the same bytes.
    figure.savefig(buffer, format="png", dpi=144, metadata={"Software": None})
    return buffer.getvalue()
