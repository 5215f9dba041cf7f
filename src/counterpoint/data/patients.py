"""New subjects, read as the training table was: their last rows as states, with what was missing filled alike."""

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.data import storage
from counterpoint.data.asking import ask
from counterpoint.data.columns import CheckedColumns, open_table
from counterpoint.data.lags import without_lags
from counterpoint.data.layout import changes, elapsed_steps
from counterpoint.data.missing import filled
from counterpoint.data.reader import Reader, carry
from counterpoint.data.schema import Column, Schema, agree
from counterpoint.data.state_columns import encoded
from counterpoint.data.transitions import Transitions
from counterpoint.errors import CounterpointError, require


@dataclass(frozen=True)
class Patients:
    """Where each subject stands now."""

    names: list[str]
    state: Float[Tensor, "n s"]
    filled: list[list[str]]
    """The columns that were missing in each subject's last row, where an older or a usual value stands in."""


def read_patients(table: Any, schema: Schema) -> Patients:
    """Each subject's last row; a table without the subject's column is one subject a row."""
    reader = schema.reader
    if not isinstance(reader, Reader):
        asked = ask(table, schema.states)
        return Patients([str(i) for i in range(len(asked.values))], asked.values, [[] for _ in asked.values])
    own = without_lags(schema, reader.lags).states
    named = [column for column in own if not column.mask_of]
    columns = open_table(table, [c.name for c in named], (reader.subject, reader.episode), reader.encoding)
    subject, names, order, elapsed = _in_order(columns, reader)
    values = np.column_stack([encoded(columns, column) for column in named])[order]
    missing = np.isnan(values)
    whole = filled(named, carry(values, subject, elapsed, reader, [column.static for column in named]), order)
    last = np.r_[changes(subject)[1:], True]
    masks = [[column.name for column in named].index(column.mask_of) for column in own if column.mask_of]
    state = torch.from_numpy(np.column_stack([whole, *missing[:, masks].T.astype(float)])[last].astype(np.float32))
    state = torch.cat([state, _lagged(table, schema, reader)], 1) if reader.lags else state
    return Patients(names, state, [_absent(named, row) for row in missing[last]])


def _lagged(table: Any, schema: Schema, reader: Reader) -> Float[Tensor, "n l"]:
    """The earlier actions that each subject's last row has beside it."""
    rows = reader.read_record(table, schema).rows
    last = torch.cat([rows.subject.diff() != 0, torch.ones(1, dtype=torch.bool)])
    return rows.state[last, -reader.lags * schema.actions.width :]


@dataclass(frozen=True)
class History:
    """One subject: where it stands now, and the steps that led there."""

    now: Patients
    rows: Transitions
    """The steps whose next state is known; none for a subject who has just come."""
    notes: list[str]


def read_history(table: Any, schema: Schema) -> History:
    """The table of one subject, read as the training table was; the last row is the state to decide in."""
    if not isinstance(schema.reader, Reader):
        return _logged_history(table, schema)
    rows, notes = schema.reader.read_record(table, schema)
    _check_one(rows)
    return History(read_patients(table, schema), rows.with_next(), notes)


def _logged_history(table: Any, schema: Schema) -> History:
    """A table that was written by `storage.write`: the state to decide in is its last next state."""
    require(isinstance(table, str | PathLike), "no reader is known for this run's tables; give a file that was written")
    rows = storage.read(Path(table))
    agree(schema, rows.schema, "policy", "history")
    _check_one(rows)
    last = rows[rows.in_order()[-1:]]
    require(
        bool(last.has_next.all()) and not bool(last.terminated.any()),
        "the last row of the record is its end, so that nothing is left to decide; leave it out",
    )
    return History(Patients(list(rows.subject_names), last.next_state, [[]]), rows.with_next(), [])


def _check_one(rows: Transitions) -> None:
    found = len(rows.subject.unique())
    require(found == 1, f"the history is of {found} subjects; give the rows of one alone")


def _absent(columns: list[Column], missing: np.ndarray) -> list[str]:
    return [column.name for column, absent in zip(columns, missing, strict=True) if absent]


def _in_order(columns: CheckedColumns, reader: Reader) -> tuple[np.ndarray, list[str], np.ndarray, np.ndarray]:
    """Whose each row is, the subjects' names, the order by subject and time, and the steps since the row before."""
    there = set(columns.frame.columns)
    if reader.subject not in there:
        rows = np.arange(len(columns))
        return rows, [str(i) for i in rows], rows, np.zeros(len(rows))
    codes, names = columns.codes(reader.subject)
    if reader.time not in there:
        if len(names) < len(codes):
            raise CounterpointError(
                f"some subjects have several rows and there is no column '{reader.time}' to tell the last; add it"
            )
        return codes[np.argsort(codes)], names, np.argsort(codes), np.zeros(len(codes))
    moment = reader.moments(columns)
    order = np.lexsort((moment.values, codes))
    same = ~changes(codes[order]) & ~changes(moment.values[order])
    if same.any():
        raise CounterpointError(
            f"row {order[same].min()} has the same '{reader.subject}' and '{reader.time}' as another; keep one"
        )
    return codes[order], names, order, elapsed_steps(moment, order, codes[order], reader.step)
