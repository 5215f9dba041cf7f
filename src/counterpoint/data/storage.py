"""Transitions on disk: our own CSV and Parquet, which give back every number, name and space as it was."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from counterpoint.artifacts import decode, encode, replacing
from counterpoint.data.columns import check_suffix, read_guarded
from counterpoint.data.doses import ActionColumn, Bins
from counterpoint.data.reader import Reader
from counterpoint.data.schema import Column, Fill, Schema
from counterpoint.data.spaces import Box, Discrete
from counterpoint.data.transitions import COLUMNS, Transitions
from counterpoint.errors import CounterpointError

if TYPE_CHECKING:
    import pyarrow as pa

MARK = "# counterpoint "
"""What a CSV of ours begins with; the header follows as JSON."""
FORMAT = 3
SUFFIXES = (".csv", ".parquet")
STRINGS = ("subject_names", "outcome_names")
SCHEMA_CLASSES = {cls.__name__: cls for cls in (ActionColumn, Bins, Box, Column, Discrete, Fill, Reader, Schema)}
"""What a table's header may name."""
MATRICES = ("state", "next_state", "action", "noise")
"""The fields of several columns."""


def write(transitions: Transitions, path: str | Path) -> None:
    """Save every column, the provenance, the action space and the names; the suffix .csv or .parquet picks the format.

    The file appears whole or not at all, and `read` gives back the same numbers bit for bit.
    """
    path = Path(path)
    check_suffix(path, SUFFIXES)
    if not path.parent.is_dir():
        raise CounterpointError(f"there is no folder {path.parent}; create it first")
    try:
        with replacing(path) as draft:
            _write(transitions.to("cpu"), draft, path.suffix.lower())
    except OSError as error:
        raise CounterpointError(f"cannot write {path}: {error.strerror}; check the folder") from None


def _write(transitions: Transitions, path: Path, suffix: str) -> None:
    import pyarrow as pa
    from pyarrow import csv, parquet

    header = _header(transitions)
    fields = [getattr(transitions, name).detach().numpy() for name in COLUMNS]
    arrays = [pa.array(column) for field in fields for column in (field.T if field.ndim == 2 else [field])]
    table = pa.table(arrays, names=_file_columns(header))
    if suffix == ".parquet":
        parquet.write_table(table.replace_schema_metadata({"counterpoint": json.dumps(header)}), path)
    else:
        with path.open("wb") as file:
            file.write(f"{MARK}{json.dumps(header)}\n".encode())
            csv.write_csv(table, file)


def _header(transitions: Transitions) -> dict[str, Any]:
    """What the columns cannot say for themselves."""
    return {
        "format": FORMAT,
        "rows": len(transitions),
        "dtypes": {name: str(getattr(transitions, name).dtype).removeprefix("torch.") for name in COLUMNS},
        "schema": encode(transitions.schema),
        **{name: getattr(transitions, name) for name in STRINGS},
        "noise_size": transitions.noise.shape[1],
    }


def _file_columns(header: dict[str, Any]) -> list[str]:
    return [f"{name}:{part}" if part is not None else name for name in COLUMNS for part in _parts(header, name)]


def _parts(header: dict[str, Any], name: str) -> list[Any]:
    """The columns of one field; a field of one number a row is [None]."""
    noise = list(range(header["noise_size"]))
    states = [column["name"] for column in header["schema"]["states"]]
    names = {"state": states, "next_state": states, "action": header["schema"]["action_names"]}
    return list(names.get(name, noise if name == "noise" else [None]))


def read(path: str | Path) -> Transitions:
    """The transitions that `write` saved."""
    path = Path(path)
    header, table = read_guarded(path, {".csv": lambda: _read_csv(path), ".parquet": lambda: _read_parquet(path)})
    if table.column_names != _file_columns(header) or len(table) != header["rows"]:
        raise CounterpointError(f"{path} was changed after it was written: rows or columns differ; write it again")
    return read_guarded(path, dict.fromkeys(SUFFIXES, lambda: _restore(header, table)))


def _parse_header(path: Path, text: str | bytes | None) -> dict[str, Any]:
    if text is None:
        raise CounterpointError(
            f"{path} was not written by counterpoint; load it with from_dataframe or the command's column flags,"
            " which say what each column is"
        )
    header = json.loads(text)
    if header["format"] != FORMAT:
        raise CounterpointError(f"{path} has format {header['format']}, this version reads {FORMAT}; write it again")
    return header


def _read_parquet(path: Path) -> "tuple[dict[str, Any], pa.Table]":
    from pyarrow import parquet

    table = parquet.read_table(path)
    return _parse_header(path, (table.schema.metadata or {}).get(b"counterpoint")), table


def _read_csv(path: Path) -> "tuple[dict[str, Any], pa.Table]":
    import pyarrow as pa
    from pyarrow import csv

    with path.open("rb") as file:
        marked = file.read(len(MARK)) == MARK.encode()
        header = _parse_header(path, file.readline() if marked else None)
        kinds = [header["dtypes"][name] for name in COLUMNS for _ in _parts(header, name)]
        types = {name: pa.type_for_alias(kind) for name, kind in zip(_file_columns(header), kinds, strict=True)}
        options = csv.ConvertOptions(column_types=types, null_values=[])
        return header, csv.read_csv(file, csv.ReadOptions(use_threads=False), convert_options=options)


def _restore(header: dict[str, Any], table: "pa.Table") -> Transitions:
    columns = iter(table.columns)
    fields: dict[str, Any] = {}
    for name in COLUMNS:
        parts = [next(columns).to_numpy() for _ in _parts(header, name)]
        kind = getattr(torch, header["dtypes"][name])
        stacked = np.stack(parts, -1) if parts else np.zeros((header["rows"], 0))
        fields[name] = torch.from_numpy(stacked if name in MATRICES else parts[0].copy()).to(kind)
    fields |= {name: tuple(header[name]) for name in STRINGS}
    return Transitions(**fields, schema=decode(header["schema"], SCHEMA_CLASSES))
