"""How a table lies in a file: names of its columns, a header that says the rest, and a hash of every field."""

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
from counterpoint.data.knowledge import Knowledge
from counterpoint.data.schema import Column, Fill, Schema
from counterpoint.data.spaces import Box, Discrete
from counterpoint.data.tables.reader import Reader
from counterpoint.data.transitions import COLUMNS, Transitions

if TYPE_CHECKING:
    import pyarrow as pa

MARK = "# counterpoint "
"""What a CSV of ours begins with; the header follows as JSON."""
FORMAT = 4
STRINGS = ("subject_names", "outcome_names")
SCHEMA_CLASSES = {
    cls.__name__: cls for cls in (ActionColumn, Bins, Box, Column, Discrete, Fill, Knowledge, Reader, Schema)
}
"""What a table's header may name."""
MATRICES = ("state", "next_state", "action", "noise")
"""The fields of several columns."""


def header_of(transitions: Transitions) -> dict[str, Any]:
    """What the columns cannot say for themselves."""
    return {
        "format": FORMAT,
        "dtypes": {name: str(getattr(transitions, name).dtype).removeprefix("torch.") for name in COLUMNS},
        "schema": encode(transitions.schema),
        **{name: getattr(transitions, name) for name in STRINGS},
        "noise_size": transitions.noise.shape[1],
    }


def file_columns(header: dict[str, Any], names: Sequence[str] = COLUMNS) -> list[str]:
    return [f"{name}:{part}" if part is not None else name for name in names for part in parts(header, name)]


def parts(header: dict[str, Any], name: str) -> list[Any]:
    """The columns of one field; a field of one number a row is [None]."""
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
        raise CounterpointError(f"{path} has format {header['format']}, this version reads {FORMAT}; write it again")
    require(header.pop("hash", None) == digest(header), changed(path, "header"))
    return header


def changed(path: Path, what: str) -> str:
    return f"{path} was changed after it was written: its {what} differ; write it again"


def field_hash(values: Tensor) -> str:
    """A short hash of a field's numbers; all missing values are one."""
    numbers = values.contiguous().numpy()
    if numbers.dtype.kind == "f" and np.isnan(numbers).any():
        numbers = np.where(np.isnan(numbers), np.array(np.nan, numbers.dtype), numbers)
    return hashlib.sha256(numbers.tobytes()).hexdigest()[:16]


def to_arrow(rows: Transitions) -> "pa.Table":
    """The numbers of a table, under the names that they have in a file."""
    return arrow_table(rows, header_of(rows))


def from_arrow(table: "pa.Table", like: Transitions) -> Transitions:
    """The rows that `to_arrow` put into a table, with the names and columns of `like`."""
    columns = {name: table[name].to_numpy() for name in table.column_names}
    return replace(like, **tensors(header_of(like), COLUMNS, columns, len(table)))


def arrow_table(rows: Transitions, header: dict[str, Any]) -> "pa.Table":
    import pyarrow as pa

    fields = [getattr(rows, name).detach().numpy() for name in COLUMNS]
    arrays = [pa.array(column) for field in fields for column in (field.T if field.ndim == 2 else [field])]
    return pa.table(arrays, names=file_columns(header))


def tensors(
    header: dict[str, Any], names: Sequence[str], columns: "dict[str, np.ndarray]", rows: int
) -> dict[str, Tensor]:
    """The fields from their columns; a column that is not there has no rows."""
    fields: dict[str, Tensor] = {}
    for name in names:
        kind = getattr(torch, header["dtypes"][name])
        found = [columns.get(column, np.zeros(0)) for column in file_columns(header, [name])]
        stacked = np.stack(found, -1) if found else np.zeros((rows, 0))
        fields[name] = torch.from_numpy(stacked if name in MATRICES else found[0].copy()).to(kind)
    return fields
