"""Dates that lie years from the other rows of their subject, as one typed 2205 for 2025: they reorder its record."""

import numpy as np

from counterpoint.core.errors import CounterpointError
from counterpoint.data.tables.columns import Times

YEARS = 10.0
"""Two rows of a subject are far apart where there are more years than this between them …"""
STEPS = 100.0
"""… and more steps than this: records of yearly or rarer rows have long pauses."""
SECONDS = 365.25 * 86_400
"""Seconds of a year."""
CALENDAR = (1800, 2400)
"""Whole numbers that all lie between these are years."""
FEWEST = 3
"""Distances from which the usual one is taken, where the length of a step is not known."""


def isolated_dates(moment: Times, subject: np.ndarray, step: float | None = None) -> np.ndarray:
    """Which rows lie years from the other rows of their subject; all arrays in the table's own order.

    A subject's rows are cut wherever they are far apart; the largest part stands, or of equal ones that nearest to the
    table's middle, and the rows of the others are isolated. `step` is the length of a step in the clock's own unit, the
    median distance of two rows where it is not known. `subject` may be any grouping of rows, as by episodes.
    """
    isolated = np.zeros(len(subject), dtype=bool)
    values, year = moment.values.astype(float), _year(moment)
    if year is None or len(subject) < 2:
        return isolated
    order = np.lexsort((values, subject))
    whose, when = subject[order], values[order]
    opens = np.r_[True, whose[1:] != whose[:-1]]
    apart = np.where(opens, 0.0, np.diff(when, prepend=when[:1]))
    far = apart > max(YEARS * year, STEPS * (_usual(apart[~opens]) if step is None else step))
    if far.any():
        isolated[order] = ~_largest(np.cumsum(opens | far) - 1, whose, when)
    return isolated


def refuse_isolated(name: str, moment: Times, subject: np.ndarray, step: float | None = None) -> None:
    """Refuse the dates of column `name` that `isolated_dates` finds, by the first row and their number."""
    rows = np.flatnonzero(isolated_dates(moment, subject, step))
    if not len(rows):
        return
    what, rest = ("a date that lies", "") if len(rows) == 1 else (f"{len(rows)} dates that lie", "first at ")
    raise CounterpointError(
        f"column '{name}' has {what} more than {YEARS:g} years from the other rows of the subject"
        f" ({rest}row {rows[0]}); correct the date, or leave out the rows that do not belong to the record"
    )


def refuse_far_dates(name: str, moment: Times, record: np.ndarray) -> list[str]:
    """Refuse dates of a log that lie years from their own record and from the dates of all others; note the rest.

    `record` groups rows by subject and episode. Where others have such dates, a second stay years later may be right.
    """
    isolated = isolated_dates(moment, record)
    if not isolated.any():
        return []
    far = np.zeros_like(isolated)
    far[isolated] = _distance(moment.values[isolated], moment.values[~isolated]) > YEARS * (_year(moment) or np.inf)
    if far.any():
        count = int(far.sum())
        what, rest = ("a date that lies", "") if count == 1 else (f"{count} dates that lie", "first at ")
        raise CounterpointError(
            f"column '{name}' has {what} more than {YEARS:g} years from the other rows of the subject and from all"
            f" other dates ({rest}row {far.argmax()}); correct the date, or leave out the rows"
        )
    count, records = int(isolated.sum()), len(np.unique(record[isolated]))
    return [
        f"{count} date{'' if count == 1 else 's'} of {records} subject{'' if records == 1 else 's'} in column '{name}'"
        f" {'lies' if count == 1 else 'lie'} more than {YEARS:g} years from the subject's other rows; are they right?"
        " Name the column of the stays in episode='…' where they are stays of their own"
    ]


def _distance(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """From each value to the nearest of the others."""
    near = np.r_[-np.inf, np.sort(others.astype(float)), np.inf]
    after = np.searchsorted(near, values.astype(float))
    return np.minimum(values - near[np.maximum(after - 1, 0)], near[after] - values)


def _year(moment: Times) -> float | None:
    """A year in the clock's own unit; none where the numbers are not dates."""
    if moment.per_second is not None:
        return moment.per_second * SECONDS
    values = moment.values.astype(float)
    low, high = CALENDAR
    return 1.0 if ((values >= low) & (values <= high) & (values == np.round(values))).all() else None


def _usual(apart: np.ndarray) -> float:
    return float(np.median(apart)) if len(apart) >= FEWEST else 0.0


def _largest(part: np.ndarray, whose: np.ndarray, when: np.ndarray) -> np.ndarray:
    """Which rows belong to the largest part of their subject's rows."""
    first = np.flatnonzero(np.diff(part, prepend=-1))
    size, owner = np.bincount(part), whose[first]
    middle = np.abs(np.add.reduceat(when, first) / size - np.median(when))
    ranked = np.lexsort((middle, -size, owner))
    best = ranked[np.r_[True, owner[ranked][1:] != owner[ranked][:-1]]]
    return np.isin(part, best)
