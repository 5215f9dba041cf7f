"""Effects of doses by the number of steps after them: curves in the model and in the log, and when doses act."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from counterpoint.checks.comparisons import EffectComparison
from counterpoint.page.cells import number
from counterpoint.page.style import BLACK, BLUE, GREY, PALE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = 6
"""Curves that are drawn, at most."""


def strongest(comparisons: Sequence[EffectComparison]) -> tuple[EffectComparison, ...]:
    """The effects that the log shows most plainly, in the order of the check."""
    kept = sorted(comparisons, key=lambda one: -max(map(abs, _deviations(one))))[:PANELS]
    return tuple(one for one in comparisons if one in kept)


def effect_curves(figure: "Figure", comparisons: Sequence[EffectComparison]) -> None:
    """Draw a panel for every effect."""
    lines = -(-len(comparisons) // 2)
    panels = figure.subplots(lines, min(2, len(comparisons)), squeeze=False).ravel()
    for panel, comparison in zip(panels, comparisons, strict=False):
        _draw(panel, comparison)
    for empty in panels[len(comparisons) :]:
        empty.set_visible(False)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=10)


def _draw(axes: "Axes", comparison: EffectComparison) -> None:
    steps = np.array(comparison.steps)
    axes.axhline(0, color=PALE, linewidth=1, zorder=0)
    axes.fill_between(steps, comparison.low, comparison.high, color=GREY, alpha=0.25, linewidth=0)
    axes.plot(steps, comparison.log, color=BLACK, marker="o", label="in the log (95% interval)")
    axes.plot(steps, comparison.model, color=BLUE, linestyle="--", marker="s", label="in the model")
    axes.set_xticks(steps)
    axes.set_xlabel("steps after it", fontsize=10)
    axes.set_title(f"{_cause(comparison)}\non {comparison.outcome}", fontsize=10, loc="left", parse_math=False)


def acting_times(comparisons: Sequence[EffectComparison]) -> tuple[str, ...]:
    """A sentence for every dose: after how many steps the log shows its plainest effect, and on what."""
    by_cause: dict[str, list[EffectComparison]] = {}
    for one in comparisons:
        by_cause.setdefault(_cause(one), []).append(one)
    return tuple(_sentence(cause, effects) for cause, effects in by_cause.items())


def _sentence(cause: str, effects: Sequence[EffectComparison]) -> str:
    plain = [
        (abs(deviation), i, one)
        for one in effects
        for i, deviation in enumerate(_deviations(one))
        if one.low[i] > 0 or one.high[i] < 0
    ]
    if not plain:
        last = max(step for one in effects for step in one.steps)
        return f"The log shows no effect of {cause} within {_steps(last)}."
    _, i, one = max(plain, key=lambda entry: entry[0])
    effect = number(one.log[i]).replace("−", "") if one.log[i] else "0"
    way = "raised" if one.log[i] > 0 else "lowered"
    return f"In the log {cause} acts most plainly after {_steps(one.steps[i])}: {one.outcome} is {way} by {effect}."


def _deviations(one: EffectComparison) -> list[float]:
    """The log's effects in half widths of their intervals."""
    halves = [max((high - low) / 2, 1e-12) for low, high in zip(one.low, one.high, strict=True)]
    return [effect / half for effect, half in zip(one.log, halves, strict=True)]


def _cause(one: EffectComparison) -> str:
    return f"{one.dose} against {one.reference}" if one.reference else f"{number(one.contrast)} more {one.dose}"


def _steps(count: int) -> str:
    return f"{count} step{'' if count == 1 else 's'}"
