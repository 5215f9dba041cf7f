"""Figures of evaluations: every estimate with its interval beside what happened, and what the weights rest on."""

import os
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from counterpoint.ope.compare import PolicyComparison
from counterpoint.ope.result import Estimate, Evaluation
from counterpoint.page.style import BLACK, BLUE, GREEN, GREY, ORANGE, PALE, VERMILLION, canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"supported": GREEN, "with care": ORANGE, "cannot be judged": VERMILLION}
"""Of a verdict; its words say the same."""
SPREAD = 3.0
"""An interval is drawn as far as this many widths of the recommended one, and of the log's, beyond them."""


def evaluation_figure(found: Evaluation, path: str | os.PathLike[str]) -> None:
    """Draw an evaluation into a PNG at `path`."""
    title = f"What is {found.policy} worth?  {found.verdict.capitalize()}"
    with canvas(path, 4.6 + 0.3 * len(found.estimates) + 0.25 * _words(found).count("\n"), title) as figure:
        grid = figure.add_gridspec(2, 2, width_ratios=(1.7, 1), hspace=0.1)
        forest(figure.add_subplot(grid[:, 0]), found)
        calibration(figure.add_subplot(grid[0, 1]), found)
        confounding(figure.add_subplot(grid[1, 1]), found)
        figure.supxlabel(_words(found), x=0.01, ha="left", fontsize=11, color=BLACK, linespacing=1.4)


def comparison_figure(found: PolicyComparison, path: str | os.PathLike[str]) -> None:
    """Draw policies side by side into a PNG at `path`: what each is worth, and how much more than whoever logged."""
    each, count = found.evaluations, len(found.evaluations)
    with canvas(path, 2.4 + 0.5 * count, "What are these policies worth?") as figure:
        left, right = figure.subplots(1, 2, sharey=True)
        _logged(left, each[0].logged)
        right.axvline(0, color=GREY, linestyle="--", linewidth=1.2)
        for axes, estimates, what in (
            (left, [one.value for one in each], f"return ({each[0].recommended}), {each[0].confidence:.0%} interval"),
            (right, [one.difference for one in each if one.difference], "more than whoever logged, paired"),
        ):
            for place, (one, estimate) in enumerate(zip(each, estimates, strict=True)):
                whisker(axes, place, estimate, COLOURS[one.verdict])
            compared = each[0].logged if axes is left else Estimate("nothing", 0.0, 0.0, 0.0)
            axes.set_xlim(*shown_range([*estimates, compared], estimates))
            axes.locator_params(axis="x", nbins=6)
            axes.set_xlabel(what)
            axes.tick_params(axis="y", length=0)
        left.set_yticks(range(count), [f"{one.policy}\n{one.verdict}" for one in each])
        left.set_ylim(count - 0.4, -0.6)


def forest(axes: "Axes", found: Evaluation) -> None:
    """One line an estimate, the recommended estimator in colour; the shade is what whoever logged earned."""
    estimates = found.estimates
    _logged(axes, found.logged)
    for place, each in enumerate(estimates):
        whisker(axes, place, each, BLUE if each.name == found.recommended else GREY)
    axes.set_yticks(range(len(estimates)), [each.name for each in estimates])
    for label, each in zip(axes.get_yticklabels(), estimates, strict=True):
        label.set_fontweight("bold" if each.name == found.recommended else "normal")
    axes.set_ylim(len(estimates) - 0.4, -0.6)
    axes.set_xlim(*shown_range([found[found.recommended], found.logged], estimates))
    axes.locator_params(axis="x", nbins=6)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"return, with {found.confidence:.0%} intervals")
    axes.set_title(f"Estimates ({found.recommended}: {found.label(found.value)})", loc="left", pad=26)


def whisker(axes: "Axes", place: float, each: Estimate, colour: str) -> None:
    """An estimate with its interval; an open end is drawn to the edge."""
    low, high = (-1e9 if each.low is None else each.low), (1e9 if each.high is None else each.high)
    axes.plot([low, high], [place, place], color=colour, linewidth=2.2, solid_capstyle="butt")
    for end in (low, high):
        axes.plot([end, end], [place - 0.13, place + 0.13], color=colour, linewidth=2.2)
    if each.value is not None:
        axes.plot(each.value, place, "o", color=colour, markersize=7)


def shown_range(main: Sequence[Estimate], every: Sequence[Estimate]) -> tuple[float, float]:
    """Where an axis begins and ends: all values, and ends that are not far beyond the main ones."""
    ends = [end for each in main for end in (each.low, each.high, each.value) if end is not None]
    values = [each.value for each in every if each.value is not None]
    low, high = min([*ends, *values]), max([*ends, *values])
    reach = SPREAD * ((high - low) or 1.0)
    others = [end for each in every for end in (each.low, each.high) if end is not None]
    low, high = (pick([*ends, *values, *(end for end in others if low - reach < end < high + reach)])
                 for pick in (min, max))  # fmt: skip
    margin = 0.05 * ((high - low) or 1.0)
    return low - margin, high + margin


def _logged(axes: "Axes", logged: Estimate) -> None:
    if logged.low is not None and logged.high is not None:
        axes.axvspan(logged.low, logged.high, color=PALE, alpha=0.5, linewidth=0)
    if logged.value is not None:
        axes.axvline(logged.value, color=GREY, linestyle="--", linewidth=1.2)
        axes.annotate(
            "whoever logged", (logged.value, 1), (0, 4), xycoords=("data", "axes fraction"),
            textcoords="offset points", ha="center", va="bottom", color=GREY, fontsize=10.5,
        )  # fmt: skip


def calibration(axes: "Axes", found: Evaluation) -> None:
    """How often actions were taken that were foreseen with some probability."""
    axes.set_title("Who logged: foreseen and seen", loc="left", pad=8)
    if found.behaviour is None:
        _absent(axes, "no probabilities of continuous doses")
        return
    foreseen, seen = zip(*found.behaviour.calibration, strict=True)
    axes.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1.2)
    axes.plot(foreseen, seen, "o-", color=BLUE, markersize=5, linewidth=1.6)
    axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), xlabel="probability of an action", ylabel="share taken")
    axes.annotate(
        f"Brier score {found.behaviour.brier:.2f}", (0.97, 0.05), xycoords="axes fraction", ha="right", color=GREY,
        fontsize=10.5,
    )  # fmt: skip


def confounding(axes: "Axes", found: Evaluation) -> None:
    """What weighted importance sampling can be, if who logged knew more than the table."""
    axes.set_title("WIS if who logged knew more", loc="left", pad=8)
    if found.sensitivity is None:
        _absent(axes, "no weights of continuous doses")
        return
    bounds = found.sensitivity.confounding
    strength = [bound.strength for bound in bounds]
    axes.fill_between(strength, [b.low for b in bounds], [b.high for b in bounds], color=BLUE, alpha=0.15, linewidth=0)
    axes.fill_between(
        strength, [b.lowest for b in bounds], [b.highest for b in bounds], color=BLUE, alpha=0.45, linewidth=0
    )
    if found.logged.value is not None:
        axes.axhline(found.logged.value, color=GREY, linestyle="--", linewidth=1.2)
    axes.set(xlabel=f"strength of confounding, a {found.sensitivity.per}", ylabel="return")
    axes.set_xlim(strength[0], strength[-1])


def _absent(axes: "Axes", why: str) -> None:
    axes.set_axis_off()
    axes.annotate(why, (0.5, 0.5), xycoords="axes fraction", ha="center", color=GREY)


def _words(found: Evaluation) -> str:
    return "\n".join(textwrap.fill(line, 112, subsequent_indent="   ") for line in found.words().splitlines())
