"""The folder of raw files that is named is the one that is read, whatever characters are in its name."""

import os
from pathlib import Path

import duckdb
import pytest

from counterpoint.core.errors import CounterpointError
from counterpoint.sources.mimic.source import open_source
from helpers.mimic_raw import ward


def patients(raw: Path) -> list[int]:
    """The patients that are read from a folder."""
    with duckdb.connect() as connection:
        open_source(connection, raw)
        found = connection.execute("SELECT subject_id FROM raw_patients ORDER BY 1").fetchall()
    return [number for (number,) in found]


@pytest.mark.parametrize(("named", "sibling"), [("r[12]", "r1"), ("a*b", "a-b"), ("a?b", "a-b"), ("r[[]", "r[")])
def test_characters_of_a_pattern_are_characters_of_a_name(named: str, sibling: str, tmp_path: Path) -> None:
    ward(3).write(tmp_path / sibling)
    assert len(patients(ward(2).write(tmp_path / named))) == 2


def test_a_folder_named_like_a_column_sets_no_column(tmp_path: Path) -> None:
    plain = patients(ward(2).write(tmp_path / "plain"))
    assert patients(ward(2).write(tmp_path / "subject_id=7")) == plain


def test_a_pipe_or_a_folder_in_place_of_a_file_is_one_line(tmp_path: Path) -> None:
    folder = ward(2).write(tmp_path / "raw")
    file = folder / "patients.csv"
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(CounterpointError, match=r"patients.csv' is no regular file"):
        patients(folder)
    file.unlink()
    file.mkdir()
    with pytest.raises(CounterpointError, match=r"patients.csv' is no regular file"):
        patients(folder)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CounterpointError, match=r"pipe' is no regular file"):
        patients(tmp_path / "pipe")
