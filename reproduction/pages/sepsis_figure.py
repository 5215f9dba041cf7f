"""The figure of the sepsis experiment: the paper's Figure 3 above, what can be believed below."""

import os
from collections.abc import Sequence
from statistics import fmean
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from counterpoint.core.results import Row
from counterpoint.page.style import BLACK, GREY, PALETTE, canvas
from reproduction.pages.evaluation_bench import REFUSED
from reproduction.pages.sepsis import policies_of, recommended, truths

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FEWEST = 20
"""Rows below which a share of deaths is not drawn."""
LEGEND_COLUMNS, TITLE_WIDTH = 3, 9
"""What fits side by side: names below the figure, letters above a heat map."""


def sepsis_figure(cells: Sequence[Row], path: str | os.PathLike[str]) -> None:
    """Heat maps of actions; mean Q by each policy's own; records and truth; deaths by expected return and dose."""
    found = [cell for cell in cells if not cell["ending"]]
    names = policies_of(found)
    colours: dict[str, str] = dict(zip(names, (BLACK, *PALETTE), strict=False))
    with canvas(path, 10.5, "Septic patients: Figure 3, and what can be believed") as figure:
        storeys: Any = figure.subfigures(3, 1, height_ratios=(1, 1.25, 1.15))
        upper, middle, lower = storeys
        _heat_maps(upper, found, names)
        graded, judged = middle.subplots(1, 2, width_ratios=(1, 1.4))
        _mean_q(graded, found, colours)
        _records(judged, found, colours)
        died, fluid, vasopressor = lower.subplots(1, 3)
        _mortality(died, found, colours)
        for panel, drug in ((fluid, "fluid"), (vasopressor, "vasopressor")):
            _dose_difference(panel, found, drug, colours)
        handles, labels = fluid.get_legend_handles_labels()
        lower.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), LEGEND_COLUMNS))


def _heat_maps(part: Any, cells: Sequence[Row], names: Sequence[str]) -> None:
    """Shares of the test patients' decisions, in percent."""
    panels = part.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for panel, name in zip(panels, names, strict=True):
        counts = sum(np.array(cell["counts"][name], dtype=float) for cell in cells)
        share = 100 * counts / counts.sum()  # pyright: ignore[reportAttributeAccessIssue, reportOperatorIssue]
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


def _mean_q(panel: "Axes", cells: Sequence[Row], colours: dict[str, str]) -> None:
    rows = [row for cell in cells for row in cell["mean_q"]]
    names = list(dict.fromkeys(row["policy"] for row in rows))
    for place, name in enumerate(names):
        own = [row["own"] for row in rows if row["policy"] == name]
        panel.barh(place, fmean(own), color=colours[name], height=0.65, alpha=0.85)
        panel.plot(own, [place] * len(own), "|", color=GREY, markersize=9)
    panel.set_yticks(range(len(names)), names)
    panel.invert_yaxis()
    panel.set(title="Self-graded: each policy by its own Q", xlabel="mean Q on test patients")


def _records(panel: "Axes", cells: Sequence[Row], colours: dict[str, str]) -> None:
    """Every seed's interval, and the true value where it is known."""
    names = list(colours)[::-1]
    for place, name in enumerate(names):
        rows = [row for row in recommended(cells, name) if row["value"] is not None]
        for number, row in enumerate(rows):
            at = place + 0.6 * ((number + 0.5) / len(rows) - 0.5)
            ends = [row["value"] if row[end] is None else row[end] for end in ("low", "high")]
            refused = row["verdict"] == REFUSED
            panel.plot(ends, [at, at], color=colours[name], linewidth=1.2, alpha=0.3 if refused else 0.9)
            panel.plot(row["value"], at, "o", markersize=3.5, color=colours[name], alpha=0.3 if refused else 0.9)
        known = truths(cells, name)
        if known:
            panel.plot([fmean(known)] * 2, [place - 0.4, place + 0.4], color=BLACK, linewidth=2.2)
    panel.set_yticks(range(len(names)), names)
    known = any(truths(cells, name) for name in names)
    said = "return (pale: cannot be judged" + ("; line: the truth)" if known else ")")
    panel.set(title="Judged from records, each seed", xlabel=said, xlim=_range(cells, names))


def _range(cells: Sequence[Row], names: Sequence[str]) -> tuple[float, float]:
    """What was logged, what is true and what may be believed; an interval that cannot be may leave the picture."""
    rows = [row for name in names for row in recommended(cells, name)]
    held = [row for row in rows if row["verdict"] != REFUSED]
    ends = [row[end] for row in held for end in ("low", "high", "value") if row[end] is not None]
    ends += [value for name in names for value in truths(cells, name)]
    low, high = min(ends), max(ends)
    return low - 0.5 * (high - low) - 0.5, high + 0.5 * (high - low) + 0.5


def _mortality(panel: "Axes", cells: Sequence[Row], colours: dict[str, str]) -> None:
    """Means over seeds of each tenth."""
    rows = [row for cell in cells for row in cell["mortality"]]
    for name in dict.fromkeys(row["policy"] for row in rows):
        own = [row for row in rows if row["policy"] == name]
        bins = sorted({row["bin"] for row in own})
        x, y = ([fmean(row[key] for row in own if row["bin"] == b) for b in bins] for key in ("expected", "died"))
        panel.plot(x, y, "o-", markersize=4, color=colours[name], label=name)
    panel.set(
        title="Deaths by expected return", xlabel="own Q of what was done", ylabel="share who died", ylim=(0, None)
    )


def _dose_difference(panel: "Axes", cells: Sequence[Row], drug: str, colours: dict[str, str]) -> None:
    rows = [row for cell in cells for row in cell["doses"] if row["drug"] == drug]
    for name in dict.fromkeys(row["policy"] for row in rows):
        points = []
        for difference in sorted({row["difference"] for row in rows}):
            own = [row for row in rows if row["policy"] == name and row["difference"] == difference]
            seen = sum(row["rows"] for row in own)
            if seen >= FEWEST:
                points.append((difference, sum(row["died"] for row in own) / seen))
        panel.plot(*zip(*points, strict=True), "o-", markersize=4, color=colours[name], label=name)
    panel.set(title=f"Deaths by dose: {drug}", xlabel="levels recommended − given", ylim=(0, None))
