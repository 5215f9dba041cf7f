"""Store transitions as CSV or Parquet; every number, name and space is read back exactly."""

import json
import math
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from counterpoint.core.artifacts import decode, digest, replacing
from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.settings import checked
from counterpoint.data.stored_format import (
    MARK,
    SCHEMA_CLASSES,
    STRINGS,
    arrow_table,
    changed,
    field_hash,
    file_columns,
    header_of,
    parse_header,
    parts,
    tensors,
)
from counterpoint.data.tables.columns import check_suffix, kind_of, read_guarded
from counterpoint.data.transitions import COLUMNS, Transitions, gather, new_room

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES = (".csv", ".parquet")
GROUP = 16_384
"""Rows that are written, hashed and read at once."""


@checked
def write(transitions: Transitions, path: str | Path) -> None:
    """Write transitions to a .csv or .parquet file.

    The file is written completely or not at all, and `read` returns the same numbers bit for bit.
    """
    with writing(path) as put:
        put(transitions)


@contextmanager
def writing(path: str | Path) -> Iterator[Callable[[Transitions], None]]:
    """Write a table piece by piece; the file appears when the block ends."""
    path = Path(path)
    check_suffix(path, SUFFIXES)
    if not path.parent.is_dir():
        raise CounterpointError(f"there is no folder {path.parent}; create it first")
    with replacing(path) as draft, _WRITERS[kind_of(path)](draft) as writer:
        yield writer.put
        writer.finish()


class _Writer(ABC):
    """Base class of writers: groups of rows, and at the end a header with the hash of each."""

    def __init__(self, draft: Path) -> None:
        self.draft, self.header, self.groups = draft, {}, []
        self.file: Any = None

    @abstractmethod
    def open(self, schema: "pa.Schema") -> Any:
        """Open a writer of Arrow tables."""

    @abstractmethod
    def close(self, header: str) -> None:
        """Write the header and close the file."""

    def __enter__(self) -> "_Writer":
        return self

    def __exit__(self, *_: object) -> None:
        if self.file is not None:
            self.file.close()

    def put(self, rows: Transitions) -> None:
        header = header_of(rows)
        require(self.header in ({}, header), "the pieces of a table differ in their columns or names; make them alike")
        self.header = header
        for start in range(0, len(rows), GROUP):
            self._put_group(rows[start : start + GROUP].to("cpu"))
        if self.file is None:
            self.file = self.open(arrow_table(rows[:0].to("cpu"), header).schema)

    def _put_group(self, rows: Transitions) -> None:
        table = arrow_table(rows, self.header)
        self.file = self.file or self.open(table.schema)
        self.file.write_table(table)
        self.groups.append([len(rows), *(field_hash(getattr(rows, name).detach()) for name in COLUMNS)])

    def finish(self) -> None:
        header = {**self.header, "groups": self.groups}
        self.close(json.dumps({**header, "hash": digest(header)}))


class _ParquetWriter(_Writer):
    def open(self, schema: "pa.Schema") -> Any:
        from pyarrow import parquet

        # Dictionaries and statistics of measurements are slow, and not used.
        return parquet.ParquetWriter(self.draft, schema, use_dictionary=False, write_statistics=False)

    def close(self, header: str) -> None:
        self.file.add_key_value_metadata({"counterpoint": header})
        self.file.close()


class _CSVWriter(_Writer):
    """Rows are written to a second file first, because the header precedes them and is known last."""

    @property
    def rows(self) -> Path:
        return self.draft.with_suffix(".rows")

    def open(self, schema: "pa.Schema") -> Any:
        from pyarrow import csv

        return csv.CSVWriter(self.rows, schema)

    def close(self, header: str) -> None:
        self.file.close()
        with self.draft.open("wb") as file, self.rows.open("rb") as rows:
            file.write(f"{MARK}{header}\n".encode())
            shutil.copyfileobj(rows, file)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self.rows.unlink(missing_ok=True)


_WRITERS = {".parquet": _ParquetWriter, ".csv": _CSVWriter}


@checked
def read(path: str | Path, mapped: bool = False) -> Transitions:
    """Read the transitions that `write` wrote, and check their hashes.

    With `mapped` the numbers are kept in a memory-mapped temporary file, for tables larger than memory.
    """
    stored = Stored(path)
    return gather(stored.pieces(), len(stored), _in_a_file(stored.path.parent) if mapped else new_room)


class Stored:
    """Transitions on disk: rows are read when they are indexed, and checked against the hash of their group."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.header, self._group = read_guarded(
            self.path, {".csv": lambda: _open_csv(self.path), ".parquet": lambda: _open_parquet(self.path)}
        )
        self.schema = decode(self.header["schema"], SCHEMA_CLASSES)
        self.layout = decode(self.header["layout"], SCHEMA_CLASSES)
        self._starts = [0, *accumulate(size for size, *_ in self.header["groups"])]

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, rows: slice) -> Transitions:
        """Read the rows from `rows.start` to `rows.stop`."""
        start, stop, _ = rows.indices(len(self))
        first, last = bisect_right(self._starts, start) - 1, bisect_left(self._starts, stop)
        if start >= stop:
            return self._empty()
        groups = (self._read(i) for i in range(first, last))
        return gather(groups, self._starts[last] - self._starts[first])[
            start - self._starts[first] : stop - self._starts[first]
        ]

    def pieces(self) -> Iterator[Transitions]:
        """Read all rows, group by group."""
        for i in range(len(self.header["groups"])):
            yield self._read(i)
        if not self.header["groups"]:
            yield self._empty()

    def field(self, name: str) -> Tensor:
        """Read one field of all rows."""
        parts = [self._fields(i, [name])[name] for i in range(len(self.header["groups"]))]
        return torch.cat(parts) if parts else getattr(self._empty(), name)

    def _read(self, group: int) -> Transitions:
        return self._table(self._fields(group, COLUMNS))

    def _empty(self) -> Transitions:
        return self._table(tensors(self.header, COLUMNS, {}, 0))

    def _table(self, fields: dict[str, Tensor]) -> Transitions:
        names: dict[str, Any] = {name: tuple(self.header[name]) for name in STRINGS}
        return Transitions(**fields, **names, schema=self.schema, layout=self.layout)

    def _fields(self, group: int, names: Sequence[str]) -> dict[str, Tensor]:
        size, *hashes = self.header["groups"][group]
        file_names = file_columns(self.header, names)
        columns = read_guarded(self.path, dict.fromkeys(SUFFIXES, lambda: self._group(group, file_names)))
        fields = read_guarded(self.path, dict.fromkeys(SUFFIXES, lambda: tensors(self.header, names, columns, size)))
        expected = dict(zip(COLUMNS, hashes, strict=True))
        require(all(field_hash(fields[name]) == expected[name] for name in names), changed(self.path, "numbers"))
        return fields


def _in_a_file(folder: Path) -> Callable[[Tensor, int], Tensor]:
    """Return an allocator of mapped memory in unnamed files, which the system deletes after use."""

    def room(like: Tensor, rows: int) -> Tensor:
        shape, kind = (rows, *like.shape[1:]), like.numpy().dtype
        if 0 in shape:
            return new_room(like, rows)
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            try:
                os.posix_fallocate(file.fileno(), 0, math.prod(shape) * kind.itemsize)
            except OSError as error:
                raise CounterpointError(f"cannot map a table in {folder}: {error.strerror}; free some disk") from None
            return torch.from_numpy(np.memmap(file, kind, "r+", shape=shape))

    return room


Read = Callable[[int, list[str]], "dict[str, np.ndarray]"]
"""Reads some columns of a group of rows."""


def _open_parquet(path: Path) -> tuple[dict[str, Any], Read]:
    from pyarrow import parquet

    file = parquet.ParquetFile(path)
    header = parse_header(path, (file.metadata.metadata or {}).get(b"counterpoint"))
    sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    _check_shape(path, header, file.schema_arrow.names, sizes)

    def group(number: int, names: list[str]) -> dict[str, np.ndarray]:
        table = file.read_row_group(number, columns=names)
        return {name: table[name].to_numpy() for name in names}

    return header, group


def _open_csv(path: Path) -> tuple[dict[str, Any], Read]:
    import pyarrow as pa
    from pyarrow import csv

    with path.open("rb") as file:
        marked = file.read(len(MARK)) == MARK.encode()
        header = parse_header(path, file.readline() if marked else None)
        kinds = [header["dtypes"][name] for name in COLUMNS for _ in parts(header, name)]
        types = {name: pa.type_for_alias(kind) for name, kind in zip(file_columns(header), kinds, strict=True)}
        options = csv.ConvertOptions(column_types=types, null_values=[])
        table = csv.read_csv(file, csv.ReadOptions(use_threads=False), convert_options=options)
    sizes = [size for size, *_ in header["groups"]]
    _check_shape(path, header, table.column_names, sizes if sum(sizes) == len(table) else [len(table)])
    starts = [0, *accumulate(sizes)]

    def group(number: int, names: list[str]) -> dict[str, np.ndarray]:
        rows = table.slice(starts[number], sizes[number])
        return {name: rows[name].to_numpy() for name in names}

    return header, group


def _check_shape(path: Path, header: dict[str, Any], names: list[str], sizes: list[int]) -> None:
    expected = [size for size, *_ in header["groups"]]
    require(names == file_columns(header) and sizes == expected, changed(path, "rows or columns"))
