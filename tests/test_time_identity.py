"""What a log can hide about time and identity: clocks that begin again, dates typed wrong, rows after an end."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from counterpoint.core.errors import CounterpointWarning
from counterpoint.data.tables.dataframe import from_dataframe
from counterpoint.data.transitions import Transitions
from helpers.tables import refused

HOW: dict[str, Any] = {"subject": "id", "time": "t", "state": "x", "action": "a", "reward": "r", "last": "truncate"}


def table(times: dict[str, list[Any]], **columns: Any) -> pd.DataFrame:
    """A record for every subject, x counting its rows of the whole table, in the order that is given."""
    rows = [(who, t) for who, own in times.items() for t in own]
    x = np.arange(len(rows)) + 0.5
    ids, clock = [who for who, _ in rows], [t for _, t in rows]
    return pd.DataFrame({"id": ids, "t": clock, "x": x, "a": x.astype(int) % 2, "r": 0.25, **columns})


def read(frame: pd.DataFrame, **changes: Any) -> Transitions:
    return from_dataframe(frame, **{**HOW, **changes})


def noted(frame: pd.DataFrame, **changes: Any) -> tuple[Transitions, list[str]]:
    with pytest.warns(CounterpointWarning) as said:
        rows = read(frame, **changes)
    return rows, [str(warning.message) for warning in said]


# Clocks


def hours(*starts: int, step: int = 4, rows: int = 6) -> dict[str, list[int]]:
    """The hour of the day in records that begin at these hours."""
    return {f"p{i}": [(start + step * row) % 24 for row in range(rows)] for i, start in enumerate(starts)}


@pytest.mark.parametrize(("starts", "step", "rows"), [((0, 6, 13), 4, 6), ((22, 23), 1, 24), ((0, 9, 7), 4, 12)])
def test_the_hour_of_the_day_is_no_order(starts: tuple[int, ...], step: int, rows: int) -> None:
    """A stay from 22:00 to 21:00 would be sorted from 0:00 on, without a gap; longer ones repeat hours."""
    message = refused(lambda: read(table(hours(*starts, step=step, rows=rows)), gaps="cut"))
    assert "column 't' begins again within" in message
    assert "as hours of the day do" in message
    assert "name a column with the date and the time" in message


@pytest.mark.parametrize(("times", "what"), [
    ([5, 6, 0, 1], "days of the week"), ([6, 7, 1, 2], "days of the week"), ([11, 12, 1, 2], "months"),
    ([40, 50, 0, 10], "minutes of the hour"),
])  # fmt: skip
def test_other_clocks_that_begin_again(times: list[int], what: str) -> None:
    assert what in refused(lambda: read(table({"a": times, "b": sorted(times)}), gaps="bridge"))


@pytest.mark.parametrize("times", [
    {"a": list(range(24)), "b": list(range(24))}, hours(0, 0), {"a": [0, 4, 8, 12], "b": [8, 12, 16, 20]},
    {"a": [23, 22, 21, 20], "b": [12, 11, 10, 9]}, {"a": [20, 24, 28, 8, 12, 16]},
])  # fmt: skip
def test_hours_since_the_beginning_are_an_order(times: dict[str, list[int]]) -> None:
    assert len(read(table(times))) == sum(map(len, times.values())) - len(times)


def test_hours_of_a_table_in_no_order_are_named() -> None:
    frame = table({"a": list(range(24)), "b": list(range(3, 20))}).sample(frac=1, random_state=0)
    _, notes = noted(frame)
    assert ["whole numbers from 0 to 23: if they are hours of the day" in note for note in notes] == [True]


def days(year: int, *more: int, month: int = 3) -> list[str]:
    return [f"{year}-{month:02d}-{day:02d}" for day in more]


@pytest.mark.parametrize("typed", ["2205-03-03", "1924-03-03", "1900-01-01"])
@pytest.mark.parametrize("gaps", ["cut", "bridge"])
def test_a_date_years_from_all_others_is_refused(typed: str, gaps: str) -> None:
    times = {"a": [*days(2024, 1, 2), typed, *days(2024, 4, 5)], "b": days(2025, 1, 2, 3)}
    message = refused(lambda: read(table(times), gaps=gaps))
    assert "column 't' has a date that lies more than 10 years from the other rows of the subject and" in message
    assert "from all other dates (row 2); correct the date, or leave out the rows" in message


def test_a_stay_years_later_is_noted_where_others_have_such_dates() -> None:
    times = {"a": [*days(2104, 1, 2, 3), *days(2126, 5, 6)], "b": days(2125, 1, 2, 3)}
    rows, notes = noted(table(times), gaps="cut")
    assert len(rows) == 5
    assert notes[1].startswith("2 dates of 1 subject in column 't' lie more than 10 years from")
    stays = {"episode": "e", "gaps": None}
    assert len(read(table(times, e=[1, 1, 1, 2, 2, 1, 1, 1]), **stays)) == 5


def test_yearly_records_have_no_isolated_dates() -> None:
    assert len(read(table({"a": [f"{year}-01-01" for year in (1950, 1961, 1972, 1983)]}), step="4018D")) == 3


# What follows an end


def ends(marked: dict[str, list[int]], name: str = "died", **changes: Any) -> tuple[pd.DataFrame, dict[str, Any]]:
    frame = table({who: list(range(len(flags))) for who, flags in marked.items()})
    return frame.assign(**{name: [flag for flags in marked.values() for flag in flags]}), {"done": name, **changes}


@pytest.mark.parametrize("flags", [[0, 1, 0, 0, 0], [0, 1, 1, 1, 1], [0, 0, 0, 1, 0]])
def test_rows_after_a_death_are_refused(flags: list[int]) -> None:
    """Each would be an episode of its own, and a repeated flag a second death."""
    frame, how = ends({"a": flags, "b": [0, 0, 1], "c": [0, 0, 1]})
    message = refused(lambda: read(frame, **how))
    after = 4 - flags.index(1)
    assert f"{after} row{'s' if after > 1 else ''} of 1 subject follow" in message
    assert "a row where 'died' is true" in message
    assert "drop the rows after a death" in message
    kept = frame.drop(index=range(flags.index(1) + 1, 5))
    assert int(read(kept, **how).terminated.sum()) == 3
    assert int(read(frame, **how, outcome="marked row").terminated.sum()) == sum(flags) + 2


def test_a_flag_true_up_to_the_last_row_is_settled_by_the_flag() -> None:
    frame, how = ends({"a": [0, 1, 1, 1], "b": [0, 0, 1]})
    assert int(read(frame, **how, outcome="last row of the subject").terminated.sum()) == 2


@pytest.mark.parametrize("name", ["died", "discharged"])
def test_a_flag_repeated_on_all_rows_of_fewer_than_half_is_refused(name: str) -> None:
    """One of three: the deaths would be five in place of three."""
    frame, how = ends({"a": [1, 1, 1], "b": [0, 0, 1], "c": [0, 0, 1]}, name)
    message = refused(lambda: read(frame, **how))
    assert f"column '{name}' is true on every row of 1 subject, which would end an episode at each" in message
    assert int(read(frame, **how, outcome="last row of the subject").terminated.sum()) == 3


def test_rows_after_another_end_are_new_episodes_and_noted_where_they_are_few() -> None:
    frame, how = ends({"a": [0, 1, 0, 0], "b": [0, 0, 1], "c": [0, 0, 1]}, "discharged")
    rows, notes = noted(frame, **how)
    assert len(rows.episode.unique()) == 4
    assert notes == ["2 rows of 1 subject follow a row where 'discharged' is true: they are read as a new episode"]
    frame, how = ends({"a": [0, 1, 0, 1], "b": [0, 1, 0, 1], "c": [1, 1], "d": [0, 1, 1]}, "done")
    assert len(read(frame, **how).episode.unique()) == 8, "records of many episodes are what this table is made of"


def test_a_death_ends_its_own_stay_only_where_stays_are_named() -> None:
    """Episodes are sorted by their names, so a stay listed later may have been before."""
    frame, how = ends({"a": [0, 0, 1, 0, 0]})
    assert len(read(frame.assign(e=[2, 2, 2, 1, 1]), **how, episode="e").episode.unique()) == 2
