"""Statistics of a grid's rows and their page: levels, paired differences, probabilities of improvement, figures.

A score is one training seed's mean return over its evaluation trials; intervals are 95% bootstrap intervals over seeds
(`counterpoint.core.statistics`), and differences are taken seed by seed, on the same logs.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from counterpoint.core.artifacts import write_text
from counterpoint.core.statistics import Interval, Statistic, interval, iqm
from counterpoint.core.tables import Row, markdown_table
from reproduction.arms import PAPER_NAMES
from reproduction.logs import Behaviour
from reproduction.pages.headline import Headline
from reproduction.pages.paper import paper_returns_by_size
from reproduction.pages.returns import paired_differences, returns_by_size
from reproduction.statistics import pair, paired_difference, probability_of_improvement

SELECTED, LAST = "return_selected", "return_last"
Comparisons = Sequence[tuple[str, str]]
"""Pairs (method, baseline)."""


def levels(rows: Sequence[Row], column: str = SELECTED, statistic: Statistic = iqm) -> list[dict[str, Any]]:
    """Each method at each number of trials: method, trials, seeds, estimate, low, high."""
    table = []
    for method, trials in dict.fromkeys((row["method"], row["trials"]) for row in rows):
        values = list(_scores(rows, method, trials, column).values())
        table.append({"method": method, "trials": trials, "seeds": len(values), **_ends(_level(values, statistic))})
    return table


def differences(rows: Sequence[Row], comparisons: Comparisons, column: str = SELECTED) -> list[dict[str, Any]]:
    """Mean paired difference of every comparison at each number of trials, and the probability of improvement."""
    table = []
    for trials in _sizes(rows):
        for method, baseline in comparisons:
            left, right = _common(rows, method, baseline, trials, column)
            if len(left) > 1:
                table.append({
                    "group": f"{trials} trials",
                    "comparison": f"{method} − {baseline}",
                    "seeds": len(left),
                    **_ends(paired_difference(left, right, np.mean)),
                    "improves": probability_of_improvement(left, right),
                })  # fmt: skip
    return table


def selection(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return of the selected checkpoint minus that of the last one, by method and number of trials."""
    table = []
    for method, trials in dict.fromkeys((row["method"], row["trials"]) for row in rows):
        left, right = pair(*(_scores(rows, method, trials, column) for column in (SELECTED, LAST)))
        if len(left) > 1 and bool((left != right).any()):
            table.append({"method": method, "trials": trials, **_ends(paired_difference(left, right, np.mean))})
    return table


def write_summary(
    name: str,
    rows: Sequence[Row],
    comparisons: Comparisons,
    out: Path,
    paper: Behaviour | None = None,
    ceiling: float | None = None,
) -> Path:
    """Write `<name>.md` and its figures; return its path.

    Args:
        name: What the files are called.
        rows: Rows of a grid.
        comparisons: Pairs (method, baseline) whose differences are shown.
        out: Folder.
        paper: Behaviour of the paper's figure that is drawn beside the returns; None for no such figure.
        ceiling: Largest possible return.
    """
    compared = differences(rows, comparisons)
    figures = []
    if paper:
        figures.append(f"{name}-returns.png")
        returns_by_size(levels(rows, SELECTED, np.mean), _paper_rows(rows, paper), out / figures[-1],
                        ours_label="ours: mean and 95% interval over seeds", ceiling=ceiling)  # fmt: skip
    if compared:
        figures.append(f"{name}-differences.png")
        paired_differences(compared, out / figures[-1])
    headline = _headline(rows, comparisons, paper) if paper else []
    images = [f"![{figure}]({figure})" for figure in figures]
    text = "\n\n".join([f"# {name}", *headline[:1], *_sections(rows, compared), *headline[1:], *images])
    write_text(out / f"{name}.md", f"{text}\n")
    return out / f"{name}.md"


def _headline(rows: Sequence[Row], comparisons: Comparisons, behaviour: Behaviour) -> list[str]:
    """A paragraph, a heading and a table: our methods against the paper's baselines, all of its arms but CTRL_g."""
    baselines = {point["method"] for point in paper_returns_by_size(behaviour)} - set(PAPER_NAMES.values())
    ours = list(dict.fromkeys(method for method, _ in comparisons))
    others = list(dict.fromkeys(baseline for _, baseline in comparisons if baseline in baselines))
    scores = {(m, str(n)): _scores(rows, m, n, SELECTED) for m in (*ours, *others) for n in _sizes(rows)}
    headline = Headline.of({key: by_seed for key, by_seed in scores.items() if by_seed}, ours, others)
    if not headline.comparisons:
        return []
    heading = "## Headline comparisons by number of trials, intervals that hold together"
    return [headline.text("at {} trials"), heading, headline.table()]


def _sections(rows: Sequence[Row], compared: Sequence[Row]) -> list[str]:
    """The Markdown tables, each under its heading."""
    sections = [
        "## Interquartile mean return, selected checkpoint [95% interval over seeds]",
        markdown_table(_wide(levels(rows, SELECTED, iqm))),
        "## Mean return, selected checkpoint",
        markdown_table(_wide(levels(rows, SELECTED, np.mean))),
        "## Mean return, last checkpoint",
        markdown_table(_wide(levels(rows, LAST, np.mean))),
    ]
    if compared:
        sections += ["## Paired differences in mean return, selected checkpoint", markdown_table(_printed(compared))]
    chosen = selection(rows)
    if chosen:
        sections += ["## Selected minus last checkpoint", markdown_table(_wide(chosen))]
    return sections


def _scores(rows: Sequence[Row], method: str, trials: int, column: str) -> dict[int, float]:
    return {row["seed"]: row[column] for row in rows if row["method"] == method and row["trials"] == trials}


def _common(rows: Sequence[Row], method: str, baseline: str, trials: int, column: str) -> tuple[np.ndarray, np.ndarray]:
    """The scores of the seeds that both have: a failed cell leaves its pair out."""
    left, right = (_scores(rows, name, trials, column) for name in (method, baseline))
    return pair({s: left[s] for s in left if s in right}, {s: right[s] for s in left if s in right})


def _level(values: Sequence[float], statistic: Statistic) -> Interval:
    """One seed has no interval: both ends are its score."""
    return interval(values, statistic) if len(values) > 1 else Interval(*3 * [float(values[0])])


def _ends(estimate: Interval) -> dict[str, float]:
    return {"estimate": estimate.estimate, "low": estimate.low, "high": estimate.high}


def _shown(row: Row) -> str:
    return f"{Interval(row['estimate'], row['low'], row['high']):.1f}"


def _sizes(rows: Sequence[Row]) -> list[int]:
    return sorted({row["trials"] for row in rows})


def _wide(table: Sequence[Row]) -> list[dict[str, Any]]:
    """A line a method, a column a number of trials."""
    lines: dict[str, dict[str, Any]] = {}
    for row in table:
        lines.setdefault(row["method"], {"method": row["method"]})[f"{row['trials']} trials"] = _shown(row)
    return list(lines.values())


def _printed(compared: Sequence[Row]) -> list[dict[str, Any]]:
    return [
        {
            "trials": row["group"],
            "comparison": row["comparison"],
            "seeds": row["seeds"],
            "difference [95% interval]": _shown(row),
            "probability of improvement": f"{row['improves']:.2f}",
        }
        for row in compared
    ]


def _paper_rows(rows: Sequence[Row], behaviour: Behaviour) -> list[dict[str, Any]]:
    """The paper's points under our names: both of our CTRL_g are drawn with the paper's one."""
    points, sizes = paper_returns_by_size(behaviour), _sizes(rows)
    return [
        {**point, "method": method}
        for method in dict.fromkeys(row["method"] for row in rows)
        for point in points
        if point["method"] == PAPER_NAMES.get(method, method) and point["trials"] in sizes
    ]
