"""Page and figure of the HD experiment: returns on five planets beside the paper's, and paired differences."""

import os
from collections.abc import Sequence
from itertools import product
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from counterpoint.core.statistics import interval
from counterpoint.core.tables import Row, markdown_table, require_columns
from counterpoint.page.style import BLUE, GREY, VERMILLION, canvas, legend_once
from reproduction.pages.headline import Headline
from reproduction.pages.paper import paper_returns_by_gravity
from reproduction.pages.tables import formats, group_by, markdown_page, select, unique
from reproduction.statistics import paired_difference

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NEEDED = ("method", "planet", "seed", "return_selected")
PAPER = {"CTRL_g, default SCM": "CTRL_g", "CTRL_p, paper": "CTRL_p"}
"""The paper's name of a method, where it differs from ours."""
BASELINES = ("D3QN", "CTRL_g, default SCM", "one policy, robust over θ")
Behaviour = Literal["random", "non-random"]


def hd_page(rows: Sequence[Row], behaviour: Behaviour, name: str) -> str:
    """Return the Markdown page: means by planet, the paper's, and paired differences of the mean over planets."""
    require_columns(rows, NEEDED, "HD rows")
    planets = unique(rows, "planet")
    headline = _headline(rows, behaviour)
    whole = formats(f0=(*planets, "mean"))
    compared = bool(headline.comparisons)
    return markdown_page(
        f"# {name}: one policy learned from five gravities, evaluated on each",
        headline.text("on {}") if compared else "",
        f"Mean return over {len(unique(rows, 'seed'))} seeds (`python -m reproduction {name}`); the paper's are read"
        " off its figure.",
        markdown_table(means(rows), formats=whole),
        "## The paper's",
        markdown_table(_paper(behaviour, planets), formats=whole),
        "## Paired differences of the mean over planets, with 95% intervals",
        markdown_table(_differences(rows)),
        "## Headline comparisons, with simultaneous intervals" if compared else "",
        headline.table() if compared else "",
    )


def _headline(rows: Sequence[Row], behaviour: Behaviour) -> Headline:
    """The personal methods against the paper's others, on each planet and over all."""
    methods = unique(rows, "method")
    published = unique(paper_returns_by_gravity(behaviour), "method")
    personal = [method for method in methods if method.startswith("CTRL_p")]
    baselines = [name for name in methods if name not in personal and PAPER.get(name, name) in published]
    scores = {
        key: {row["seed"]: float(row["return_selected"]) for row in part}
        for key, part in group_by(rows, "method", "planet").items()
    }
    scores |= {(method, "their mean"): _by_seed(rows, method) for method in methods}
    return Headline.of(scores, personal, baselines)


def means(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return a line for each method: its mean return on each planet and over all."""
    lines = []
    for method in unique(rows, "method"):
        levels = {planet: fmean(_returns(rows, method, planet)) for planet in unique(rows, "planet")}
        lowest = min(_by_seed(rows, method).values())
        lines.append({"method": method, **levels, "mean": fmean(levels.values()), "lowest seed": f"{lowest:.0f}"})
    return lines


def _paper(behaviour: Behaviour, planets: Sequence[str]) -> list[dict[str, Any]]:
    lines = []
    for (method,), part in group_by(paper_returns_by_gravity(behaviour), "method").items():
        levels = {row["gravity"]: row["estimate"] for row in part}
        shown = {planet: levels[planet] for planet in planets}
        lines.append({"method": method, **shown, "mean": fmean(levels.values())})
    return lines


def _by_seed(rows: Sequence[Row], method: str) -> dict[int, float]:
    """The mean return over the planets of every seed, in order of seeds."""
    seeds = group_by(select(rows, method=method), "seed")
    return {seed: fmean(row["return_selected"] for row in part) for (seed,), part in sorted(seeds.items())}


def _differences(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Paired differences of each personal method from the baselines it should exceed."""
    scores = {method: list(_by_seed(rows, method).values()) for method in unique(rows, "method")}
    lines = []
    for method, baseline in product(scores, BASELINES):
        if method.startswith(("CTRL_p", "one policy")) and baseline in scores and baseline != method:
            difference = _difference(scores[method], scores[baseline])
            lines.append({"method": method, "against": baseline, "difference": difference})
    return lines


def _difference(left: Sequence[float], right: Sequence[float]) -> str:
    if len(left) != len(right):
        return "not the same seeds"
    return f"{paired_difference(left, right, np.mean):.1f}"


def hd_figure(rows: Sequence[Row], behaviour: Behaviour, path: str | os.PathLike[str]) -> None:
    """Draw a panel for each planet: our means with intervals over seeds, and the paper's points."""
    require_columns(rows, NEEDED, "HD rows")
    planets, methods = unique(rows, "planet"), unique(rows, "method")
    with canvas(path, 2.0 + 0.34 * len(methods), "Return on each planet, learned from one log of all five") as figure:
        panels = list(figure.subplots(1, len(planets), sharey=True, squeeze=False).flat)
        for panel, planet in zip(panels, planets, strict=True):
            _panel(panel, rows, methods, planet, behaviour)
        panels[0].set_yticks(range(len(methods)), methods)
        legend_once(figure, panels)


def _panel(panel: "Axes", rows: Sequence[Row], methods: Sequence[str], planet: str, behaviour: Behaviour) -> None:
    paper = {row["method"]: row for row in paper_returns_by_gravity(behaviour) if row["gravity"] == planet}
    for height, method in enumerate(methods):
        returns = _returns(rows, method, planet)
        if len(returns) > 1:
            ends = interval(returns, np.mean)
            panel.plot([ends.low, ends.high], [height, height], color=BLUE, linewidth=2.4)
        panel.plot(fmean(returns), height, "o", color=BLUE, label="ours: mean and 95% interval over seeds")
        point = paper.get(PAPER.get(method, method))
        if point is not None:
            panel.plot(point["estimate"], height, "D", color=VERMILLION, markersize=5, label="the paper's")
    panel.axvline(500, color=GREY, linestyle="--", linewidth=1.2)
    panel.set(xlim=(0, 520), ylim=(len(methods) - 0.5, -0.5), xlabel="return")
    panel.set_title(planet, loc="left", fontweight="bold")
    panel.tick_params(axis="y", length=0)


def _returns(rows: Sequence[Row], method: str, planet: str) -> list[float]:
    return [float(row["return_selected"]) for row in select(rows, method=method, planet=planet)]
