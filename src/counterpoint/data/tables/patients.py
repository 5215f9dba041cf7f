"""New subjects, read as the training table was: their last rows as states, with what was missing filled alike."""

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.errors import CounterpointError, require
from counterpoint.data import storage
from counterpoint.data.lags import without_lags
from counterpoint.data.queries import ask
from counterpoint.data.schema import Column, Schema, agree
from counterpoint.data.tables.columns import CheckedColumns, Times, open_table
from counterpoint.data.tables.isolated_dates import refuse_isolated
from counterpoint.data.tables.layout import GAPS, changes, elapsed_steps, given_step, unevenness
from counterpoint.data.tables.missing import filled
from counterpoint.data.tables.odd_steps import refuse_swapped, step_notes, uneven
from counterpoint.data.tables.reader import Reader, carry
from counterpoint.data.tables.spelling import refuse_alike, refuse_totals
from counterpoint.data.tables.state_columns import encoded
from counterpoint.data.transitions import Transitions


@dataclass(frozen=True)
class CurrentStates:
    """Where each subject stands now."""

    names: list[str]
    state: Float[Tensor, "n s"]
    filled: list[list[str]]
    """The columns that were missing in each subject's last row, where an older or a usual value stands in."""
    gaps: list[int]
    """Pairs of rows of each subject that are not one step apart."""
    notes: list[str]
    """What was done in reading the table."""


def read_patients(table: Any, schema: Schema) -> CurrentStates:
    """Each subject's last row; a table without the subject's column is one subject a row."""
    reader = schema.reader
    if not isinstance(reader, Reader):
        asked = ask(table, schema.states)
        names = [str(i) for i in range(len(asked.values))]
        return CurrentStates(names, asked.values, [[] for _ in names], [0] * len(names), [])
    own = without_lags(schema, reader.lags).states
    named = [column for column in own if not column.mask_of]
    columns = open_table(table, [c.name for c in named], (reader.subject, reader.episode), reader.encoding)
    clock = _in_order(columns, reader)
    values = np.column_stack([encoded(columns, column) for column in named])[clock.order]
    missing = np.isnan(values)
    still = [column.static for column in named]
    whole = filled(named, carry(values, clock.subject, clock.elapsed, reader, still), clock.order)
    last = np.r_[changes(clock.subject)[1:], True]
    masks = [[column.name for column in named].index(column.mask_of) for column in own if column.mask_of]
    state = torch.from_numpy(np.column_stack([whole, *missing[:, masks].T.astype(float)])[last].astype(np.float32))
    state = torch.cat([state, _lagged(table, schema, reader)], 1) if reader.lags else state
    return CurrentStates(clock.names, state, [_absent(named, row) for row in missing[last]], clock.gaps, clock.notes)


def _lagged(table: Any, schema: Schema, reader: Reader) -> Float[Tensor, "n l"]:
    """The earlier actions that each subject's last row has beside it."""
    rows = reader.read_record(table, schema).rows
    last = torch.cat([rows.subject.diff() != 0, torch.ones(1, dtype=torch.bool)])
    return rows.state[last, -reader.lags * schema.actions.width :]


@dataclass(frozen=True)
class History:
    """One subject: where it stands now, and the steps that led there."""

    now: CurrentStates
    rows: Transitions
    """The steps whose next state is known; none for a subject who has just come."""
    notes: list[str]


def read_history(table: Any, schema: Schema) -> History:
    """The table of one subject, read as the training table was; the last row is the state to decide in."""
    if not isinstance(schema.reader, Reader):
        return _logged_history(table, schema)
    now = read_patients(table, schema)
    rows, notes = schema.reader.read_record(table, schema)
    _check_one(rows)
    return History(now, rows.with_next(), list(dict.fromkeys([*now.notes, *notes])))


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
    return History(CurrentStates(list(rows.subject_names), last.next_state, [[]], [0], []), rows.with_next(), [])


def _check_one(rows: Transitions) -> None:
    found = len(rows.subject.unique())
    require(found == 1, f"the history is of {found} subjects; give the rows of one alone")


def _absent(columns: list[Column], missing: np.ndarray) -> list[str]:
    return [column.name for column, absent in zip(columns, missing, strict=True) if absent]


@dataclass(frozen=True)
class _Clock:
    """The rows of new subjects by subject and time: `order` sorts the table, other arrays are in sorted order."""

    subject: np.ndarray
    names: list[str]
    order: np.ndarray
    elapsed: np.ndarray
    """Steps since the row before; infinite where a subject or an episode opens, 0 where there is no clock."""
    gaps: list[int]
    """Pairs of rows of each subject that are not one step apart."""
    notes: list[str]


def _in_order(columns: CheckedColumns, reader: Reader) -> _Clock:
    """The rows sorted by the rules of the training table's clock; what it would refuse or note is refused or noted."""
    there = set(columns.frame.columns)
    if reader.subject not in there:
        rows = np.arange(len(columns))
        note = f"there is no column '{reader.subject}', so every row is taken for a subject"
        return _Clock(rows, [str(i) for i in rows], rows, np.zeros(len(rows)), [0] * len(rows), [note])
    codes, names = columns.codes(reader.subject)
    refuse_totals(reader.subject, codes, names)
    refuse_alike(reader.subject, names)
    if reader.time not in there:
        if len(names) < len(codes):
            raise CounterpointError(
                f"some subjects have several rows and there is no column '{reader.time}' to tell the last; add it"
            )
        return _Clock(codes[np.argsort(codes)], names, np.argsort(codes), np.zeros(len(codes)), [0] * len(names), [])
    moment = reader.moments(columns, flags=False)
    _check_same_clock(moment, reader)
    step = given_step(reader.step, moment) if reader.step else None
    refuse_isolated(reader.time, moment, codes, step)
    shift = step is not None and not reader.next_state
    if step is not None and shift:
        refuse_swapped(reader.time, moment, codes, step)
    order = np.lexsort((moment.values, codes))
    same = ~changes(codes[order]) & ~changes(moment.values[order])
    if same.any():
        raise CounterpointError(
            f"row {order[same].min()} has the same '{reader.subject}' and '{reader.time}' as another; keep one"
        )
    opens = changes(codes[order])
    if reader.episode in there:
        opens = opens | changes(columns.codes(reader.episode)[0][order])
    elapsed = elapsed_steps(moment, order, opens, reader.step)
    jumps = uneven(elapsed, ~opens) if shift else np.zeros(len(order), dtype=bool)
    gaps = np.bincount(codes[order], weights=jumps, minlength=len(names)).astype(int).tolist()
    odd = step_notes(reader.time, elapsed, ~opens, codes[order], known=True) if shift else []
    return _Clock(codes[order], names, order, elapsed, gaps, [*_gap_notes(jumps, ~opens, reader), *odd])


def _check_same_clock(moment: Times, reader: Reader) -> None:
    """Times of the same kind as the training table's, dates or numbers, where its step tells which those were."""
    if not reader.step:
        return
    numbers = _is_number(reader.step)
    require(
        numbers == (moment.per_second is None),
        f"column '{reader.time}' holds {'dates' if numbers else 'numbers'} and held {'numbers' if numbers else 'dates'}"
        " in the training table; write it as there",
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _gap_notes(jumps: np.ndarray, inside: np.ndarray, reader: Reader) -> list[str]:
    """What the training table's rule for gaps makes of those of new subjects."""
    if not jumps.any():
        return []
    told = "" if reader.gaps else "; the training table had no such pairs"
    return [f"{unevenness(jumps, inside, reader.step)} and {GAPS[reader.gaps or 'cut']}{told}"]
