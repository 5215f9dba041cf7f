"""Facts about a table that may be shown.

No value of a patient is among them. Means and cuts are shown from 20 subjects on, names of actions from 5 on.
"""

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["number", "whole number", "yes/no", "category", "date", "text or id", "empty", "unreadable"]
ROLES = ("subject", "episode", "time", "reward", "done", "truncated", "action", "state", "next_state")
NEEDED = ("subject", "time", "state", "action", "reward")
Roles = dict[str, tuple[str, ...]]
AMOUNTS = ("number", "whole number", "yes/no")
USABLE = (*AMOUNTS, "category")
"""Kinds of columns that a model can use."""
STEPS = (1, 4, 8)
"""Numbers of steps for which carrying values forward is tried."""
MANY, SOME = 20, 5
"""Least number of subjects for a mean or a cut to be shown, and for an action to be named."""
BEYOND = 10
"""Least number of subjects at or beyond a quantile for it to be shown."""
TAIL = 0.05
"""Share of the values beyond a quantile that is shown."""
RARE = 10
"""An action taken on fewer rows is rare."""


@dataclass(frozen=True)
class ColumnFacts:
    """Facts about one column."""

    name: str
    role: str
    """subject, time, state …; empty where the column is not used."""
    guessed: bool
    kind: Kind
    distinct: int
    missing: float
    """Share of the rows."""
    constant: bool
    static: bool
    """Whether it is constant within subjects and differs between them."""
    like: str
    """A copy of the column."""
    mean: float | None
    sd: float | None
    low: float | None
    """5% quantile; None for columns that are no numbers, and where fewer than ten subjects are at or below it."""
    high: float | None
    """95% quantile, shown where at least ten subjects are at or above it, and `low` is shown too."""
    isolated: int | None
    """Number of values far from all others; None for columns that are no numbers."""
    longest_run: int
    """Largest number of consecutive rows of a subject without a value."""
    left: dict[str, float]
    """Share still missing after carrying values forward, by the number of steps."""
    note: str
    """Why it is not used, or a remark."""


@dataclass(frozen=True)
class SubjectCounts:
    """Counts of rows, subjects and episodes."""

    rows: int
    subjects: int = 0
    episodes: int = 0
    rows_least: int = 0
    rows_median: float = 0.0
    rows_most: int = 0
    single: int = 0
    """Subjects with one row."""
    duplicates: int = 0
    """Rows that repeat the subject, episode and time of another."""
    nobody: int = 0
    """Rows without a subject."""
    alike: int = 0
    """Subjects whose id differs from another only by blanks, capitals, leading zeros or a trailing .0."""


@dataclass(frozen=True)
class Clock:
    """Regularity of the times."""

    step: str
    """The commonest distance of two rows, or the median one where none is common."""
    pairs: int
    gaps: int
    """Pairs of rows that are not one step apart."""
    longest: float
    """Longest distance in steps."""
    irregular: float
    """Share of the pairs whose distance is not exactly a step."""


@dataclass(frozen=True)
class MissingValues:
    """Missing values of the state."""

    rows: float = 0.0
    """Share of the rows with any."""
    cells: float = 0.0
    left: dict[str, float] = field(default_factory=dict)
    """Share of the values still missing after carrying forward, by the number of steps."""


@dataclass(frozen=True)
class ColumnSupport:
    """How often each action of one action column was taken."""

    name: str
    distinct: int
    bins: int
    """Suggested number of bins; 0 where the column is used as it is."""
    missing: int
    negative: int
    static: bool
    choices: int
    """Number of actions or bins; 0 where they are too many to list."""
    support: dict[str, int]
    """Rows of every action or bin; actions of few subjects are counted together."""


@dataclass(frozen=True)
class Support:
    """How often each combination of actions was taken. The field names are those of check-table.json."""

    doses: tuple[ColumnSupport, ...] = ()
    """The action columns one by one."""
    possible: int = 0
    taken: int = 0
    rare: int = 0
    """Combinations on few rows."""
    support: tuple[tuple[tuple[str, ...], int], ...] = ()
    """(an action of each column, number of rows)."""


@dataclass(frozen=True)
class End:
    """Counts of one outcome column."""

    name: str
    rows: int
    subjects: int
    repeated: int
    """Subjects on all of whose rows it is true."""
    several: int
    """Subjects on several but not all of whose rows it is true."""
    early: int
    """Subjects of whom it is true, but not on the last row."""
    missing: int


@dataclass(frozen=True)
class Rewards:
    """Facts about the rewards."""

    missing: int = 0
    """Rows without a reward before the last of an episode."""
    last_only: bool = False
    """Whether all rewards other than 0 are on last rows."""
    constant: bool = False
    unlike: bool = False
    """Whether last rows without an outcome carry a reward unlike all others."""


@dataclass(frozen=True)
class TableProblem:
    """A problem to decide on or to correct: what, why it matters, and the flag that settles it."""

    what: str
    why: str
    flag: str


@dataclass(frozen=True)
class RoleGuess:
    """A role of a column beyond state and action: the setting that declares it, and why."""

    setting: str
    """cyclic, recursion, bounds, exogenous or per."""
    word: str
    """The role as on the command line, as hour=24."""
    column: str
    why: str


@dataclass(frozen=True)
class Trial:
    """Result of reading the table with the suggested choices."""

    rows: int = 0
    episodes: int = 0
    subjects: int = 0
    states: int = 0
    actions: int = 0
    """Number of actions; 0 where they are continuous."""
    ends: dict[str, int] = field(default_factory=dict)
    stopped: int = 0
    """Episodes that end without an outcome."""
    sample: int = 0
    """Rows that were tried; 0 for all."""
    notes: tuple[str, ...] = ()
    error: str = ""
