"""Figures of a reproduction: our returns beside the paper's, paired differences, and returns by environment.

Every function takes rows (a list of dictionaries, as `results.read_csv` returns them) and draws a PNG at a path.
Estimates and intervals are columns of the rows, or computed over seeds by `core.statistics`.
"""

import os
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from counterpoint.core.statistics import BOOTSTRAP, Bootstrap, Interval
from counterpoint.core.tables import Row, require_columns
from counterpoint.page.returns import seed_line, unique
from counterpoint.page.style import (
    BLUE,
    GREY,
    PALE,
    VERMILLION,
    canvas,
    legend_once,
    reference_line,
)
from reproduction.pages.tables import select

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BAR_COLUMNS = ("method", "trials", "low", "estimate", "high")
PANELS_ACROSS = 4
"""Groups of differences side by side."""


def returns_by_size(
    ours: Sequence[Row],
    paper: Sequence[Row],
    path: str | os.PathLike[str],
    *,
    title: str = "Return by number of logged trials: this package beside the paper",
    ours_label: str = "ours: estimate and 95% interval over seeds",
    ceiling: float | None = None,
) -> None:
    """Draw the counterpart of the paper's Figure 2a: a panel for each of our methods, with the paper's points.

    Both tables have the columns method, trials, low, estimate, high; methods that only the paper has are left out.
    """
    require_columns(ours, BAR_COLUMNS, "ours")
    if paper:
        require_columns(paper, BAR_COLUMNS, "paper")
    methods = unique(ours, "method")
    lines = -(-len(methods) // 4)
    with canvas(path, 1.3 + 2.35 * lines, title) as figure:
        panels = _shared_panels(figure, lines, -(-len(methods) // lines), len(methods))
        for panel, method in zip(panels, methods, strict=True):
            _returns_panel(panel, method, ours, paper, ours_label)
            _sizes_axis(panel, sorted({row["trials"] for row in ours}))
            if ceiling is not None:
                reference_line(panel, ceiling, f"ceiling {ceiling:g}" if method == methods[0] else "")
                panel.set(ylim=(0, ceiling * 1.06))
        legend_once(figure, panels)


def paired_differences(
    rows: Sequence[Row],
    path: str | os.PathLike[str],
    *,
    title: str = "Difference in return on the same data seeds",
    xlabel: str = "difference in return (95% interval)",
) -> None:
    """Draw a forest plot: columns comparison, low, estimate, high; with a column group, a panel for each group.

    Filled markers are intervals without zero: blue above it, vermillion below; hollow ones contain it.
    """
    require_columns(rows, ("comparison", "low", "estimate", "high"), "paired differences")
    comparisons, groups = unique(rows, "comparison"), list(dict.fromkeys(row.get("group") for row in rows))
    across = min(len(groups), PANELS_ACROSS)
    down = -(-len(groups) // across)
    tall = 0.36 if across == 1 else 0.21
    with canvas(path, 1.1 + down * (0.7 + tall * len(comparisons)), title) as figure:
        panels = list(figure.subplots(down, across, squeeze=False, sharex=True, sharey=True).flat)
        for panel, group in zip(panels, groups, strict=False):
            panel.axvline(0, color=GREY, linewidth=1.2, zorder=1)
            for row in (row for row in rows if row.get("group") == group):
                _forest_line(panel, comparisons.index(row["comparison"]), row, numbers=across == 1)
            panel.set_title("" if group is None else str(group), loc="left", fontweight="bold")
            panel.tick_params(axis="y", length=0, labelsize=12 if across == 1 else 9)
            panel.spines["left"].set_visible(False)
        for panel in panels[len(groups) :]:
            panel.set_visible(False)
        first = figure.axes[0]
        first.set_yticks(range(len(comparisons)), comparisons)
        first.set_ylim(len(comparisons) - 0.4, -0.6)
        figure.supxlabel(xlabel, fontsize=12)


def returns_by_environment(
    rows: Sequence[Row],
    path: str | os.PathLike[str],
    *,
    title: str = "True return in environments of Gymnasium, learned from random rows",
    bootstrap: Bootstrap = BOOTSTRAP,
) -> None:
    """Draw a panel for each environment: columns method, environment, rows, seed, return_true; a dot for each seed."""
    require_columns(rows, ("method", "environment", "rows", "seed", "return_true"), "returns")
    named = [
        {**row, "method": f"{row['method']}, {row['rows']} rows" if row["rows"] else row["method"]} for row in rows
    ]
    environments, methods = unique(rows, "environment"), unique(named, "method")
    with canvas(path, 1.9 + 0.5 * len(methods), title) as figure:
        panels = list(figure.subplots(1, len(environments), squeeze=False).flat)
        for panel, environment in zip(panels, environments, strict=True):
            _environment_panel(panel, select(named, environment=environment), environment, bootstrap)
        legend_once(figure, panels)


def _shared_panels(figure: "Figure", lines: int, columns: int, used: int) -> list["Axes"]:
    """The first `used` of a grid of panels on shared axes, labelled at its left edge and under each column."""
    grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    panels = list(grid.flat)
    for panel in panels[used:]:
        panel.set_axis_off()
    for line in grid:
        line[0].set_ylabel("return")
    for panel in panels[max(0, used - columns) : used]:
        panel.set_xlabel("logged trials")
        panel.tick_params(labelbottom=True)
    return panels[:used]


def _environment_panel(panel: "Axes", rows: Sequence[Row], environment: str, bootstrap: Bootstrap) -> None:
    methods = unique(rows, "method")
    for height, method in enumerate(methods):
        seed_line(panel, height, [float(row["return_true"]) for row in rows if row["method"] == method], bootstrap)
    panel.set(ylim=(len(methods) - 0.5, -0.5), xlabel="return")
    panel.tick_params(axis="x", labelsize="x-small")  # Names leave little room for numbers.
    panel.set_yticks(range(len(methods)), [textwrap.fill(method, 18) for method in methods])
    panel.set_title(environment, loc="left", fontweight="bold")
    panel.tick_params(axis="y", length=0)
    panel.spines["left"].set_visible(False)


def _sizes_axis(panel: "Axes", sizes: Sequence[int]) -> None:
    """Sizes as they are, or on a logarithmic axis where the largest is many times the smallest."""
    if sizes[-1] < 10 * sizes[0]:
        panel.set(xticks=sizes)
        return
    panel.set_xscale("log")
    named = [size for size in sizes if size == sizes[-1] or size <= sizes[-1] / 2]
    panel.set_xticks(named, [str(size) for size in named], minor=False)
    panel.set_xticks([], minor=True)


def _bars(rows: Sequence[Row], method: str) -> list[np.ndarray]:
    """trials, low, estimate, high of one method, in order of trials."""
    chosen = sorted((row for row in rows if row["method"] == method), key=lambda row: row["trials"])
    return [np.array([row[column] for row in chosen], float) for column in BAR_COLUMNS[1:]]


def _dots(trials: np.ndarray) -> str:
    """A line between sizes; the dot of one size alone, which no line shows."""
    return "-" if len(trials) > 1 else "o-"


def _returns_panel(panel: "Axes", method: str, ours: Sequence[Row], paper: Sequence[Row], ours_label: str) -> None:
    for number, other in enumerate(name for name in unique(ours, "method") if name != method):
        trials, _, estimate, _ = _bars(ours, other)
        label = "" if number else "ours, other methods"
        panel.plot(trials, estimate, _dots(trials), color=PALE, linewidth=1, markersize=4, zorder=1, label=label)
    trials, low, estimate, high = _bars(ours, method)
    panel.fill_between(trials, low, high, color=BLUE, alpha=0.22, linewidth=0, zorder=2)
    if len(trials) == 1:
        panel.vlines(trials, low, high, color=BLUE, alpha=0.5, linewidth=4, zorder=2)
    panel.plot(trials, estimate, _dots(trials), color=BLUE, linewidth=2.2, zorder=3, label=ours_label)
    trials, low, estimate, high = _bars(paper, method)
    if len(trials):
        bars = [estimate - low, high - estimate]
        panel.errorbar(
            trials, estimate, bars, fmt="o", color=VERMILLION, markersize=5, capsize=3, zorder=4, label="paper"
        )
    panel.set_title(textwrap.fill(method, 20), loc="left", fontweight="bold")


def _forest_line(axes: "Axes", height: int, row: Row, numbers: bool) -> None:
    """Draw one interval, with or without its numbers."""
    difference = Interval(float(row["estimate"]), float(row["low"]), float(row["high"]))
    sure = difference.excludes(0.0)
    colour = (BLUE if difference.estimate > 0 else VERMILLION) if sure else GREY
    axes.plot([difference.low, difference.high], [height, height], color=colour, linewidth=2, zorder=2)
    axes.plot(difference.estimate, height, "o", color=colour, markerfacecolor=colour if sure else "white", zorder=3)
    if not numbers:
        return
    axes.annotate(
        f"{difference:+.1f}".replace("-", "−"),
        (1.01, height),
        xycoords=("axes fraction", "data"),
        va="center",
        fontsize=11,
        color=colour,
    )
