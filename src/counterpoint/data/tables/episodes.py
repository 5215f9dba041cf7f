"""Sort a user's table into records and cut the records into episodes.

A table has one row per subject and time, so the next state of row t is the state of row t + 1 of the same episode. The
last row of a record has no next state; `Layout.last` declares whether it is an outcome, a truncation, or dropped.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.wording import counted
from counterpoint.data.layout import DateOrder, Layout
from counterpoint.data.schema import quoted
from counterpoint.data.tables.clock import (
    changes,
    check_cycle,
    distances,
    refuse_far_dates,
    step_length,
    step_notes,
    step_text,
    swapped_note,
    uneven,
    unevenness,
    unordered_hours,
    usual_step,
)
from counterpoint.data.tables.columns import CheckedColumns
from counterpoint.data.tables.dates import Times
from counterpoint.data.tables.spelling import alike_note, refuse_totals

GAPS = {"cut": "were cut: an episode stops there", "bridge": "are taken as consecutive"}
"""How gaps are handled, in words."""
DEATH = re.compile("died|dead|death|deceas|expired|mortal|fatal|exitus", re.IGNORECASE)
"""Names of outcomes that no row can follow."""
STAY = re.compile(f"{DEATH.pattern}|discharg", re.IGNORECASE)
"""Names of outcomes that occur once a stay; other outcomes may be of tables with many episodes a subject."""
RARE = 0.2
"""Rows after such an outcome are noted where a smaller share of the subjects with the outcome have them."""


@dataclass(frozen=True)
class Records:
    """Rows sorted by subject, episode and time. `order` sorts the table; the other arrays are in sorted order."""

    order: np.ndarray
    subject: np.ndarray
    """Code of every row's subject."""
    opens: np.ndarray
    """Where a subject or an episode of the table's own episode column begins."""
    apart: np.ndarray
    """Distance to the row before, in the clock's own unit."""

    @property
    def last(self) -> np.ndarray:
        """Where a subject or an episode ends."""
        return np.r_[self.opens[1:], True]

    @property
    def subject_last(self) -> np.ndarray:
        """Where a subject ends."""
        return np.r_[changes(self.subject)[1:], True]

    @cached_property
    def subject_first_row(self) -> np.ndarray:
        """For every row the place of its subject's first row."""
        begins = changes(self.subject)
        return np.flatnonzero(begins)[np.cumsum(begins) - 1]

    def elapsed(self, step: float) -> np.ndarray:
        """Steps since the row before; infinite where a subject or an episode begins."""
        return np.where(self.opens, np.inf, self.apart / step)


def sort_records(subject: np.ndarray, episode: np.ndarray, times: Times) -> Records:
    """Sort rows by subject, episode and time; the arguments are in the table's own order."""
    order = np.lexsort((times.values, episode, subject))
    opens = changes(subject[order]) | changes(episode[order])
    return Records(order, subject[order], opens, distances(times, order))


def read_times(columns: CheckedColumns, layout: Layout, flags: bool = True) -> Times:
    """Read the clock by the layout's rules. `flags`: whether messages may suggest the arguments `dates` and `zone`."""
    return columns.times(layout.time, layout.dates, layout.zone, flags)


@dataclass(frozen=True)
class EpisodeRows:
    """Sorted rows cut into episodes; all arrays are in sorted order."""

    records: Records
    keep: np.ndarray
    """Rows that become transitions."""
    end: np.ndarray
    """Last rows of episodes."""
    outcome: np.ndarray
    """Index of the outcome that ends the episode on this row; -1 where none does."""
    outcome_names: list[str]
    truncated: np.ndarray
    subject_names: list[str]
    episode: np.ndarray
    step: np.ndarray
    """Number of the row within its episode, from 0."""
    elapsed: np.ndarray
    """Steps since the row before by the clock; infinite for the first row of a subject or an episode."""
    step_text: str
    """Length of a step, as `Layout.step` takes it."""
    dates: DateOrder | None
    """Order of day and month in which the times were read, for dates such as 31/01/2024."""
    left_out: np.ndarray
    """Last rows that are left out because the record was declared to stop there."""
    notes: list[str]

    @property
    def order(self) -> np.ndarray:
        """The permutation that sorts the table."""
        return self.records.order

    @property
    def subject(self) -> np.ndarray:
        """Code of every row's subject."""
        return self.records.subject

    @property
    def rows(self) -> np.ndarray:
        """Row numbers of the kept rows in the table's own order."""
        return self.order[self.keep]

    def needed(self) -> np.ndarray:
        """Return whether a row is kept, in the table's own order."""
        needed = np.zeros(len(self.order), dtype=bool)
        needed[self.rows] = True
        return needed

    def subjects(self) -> tuple[np.ndarray, list[str]]:
        """Return the subjects of the kept rows, numbered without gaps, and their names."""
        present, subjects = np.unique(self.subject[self.keep], return_inverse=True)
        return subjects, [self.subject_names[code] for code in present]

    def provenance(self) -> dict[str, torch.Tensor]:
        """Return the columns of `Transitions` that say whose the kept rows are and how they end."""
        outcome = self.outcome[self.keep]
        columns = {
            "outcome": outcome,
            "terminated": outcome >= 0,
            "truncated": self.truncated[self.keep],
            "subject": self.subjects()[0],
            "episode": np.unique(self.episode[self.keep], return_inverse=True)[1],
            "step": self.step[self.keep],
        }
        return {name: torch.from_numpy(column) for name, column in columns.items()}


def cut_episodes(columns: CheckedColumns, layout: Layout) -> EpisodeRows:
    """Sort the rows of a log and cut them into episodes, at outcomes, truncations and gaps."""
    codes, names = columns.codes(layout.subject)
    refuse_totals(layout.subject, codes, names)
    times = read_times(columns, layout)
    group = columns.codes(layout.episode)[0] if layout.episode else np.zeros_like(codes)
    record = codes * (group.max() + 1) + group
    check_cycle(layout.time, times, record)
    records = sort_records(codes, group, times)
    order, opens = records.order, records.opens
    _check_unique(order, opens | changes(times.values[order]), (layout.subject, layout.episode, layout.time))
    far_dates = refuse_far_dates(layout.time, times, record)
    outcome, stopped, later_rows = _marks(columns, records, layout)
    ended = np.r_[False, ((outcome >= 0) | stopped)[:-1]]
    elapsed, jumps, step, notes = _gaps(records, times, ended, layout)
    notes += [*alike_note(layout.subject, names), *unordered_hours(layout.time, times, record), *far_dates, *later_rows]
    if layout.shifts and step:
        notes += swapped_note(layout.time, times, record, step_length(step, times))
        notes += step_notes(layout.time, elapsed, ~opens & ~ended, record[order])
    start = opens | jumps | ended
    start[0] = True
    end = np.r_[start[1:], True]
    before_gap = np.r_[jumps[1:], False]
    unmarked = end & (outcome < 0) & ~stopped
    stopped = stopped | (unmarked & before_gap)
    unmarked = unmarked & ~stopped
    _check_choice(unmarked, order, layout)
    terminal = unmarked & (layout.last == "terminal")
    outcome = np.where(terminal, len(layout.done), outcome)
    outcomes = [*layout.done, *(["ended"] if layout.done and terminal.any() else [])] or ["terminated"]
    stopped = stopped | (unmarked & (layout.last == "truncate"))
    keep = ~((unmarked & (layout.last == "drop")) | (stopped & layout.shifts))
    if not keep.any():
        raise CounterpointError(
            "no episode has two rows, so no row has a next state; pass last='terminal' to keep them"
        )
    # The last row of a record that stops only gives a next state, so the mark moves to the row before it.
    truncated = np.r_[stopped[1:] & ~start[1:], False] if layout.shifts else stopped
    number = np.cumsum(start) - 1
    return EpisodeRows(
        records=records,
        keep=keep,
        end=end,
        outcome=outcome,
        outcome_names=outcomes,
        truncated=truncated,
        subject_names=names,
        episode=number,
        step=np.arange(len(order)) - np.flatnonzero(start)[number],
        elapsed=elapsed,
        step_text=step,
        dates=times.dates,
        left_out=stopped & layout.shifts & ~before_gap,
        notes=[*notes, *_lost_subjects(records.subject, keep)],
    )


def _gaps(
    records: Records, times: Times, ended: np.ndarray, layout: Layout
) -> tuple[np.ndarray, np.ndarray, str, list[str]]:
    """Return the steps since the row before, where an episode is cut, the length of a step, and notes."""
    inside = ~records.opens & ~ended
    no_jumps = np.zeros(len(inside), dtype=bool)
    if not inside.any():  # Every row is an episode, so the length of a step cannot be estimated.
        length = step_length(layout.step, times) if layout.step else 1.0
        return records.elapsed(length), no_jumps, layout.step, []
    length = step_length(layout.step, times) if layout.step else usual_step(records.apart[inside])
    step = step_text(length, times)
    elapsed = records.elapsed(length)
    jumps = uneven(elapsed, inside) & layout.shifts
    if not jumps.any():
        return elapsed, no_jumps, step, []
    what = unevenness(jumps, inside, step)
    if layout.gaps is None:
        raise CounterpointError(
            f"{what} in column '{layout.time}'; choose gaps='cut' (an episode stops there) or 'bridge' (take them as"
            " consecutive), or give the step"
        )
    return elapsed, jumps if layout.gaps == "cut" else no_jumps, step, [f"{what} and {GAPS[layout.gaps]}"]


def _lost_subjects(subject: np.ndarray, keep: np.ndarray) -> list[str]:
    """Return a note on subjects that have no transition."""
    lost = len(np.unique(subject)) - len(np.unique(subject[keep]))
    if not lost:
        return []
    return [f"{lost} subjects have no two rows that follow each other and no marked outcome: they give no row"]


def _check_unique(order: np.ndarray, differs: np.ndarray, names: Sequence[str]) -> None:
    places = np.flatnonzero(~differs)
    if len(places):
        place = places[np.argmin(order[places])]
        shared = " and ".join(f"'{name}'" for name in names if name)
        raise CounterpointError(
            f"rows {order[place - 1]} and {order[place]} have the same {shared} ({len(places)} such rows);"
            " keep one row for each"
        )


def _check_choice(unmarked: np.ndarray, order: np.ndarray, layout: Layout) -> None:
    if layout.last is None and unmarked.any():
        why = f"{quoted(layout.done)} does not mark them" if layout.done else "no done column is given"
        raise CounterpointError(
            f"{unmarked.sum()} episodes end without an outcome (first at row {order[unmarked].min()}): {why}; choose"
            " last='terminal' (it was the outcome), 'truncate' (the record stops) or 'drop'"
        )


def _marks(columns: CheckedColumns, records: Records, layout: Layout) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return which outcome every row marks (-1 for none), which rows mark a truncation, and notes.

    Where a row marks both, the outcome counts.
    """
    outcome = np.full(len(columns), -1)
    notes: list[str] = []
    for place, name in enumerate(layout.done):
        marked = _ends(name, columns.flags(name)[records.order], records, layout.outcome)
        _check_one_outcome(marked & (outcome >= 0), records.order, layout.done)
        outcome = np.where(marked, place, outcome)
        if layout.outcome is None:
            notes += _rows_after(name, marked, records)
    if not layout.truncated:
        return outcome, np.zeros(len(columns), dtype=bool), notes
    stopped = columns.flags(layout.truncated)[records.order]
    return outcome, stopped & (outcome < 0), notes


def _ends(name: str, flag: np.ndarray, records: Records, reading: str | None) -> np.ndarray:
    """Return where a flag ends an episode: on its own row, or on the last row of a subject that has it."""
    first = np.flatnonzero(changes(records.subject))
    size = np.diff(np.r_[first, len(flag)])
    count = np.add.reduceat(flag.astype(int), first)
    if reading == "last row of the subject":
        unmarked = int(((count > 0) & ~flag[records.subject_last]).sum())
        require(
            not unmarked,
            f"column '{name}' is true within {counted(unmarked, 'subject')} but not on"
            f" {'its' if unmarked == 1 else 'their'} last row; mark the last row too, or drop the rows that follow",
        )
        return flag & records.subject_last
    repeated = int(((count == size) & (size > 1)).sum())
    require(
        reading is not None or not is_repeated(name, repeated, int((count > 0).sum())),
        f"column '{name}' is true on every row of {counted(repeated, 'subject')}, which would end an episode at each;"
        " pass outcome='last row of the subject', or outcome='marked row' if every row is an end",
    )
    return flag


def is_repeated(name: str, repeated: int, subjects: int) -> bool:
    """Return whether a flag belongs to a subject, not to a row: it is true on all rows of `repeated` of `subjects`."""
    return repeated > 0 and (bool(STAY.search(name)) or 2 * repeated >= subjects)


def _rows_after(name: str, marked: np.ndarray, records: Records) -> list[str]:
    """Refuse rows after a death in the same record; return a note on rows after another outcome where that is odd."""
    record = np.cumsum(records.opens) - 1
    marked_before = np.cumsum(marked) - marked  # Of all records …
    after = marked_before > marked_before[np.flatnonzero(records.opens)][record]  # … and of this record.
    subjects = len(np.unique(records.subject[after]))
    if not subjects:
        return []
    several = after.sum() > 1
    rows = f"{after.sum()} row{'s' if several else ''} of {counted(subjects, 'subject')}"
    what = f"{rows} {'follow' if several else 'follows'} a row where '{name}' is true"
    if DEATH.search(name):
        raise CounterpointError(
            f"{what}, and each would begin a new episode; drop the rows after a death, or pass"
            " outcome='last row of the subject' where the flag is true up to the last row, or outcome='marked row' if"
            " a new episode does begin there"
        )
    odd = STAY.search(name) or subjects < RARE * len(np.unique(records.subject[marked]))
    return [f"{what}: {'they are' if several else 'it is'} read as a new episode"] if odd else []


def _check_one_outcome(twice: np.ndarray, order: np.ndarray, done: Sequence[str]) -> None:
    if twice.any():
        raise CounterpointError(
            f"row {order[twice].min()} has two outcomes marked among {quoted(done)} ({twice.sum()} such rows); keep one"
        )
