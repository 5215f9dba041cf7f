"""Render the page of a run as one HTML file without network access or scripts.

Its figures are SVG data URLs: narrow enough for a phone, sharp in print, and reproducible.
"""

import base64
import io
import math
import re
from collections.abc import Callable, Sequence
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from counterpoint.checks.comparisons import EffectComparison
from counterpoint.checks.findings import CheckReport
from counterpoint.ope.result import Evaluation
from counterpoint.page.cohort import Bars
from counterpoint.page.effect_curves import effect_curves, strongest
from counterpoint.page.evaluation_figure import calibration, confounding, forest
from counterpoint.page.gather import Page
from counterpoint.page.imagined import EffectSurface
from counterpoint.page.style import BLACK, BLUE, GREEN, GREY, PALE, PALETTE, VERMILLION, drawing, reference_line
from counterpoint.page.summary import value_text


def render(page: Page) -> str:
    """Render a page as HTML; all texts from tables and recipes are escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("counterpoint.page")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    template = environment.get_template("page.html.j2")
    returned = "" if page.returns is None else value_text(page.returns)
    text = template.render(page=page, figures=_figures(page), returned=returned)
    return re.sub(r"\n\s*\n+", "\n", text)


def _figures(page: Page) -> dict[str, str]:
    """Draw the figures whose data the page has; return data URLs by name."""
    drawn = {"lengths": lengths(page.cohort.lengths)}
    if page.check is not None:
        drawn["checks"] = checks(page.check)
        if page.check.effects:
            drawn["curves"] = curves(page.check.effects)
    if page.imagined is not None:
        drawn["surface"] = effects(page.imagined.surface)
    evaluation = page.evaluation
    if evaluation is not None:
        drawn["estimates"] = estimates(evaluation)
        if evaluation.behaviour is not None:
            drawn["behaviour"] = behaviour(evaluation)
        if evaluation.sensitivity is not None:
            drawn["unmeasured"] = unmeasured(evaluation)
    return drawn


if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 5.6
"""inches; a phone shows it at two thirds, where 12 points are 10 pixels high"""
PANELS = 3


def svg(height: float, draw: Callable[["Figure"], None]) -> str:
    """Draw a figure and return it as a data URL."""
    import matplotlib

    with drawing(WIDTH, height) as figure, matplotlib.rc_context({"svg.hashsalt": "counterpoint"}):
        draw(figure)
        written = io.BytesIO()
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(written.getvalue()).decode()}"


def lengths(bars: Bars) -> str:
    """Bar chart of subjects by episode length; a hollow bar of ten stands for a hidden count."""
    from matplotlib.ticker import MaxNLocator

    def draw(figure: "Figure") -> None:
        axes = figure.subplots()
        places = 1 + bars.width * (np.arange(len(bars.counts)) + 0.5) - 0.5
        known = np.array([count is not None for count in bars.counts])
        axes.bar(
            places[known], [count for count in bars.counts if count is not None], color=BLUE, width=0.8 * bars.width
        )
        if not known.all():
            axes.bar(places[~known], 10, color="white", edgecolor=GREY, width=0.8 * bars.width, label="not shown")
            axes.legend(loc="upper left")
        axes.set(xlabel=bars.label, ylabel="subjects")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))

    return svg(2.9, draw)


def checks(report: CheckReport) -> str:
    """Every check's value as a multiple of its threshold."""

    def draw(figure: "Figure") -> None:
        axes = figure.subplots()
        shown = [check for check in report.findings if math.isfinite(check.value) and check.threshold > 0]
        for line, check in enumerate(reversed(shown)):
            colour = GREEN if check.passed else VERMILLION
            size = max(check.value / check.threshold, 0.0)
            axes.plot([0, min(size, 3)], [line, line], color=colour, linewidth=2)
            axes.plot(min(size, 3), line, marker="o" if check.passed else "X", color=colour, markersize=9)
        axes.set_yticks(range(len(shown)), [check.name for check in reversed(shown)])
        axes.set(xlim=(0, 3.15), ylim=(-0.6, len(shown) - 0.4), xlabel="multiple of what is acceptable, up to 3")
        reference_line(axes, 1.0, "acceptable up to here", vertical=True)

    return svg(0.9 + 0.36 * len(report.findings), draw)


def curves(comparisons: Sequence[EffectComparison]) -> str:
    """Effects of doses over the steps after them, in the model and in the log."""
    shown = strongest(comparisons)
    return svg(0.9 + 2.3 * ceil(len(shown) / 2), lambda figure: effect_curves(figure, shown))


def effects(surface: EffectSurface) -> str:
    """Effect of each action on one column, by severity group."""
    return _maps(surface) if surface.choices.grid else _lines(surface)


def _maps(surface: EffectSurface) -> str:
    """Maps over two doses for the mildest, the middle and the most severe group; unsupported cells are crossed out."""
    grid, change = surface.choices.grid, surface.change.numpy()
    assert grid is not None
    shown = sorted({0, (len(surface.groups) - 1) // 2, len(surface.groups) - 1})[:PANELS]
    most = float(np.abs(change[shown]).max()) or 1.0

    def draw(figure: "Figure") -> None:
        panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
        for axes, group in zip(panels, shown, strict=True):
            shape = (len(grid.rows), len(grid.columns))
            image = axes.imshow(
                change[group].reshape(shape), cmap="PuOr_r", vmin=-most, vmax=most, aspect="auto", origin="lower"
            )
            for place, supported in enumerate(surface.supported[group]):
                if not supported:
                    at = place % shape[1], place // shape[1]
                    axes.plot(*at, marker="x", color="white", markersize=7, markeredgewidth=3.2)
                    axes.plot(*at, marker="x", color=BLACK, markersize=6, markeredgewidth=1.3)
            axes.set_xticks(range(shape[1]), grid.columns, rotation=90, fontsize=10)
            axes.set_title(_two_lines(surface.groups[group]), fontsize=10)
            axes.spines[:].set_visible(False)
            axes.tick_params(length=0)
        panels[0].set_yticks(range(len(grid.rows)), grid.rows, fontsize=10)
        panels[0].set_ylabel(grid.down, fontsize=10)
        panels[len(panels) // 2].set_xlabel(grid.across, fontsize=10)
        bar = figure.colorbar(image, ax=list(panels), location="bottom", shrink=0.8, pad=0.02, label=_change(surface))  # pyright: ignore[reportPossiblyUnboundVariable]
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]

    return svg(4.2, draw)


def _lines(surface: EffectSurface) -> str:
    """A line over the actions for each group; points are hollow for unsupported actions."""

    def draw(figure: "Figure") -> None:
        axes = figure.subplots()
        places = np.arange(len(surface.choices))
        for group, label in enumerate(surface.groups):
            colour, values = PALETTE[group % len(PALETTE)], surface.change[group].numpy()
            filled = np.array(surface.supported[group])
            axes.plot(places, values, color=colour, linewidth=1.6, label=label)
            axes.plot(places[filled], values[filled], "o", color=colour, markersize=6)
            axes.plot(places[~filled], values[~filled], "o", color=colour, markerfacecolor="white", markersize=6)
        steep = max(map(len, surface.choices.labels)) * len(places) > 48
        axes.set_xticks(
            places, surface.choices.labels, rotation=60 if steep else 0, ha="right" if steep else "center", fontsize=10
        )
        axes.axhline(0, color=PALE, linewidth=1, zorder=0)
        axes.set_ylabel(_change(surface), fontsize=11)
        figure.legend(loc="outside lower center", fontsize=10, ncols=1)

    return svg(3.4 + 0.2 * len(surface.groups), draw)


def _change(surface: EffectSurface) -> str:
    return f"mean change of {surface.column}" + (f", {surface.unit}" if surface.unit else "")


def _two_lines(text: str) -> str:
    """Break a label after its first word."""
    head, _, rest = text.partition(" ")
    return f"{head}\n{rest}"


def estimates(evaluation: Evaluation) -> str:
    """Every estimate with its interval, and the logged return."""
    return svg(1.6 + 0.36 * len(evaluation.estimates), lambda figure: forest(figure.subplots(), evaluation))


def behaviour(evaluation: Evaluation) -> str:
    """Calibration of the behaviour model."""
    return svg(3.4, lambda figure: calibration(figure.subplots(), evaluation))


def unmeasured(evaluation: Evaluation) -> str:
    """Bounds under unmeasured confounding."""
    return svg(3.4, lambda figure: confounding(figure.subplots(), evaluation))
