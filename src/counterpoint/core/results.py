"""Results as Markdown and CSV that are whole or absent, and the record of what produced them."""

import csv
import json
import math
import os
import platform
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

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


def hardware() -> dict[str, Any]:
    """What the numbers were computed on: the accelerator if torch sees one, else the processor."""
    cuda = torch.cuda.is_available()
    return {
        "device": torch.cuda.get_device_name() if cuda else _processor(),
        "accelerator": "cuda" if cuda else "none",
        "processor": _processor(),
        "cpu_count": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
    }


def provenance() -> dict[str, Any]:
    """What produced a result, to be saved beside it: versions, commit and hardware; no paths and no host names."""
    return {
        "counterpoint": _package_version(),
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        **hardware(),
    }


def where() -> dict[str, Any]:
    """The code and the machine that make a cell's numbers, to be kept with them."""
    record = provenance()
    return {name: record[name] for name in ("commit", "device")}


def ran_on(cells: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """How many cells each code and machine made."""
    found = Counter((cell.get("commit"), cell.get("device")) for cell in cells)
    return [{"commit": commit, "device": device, "cells": count} for (commit, device), count in found.items()]


def same_commit(one: str | None, other: str | None) -> bool:
    """Whether two records name one commit, whole or in its first digits, both edited or neither."""
    if one is None or other is None:
        return one is other
    (left, edited), (right, too) = ((name.removesuffix("-dirty"), name.endswith("-dirty")) for name in (one, other))
    return edited == too and (left.startswith(right) or right.startswith(left))


def seconds_by(cells: Iterable[Mapping[str, Any]], column: str) -> dict[str, float]:
    """How long the cells of each kind took together; a table holds no seconds, so that two runs of it are the same."""
    total: Counter[str] = Counter()
    for cell in cells:
        total[str(cell[column])] += cell["seconds"]
    return {kind: round(seconds, 1) for kind, seconds in total.items()}


def made_by(cells: Iterable[Sequence[Mapping[str, Any]]], column: str) -> dict[str, Any]:
    """Which code and machine made cells that have rows, and how long those of each kind took."""
    first = [rows[0] for rows in cells if rows]
    return {"ran_on": ran_on(first), "seconds": seconds_by(first, column)}


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


def _processor() -> str:
    """The processor's model name, which Linux tells only in /proc/cpuinfo."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        found = re.search(r"^model name\s*:\s*(.+)$", information.read_text(), re.MULTILINE)
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine()


def _package_version() -> str | None:
    try:
        return metadata.version("counterpoint")
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the checkout this file is tracked in, "-dirty" when the package is edited; a copy without history
    is told its own in COUNTERPOINT_COMMIT; None where nobody knows."""
    here = Path(__file__)
    if "COUNTERPOINT_COMMIT" in os.environ:
        return os.environ["COUNTERPOINT_COMMIT"]
    try:
        # An installed copy may lie inside some other project's checkout, whose commit would say nothing.
        _git(here.parent, "ls-files", "--error-unmatch", here.name)
        edited = _git(here.parents[2], "status", "--porcelain", "--untracked-files=no", ".")
        return _git(here.parent, "rev-parse", "HEAD") + "-dirty" * bool(edited)
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    finished = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=10)
    return finished.stdout.strip()
