"""Page and figure of the effects benchmark: error and sign of every estimator by task, overlap and horizon."""

import os
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from counterpoint.core.tables import Row, markdown_table, require_columns
from counterpoint.page.style import PALETTE, canvas, legend_once
from reproduction.pages.tables import column_mean, formats, group_by, markdown_page, select, unique

COLUMNS = ("task", "overlap", "horizon", "estimator", "seed", "error", "sign_right")
COVERAGE = ("task", "overlap", "horizon", "level", "seed", "covered", "width", "estimator", "distance")
NEAR = 1.05
"""An error of at most this many times the smallest counts as first."""
CELL = ("task", "overlap", "horizon")


def effects_page(rows: Sequence[Row], command: str) -> str:
    """Return the Markdown page: how often every estimator is first, then the errors and signs of every cell."""
    require_columns(rows, COLUMNS, "effects")
    blocks = [
        "# Effects in confounded logs",
        f"`{command}`. The error is relative: 0 is the truth and 1 is copying the factual outcome; means over seeds."
        " The log's behaviour policy has strong, medium or weak overlap. A sign is asked for where the true effect"
        " exceeds a tenth of the noise.",
        markdown_table(summary(rows), formats=formats(f2=("first", "copying or worse", "sign right"), f3=("error",))),
    ]
    for horizon in sorted(unique(rows, "horizon")):
        part = select(rows, horizon=horizon)
        steps = "one step" if horizon == 1 else f"{horizon} steps"
        blocks += [f"## After {steps}", _table(part, "error"), "Share of right signs:", _table(part, "sign_right")]
    return markdown_page(*blocks)


def summary(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return a line for every estimator: in which share of its cells it is first, and copying would be better."""
    best = {cell: min(_errors(part).values()) for cell, part in group_by(rows, *CELL).items()}
    lines = []
    for estimator in unique(rows, "estimator"):
        own = group_by(select(rows, estimator=estimator), *CELL)
        errors = {cell: fmean(row["error"] for row in part) for cell, part in own.items()}
        lines.append(
            {
                "estimator": estimator,
                "cells": len(errors),
                "first": fmean(error <= NEAR * best[cell] for cell, error in errors.items()),
                "copying or worse": fmean(error > 1 for error in errors.values()),
                "error": fmean(errors.values()),
                "sign right": column_mean(select(rows, estimator=estimator), "sign_right"),
            }
        )
    return lines


def _errors(rows: Sequence[Row]) -> dict[str, float]:
    """Return the mean error of every estimator."""
    return {name: fmean(row["error"] for row in part) for (name,), part in group_by(rows, "estimator").items()}


def _table(rows: Sequence[Row], column: str) -> str:
    estimators = unique(rows, "estimator")
    lines = []
    for (task, overlap), part in group_by(rows, "task", "overlap").items():
        line: dict[str, Any] = {"task": task, "overlap": overlap}
        line |= {name: column_mean(select(part, estimator=name), column) for name in estimators}
        lines.append(line)
    return markdown_table(lines, formats=formats(f2=estimators))


def effects_figure(rows: Sequence[Row], path: str | os.PathLike[str]) -> None:
    """Draw the error over the overlap: a panel for every task and horizon, a colour for every estimator."""
    panels = group_by(rows, "task", "horizon")
    across = 4
    down = -(-len(panels) // across)
    with canvas(path, 1.2 + 2.3 * down, "Error of counterfactuals in confounded logs") as figure:
        axes = figure.subplots(down, across, squeeze=False).flatten()
        for axis in axes[len(panels) :]:
            axis.set_visible(False)
        for axis, ((task, horizon), part) in zip(axes, panels.items(), strict=False):
            overlaps = unique(part, "overlap")
            for colour, name in zip(PALETTE, unique(rows, "estimator"), strict=False):
                errors = [column_mean(select(part, estimator=name, overlap=overlap), "error") for overlap in overlaps]
                if None not in errors:
                    axis.plot(overlaps, errors, "o-", color=colour, markersize=4, linewidth=1, label=name)
            axis.axhline(1, linestyle="--", linewidth=1, color="0.5")
            axis.set(title=f"{task}, {horizon} step{'s' * (horizon > 1)}", ylim=(0, 3))
        axes[0].set_ylabel("error; 1 is copying")
        legend_once(figure, list(axes[: len(panels)]))


def coverage_section(rows: Sequence[Row]) -> str:
    """Return the part of the page about intervals; empty where no estimator has any."""
    if not rows:
        return ""
    lines = []
    cells = group_by(rows, "estimator", "task", "horizon", "overlap")
    for (estimator, task, horizon, overlap), part in cells.items():
        line = {"estimator": estimator, "task": task, "steps": horizon, "overlap": overlap}
        lines.append(line | {name: column_mean(part, name) for name in ("distance", "covered", "width")})
    text = (
        f"Share of true answers inside {rows[0]['level']:.0%} intervals, and the mean width of these in root mean"
        " square effects. Intervals widen with the distance of the action from those logged in such states, in standard"
        " deviations beyond the usual range."
    )
    return "\n" + markdown_page(
        "## Intervals", text, markdown_table(lines, formats=formats(f2=("distance", "covered", "width")))
    )


def coverage_figure(rows: Sequence[Row], path: str | os.PathLike[str]) -> None:
    """Draw coverage and width over the overlap, a line for every task of the first estimator."""
    shown = select(rows, estimator=rows[0]["estimator"], horizon=1)
    with canvas(path, 4.4, f"Intervals of the {rows[0]['estimator']}, one step") as figure:
        left, right = figure.subplots(1, 2)
        overlaps = unique(shown, "overlap")
        for number, task in enumerate(unique(shown, "task")):
            part, colour = select(shown, task=task), PALETTE[number % len(PALETTE)]
            style = "o-" if number < len(PALETTE) else "s--"
            for axis, column in ((left, "covered"), (right, "width")):
                means = [column_mean(select(part, overlap=overlap), column) for overlap in overlaps]
                axis.plot(overlaps, means, style, color=colour, markersize=4, linewidth=1, label=task)
        left.axhspan(0.85, 0.95, color="0.9", zorder=0)
        left.set(ylabel="share of true answers inside", ylim=(0, 1.02))
        right.set(ylabel="mean width in root mean square effects", yscale="log")
        legend_once(figure, [left])
