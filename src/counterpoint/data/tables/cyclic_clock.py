"""Clocks that begin again, as the hour of the day: they do not order a record, and sorting by them rotates it."""

import numpy as np

from counterpoint.core.errors import require
from counterpoint.data.tables.columns import Times

CYCLES = (
    ("hours of the day", 0.0, 24.0, 24.0), ("hours of the day", 1.0, 24.0, 24.0), ("days of the week", 0.0, 6.0, 7.0),
    ("days of the week", 1.0, 7.0, 7.0), ("months", 1.0, 12.0, 12.0), ("days of the month", 1.0, 31.0, 31.0),
    ("minutes of the hour", 0.0, 59.0, 60.0),
)  # fmt: skip
"""What a number may count, from its least to its largest value, and after how many it begins again."""
MOST = 0.9
"""Share of the times that run backwards in the table's own order which must begin a new cycle."""
MANY = 0.05
"""Share of the records in which some time must."""


def check_cycle(name: str, moment: Times, record: np.ndarray) -> None:
    """Refuse times that fall back by one cycle within records, in the order in which the table has its rows."""
    if moment.per_second is not None or len(record) < 2:
        return
    order = np.argsort(record, kind="stable")
    values, whose = moment.values[order].astype(float), record[order]
    apart = np.where(whose[1:] == whose[:-1], np.diff(values), np.nan)
    if not (apart < 0).any() or not (apart > 0).any():
        return
    step = float(np.median(apart[apart > 0]))
    for what, low, high, length in CYCLES:
        if low <= values.min() and values.max() <= high:
            wraps = (apart < 0) & (apart + length <= 1.5 * step) & (apart + length >= 0)
            records = len(np.unique(whose[1:][wraps]))
            cyclic = wraps.sum() >= MOST * (apart < 0).sum() and records >= MANY * len(np.unique(whose))
            require(
                not (cyclic and records),
                f"column '{name}' begins again within {records} record{'s' if records > 1 else ''}, as {what} do, so"
                " that it does not order the rows; name a column with the date and the time, or count from the"
                " record's first row",
            )


def unordered_hours(name: str, moment: Times, record: np.ndarray) -> list[str]:
    """A note on whole numbers from 0 to 23 whose order in the table tells nothing of what they count."""
    values = moment.values
    day = moment.per_second is None and len(values) and values.min() == 0 and values.max() == 23
    if not day or (values != np.round(values)).any():
        return []
    order = np.lexsort((values, record))
    first = values[order][np.flatnonzero(np.r_[True, np.diff(record[order]) != 0])]
    shuffled = bool((np.diff(values)[np.diff(record) == 0] < 0).any())
    if not shuffled or (first == first[0]).all():
        return []
    return [
        f"column '{name}' holds whole numbers from 0 to 23: if they are hours of the day, records that pass midnight"
        " are in a wrong order; then name a column with the date and the time"
    ]
