"""Ids and levels that are spelt almost alike, and rows of totals, worked by hand."""

import numpy as np
import pandas as pd
import pytest

import counterpoint as cp
from counterpoint.data.tables.new_subjects import read_patients
from counterpoint.data.tables.spelling import alike_ids, alike_note, level_notes, refuse_totals, stray_number_note
from helpers.tables import refused


@pytest.mark.parametrize(
    ("names", "alike"),
    [
        (["7", "007", "70"], 1),
        (["12", "12.0", "120"], 1),
        (["P-1", "p-1", "P-1 ", " P-1"], 3),
        (["P 1", "P\u00a01"], 1),
        (['4"500', "4500", "'7'", "8"], 1),
        (["12.5", "125", "1.25"], 0),
        (["P10", "P1", "P0"], 0),
    ],
)
def test_ids_that_are_another_but_for_a_slip(names: list[str], alike: int) -> None:
    assert alike_ids(names) == alike
    assert bool(alike_note("patient", names)) == bool(alike)


@pytest.mark.parametrize("word", ["TOTAL", "Mean", " sum ", "Grand  Total"])
def test_a_row_of_totals_is_refused(word: str) -> None:
    codes, names = np.array([0, 0, 1]), ["P-1", word]
    message = refused(lambda: refuse_totals("patient", codes, names))
    assert message.startswith("the id in column 'patient' at row 2 is that of a row of totals")
    refuse_totals("patient", codes, ["P-1", "Summers"])


@pytest.mark.parametrize(
    ("levels", "counts", "said"),
    [
        (("icu", "ward", "icu "), (500, 500, 40), "1 of 3 levels of column 'x' mean the same"),
        (("ICU", "icu", "Ward", "ward"), (500, 500, 40, 40), "2 of 4 levels of column 'x' mean the same"),
        (("0", "1", "no", "yes"), (500, 500, 40, 40), "2 of 4 levels of column 'x' mean the same"),
        (("icu", "icuu", "ward"), (500, 3, 500), "1 level of column 'x' on fewer than 10 rows"),
        (("icu", "icuu", "ward"), (50, 3, 50), ""),
        (("icu", "hdu", "ward"), (500, 10, 500), ""),
        (("f", "m"), (2, 500), ""),
        (("no", "yes"), (500, 500), ""),
        (("t", "f", "x"), (500, 500, 500), ""),
    ],
)
def test_levels_that_mean_the_same_or_are_rare(levels: tuple[str, ...], counts: tuple[int, ...], said: str) -> None:
    notes = level_notes("x", levels, np.array(counts))
    assert len(notes) == bool(said)
    assert all(note.startswith(said) for note in notes)


@pytest.mark.parametrize(
    ("values", "noted"),
    [
        ([0.0, 1.0] * 20 + [2.0, np.nan], True),
        ([0.0, 1.0] * 20 + [2.0] * 10, False),
        ([0.0, 1.0] * 20 + [2.0, 3.0], False),
        ([0.0] * 40 + [2.0], False),
        ([0.0, 1.0] * 20, False),
    ],
)
def test_a_flag_with_a_third_value(values: list[float], noted: bool) -> None:
    assert bool(stray_number_note("x", np.array(values))) == noted


def table(ids: tuple[str, str] = ("P-1", "P-2"), levels: tuple[str, str] = ("icu", "ward")) -> pd.DataFrame:
    rows = [(who, hour, level, hour % 2, 0.0) for who, level in zip(ids, levels, strict=True) for hour in range(6)]
    return pd.DataFrame(rows, columns=["patient", "hour", "ward", "dose", "reward"])


def read(frame: pd.DataFrame) -> cp.Transitions:
    return cp.from_dataframe(
        frame, subject="patient", time="hour", state="ward", action="dose", reward="reward", last="truncate"
    )


def test_a_log_is_read_with_a_note_that_names_the_column(recwarn: pytest.WarningsRecorder) -> None:
    read(table())
    assert not [each for each in recwarn if "alike" in str(each.message)]
    with pytest.warns(cp.CounterpointWarning, match="1 id in 'patient' like another"):
        read(table(ids=("P-1", "p-1")))
    with pytest.warns(cp.CounterpointWarning, match="1 of 2 levels of column 'ward' mean the same"):
        read(table(levels=("icu", "ICU")))


def test_new_subjects_with_ids_that_are_alike_are_refused() -> None:
    """Of a record in two parts, the older part's last row is no present state."""
    rows = read(table())
    assert read_patients(table(ids=("N-1", "N-2")), rows.schema, rows.layout).names == ["N-1", "N-2"]
    message = refused(lambda: read_patients(table(ids=("N-1", "N-1 ")), rows.schema, rows.layout))
    assert message.startswith("1 id in 'patient' like another")
    message = refused(lambda: read_patients(table(ids=("N-1", "Total")), rows.schema, rows.layout))
    assert "row of totals" in message
