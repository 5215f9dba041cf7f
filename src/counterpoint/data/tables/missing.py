"""Missing values of the state: carried forward for a while, then filled with what training subjects teach.

    1. a column that never changes within a subject takes the subject's own value
    2. the last value seen, where it is at most `carry_forward` steps old
    3. the method: the training subjects' median or mean, or a ridge regression on the columns that are there

A categorical column takes its commonest level. Where asked, a column of 0 and 1 says which values were missing.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from counterpoint.core.errors import CounterpointError
from counterpoint.data.schema import Column, Fill
from counterpoint.data.tables.columns import check_missing
from counterpoint.data.tables.layout import changes

Method = Literal["refuse", "median", "mean", "linear"]
RIDGE = 1.0
"""Penalty of the regression, in rows' worth of evidence a column."""


def carried(values: np.ndarray, subject: np.ndarray, elapsed: np.ndarray, limit: float) -> np.ndarray:
    """The columns with values at most `limit` steps old carried forward within a subject; rows are in time's order."""
    if not limit:
        return values
    clock = np.cumsum(np.where(np.isinf(elapsed), limit + 1.0, elapsed))  # Nothing is carried where time begins again.
    filled = values.copy()
    for column in filled.T:
        seen = np.maximum.accumulate(np.where(np.isnan(column), -1, np.arange(len(column))))
        fresh = (seen >= 0) & (clock - clock[seen] <= limit + 1e-9) & (subject[seen] == subject)
        column[fresh] = column[seen[fresh]]
    return filled


def steady(values: np.ndarray, subject: np.ndarray) -> np.ndarray:
    """Which columns never change within a subject: some subject has two values of it, and none has two different."""
    first = np.flatnonzero(changes(subject))
    low, high = np.fmin.reduceat(values, first, 0), np.fmax.reduceat(values, first, 0)
    twice = np.add.reduceat((~np.isnan(values)).astype(int), first, 0) > 1
    return (np.isnan(low) | (low == high)).all(0) & twice.any(0)


def own_value(column: np.ndarray, subject: np.ndarray) -> np.ndarray:
    """The column with each subject's known value where one is missing; left as it is where a subject has several."""
    first = np.flatnonzero(changes(subject))
    low, high = np.fmin.reduceat(column, first), np.fmax.reduceat(column, first)
    own = np.where(low == high, low, np.nan)[np.cumsum(changes(subject)) - 1]
    return np.where(np.isnan(column), own, column)


def learn_fills(columns: Sequence[Column], values: np.ndarray, method: Method) -> list[Fill | None]:
    """What stands for a missing value of each column, from the training subjects' rows."""
    if method == "refuse":
        return [None] * len(columns)
    for column, own in zip(columns, values.T, strict=True):
        if np.isnan(own).all():
            raise CounterpointError(f"column '{column.name}' is missing in every training row; drop it from the state")
    centre = [_centre(column, own, method) for column, own in zip(columns, values.T, strict=True)]
    if method != "linear":
        return [Fill(value) for value in centre]
    around = np.nan_to_num(values - np.array(centre))
    return [_line(i, column, values, around, centre[i]) for i, column in enumerate(columns)]


def _centre(column: Column, values: np.ndarray, method: Method) -> float:
    known = values[~np.isnan(values)]
    if column.levels:
        return float(np.bincount(known.astype(int)).argmax())
    return float(np.mean(known) if method == "mean" else np.median(known))


def _line(place: int, column: Column, values: np.ndarray, around: np.ndarray, centre: float) -> Fill:
    from sklearn.linear_model import Ridge

    known = ~np.isnan(values[:, place])
    others = np.arange(values.shape[1]) != place
    if column.levels or not others.any():
        return Fill(centre)
    spread = around[known].std(0)
    scale = np.where(spread > 1e-12, spread, 1.0)
    line = Ridge(alpha=RIDGE, fit_intercept=False).fit((around / scale)[known][:, others], around[known, place])
    weights = np.zeros(values.shape[1])
    weights[others] = line.coef_ / scale[others]
    return Fill(centre, tuple(map(float, weights)))


def filled(columns: Sequence[Column], values: np.ndarray, known_rows: np.ndarray | None = None) -> np.ndarray:
    """The columns without a missing value; where a column has no fill, one that is missing is refused.

    `known_rows` are the rows' numbers in the table as given, for the message.
    """
    centre = np.array([column.fill.value if column.fill else 0.0 for column in columns])
    missing, around = np.isnan(values), np.nan_to_num(values - centre)
    whole = values.copy()
    for i, column in enumerate(columns):
        if not missing[:, i].any():
            continue
        if column.fill is None:
            check_missing(column.name, _in_table(missing[:, i], known_rows))
        else:
            weights = np.array(column.fill.weights)  # Columns of masks come last and have none.
            line = around[:, : len(weights)] @ weights if len(weights) else 0.0
            whole[:, i] = np.where(missing[:, i], centre[i] + line, values[:, i])
    return whole


def _in_table(rows: np.ndarray, numbers: np.ndarray | None) -> np.ndarray:
    if numbers is None:
        return rows
    given = np.zeros(len(rows), dtype=bool)
    given[numbers] = rows
    return given
