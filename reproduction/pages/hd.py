"""The HD experiment on a page: returns on five planets beside the paper's, and who is better by how much."""

import os
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from counterpoint.core.results import Row, markdown_table, require_columns
from counterpoint.core.statistics import Interval, interval, paired_difference
from counterpoint.page.style import BLUE, GREY, VERMILLION, canvas, legend_once
from reproduction.pages.headline import Headline
from reproduction.pages.paper import paper_returns_by_gravity

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NEEDED = ("method", "planet", "seed", "return_selected")
PAPER = {"CTRL_g, default SCM": "CTRL_g", "CTRL_p, paper": "CTRL_p"}
"""What the paper calls a method, where its name is another."""
BASELINES = ("D3QN", "CTRL_g, default SCM", "one policy, robust over θ")
Behaviour = Literal["random", "non-random"]


def hd_page(rows: Sequence[Row], behaviour: Behaviour, name: str) -> str:
    """Means by planet beside the paper's, and paired differences of the mean over planets."""
    require_columns(rows, NEEDED, "HD rows")
    planets, methods = _unique(rows, "planet"), _unique(rows, "method")
    seeds = len({row["seed"] for row in rows})
    headline = _headline(rows, behaviour)
    text = [
        f"# {name}: one policy learned from five gravities, judged on each\n",
        *([f"{headline.text('on {}')}\n"] if headline.comparisons else []),
        f"Mean return over {seeds} seeds (`counterpoint reproduce {name}`); the paper's are read off its figure.\n",
        markdown_table(means(rows), formats=dict.fromkeys((*planets, "mean"), ".0f")),
        "\n## The paper's\n",
        markdown_table(_paper(behaviour, planets), formats=dict.fromkeys((*planets, "mean"), ".0f")),
        "\n## Paired differences of the mean over planets, with 95% intervals\n",
        markdown_table(_differences(rows, methods)),
        *(["\n## Headline comparisons, intervals that hold together\n", headline.table()] * bool(headline.comparisons)),
        "",
    ]
    return "\n".join(text)


def _headline(rows: Sequence[Row], behaviour: Behaviour) -> Headline:
    """The personal methods against the paper's others, on every planet and over all."""
    methods, paper = _unique(rows, "method"), {row["method"] for row in paper_returns_by_gravity(behaviour)}
    ours = [method for method in methods if method.startswith("CTRL_p")]
    baselines = [name for name in methods if name not in ours and PAPER.get(name, name) in paper]
    scores = {(row["method"], row["planet"]): {} for row in rows}
    for row in rows:
        scores[row["method"], row["planet"]][row["seed"]] = float(row["return_selected"])
    scores |= {(method, "their mean"): _over_planets(rows, method) for method in methods}
    return Headline.of(scores, ours, baselines)


def means(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """A line for every method: its mean return on each planet and over all."""
    planets = _unique(rows, "planet")
    return [_line(rows, method, planets) for method in _unique(rows, "method")]


def _line(rows: Sequence[Row], method: str, planets: Sequence[str]) -> dict[str, Any]:
    each = {planet: fmean(_values(rows, method, planet)) for planet in planets}
    low = min(by_seed(rows, method))
    return {"method": method, **each, "mean": fmean(each.values()), "lowest seed": f"{low:.0f}"}


def _paper(behaviour: Behaviour, planets: Sequence[str]) -> list[dict[str, Any]]:
    found = paper_returns_by_gravity(behaviour)
    lines: list[dict[str, Any]] = []
    for method in _unique(found, "method"):
        each = {row["gravity"]: row["estimate"] for row in found if row["method"] == method}
        lines.append({"method": method, **{planet: each[planet] for planet in planets}, "mean": fmean(each.values())})
    return lines


def by_seed(rows: Sequence[Row], method: str) -> np.ndarray:
    """Every seed's mean over the planets, in order of seeds."""
    return np.array(list(_over_planets(rows, method).values()))


def _over_planets(rows: Sequence[Row], method: str) -> dict[int, float]:
    own = [row for row in rows if row["method"] == method]
    seeds = sorted({row["seed"] for row in own})
    return {seed: fmean(row["return_selected"] for row in own if row["seed"] == seed) for seed in seeds}


def _differences(rows: Sequence[Row], methods: Sequence[str]) -> list[dict[str, str]]:
    """Every personal method against what it should beat."""
    ours = [method for method in methods if method.startswith(("CTRL_p", "one policy"))]
    pairs = [(own, other) for own in ours for other in BASELINES if other in methods and other != own]
    return [{"method": own, "against": other, "difference": _said(rows, own, other)} for own, other in pairs]


def _said(rows: Sequence[Row], own: str, other: str) -> str:
    left, right = by_seed(rows, own), by_seed(rows, other)
    if len(left) != len(right):
        return "not the same seeds"
    found: Interval = paired_difference(left, right, np.mean)
    return f"{found:.1f}"


def hd_figure(rows: Sequence[Row], behaviour: Behaviour, path: str | os.PathLike[str]) -> None:
    """A panel a planet: ours with an interval over seeds, the paper's point beside."""
    require_columns(rows, NEEDED, "HD rows")
    planets, methods = _unique(rows, "planet"), _unique(rows, "method")
    with canvas(path, 2.0 + 0.34 * len(methods), "Return on each planet, learned from one log of all five") as figure:
        panels = list(figure.subplots(1, len(planets), sharey=True, squeeze=False).flat)
        for panel, planet in zip(panels, planets, strict=True):
            _panel(panel, rows, methods, planet, behaviour)
        panels[0].set_yticks(range(len(methods)), methods)
        legend_once(figure, panels)


def _panel(panel: "Axes", rows: Sequence[Row], methods: Sequence[str], planet: str, behaviour: Behaviour) -> None:
    paper = {row["method"]: row for row in paper_returns_by_gravity(behaviour) if row["gravity"] == planet}
    for height, method in enumerate(methods):
        values = _values(rows, method, planet)
        found = interval(values, np.mean) if len(values) > 1 else None
        if found is not None:
            panel.plot([found.low, found.high], [height, height], color=BLUE, linewidth=2.4)
        panel.plot(fmean(values), height, "o", color=BLUE, label="ours: mean and 95% interval over seeds")
        point = paper.get(PAPER.get(method, method))
        if point is not None:
            panel.plot(point["estimate"], height, "D", color=VERMILLION, markersize=5, label="the paper's")
    panel.axvline(500, color=GREY, linestyle="--", linewidth=1.2)
    panel.set(xlim=(0, 520), ylim=(len(methods) - 0.5, -0.5), xlabel="return")
    panel.set_title(planet, loc="left", fontweight="bold")
    panel.tick_params(axis="y", length=0)


def _values(rows: Sequence[Row], method: str, planet: str) -> list[float]:
    return [float(row["return_selected"]) for row in rows if row["method"] == method and row["planet"] == planet]


def _unique(rows: Sequence[Row], column: str) -> list[Any]:
    return list(dict.fromkeys(row[column] for row in rows))
