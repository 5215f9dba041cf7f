"""Groups of states from the mildest to the most severe, by one column; and a state that stands for each group."""

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
    """Which group each row is of, by its value of one column; −1 where a group has too few subjects to be shown."""

    column: str
    place: int
    correlation: float
    """Rank correlation of the column's first value with the total reward of the episode."""
    group: Int[Tensor, " n"]
    labels: tuple[str, ...]
    """The groups, the mildest first."""


def severity_of(rows: Transitions, column: str = "") -> Severity | None:
    """Fifths by a column; where none is named, by the one whose first value goes most with how an episode pays."""
    usable = [i for i, each in enumerate(rows.schema.states) if not each.levels and not each.mask_of]
    if column:
        names = [rows.state_names[i] for i in usable]
        require(column in names, f"'{column}' is no column of numbers; name one of {', '.join(names[:8])}")
        usable = [rows.state_names.index(column)]
    records = records_of(rows)
    found = {i: _rank_correlation(rows.state[records.first, i], records.returned) for i in usable}
    if not found:
        return None
    place = max(found, key=lambda i: abs(found[i]))
    if not column and abs(found[place]) < WEAK:
        return None
    return _fifths(rows, place, found[place])


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
    renumbered = torch.tensor([sum(enough[:i]) if own else -1 for i, own in enumerate(enough)])
    shown = tuple(label for label, own in zip(labels, enough, strict=True) if own)
    return Severity(name, place, correlation, renumbered[group], shown)


def _labels(name: str, edges: list[str]) -> list[str]:
    if not edges:
        return [f"any {name}"]
    between = [f"{name} above {low} to {high}" for low, high in pairwise(edges)]
    return [f"{name} up to {edges[0]}", *between, f"{name} above {edges[-1]}"]


def medians(rows: Transitions, severity: Severity) -> Float[Tensor, "g s"]:
    """A state for each group: the median of every column, the commonest level of a category; no patient's row."""
    return torch.stack([_median(rows, severity.group == group) for group in range(len(severity.labels))])


def _median(rows: Transitions, own: Tensor) -> Float[Tensor, " s"]:
    states, columns = rows.state[own], rows.schema.states
    middle = [
        float(states[:, i].long().bincount().argmax()) if column.levels else quantiles(states[:, i], 0.5)[0]
        for i, column in enumerate(columns)
    ]
    return rows.schema.knowledge.hold(torch.tensor(middle, dtype=rows.state.dtype), rows.state_names)


def _rank_correlation(one: Float[Tensor, " n"], other: Float[Tensor, " n"]) -> float:
    """Spearman's; 0 where one of the two does not vary."""
    from scipy.stats import rankdata

    ranks = [torch.from_numpy(rankdata(values.double().numpy())) for values in (one, other)]
    centred = [values - values.mean() for values in ranks]
    size = float(centred[0].norm() * centred[1].norm())
    return float(centred[0] @ centred[1]) / size if size else 0.0
