"""The figures of a report as PNG bytes, in a palette for the color-blind.

Thin lines are single steps, thick lines are running means.
"""

import io
import textwrap
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from numpy.typing import NDArray

from eval.show.figures import Curve, Figure, Panel

# Okabe and Ito's palette, darkest first.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#444444")
STACK_COLORS = (*COLORS, "#F0E442", "#999999", "#66A61E", "#882255", "#DDCC77")
MARKERS = "osD^vP*"
LINES = ("-", "--", ":", "-.")  # a curve beyond the colors has the next one
COLUMNS = 3
LABEL_CHARACTERS = 28  # of a line
FEW = 12  # points; shorter curves get markers and no running mean
STYLE: Any = {  # Any: matplotlib types each key
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#E4E4E4",
    "axes.axisbelow": True,
}


def running_mean(values: Sequence[float], window: int) -> NDArray[np.float64]:
    """Return the mean of each value and up to `window // 2` neighbors on each side."""
    kernel = np.ones(2 * (window // 2) + 1)
    near = [np.convolve(x, kernel)[window // 2 :][: len(x)] for x in (values, np.ones(len(values)))]
    return near[0] / near[1]


def plain(text: str) -> str:
    """Escape dollars, between which matplotlib would read a formula."""
    return text.replace("$", r"\$")


def png(figure: Figure) -> bytes:
    """Draw a figure. The same figure gives the same bytes."""
    columns = min(COLUMNS, len(figure.panels))
    rows = -(-len(figure.panels) // columns)
    with mpl.rc_context(STYLE):
        canvas = Canvas(figsize=(9.0, 3.5 if columns == 1 else 2.7 * rows), layout="constrained")
        grid = canvas.subplots(rows, columns, squeeze=False).flatten().tolist()
        for axes, panel in zip(grid, figure.panels, strict=False):
            _draw(axes, panel, figure)
            if (shared := figure.y_range(panel)) and not panel.stacked:
                axes.set_ylim(*shared)
        for axes in grid[len(figure.panels) :]:
            axes.set_visible(False)
        buffer = io.BytesIO()
        # Without metadata, which holds matplotlib's version.
        canvas.savefig(buffer, format="png", dpi=144, metadata={"Software": None})
    return buffer.getvalue()


def _draw(axes: Axes, panel: Panel, figure: Figure) -> None:
    axes.set_title(plain(panel.title))
    axes.set_ylabel(plain(panel.unit))
    axes.set_xlabel(figure.x_title)
    if figure.log_x:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(mpl.ticker.FormatStrFormatter("%d"))
    else:
        axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(integer=True))
    if panel.stacked:
        values = [curve.y for curve in panel.curves]
        labels = [plain(curve.label) for curve in panel.curves]
        axes.stackplot(panel.curves[0].x, values, labels=labels, colors=STACK_COLORS)
        axes.set_ylim(bottom=0)
    for curve in () if panel.stacked else panel.curves:
        again, index = divmod(curve.color, len(COLORS))
        style = {"color": COLORS[index], "linestyle": LINES[again % len(LINES)]}
        _line(axes, curve, style, MARKERS[(index + again) % len(MARKERS)])
    if len(panel.curves) > 1:
        small = len(figure.panels) > 1
        place = {"loc": "best"} if small else {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
        size = 7 if small else 9
        legend = axes.legend(frameon=False, fontsize=size, reverse=panel.stacked, **place)
        for text in legend.get_texts():
            text.set_text(textwrap.fill(text.get_text().strip(), LABEL_CHARACTERS))


def _line(axes: Axes, curve: Curve, style: Any, marker: str) -> None:
    label = " " + plain(curve.label)  # matplotlib's legend omits a label that begins with _
    if curve.error is not None:
        bars = np.array(curve.error, dtype=np.float64)  # None: NaN, no bar
        axes.errorbar(curve.x, curve.y, yerr=bars, label=label, **style,
                      marker=marker, ms=5, linewidth=1.8, capsize=3)  # fmt: skip
    elif len(curve.x) < FEW:
        axes.plot(curve.x, curve.y, **style, label=label, linewidth=1.8, marker="o", ms=3.5)
    else:
        axes.plot(curve.x, curve.y, **style, alpha=0.3, linewidth=0.9)
        smooth = running_mean(curve.y, max(5, len(curve.y) // 20))
        axes.plot(curve.x, smooth, **style, label=label, linewidth=2.0)
