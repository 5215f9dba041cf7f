"""Steps between rows in another unit, rows charted twice, and days and months swapped, worked by hand."""

import numpy as np
import pandas as pd
import pytest

import counterpoint as cp
from counterpoint.data.tables.clock import refuse_swapped, step_notes
from counterpoint.data.tables.dates import Times
from counterpoint.data.tables.new_subjects import read_patients
from counterpoint.data.tables.reading import read_table
from helpers.tables import refused

HOUR = 3600e9
OFF = np.inf


def notes(*records: list[float], known: bool = False) -> list[str]:
    """Of records by the steps between their rows."""
    elapsed = np.concatenate([[OFF, *steps] for steps in records])
    record = np.repeat(np.arange(len(records)), [len(steps) + 1 for steps in records])
    return step_notes("t", elapsed, np.isfinite(elapsed), record, known)


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        ([60.0, 60.0, 120.0, 60.0], True),
        ([1 / 60] * 3, True),
        ([1.0, 1.0, 2.0], False),
        ([2.0, 2.0, 2.0], False),
        ([5.0, 9.0, 20.0, 31.0], False),
        ([60.0, 60.0], False),
    ],
)
def test_a_record_in_another_unit(steps: list[float], found: bool) -> None:
    said = notes([1.0] * 5, steps, [1.0] * 5)
    assert bool(said and said[0].startswith("the rows of 1 of 3 records in column 't' are evenly spaced")) == found
    assert bool(notes([60.0, 60.0], known=True)[0].startswith("the rows of 1 of 1 records"))


def test_rows_charted_twice_and_rows_far_apart() -> None:
    assert notes([1.0, 1 / 240, 1.0, 2.0]) == [
        "in column 't', 1 pair of rows is less than a tenth of a step apart, as if charted twice; keep one row of each"
    ]
    (said,) = notes([1.0, 1.0, 101.0, 1.0], [1.0, 1.0, 150.0])
    assert said.startswith("in column 't', 2 pairs of rows are more than 100 steps apart")
    assert not notes([1.0, 1.0, 0.2, 99.0, 1.0])


def test_a_table_without_a_usual_step_is_not_held_to_it() -> None:
    irregular = [0.01, 7.0, 300.0, 1.0, 1.0]
    assert not notes(irregular)
    assert len(notes(irregular, known=True)) == 2
    assert len(notes([*irregular, 1.0])) == 2, "half are one step apart"


def moments(days: list[str], dates: str = "month first") -> Times:
    return Times(pd.to_datetime(pd.Series(days)).astype("datetime64[ns]").astype("int64").to_numpy(), 1e9, dates)  # pyright: ignore[reportArgumentType]


def test_records_that_follow_only_with_day_and_month_swapped_are_refused() -> None:
    """5 and 6 March, written as 05/03 and 06/03 among dates with the month first, are read as May and June."""
    right = ["2024-03-05 20:00", "2024-03-06 00:00", "2024-03-06 04:00"]
    wrong = ["2024-05-03 20:00", "2024-06-03 00:00", "2024-06-03 04:00"]
    record = np.array([0, 0, 0, 5, 5, 5])
    message = refused(lambda: refuse_swapped("t", moments(right + wrong), record, 4 * HOUR))
    assert message.startswith("the dates in column 't' of 1 record (first at row 3) follow one another only if")
    refuse_swapped("t", moments(right + right), record, 4 * HOUR)
    refuse_swapped("t", Times(moments(right + wrong).values, 1e9), record, 4 * HOUR)
    late = ["2024-11-03 00:00", "2024-12-03 00:00", "2024-03-13 00:00"]  # 11, 12 and 13 March: the 13th is no month.
    assert refused(lambda: refuse_swapped("t", moments(late), np.zeros(3), 24 * HOUR))


@pytest.mark.parametrize(
    ("days", "hours"),
    [
        (["2024-03-04 20:00", "2024-03-05 08:00", "2024-03-05 12:00"], 4),
        (["2024-02-29 20:00", "2024-03-01 00:00", "2024-03-01 04:00"], 4),
        (["2024-01-03 00:00", "2024-02-03 00:00", "2024-02-04 00:00"], 24),
        (["2024-01-03 00:00", "2024-02-03 00:00", "2024-03-03 00:00"], 30 * 24),
        (["2024-03-04 00:00", "2024-03-05 00:00", "2024-04-05 00:00"], 30 * 24),
    ],
)
def test_gaps_and_monthly_visits_are_not_taken_for_swapped_days(days: list[str], hours: int) -> None:
    refuse_swapped("t", moments(days), np.zeros(3), hours * HOUR)


def table(*starts: str, form: str = "%m/%d/%Y %H:%M", factor: float = 1.0) -> pd.DataFrame:
    rows = [
        (f"P{i}", (pd.Timestamp(start) + factor * step * pd.Timedelta("4h")).strftime(form), step, step % 2, 0.0)
        for i, start in enumerate(starts)
        for step in range(6)
    ]
    return pd.DataFrame(rows, columns=["patient", "t", "x", "dose", "reward"])


def read(frame: pd.DataFrame) -> cp.Transitions:
    return cp.from_dataframe(
        frame, subject="patient", time="t", state="x", action="dose", reward="reward", last="truncate", gaps="cut"
    )


def test_logs_and_tables_of_new_subjects_are_held_to_it() -> None:
    american = table("2024-03-05 18:00", "2024-05-20 06:00", "2024-03-07 18:00")
    day_first = table("2024-04-05 18:00", form="%d/%m/%Y %H:%M").assign(patient="P9")
    rows = read(american)

    def noted(frame: pd.DataFrame) -> str:
        return "\n".join(read_table(pd.concat([american, frame], ignore_index=True), rows.layout).notes)

    assert "the dates in column 't' of 1 record (first at row 18) follow" in noted(day_first)
    assert read_patients(american, rows.schema, rows.layout).notes == []
    assert "day and month" in refused(lambda: read_patients(day_first, rows.schema, rows.layout))
    minutes = table("2024-04-05 18:00", factor=1 / 60).assign(patient="P9")
    assert "the rows of 1 of 4 records in column 't' are evenly spaced" in noted(minutes)
    assert any("another unit" in note for note in read_patients(minutes, rows.schema, rows.layout).notes)
