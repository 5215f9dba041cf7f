"""What a table's clock can hide: the order of day and month, zones, hours of the day, one date typed wrong."""

from typing import Any

import pandas as pd
import pytest

from counterpoint.data.tables.dataframe import from_dataframe
from counterpoint.data.tables.new_subjects import read_patients
from counterpoint.data.transitions import Transitions
from helpers.tables import refused

HOW: dict[str, Any] = {"subject": "id", "time": "t", "state": "x", "action": "a", "reward": "r", "last": "truncate"}


def records(times: Any, ids: str | list[str] | None = None, **columns: Any) -> pd.DataFrame:
    """A row a time: x counts the rows as the table has them, from 0.5 on."""
    count = len(times)
    x = [0.5 + i for i in range(count)]
    table = {"id": list(ids or "a" * count), "t": times, "x": x, "a": [i % 2 for i in range(count)]}
    return pd.DataFrame({**table, "r": [0.25] * count, **columns})


def read(table: Any, **changes: Any) -> Transitions:
    return from_dataframe(table, **{**HOW, **changes})


def steps(rows: Transitions) -> list[tuple[float, float]]:
    """State and next state of every row, −1 where there is none."""
    return [
        (float(s), float(n) if n == n else -1.0) for s, n in zip(rows.state[:, 0], rows.next_state[:, 0], strict=True)
    ]


DAY_FIRST = ["12/02/2024", "13/02/2024", "14/02/2024"]
"""The later two tell that the day is first."""


@pytest.mark.parametrize("mark", ["/", ".", "-"])
@pytest.mark.parametrize("clock", ["", " 10:00", " 10:00:00"])
@pytest.mark.parametrize("year", ["2024", "24"])
def test_one_date_tells_that_the_day_is_first(mark: str, clock: str, year: str) -> None:
    times = [day.replace("2024", year).replace("/", mark) + clock for day in ["28/02/2024", "29/02/2024", "01/03/2024"]]
    rows = read(records(times))
    assert steps(rows) == [(0.5, 1.5), (1.5, 2.5)]
    assert rows.layout.dates == "day-first"
    assert rows.layout.step == "1 days 00:00:00"


def test_one_date_tells_that_the_month_is_first() -> None:
    rows = read(records(["02/28/2024", "02/29/2024", "03/01/2024"]))
    assert rows.layout.dates == "month-first"
    assert steps(rows) == [(0.5, 1.5), (1.5, 2.5)]


def test_dates_that_no_value_tells_are_refused_and_settled_by_the_flag() -> None:
    """1 February to 3 February, or 2 January, 2 February, 2 March."""
    table = records(["03/02/2024", "01/02/2024", "02/02/2024"])
    message = refused(lambda: read(table))
    assert "none tells the day from the month; choose dates='day-first' or dates='month-first'" in message
    assert steps(read(table, dates="day-first", step="1D")) == [(1.5, 2.5), (2.5, 0.5)]
    table = records(["05/01/2024", "01/02/2024"])
    assert steps(read(table, dates="day-first")) == [(0.5, 1.5)]
    assert steps(read(table, dates="month-first")) == [(1.5, 0.5)]


def test_dates_that_contradict_each_other_or_the_flag_are_refused() -> None:
    message = refused(lambda: read(records(["13/02/2024", "02/14/2024", "02/15/2024"])))
    assert "2 dates that can only be month/day/year and 1 that can only be day/month/year" in message
    message = refused(lambda: read(records(DAY_FIRST), dates="month-first"))
    assert "column 't' has 2 dates that are no month/day/year (first at row 1)" in message


def test_new_patients_dates_are_read_as_the_training_tables_were() -> None:
    """Alone, 05/01 and 01/02 could be either: 5 January and 1 February as in training, where x = 9 is the last."""
    rows = read(records(DAY_FIRST))
    new = pd.DataFrame({"id": ["b", "b"], "t": ["05/01/2024", "01/02/2024"], "x": [1.0, 9.0]})
    assert read_patients(new, rows.schema, rows.layout).state.tolist() == [[9.0]]
    other = pd.DataFrame({"id": ["b", "b"], "t": ["05/31/2024", "06/01/2024"], "x": [1.0, 9.0]})
    assert "no day/month/year (first at row 0)" in refused(lambda: read_patients(other, rows.schema, rows.layout))


def test_times_with_and_without_a_zone_are_not_compared() -> None:
    """10:00 in Karachi is 05:00 UTC: whether the second row comes before depends on where its 07:00 is."""
    table = records(["2024-01-01 10:00+05:00", "2024-01-01 07:00"])
    message = refused(lambda: read(table))
    assert "column 't' has 1 times with a zone, as +05:00 or Z, and 1 without (first at row 1)" in message
    assert "choose zone='UTC'" in message
    assert steps(read(table, zone="UTC")) == [(0.5, 1.5)]
    assert steps(read(table, zone="+05:00")) == [(1.5, 0.5)]
    assert steps(read(table, zone="Asia/Karachi")) == [(1.5, 0.5)]
    assert "zone='nowhere' is no zone" in refused(lambda: read(table, zone="nowhere"))
    assert read(table, zone="UTC").layout.zone == "UTC"


@pytest.mark.parametrize("times", [
    ["2024-01-01", "2024-01-02"], ["2024-01-01 10:00Z", "2024-01-01 11:00+05:00"],
    ["2024-01-01 10:00", "2024-01-01 11:00"],
    ["2024-01-01T10:00:00.5-0500", "2024-01-01T10:00:01.5-05"],
])  # fmt: skip
def test_times_of_one_kind_need_no_zone(times: list[str]) -> None:
    assert len(read(records(times))) == 1
