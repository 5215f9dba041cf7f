"""Dates years from the other rows of their subject, worked by hand."""

import numpy as np
import pandas as pd
import pytest

from counterpoint.data.tables.clock import isolated_dates, refuse_isolated
from counterpoint.data.tables.dates import Times
from helpers.tables import refused


def dates(*days: str) -> Times:
    return Times(pd.to_datetime(pd.Series(days)).astype("datetime64[ns]").astype("int64").to_numpy(), 1e9)


def whose(text: str) -> np.ndarray:
    return np.array([ord(letter) for letter in text])


def test_the_mistyped_year_is_the_isolated_row() -> None:
    """Row 1 was meant to be 2 January 2025; its subject's other rows, and the other subject, stay."""
    moment = dates("2025-01-01", "2205-01-02", "2025-01-03", "2025-01-01", "2025-01-02")
    assert isolated_dates(moment, whose("aaabb")).tolist() == [False, True, False, False, False]
    message = refused(lambda: refuse_isolated("t", moment, whose("aaabb")))
    assert message.startswith("column 't' has a date that lies more than 10 years from the other rows of the subject")
    assert "(row 1)" in message


def test_a_year_in_the_past_is_found_too() -> None:
    moment = dates("2025-01-01", "2025-01-02", "1925-01-03", "2025-01-04")
    assert isolated_dates(moment, whose("aaaa")).tolist() == [False, False, True, False]


def test_of_two_rows_that_is_isolated_which_lies_farther_from_the_others_dates() -> None:
    moment = dates("2205-01-01", "2025-01-02", "2025-03-01", "2025-03-02", "2025-03-03")
    assert isolated_dates(moment, whose("aabbb")).tolist() == [True, False, False, False, False]


def test_subjects_may_live_in_different_centuries() -> None:
    """De-identified records are shifted by a different number of years for each subject."""
    moment = dates("2110-01-01", "2110-01-02", "2190-05-01", "2190-05-02")
    assert not isolated_dates(moment, whose("aabb")).any()
    assert isolated_dates(moment, whose("aaaa")).sum() == 2


def test_readmissions_and_rare_rows_are_not_isolated() -> None:
    assert not isolated_dates(dates("2015-01-01", "2015-01-02", "2024-12-01"), whose("aaa")).any(), "nine years"
    decades = dates("1950-01-01", "1960-01-01", "1970-01-01", "1990-01-01")
    assert not isolated_dates(decades, whose("aaaa")).any(), "rows are ten years apart"
    day = 86_400e9
    two = dates("2000-01-01", "2015-01-01")
    assert isolated_dates(two, whose("aa"), step=day).sum() == 1
    assert not isolated_dates(two, whose("aa"), step=365 * day).any(), "15 yearly steps"


@pytest.mark.parametrize(("values", "isolated"), [
    ([2020, 2021, 2205, 2022], [False, False, True, False]),
    ([2020, 2021, 2060, 2022], [False, False, False, False]),
    ([0, 1, 500, 2], [False, False, False, False]),
])  # fmt: skip
def test_numbers_are_judged_as_years_alone(values: list[int], isolated: list[bool]) -> None:
    """Numbers that are no years have no year to be apart by: the rules for gaps speak of them."""
    assert isolated_dates(Times(np.array(values), None), whose("aaaa")).tolist() == isolated


def test_centuries_apart_do_not_overflow() -> None:
    """1700 to 2200 is more nanoseconds than a 64-bit number holds."""
    moment = dates("1700-01-01", "2200-01-01", "2200-01-02")
    assert isolated_dates(moment, whose("aaa")).tolist() == [True, False, False]
