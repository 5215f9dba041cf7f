"""Draw the README's picture: return by number of logged rows, every arm of results/sd.csv beside the paper's points.

`python tools/headline.py` writes docs/images/returns.png.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from counterpoint.core.statistics import interval
from counterpoint.core.tables import read_csv
from counterpoint.page.style import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION, canvas, reference_line
from reproduction.arms import CTRL_G, PILCO, SEARCH
from reproduction.logs import Protocol
from reproduction.pages.paper import paper_returns_by_size

ROOT = Path(__file__).parents[1]
COLOURS = {
    SEARCH: BLUE, CTRL_G: VERMILLION, "CTRL_g": VERMILLION, PILCO: SKY, "CTRL_g + rollouts": ORANGE, "PETS": PURPLE,
    "D3QN": BLACK, "STEVE": GREEN, "CTRL_g, BiCoGAN": VERMILLION,
}  # fmt: skip
"""Arms that a reader should find; the others are grey, and named all the same."""
DASHED = ("CTRL_g, BiCoGAN",)
SHORT = {f"{SEARCH}, mirror declared": "search, mirror declared"}
CEILING, GAP = 500, 25
ROWS = Protocol().steps
"""Rows of one trial."""


def ours(path: Path) -> list[dict[str, Any]]:
    """Mean return of every arm at every size, with its interval over seeds."""
    rows, points = read_csv(path), []
    for method, trials in dict.fromkeys((row["method"], row["trials"]) for row in rows):
        own = [row["return_selected"] for row in rows if (row["method"], row["trials"]) == (method, trials)]
        found = interval(own, np.mean)
        ends = {"low": found.low, "estimate": found.estimate, "high": found.high}
        points.append({"method": method, "trials": trials, "seeds": len(own), **ends})
    return points


def draw(left: Sequence[dict[str, Any]], right: Sequence[dict[str, Any]], path: Path) -> None:
    """Two panels on one scale: what comes out here, and what the paper reports."""
    sizes = sorted({point["trials"] for point in left})
    with canvas(path, 5.6, "Return by number of logged rows: CartPole, random actions") as figure:
        here, there = figure.subplots(1, 2, sharey=True, width_ratios=(1.55, 1))
        panel(here, left, f"here: mean of {min(point['seeds'] for point in left)} seeds, 95% interval", "-")
        panel(there, right, "as the paper reports", "o-")
        for axes, used in ((here, sizes), (there, sorted({point["trials"] for point in right}))):
            axes.set_xscale("log")
            shown = [size for size in used if size == used[-1] or size <= used[-1] / 2]
            axes.set_xticks([ROWS * size for size in shown], [f"{ROWS * size:,}" for size in shown])
            axes.set_xticks([], minor=True)
            axes.set(xlabel="logged rows", ylim=(0, CEILING * 1.04))
            reference_line(axes, CEILING, "")
        here.set_ylabel("return, at most 500")


def panel(axes: Any, points: Sequence[dict[str, Any]], title: str, form: str) -> None:
    ends = {}
    for method in dict.fromkeys(point["method"] for point in points):
        own = sorted((point for point in points if point["method"] == method), key=lambda point: point["trials"])
        x, (low, middle, high) = [ROWS * point["trials"] for point in own], _columns(own, "low", "estimate", "high")
        colour, main = COLOURS.get(method, GREY), method in COLOURS
        width = 2.2 if main else 1.2
        (line,) = axes.plot(x, middle, form, color=colour, linewidth=width, markersize=4, zorder=2 + main)
        if method in DASHED:
            line.set_linestyle("--")
        axes.fill_between(x, low, high, color=colour, alpha=0.13 if main else 0.05, linewidth=0)
        ends[method] = (x[-1], middle[-1], colour)
    axes.set_title(title, loc="left")
    label(axes, ends)


def label(axes: Any, ends: dict[str, tuple[float, float, str]]) -> None:
    """Each name beside the end of its line, names pushed apart where ends are close."""
    order = sorted(ends, key=lambda method: ends[method][1])
    heights = np.array([ends[method][1] for method in order])
    for _ in range(500):
        for i in np.flatnonzero(np.diff(heights) < GAP):
            push = (GAP - heights[i + 1] + heights[i]) / 2
            heights[i], heights[i + 1] = heights[i] - push, heights[i + 1] + push
    edge = max(x for x, _, _ in ends.values())
    for method, height in zip(order, heights, strict=True):
        x, y, colour = ends[method]
        axes.annotate(
            SHORT.get(method, method), (x, y), (edge**1.025, height), va="center", color=colour, fontsize=10.5,
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.7, "relpos": (0, 0.5)},
        )  # fmt: skip


def _columns(points: Sequence[dict[str, Any]], *names: str) -> list[list[float]]:
    return [[point[name] for point in points] for name in names]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=ROOT / "results" / "sd.csv")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images" / "returns.png")
    options = parser.parse_args()
    draw(ours(options.results), paper_returns_by_size("random"), options.out)
    print(options.out)


if __name__ == "__main__":
    main()
