"""The page's figures, as SVG inside data addresses: narrow enough for a phone, sharp in print, the same every time."""

import base64
import io
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from counterpoint.checks.findings import CheckReport
from counterpoint.ope.result import Evaluation
from counterpoint.page.cohort import Bars
from counterpoint.page.evaluation_figure import calibration, confounding, forest
from counterpoint.page.imagined import Surface
from counterpoint.page.style import BLACK, BLUE, GREEN, GREY, PALE, PALETTE, VERMILLION, drawing, reference_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 5.6
"""inches; a phone shows it at two thirds, where 12 points are 10 pixels high"""
PANELS = 3


def svg(height: float, draw: Callable[["Figure"], None]) -> str:
    """A drawing as the address of an image that is the address itself."""
    import matplotlib

    with drawing(WIDTH, height) as figure, matplotlib.rc_context({"svg.hashsalt": "counterpoint"}):
        draw(figure)
        written = io.BytesIO()
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(written.getvalue()).decode()}"


def lengths(bars: Bars) -> str:
    """Subjects by length; a hollow bar of ten stands for a count that is not shown."""
    from matplotlib.ticker import MaxNLocator

    def draw(figure: "Figure") -> None:
        axes = figure.subplots()
        places = 1 + bars.width * (np.arange(len(bars.counts)) + 0.5) - 0.5
        known = np.array([count is not None for count in bars.counts])
        axes.bar(
            places[known], [count for count in bars.counts if count is not None], color=BLUE, width=0.8 * bars.width
        )
        if not known.all():
            axes.bar(places[~known], 10, color="white", edgecolor=GREY, width=0.8 * bars.width, label="not shown")
            axes.legend(loc="upper left")
        axes.set(xlabel=bars.label, ylabel="subjects")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))

    return svg(2.9, draw)


def checks(found: CheckReport) -> str:
    """Every check as a share of what is acceptable."""

    def draw(figure: "Figure") -> None:
        axes = figure.subplots()
        shown = [each for each in found.findings if math.isfinite(each.value) and each.threshold > 0]
        for line, each in enumerate(reversed(shown)):
            colour = GREEN if each.passed else VERMILLION
            size = max(each.value / each.threshold, 0.0)
            axes.plot([0, min(size, 3)], [line, line], color=colour, linewidth=2)
            axes.plot(min(size, 3), line, marker="o" if each.passed else "X", color=colour, markersize=9)
        axes.set_yticks(range(len(shown)), [each.name for each in reversed(shown)])
        axes.set(xlim=(0, 3.15), ylim=(-0.6, len(shown) - 0.4), xlabel="multiple of what is acceptable, up to 3")
        reference_line(axes, 1.0, "acceptable up to here", vertical=True)

    return svg(0.9 + 0.36 * len(found.findings), draw)


def surface(found: Surface) -> str:
    """What the model says each action does to one column, by severity."""
    return _maps(found) if found.choices.grid else _lines(found)


def _maps(found: Surface) -> str:
    """The mildest, the middle and the most severe group as maps over two doses; unsupported cells are crossed out."""
    grid, change = found.choices.grid, found.change.numpy()
    assert grid is not None
    shown = sorted({0, (len(found.groups) - 1) // 2, len(found.groups) - 1})[:PANELS]
    most = float(np.abs(change[shown]).max()) or 1.0

    def draw(figure: "Figure") -> None:
        panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
        for axes, group in zip(panels, shown, strict=True):
            shape = (len(grid.rows), len(grid.columns))
            image = axes.imshow(
                change[group].reshape(shape), cmap="PuOr_r", vmin=-most, vmax=most, aspect="auto", origin="lower"
            )
            for place, own in enumerate(found.supported[group]):
                if not own:
                    at = place % shape[1], place // shape[1]
                    axes.plot(*at, marker="x", color="white", markersize=7, markeredgewidth=3.2)
                    axes.plot(*at, marker="x", color=BLACK, markersize=6, markeredgewidth=1.3)
            axes.set_xticks(range(shape[1]), grid.columns, rotation=90, fontsize=10)
            axes.set_title(_broken(found.groups[group]), fontsize=10)
            axes.spines[:].set_visible(False)
            axes.tick_params(length=0)
        panels[0].set_yticks(range(len(grid.rows)), grid.rows, fontsize=10)
        panels[0].set_ylabel(grid.down, fontsize=10)
        panels[len(panels) // 2].set_xlabel(grid.across, fontsize=10)
        bar = figure.colorbar(image, ax=list(panels), location="bottom", shrink=0.8, pad=0.02, label=_change(found))  # pyright: ignore[reportPossiblyUnboundVariable]
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]

    return svg(4.2, draw)


def _lines(found: Surface) -> str:
    """A line a group over the actions; hollow where nobody alike was given the action."""

    def draw(figure: "Figure") -> None:
        axes = figure.subplots()
        places = np.arange(len(found.choices))
        for group, label in enumerate(found.groups):
            colour, values = PALETTE[group % len(PALETTE)], found.change[group].numpy()
            filled = np.array(found.supported[group])
            axes.plot(places, values, color=colour, linewidth=1.6, label=label)
            axes.plot(places[filled], values[filled], "o", color=colour, markersize=6)
            axes.plot(places[~filled], values[~filled], "o", color=colour, markerfacecolor="white", markersize=6)
        steep = max(map(len, found.choices.labels)) * len(places) > 48
        axes.set_xticks(
            places, found.choices.labels, rotation=60 if steep else 0, ha="right" if steep else "center", fontsize=10
        )
        axes.axhline(0, color=PALE, linewidth=1, zorder=0)
        axes.set_ylabel(_change(found), fontsize=11)
        figure.legend(loc="outside lower center", fontsize=10, ncols=1)

    return svg(3.4 + 0.2 * len(found.groups), draw)


def _change(found: Surface) -> str:
    return f"mean change of {found.column}" + (f", {found.unit}" if found.unit else "")


def _broken(text: str) -> str:
    """A label on two lines."""
    head, _, rest = text.partition(" ")
    return f"{head}\n{rest}"


def estimates(found: Evaluation) -> str:
    """Every estimate with its interval beside that of whoever logged."""
    return svg(1.6 + 0.36 * len(found.estimates), lambda figure: forest(figure.subplots(), found))


def behaviour(found: Evaluation) -> str:
    """How often actions were taken that were foreseen with some probability."""
    return svg(3.4, lambda figure: calibration(figure.subplots(), found))


def unmeasured(found: Evaluation) -> str:
    """What the value can be under unmeasured confounding."""
    return svg(3.4, lambda figure: confounding(figure.subplots(), found))
