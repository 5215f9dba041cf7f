"""The figures of a reproduction: ours beside the paper's, what each seed did, and who is better by how much.

Every function takes rows (a list of dictionaries, as `results.read_csv` gives them) and a path, and writes a PNG there.
Drawing decides nothing: estimates and intervals come in as columns, or from `evaluation.statistics` over the seeds.
"""

import os
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from counterpoint.core.results import Row, require_columns
from counterpoint.core.statistics import BOOTSTRAP, Bootstrap, Interval, interval, iqm
from counterpoint.page.style import (
    BLUE,
    GREY,
    PALE,
    PALETTE,
    VERMILLION,
    canvas,
    legend_once,
    reference_line,
    shared_panels,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    """The twin of the paper's Figure 2a: a panel for each of our methods, with the paper's points beside our line.

    Both tables have the columns method, trials, low, estimate, high; methods that only the paper has are left out.
    """
    require_columns(ours, BAR_COLUMNS, "ours")
    if paper:
        require_columns(paper, BAR_COLUMNS, "paper")
    methods = _unique(ours, "method")
    lines = -(-len(methods) // 4)
    with canvas(path, 1.3 + 2.35 * lines, title) as figure:
        panels = shared_panels(figure, lines, -(-len(methods) // lines), len(methods))
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
    """A forest plot: columns comparison, low, estimate, high; where rows belong to groups, a panel for each group.

    Filled markers are intervals without zero: blue above it, vermillion below; hollow ones cannot tell.
    """
    require_columns(rows, ("comparison", "low", "estimate", "high"), "paired differences")
    comparisons, groups = _unique(rows, "comparison"), list(dict.fromkeys(row.get("group") for row in rows))
    across = min(len(groups), PANELS_ACROSS)
    down = -(-len(groups) // across)
    tall = 0.36 if across == 1 else 0.21
    with canvas(path, 1.1 + down * (0.7 + tall * len(comparisons)), title) as figure:
        panels = list(figure.subplots(down, across, squeeze=False, sharex=True, sharey=True).flat)
        for panel, group in zip(panels, groups, strict=False):
            panel.axvline(0, color=GREY, linewidth=1.2, zorder=1)
            for row in (row for row in rows if row.get("group") == group):
                _forest_line(panel, comparisons.index(row["comparison"]), row, told=across == 1)
            panel.set_title("" if group is None else str(group), loc="left", fontweight="bold")
            panel.tick_params(axis="y", length=0, labelsize=12 if across == 1 else 9)
            panel.spines["left"].set_visible(False)
        for panel in panels[len(groups) :]:
            panel.set_visible(False)
        first = figure.axes[0]
        first.set_yticks(range(len(comparisons)), comparisons)
        first.set_ylim(len(comparisons) - 0.4, -0.6)
        figure.supxlabel(xlabel, fontsize=12)


def demo_figure(
    rows: Sequence[Row],
    path: str | os.PathLike[str],
    *,
    random_return: float | None = None,
    title: str = "Return of each training seed",
    ceiling: float | None = None,
    bootstrap: Bootstrap = BOOTSTRAP,
) -> None:
    """A dot for each seed (columns method, seed, return) over the interquartile mean and its interval over seeds."""
    require_columns(rows, ("method", "seed", "return"), "returns")
    methods = _unique(rows, "method")
    with canvas(path, 1.6 + 0.62 * len(methods), title) as figure:
        axes = figure.subplots()
        for height, method in enumerate(methods):
            _seed_line(axes, height, [float(row["return"]) for row in rows if row["method"] == method], bootstrap)
        if ceiling is not None:
            reference_line(axes, ceiling, f"ceiling {ceiling:g}", vertical=True)
            axes.set(xlim=(0, ceiling * 1.04))
        if random_return is not None:
            reference_line(axes, random_return, f"random policy {random_return:.0f}", vertical=True)
        axes.set(ylim=(len(methods) - 0.5, -0.5), xlabel="return")
        axes.set_yticks(range(len(methods)), methods)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        legend_once(figure, [axes])


def episodes_figure(
    paths: Mapping[str, Sequence[Sequence[float]]],
    names: Sequence[str],
    shown: Sequence[str],
    path: str | os.PathLike[str],
    *,
    title: str = "One start, one run of luck, each policy",
) -> None:
    """A panel for each shown column of the state, a line for each policy; a dot where its episode ended."""
    with canvas(path, 1.2 + 2.2 * len(shown), title) as figure:
        panels = list(figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0])
        for panel, column in zip(panels, shown, strict=True):
            for number, (policy, states) in enumerate(paths.items()):
                values = [state[names.index(column)] for state in states]
                panel.plot(values, color=PALETTE[number], linewidth=1.6, label=f"{policy}: {len(values)} steps")
                panel.plot(len(values) - 1, values[-1], "o", color=PALETTE[number], markersize=5)
            panel.set_ylabel(column)
        panels[-1].set_xlabel("step")
        legend_once(figure, panels)


def returns_by_environment(
    rows: Sequence[Row],
    path: str | os.PathLike[str],
    *,
    title: str = "True return in environments of Gymnasium, learned from random rows",
    bootstrap: Bootstrap = BOOTSTRAP,
) -> None:
    """A panel an environment (columns method, environment, rows, seed, return_true): a dot for each seed."""
    require_columns(rows, ("method", "environment", "rows", "seed", "return_true"), "returns")
    named = [
        {**row, "method": f"{row['method']}, {row['rows']} rows" if row["rows"] else row["method"]} for row in rows
    ]
    environments, methods = _unique(rows, "environment"), _unique(named, "method")
    with canvas(path, 1.9 + 0.5 * len(methods), title) as figure:
        panels = list(figure.subplots(1, len(environments), squeeze=False).flat)
        for panel, environment in zip(panels, environments, strict=True):
            own = [row for row in named if row["environment"] == environment]
            _environment_panel(panel, own, environment, bootstrap)
        legend_once(figure, panels)


def _environment_panel(panel: "Axes", rows: Sequence[Row], environment: str, bootstrap: Bootstrap) -> None:
    methods = _unique(rows, "method")
    for height, method in enumerate(methods):
        _seed_line(panel, height, [float(row["return_true"]) for row in rows if row["method"] == method], bootstrap)
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


def _unique(rows: Sequence[Row], column: str) -> list[Any]:
    return list(dict.fromkeys(row[column] for row in rows))


def _bars(rows: Sequence[Row], method: str) -> list[np.ndarray]:
    """trials, low, estimate, high of one method, in order of trials."""
    chosen = sorted((row for row in rows if row["method"] == method), key=lambda row: row["trials"])
    return [np.array([row[column] for row in chosen], float) for column in BAR_COLUMNS[1:]]


def _dots(trials: np.ndarray) -> str:
    """A line between sizes; the dot of one size alone, which no line shows."""
    return "-" if len(trials) > 1 else "o-"


def _returns_panel(panel: "Axes", method: str, ours: Sequence[Row], paper: Sequence[Row], ours_label: str) -> None:
    for number, other in enumerate(name for name in _unique(ours, "method") if name != method):
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


def _forest_line(axes: "Axes", height: int, row: Row, told: bool) -> None:
    """One interval; with its numbers beside it where they are told."""
    difference = Interval(float(row["estimate"]), float(row["low"]), float(row["high"]))
    sure = difference.excludes(0.0)
    colour = (BLUE if difference.estimate > 0 else VERMILLION) if sure else GREY
    axes.plot([difference.low, difference.high], [height, height], color=colour, linewidth=2, zorder=2)
    axes.plot(difference.estimate, height, "o", color=colour, markerfacecolor=colour if sure else "white", zorder=3)
    if not told:
        return
    axes.annotate(
        f"{difference:+.1f}".replace("-", "−"),
        (1.01, height),
        xycoords=("axes fraction", "data"),
        va="center",
        fontsize=11,
        color=colour,
    )


def _seed_line(axes: "Axes", height: int, returns: list[float], bootstrap: Bootstrap) -> None:
    # Dots fan out by rank, so that equal returns stay visible and the same data give the same picture.
    fan = np.argsort(np.argsort(returns, kind="stable")) % 5 - 2
    axes.scatter(returns, height + 0.06 * fan, s=26, color=BLUE, alpha=0.55, linewidth=0, label="one seed", zorder=2)
    if len(returns) < 2:
        return
    estimate = interval(returns, iqm, bootstrap)
    below = height + 0.27
    bar = [[estimate.estimate - estimate.low], [estimate.high - estimate.estimate]]
    label = f"interquartile mean and {bootstrap.confidence:.0%} interval over seeds"
    axes.errorbar(
        estimate.estimate,
        below,
        xerr=bar,
        fmt="D",
        color=VERMILLION,
        markersize=7,
        elinewidth=2.2,
        zorder=3,
        label=label,
    )
