"""Figures of the demo: returns of each training seed, and episodes of several policies from one first state."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from counterpoint.core.statistics import BOOTSTRAP, Bootstrap, interval, iqm
from counterpoint.core.tables import Row, require_columns
from counterpoint.page.style import (
    BLUE,
    PALETTE,
    VERMILLION,
    canvas,
    legend_once,
    reference_line,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def demo_figure(
    rows: Sequence[Row],
    path: str | os.PathLike[str],
    *,
    random_return: float | None = None,
    title: str = "Return of each training seed",
    ceiling: float | None = None,
    bootstrap: Bootstrap = BOOTSTRAP,
) -> None:
    """Draw a dot for each seed (columns method, seed, return), and the interquartile mean with its interval."""
    require_columns(rows, ("method", "seed", "return"), "returns")
    methods = unique(rows, "method")
    with canvas(path, 1.6 + 0.62 * len(methods), title) as figure:
        axes = figure.subplots()
        for height, method in enumerate(methods):
            seed_line(axes, height, [float(row["return"]) for row in rows if row["method"] == method], bootstrap)
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
    title: str = "One episode of each policy, from the same state with the same noise",
) -> None:
    """Draw a panel for each shown state column, with a line for each policy and a dot where its episode ended."""
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


def unique(rows: Sequence[Row], column: str) -> list[Any]:
    """Distinct values of a column, in order of appearance."""
    return list(dict.fromkeys(row[column] for row in rows))


def seed_line(axes: "Axes", height: int, returns: list[float], bootstrap: Bootstrap) -> None:
    """Draw the returns of all seeds, and their interquartile mean with its interval, on one line."""
    # Dots are offset by rank, so that equal returns stay visible and the same data give the same picture.
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
