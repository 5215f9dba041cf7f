"""Figure of the sepsis experiment: the paper's Figure 3 (actions, mean Q, deaths), and intervals with true values."""

import os
from collections.abc import Mapping, Sequence
from statistics import fmean
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from counterpoint.core.tables import Row
from counterpoint.page.style import BLACK, GREY, PALETTE, canvas
from reproduction.pages.evaluation import REFUSED
from reproduction.pages.sepsis import policies_of, recommended, rows_of, true_values
from reproduction.pages.tables import group_by, select, unique

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FEWEST = 20
"""Rows below which a share of deaths is not drawn."""
LEGEND_COLUMNS = 3
TITLE_WIDTH = 9
"""Letters that fit above a heat map."""
Colours = Mapping[str, str]


def sepsis_figure(cells: Sequence[Row], path: str | os.PathLike[str]) -> None:
    """Draw heat maps of actions, mean Q, intervals with true values, and deaths by expected return and dose."""
    cells = [cell for cell in cells if not cell["ending"]]
    names = policies_of(cells)
    colours = dict(zip(names, (BLACK, *PALETTE), strict=False))
    with canvas(path, 10.5, "Septic patients: Figure 3, true values and off-policy evaluation") as figure:
        storeys: Any = figure.subfigures(3, 1, height_ratios=(1, 1.25, 1.15))
        upper, middle, lower = storeys
        _heat_maps(upper, cells, names)
        left, right = middle.subplots(1, 2, width_ratios=(1, 1.4))
        _mean_q(left, rows_of(cells, "mean_q"), colours)
        _intervals(right, cells, colours)
        died, fluid, vasopressor = lower.subplots(1, 3)
        _mortality(died, rows_of(cells, "mortality"), colours)
        _dose_difference(fluid, rows_of(cells, "doses"), "fluid", colours)
        _dose_difference(vasopressor, rows_of(cells, "doses"), "vasopressor", colours)
        handles, labels = fluid.get_legend_handles_labels()
        lower.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), LEGEND_COLUMNS))


def _heat_maps(part: Any, cells: Sequence[Row], names: Sequence[str]) -> None:
    """Shares of the test patients' decisions, in percent."""
    panels = part.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for panel, name in zip(panels, names, strict=True):
        counts = np.sum([np.array(cell["counts"][name], dtype=float) for cell in cells], axis=0)
        share = 100 * counts / counts.sum()
        panel.imshow(share**0.5, origin="lower", cmap="Blues", vmin=0, vmax=7)
        for line, column in np.ndindex(*share.shape):
            if share[line, column] >= 0.5:
                look = {"fontsize": 8.5, "color": "white" if share[line, column] > 20 else BLACK}
                panel.text(column, line, f"{share[line, column]:.0f}", ha="center", va="center", **look)
        panel.set_title(fill(name, TITLE_WIDTH), fontsize=10)
        panel.set(xlabel="vasopressor", xticks=range(share.shape[1]), yticks=range(share.shape[0]))
        panel.spines[:].set_visible(False)
        panel.tick_params(length=0)
    panels[0].set_ylabel("fluid")


def _mean_q(panel: "Axes", rows: Sequence[Row], colours: Colours) -> None:
    names = unique(rows, "policy")
    for place, name in enumerate(names):
        values = [row["own"] for row in select(rows, policy=name)]
        panel.barh(place, fmean(values), color=colours[name], height=0.65, alpha=0.85)
        panel.plot(values, [place] * len(values), "|", color=GREY, markersize=9)
    panel.set_yticks(range(len(names)), names)
    panel.invert_yaxis()
    panel.set(title="Each policy by its own Q", xlabel="mean Q on test patients")


def _intervals(panel: "Axes", cells: Sequence[Row], colours: Colours) -> None:
    """The interval of every seed, and the true value where it is known."""
    names = list(colours)[::-1]
    for place, name in enumerate(names):
        rows = [row for row in recommended(cells, name) if row["value"] is not None]
        for number, row in enumerate(rows):
            height = place + 0.6 * ((number + 0.5) / len(rows) - 0.5)
            ends = [row["value"] if row[end] is None else row[end] for end in ("low", "high")]
            alpha = 0.3 if row["verdict"] == REFUSED else 0.9
            panel.plot(ends, [height, height], color=colours[name], linewidth=1.2, alpha=alpha)
            panel.plot(row["value"], height, "o", markersize=3.5, color=colours[name], alpha=alpha)
        truth = true_values(cells, name)
        if truth:
            panel.plot([fmean(truth)] * 2, [place - 0.4, place + 0.4], color=BLACK, linewidth=2.2)
    panel.set_yticks(range(len(names)), names)
    has_truth = any(true_values(cells, name) for name in names)
    legend = f"pale: {REFUSED}" + ("; line: the truth" if has_truth else "")
    panel.set(title="Off-policy evaluation, each seed", xlabel=f"return ({legend})", xlim=_range(cells, names))


def _range(cells: Sequence[Row], names: Sequence[str]) -> tuple[float, float]:
    """A range that holds the true values and the accepted intervals; a refused interval may leave the panel."""
    rows = [row for name in names for row in recommended(cells, name) if row["verdict"] != REFUSED]
    ends = [row[end] for row in rows for end in ("low", "high", "value") if row[end] is not None]
    ends += [value for name in names for value in true_values(cells, name)]
    margin = 0.5 * (max(ends) - min(ends)) + 0.5
    return min(ends) - margin, max(ends) + margin


def _mortality(panel: "Axes", rows: Sequence[Row], colours: Colours) -> None:
    """The share who died in each tenth of the rows by expected return, means over seeds."""
    for name in unique(rows, "policy"):
        tenths = dict(sorted(group_by(select(rows, policy=name), "bin").items())).values()
        expected = [fmean(row["expected"] for row in tenth) for tenth in tenths]
        died = [fmean(row["died"] for row in tenth) for tenth in tenths]
        panel.plot(expected, died, "o-", markersize=4, color=colours[name], label=name)
    panel.set(title="Deaths by expected return", xlabel="Q of the logged action", ylabel="share who died")
    panel.set_ylim(0, None)


def _dose_difference(panel: "Axes", rows: Sequence[Row], drug: str, colours: Colours) -> None:
    rows = select(rows, drug=drug)
    for name in unique(rows, "policy"):
        points = []
        for difference in sorted(unique(rows, "difference")):
            part = select(rows, policy=name, difference=difference)
            count = sum(row["rows"] for row in part)
            if count >= FEWEST:
                points.append((difference, sum(row["died"] for row in part) / count))
        panel.plot(*zip(*points, strict=True), "o-", markersize=4, color=colours[name], label=name)
    panel.set(title=f"Deaths by dose: {drug}", xlabel="levels recommended − given", ylim=(0, None))
