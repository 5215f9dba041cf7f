"""Page and figure of the clinical benchmark: true returns beside practice, the choice, and the evaluation."""

import os
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from counterpoint.core.statistics import Interval
from counterpoint.core.tables import Row, markdown_table, require_columns
from counterpoint.page.style import PALETTE, canvas, legend_once
from reproduction.pages.evaluation import covers
from reproduction.pages.tables import formats, group_by, markdown_page, mean, select, unique
from reproduction.statistics import paired_mean

COLUMNS = ("world", "subjects", "method", "seed", "value", "danger", "chosen")
EVALUATION = ("world", "subjects", "policy", "estimator", "seed", "low", "high", "truth", "verdict", "recommended")
PRACTICE = "practice"
REFERENCES = ("as logged", "nothing", "textbook", "doses × 0.8", "doses × 1.25")
"""Rules that learn nothing; they are not among those of which one is first."""
REFUSED = "cannot be judged"


def clinic_page(rows: Sequence[Row], estimates: Sequence[Row], command: str) -> str:
    """Return the Markdown page: every method beside practice, the choice, and off-policy evaluation."""
    require_columns(rows, COLUMNS, "clinic")
    blocks = [
        "# Policies learned from clinical logs, deployed in the world",
        f"`{command}`. Values are true mean returns of an episode; differences are from practice as it was learned from"
        " the same log, paired over seeds, with 95% intervals by Student's t. Danger is the share of the steps in a"
        " dangerous state.",
        markdown_table(_methods(rows), formats=formats(f2=("above practice", "below practice"))),
    ]
    for (world, subjects), part in group_by(rows, "world", "subjects").items():
        lines = [_line(part, method) for method in unique(part, "method")]
        table = markdown_table(lines, formats=formats(f1=("value",), f3=("danger",)))
        blocks += [f"## {world}, {subjects} subjects", table]
    return markdown_page(*blocks, *_chosen(rows), *_evaluation(estimates))


def values(rows: Sequence[Row], method: str) -> dict[int, float]:
    """Return the value of every seed in which the method did not refuse."""
    return {row["seed"]: row["value"] for row in rows if row["method"] == method and row["value"] is not None}


def difference(rows: Sequence[Row], method: str, other: str) -> Interval | None:
    """Return the paired difference of two methods over the seeds that both have; None for fewer than two."""
    left, right = values(rows, method), values(rows, other)
    seeds = [seed for seed in left if seed in right]
    if len(seeds) < 2:
        return None
    return paired_mean([left[seed] for seed in seeds], [right[seed] for seed in seeds])


def _line(rows: Sequence[Row], method: str) -> dict[str, Any]:
    """Return one method's mean value, danger and difference from practice."""
    part = select(rows, method=method)
    gain = None if method == PRACTICE else difference(rows, method, PRACTICE)
    return {
        "method": method,
        "seeds": len(values(rows, method)),
        "value": mean(row["value"] for row in part),
        "danger": mean(row["danger"] for row in part),
        "difference from practice": "" if gain is None else f"{gain:.1f}",
        "chosen": sum(row["chosen"] for row in part),
    }


def _methods(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return in how many cells every method is above or below practice by an interval."""
    lines = []
    cells = group_by(rows, "world", "subjects").values()
    for method in unique(rows, "method"):
        gains = [gain for part in cells if (gain := difference(part, method, PRACTICE)) is not None]
        if method != PRACTICE and gains:
            above, below = fmean(gain.low > 0 for gain in gains), fmean(gain.high < 0 for gain in gains)
            lines.append({"method": method, "cells": len(gains), "above practice": above, "below practice": below})
    return lines


def chosen_is_first(rows: Sequence[Row]) -> bool | None:
    """Return whether no learning method is above the chosen one by an interval; None without two seeds.

    Args:
        rows: One world and number of subjects.
    """
    chosen = {row["seed"]: row["value"] for row in rows if row["chosen"] and row["value"] is not None}
    told = []
    for method in unique(rows, "method"):
        own = values(rows, method)
        seeds = [seed for seed in own if seed in chosen]
        if method not in REFERENCES and len(seeds) > 1:
            told.append(paired_mean([own[seed] for seed in seeds], [chosen[seed] for seed in seeds]).low > 0)
    return not any(told) if told else None


def _chosen(rows: Sequence[Row]) -> list[str]:
    told = [chosen_is_first(part) for part in group_by(rows, "world", "subjects").values()]
    cells = [first for first in told if first is not None]
    if not cells:
        return []
    share = f"{sum(cells)} of {len(cells)}"
    return ["## The choice without the truth", f"In {share} cells no learned method is told apart from it and better."]


def _evaluation(estimates: Sequence[Row]) -> list[str]:
    """Return coverage of every estimator and the verdicts of the recommended one."""
    if not estimates:
        return []
    lines = [_accuracy(part) for part in group_by(estimates, "world", "policy", "estimator").values()]
    shown = formats(f2=("coverage", "refused"), f1=("width", "truth"))
    return ["## Estimates from the log", markdown_table(lines, formats=shown)]


def _accuracy(rows: Sequence[Row]) -> dict[str, Any]:
    widths = [row["high"] - row["low"] for row in rows if row["low"] is not None and row["high"] is not None]
    line = {name: rows[0][name] for name in ("world", "policy", "estimator")}
    return {
        **line,
        "logs": len(rows),
        "truth": mean(row["truth"] for row in rows),
        "width": mean(widths),
        "coverage": fmean(map(covers, rows)),
        "refused": fmean(row["verdict"] == REFUSED for row in rows),
    }


def clinic_figure(rows: Sequence[Row], path: str | os.PathLike[str]) -> None:
    """Draw the mean value over the number of subjects: a panel for every world, a colour for every method."""
    worlds, methods = unique(rows, "world"), unique(rows, "method")
    with canvas(path, 4.8, "True return of policies learned from clinical logs") as figure:
        panels = figure.subplots(1, len(worlds), squeeze=False)[0]
        for panel, world in zip(panels, worlds, strict=True):
            part = select(rows, world=world)
            sizes = sorted(unique(part, "subjects"))
            for number, method in enumerate(methods):
                shown = [mean(row["value"] for row in select(part, method=method, subjects=size)) for size in sizes]
                kept = [(size, value) for size, value in zip(sizes, shown, strict=True) if value is not None]
                colour = PALETTE[number % len(PALETTE)]
                if kept and method in REFERENCES:  # They learn nothing, so the size of the log is nothing to them.
                    level = sum(value for _, value in kept) / len(kept)
                    panel.axhline(level, linestyle="--", color=colour, linewidth=1, label=method)
                elif kept:
                    panel.plot(*zip(*kept, strict=True), "o-", color=colour, markersize=4, linewidth=1, label=method)
            panel.set(title=world, xlabel="subjects", xscale="log", xticks=sizes, xticklabels=sizes)
            panel.minorticks_off()
        panels[0].set_ylabel("mean return of an episode")
        legend_once(figure, list(panels))
