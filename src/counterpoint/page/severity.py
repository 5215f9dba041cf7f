"""Severity groups of states by one column, from the mildest to the most severe, and their median states."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.core.errors import require
from counterpoint.data.transitions import Transitions
from counterpoint.page.cells import SMALLEST, number, quantiles, subjects_in
from counterpoint.page.cohort import records_of

FIFTHS = (0.2, 0.4, 0.6, 0.8)
WEAK = 0.2
"""Rank correlation with the return below which no column is taken for severity unless it is named."""


@dataclass(frozen=True)
class Severity:
    """Severity group of each row by one column; −1 for groups of too few subjects."""

    column: str
    place: int
    correlation: float
    """Rank correlation of the column's first value with the total reward of the episode."""
    group: Int[Tensor, " n"]
    labels: tuple[str, ...]
    """The groups, the mildest first."""


def severity_of(rows: Transitions, column: str = "") -> Severity | None:
    """Group rows into fifths of a column.

    By default it is the one whose first value has the largest rank correlation with the total reward of the episode.
    """
    usable = [i for i, state in enumerate(rows.schema.states) if not state.levels and not state.mask_of]
    if column:
        names = [rows.state_names[i] for i in usable]
        require(column in names, f"'{column}' is no column of numbers; name one of {', '.join(names[:8])}")
        usable = [rows.state_names.index(column)]
    records = records_of(rows)
    correlations = {i: _rank_correlation(rows.state[records.first, i], records.returned) for i in usable}
    if not correlations:
        return None
    place = max(correlations, key=lambda i: abs(correlations[i]))
    if not column and abs(correlations[place]) < WEAK:
        return None
    return _fifths(rows, place, correlations[place])


def _fifths(rows: Transitions, place: int, correlation: float) -> Severity | None:
    name, values = rows.state_names[place], rows.state[:, place].double()
    edges = sorted({edge for edge in quantiles(values, *FIFTHS) if edge < float(values.max())})
    group = torch.bucketize(values, torch.tensor(edges, dtype=torch.double))
    labels = _labels(name, [number(edge) for edge in edges])
    if correlation > 0:
        group, labels = len(edges) - group, labels[::-1]
    enough = [count >= SMALLEST for count in subjects_in(rows, group, len(labels))]
    if not any(enough):
        return None
    renumbered = torch.tensor([sum(enough[:i]) if shown else -1 for i, shown in enumerate(enough)])
    shown_labels = tuple(label for label, shown in zip(labels, enough, strict=True) if shown)
    return Severity(name, place, correlation, renumbered[group], shown_labels)


def _labels(name: str, edges: list[str]) -> list[str]:
    if not edges:
        return [f"any {name}"]
    between = [f"{name} above {low} to {high}" for low, high in pairwise(edges)]
    return [f"{name} up to {edges[0]}", *between, f"{name} above {edges[-1]}"]


def medians(rows: Transitions, severity: Severity) -> Float[Tensor, "g s"]:
    """Median state of each group: the median of every column, or the most frequent level of a category."""
    return torch.stack([_median(rows, severity.group == group) for group in range(len(severity.labels))])


def _median(rows: Transitions, members: Tensor) -> Float[Tensor, " s"]:
    states, columns = rows.state[members], rows.schema.states
    middle = [
        float(states[:, i].long().bincount().argmax()) if column.levels else quantiles(states[:, i], 0.5)[0]
        for i, column in enumerate(columns)
    ]
    return rows.schema.knowledge.hold(torch.tensor(middle, dtype=rows.state.dtype), rows.state_names)


def _rank_correlation(one: Float[Tensor, " n"], other: Float[Tensor, " n"]) -> float:
    """Spearman's rank correlation; 0 if one of the two is constant."""
    from scipy.stats import rankdata

    ranks = [torch.from_numpy(rankdata(values.double().numpy())) for values in (one, other)]
    centred = [values - values.mean() for values in ranks]
    size = float(centred[0].norm() * centred[1].norm())
    return float(centred[0] @ centred[1]) / size if size else 0.0
