"""File format of stored transitions: column names, a JSON header, and a hash of every field."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from counterpoint.core.artifacts import digest, encode
from counterpoint.core.errors import CounterpointError, require
from counterpoint.data.doses import ActionColumn, Bins
from counterpoint.data.knowledge import Knowledge, Recursion
from counterpoint.data.layout import Layout
from counterpoint.data.schema import Column, Fill, Schema
from counterpoint.data.spaces import Box, Discrete
from counterpoint.data.transitions import COLUMNS, Transitions

if TYPE_CHECKING:
    import pyarrow as pa

MARK = "# counterpoint "
"""First characters of a stored CSV; the header follows as JSON."""
FORMAT = 5
STRINGS = ("subject_names", "outcome_names")
SCHEMA_CLASSES = {
    cls.__name__: cls for cls in (ActionColumn, Bins, Box, Column, Discrete, Fill, Knowledge, Layout, Recursion, Schema)
}
"""Classes that a header may contain."""
MATRICES = ("state", "next_state", "action", "noise")
"""The fields of several columns."""


def header_of(transitions: Transitions) -> dict[str, Any]:
    """Return the header: everything that the columns do not hold."""
    return {
        "format": FORMAT,
        "dtypes": {name: str(getattr(transitions, name).dtype).removeprefix("torch.") for name in COLUMNS},
        "schema": encode(transitions.schema),
        "layout": encode(transitions.layout),
        **{name: getattr(transitions, name) for name in STRINGS},
        "noise_size": transitions.noise.shape[1],
    }


def file_columns(header: dict[str, Any], names: Sequence[str] = COLUMNS) -> list[str]:
    """Return the names of the file's columns that hold the fields `names`."""
    return [f"{name}:{part}" if part is not None else name for name in names for part in parts(header, name)]


def parts(header: dict[str, Any], name: str) -> list[Any]:
    """Return the column names of one field; [None] for a field of one number per row."""
    noise = list(range(header["noise_size"]))
    states = [column["name"] for column in header["schema"]["states"]]
    names = {"state": states, "next_state": states, "action": header["schema"]["action_names"]}
    return list(names.get(name, noise if name == "noise" else [None]))


def parse_header(path: Path, text: str | bytes | None) -> dict[str, Any]:
    if text is None:
        raise CounterpointError(
            f"{path} was not written by counterpoint; load it with from_dataframe or the command's column flags,"
            " which say what each column is"
        )
    header = json.loads(text)
    if header["format"] != FORMAT:
        raise CounterpointError(
            f"{path} has format {header['format']}, this version reads {FORMAT}; make it again from the original table"
        )
    require(header.pop("hash", None) == digest(header), changed(path, "header"))
    return header


def changed(path: Path, what: str) -> str:
    """Return the message about a file that was edited."""
    return f"{path} was changed after it was written: its {what} differ; write it again"


def field_hash(values: Tensor) -> str:
    """Return a short hash of a field's numbers; all kinds of NaN count as equal."""
    numbers = values.contiguous().numpy()
    if numbers.dtype.kind == "f" and np.isnan(numbers).any():
        numbers = np.where(np.isnan(numbers), np.array(np.nan, numbers.dtype), numbers)
    return hashlib.sha256(numbers.tobytes()).hexdigest()[:16]


def to_arrow(rows: Transitions) -> "pa.Table":
    """Return the numbers of transitions as an Arrow table, with the column names of a file."""
    return arrow_table(rows, header_of(rows))


def from_arrow(table: "pa.Table", like: Transitions) -> Transitions:
    """Return the transitions of a table by `to_arrow`; schema and names are those of `like`."""
    columns = {name: table[name].to_numpy() for name in table.column_names}
    return replace(like, **tensors(header_of(like), COLUMNS, columns, len(table)))


def arrow_table(rows: Transitions, header: dict[str, Any]) -> "pa.Table":
    """Return the numbers of transitions as an Arrow table, for a file with this header."""
    import pyarrow as pa

    fields = [getattr(rows, name).detach().numpy() for name in COLUMNS]
    arrays = [pa.array(column) for field in fields for column in (field.T if field.ndim == 2 else [field])]
    return pa.table(arrays, names=file_columns(header))


def tensors(
    header: dict[str, Any], names: Sequence[str], columns: "dict[str, np.ndarray]", rows: int
) -> dict[str, Tensor]:
    """Assemble the fields from their columns; an absent column has no rows."""
    fields: dict[str, Tensor] = {}
    for name in names:
        kind = getattr(torch, header["dtypes"][name])
        numbers = [columns.get(column, np.zeros(0)) for column in file_columns(header, [name])]
        stacked = np.stack(numbers, -1) if numbers else np.zeros((rows, 0))
        fields[name] = torch.from_numpy(stacked if name in MATRICES else numbers[0].copy()).to(kind)
    return fields
