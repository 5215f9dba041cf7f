"""A folder that cannot be written into is found before the work, a full disk is one line that names the file."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from counterpoint.cli import main as cli
from counterpoint.cli.check import Check
from counterpoint.core import artifacts
from counterpoint.data.tables.inspection import inspecting
from helpers.tables import refused, ward


def refusal(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The one line on which a command stops."""
    with pytest.raises(SystemExit) as stop:
        cli.main([str(word) for word in words])
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


@pytest.mark.parametrize("words", [
    ("simulate",), ("fit", "--data", "none.csv"), ("augment",), ("check-scm",), ("train",), ("evaluate",), ("report",),
    ("recommend", "--data", "none.csv"),
])  # fmt: skip
def test_a_run_folder_that_cannot_be_made_is_found_first(words: Any, tmp_path: Path, capsys: Any) -> None:
    """Below a file there is no folder; the table and the run are not even looked for."""
    (tmp_path / "file").touch()
    line = refusal(capsys, words[0], "--run", tmp_path / "file" / "run", *words[1:])
    assert line == f"counterpoint: cannot write '{tmp_path / 'file' / 'run'}': Not a directory; check the path"


def test_an_output_elsewhere_is_what_must_be_writable(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "file").touch()
    recommend = ("recommend", "--run", tmp_path / "run", "--data", "none.csv", "--out")
    assert f"cannot write '{tmp_path / 'file'}': Not a directory" in refusal(
        capsys, *recommend, tmp_path / "file" / "out.csv"
    )
    assert "has no" in refusal(capsys, *recommend, tmp_path / "out.csv"), "the run itself is read"


def test_check_looks_at_its_folder_before_the_table(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    ward().to_csv(tmp_path / "ward.csv", index=False)
    monkeypatch.setattr(inspecting, "survey_table", lambda *_: pytest.fail("the table was looked at"))
    (tmp_path / "file").touch()
    assert "Not a directory" in refusal(capsys, "check", tmp_path / "ward.csv", "--out", tmp_path / "file" / "out")


def test_folders_that_may_not_be_written_to_say_so(tmp_path: Path, monkeypatch: Any) -> None:
    artifacts.check_writable(tmp_path / "deep" / "folder")
    assert not list(tmp_path.iterdir())

    def read_only(dir: Path) -> None:
        assert dir == tmp_path
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(artifacts.tempfile, "TemporaryFile", read_only)
    message = refused(lambda: artifacts.check_writable(tmp_path / "deep" / "folder"))
    assert message.endswith("Read-only file system; choose a folder that may be written to")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_an_error_without_a_file_is_no_file(number: int, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    def full(_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Check, "execute", full)
    line = refusal(capsys, "check", tmp_path / "ward.csv")
    assert line == f"counterpoint: {os.strerror(number)}; free some disk space and run the command again"
