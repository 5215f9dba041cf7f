"""CSV, JSON and Markdown files that are written whole or not at all."""

import csv
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from counterpoint.core.artifacts import replacing, write_text
from counterpoint.core.errors import CounterpointError

Row = Mapping[str, Any]
INTEGER = re.compile(r"-?(0|[1-9]\d*)")
NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?(e[+-]?\d+)?|nan|-?inf")
FORMULA = re.compile("'*[=+@\\-\t\r\n\uff1d\uff0b\uff0d\uff20]")
"""How text begins that a spreadsheet takes for a formula, in ASCII or in full width, apostrophes before it aside."""
SIGNED = re.compile(r"[+-]?\d+([.,]\d+)?([eE][+-]?\d+)?")


def require_columns(rows: Sequence[Row], columns: Sequence[str], what: str) -> None:
    """Raise unless there are rows and each has every one of `columns`."""
    if not rows:
        raise CounterpointError(f"{what} has no rows; give at least one")
    for number, row in enumerate(rows):
        absent = [column for column in columns if column not in row]
        if absent:
            raise CounterpointError(f"{what} row {number} has no column '{absent[0]}'; it needs {', '.join(columns)}")


def column_order(rows: Sequence[Row]) -> list[str]:
    """Every column of `rows`, in the order in which they first appear."""
    return list(dict.fromkeys(column for row in rows for column in row))


def markdown_table(
    rows: Sequence[Row], columns: Sequence[str] | None = None, formats: Mapping[str, str] | None = None
) -> str:
    """A Markdown table; `formats` maps a column to a format spec such as `.1f`, and an absent value is a dash.

    Example:
        >>> print(markdown_table([{"method": "D3QN", "return": 84.31}], formats={"return": ".1f"}))
        | method | return |
        | :-- | --: |
        | D3QN | 84.3 |
    """
    columns = column_order(rows) if columns is None else columns
    specs = formats or {}
    numeric = [all(_is_number(row.get(column)) for row in rows) for column in columns]
    lines = [[_escaped(column) for column in columns], ["--:" if number else ":--" for number in numeric]]
    lines += [[_cell(row.get(column), specs.get(column, "")) for column in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_csv(rows: Sequence[Row], path: str | os.PathLike[str], columns: Sequence[str] | None = None) -> None:
    """Write rows whole or not at all; a float keeps every digit, so `read_csv` gives back the same number.

    Text that a spreadsheet would run as a formula stands behind an apostrophe, which `read_csv` takes away: see
    `guarded`.
    """
    columns = column_order(rows) if columns is None else columns
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([guarded(column) for column in columns])
        writer.writerows([[_written(row.get(column)) for column in columns] for row in rows])


def read_csv(path: str | os.PathLike[str], words: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The rows of a CSV, numbers as numbers; an empty field is None, as `write_csv` writes it.

    The columns in `words` are left as they stand: the hash of a commit may look like a number.
    """
    with Path(path).open(newline="", encoding="utf-8") as file:
        rows = [{unguarded(column): text for column, text in row.items()} for row in csv.DictReader(file)]
    return [{c: unguarded(text) if c in words else _read(text) for c, text in row.items()} for row in rows]


def guarded(text: str) -> str:
    """The text with an apostrophe before it where a spreadsheet would take it for a formula; numbers are none.

    Text that already has apostrophes there gets one more, so that `unguarded` gives back every text.

    Example:
        >>> guarded("=1+1"), guarded("-5.2"), guarded("P7")
        ("'=1+1", '-5.2', 'P7')
    """
    return f"'{text}" if FORMULA.match(text) and not SIGNED.fullmatch(text) else text


def any_guarded(rows: Sequence[Row]) -> bool:
    """Whether `write_csv` puts an apostrophe before some text of these rows."""
    texts = (text for row in rows for text in (*row, *row.values()) if isinstance(text, str))
    return any(guarded(text) != text for text in texts)


def unguarded(text: Any) -> Any:
    """The text that `guarded` was given; what is no text stays as it is."""
    return text[1:] if isinstance(text, str) and text[:1] == "'" and FORMULA.match(text) else text


def write_json(record: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a record as readable JSON, whole or not at all."""
    write_text(Path(path), json.dumps(record, indent=2, allow_nan=False) + "\n")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _cell(value: Any, spec: str) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    return _escaped(format(value, spec))


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _written(value: Any) -> str:
    if value is None:
        return ""
    # float() first: the repr of a numpy scalar names its type.
    if isinstance(value, float | np.floating):
        return repr(float(value))
    return guarded(str(value))


def _read(text: str | None) -> Any:
    if text is None or text == "":
        return None
    if text in ("True", "False"):
        return text == "True"
    if INTEGER.fullmatch(text):
        return int(text)
    return float(text) if NUMBER.fullmatch(text) else unguarded(text)
