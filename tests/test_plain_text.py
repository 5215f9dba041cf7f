"""Cells of a user's table are text: no markup on the terminal, no formulas in a spreadsheet, nothing unseen."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from counterpoint.cli import console, recommend
from counterpoint.cli.console import say, show, visible
from counterpoint.core.tables import guarded, read_csv, unguarded, write_csv
from counterpoint.policies.base import Verdict
from counterpoint.policies.recommendation import Advice, Recommendations

IDS = ["P1[b]", "P1[i]", "[/]7", ":x:", "P1\x1b[31m", "P1\u200b", "P1\u202e", "P1\r2", "x" * 90 + "1", "x" * 90 + "2"]


def test_what_is_not_seen_has_a_code() -> None:
    assert visible("P1\x1b[2J\n") == "P1\\x1b[2J\\n"
    assert visible("P\u200b1", keep="\n") == "P\\u200b1"
    assert visible("line\nline", keep="\n") == "line\nline"
    assert visible("Müller, 3 ± 1 µg") == "Müller, 3 ± 1 µg"


def test_every_id_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    show([{"subject[b]": name, "note[/]": "[red]"} for name in IDS], "[i]title[/i] [/]")
    told = capsys.readouterr().out
    for words in ("P1[b]", "P1[i]", "[/]7", ":x:", "P1\\x1b[31m", "P1\\u200b", "P1\\u202e", "P1\\r2", "[red]",
                  "[i]title[/i] [/]", "subject[b]", "note[/]"):  # fmt: skip
        assert words in told
    assert "\x1b" not in told
    say("[b]bold :x: \x1b[31m")
    assert capsys.readouterr().out == "[b]bold :x: \\x1b[31m\n"


def test_long_ids_are_whole(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ids that differ in their last letter are not cut before it."""
    monkeypatch.setattr(console.CONSOLE, "_width", 80)
    show([{"subject": name, "dose": "1"} for name in IDS[-2:]], "")
    told = capsys.readouterr().out
    assert "…" not in told
    assert told.count("x") == 180


FORMULAS = ["=1+1", "+A1", "@SUM(A1)", "-A1", "\tx", "\rx", "＝1", "'=1", "''=1", "-"]


@pytest.mark.parametrize("text", FORMULAS)
def test_formulas_are_guarded_and_given_back(text: str) -> None:
    assert guarded(text) == f"'{text}"
    assert unguarded(guarded(text)) == text


@pytest.mark.parametrize("text", ["-5", "+5", "-5.25e-3", "-2,5", "P7", "", "'quoted'", "a=b", "–"])
def test_numbers_and_words_are_not(text: str) -> None:
    assert guarded(text) == text
    assert unguarded(text) == text


def test_a_csv_gives_back_every_text(tmp_path: Path) -> None:
    rows = [{"=id": text, "n": -2.5} for text in FORMULAS if "\r" not in text]
    write_csv(rows, tmp_path / "t.csv")
    assert read_csv(tmp_path / "t.csv") == rows
    assert read_csv(tmp_path / "t.csv", words=("=id",)) == rows
    with (tmp_path / "t.csv").open(newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert not [cell for cell in cells if cell[0] in "=+@\t" or (cell[0] == "-" and cell != "-2.5")]


def answer(name: str) -> Recommendations:
    known: dict[str, Any] = {"value": None, "support": 0.04, "values": {}, "supports": {"+drug": 0.04}}
    return Recommendations(Verdict("yes", ()), (Advice(name, {"drug": "+drug"}, "+drug", why="", **known),))


def test_ids_reach_the_file_of_recommendations_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recommend._write(answer('=HYPERLINK("http://x","y")'), tmp_path / "r.csv")
    assert "note: text that begins with =" in capsys.readouterr().out
    text = (tmp_path / "r.csv").read_text().splitlines()[1]
    assert text.startswith("\"'=HYPERLINK(")
    assert ",'+drug," in text
    (row,) = read_csv(tmp_path / "r.csv")
    assert (row["subject"], row["drug"]) == ('=HYPERLINK("http://x","y")', "+drug")
    recommend._write(answer("=1"), tmp_path / "r.json")
    assert json.loads((tmp_path / "r.json").read_text())["recommendations"][0]["subject"] == "=1"
    assert capsys.readouterr().out == ""


def test_ids_that_differ_in_spaces_differ_on_the_terminal() -> None:
    assert recommend._advice(answer("P1 ").advice[0])["subject"] == "'P1 '"
    assert recommend._advice(answer("P1").advice[0])["subject"] == "P1"
