"""Steps of a table's clock, and times that cannot be right: cyclic clocks, isolated dates, odd steps.

elapsed = (time - time of the row before) / step        1 for consecutive rows, infinite for a record's first row
"""

import numpy as np

from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.wording import counted
from counterpoint.data.tables.dates import Times

REGULAR = 0.5
"""Two rows are one step apart where their distance is off by less than this share of a step."""

YEARS = 10.0
"""Two rows of a subject are far apart where more years than this and more than `FAR_STEPS` steps lie between them."""
FAR_STEPS = 100.0
"""Records of yearly or rarer rows have long pauses, so years alone do not tell a wrong date."""
YEAR_SECONDS = 365.25 * 86_400
CALENDAR = (1800, 2400)
"""Whole numbers that all lie between these are years."""
MIN_DISTANCES = 3
"""Least number of distances for an estimate of the usual one, where the length of a step is not declared."""

CYCLES = (
    ("hours of the day", 0.0, 24.0, 24.0), ("hours of the day", 1.0, 24.0, 24.0), ("days of the week", 0.0, 6.0, 7.0),
    ("days of the week", 1.0, 7.0, 7.0), ("months", 1.0, 12.0, 12.0), ("days of the month", 1.0, 31.0, 31.0),
    ("minutes of the hour", 0.0, 59.0, 60.0),
)  # fmt: skip
"""(unit, least value, largest value, period) of cyclic clocks."""
CYCLIC_SHARE = 0.9
"""Share of the backward jumps of time that must be the start of a new cycle."""
CYCLIC_RECORDS = 0.05
"""Share of the records that must contain one."""

UNIT_RATIO = 3.0
"""A record whose usual step is this many times the others', or this part of it, is in another time unit …"""
EQUAL = 0.1
"""… where at least half of its steps differ from that usual step by less than this share."""
MIN_STEPS, MIN_STEPS_KNOWN = 3, 2
"""Least number of steps of such a record; the second where the step is known from the training table."""
CLOSE = 0.1
"""Rows closer than this part of a step were probably charted twice."""
DISTANT = 100.0
"""Rows of one stay are at most so many steps apart."""
DAY_SECONDS = 86_400.0


def changes(values: np.ndarray) -> np.ndarray:
    """Return where a value differs from the one before it; the first always does."""
    return np.r_[True, values[1:] != values[:-1]]


def distances(times: Times, order: np.ndarray) -> np.ndarray:
    """Return the distance to the row before in sorted order. Integers are subtracted as integers, without overflow."""
    values = times.values[order]
    values = values.astype(np.int64) if values.dtype.kind in "iu" else values
    return np.diff(values, prepend=values[:1]).astype(float)


def usual_step(apart: np.ndarray) -> float:
    """Return the commonest distance, or the median one where the commonest is not that of half of the pairs."""
    lengths, counts = np.unique(apart, return_counts=True)
    common = counts.max() * 2 >= counts.sum()
    return float(lengths[counts.argmax()] if common else np.median(apart))


def step_length(step: str, times: Times) -> float:
    """Convert a declared step ("4h", or a number for clocks of numbers) into the clock's own unit."""
    try:
        length = _parsed_step(step, times)
    except (ValueError, TypeError):
        length = float("nan")
    if not 0 < length < float("inf"):
        form = "a number above 0" if times.per_second is None else "a duration such as 4h or 30min"
        raise CounterpointError(f"step={step!r} is not a length of time here; give {form}")
    return length


def _parsed_step(step: str, times: Times) -> float:
    if times.per_second is None:
        return float(step)
    if step.replace(".", "", 1).isdigit():
        return float("nan")  # A number without a unit is no duration.
    import pandas as pd

    return pd.Timedelta(step).total_seconds() * times.per_second


def step_text(length: float, times: Times) -> str:
    """Return a length in the clock's own unit as text that `step_length` reads."""
    if times.per_second is None:
        return f"{length:g}"
    import pandas as pd

    return str(pd.Timedelta(seconds=length / times.per_second)).removeprefix("0 days ")


def uneven(elapsed: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Return which rows `inside` an episode are not one step after the row before."""
    return inside & (np.abs(elapsed - 1) > REGULAR)


def unevenness(jumps: np.ndarray, inside: np.ndarray, step: str) -> str:
    """Describe how many pairs of rows are not one step apart."""
    return f"{jumps.sum()} of {inside.sum()} pairs of rows are not one step of {step} apart"


def check_cycle(name: str, moment: Times, record: np.ndarray) -> None:
    """Refuse a cyclic clock, such as the hour of the day: sorting by it would rotate the records.

    Such a clock falls back by one period within records, in the order in which the table has its rows.
    """
    if moment.per_second is not None or len(record) < 2:
        return
    order = np.argsort(record, kind="stable")
    values = moment.values[order].astype(float)
    records_sorted = record[order]
    apart = np.where(records_sorted[1:] == records_sorted[:-1], np.diff(values), np.nan)
    if not (apart < 0).any() or not (apart > 0).any():
        return
    step = float(np.median(apart[apart > 0]))
    for what, low, high, length in CYCLES:
        if low <= values.min() and values.max() <= high:
            wraps = (apart < 0) & (apart + length <= 1.5 * step) & (apart + length >= 0)
            records = len(np.unique(records_sorted[1:][wraps]))
            cyclic = wraps.sum() >= CYCLIC_SHARE * (apart < 0).sum() and records >= CYCLIC_RECORDS * len(
                np.unique(records_sorted)
            )
            require(
                not (cyclic and records),
                f"column '{name}' begins again within {counted(records, 'record')}, as {what} do, so"
                " that it does not order the rows; name a column with the date and the time, or count from the"
                " record's first row",
            )


def unordered_hours(name: str, moment: Times, record: np.ndarray) -> list[str]:
    """Return a note on whole numbers from 0 to 23, perhaps hours of the day, where the rows are not in their order."""
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


def isolated_dates(moment: Times, subject: np.ndarray, step: float | None = None) -> np.ndarray:
    """Return which rows lie years from the other rows of their subject, as one typed 2205 for 2025.

    A subject's rows are split wherever two are far apart. The largest part is kept, or of equal parts the one nearest
    to the table's median date; the rows of the other parts are isolated.

    Args:
        moment: Times in the table's own order.
        subject: Subject of every row, or any other grouping such as episodes.
        step: Length of a step in the clock's own unit; None for the median distance of two rows.
    """
    isolated = np.zeros(len(subject), dtype=bool)
    values = moment.values.astype(float)
    year = _year(moment)
    if year is None or len(subject) < 2:
        return isolated
    order = np.lexsort((values, subject))
    whose = subject[order]
    when = values[order]
    opens = changes(whose)
    apart = np.where(opens, 0.0, np.diff(when, prepend=when[:1]))
    far = apart > max(YEARS * year, FAR_STEPS * (_usual(apart[~opens]) if step is None else step))
    if far.any():
        isolated[order] = ~_largest(np.cumsum(opens | far) - 1, whose, when)
    return isolated


def refuse_isolated(name: str, moment: Times, subject: np.ndarray, step: float | None = None) -> None:
    """Refuse the isolated dates of column `name`; the message names the first row and the number of rows."""
    isolated = isolated_dates(moment, subject, step)
    if isolated.any():
        raise CounterpointError(
            f"column '{name}' has {_dates_that_lie(isolated)} the subject{_first(isolated)}; correct the date, or leave"
            " out the rows that do not belong to the record"
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
        raise CounterpointError(
            f"column '{name}' has {_dates_that_lie(far)} the subject and from all other dates{_first(far)}; correct the"
            " date, or leave out the rows"
        )
    count = int(isolated.sum())
    subjects = counted(len(np.unique(record[isolated])), "subject")
    return [
        f"{counted(count, 'date')} of {subjects} in column '{name}' {'lies' if count == 1 else 'lie'} more than"
        f" {YEARS:g} years from the subject's other rows; are they right?"
        " Name the column of the stays in episode='…' where they are stays of their own"
    ]


def _dates_that_lie(rows: np.ndarray) -> str:
    count = int(rows.sum())
    what = "a date that lies" if count == 1 else f"{count} dates that lie"
    return f"{what} more than {YEARS:g} years from the other rows of"


def _first(rows: np.ndarray) -> str:
    return f" (row {rows.argmax()})" if rows.sum() == 1 else f" (first at row {rows.argmax()})"


def _distance(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the distance from each value to the nearest of the others."""
    near = np.r_[-np.inf, np.sort(others.astype(float)), np.inf]
    after = np.searchsorted(near, values.astype(float))
    return np.minimum(values - near[np.maximum(after - 1, 0)], near[after] - values)


def _year(moment: Times) -> float | None:
    """Return a year in the clock's own unit; None where the numbers are not dates."""
    if moment.per_second is not None:
        return moment.per_second * YEAR_SECONDS
    values = moment.values.astype(float)
    low, high = CALENDAR
    return 1.0 if ((values >= low) & (values <= high) & (values == np.round(values))).all() else None


def _usual(apart: np.ndarray) -> float:
    return float(np.median(apart)) if len(apart) >= MIN_DISTANCES else 0.0


def _largest(part: np.ndarray, whose: np.ndarray, when: np.ndarray) -> np.ndarray:
    """Return which rows belong to the largest part of their subject's rows."""
    first = np.flatnonzero(np.diff(part, prepend=-1))
    size = np.bincount(part)
    owner = whose[first]
    middle = np.abs(np.add.reduceat(when, first) / size - np.median(when))
    ranked = np.lexsort((middle, -size, owner))
    best = ranked[changes(owner[ranked])]
    return np.isin(part, best)


def step_notes(
    name: str, elapsed: np.ndarray, inside: np.ndarray, record: np.ndarray, step_known: bool = False
) -> list[str]:
    """Return notes on records in another time unit, rows charted twice and rows too far apart.

    Args:
        name: Name of the time column.
        elapsed: Steps since the row before, in sorted order.
        inside: Which rows have a row before them in their record.
        record: Record of every row.
        step_known: Whether the step is that of the training table. One that is estimated from this table is used only
            where at least half of the rows are one step apart.
    """
    if not step_known and 2 * uneven(elapsed, inside).sum() > inside.sum():
        return []
    units = _in_another_unit(elapsed[inside], record[inside], MIN_STEPS_KNOWN if step_known else MIN_STEPS)
    if units:
        return [
            f"the rows of {units} of {len(np.unique(record))} records in column '{name}' are evenly spaced, but not by"
            " one step: their times seem to be in another unit; write all in one"
        ]
    notes = []
    close = int((elapsed[inside] < CLOSE).sum())
    far = int((elapsed[inside] > DISTANT).sum())
    if close:
        notes.append(
            f"in column '{name}', {_pairs(close)} less than a tenth of a step apart, as if charted twice; keep one"
            " row of each"
        )
    if far:
        notes.append(
            f"in column '{name}', {_pairs(far)} more than {DISTANT:g} steps apart: a wrong date, or stays of their own;"
            " correct the date, or name the column of the stays in episode='…'"
        )
    return notes


def _pairs(pairs: int) -> str:
    return f"{pairs} pair of rows is" if pairs == 1 else f"{pairs} pairs of rows are"


def _in_another_unit(elapsed: np.ndarray, record: np.ndarray, least: int) -> int:
    """Return how many records have steps that are nearly equal and far from one step."""
    whose, count = np.unique(record, return_inverse=True, return_counts=True)[1:]
    ordered = elapsed[np.lexsort((elapsed, whose))]
    middle = np.cumsum(count) - count + count // 2
    usual = ordered[middle]
    alike = np.bincount(whose, np.abs(elapsed - usual[whose]) < EQUAL * usual[whose], len(count))
    other = (usual >= UNIT_RATIO) | (usual <= 1 / UNIT_RATIO)
    return int((other & (count >= least) & (2 * alike >= count)).sum())


def swapped_note(name: str, moment: Times, record: np.ndarray, length: float) -> list[str]:
    """Return a note on records whose rows follow one another only if day and month are exchanged.

    A record counts where fewer of its rows are not one step apart once days and months change places. Only steps of at
    most a day are looked at: with monthly steps, 1 to 3 January could as well be the first of three months.

    Args:
        name: Name of the time column.
        moment: Times in the table's own order.
        record: Record of every row, in the same order.
        length: Length of a step in the clock's own unit.
    """
    if moment.dates is None or moment.per_second is None or length > DAY_SECONDS * moment.per_second:
        return []
    record = np.unique(record, return_inverse=True)[1]
    wrong = _uneven(_swapped(moment.values), record, length) < _uneven(moment.values, record, length)
    if not wrong.any():
        return []
    return [
        f"the dates in column '{name}' of {counted(int(wrong.sum()), 'record')} (first at row"
        f" {wrong[record].argmax()}) follow one another only if day and month are read in the other order than in the"
        " rest; write all dates in one order"
    ]


def refuse_swapped(name: str, moment: Times, record: np.ndarray, length: float) -> None:
    """Refuse exchanged days and months in a table of new subjects: a wrong row would be taken for the last one."""
    for note in swapped_note(name, moment, record, length):
        raise CounterpointError(note)


def _swapped(values: np.ndarray) -> np.ndarray:
    """Return the moments with day and month exchanged wherever the day could be a month."""
    moments = values.astype("datetime64[ns]")
    days, months, years = (moments.astype(f"datetime64[{unit}]") for unit in "DMY")
    day = (days - months).astype(int)
    month = (months - years).astype(int)
    exchanged = (years.astype("datetime64[M]") + day).astype("datetime64[D]") + month
    other = exchanged.astype("datetime64[ns]") + (moments - days)
    return np.where(day < 12, other, moments).astype(np.int64)


def _uneven(values: np.ndarray, record: np.ndarray, length: float) -> np.ndarray:
    """Return for every record how many rows are not one step after the row before."""
    order = np.lexsort((values, record))
    whose = record[order]
    apart = np.diff(values[order]).astype(float) / length
    jumps = (whose[1:] == whose[:-1]) & (np.abs(apart - 1) > REGULAR)
    return np.bincount(whose[1:][jumps], minlength=int(record.max()) + 1)
