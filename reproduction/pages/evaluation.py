"""Page and figure of the off-policy evaluation benchmark: bias, coverage and verdicts against true values."""

import os
from collections.abc import Sequence
from itertools import combinations
from statistics import fmean
from typing import Any

from counterpoint.core.tables import Row, markdown_table, require_columns
from counterpoint.page.style import PALETTE, canvas, legend_once
from reproduction.pages.tables import formats, group_by, markdown_page, mean, select, unique

COLUMNS = (
    "task", "estimator", "policy", "repetition", "estimate", "low", "high", "truth", "verdict", "recommended", "silent",
    "effective", "unsupported", "strayed",
)  # fmt: skip
REFUSED = "cannot be judged"
FORMATS = formats(
    f3=("truth", "bias", "width"), f2=("coverage", "refused", "verdict right", "ranked right", "all pairs")
)


def evaluation_page(rows: Sequence[Row], command: str) -> str:
    """Return the Markdown page: the recommended estimator, the ranking of policies, and every estimator."""
    require_columns(rows, COLUMNS, "evaluation")
    recommended = select(rows, recommended=True)
    policies = group_by(recommended, "task", "policy").values()
    estimators = group_by(rows, "task", "policy", "estimator").values()
    return markdown_page(
        "# Off-policy evaluation against the truth",
        f"`{command}`. Intervals are 95%. A verdict is right if it accepts an interval that covers the truth, or is"
        f' "{REFUSED}"; for a policy that treats where nobody was treated, only "{REFUSED}" is right.'
        f"{_icu_sepsis_note(rows)}",
        markdown_table([{**_accuracy(part), **_verdicts(part)} for part in policies], formats=FORMATS),
        "Pairs of policies whose true values differ by more than the width of either interval, and all pairs; policies"
        " without support in the log are left out:",
        markdown_table([_ranking(part) for part in group_by(recommended, "task").values()], formats=FORMATS),
        "Every estimator:",
        markdown_table([_accuracy(part) for part in estimators], formats=FORMATS),
    )


def _icu_sepsis_note(rows: Sequence[Row]) -> str:
    """Say why covering the expert's value in ICU-Sepsis is easy; empty without that task."""
    if "icu-sepsis" not in unique(rows, "task"):
        return ""
    return (
        " In ICU-Sepsis random actions have the same mean return as the expert's, to two digits"
        " (`python benchmarks/icu_sepsis_values.py`): covering the expert's value is an easy test."
    )


def evaluation_figure(rows: Sequence[Row], path: str | os.PathLike[str]) -> None:
    """Draw coverage over interval width: a panel for each task, a colour for each estimator."""
    require_columns(rows, COLUMNS, "evaluation")
    tasks, estimators = unique(rows, "task"), unique(rows, "estimator")
    with canvas(path, 5.2, "Coverage and width of 95% intervals") as figure:
        panels = figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
        for panel, task in zip(panels, tasks, strict=True):
            for colour, name in zip(PALETTE, estimators, strict=False):
                part = select(rows, task=task, estimator=name)
                lines = [_accuracy(policy) for policy in group_by(part, "policy").values()]
                bounded = [line for line in lines if line["width"] is not None]
                widths, shares = [line["width"] for line in bounded], [line["coverage"] for line in bounded]
                panel.plot(widths, shares, "o", color=colour, alpha=0.8, label=name)
            panel.axhline(0.95, linestyle="--", linewidth=1, color="0.5")
            panel.set(title=task, xlabel="mean width", ylim=(-0.03, 1.03), xlim=(0, None))
        panels[0].set_ylabel("share of intervals that cover")
        legend_once(figure, list(panels))


def _accuracy(rows: Sequence[Row]) -> dict[str, Any]:
    """Bias, mean width and coverage over the logs of one task, policy and estimator."""
    widths = [row["high"] - row["low"] for row in rows if row["low"] is not None and row["high"] is not None]
    line = {name: rows[0][name] for name in ("task", "policy", "estimator", "truth")}
    line["logs"] = len(rows)
    line["bias"] = mean(row["estimate"] - row["truth"] for row in rows if row["estimate"] is not None)
    line["width"] = mean(widths) if len(widths) == len(rows) else None
    line["coverage"] = fmean(map(covers, rows))
    return line


def _verdicts(rows: Sequence[Row]) -> dict[str, float]:
    """The shares of refusals and of right verdicts."""
    return {"refused": fmean(row["verdict"] == REFUSED for row in rows), "verdict right": fmean(map(right, rows))}


def covers(row: Row) -> bool:
    """Return whether the interval covers the truth; an absent end is infinite."""
    return (row["low"] is None or row["low"] <= row["truth"]) and (row["high"] is None or row["truth"] <= row["high"])


def right(row: Row) -> bool:
    """Return whether the verdict refuses, or accepts an interval that covers the truth of a supported policy."""
    return row["verdict"] == REFUSED or (covers(row) and not row["silent"])


def _ranking(rows: Sequence[Row]) -> dict[str, Any]:
    """How often estimates order two policies as their true values do."""
    distinct, pairs = [], []
    for log in group_by(rows, "repetition").values():
        estimated = [row for row in log if not row["silent"] and row["estimate"] is not None]
        for one, two in combinations(estimated, 2):
            agrees = (one["estimate"] - two["estimate"]) * (one["truth"] - two["truth"]) > 0
            pairs.append(agrees)
            if abs(one["truth"] - two["truth"]) > max(_width(one), _width(two)):
                distinct.append(agrees)
    return {"task": rows[0]["task"], "pairs": len(distinct), "ranked right": mean(distinct),
            "pairs in all": len(pairs), "all pairs": mean(pairs)}  # fmt: skip


def _width(row: Row) -> float:
    return float("inf") if row["low"] is None or row["high"] is None else row["high"] - row["low"]
