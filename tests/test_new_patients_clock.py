"""New patients are read by the rules of the training clock: wrong dates refused, gaps noted, last rows right."""

from typing import Any

import pandas as pd
import pytest

from counterpoint.cli.main import in_flags
from counterpoint.data.layout import Layout
from counterpoint.data.schema import Schema
from counterpoint.data.tables.dataframe import from_dataframe
from counterpoint.data.tables.new_subjects import read_history, read_patients
from helpers.tables import refused

HOW: dict[str, Any] = {"subject": "id", "time": "t", "state": "x", "action": "a", "reward": "r", "last": "truncate"}
DAYS = ["2024-02-11", "2024-02-12", "2024-02-13", "2024-02-14"]


def trained(times: list[Any], **changes: Any) -> tuple[Schema, Layout | None]:
    count = len(times)
    table = {"id": ["a"] * count, "t": times, "x": [0.5 + i for i in range(count)], "a": [i % 2 for i in range(count)]}
    frame = pd.DataFrame({**table, "r": [0.25] * count, "stay": ["s"] * count})
    rows = from_dataframe(frame, **{**HOW, **changes})
    return rows.schema, rows.layout


def new(times: list[Any], ids: str = "", **columns: Any) -> pd.DataFrame:
    """x counts the rows from 1."""
    count = len(times)
    return pd.DataFrame({"id": list(ids or "b" * count), "t": times, "x": [1.0 + i for i in range(count)], **columns})


def test_a_mistyped_year_is_refused_and_named() -> None:
    """Row 0 is from 2025, typed 2205: without the refusal it would be the last row, and x = 1 the state."""
    training = trained(DAYS)
    message = refused(lambda: read_patients(new(["2205-01-01", "2025-01-02", "2025-01-03"]), *training))
    assert "column 't' has a date that lies more than 10 years from the other rows of the subject (row 0)" in message
    assert "correct the date" in message
    assert read_patients(new(["2025-01-01", "2025-01-02", "2025-01-03"]), *training).state.tolist() == [[3.0]]
    two = new(["2042-01-05", "2025-01-04", "2025-01-04"], "bbc")
    assert "(row 0)" in refused(lambda: read_patients(two, *training)), "the other patient's date tells"
    record = new(["2205-01-01", "2025-01-02", "2025-01-03"], a=[0, 1, 0])
    assert "more than 10 years" in refused(lambda: read_history(record, *training))


GAPPED = ["2025-01-01", "2025-01-02", "2025-01-05", "2025-01-06"]


@pytest.mark.parametrize(("gaps", "said"), [
    ("cut", "1 of 3 pairs of rows are not one step of 1 days 00:00:00 apart and were cut: an episode stops there"),
    ("bridge", "1 of 3 pairs of rows are not one step of 1 days 00:00:00 apart and are taken as consecutive"),
])  # fmt: skip
def test_gaps_are_noted_by_the_rule_of_the_training_table(gaps: str, said: str) -> None:
    with pytest.warns(match="not one step"):
        training = trained(["2024-02-11", "2024-02-12", "2024-02-13", "2024-02-18", "2024-02-19"], gaps=gaps)
    patients = read_patients(new([*GAPPED, "2025-01-01"], "bbbbc"), *training)
    assert patients.notes == [said]
    assert patients.gaps == [1, 0], "whose they are"
    with_actions = new(GAPPED, a=[0, 1, 0, 1])
    assert read_history(with_actions, *training).notes == [said], "once"


def test_gaps_that_training_had_none_of_are_noted_too() -> None:
    (note,) = read_patients(new(GAPPED), *trained(DAYS)).notes
    assert note.startswith("1 of 3 pairs of rows are not one step of 1 days 00:00:00 apart")
    assert note.endswith("; the training table had no such pairs")
    assert read_patients(new(DAYS), *trained(DAYS)).notes == []


def test_a_new_episode_is_no_gap_and_nothing_is_carried_into_it() -> None:
    training = trained(DAYS, episode="stay", carry_forward=9.0, missing="median")
    table = new(["2025-01-01", "2025-01-02", "2025-03-01"], stay=["1", "1", "2"])
    assert read_patients(table, *training).notes == []
    patients = read_patients(table.assign(x=[7.0, 7.0, None], t=DAYS[:3]), *training)
    assert patients.state.tolist() == [[1.5]], "the training rows' median, not the last stay's value"


def test_refusals_name_no_flag_that_recommend_does_not_have() -> None:
    training = trained(DAYS)
    messages = [
        refused(lambda table=table: read_patients(table, *training))
        for table in (new(["05/01/2024", "01/02/2024"]), new(["2024-01-01 10:00Z", "2024-01-01 11:00"]), new([1, 2]))
    ]
    assert not any("--" in in_flags(message) or "=" in message for message in messages)
    assert messages[0].endswith("none tells the day from the month; write 2024-04-03")
    assert messages[2] == "column 't' holds numbers and held dates in the training table; write it as there"


def test_a_table_without_the_subjects_column_says_so() -> None:
    (note,) = read_patients(pd.DataFrame({"x": [1.0, 2.0]}), *trained(DAYS)).notes
    assert note == "there is no column 'id', so every row is taken for a subject"
