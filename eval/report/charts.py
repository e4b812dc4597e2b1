"""The figures of a report as PNG bytes, in a palette for the color-blind.

Thin lines are single steps, thick lines are running means.
"""

import io
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from numpy.typing import NDArray

from eval.report.figures import Curve, Figure, Panel

COLUMNS = 3
FEW = 12  # points; shorter curves get markers and no running mean
STYLE: Any = ["tableau-colorblind10", {"axes.grid": True}]  # Any: matplotlib types each key


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
    with style.context(STYLE):
        canvas = Canvas(figsize=(9.0, 3.5 if columns == 1 else 2.7 * rows), layout="constrained")
        same = len({panel.unit for panel in figure.panels}) == 1
        grid = canvas.subplots(rows, columns, squeeze=False, sharey=same).flatten().tolist()
        for axes, panel in zip(grid, figure.panels, strict=False):
            _draw(axes, panel, small=len(figure.panels) > 1)
        for axes in grid[len(figure.panels) :]:
            axes.set_visible(False)
        buffer = io.BytesIO()
        # Without metadata, which holds matplotlib's version.
        canvas.savefig(buffer, format="png", dpi=144, metadata={"Software": None})
    return buffer.getvalue()


def _draw(axes: Axes, panel: Panel, *, small: bool) -> None:
    axes.set_title(plain(panel.title))
    axes.set_ylabel(plain(panel.unit))
    axes.set_xlabel("training step")
    axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(integer=True))
    for number, curve in enumerate(panel.curves):
        _line(axes, curve, f"C{number % 10}")
    if len(panel.curves) > 1:
        place = {"loc": "best"} if small else {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
        axes.legend(frameon=False, fontsize=7 if small else 9, **place)


def _line(axes: Axes, curve: Curve, color: str) -> None:
    label = plain(curve.label)
    if curve.error is not None:
        axes.errorbar(
            curve.x, curve.y, yerr=curve.error, label=label, color=color, marker="o", capsize=3
        )
    elif len(curve.x) < FEW:
        axes.plot(curve.x, curve.y, color=color, label=label, marker="o", ms=3.5)
    else:
        axes.plot(curve.x, curve.y, color=color, alpha=0.3, linewidth=0.9)
        smooth = running_mean(curve.y, max(5, len(curve.y) // 20))
        axes.plot(curve.x, smooth, color=color, label=label, linewidth=2.0)
