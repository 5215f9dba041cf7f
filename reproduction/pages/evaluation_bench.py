"""How far estimates from logs lie from the truth, and how often the verdict on them was right."""

import os
from collections.abc import Iterable, Sequence
from itertools import combinations
from statistics import fmean
from typing import Any

from counterpoint.core.results import Row, markdown_table, require_columns
from counterpoint.page.style import PALETTE, canvas, legend_once

COLUMNS = (
    "task", "estimator", "policy", "repetition", "estimate", "low", "high", "truth", "verdict", "recommended", "silent",
    "effective", "unsupported", "strayed",
)  # fmt: skip
REFUSED = "cannot be judged"


def evaluation_bench_page(rows: Sequence[Row], command: str) -> str:
    """The recommended estimator policy by policy, the ranking of policies, and every estimator beside it."""
    require_columns(rows, COLUMNS, "evaluation")
    recommended = [row for row in rows if row["recommended"]]
    specs: dict[str, str] = dict.fromkeys(("truth", "bias", "width"), ".3f")
    specs |= dict.fromkeys(("coverage", "refused", "verdict right", "ranked right", "all pairs"), ".2f")
    return "\n".join(
        [
            "# Off-policy evaluation against the truth\n",
            f"`{command}`. Intervals are 95%. A verdict is right where the interval it lets pass covers the truth, and"
            f' where it says "{REFUSED}"; of a policy that treats where nobody was treated, only there.{_easy(rows)}\n',
            markdown_table([_line(own, True) for own in _by(recommended, "task", "policy")], formats=specs),
            "\nPairs of policies, the one that no log can speak of left out, whose true values lie farther apart than"
            " either interval is wide, and all pairs:\n",
            markdown_table([_ranking(own) for own in _by(recommended, "task")], formats=specs),
            "\nEvery estimator:\n",
            markdown_table([_line(own, False) for own in _by(rows, "task", "policy", "estimator")], formats=specs),
            "",
        ]
    )


def _easy(rows: Sequence[Row]) -> str:
    """What must be known of ICU-Sepsis' expert to read how often its value is covered; empty without that task."""
    if all(row["task"] != "icu-sepsis" for row in rows):
        return ""
    return (
        " In ICU-Sepsis random actions are worth as much as the expert's, to two digits"
        " (`python benchmarks/icu_sepsis_values.py`): covering the expert's value is an easy test."
    )


def evaluation_bench_figure(rows: Sequence[Row], path: str | os.PathLike[str]) -> None:
    """Coverage over width, a panel for each task and a colour for each estimator."""
    require_columns(rows, COLUMNS, "evaluation")
    tasks, estimators = (list(dict.fromkeys(row[column] for row in rows)) for column in ("task", "estimator"))
    with canvas(path, 5.2, "Intervals that hold what they promise, and how wide they are") as figure:
        panels = figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
        for panel, task in zip(panels, tasks, strict=True):
            for colour, name in zip(PALETTE, estimators, strict=False):
                lines = [
                    _line(own, False) for own in _by(rows, "task", "policy", "estimator", task=task, estimator=name)
                ]
                known = [line for line in lines if line["width"] is not None]
                wide, covered = [line["width"] for line in known], [line["coverage"] for line in known]
                panel.plot(wide, covered, "o", color=colour, alpha=0.8, label=name)
            panel.axhline(0.95, linestyle="--", linewidth=1, color="0.5")
            panel.set(title=task, xlabel="mean width", ylim=(-0.03, 1.03), xlim=(0, None))
        panels[0].set_ylabel("share of intervals that cover")
        legend_once(figure, list(panels))


def _by(rows: Iterable[Row], *columns: str, **only: Any) -> list[list[Row]]:
    """The rows sorted by what they have in common."""
    parts: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if all(row[column] == value for column, value in only.items()):
            parts.setdefault(tuple(row[column] for column in columns), []).append(row)
    return list(parts.values())


def _line(own: Sequence[Row], verdicts: bool) -> dict[str, Any]:
    """Bias, width and coverage of repetitions of one question; with verdicts, what became of them."""
    found = [row for row in own if row["estimate"] is not None]
    ends = [row["high"] - row["low"] for row in own if row["low"] is not None and row["high"] is not None]
    line = {name: own[0][name] for name in ("task", "policy", "estimator", "truth")}
    line |= {"logs": len(own), "bias": fmean(row["estimate"] - row["truth"] for row in found) if found else None}
    line |= {"width": fmean(ends) if len(ends) == len(own) else None, "coverage": fmean(map(covers, own))}
    if verdicts:
        line["refused"] = fmean(row["verdict"] == REFUSED for row in own)
        line["verdict right"] = fmean(map(right, own))
    return line


def covers(row: Row) -> bool:
    """Whether the truth lies inside; an end that is not known is infinitely far."""
    return (row["low"] is None or row["low"] <= row["truth"]) and (row["high"] is None or row["truth"] <= row["high"])


def right(row: Row) -> bool:
    """Whether the verdict on the recommended interval was right."""
    return row["verdict"] == REFUSED or (covers(row) and not row["silent"])


def _ranking(own: Sequence[Row]) -> dict[str, Any]:
    """How often estimates order two policies as their true values do."""
    apart, every = [], []
    for log in _by(own, "repetition"):
        for one, two in combinations([row for row in log if not row["silent"] and row["estimate"] is not None], 2):
            agrees = (one["estimate"] - two["estimate"]) * (one["truth"] - two["truth"]) > 0
            every.append(agrees)
            if abs(one["truth"] - two["truth"]) > max(_width(one), _width(two)):
                apart.append(agrees)
    share = lambda pairs: fmean(pairs) if pairs else None
    line = {"task": own[0]["task"], "pairs": len(apart), "ranked right": share(apart)}
    return {**line, "pairs in all": len(every), "all pairs": share(every)}


def _width(row: Row) -> float:
    return float("inf") if row["low"] is None or row["high"] is None else row["high"] - row["low"]
