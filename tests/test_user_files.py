"""A table that is a pipe is not waited for, and one that unpacks without end is not unpacked."""

import gzip
import os
from pathlib import Path
from typing import Any

import pytest

from counterpoint.cli import main as cli
from counterpoint.data.storage import read
from counterpoint.data.tables import columns
from counterpoint.data.tables.columns import check_file
from counterpoint.data.tables.dataframe import from_dataframe
from counterpoint.data.tables.inspection import check
from helpers.tables import ROLES, refused, ward

FEW = 2_000_000
"""Bytes, in place of what any packed table may unpack to."""


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet", "t.tsv"])
def test_a_pipe_is_not_waited_for(name: str, tmp_path: Path) -> None:
    """Before a pipe was refused, these calls never came back."""
    os.mkfifo(tmp_path / name)
    for call in (check, lambda table: from_dataframe(table, **ROLES)):
        assert "is no regular file but a pipe" in refused(lambda call=call: call(tmp_path / name))
    if name in ("t.csv", "t.parquet"):
        assert "is no regular file but a pipe" in refused(lambda: read(tmp_path / name))


def test_a_study_that_is_a_pipe_is_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "study.toml")
    with pytest.raises(SystemExit):
        cli.main(["run", "t.csv", "--config", str(tmp_path / "study.toml"), "--run", str(tmp_path / "run")])
    assert "is no regular file but a pipe" in capsys.readouterr().err


def packed(folder: Path, text: bytes) -> Path:
    path = folder / "t.csv.gz"
    path.write_bytes(gzip.compress(text))
    return path


def test_a_packed_file_may_not_unpack_to_far_more_than_a_table(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(columns, "SMALL_TABLE", FEW)
    rows = b"a,b\n" + b"0,0\n" * (FEW // 4)
    path = packed(tmp_path, rows)
    assert path.stat().st_size * columns.MAX_RATIO < len(rows)
    for call in (check_file, check, lambda table: from_dataframe(table, **ROLES)):
        message = refused(lambda call=call: call(path))
        assert "unpacks to more than 2 MB" in message
        assert "unpack it, and give the file itself" in message
    check_file(packed(tmp_path, rows[: FEW - 10]))


def test_a_packed_table_of_numbers_passes_and_no_more_than_the_most(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(columns, "SMALL_TABLE", 1000)
    text = ward(200).to_csv(index=False).encode()
    path = packed(tmp_path, text)
    assert 1000 < len(text) < columns.MAX_RATIO * path.stat().st_size
    check_file(path)
    monkeypatch.setattr(columns, "MAX_BYTES", len(text) - 1)
    assert "unpacks to more than" in refused(lambda: check_file(path))


def test_a_bomb_is_not_unpacked_whole(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(columns, "SMALL_TABLE", FEW)
    read_pieces = []
    whole = gzip.GzipFile.read
    monkeypatch.setattr(gzip.GzipFile, "read", lambda self, size: read_pieces.append(size) or whole(self, size))
    refused(lambda: check_file(packed(tmp_path, b"0,0\n" * 5_000_000)))
    assert sum(read_pieces) <= FEW + 2 * columns.CHUNK


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"no gzip at all",
                                    lambda data: data[:20] + b"xxxx" + data[24:]])  # fmt: skip
def test_a_damaged_packed_file_is_one_line(damage: Any, tmp_path: Path) -> None:
    path = packed(tmp_path, ward().to_csv(index=False).encode())
    path.write_bytes(damage(path.read_bytes()))
    refused(lambda: from_dataframe(path, **ROLES))
