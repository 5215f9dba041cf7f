"""Style of all figures: Okabe-Ito colours, which colour-blind readers can distinguish, and plain axes."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from counterpoint.core.artifacts import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, VERMILLION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, BLACK = "#CC79A7", "#56B4E9", "#000000"
GREY, PALE = "#6E6E6E", "#D0D0D0"
# Grey stands in for Okabe and Ito's yellow, which vanishes on white.
PALETTE = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK, GREY)

WIDTH = 10.0
"""inches; a README shows it at about 85 pixels an inch, where 12 points are 14 pixels high"""

STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 12,
    "axes.titlesize": 12,
    "axes.labelsize": 12,
    "figure.titlesize": 14,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": "#202020",
    "ytick.labelcolor": "#202020",
    "legend.frameon": False,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}


@contextmanager
def canvas(path: str | os.PathLike[str], height: float, title: str) -> Iterator["Figure"]:
    """Open a figure that is written as a PNG to `path` when the block ends; nothing is written if it raises."""
    with replacing(path) as temporary, drawing(WIDTH, height) as figure:
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
        yield figure
        figure.savefig(temporary, format="png", dpi=150, metadata={"Software": None})


@contextmanager
def drawing(width: float, height: float) -> Iterator["Figure"]:
    """Open a figure of a size in inches. It uses no pyplot state, and matplotlib's settings are restored."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    # Start from the defaults, so that a user's settings do not change the figure.
    with matplotlib.rc_context(_settings()):
        figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.07))
        FigureCanvasAgg(figure)
        yield figure


def reference_line(axes: "Axes", value: float, label: str, vertical: bool = False) -> None:
    """Draw a labelled dashed line at a reference value."""
    draw = axes.axvline if vertical else axes.axhline
    draw(value, color=GREY, linestyle="--", linewidth=1.2, zorder=1)
    place, offset, across, up = (
        ((value, 1), (0, 4), "center", "bottom") if vertical else ((0, value), (4, -4), "left", "top")
    )
    frame = ("data", "axes fraction") if vertical else ("axes fraction", "data")
    axes.annotate(
        label, place, offset, xycoords=frame, textcoords="offset points", ha=across, va=up, color=GREY, fontsize=10.5
    )


def legend_once(figure: "Figure", panels: Sequence["Axes"]) -> None:
    """Draw one legend under the figure with the distinct labels of all panels."""
    named: dict[str, Any] = {}
    for panel in panels:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    figure.legend(list(named.values()), list(named), loc="outside lower center", ncols=3)


def _settings() -> Any:
    """matplotlib's default settings, except the backend, updated by `STYLE`."""
    import matplotlib

    kept = {key: value for key, value in matplotlib.rcParamsDefault.items() if not key.startswith("backend")}
    return {**kept, **STYLE}
