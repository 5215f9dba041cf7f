"""Survey a table of unknown layout: columns as numbers, sorted rows, copies and constants among the columns."""

import csv
import os
from codecs import BOM_UTF16_BE, BOM_UTF16_LE, getincrementaldecoder
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from counterpoint.core.errors import CounterpointError, require
from counterpoint.data.stored_format import MARK
from counterpoint.data.tables.clock import changes, usual_step
from counterpoint.data.tables.columns import (
    TEXT_SUFFIXES,
    WORDS,
    CheckedColumns,
    Table,
    check_file,
    kind_of,
    open_table,
)
from counterpoint.data.tables.dates import Times, are_dates
from counterpoint.data.tables.episodes import Records, sort_records
from counterpoint.data.tables.inspection.facts import AMOUNTS, Kind, Roles
from counterpoint.data.tables.missing import constant_within_subjects
from counterpoint.data.tables.state_columns import MOST_LEVELS

ALIKE = 0.999
"""Columns with a larger absolute correlation are copies."""
SAMPLE = 20_000
"""Rows on which columns are compared."""


def column_names(role: str, names: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return the names of a role as a tuple; empty names are left out."""
    if names is None:
        return ()
    listed = [names] if isinstance(names, str) or not isinstance(names, Iterable) else list(names)
    wrong = [name for name in listed if not isinstance(name, str)]
    require(not wrong, f"{role}={names!r} does not name a column; give its name, or a list of names")
    return tuple(name for name in listed if name)


def open_columns(table: Table, roles: Roles, encoding: str, is_id: Iterable[str]) -> CheckedColumns:
    """Open a table; columns in `is_id` and those of subjects and episodes are text, so that 007 is not 7."""
    named = [name for names in roles.values() for name in names]
    ids = [*roles["subject"], *roles["episode"], *(name for name in is_id if name not in named)]
    columns = open_table(table, named, ids, encoding)
    names = list(columns.frame.columns)
    require(bool(names), "the table has no columns; pass one with a column for subject, time, state and action")
    for name in names:
        require(isinstance(name, str) and name != "", f"a column is named {name!r}; give every column a name in text")
        require(names.count(name) == 1, f"column '{name}' occurs {names.count(name)} times; rename or drop the others")
    return columns


def peek(table: Table, encoding: str) -> tuple[str, list[str]]:
    """Return the encoding in which a text file can be read, `encoding` if possible, and the names in its first line."""
    if not isinstance(table, str | os.PathLike):
        return encoding, []
    path = Path(table)
    _check_foreign(path)
    if kind_of(path) not in TEXT_SUFFIXES:
        return encoding, []
    import pyarrow as pa

    try:
        with pa.input_stream(path) as file:
            head = file.read(65_536)
        utf16 = ["utf-16"] if head[:2] in (BOM_UTF16_LE, BOM_UTF16_BE) else []
        candidates = (encoding, *utf16, "utf-8", "cp1252", "latin-1")
        readable = next(name for name in candidates if _decodes(path, name))
        line = next(iter(head.decode(readable, errors="ignore").splitlines()), "").removeprefix("\ufeff")
        names = {name for mark in ",;\t" for row in csv.reader([line], delimiter=mark) for name in row}
    except (OSError, ValueError, LookupError, csv.Error):
        return encoding, []  # `open_table` says what is wrong with the file.
    return readable, sorted(names)


def _check_foreign(path: Path) -> None:
    """Refuse tables that counterpoint wrote: their header describes them."""
    from pyarrow import parquet

    check_file(path)
    try:
        with path.open("rb") as file:
            stored = file.read(len(MARK)) == MARK.encode()
        if path.suffix.lower() == ".parquet":
            stored = b"counterpoint" in (parquet.read_metadata(path).metadata or {})
    except (OSError, ValueError):
        return  # `open_table` says what is wrong with the file.
    require(not stored, f"{path} was written by counterpoint and needs no check; pass it to fit --data without flags")


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
class SurveyedColumn:
    """A column as numbers: amounts as they are, dates and labels as codes, yes/no as 1 and 0, NaN where missing."""

    name: str
    kind: Kind
    values: np.ndarray
    distinct: int
    labels: tuple[str, ...] = ()
    """Labels of the codes."""
    trouble: str = ""
    """Why a model cannot use the column."""


def survey_column(columns: CheckedColumns, name: str) -> SurveyedColumn:
    """Read a column of unknown kind; one that cannot be read is "unreadable"."""
    try:
        return _read(columns, name)
    except OverflowError:
        trouble = "holds whole numbers that are too large; make them text, or smaller"
    except CounterpointError as error:
        trouble = str(error).removeprefix(f"column '{name}' ")
    return SurveyedColumn(name, "unreadable", np.full(len(columns), np.nan), 0, trouble=trouble)


def _read(columns: CheckedColumns, name: str) -> SurveyedColumn:
    import pyarrow as pa

    if columns.holds_labels(name):
        return _read_labels(columns, name)
    kind = columns.arrow(name).type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_duration(kind):
        codes = codes_of(columns, name)
        return SurveyedColumn(name, "date", np.where(codes < 0, np.nan, codes), int(codes.max()) + 1)
    values = columns.measured(name)
    distinct = np.unique(values[~np.isnan(values)])
    return SurveyedColumn(name, _amount_kind(distinct), values, len(distinct))


def _amount_kind(distinct: np.ndarray) -> Kind:
    if not len(distinct):
        return "empty"
    if distinct.tolist() == [0, 1]:
        return "yes/no"
    return "whole number" if (distinct == np.round(distinct)).all() else "number"


def _read_labels(columns: CheckedColumns, name: str) -> SurveyedColumn:
    """Read text: yes and no, dates, a few levels, or an id."""
    used, codes = np.unique(codes_of(columns, name), return_inverse=True)
    dictionary = columns.arrow(name).dictionary_encode().dictionary.to_pylist()
    labels = tuple(str(dictionary[code]) for code in used.tolist() if code >= 0)
    codes = codes.astype(float) - (used[0] < 0)  # The first is -1 where a value is missing.
    codes[codes < 0] = np.nan
    stray = columns.categories(name) is None and columns.holds_stray_text(name)
    trouble = "holds numbers as text, or text among numbers; make it all numbers" if stray else ""
    meanings = [WORDS.get(label.strip().lower()) for label in labels]
    if set(meanings) == {True, False}:
        truth = np.array([*meanings, np.nan], dtype=float)[np.nan_to_num(codes, nan=-1).astype(int)]
        return SurveyedColumn(name, "yes/no", truth, 2, ("no", "yes"), trouble)
    kind: Kind = "text or id" if len(labels) > MOST_LEVELS else "category" if labels else "empty"
    if labels and not stray and are_dates(labels[:100]):
        kind = "date"
    return SurveyedColumn(name, kind, codes, len(labels), labels, trouble)


def codes_of(columns: CheckedColumns, name: str) -> np.ndarray:
    """Return codes 0, 1, 2 … of a column's values in order of first appearance; -1 where a value is missing."""
    encoded = columns.arrow(name).dictionary_encode()
    return np.where(columns.present(name), encoded.indices.fill_null(-1).to_numpy(), -1).astype(np.int64)


@dataclass(frozen=True)
class SurveyedClock:
    """Sorted rows and their steps; the arrays are in sorted order."""

    records: Records
    repeated: np.ndarray
    """Where subject, episode and time are those of the row before."""
    elapsed: np.ndarray
    """Steps since the subject's row before; 0 for its first row."""
    step: str
    """Length of a step; empty where the times cannot be read."""
    trouble: str = ""
    """Why the times cannot be read."""


def survey_clock(columns: CheckedColumns, roles: Roles) -> SurveyedClock:
    """Sort the rows; without a subject column they are one subject's, without a clock they keep their order."""
    zeros = np.zeros(len(columns), dtype=np.int64)
    subject = codes_of(columns, roles["subject"][0]) if roles["subject"] else zeros
    episode = codes_of(columns, roles["episode"][0]) if roles["episode"] else zeros
    times = Times(zeros, None)
    trouble = "no clock"
    if roles["time"]:
        try:
            times = columns.times(roles["time"][0])
            trouble = ""
        except CounterpointError as error:
            trouble = str(error)
    records = sort_records(subject, episode, times)
    begins = changes(records.subject)
    if trouble:
        return SurveyedClock(records, zeros > 0, (~begins).astype(float), "", trouble)
    inside = records.apart[~records.opens & (records.apart > 0)]
    length = usual_step(inside) if len(inside) else 1.0
    elapsed = np.where(begins, 0.0, records.apart / length)
    repeated = ~records.opens & (records.apart == 0)
    return SurveyedClock(records, repeated, elapsed, _step_flag(length, times.per_second))


def _step_flag(length: float, per_second: float | None) -> str:
    """Return a length of time as --step takes it."""
    if per_second is None:
        return f"{length:.10g}"
    seconds = length / per_second
    if seconds < 1:
        return f"{seconds:.9f}s"
    sizes = {"D": 86_400, "h": 3_600, "min": 60, "s": 1}
    whole = [unit for unit, size in sizes.items() if seconds % size == 0 and seconds < 1000 * size]
    smaller = [unit for unit, size in sizes.items() if seconds >= size]
    unit = next(iter([*whole, *smaller]))
    return f"{seconds / sizes[unit]:.3g}{unit}"


@dataclass(frozen=True)
class Survey:
    """A table whose columns have roles, declared or guessed."""

    columns: CheckedColumns
    surveyed: dict[str, SurveyedColumn]
    declared: Roles
    roles: Roles
    clock: SurveyedClock
    copies: dict[str, list[str]]
    """The columns that each column is a copy of."""
    static: set[str]
    unused: dict[str, str]
    """Why a column has no role."""

    @property
    def records(self) -> Records:
        """The rows in order."""
        return self.clock.records

    def with_role(self, role: str) -> list[SurveyedColumn]:
        """Return the columns of a role."""
        return [self.surveyed[name] for name in self.roles[role]]

    def free(self) -> list[SurveyedColumn]:
        """Return the columns without a role."""
        return free_columns(self.surveyed, self.roles)

    def sorted(self, column: SurveyedColumn) -> np.ndarray:
        """Return the values of a column in sorted order."""
        return column.values[self.records.order]

    def flag(self, column: SurveyedColumn) -> np.ndarray:
        """Return where a yes/no column is true, in sorted order."""
        return (self.sorted(column) == 1) & (column.kind in AMOUNTS)

    def count_subjects(self, rows: np.ndarray) -> int:
        """Return how many subjects have one of these rows (in sorted order)."""
        subjects = self.records.subject[rows]
        return int(changes(subjects).sum()) if len(subjects) and self.roles["subject"] else 0


def free_columns(surveyed: dict[str, SurveyedColumn], roles: Roles) -> list[SurveyedColumn]:
    """Return the columns without a role."""
    used = {name for names in roles.values() for name in names}
    return [column for name, column in surveyed.items() if name not in used]


def copies_of(columns: list[SurveyedColumn]) -> dict[str, list[str]]:
    """Return for each column those that are copies, by the correlation over shared rows, on a sample of rows."""
    copies: dict[str, list[str]] = {column.name: [] for column in columns}
    if not columns:
        return copies
    count = len(columns[0].values)
    rows = np.linspace(0, count - 1, min(count, SAMPLE, 1 + 10_000_000 // len(columns))).astype(int)
    close = np.abs(_correlation(np.column_stack([column.values[rows] for column in columns]))) > ALIKE
    for i, j in np.argwhere(np.triu(close, 1)).tolist():
        copies[columns[i].name].append(columns[j].name)
        copies[columns[j].name].append(columns[i].name)
    return copies


def _correlation(values: np.ndarray) -> np.ndarray:
    """Correlate every pair of columns over the rows that both have; 0 where these are under ten or constant."""
    present = ~np.isnan(values)
    count = np.maximum(present.sum(0), 1)
    centred = np.where(present, values - np.where(present, values, 0.0).sum(0) / count, 0.0)
    spread = np.sqrt((centred**2).sum(0) / count)
    z = centred / np.where(spread > 0, spread, 1.0)
    weight = present.astype(float)
    both = np.maximum(weight.T @ weight, 1)
    mean = z.T @ weight / both
    variance = (z**2).T @ weight / both - mean**2
    valid = (both >= 10) & (variance > 1e-9) & (variance.T > 1e-9)
    scale = np.sqrt(np.where(valid, variance * variance.T, 1.0))
    return np.where(valid, (z.T @ z / both - mean * mean.T) / scale, 0.0)


def static_columns(surveyed: dict[str, SurveyedColumn], records: Records, roles: Roles) -> set[str]:
    """Return the columns that differ between subjects and never change within one."""
    if not roles["subject"] or changes(records.subject).all():
        return set()
    differ = [column for column in surveyed.values() if column.distinct > 1]
    sorted_values = {column.name: column.values[records.order][:, None] for column in differ}
    return {name for name, values in sorted_values.items() if constant_within_subjects(values, records.subject).all()}
