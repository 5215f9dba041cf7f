"""Where a table marks the end of an episode: on which rows, with which outcome, and what follows a marked row."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from counterpoint.core.errors import CounterpointError, require
from counterpoint.data.tables.columns import CheckedColumns, quoted

if TYPE_CHECKING:
    from counterpoint.data.tables.reader import Reader

DEATH = re.compile("died|dead|death|deceas|expired|mortal|fatal|exitus", re.IGNORECASE)
"""In the name of an outcome that nothing follows."""
STAY = re.compile(f"{DEATH.pattern}|discharg", re.IGNORECASE)
"""In the name of an outcome that a stay has once; other ends may be of tables with many episodes a subject."""
RARE = 0.2
"""Rows behind such an end are noted where fewer of the subjects that had it have them."""


def marks(
    columns: CheckedColumns, order: np.ndarray, subject: np.ndarray, opens: np.ndarray, how: "Reader"
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Which outcome the table marks, where it says that the record stops, and notes; an outcome counts first.

    `order` sorts the table; `subject`, what is returned and `opens`, where a subject or an episode begins, are sorted.
    """
    outcome, notes = np.full(len(columns), -1), list[str]()
    for place, name in enumerate(how.done):
        marked = _ends(name, columns.flags(name)[order], subject, how)
        _check_one_outcome(marked & (outcome >= 0), order, how.done)
        outcome = np.where(marked, place, outcome)
        notes += _what_follows(name, marked, subject, opens, how)
    stopped = columns.flags(how.truncated)[order] if how.truncated else np.zeros(len(columns), dtype=bool)
    return outcome, stopped & (outcome < 0), notes


def _ends(name: str, flag: np.ndarray, subject: np.ndarray, how: "Reader") -> np.ndarray:
    """Where a flag ends an episode: on its own row, or on the last row of a subject that has it."""
    first = np.flatnonzero(np.r_[True, subject[1:] != subject[:-1]])
    size, count = np.diff(np.r_[first, len(subject)]), np.add.reduceat(flag.astype(int), first)
    last = np.r_[subject[1:] != subject[:-1], True]
    if how.outcome == "last row of the subject":
        gone = int(((count > 0) & ~flag[last]).sum())
        require(
            not gone,
            f"column '{name}' is true within {_subjects(gone)} but not on {_their(gone)} last row; mark the last row"
            " too, or drop the rows that follow",
        )
        return flag & last
    repeated = int(((count == size) & (size > 1)).sum())
    require(
        how.outcome is not None or not is_repeated(name, repeated, int((count > 0).sum())),
        f"column '{name}' is true on every row of {_subjects(repeated)}, which would end an episode at each;"
        " pass outcome='last row of the subject', or outcome='marked row' if every row is an end",
    )
    return flag


def is_repeated(name: str, whole: int, subjects: int) -> bool:
    """Whether a flag is that of a subject and not of a row, being true on all rows of `whole` of the `subjects`."""
    return whole > 0 and (bool(STAY.search(name)) or 2 * whole >= subjects)


def _what_follows(name: str, marked: np.ndarray, subject: np.ndarray, opens: np.ndarray, how: "Reader") -> list[str]:
    """What is done with rows behind an end in the same record: refused after a death, else noted where it is odd."""
    record = np.cumsum(opens) - 1
    before = np.cumsum(marked) - marked  # Marked rows above this one, of the whole table …
    after = before > before[np.flatnonzero(opens)][record]  # … and of its own record.
    ended, going_on = len(np.unique(subject[marked])), len(np.unique(subject[after]))
    if how.outcome is not None or not going_on:
        return []
    rows = f"{after.sum()} row{'s' if after.sum() > 1 else ''} of {_subjects(going_on)}"
    what = f"{rows} {'follow' if after.sum() > 1 else 'follows'} a row where '{name}' is true"
    if DEATH.search(name):
        raise CounterpointError(
            f"{what}, and each would begin a new episode; drop the rows after a death, or pass"
            " outcome='last row of the subject' where the flag is true up to the last row, or outcome='marked row' if"
            " a new episode does begin there"
        )
    odd = STAY.search(name) or going_on < RARE * ended
    return [f"{what}: {'they are' if after.sum() > 1 else 'it is'} read as a new episode"] if odd else []


def _check_one_outcome(twice: np.ndarray, order: np.ndarray, done: Sequence[str]) -> None:
    if twice.any():
        raise CounterpointError(
            f"row {order[twice].min()} has two outcomes marked among {quoted(done)} ({twice.sum()} such rows); keep one"
        )


def _subjects(count: int) -> str:
    return f"{count} subject{'' if count == 1 else 's'}"


def _their(count: int) -> str:
    return "its" if count == 1 else "their"
