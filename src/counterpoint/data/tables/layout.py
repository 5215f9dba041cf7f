"""Which row of a user's table follows which: sorted by subject and time, cut into episodes at ends and at gaps.

A clinical table has one row per subject and time, so the next state of row t is the state of row t + 1 of the same
episode. A record of T rows has no row after its last action; what that means is the user's choice (`last`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from counterpoint.core.errors import CounterpointError
from counterpoint.data.tables.columns import CheckedColumns, Times, quoted
from counterpoint.data.tables.cyclic_clock import check_cycle, unordered_hours
from counterpoint.data.tables.dates import DateOrder
from counterpoint.data.tables.isolated_dates import refuse_far_dates
from counterpoint.data.tables.odd_steps import step_notes, swapped_note, uneven
from counterpoint.data.tables.outcome_marks import marks
from counterpoint.data.tables.spelling import alike_note, refuse_totals

if TYPE_CHECKING:
    from counterpoint.data.tables.reader import Reader

GAPS = {"cut": "were cut: an episode stops there", "bridge": "are taken as consecutive"}
"""What is done about rows that are not."""


@dataclass(frozen=True)
class Layout:
    """`order` sorts the table, every other array is in sorted order."""

    order: np.ndarray
    keep: np.ndarray
    end: np.ndarray
    outcome: np.ndarray
    outcome_names: list[str]
    truncated: np.ndarray
    subject: np.ndarray
    subject_names: list[str]
    episode: np.ndarray
    step: np.ndarray
    elapsed: np.ndarray
    """Steps since the row before, as the clock has it; infinite for the first row of a subject or an episode."""
    length: str
    """The length of a step, as `step` takes it."""
    dates: DateOrder | None
    """The order of day and month in which the times were read, where they are dates such as 31/01/2024."""
    left_out: np.ndarray
    """Last rows that are left out because the user says the record stops there."""
    notes: list[str] = field(default_factory=list)

    @property
    def rows(self) -> np.ndarray:
        """The kept rows' numbers in the table as given."""
        return self.order[self.keep]

    def needed(self) -> np.ndarray:
        """Whether a row is kept, in the order of the table as given."""
        needed = np.zeros(len(self.order), dtype=bool)
        needed[self.rows] = True
        return needed

    def provenance(self) -> dict[str, Any]:
        """Whose rows are kept, where they stand and how they end; subjects and episodes are numbered without gaps."""
        present, subjects = np.unique(self.subject[self.keep], return_inverse=True)
        columns = {
            "outcome": self.outcome[self.keep],
            "terminated": self.outcome[self.keep] >= 0,
            "truncated": self.truncated[self.keep],
            "subject": subjects,
            "episode": np.unique(self.episode[self.keep], return_inverse=True)[1],
            "step": self.step[self.keep],
        }
        names = {"subject_names": [self.subject_names[code] for code in present], "outcome_names": self.outcome_names}
        return {name: torch.from_numpy(column) for name, column in columns.items()} | names


def lay_out(columns: CheckedColumns, how: "Reader") -> Layout:
    """Sort the rows and cut them into episodes."""
    codes, names = columns.codes(how.subject)
    refuse_totals(how.subject, codes, names)
    moment, shift = how.moments(columns), not how.next_state
    record = _records(columns, codes, how)
    check_cycle(how.time, moment, record)
    order, opens = _sorted(record, moment, how)
    strays = refuse_far_dates(how.time, moment, record)
    outcome, stopped, following = marks(columns, order, codes[order], opens, how)
    ended = np.r_[False, ((outcome >= 0) | stopped)[:-1]]
    elapsed, jumps, length, notes = _gaps(moment, order, opens, ended, how, shift)
    notes += [*alike_note(how.subject, names), *unordered_hours(how.time, moment, record), *strays, *following]
    if shift and length:
        notes += swapped_note(how.time, moment, record, given_step(length, moment))
        notes += step_notes(how.time, elapsed, ~opens & ~ended, record[order])
    start = opens | jumps | np.r_[True, ((outcome >= 0) | stopped)[:-1]]
    end = np.r_[start[1:], True]
    unmarked = end & (outcome < 0) & ~stopped
    stopped = stopped | (unmarked & np.r_[jumps[1:], False])
    unmarked = unmarked & ~stopped
    _check_choice(unmarked, order, how)
    ended = unmarked & (how.last == "terminal")
    outcome = np.where(ended, len(how.done), outcome)
    outcomes = [*how.done, *(["ended"] if how.done and ended.any() else [])] or ["terminated"]
    left_out = (stopped | (unmarked & (how.last == "truncate"))) & shift & ~np.r_[jumps[1:], False]
    stopped = stopped | (unmarked & (how.last == "truncate"))
    keep = ~((unmarked & (how.last == "drop")) | (stopped & shift))
    _check_kept(keep)
    # Shifting, the last row of a record that stops is only a next state, so the mark moves to the row that leads there.
    marked = np.r_[stopped[1:] & ~start[1:], False] if shift else stopped
    number = np.cumsum(start) - 1
    step = np.arange(len(order)) - np.flatnonzero(start)[number]
    notes += _vanished(codes[order], keep)
    whose = (codes[order], names, number, step, elapsed, length, moment.dates)
    return Layout(order, keep, end, outcome, outcomes, marked, *whose, left_out, notes)


def _records(columns: CheckedColumns, codes: np.ndarray, how: "Reader") -> np.ndarray:
    """A number for the subject and the episode of every row, in the order of subjects."""
    if not how.episode:
        return codes
    group = columns.codes(how.episode)[0]
    return codes * (group.max() + 1) + group


def _sorted(record: np.ndarray, moment: Times, how: "Reader") -> tuple[np.ndarray, np.ndarray]:
    """The order by subject, episode and time, and where in it a new subject or episode opens."""
    order = np.lexsort((moment.values, record))
    opens = changes(record[order])
    _check_unique(order, opens | changes(moment.values[order]), (how.subject, how.episode, how.time))
    return order, opens


def _gaps(
    moment: Times, order: np.ndarray, opens: np.ndarray, ended: np.ndarray, how: "Reader", shift: bool
) -> tuple[np.ndarray, np.ndarray, str, list[str]]:
    """Steps since the row before, where a step is missing, how long one is, and what was done about it."""
    apart = _apart(moment, order)
    inside, none = ~opens & ~ended, np.zeros(len(order), dtype=bool)
    if not inside.any():  # Every row is an episode: a step has no length but one that is given.
        length = given_step(how.step, moment) if how.step else 1.0
        return np.where(opens, np.inf, apart / length), none, how.step, []
    length = _step(apart[inside], moment, how)
    step = _said(length, moment)
    elapsed = np.where(opens, np.inf, apart / length)
    jumps = uneven(elapsed, inside) & shift
    if not jumps.any():
        return elapsed, none, step, []
    what = unevenness(jumps, inside, step)
    if how.gaps is None:
        raise CounterpointError(
            f"{what} in column '{how.time}'; choose gaps='cut' (an episode stops there) or 'bridge' (take them as"
            " consecutive), or give the step"
        )
    return elapsed, jumps if how.gaps == "cut" else none, step, [f"{what} and {GAPS[how.gaps]}"]


def unevenness(jumps: np.ndarray, inside: np.ndarray, step: str) -> str:
    return f"{jumps.sum()} of {inside.sum()} pairs of rows are not one step of {step} apart"


def _apart(moment: Times, order: np.ndarray) -> np.ndarray:
    """Distance to the row before; whole numbers are subtracted as such, in a type that holds the difference."""
    values = moment.values[order]
    values = values.astype(np.int64) if values.dtype.kind in "iu" else values
    return np.diff(values, prepend=values[:1]).astype(float)


def elapsed_steps(moment: Times, order: np.ndarray, opens: np.ndarray, step: str) -> np.ndarray:
    """Steps of a known length since the row before; infinite where a subject or an episode opens."""
    apart = _apart(moment, order)
    return np.where(opens, np.inf, apart / given_step(step, moment) if step else apart)


def _step(apart: np.ndarray, moment: Times, how: "Reader") -> float:
    """The length of a step in the clock's own unit: given, or the commonest distance, or the median one."""
    if how.step:
        return given_step(how.step, moment)
    lengths, counts = np.unique(apart, return_counts=True)
    common = counts.max() * 2 >= counts.sum()
    return float(lengths[counts.argmax()] if common else np.median(apart))


def given_step(step: str, moment: Times) -> float:
    try:
        bare = moment.per_second is not None and step.replace(".", "", 1).isdigit()
        length = float("nan") if bare else _length(step, moment)
    except (ValueError, TypeError):
        length = float("nan")
    if not 0 < length < float("inf"):
        form = "a number above 0" if moment.per_second is None else "a duration such as 4h or 30min"
        raise CounterpointError(f"step={step!r} is not a length of time here; give {form}")
    return length


def _length(step: str, moment: Times) -> float:
    import pandas as pd

    return float(step) if moment.per_second is None else pd.Timedelta(step).total_seconds() * moment.per_second


def _said(length: float, moment: Times) -> str:
    import pandas as pd

    if moment.per_second is None:
        return f"{length:g}"
    return str(pd.Timedelta(seconds=length / moment.per_second)).removeprefix("0 days ")


def _vanished(subject: np.ndarray, keep: np.ndarray) -> list[str]:
    """Subjects of whom nothing is left, because one row leads nowhere."""
    lost = len(np.unique(subject)) - len(np.unique(subject[keep]))
    if not lost:
        return []
    return [f"{lost} subjects have no two rows that follow each other and no marked outcome: they give no row"]


def changes(values: np.ndarray) -> np.ndarray:
    """Where a value differs from the one before it; the first always does."""
    return np.r_[True, values[1:] != values[:-1]]


def _check_unique(order: np.ndarray, differs: np.ndarray, names: Sequence[str]) -> None:
    places = np.flatnonzero(~differs)
    if len(places):
        place = places[np.argmin(order[places])]
        shared = " and ".join(f"'{name}'" for name in names if name)
        raise CounterpointError(
            f"rows {order[place - 1]} and {order[place]} have the same {shared} ({len(places)} such rows);"
            " keep one row for each"
        )


def _check_choice(unmarked: np.ndarray, order: np.ndarray, how: "Reader") -> None:
    if how.last is None and unmarked.any():
        why = f"{quoted(how.done)} does not mark them" if how.done else "no done column is given"
        raise CounterpointError(
            f"{unmarked.sum()} episodes end without an outcome (first at row {order[unmarked].min()}): {why}; choose"
            " last='terminal' (it was the outcome), 'truncate' (the record stops) or 'drop'"
        )


def _check_kept(keep: np.ndarray) -> None:
    if not keep.any():
        raise CounterpointError(
            "no episode has two rows, so no row has a next state; pass last='terminal' to keep them"
        )
