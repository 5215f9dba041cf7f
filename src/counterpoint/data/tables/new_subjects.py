"""Read tables of new subjects by the rules of the training table, for recommendations."""

from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.errors import CounterpointError, require
from counterpoint.data import storage
from counterpoint.data.conversion import convert_states
from counterpoint.data.lags import without_lags
from counterpoint.data.layout import Layout
from counterpoint.data.schema import Column, Schema, agree
from counterpoint.data.tables.clock import (
    changes,
    distances,
    refuse_isolated,
    refuse_swapped,
    step_length,
    step_notes,
    uneven,
    unevenness,
)
from counterpoint.data.tables.columns import CheckedColumns, Table, open_table
from counterpoint.data.tables.dates import Times
from counterpoint.data.tables.episodes import GAPS, Records, read_times
from counterpoint.data.tables.made_columns import table_columns, without_made
from counterpoint.data.tables.missing import carry, filled
from counterpoint.data.tables.reading import read_record
from counterpoint.data.tables.spelling import refuse_alike, refuse_totals
from counterpoint.data.tables.state_columns import encoded
from counterpoint.data.transitions import Transitions


@dataclass(frozen=True)
class CurrentStates:
    """The current state of each subject of a table."""

    names: list[str]
    state: Float[Tensor, "n s"]
    filled: list[list[str]]
    """Columns that are missing in each subject's last row and were filled."""
    gaps: list[int]
    """Pairs of rows of each subject that are not one step apart."""
    notes: list[str]
    """How the table was read."""


@dataclass(frozen=True)
class History:
    """One subject: the current state, and the transitions that led to it."""

    now: CurrentStates
    rows: Transitions
    """Transitions with a next state; none for a subject with one row."""
    notes: list[str]


def read_patients(table: Table, schema: Schema, layout: Layout | None = None) -> CurrentStates:
    """Return the state in each subject's last row; without the subject's column every row is a subject.

    Args:
        table: A DataFrame or the path of a file with the columns of the training table.
        schema: Schema of the training rows.
        layout: Layout of the training table; None where the training rows were not read from a table.
    """
    if layout is None:
        states = convert_states(table, schema.states).values
        names = [str(i) for i in range(len(states))]
        return CurrentStates(names, states, [[] for _ in names], [0] * len(names), [])
    columns = _open(table, schema, layout)
    now = _current(columns, schema, layout)
    if not _has_history(layout):
        return now
    return _with_history(now, read_record(columns, layout, schema).rows)


def read_history(table: Table, schema: Schema, layout: Layout | None = None) -> History:
    """Read the table of one subject; the last row is the state to decide in. Arguments as in `read_patients`."""
    if layout is None:
        return _stored_history(table, schema)
    columns = _open(table, schema, layout, layout.action)
    now = _current(columns, schema, layout)
    record, notes = read_record(columns, layout, schema)
    _check_one_subject(record)
    now = _with_history(now, record) if _has_history(layout) else now
    return History(now, record.with_next(), list(dict.fromkeys([*now.notes, *notes])))


def _open(table: Table, schema: Schema, layout: Layout, more: tuple[str, ...] = ()) -> CheckedColumns:
    names = list(layout.state)
    if more or _has_history(layout):
        names = [layout.subject, layout.time, layout.episode, *names, *layout.action]
    return open_table(table, names, (layout.subject, layout.episode), layout.encoding)


def _current(columns: CheckedColumns, schema: Schema, layout: Layout) -> CurrentStates:
    """Return the states of the last rows, without the columns that are made of earlier rows."""
    states = without_made(without_lags(schema, layout.lags).states, layout)
    measured = [column for column in states if not column.mask_of]
    names = [column.name for column in measured]
    sorted_rows = _sorted_rows(columns, layout)
    order, subject = sorted_rows.order, sorted_rows.subject
    cells = zip(measured, table_columns(layout), strict=True)
    values = np.column_stack([encoded(columns, column, place) for column, place in cells])[order]
    missing = np.isnan(values)
    constant = [column.static for column in measured]
    whole = filled(measured, carry(values, subject, sorted_rows.elapsed, layout, constant), order)
    masks = [names.index(column.mask_of) for column in states if column.mask_of]
    last = np.r_[changes(subject)[1:], True]
    state = np.column_stack([whole, *missing[:, masks].T.astype(float)])[last].astype(np.float32)
    fills = [_absent(measured, row) for row in missing[last]]
    return CurrentStates(sorted_rows.names, torch.from_numpy(state), fills, sorted_rows.gaps, sorted_rows.notes)


def _has_history(layout: Layout) -> bool:
    """Whether some state columns are made of earlier rows: lags, doses on board, running sums."""
    return bool(layout.lags or layout.on_board or layout.running_sum)


def _with_history(now: CurrentStates, record: Transitions) -> CurrentStates:
    """Append the columns that the last row of every subject's record has of earlier rows."""
    last = torch.cat([record.subject.diff() != 0, torch.ones(1, dtype=torch.bool)])
    return replace(now, state=torch.cat([now.state, record.state[last, now.state.shape[1] :]], 1))


def _stored_history(table: Table, schema: Schema) -> History:
    """Read a table that `storage.write` wrote: the state to decide in is its last next state."""
    if not isinstance(table, str | PathLike):
        raise CounterpointError("this run's rows were not read from a table; give a file that counterpoint wrote")
    rows = storage.read(Path(table))
    agree(schema, rows.schema, "policy", "history")
    _check_one_subject(rows)
    last = rows[rows.in_order()[-1:]]
    require(
        bool(last.has_next.all()) and not bool(last.terminated.any()),
        "the last row of the record is its end, so that nothing is left to decide; leave it out",
    )
    return History(CurrentStates(list(rows.subject_names), last.next_state, [[]], [0], []), rows.with_next(), [])


def _check_one_subject(rows: Transitions) -> None:
    subjects = len(rows.subject.unique())
    require(subjects == 1, f"the history is of {subjects} subjects; give the rows of one alone")


def _absent(columns: list[Column], missing: np.ndarray) -> list[str]:
    return [column.name for column, absent in zip(columns, missing, strict=True) if absent]


@dataclass(frozen=True)
class _SortedRows:
    """The rows of new subjects by subject and time: `order` sorts the table, other arrays are in sorted order."""

    subject: np.ndarray
    names: list[str]
    order: np.ndarray
    elapsed: np.ndarray
    """Steps since the row before; infinite where a subject or an episode begins, 0 where there is no clock."""
    gaps: list[int]
    """Pairs of rows of each subject that are not one step apart."""
    notes: list[str]


def _sorted_rows(columns: CheckedColumns, layout: Layout) -> _SortedRows:
    """Sort the rows by subject and time. What a log's clock may not have is refused or noted here too."""
    present = set(columns.frame.columns)
    if layout.subject not in present:
        rows = np.arange(len(columns))
        note = f"there is no column '{layout.subject}', so every row is taken for a subject"
        return _SortedRows(rows, [str(i) for i in rows], rows, np.zeros(len(rows)), [0] * len(rows), [note])
    codes, names = columns.codes(layout.subject)
    refuse_totals(layout.subject, codes, names)
    refuse_alike(layout.subject, names)
    if layout.time not in present:
        if len(names) < len(codes):
            raise CounterpointError(
                f"some subjects have several rows and there is no column '{layout.time}' to tell the last; add it"
            )
        order = np.argsort(codes)
        return _SortedRows(codes[order], names, order, np.zeros(len(codes)), [0] * len(names), [])
    times = read_times(columns, layout, flags=False)
    _check_same_clock(times, layout)
    step = step_length(layout.step, times) if layout.step else None
    refuse_isolated(layout.time, times, codes, step)
    if step is not None and layout.shifts:
        refuse_swapped(layout.time, times, codes, step)
    order = np.lexsort((times.values, codes))
    same = ~changes(codes[order]) & ~changes(times.values[order])
    if same.any():
        raise CounterpointError(
            f"row {order[same].min()} has the same '{layout.subject}' and '{layout.time}' as another; keep one"
        )
    opens = changes(codes[order])
    if layout.episode in present:
        opens = opens | changes(columns.codes(layout.episode)[0][order])
    elapsed = Records(order, codes[order], opens, distances(times, order)).elapsed(step or 1.0)
    if step is None or not layout.shifts:
        return _SortedRows(codes[order], names, order, elapsed, [0] * len(names), [])
    jumps = uneven(elapsed, ~opens)
    gaps = np.bincount(codes[order], weights=jumps, minlength=len(names)).astype(int).tolist()
    notes = [
        *_gap_notes(jumps, ~opens, layout),
        *step_notes(layout.time, elapsed, ~opens, codes[order], step_known=True),
    ]
    return _SortedRows(codes[order], names, order, elapsed, gaps, notes)


def _check_same_clock(times: Times, layout: Layout) -> None:
    """Refuse dates where the training table had numbers, and numbers where it had dates."""
    if not layout.step:
        return
    numbers = _is_number(layout.step)
    require(
        numbers == (times.per_second is None),
        f"column '{layout.time}' holds {'dates' if numbers else 'numbers'} and held {'numbers' if numbers else 'dates'}"
        " in the training table; write it as there",
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _gap_notes(jumps: np.ndarray, inside: np.ndarray, layout: Layout) -> list[str]:
    """Return a note on gaps, which are handled as those of the training table were."""
    if not jumps.any():
        return []
    untrained = "" if layout.gaps else "; the training table had no such pairs"
    return [f"{unevenness(jumps, inside, layout.step)} and {GAPS[layout.gaps or 'cut']}{untrained}"]
