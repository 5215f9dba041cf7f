"""Figures of evaluations: estimates with intervals, calibration of the behaviour model, and confounding bounds."""

import os
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from counterpoint.ope.result import Estimate, Evaluation, PolicyComparison
from counterpoint.page.style import BLACK, BLUE, GREEN, GREY, ORANGE, PALE, VERMILLION, canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"supported": GREEN, "with care": ORANGE, "cannot be judged": VERMILLION}
"""Colour of a verdict."""
SPREAD = 3.0
"""Longest part of an interval that is drawn beyond the main ones, in units of their joint width."""


def evaluation_figure(evaluation: Evaluation, path: str | os.PathLike[str]) -> None:
    """Draw an evaluation into a PNG at `path`."""
    title = f"Estimated return of {evaluation.policy}: {evaluation.verdict}"
    with canvas(path, 4.6 + 0.3 * len(evaluation.estimates) + 0.25 * _words(evaluation).count("\n"), title) as figure:
        grid = figure.add_gridspec(2, 2, width_ratios=(1.7, 1), hspace=0.1)
        forest(figure.add_subplot(grid[:, 0]), evaluation)
        calibration(figure.add_subplot(grid[0, 1]), evaluation)
        confounding(figure.add_subplot(grid[1, 1]), evaluation)
        figure.supxlabel(_words(evaluation), x=0.01, ha="left", fontsize=11, color=BLACK, linespacing=1.4)


def comparison_figure(comparison: PolicyComparison, path: str | os.PathLike[str]) -> None:
    """Draw the returns of several policies, and their differences from the behaviour policy, as a PNG at `path`."""
    evaluations = comparison.evaluations
    count = len(evaluations)
    with canvas(path, 2.4 + 0.5 * count, "Estimated returns of the policies") as figure:
        left, right = figure.subplots(1, 2, sharey=True)
        _logged(left, evaluations[0].logged)
        right.axvline(0, color=GREY, linestyle="--", linewidth=1.2)
        caption = f"return ({evaluations[0].recommended}), {evaluations[0].confidence:.0%} interval"
        differences = [evaluation.difference for evaluation in evaluations if evaluation.difference]
        for axes, estimates, label in (
            (left, [evaluation.value for evaluation in evaluations], caption),
            (right, differences, "difference from the behaviour policy, paired"),
        ):
            for place, (evaluation, estimate) in enumerate(zip(evaluations, estimates, strict=True)):
                whisker(axes, place, estimate, COLOURS[evaluation.verdict])
            compared = evaluations[0].logged if axes is left else Estimate("nothing", 0.0, 0.0, 0.0)
            axes.set_xlim(*shown_range([*estimates, compared], estimates))
            axes.locator_params(axis="x", nbins=6)
            axes.set_xlabel(label)
            axes.tick_params(axis="y", length=0)
        left.set_yticks(range(count), [f"{evaluation.policy}\n{evaluation.verdict}" for evaluation in evaluations])
        left.set_ylim(count - 0.4, -0.6)


def forest(axes: "Axes", evaluation: Evaluation) -> None:
    """Draw a line for each estimate, the recommended one in colour; the shaded band is the logged return."""
    estimates = evaluation.estimates
    _logged(axes, evaluation.logged)
    for place, estimate in enumerate(estimates):
        whisker(axes, place, estimate, BLUE if estimate.name == evaluation.recommended else GREY)
    axes.set_yticks(range(len(estimates)), [estimate.name for estimate in estimates])
    for label, estimate in zip(axes.get_yticklabels(), estimates, strict=True):
        label.set_fontweight("bold" if estimate.name == evaluation.recommended else "normal")
    axes.set_ylim(len(estimates) - 0.4, -0.6)
    axes.set_xlim(*shown_range([evaluation[evaluation.recommended], evaluation.logged], estimates))
    axes.locator_params(axis="x", nbins=6)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"return, with {evaluation.confidence:.0%} intervals")
    axes.set_title(f"Estimates ({evaluation.recommended}: {evaluation.label(evaluation.value)})", loc="left", pad=26)


def whisker(axes: "Axes", place: float, estimate: Estimate, colour: str) -> None:
    """Draw an estimate with its interval; a missing end is drawn to the edge."""
    low = -1e9 if estimate.low is None else estimate.low
    high = 1e9 if estimate.high is None else estimate.high
    axes.plot([low, high], [place, place], color=colour, linewidth=2.2, solid_capstyle="butt")
    for end in (low, high):
        axes.plot([end, end], [place - 0.13, place + 0.13], color=colour, linewidth=2.2)
    if estimate.value is not None:
        axes.plot(estimate.value, place, "o", color=colour, markersize=7)


def shown_range(main: Sequence[Estimate], estimates: Sequence[Estimate]) -> tuple[float, float]:
    """Limits of an axis: all values, and interval ends that are not far beyond the main ones."""
    numbers = [end for estimate in main for end in (estimate.low, estimate.high, estimate.value) if end is not None]
    numbers += [estimate.value for estimate in estimates if estimate.value is not None]
    low, high = min(numbers), max(numbers)
    reach = SPREAD * ((high - low) or 1.0)
    ends = [end for estimate in estimates for end in (estimate.low, estimate.high) if end is not None]
    numbers += [end for end in ends if low - reach < end < high + reach]
    low, high = min(numbers), max(numbers)
    margin = 0.05 * ((high - low) or 1.0)
    return low - margin, high + margin


def _logged(axes: "Axes", logged: Estimate) -> None:
    if logged.low is not None and logged.high is not None:
        axes.axvspan(logged.low, logged.high, color=PALE, alpha=0.5, linewidth=0)
    if logged.value is not None:
        axes.axvline(logged.value, color=GREY, linestyle="--", linewidth=1.2)
        axes.annotate(
            "behaviour policy", (logged.value, 1), (0, 4), xycoords=("data", "axes fraction"),
            textcoords="offset points", ha="center", va="bottom", color=GREY, fontsize=10.5,
        )  # fmt: skip


def calibration(axes: "Axes", evaluation: Evaluation) -> None:
    """Draw observed frequencies of actions against their predicted probabilities."""
    axes.set_title("Behaviour model: calibration", loc="left", pad=8)
    if evaluation.behaviour is None:
        _absent(axes, "no probabilities of continuous doses")
        return
    predicted, observed = zip(*evaluation.behaviour.calibration, strict=True)
    axes.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1.2)
    axes.plot(predicted, observed, "o-", color=BLUE, markersize=5, linewidth=1.6)
    axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), xlabel="probability of an action", ylabel="share taken")
    axes.annotate(
        f"Brier score {evaluation.behaviour.brier:.2f}", (0.97, 0.05), xycoords="axes fraction", ha="right", color=GREY,
        fontsize=10.5,
    )  # fmt: skip


def confounding(axes: "Axes", evaluation: Evaluation) -> None:
    """Draw the bounds of weighted importance sampling under unmeasured confounding."""
    axes.set_title("WIS under confounding", loc="left", pad=8)
    if evaluation.sensitivity is None:
        _absent(axes, "no weights of continuous doses")
        return
    bounds = evaluation.sensitivity.confounding
    strength = [bound.strength for bound in bounds]
    axes.fill_between(strength, [b.low for b in bounds], [b.high for b in bounds], color=BLUE, alpha=0.15, linewidth=0)
    axes.fill_between(
        strength, [b.lowest for b in bounds], [b.highest for b in bounds], color=BLUE, alpha=0.45, linewidth=0
    )
    if evaluation.logged.value is not None:
        axes.axhline(evaluation.logged.value, color=GREY, linestyle="--", linewidth=1.2)
    axes.set(xlabel=f"strength of confounding, a {evaluation.sensitivity.per}", ylabel="return")
    axes.set_xlim(strength[0], strength[-1])


def _absent(axes: "Axes", why: str) -> None:
    axes.set_axis_off()
    axes.annotate(why, (0.5, 0.5), xycoords="axes fraction", ha="center", color=GREY)


def _words(evaluation: Evaluation) -> str:
    return "\n".join(textwrap.fill(line, 112, subsequent_indent="   ") for line in evaluation.words().splitlines())
