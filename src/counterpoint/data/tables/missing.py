"""Fill missing values of the state.

    1. the last value of the subject, where it is at most `carry_forward` steps old
    2. in a column that is constant within subjects, the subject's value
    3. the training subjects' median or mean, or a ridge regression on the other columns

A categorical column is filled with its commonest level. Masks are columns of 0 and 1 that mark missing values.
"""

from collections.abc import Sequence

import numpy as np

from counterpoint.core.errors import CounterpointError
from counterpoint.data.layout import Layout, Method
from counterpoint.data.schema import Column, Fill
from counterpoint.data.tables.clock import changes
from counterpoint.data.tables.columns import check_missing

RIDGE = 1.0
"""L2 penalty of the regression on standardised columns."""


def carried(values: np.ndarray, subject: np.ndarray, elapsed: np.ndarray, limit: float) -> np.ndarray:
    """Carry values forward within a subject for at most `limit` steps; rows are sorted by time."""
    if not limit:
        return values
    clock = np.cumsum(np.where(np.isinf(elapsed), limit + 1.0, elapsed))  # Nothing is carried into a new episode.
    filled = values.copy()
    for column in filled.T:
        seen = np.maximum.accumulate(np.where(np.isnan(column), -1, np.arange(len(column))))
        fresh = (seen >= 0) & (clock - clock[seen] <= limit + 1e-9) & (subject[seen] == subject)
        column[fresh] = column[seen[fresh]]
    return filled


def constant_within_subjects(values: np.ndarray, subject: np.ndarray) -> np.ndarray:
    """Return which columns are constant within every subject and observed twice in at least one."""
    first = np.flatnonzero(changes(subject))
    low = np.fmin.reduceat(values, first, 0)
    high = np.fmax.reduceat(values, first, 0)
    twice = np.add.reduceat((~np.isnan(values)).astype(int), first, 0) > 1
    return (np.isnan(low) | (low == high)).all(0) & twice.any(0)


def subject_value(column: np.ndarray, subject: np.ndarray) -> np.ndarray:
    """Replace missing values of a column by the subject's value, where the subject has only one."""
    first = np.flatnonzero(changes(subject))
    low = np.fmin.reduceat(column, first)
    high = np.fmax.reduceat(column, first)
    constant = np.where(low == high, low, np.nan)[np.cumsum(changes(subject)) - 1]
    return np.where(np.isnan(column), constant, column)


def carry(
    values: np.ndarray, subject: np.ndarray, elapsed: np.ndarray, layout: Layout, constant: Sequence[bool] | np.ndarray
) -> np.ndarray:
    """Fill sorted states from the same subject (rules 1 and 2); `constant` says which columns never change in one."""
    values = carried(values, subject, elapsed, layout.carry_forward).copy()
    if layout.missing != "refuse":
        for place in np.flatnonzero(np.isnan(values).any(0) & np.array(constant)):
            values[:, place] = subject_value(values[:, place], subject)
    return values


def learn_fills(columns: Sequence[Column], values: np.ndarray, method: Method) -> list[Fill | None]:
    """Learn the fill of every column from the training subjects' rows."""
    if method == "refuse":
        return [None] * len(columns)
    for column, cells in zip(columns, values.T, strict=True):
        if np.isnan(cells).all():
            raise CounterpointError(f"column '{column.name}' is missing in every training row; drop it from the state")
    centre = [_centre(column, cells, method) for column, cells in zip(columns, values.T, strict=True)]
    if method != "linear":
        return [Fill(value) for value in centre]
    around = np.nan_to_num(values - np.array(centre))
    return [_regression(i, column, values, around, centre[i]) for i, column in enumerate(columns)]


def _centre(column: Column, values: np.ndarray, method: Method) -> float:
    observed = values[~np.isnan(values)]
    if column.levels:
        return float(np.bincount(observed.astype(int)).argmax())
    return float(np.mean(observed) if method == "mean" else np.median(observed))


def _regression(place: int, column: Column, values: np.ndarray, around: np.ndarray, centre: float) -> Fill:
    from sklearn.linear_model import Ridge

    observed = ~np.isnan(values[:, place])
    others = np.arange(values.shape[1]) != place
    if column.levels or not others.any():
        return Fill(centre)
    spread = around[observed].std(0)
    scale = np.where(spread > 1e-12, spread, 1.0)
    line = Ridge(alpha=RIDGE, fit_intercept=False).fit((around / scale)[observed][:, others], around[observed, place])
    weights = np.zeros(values.shape[1])
    weights[others] = line.coef_ / scale[others]
    return Fill(centre, tuple(map(float, weights)))


def filled(columns: Sequence[Column], values: np.ndarray, order: np.ndarray | None = None) -> np.ndarray:
    """Fill all missing values; refuse those of a column without a fill.

    `order` are the rows' numbers in the table's own order, for the message.
    """
    centre = np.array([column.fill.value if column.fill else 0.0 for column in columns])
    missing = np.isnan(values)
    around = np.nan_to_num(values - centre)
    whole = values.copy()
    for i, column in enumerate(columns):
        if not missing[:, i].any():
            continue
        if column.fill is None:
            check_missing(column.name, _in_table(missing[:, i], order))
        else:
            weights = np.array(column.fill.weights)  # Columns of masks come last and have none.
            line = around[:, : len(weights)] @ weights if len(weights) else 0.0
            whole[:, i] = np.where(missing[:, i], centre[i] + line, values[:, i])
    return whole


def _in_table(sorted_rows: np.ndarray, order: np.ndarray | None) -> np.ndarray:
    if order is None:
        return sorted_rows
    rows = np.zeros(len(sorted_rows), dtype=bool)
    rows[order] = sorted_rows
    return rows
