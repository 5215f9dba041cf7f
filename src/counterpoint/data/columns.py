"""A user's table, opened: CSV, Parquet, pandas or polars become typed columns, each checked as it is taken.

No error message shows a value of a state column: rows and columns are named, patients' data are not.
"""

import difflib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from counterpoint.errors import CounterpointError

if TYPE_CHECKING:
    import narwhals as nw
    import pyarrow as pa


def open_table(table: Any, names: Sequence[str | None]) -> "CheckedColumns":
    """The table behind a DataFrame or a path, with the named columns known to be there once."""
    import narwhals as nw

    native = _load(Path(table)) if isinstance(table, str | os.PathLike) else table
    try:
        frame = nw.from_native(native, eager_only=True)
    except TypeError:
        raise CounterpointError(
            f"cannot read a table from {type(table).__name__}; pass a pandas or polars DataFrame (collected, not lazy)"
            " or the path of a CSV or Parquet file"
        ) from None
    except nw.exceptions.DuplicateError:
        raise CounterpointError("the table has two columns of one name; rename or drop one") from None
    for name in names:
        if name is not None:
            _check_column(name, list(frame.columns))
    if not len(frame):
        raise CounterpointError("the table has no rows; pass a table with at least one row")
    return CheckedColumns(frame)


def _check_column(name: str, columns: list[str]) -> None:
    if name in columns:
        if columns.count(name) > 1:
            raise CounterpointError(f"column '{name}' occurs {columns.count(name)} times; rename or drop the others")
        return
    columns = [str(column) for column in columns]
    close = difflib.get_close_matches(name.lower(), [column.lower() for column in columns], 1)
    shown = ", ".join(columns[:12]) + (", …" if len(columns) > 12 else "")
    found = [column for column in columns if close and column.lower() == close[0]]
    hint = f"did you mean '{found[0]}'?" if found else f"the table has {shown}"
    raise CounterpointError(f"column '{name}' is not in the table; {hint}")


@dataclass(frozen=True)
class CheckedColumns:
    """Columns by name, each checked as it is taken; only `needed` rows must have a value."""

    frame: "nw.DataFrame[Any]"

    def __len__(self) -> int:
        return len(self.frame)

    def arrow(self, name: str) -> "pa.Array":
        import pyarrow as pa

        try:
            column = self.frame.get_column(name).to_arrow()
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            _refuse_mixture(name, self.frame.get_column(name).to_list())
        return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column

    def holds_labels(self, name: str) -> bool:
        import pyarrow as pa

        kind = self.arrow(name).type
        return pa.types.is_dictionary(kind) or _is_text(kind)

    def numbers(self, name: str, needed: np.ndarray | None = None) -> np.ndarray:
        """The column in single precision."""
        column = self.arrow(name)
        if not _is_numeric(column.type):
            _refuse_text(name, column.to_pylist())
        values = _float64(column)
        check_missing(name, _among(np.isnan(values), needed))
        with np.errstate(over="ignore"):
            values = values.astype(np.float32)
        _check_finite(name, np.isinf(values))
        return values

    def times(self, name: str) -> np.ndarray:
        """Numbers as they are, dates and times as integers, so that no two moments become one by rounding."""
        import pyarrow as pa

        column = self.arrow(name)
        check_missing(name, column.is_null(nan_is_null=True).to_numpy(zero_copy_only=False))
        if pa.types.is_temporal(column.type):
            return column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64()).to_numpy()
        if pa.types.is_integer(column.type):
            return column.to_numpy()
        if not _is_numeric(column.type):
            raise CounterpointError(
                f"column '{name}' holds {column.type}; convert it to numbers or dates before loading"
            )
        values = _float64(column)
        _check_finite(name, np.isinf(values))
        return values

    def flags(self, name: str) -> np.ndarray:
        """Booleans, or numbers that are 0 or 1."""
        values = self.numbers(name)
        wrong = np.flatnonzero((values != 0) & (values != 1))
        if len(wrong):
            raise CounterpointError(
                f"column '{name}' is not true/false at row {wrong[0]} ({len(wrong)} such rows); use booleans or 0 and 1"
            )
        return values == 1

    def codes(self, name: str, needed: np.ndarray | None = None) -> tuple[np.ndarray, list[str]]:
        """Labels as numbers in their sorted order, and the labels as text; a label on dropped rows only is none."""
        import pyarrow as pa

        column = self.arrow(name)
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        encoded = column.dictionary_encode()
        labels = encoded.dictionary.to_pylist()
        indices = encoded.indices.fill_null(-1).to_numpy()
        blank = np.array([label == "" or label != label for label in labels] + [True])  # The last is index -1.
        check_missing(name, _among(blank[indices], needed))
        used = np.unique(indices if needed is None else indices[needed])
        order = sorted(used.tolist(), key=labels.__getitem__)
        rank = np.zeros(len(labels) + 1, dtype=np.int64)
        rank[order] = np.arange(len(order))
        return rank[indices], [str(labels[i]) for i in order]

    def places(self, name: str, labels: list[str], needed: np.ndarray) -> tuple[np.ndarray, list[str]]:
        """Each row's place among the given labels, and the labels."""
        codes, seen = self.codes(name, needed)
        place = {str(label): i for i, label in enumerate(labels)}
        codes = np.array([place.get(label, -1) for label in seen])[codes]
        _check_labels(name, codes, needed, labels)
        return codes, labels


def _is_text(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _is_numeric(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    checks = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean, pa.types.is_null)
    return any(check(kind) for check in checks)


def _float64(column: "pa.Array") -> np.ndarray:
    import pyarrow as pa

    return column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)


def _among(rows: np.ndarray, needed: np.ndarray | None) -> np.ndarray:
    return rows if needed is None else rows & needed


def quoted(names: Sequence[str]) -> str:
    return ("columns " if len(names) > 1 else "column ") + ", ".join(f"'{name}'" for name in names)


def _check_labels(name: str, codes: np.ndarray, needed: np.ndarray, labels: list[str]) -> None:
    unknown = np.flatnonzero((codes < 0) & needed)
    if len(unknown):
        raise CounterpointError(
            f"column '{name}' at row {unknown[0]} is none of the labels {', '.join(map(str, labels))}"
            f" ({len(unknown)} such rows); correct the rows or add the label"
        )


def check_missing(name: str, missing: np.ndarray) -> None:
    if missing.any():
        count = f"{missing.sum()} missing value{'s' if missing.sum() > 1 else ''}"
        raise CounterpointError(
            f"column '{name}' has {count} (first at row {missing.argmax()}); fill or drop them before loading"
        )


def _check_finite(name: str, infinite: np.ndarray) -> None:
    if infinite.any():
        raise CounterpointError(
            f"column '{name}' has {infinite.sum()} infinite or too large values (first at row {infinite.argmax()});"
            " replace or drop them before loading"
        )


def _refuse_text(name: str, values: list[Any]) -> NoReturn:
    """Name the first row that is no number, without showing it."""
    for row, value in enumerate(values):
        try:
            float(0 if value is None else value)
        except (TypeError, ValueError):
            raise CounterpointError(
                f"column '{name}' is not a number at row {row}; encode it as numbers or leave the column out"
            ) from None
    raise CounterpointError(f"column '{name}' holds numbers as text; convert it to numbers before loading")


def _refuse_mixture(name: str, values: list[Any]) -> NoReturn:
    """Name the first row that is text among numbers, or the other way round."""
    text = [isinstance(value, str) for value in values]
    row = text.index(not text[0]) if (not text[0]) in text else 0
    raise CounterpointError(f"column '{name}' mixes types (first at row {row}); make it all numbers or all text")


def _load(path: Path) -> "pa.Table":
    """A user's file."""
    from pyarrow import csv, parquet

    blanks = csv.ConvertOptions(strings_can_be_null=True)
    one = csv.ReadOptions(use_threads=False)  # Only then does a malformed row come with its number.
    readers = {
        ".csv": lambda: csv.read_csv(path, one, convert_options=blanks),
        ".parquet": lambda: parquet.read_table(path),
    }
    return read_guarded(path, readers)


def read_guarded(path: Path, readers: dict[str, Callable[[], Any]]) -> Any:
    """Call the reader for the suffix; a library's words about a bad file may quote patients and are not passed on."""
    import pyarrow as pa

    check_suffix(path)
    if not path.is_file():
        raise CounterpointError(f"there is no file {path}; check the path")
    try:
        return readers[path.suffix.lower()]()
    except CounterpointError:
        raise
    except (pa.ArrowException, ValueError, KeyError) as error:
        place = re.search(r"Row #(\d+)", str(error))
        where = f" (line {place[1]})" if place else ""
        raise CounterpointError(
            f"{path} is not a readable {path.suffix[1:].lower()} file{where}; write it again, comma-separated if CSV"
        ) from None
    except OSError as error:
        raise CounterpointError(f"cannot read {path}: {error.strerror or 'damaged file'}; check the file") from None


def check_suffix(path: Path) -> None:
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise CounterpointError(f"{path} ends in '{path.suffix}'; name it .csv or .parquet")
