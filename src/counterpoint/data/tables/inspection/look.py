"""The table with the roles of its columns: its rows in order, which columns say the same, which never change."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from counterpoint.core.errors import CounterpointError
from counterpoint.data.tables.clock import changes
from counterpoint.data.tables.columns import CheckedColumns
from counterpoint.data.tables.inspection.columns import TakenColumn, codes_of
from counterpoint.data.tables.inspection.facts import AMOUNTS, Roles
from counterpoint.data.tables.missing import constant_within_subjects

ALIKE = 0.999
"""Columns whose correlation is beyond this say the same."""
SAMPLE = 20_000
"""Rows that columns are compared on."""


@dataclass(frozen=True)
class Log:
    """The rows in the order of subject, episode and time; every array is in that order."""

    order: np.ndarray
    subject: np.ndarray
    opens: np.ndarray
    """Where a subject or an episode begins."""
    same: np.ndarray
    """Where subject, episode and time are those of the row before."""
    elapsed: np.ndarray
    """Steps since the subject's row before; 0 for its first."""
    step: str
    """How long a step is; empty where no clock says so."""
    trouble: str = ""
    """Why the times cannot be read."""

    @property
    def last(self) -> np.ndarray:
        """Where an episode ends."""
        return np.r_[self.opens[1:], True]

    @cached_property
    def first_row(self) -> np.ndarray:
        """For each row its subject's first."""
        begins = changes(self.subject)
        return np.flatnonzero(begins)[np.cumsum(begins) - 1]


def sorted_log(columns: CheckedColumns, roles: Roles) -> Log:
    """Sort the rows; without a subject they are one subject's, without a clock they stay as they are."""
    none = np.zeros(len(columns), dtype=np.int64)
    subject, episode = (codes_of(columns, roles[role][0]) if roles[role] else none for role in ("subject", "episode"))
    moment, per_second, trouble = none, None, "no clock"
    try:
        if roles["time"]:
            times = columns.times(roles["time"][0])
            moment, per_second, trouble = times.values, times.per_second, ""
    except CounterpointError as error:
        trouble = str(error)
    order = np.lexsort((moment, episode, subject))
    begins = changes(subject[order])
    opens = begins | changes(episode[order])
    if trouble:
        return Log(order, subject[order], opens, none > 0, (~begins).astype(float), "", trouble)
    apart = np.r_[0.0, np.diff(moment[order].astype(np.int64 if moment.dtype.kind in "iu" else float))]
    length = _length(apart[~opens & (apart > 0)])
    elapsed = np.where(begins, 0.0, apart / length)
    return Log(order, subject[order], opens, ~opens & (apart == 0), elapsed, _said(length, per_second))


def _length(apart: np.ndarray) -> float:
    """The commonest distance of two rows, or the median one where it is not that of half of them."""
    if not len(apart):
        return 1.0
    lengths, counts = np.unique(apart, return_counts=True)
    common = counts.max() * 2 >= counts.sum()
    return float(lengths[counts.argmax()] if common else np.median(apart))


def _said(length: float, per_second: float | None) -> str:
    """A length of time as --step takes it."""
    if per_second is None:
        return f"{length:.10g}"
    seconds, sizes = length / per_second, {"D": 86_400, "h": 3_600, "min": 60, "s": 1}
    whole = [unit for unit, size in sizes.items() if seconds % size == 0 and seconds < 1000 * size]
    near = [unit for unit, size in sizes.items() if seconds >= size]
    unit = next(iter([*whole, *near]), "s")
    return f"{seconds / sizes[unit]:.3g}{unit}" if seconds >= 1 else f"{seconds:.9f}s"


@dataclass(frozen=True)
class Look:
    """The table with the roles of its columns."""

    columns: CheckedColumns
    taken: dict[str, TakenColumn]
    given: Roles
    roles: Roles
    log: Log
    alike: dict[str, list[str]]
    static: set[str]
    unused: dict[str, str]
    """Why a column has no role."""

    def those(self, role: str) -> list[TakenColumn]:
        return [self.taken[name] for name in self.roles[role]]

    def free(self) -> list[TakenColumn]:
        return free_columns(self.taken, self.roles)

    def sorted(self, column: TakenColumn) -> np.ndarray:
        return column.values[self.log.order]

    def flag(self, column: TakenColumn) -> np.ndarray:
        """Where a yes/no column is true, sorted."""
        return (self.sorted(column) == 1) & (column.kind in AMOUNTS)

    def subjects_of(self, rows: np.ndarray) -> int:
        """How many subjects have such a row; rows are sorted."""
        own = self.log.subject[rows]
        return int(changes(own).sum()) if len(own) and self.roles["subject"] else 0


def free_columns(taken: dict[str, TakenColumn], roles: Roles) -> list[TakenColumn]:
    used = {name for names in roles.values() for name in names}
    return [column for name, column in taken.items() if name not in used]


def alike_columns(columns: list[TakenColumn]) -> dict[str, list[str]]:
    """Which columns say the same: by the correlation over the rows that both have, on a sample of rows."""
    found: dict[str, list[str]] = {column.name: [] for column in columns}
    if not columns:
        return found
    count = len(columns[0].values)
    rows = np.linspace(0, count - 1, min(count, SAMPLE, 1 + 10_000_000 // len(columns))).astype(int)
    close = np.abs(_correlation(np.column_stack([column.values[rows] for column in columns]))) > ALIKE
    for i, j in np.argwhere(np.triu(close, 1)).tolist():
        found[columns[i].name].append(columns[j].name)
        found[columns[j].name].append(columns[i].name)
    return found


def _correlation(values: np.ndarray) -> np.ndarray:
    """Of every pair of columns over the rows that both have; 0 where these are under ten or all the same."""
    there = ~np.isnan(values)
    count = np.maximum(there.sum(0), 1)
    centred = np.where(there, values - np.where(there, values, 0.0).sum(0) / count, 0.0)
    spread = np.sqrt((centred**2).sum(0) / count)
    z, own = centred / np.where(spread > 0, spread, 1.0), there.astype(float)
    both = np.maximum(own.T @ own, 1)
    mean = z.T @ own / both
    variance = (z**2).T @ own / both - mean**2
    known = (both >= 10) & (variance > 1e-9) & (variance.T > 1e-9)
    return np.where(known, (z.T @ z / both - mean * mean.T) / np.sqrt(np.where(known, variance * variance.T, 1.0)), 0.0)


def static_columns(taken: dict[str, TakenColumn], log: Log, roles: Roles) -> set[str]:
    """The columns that differ between subjects and never change within one."""
    if not roles["subject"] or changes(log.subject).all():
        return set()
    differ = [column for column in taken.values() if column.distinct > 1]
    return {
        column.name
        for column in differ
        if constant_within_subjects(column.values[log.order][:, None], log.subject).all()
    }
