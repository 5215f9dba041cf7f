"""Open a user's table (CSV, Parquet, pandas or polars) as typed columns that are checked when they are read.

Error messages name rows and columns; they never show a value, because values are patients' data.
"""

import difflib
import gzip
import os
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

import numpy as np

from counterpoint.core.errors import CounterpointError
from counterpoint.data.layout import DateOrder
from counterpoint.data.tables.dates import Times, moments_of

if TYPE_CHECKING:
    import narwhals as nw
    import pyarrow as pa

Read = TypeVar("Read")
TEXT_SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
LARGEST = float(np.finfo(np.float32).max)
"""Larger numbers are infinite in single precision."""
WHOLE = 2.0**53
"""Not every larger whole number is one in double precision."""
WORDS = {
    **dict.fromkeys(("yes", "y", "true", "t", "1", "died", "dead", "deceased", "expired"), True),
    **dict.fromkeys(("no", "n", "false", "f", "0", "alive", "survived", "lived"), False),
}
"""Words for true and false."""
CHUNK = 2**20
"""Bytes that are decompressed at once."""
SMALL_TABLE = 2**26
"""Bytes that any compressed table may expand to."""
MAX_RATIO = 100
"""Expansion of a larger table; text is compressed five to thirty times."""
MAX_BYTES = 2**32
"""Bytes beyond which no compressed table is read."""


class DataFrameLike(Protocol):
    """A pandas or polars DataFrame."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def columns(self) -> Any: ...


Table = str | os.PathLike[str] | DataFrameLike
"""A user's table: the path of a CSV, TSV or Parquet file, or a DataFrame."""


def open_table(
    table: Table, names: Sequence[str], text: Sequence[str] = (), encoding: str = "utf-8"
) -> "CheckedColumns":
    """Open a DataFrame or a file once.

    Args:
        table: The table.
        names: Columns that must be there exactly once; empty names are skipped.
        text: Columns of a text file that are kept as text, such as ids.
        encoding: Encoding of a text file.
    """
    import narwhals as nw

    native: Any = table
    if isinstance(table, str | os.PathLike):
        native = load_file(Path(table), [name for name in text if name], encoding)
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
        if name:
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
    similar = [column for column in columns if close and column.lower() == close[0]]
    hint = f"did you mean '{similar[0]}'?" if similar else f"the table has {shown}"
    raise CounterpointError(f"column '{name}' is not in the table; {hint}")


@dataclass(frozen=True)
class CheckedColumns:
    """Columns by name, checked when they are read. Where rows are `needed`, only those must have a value."""

    frame: "nw.DataFrame[Any]"

    def __len__(self) -> int:
        return len(self.frame)

    def check(self, name: str) -> None:
        """Refuse a column that is not there, or there twice."""
        _check_column(name, list(self.frame.columns))

    def arrow(self, name: str) -> "pa.Array":
        """Return the column as one Arrow array; a mixture of types is refused."""
        import pyarrow as pa

        try:
            column = self.frame.get_column(name).to_arrow()
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            _refuse_mixture(name, self.frame.get_column(name).to_list())
        except (pa.ArrowException, NotImplementedError, TypeError, OverflowError):
            _refuse_kind(name, str(self.frame.get_column(name).dtype))
        column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        if _is_text(column.type):
            _check_text(name, column)
        return column

    def with_zeros(self, name: str) -> "CheckedColumns":
        """Return the table with a column of zeros, which replaces one of that name."""
        import narwhals as nw

        return CheckedColumns(self.frame.with_columns(nw.lit(0.0).alias(name)))

    def holds_labels(self, name: str) -> bool:
        """Return whether the column is text or categorical."""
        return _is_text(self.arrow(name).type) or self._dictionary(name) is not None

    def holds_stray_text(self, name: str) -> bool:
        """Return whether the column is text although at least half of its distinct values are numbers."""
        column = self.arrow(name)
        if not _is_text(column.type):
            return False
        labels = [label for label in column.unique().to_pylist() if label]
        return 2 * sum(map(_is_number, labels)) >= max(len(labels), 1)

    def categories(self, name: str) -> list[str] | None:
        """Return the declared categories of an ordered categorical column; None for every other column."""
        categories = self._dictionary(name)
        return [_label(name, label) for label in categories] if categories else None

    def _dictionary(self, name: str) -> list[Any] | None:
        """Return the categories in their order, [] where they have none, None where the column is not categorical."""
        import narwhals as nw
        import pyarrow as pa

        column = self.frame.get_column(name)
        if isinstance(column.dtype, nw.Enum):
            return list(column.dtype.categories)
        kind: Any = getattr(column.to_native(), "type", None)
        if isinstance(kind, pa.DictionaryType):
            chunks = column.to_native().unify_dictionaries().chunks
            return chunks[0].dictionary.to_pylist() if kind.ordered and chunks else []
        return [] if isinstance(column.dtype, nw.Categorical) else None

    def numbers(self, name: str, needed: np.ndarray | None = None) -> np.ndarray:
        """Return the column in double precision; refuse missing values in needed rows."""
        values = self.measured(name)
        check_missing(name, _among(np.isnan(values), needed))
        return values

    def measured(self, name: str) -> np.ndarray:
        """Return the column in double precision, NaN where a value is missing; refuse infinite and too large values."""
        column = self.arrow(name)
        if not _is_numeric(column.type):
            _refuse_text(name, column.to_pylist())
        values = _float64(column)
        _check_finite(name, np.abs(values) > LARGEST)
        _check_whole(name, np.abs(values) > WHOLE, str(column.type))
        return values

    def times(self, name: str, dates: DateOrder | None = None, zone: str = "", flags: bool = True) -> Times:
        """Return numbers as they are, dates and times in nanoseconds, so that rounding merges no two moments.

        `dates`, `zone` and `flags` are those of `moments_of`, for dates that are written as text.
        """
        import pyarrow as pa

        column = self.arrow(name)
        order = None
        check_missing(name, column.is_null(nan_is_null=True).to_numpy(zero_copy_only=False))
        if _is_text(column.type):
            moments, order = moments_of(name, column.to_pylist(), dates, zone, flags)
            column = pa.array(moments.to_numpy())
            check_missing(name, column.is_null().to_numpy(zero_copy_only=False))
        if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
            exact = _nanoseconds(name, column)
            return Times(exact, 1e9, order)
        if pa.types.is_duration(column.type):
            return Times(column.cast(pa.duration("ns"), safe=False).cast(pa.int64()).to_numpy(), 1e9)
        if pa.types.is_integer(column.type):
            return Times(column.to_numpy(), None)
        if not _is_numeric(column.type):
            raise CounterpointError(
                f"column '{name}' holds {column.type}; convert it to numbers or dates before loading"
            )
        values = _float64(column)
        _check_finite(name, np.isinf(values))
        return Times(values, None)

    def flags(self, name: str) -> np.ndarray:
        """Return a column of booleans, of 0 and 1, or of words such as yes and no, died and alive."""
        if _is_text(self.arrow(name).type):
            return self._words(name)
        values = self.numbers(name)
        wrong = np.flatnonzero((values != 0) & (values != 1))
        if len(wrong):
            raise CounterpointError(
                f"column '{name}' is not true/false at row {wrong[0]} ({len(wrong)} such rows); use booleans or 0 and 1"
            )
        return values == 1

    def _words(self, name: str) -> np.ndarray:
        codes, labels = self.codes(name)
        meanings = [WORDS.get(label.strip().lower()) for label in labels]
        wrong = np.isin(codes, [i for i, meaning in enumerate(meanings) if meaning is None])
        if wrong.any():
            raise CounterpointError(
                f"column '{name}' is not true/false at row {wrong.argmax()} ({wrong.sum()} such rows);"
                " use yes and no, true and false, died and alive, or 1 and 0"
            )
        return np.array(meanings, dtype=bool)[codes]

    def codes(self, name: str, needed: np.ndarray | None = None) -> tuple[np.ndarray, list[str]]:
        """Return codes of the labels in sorted order, and the labels; labels outside the needed rows are left out."""
        import pyarrow as pa

        column = self.arrow(name)
        if pa.types.is_nested(column.type):
            _refuse_kind(name, str(column.type))
        encoded = column.dictionary_encode()
        labels = encoded.dictionary.to_pylist()
        indices = encoded.indices.fill_null(-1).to_numpy()
        blank = np.array([str(label).strip() == "" or label != label for label in labels] + [True])
        check_missing(name, _among(blank[indices], needed))  # Index -1 is the last.
        used = np.unique(indices if needed is None else indices[needed])
        order = sorted(used.tolist(), key=labels.__getitem__)
        rank = np.zeros(len(labels) + 1, dtype=np.int64)
        rank[order] = np.arange(len(order))
        return rank[indices], [_label(name, labels[i]) for i in order]

    def present(self, name: str) -> np.ndarray:
        """Return which rows have a value."""
        from pyarrow import compute

        column = self.arrow(name)
        present = ~column.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
        if not _is_text(column.type):
            return present
        length = compute.call_function("utf8_length", [column]).fill_null(0)
        return present & (length.to_numpy(zero_copy_only=False) > 0)

    def coded(self, name: str, levels: list[str]) -> np.ndarray:
        """Return each row's index among the levels, NaN where a value is missing."""
        present = self.present(name)
        return np.where(present, self.places(name, levels, present).astype(float), np.nan)

    def places(self, name: str, labels: list[str], needed: np.ndarray) -> np.ndarray:
        """Return each row's index among the labels, -1 for other labels, which needed rows must not have."""
        codes, seen = self.codes(name, needed)
        place = {str(label): i for i, label in enumerate(labels)}
        codes = np.array([*(place.get(label, -1) for label in seen), -1])[codes]
        _check_labels(name, codes, needed, len(labels))
        return codes


def _label(name: str, value: Any) -> str:
    if isinstance(value, bytes):
        raise CounterpointError(f"column '{name}' holds bytes, not text; decode it, or pass the file's encoding")
    whole = isinstance(value, bool) or (isinstance(value, float) and value.is_integer())
    return str(int(value)) if whole else str(value)  # 1 as a float or as true is still 1.


def _check_text(name: str, column: "pa.Array") -> None:
    import pyarrow as pa

    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        raise CounterpointError(f"column '{name}' holds bytes that are no text; write the file again") from None


def _nanoseconds(name: str, column: "pa.Array") -> np.ndarray:
    import pyarrow as pa

    try:
        return column.cast(pa.timestamp("ns")).cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid:
        raise CounterpointError(
            f"column '{name}' holds dates before 1678 or after 2262, perhaps placeholders; correct or drop those rows"
        ) from None


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", "").replace(" ", ""))
    except ValueError:
        return False
    return True


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


def _check_labels(name: str, codes: np.ndarray, needed: np.ndarray, count: int) -> None:
    """Refuse an unknown label. The known labels may come from patients' cells, so the message does not show them."""
    unknown = np.flatnonzero((codes < 0) & needed)
    if len(unknown):
        raise CounterpointError(
            f"column '{name}' at row {unknown[0]} is none of the {count} known labels"
            f" ({len(unknown)} such rows); correct the rows or add the label"
        )


def check_missing(name: str, missing: np.ndarray) -> None:
    """Refuse missing values; the message names the first row and their number."""
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


def _check_whole(name: str, large: np.ndarray, kind: str) -> None:
    """Refuse integers whose last digits double precision would lose: ids, hashes, nanoseconds."""
    if large.any() and "int" in kind:
        raise CounterpointError(
            f"column '{name}' has {large.sum()} whole numbers beyond 2**53 (first at row {large.argmax()}), which lose"
            " their last digits; subtract an offset, or leave the column out"
        )


def _refuse_text(name: str, values: list[Any]) -> NoReturn:
    """Raise an error that names the first row which is not a number, without showing it."""
    for row, value in enumerate(values):
        try:
            float(0 if value is None else value)
        except (TypeError, ValueError):
            raise CounterpointError(
                f"column '{name}' is not a number at row {row}; encode it as numbers or leave the column out"
            ) from None
    raise CounterpointError(f"column '{name}' holds numbers as text; convert it to numbers before loading")


def _refuse_kind(name: str, kind: str) -> NoReturn:
    raise CounterpointError(f"column '{name}' holds {kind}; convert it to numbers, text or dates before loading")


def _refuse_mixture(name: str, values: list[Any]) -> NoReturn:
    """Raise an error that names the first row which is text among numbers, or a number among text."""
    text = [isinstance(value, str) for value in values]
    row = text.index(not text[0]) if (not text[0]) in text else 0
    raise CounterpointError(f"column '{name}' mixes types (first at row {row}); make it all numbers or all text")


def load_file(path: Path, text: Sequence[str] = (), encoding: str = "utf-8") -> "pa.Table":
    """Read a user's file; the columns in `text` stay as they are written, so that 007 is not 7."""
    from pyarrow import parquet

    return read_guarded(
        path,
        {
            **dict.fromkeys(TEXT_SUFFIXES, lambda: _read_text(path, text, encoding)),
            ".parquet": lambda: parquet.read_table(path),
        },
        encoding,
    )


def _read_text(path: Path, text: Sequence[str], encoding: str) -> "pa.Table":
    """Read a text file, compressed or not; its first line tells whether commas, semicolons or tabs separate columns."""
    import pyarrow as pa
    from pyarrow import csv

    head = _head(path, encoding)
    delimiter = "\t" if kind_of(path).startswith(".tsv") else max(",;\t", key=head[0].count)
    # Only without threads does a malformed row come with its number.
    reading = csv.ReadOptions(use_threads=False, encoding=encoding)
    comma = delimiter == ";" and any(re.search(r"(^|;)-?\d+,\d+(;|$)", line) for line in head[1:])
    converting = csv.ConvertOptions(
        strings_can_be_null=True, column_types=dict.fromkeys(text, pa.string()), decimal_point="," if comma else "."
    )
    with pa.input_stream(path) as file:
        table = csv.read_csv(file, reading, csv.ParseOptions(delimiter=delimiter), converting)
    return table.rename_columns(list(table.column_names))  # Here, so that names in another encoding are noticed.


def _head(path: Path, encoding: str) -> list[str]:
    """Return the first lines; at least one, which may be empty."""
    import pyarrow as pa

    with pa.input_stream(path) as file:
        first = file.read(65_536)
    return first.decode(encoding, errors="ignore").splitlines()[:50] or [""]


def read_guarded(path: Path, readers: Mapping[str, Callable[[], Read]], encoding: str = "utf-8") -> Read:
    """Call the reader for the suffix. A library's messages may quote patients' data, so they are not passed on."""
    import pyarrow as pa

    check_suffix(path, list(readers))
    check_file(path)
    try:
        return readers[kind_of(path)]()
    except CounterpointError:
        raise
    except (pa.ArrowException, ValueError, KeyError, LookupError, RecursionError) as error:
        if "UTF8" in str(error) or (isinstance(error, UnicodeError | LookupError) and not isinstance(error, KeyError)):
            raise CounterpointError(
                f"{path} is not text in {encoding}; pass encoding='latin-1' or whatever it was written in"
            ) from None
        place = re.search(r"Row #(\d+)", str(error))
        where = f" (line {place[1]})" if place else ""
        raise CounterpointError(
            f"{path} is not a readable {kind_of(path)[1:]} file{where}; write it again, comma-separated if CSV"
        ) from None
    except OSError as error:
        raise CounterpointError(f"cannot read {path}: {error.strerror or 'damaged file'}; check the file") from None


def kind_of(path: Path) -> str:
    """Return the suffix of a file, such as .csv or .csv.gz."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return "".join(suffixes[-2:]) if suffixes[-1:] == [".gz"] else path.suffix.lower()


def check_suffix(path: Path, suffixes: Sequence[str]) -> None:
    """Refuse a file whose suffix is none of `suffixes`."""
    if kind_of(path) not in suffixes:
        raise CounterpointError(f"{path} ends in '{kind_of(path)}'; name it {' or '.join(suffixes)}")


def check_file(path: Path) -> None:
    """Refuse a path that is not a regular file, and a compressed file that would fill the memory."""
    if not path.exists():
        raise CounterpointError(f"there is no file {path}; check the path")
    check_regular(path)
    if path.suffix.lower() == ".gz":
        _check_unpacked(path)


def check_regular(path: Path) -> None:
    """Refuse a pipe, a device or a folder; a path that does not exist is accepted."""
    if path.exists() and not path.is_file():
        raise CounterpointError(f"{path} is no regular file but a pipe, a device or a folder; save it as a file")


def _check_unpacked(path: Path) -> None:
    """Count the decompressed bytes; a damaged file is left to its reader."""
    limit = min(MAX_BYTES, max(SMALL_TABLE, MAX_RATIO * path.stat().st_size))
    size = 0
    try:
        with gzip.open(path) as file:
            while size <= limit and (chunk := file.read(CHUNK)):
                size += len(chunk)
    except (OSError, EOFError, zlib.error):
        return
    if size > limit:
        raise CounterpointError(
            f"{path} unpacks to more than {limit / 1e6:,.0f} MB, which is too much for a packed table of its size;"
            " unpack it, and give the file itself if that is right"
        )
