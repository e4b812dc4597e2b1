"""Pictures of an experiment's curves: the mean over seeds of each arm, with a band.

The band is Student's 95 % interval of the mean. Arms with fewer than `FEW` seeds have a dashed line
without a band. If all arms have fewer, the bands are ranges over seeds.
"""

import io
import re
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe.lab.experiment import Experiment
from recipe.lab.paired import half_width
from recipe.lab.runs import BIN, Lines, by_seed

Curve = list[tuple[float, float]]  # step, value
FEW = 10  # seeds
COLOURS = (  # of `experiment.COMPARED` arms
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"),
    *("#56B4E9", "#444444", "#882255", "#999933"),
)
LABELS = {  # title and y label of the keys of metrics.jsonl
    "train/accuracy": ("Accuracy in training", "share of responses correct"),
    "train/entropy": ("Entropy in training", "nats per token"),
    "train/no_signal_groups": ("Zero-variance groups in training", "share of groups"),
    "covariance/std": ("Token covariance: standard deviation", "nats x advantage"),
    "covariance/positive/p1": ("Positive token covariance: 99th percentile", "nats x advantage"),
    "covariance/negative/p1": ("Negative token covariance: 1st percentile", "nats x advantage"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """A PNG; `curves` has a curve of each run by arm."""

    file: str
    title: str
    label: str
    curves: dict[str, list[Curve]]

    @property
    def ranges(self) -> bool:
        """True if the bands are ranges over seeds."""
        return max(map(len, self.curves.values())) < FEW


def pictures(experiment: Experiment, lines: Lines) -> list[Picture]:
    """Return a picture of each curve on record, with the arms of `compare`."""
    made = []
    for key in (*held_out(experiment), *experiment.curves):
        found = trajectories(experiment, lines, key)
        shown = [name for name in by_comparison(experiment) if name in found]
        if not shown:
            continue
        template, _, figure = key.partition(" ")
        title, label = LABELS.get(key, (key, key))
        file = re.sub(r"[/ ]", "_", key.replace("@", "_at_")) + ".png"
        if figure:
            title, label = f"Held-out {figure}, template {template}", figure
            file = f"template_{file}"
        curves = {name: found[name] for name in shown}
        made.append(Picture(file=file, title=title, label=label, curves=curves))
    return made


def by_comparison(experiment: Experiment) -> list[str]:
    """Return the arms in the order of `compare`, the baseline of a pair first."""
    return list(dict.fromkeys(name for pair in experiment.compare for name in reversed(pair)))


def trajectories(experiment: Experiment, lines: Lines, key: str) -> dict[str, list[Curve]]:
    """Return {arm: curve of each run} of a key of metrics.jsonl or of `held_out`."""
    found = {
        arm.name: [_curve(experiment, line, key) for line in by_seed(arm.name, lines).values()]
        for arm in experiment.arms
    }
    return {name: list(filter(None, curves)) for name, curves in found.items() if any(curves)}


def held_out(experiment: Experiment) -> list[str]:
    """Return the keys of the curves over checkpoints: pass@1 and pass@k, k = samples."""
    sizes = dict.fromkeys((1, experiment.measure.samples))
    return [f"{name} pass@{k}" for name in experiment.measure.templates for k in sizes]


def _curve(experiment: Experiment, line: dict[str, Any], key: str) -> Curve:
    """Return [(step, value)] of one run; means of BIN steps are at their middle step."""
    if key in held_out(experiment):
        template, size = key.rsplit(" ", 1)
        found = sorted((int(step), numbers[template]) for step, numbers in line["measured"].items())
        return [(step, numbers[size]) for step, numbers in found if size in numbers]
    values = line["curves"].get(key) or []
    if len(values) < experiment.steps // BIN and None not in values:
        return []  # an older line omits bins without a value, so the steps are unknown
    return [(BIN * i + (BIN + 1) / 2, v) for i, v in enumerate(values) if v is not None]


def draw(experiment: Experiment, lines: Lines, folder: Path) -> None:
    """Write the pictures. The letters are large, because pages show pictures at half size."""
    import matplotlib  # a second of imports
    from matplotlib.figure import Figure
    from PIL import Image

    colors = dict(zip(by_comparison(experiment), COLOURS, strict=False))
    for picture in pictures(experiment, lines):
        with matplotlib.rc_context({"font.size": 15}):
            figure = Figure(figsize=(11, 5), dpi=110, layout="constrained")
            axes = figure.add_subplot()
            for name, curves in picture.curves.items():
                by_step: dict[float, list[float]] = {}
                for step, value in (point for curve in curves for point in curve):
                    by_step.setdefault(step, []).append(value)
                steps = sorted(by_step)
                values = [by_step[step] for step in steps]
                means = [statistics.fmean(v) for v in values]
                color, label = colors[name], f"{name} ({len(curves)} seeds)"
                if len(curves) < FEW and not picture.ranges:
                    axes.plot(steps, means, "--", color=color, linewidth=2, label=label)
                    continue
                low, high = [min(v) for v in values], [max(v) for v in values]
                if not picture.ranges:
                    halves = [half_width(v) for v in values]
                    low = [mean - half for mean, half in zip(means, halves, strict=True)]
                    high = [mean + half for mean, half in zip(means, halves, strict=True)]
                axes.plot(steps, means, color=color, linewidth=3, label=label)
                axes.fill_between(steps, low, high, fc=(color, 0.1), ec=(color, 0.4))
            axes.set(xlabel="training step", ylabel=picture.label)
            axes.set_title(picture.title, loc="left")  # a long one may extend past the axes
            axes.spines[["top", "right"]].set_visible(False)
            if "pass@" in picture.label:
                axes.set_ylim(-0.02, 1.02)  # the same for all templates
            band = "range over seeds" if picture.ranges else "95 % interval"
            # Beside the axes, because the bands cover most of them.
            axes.legend(
                frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), alignment="left",
                title=f"line: mean over seeds\nband: {band}",
            )  # fmt: skip
            figure.savefig(drawn := io.BytesIO())
        # A third of the bytes. The octree keeps the lines' colors; other methods shift them.
        image = Image.open(drawn).convert("RGB").quantize(64, Image.Quantize.FASTOCTREE)
        image.save(folder / picture.file, optimize=True)
