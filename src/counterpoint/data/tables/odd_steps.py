"""Steps between a record's rows that no clock makes: another unit, rows charted twice, days and months swapped."""

import numpy as np

from counterpoint.core.errors import CounterpointError
from counterpoint.data.tables.columns import Times

UNIT = 3.0
"""A record's usual step that is so many times the others', or such a part of it, is in another unit …"""
EQUAL = 0.1
"""… where at least half of its steps are off that usual one by less than this share."""
FEWEST, FEWEST_KNOWN = 3, 2
"""Steps that a record in another unit has at least, the second where the step is known from another table."""
CLOSE = 0.1
"""Rows that are closer than this part of a step were charted twice."""
FAR = 100.0
"""Rows of one stay are not farther apart than so many steps."""
MONTHS = 12
"""A day up to this one may have been meant as a month."""
DAY = 86_400.0
"""Seconds of a day."""
REGULAR = 0.5
"""Two rows are one step apart where their distance is off by less than this share of a step."""


def step_notes(
    name: str, elapsed: np.ndarray, inside: np.ndarray, record: np.ndarray, known: bool = False
) -> list[str]:
    """What is odd about the steps since the row before, of rows `inside` a record, all in sorted order.

    A step that is not `known` from another table is one only where at least half of the rows are one step apart.
    """
    if not known and 2 * uneven(elapsed, inside).sum() > inside.sum():
        return []
    least = FEWEST_KNOWN if known else FEWEST
    units = _in_another_unit(elapsed[inside], record[inside], least)
    close, far = int((elapsed[inside] < CLOSE).sum()), int((elapsed[inside] > FAR).sum())
    found = []
    if units:
        found.append(
            f"the rows of {units} of {len(np.unique(record))} records in column '{name}' are evenly spaced, but not by"
            " one step: their times seem to be in another unit; write all in one"
        )
        return found
    if close:
        found.append(
            f"in column '{name}', {_counted(close)} less than a tenth of a step apart, as if charted twice; keep one"
            " row of each"
        )
    if far:
        found.append(
            f"in column '{name}', {_counted(far)} more than {FAR:g} steps apart: a wrong date, or stays of their own;"
            " correct the date, or name the column of the stays in episode='…'"
        )
    return found


def uneven(elapsed: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Which rows `inside` an episode are not one step after the row before."""
    return inside & (np.abs(elapsed - 1) > REGULAR)


def _counted(pairs: int) -> str:
    return f"{pairs} pair of rows is" if pairs == 1 else f"{pairs} pairs of rows are"


def _in_another_unit(elapsed: np.ndarray, record: np.ndarray, least: int) -> int:
    """Records whose steps are all but alike and far from one step."""
    whose, count = np.unique(record, return_inverse=True, return_counts=True)[1:]
    ordered = elapsed[np.lexsort((elapsed, whose))]
    middle = np.cumsum(count) - count + count // 2
    usual = ordered[middle]
    alike = np.bincount(whose, np.abs(elapsed - usual[whose]) < EQUAL * usual[whose], len(count))
    other = (usual >= UNIT) | (usual <= 1 / UNIT)
    return int((other & (count >= least) & (2 * alike >= count)).sum())


def swapped_note(name: str, moment: Times, record: np.ndarray, length: float) -> list[str]:
    """A note where rows of a record follow one another only if day and month are read in the other order.

    `record` and `moment` are in the table's own order, `length` is that of a step in the clock's own unit. A record is
    named where fewer of its rows are not one step apart once days and months change places. Rows a day or less apart
    alone are looked at: the first to the third of a month become the first of three months, which are steps of a month.
    """
    if moment.dates is None or moment.per_second is None or length > DAY * moment.per_second:
        return []
    record = np.unique(record, return_inverse=True)[1]
    wrong = _uneven(_swapped(moment.values), record, length) < _uneven(moment.values, record, length)
    if not wrong.any():
        return []
    return [
        f"the dates in column '{name}' of {wrong.sum()} record{'' if wrong.sum() == 1 else 's'} (first at row"
        f" {wrong[record].argmax()}) follow one another only if day and month are read in the other order than in the"
        " rest; write all dates in one order"
    ]


def refuse_swapped(name: str, moment: Times, record: np.ndarray, length: float) -> None:
    """Refuse what `swapped_note` finds: another row would be taken for the last one."""
    for note in swapped_note(name, moment, record, length):
        raise CounterpointError(note)


def _swapped(values: np.ndarray) -> np.ndarray:
    """The moments with day and month exchanged wherever the day could be a month."""
    moments = values.astype("datetime64[ns]")
    days, months, years = (moments.astype(f"datetime64[{unit}]") for unit in "DMY")
    day, month = (days - months).astype(int), (months - years).astype(int)
    exchanged = (years.astype("datetime64[M]") + day).astype("datetime64[D]") + month
    other = exchanged.astype("datetime64[ns]") + (moments - days)
    return np.where(day < MONTHS, other, moments).astype(np.int64)


def _uneven(values: np.ndarray, record: np.ndarray, length: float) -> np.ndarray:
    """How many rows of every record are not one step after the row before."""
    order = np.lexsort((values, record))
    whose = record[order]
    apart = np.diff(values[order]).astype(float) / length
    jumps = (whose[1:] == whose[:-1]) & (np.abs(apart - 1) > REGULAR)
    return np.bincount(whose[1:][jumps], minlength=int(record.max()) + 1)
