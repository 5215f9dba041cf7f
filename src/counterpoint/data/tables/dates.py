"""Parse dates that are written as text. The order of day and month and the time zone are never guessed."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from counterpoint.core.errors import CounterpointError
from counterpoint.data.layout import DateOrder

if TYPE_CHECKING:
    import pandas as pd

NUMBERED = re.compile(r"\s*(\d{1,2})([/.-])(\d{1,2})\2(\d{4}|\d{2})(?!\d)")
"""A date such as 31/01/2024, 1.31.24 or 31-01-2024."""
ZONE = re.compile(r":\d{2}.*(?:Z|[+-]\d{2}(?::?\d{2})?)\s*$", re.IGNORECASE)
"""A time zone after a time of day."""
CLOCKS = ("", " %H:%M", " %H:%M:%S")
WRITTEN = {"day-first": "day/month/year", "month-first": "month/day/year"}


@dataclass(frozen=True)
class Times:
    """A clock column as numbers."""

    values: np.ndarray
    per_second: float | None
    """Units per second for dates and durations; None for plain numbers."""
    dates: DateOrder | None = None
    """Order of day and month in which the text was read, for dates such as 31/01/2024."""


def are_dates(texts: Sequence[str]) -> bool:
    """Return whether every text is a date, in either order of day and month."""
    import pandas as pd

    texts = [text for text in texts if text.strip()]
    if not texts:
        return False
    forms = ("day-first", "month-first") if all(map(NUMBERED.match, texts)) else (None,)
    return any(_parsed(pd.Series(texts, dtype="str"), order, "") is not None for order in forms)


def moments_of(
    name: str, values: Sequence[str | None], dates: DateOrder | None = None, zone: str = "", flags: bool = True
) -> "tuple[pd.Series, DateOrder | None]":
    """Convert texts to moments in UTC, and return the order of day and month where dates look like 31/01/2024.

    Args:
        name: Column name for messages.
        values: Texts; None where a value is missing.
        dates: Order of day and month; None to infer it from a date such as 31/01/2024, whose day is above 12.
        zone: Zone of the times that name none.
        flags: Whether error messages may suggest the arguments `dates` and `zone`. New subjects' tables have none.
    """
    import pandas as pd

    texts = pd.Series(values, dtype="str")
    distinct = [text for text in texts.dropna().unique() if text.strip()]
    order = _order(name, texts, dates, flags) if distinct and all(map(NUMBERED.match, distinct)) else None
    if order is None:
        _check_zones(name, texts, zone, flags)
    moments = _parsed(texts, order, zone)
    if moments is None:
        raise CounterpointError(
            f"column '{name}' holds text that is no date; write 2024-01-31 13:00 or 01/31/2024 13:00, or use numbers"
        )
    return moments, order


def _parsed(texts: "pd.Series", order: DateOrder | None, zone: str) -> "pd.Series | None":
    """Parse the texts; None where one of them is not a date."""
    import pandas as pd

    if order is None:
        return _iso(texts, zone)
    day = "%d/%m" if order == "day-first" else "%m/%d"
    slashed = texts.str.replace(NUMBERED, r"\1/\3/\4", regex=True)
    for form in (f"{day}/{year}{clock}" for year in ("%Y", "%y") for clock in CLOCKS):
        try:
            return pd.to_datetime(slashed, format=form)
        except (ValueError, TypeError, OverflowError):
            continue
    return None


def _iso(texts: "pd.Series", zone: str) -> "pd.Series | None":
    import pandas as pd

    aware = texts.str.contains(ZONE, regex=True).fillna(False).astype(bool)
    try:
        if not zone or aware.all():
            return pd.to_datetime(texts, format="ISO8601", utc=True).dt.tz_convert(None)
        moments = pd.to_datetime(texts.where(aware), format="ISO8601", utc=True)
        bare = pd.to_datetime(texts.mask(aware), format="ISO8601")
    except (ValueError, TypeError, OverflowError):
        return None
    return moments.where(aware, _located(bare, zone)).dt.tz_convert(None)


def _located(bare: "pd.Series", zone: str) -> "pd.Series":
    try:
        return bare.dt.tz_localize(zone).dt.tz_convert("UTC")
    except (ValueError, KeyError, LookupError, OSError):
        raise CounterpointError(
            f"zone={zone!r} is no zone, or its clock changes within these times; give an offset such as +05:00"
        ) from None


def _order(name: str, texts: "pd.Series", dates: DateOrder | None, flags: bool) -> DateOrder:
    """Return the declared order of day and month, or the only one that all dates allow."""
    parts = texts.str.extract(NUMBERED)
    first, second = (parts[place].astype(float).to_numpy() for place in (0, 2))
    wrong = {"day-first": second > 12, "month-first": first > 12}
    if dates is None:
        possible = [order for order, rows in wrong.items() if not rows.any()]
        if len(possible) > 1:
            choose = "choose dates='day-first' or dates='month-first', or " if flags else ""
            raise CounterpointError(
                f"column '{name}' holds dates such as 03/04/2024, and none tells the day from the month;"
                f" {choose}write 2024-04-03"
            )
        if not possible:
            raise CounterpointError(
                f"column '{name}' has {wrong['day-first'].sum()} dates that can only be month/day/year and"
                f" {wrong['month-first'].sum()} that can only be day/month/year; write all as 2024-01-31"
            )
        return "day-first" if possible == ["day-first"] else "month-first"
    rows = wrong[dates]
    if rows.any():
        raise CounterpointError(
            f"column '{name}' has {rows.sum()} dates that are no {WRITTEN[dates]} (first at row {rows.argmax()});"
            " correct them, or write all as 2024-01-31"
        )
    return dates


def _check_zones(name: str, texts: "pd.Series", zone: str, flags: bool) -> None:
    """Refuse a mixture of times with and without a zone."""
    present = texts.str.strip().fillna("").ne("").to_numpy()
    aware = texts.str.contains(ZONE, regex=True).fillna(False).to_numpy(dtype=bool)
    bare = present & ~aware
    if zone or not aware.any() or not bare.any():
        return
    choose = "choose zone='UTC' or whatever those are in, or " if flags else ""
    raise CounterpointError(
        f"column '{name}' has {np.count_nonzero(aware)} times with a zone, as +05:00 or Z, and {np.count_nonzero(bare)}"
        f" without (first at row {bare.argmax()}); {choose}write it on every row"
    )
