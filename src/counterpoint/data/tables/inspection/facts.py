"""What may be said of a table: no value of a patient, a mean or a cut from 20 subjects on, an action from 5 on."""

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["number", "whole number", "yes/no", "category", "date", "text or id", "empty", "unreadable"]
ROLES = ("subject", "episode", "time", "reward", "done", "truncated", "action", "state", "next_state")
NEEDED = ("subject", "time", "state", "action", "reward")
Roles = dict[str, tuple[str, ...]]
AMOUNTS = ("number", "whole number", "yes/no")
USABLE = (*AMOUNTS, "category")
"""Kinds that a model can take."""
STEPS = (1, 4, 8)
"""For how many steps values are carried forward to see what is left missing."""
MANY, SOME = 20, 5
"""Subjects behind a mean or a cut that is shown, and behind an action that is named."""
RARE = 10
"""An action taken on fewer rows teaches little."""


@dataclass(frozen=True)
class ColumnFacts:
    """What is known of one column, without a value of it."""

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
    """Whether it never changes within a subject, though it differs between them."""
    like: str
    """Another column that says the same."""
    mean: float | None
    sd: float | None
    longest_run: int
    """Most rows one after another for which a subject has no value."""
    left: dict[str, float]
    """Share still missing after values are carried forward so many steps."""
    note: str
    """Why it is not used, or what to know of it."""


@dataclass(frozen=True)
class SubjectCounts:
    """Whose rows there are."""

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
    """Subjects whose name is another's but for blanks, capitals, leading zeros or a trailing .0."""


@dataclass(frozen=True)
class Clock:
    """How the rows of a subject follow each other."""

    step: str
    """The commonest distance of two rows, or the median one where none is common."""
    pairs: int
    gaps: int
    """Pairs of rows that are not one step apart."""
    longest: float
    """The longest distance in steps."""
    irregular: float
    """Share of the pairs whose distance is not exactly a step."""


@dataclass(frozen=True)
class Gone:
    """Missing values of the state."""

    rows: float = 0.0
    """Share of the rows with any."""
    cells: float = 0.0
    left: dict[str, float] = field(default_factory=dict)
    """Share of the values still missing after carrying forward so many steps."""


@dataclass(frozen=True)
class Dose:
    """One action column, and how often each of its actions was taken."""

    name: str
    distinct: int
    bins: int
    """Into how many it would be cut; 0 where it is taken as it is."""
    missing: int
    negative: int
    static: bool
    choices: int
    """Different actions or bins; 0 where they are too many to list."""
    support: dict[str, int]
    """Rows of every action or bin; those of few subjects are counted together."""


@dataclass(frozen=True)
class Actions:
    """The action columns, and how often each combination was taken."""

    doses: tuple[Dose, ...] = ()
    possible: int = 0
    taken: int = 0
    rare: int = 0
    """Combinations on few rows."""
    support: tuple[tuple[tuple[str, ...], int], ...] = ()
    """A value for each action column, and the rows that had them."""


@dataclass(frozen=True)
class End:
    """One outcome column."""

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
    """Where rewards stand."""

    missing: int = 0
    """Rows before an episode's last that have none."""
    last_only: bool = False
    """Whether rewards other than 0 stand on last rows only."""
    constant: bool = False
    unlike: bool = False
    """Whether last rows without an outcome carry a reward unlike all others."""


@dataclass(frozen=True)
class TableProblem:
    """Something to decide or to mend: what, why it matters, and the flag that settles it."""

    what: str
    why: str
    flag: str


@dataclass(frozen=True)
class Trial:
    """What the loader made of the table with the suggested choices."""

    rows: int = 0
    episodes: int = 0
    subjects: int = 0
    states: int = 0
    actions: int = 0
    """0 where they are continuous."""
    ends: dict[str, int] = field(default_factory=dict)
    stopped: int = 0
    """Episodes that end without an outcome."""
    sample: int = 0
    """Rows that were tried, where not all were."""
    notes: tuple[str, ...] = ()
    error: str = ""
