"""Opening a table, and taking each of its columns as numbers."""

import csv
import os
from codecs import BOM_UTF16_BE, BOM_UTF16_LE, getincrementaldecoder
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from counterpoint.core.errors import CounterpointError, require
from counterpoint.data.stored_format import MARK
from counterpoint.data.tables.columns import TEXT_SUFFIXES, WORDS, CheckedColumns, check_file, kind_of, open_table
from counterpoint.data.tables.dates import are_dates
from counterpoint.data.tables.inspection.facts import Kind, Roles
from counterpoint.data.tables.inspection.names import id_of
from counterpoint.data.tables.state_columns import MOST_LEVELS


def names_given(role: str, given: Any) -> tuple[str, ...]:
    """One name or several; an empty one is none."""
    listed = isinstance(given, Iterable) and not isinstance(given, str)
    several = tuple(given) if listed else () if given is None else (given,)
    wrong = [name for name in several if not isinstance(name, str)]
    require(not wrong, f"{role}={given!r} does not name a column; give its name, or a list of names")
    return tuple(str(name) for name in several if name)


def open_columns(table: Any, given: Roles, encoding: str) -> tuple[CheckedColumns, str]:
    """The table, its ids as text so that 007 is not 7, and the encoding that it was read in."""
    named = [name for names in given.values() for name in names]
    ids = [*given["subject"], *given["episode"]]
    if isinstance(table, str | os.PathLike):
        _check_foreign(Path(table))
    if isinstance(table, str | os.PathLike) and kind_of(Path(table)) in TEXT_SUFFIXES:
        encoding, header = _peek(Path(table), encoding)
        ids += [name for name in header if name not in named and id_of(name)]
    columns = open_table(table, named, ids, encoding)
    names = list(columns.frame.columns)
    require(bool(names), "the table has no columns; pass one with a column for subject, time, state and action")
    for name in names:
        require(isinstance(name, str) and name != "", f"a column is named {name!r}; give every column a name in text")
        require(names.count(name) == 1, f"column '{name}' occurs {names.count(name)} times; rename or drop the others")
    return columns, encoding


def _check_foreign(path: Path) -> None:
    """Refuse our own tables, which say what they hold; what is wrong with other files is the loader's to say."""
    from pyarrow import parquet

    check_file(path)
    try:
        with path.open("rb") as file:
            ours = file.read(len(MARK)) == MARK.encode()
        if path.suffix.lower() == ".parquet":
            ours = b"counterpoint" in (parquet.read_metadata(path).metadata or {})
    except (OSError, ValueError):
        return
    require(not ours, f"{path} was written by counterpoint and needs no check; pass it to fit --data without flags")


def _peek(path: Path, asked: str) -> tuple[str, list[str]]:
    """The encoding in which every byte is text, the one asked for first, and the words of the first line."""
    import pyarrow as pa

    try:
        with pa.input_stream(path) as file:
            head = file.read(65_536)
        utf16 = ["utf-16"] if head[:2] in (BOM_UTF16_LE, BOM_UTF16_BE) else []
        encoding = next(name for name in (asked, *utf16, "utf-8", "cp1252", "latin-1") if _decodes(path, name))
        line = next(iter(head.decode(encoding, errors="ignore").splitlines()), "").removeprefix("\ufeff")
        words = {word for mark in ",;\t" for row in csv.reader([line], delimiter=mark) for word in row}
    except (OSError, ValueError, LookupError, csv.Error):
        return asked, []  # The loader says what is wrong with the file.
    return encoding, sorted(words)


def _decodes(path: Path, encoding: str) -> bool:
    import pyarrow as pa

    decoder = getincrementaldecoder(encoding)()
    try:
        with pa.input_stream(path) as file:
            while chunk := file.read(1 << 20):
                decoder.decode(chunk)
        decoder.decode(b"", final=True)
    except UnicodeError:
        return False
    return True


@dataclass(frozen=True)
class TakenColumn:
    """A column as numbers: amounts as they are, dates and labels as codes, yes and no as 1 and 0, NaN where missing."""

    name: str
    kind: Kind
    values: np.ndarray
    distinct: int
    labels: tuple[str, ...] = ()
    """What the codes stand for."""
    trouble: str = ""
    """Why a model cannot take it."""


def take(columns: CheckedColumns, name: str) -> TakenColumn:
    try:
        return _read(columns, name)
    except (CounterpointError, OverflowError) as error:
        large = "holds whole numbers that are too large; make them text, or smaller"
        line = large if isinstance(error, OverflowError) else str(error).removeprefix(f"column '{name}' ")
        return TakenColumn(name, "unreadable", np.full(len(columns), np.nan), 0, trouble=line)


def _read(columns: CheckedColumns, name: str) -> TakenColumn:
    import pyarrow as pa

    if columns.holds_labels(name):
        return _labels(columns, name)
    kind = columns.arrow(name).type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_duration(kind):
        codes = codes_of(columns, name)
        return TakenColumn(name, "date", np.where(codes < 0, np.nan, codes), int(codes.max()) + 1)
    values = columns.measured(name)
    known = np.unique(values[~np.isnan(values)])
    return TakenColumn(name, _amount_kind(known), values, len(known))


def _amount_kind(known: np.ndarray) -> Kind:
    if not len(known):
        return "empty"
    if known.tolist() == [0, 1]:
        return "yes/no"
    return "whole number" if (known == np.round(known)).all() else "number"


def _labels(columns: CheckedColumns, name: str) -> TakenColumn:
    """Text: yes and no, dates, a few levels, or an id."""
    used, codes = np.unique(codes_of(columns, name), return_inverse=True)
    every = columns.arrow(name).dictionary_encode().dictionary.to_pylist()
    labels = tuple(str(every[code]) for code in used.tolist() if code >= 0)
    codes = codes.astype(float) - (used[0] < 0)  # The first is −1 where a value is missing.
    codes[codes < 0] = np.nan
    stray = columns.categories(name) is None and columns.holds_stray_text(name)
    trouble = "holds numbers as text, or text among numbers; make it all numbers" if stray else ""
    truth = [WORDS.get(label.strip().lower()) for label in labels]
    if set(truth) == {True, False}:
        meant = np.array([*truth, np.nan], dtype=float)[np.nan_to_num(codes, nan=-1).astype(int)]
        return TakenColumn(name, "yes/no", meant, 2, ("no", "yes"), trouble)
    kind: Kind = "text or id" if len(labels) > MOST_LEVELS else "category" if labels else "empty"
    kind = "date" if labels and not stray and are_dates(labels[:100]) else kind
    return TakenColumn(name, kind, codes, len(labels), labels, trouble)


def codes_of(columns: CheckedColumns, name: str) -> np.ndarray:
    """What a column holds as numbers 0, 1, 2 … in the order of the first rows; −1 where it is missing."""
    encoded = columns.arrow(name).dictionary_encode()
    return np.where(columns.present(name), encoded.indices.fill_null(-1).to_numpy(), -1).astype(np.int64)
