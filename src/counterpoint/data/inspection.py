"""What is in a user's table before it is loaded: what each column seems to be, what is odd, and which flags settle it.

The roles that are not given are guessed by name and by content, the loader is tried with them, and what it says is
reported. No value of a patient is shown: means need 20 subjects, and a treatment is named where 5 subjects had it.
"""

import csv
import json
import math
import os
import re
import shlex
from codecs import BOM_UTF16_BE, BOM_UTF16_LE, getincrementaldecoder
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from counterpoint.data.action_columns import FEW
from counterpoint.data.columns import DATES, TEXT_SUFFIXES, WORDS, CheckedColumns, Times, kind_of, open_table, quoted
from counterpoint.data.doses import Bins
from counterpoint.data.layout import REGULAR, changes
from counterpoint.data.missing import own_value
from counterpoint.data.reader import Reader
from counterpoint.data.schema import listed
from counterpoint.data.spaces import Discrete
from counterpoint.data.state_columns import MOST_LEVELS
from counterpoint.data.storage import MARK
from counterpoint.errors import CounterpointError, require

Kind = Literal["number", "whole number", "yes/no", "category", "date", "text or id", "empty", "unreadable"]
AMOUNTS = ("number", "whole number")
USABLE = (*AMOUNTS, "yes/no", "category")
"""Kinds that a model can take."""
ALIKE = 0.999
"""Columns whose correlation is beyond this say the same."""
SPARSE = 0.95
"""A column with a larger share of missing values is not suggested as state."""
STEPS = (1, 4, 8)
"""For how many steps values are carried forward to see what is left missing."""
SAMPLE = 20_000
"""Rows that columns are compared on."""
TRIED = 200_000
"""A table of more rows is tried on as many of its subjects as have this many."""
MANY, SOME = 20, 5
"""Subjects behind a mean or a cut that is shown, and behind a treatment that is named."""
RARE = 10
"""An action seen on fewer rows teaches little."""
ENCODINGS = ("utf-8", "cp1252", "latin-1")
PEOPLE = {"", "patient", "pat", "subject", "person", "participant", "case", "mrn", "individual", "animal", "uniquep",
          "traj", "trajectory", "unit", "user", "p", "s"}  # fmt: skip
STAYS = ("stay", "hadm", "admission", "encounter", "episode", "hospitalization")
CLOCKS = ("time", "hour", "hours", "step", "bloc", "block", "date", "datetime", "timestamp", "charttime", "timestep", "day",
          "days", "minute", "minutes", "week", "month", "visit", "period", "window", "cycle", "t")  # fmt: skip
ENDS = ("died", "death", "dead", "mort", "deceased", "expire", "discharg", "surviv", "terminal", "terminated", "done",
        "outcome", "alive")  # fmt: skip
GENERAL = ("done", "terminal", "terminated", "outcome")
"""Words for an end of whatever kind; one that says more is taken before them."""
TREATMENTS = ("dose", "treatment", "drug", "vaso", "iv", "fluid", "medication", "infusion", "therapy", "input", "insulin",
              "heparin", "norepinephrine", "chemo", "radio")  # fmt: skip
SUMS = ("total", "cum", "sum", "balance")


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
    """Whether it never changes within a subject."""
    like: str
    """Another column that says the same."""
    mean: float | None
    sd: float | None
    longest_run: int
    """Rows of one subject in a row without a value."""
    left: dict[str, float]
    """Share still missing after values are carried forward so many steps."""
    note: str
    """Why it is not used, or what to know of it."""


@dataclass(frozen=True)
class Records:
    """Whose rows there are."""

    rows: int
    subjects: int
    episodes: int
    rows_least: int
    rows_median: float
    rows_most: int
    single: int
    """Subjects with one row."""
    duplicates: int
    """Rows that share subject, episode and time with another."""
    nobody: int
    """Rows without a subject."""
    leading_zeros: int
    """Subjects whose name is another's but for leading zeros."""


@dataclass(frozen=True)
class Clock:
    """How the rows of a subject follow each other."""

    step: str
    """The commonest distance of two rows, or the median one where none is common."""
    pairs: int
    gaps: int
    """Pairs of rows that are not one step apart."""
    longest: float
    """The longest gap in steps."""
    irregular: float
    """Share of the pairs whose distance is not exactly a step."""


@dataclass(frozen=True)
class Gone:
    """Missing values of the state."""

    rows: float
    """Share of the rows with any."""
    cells: float
    left: dict[str, float]
    """Share of the values still missing after carrying forward so many steps."""


@dataclass(frozen=True)
class Dose:
    """One action column, and how often each of its actions was taken."""

    name: str
    distinct: int
    continuous: bool
    bins: int
    """Into how many it would be cut; 0 where it is taken as it is."""
    missing: int
    negative: int
    support: list[tuple[str, int]]
    """An action or bin, and its rows; those of few subjects are not named."""


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
class Problem:
    """Something to decide or to mend."""

    what: str
    why: str
    flag: str
    """What settles it."""


@dataclass(frozen=True)
class Trial:
    """What the loader made of the table with the suggested choices."""

    rows: int = 0
    episodes: int = 0
    subjects: int = 0
    states: int = 0
    actions: int = 0
    """0 where they are continuous."""
    ends: dict[str, int] | None = None
    sample: int = 0
    """Rows that were tried, where not all were."""
    notes: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class Inspection:
    """What `inspect` found; `page` to read, `to_json` to keep, `flags` and `study` to go on with."""

    source: str
    records: Records
    columns: tuple[ColumnFacts, ...]
    clock: Clock | None
    missing: Gone
    doses: tuple[Dose, ...]
    support: tuple[tuple[tuple[str, ...], int], ...]
    """Rows of every combination of actions that was taken."""
    outcomes: tuple[End, ...]
    open_ends: int
    """Episodes whose last row has no outcome."""
    rewards_last: bool
    """Whether rewards other than 0 stand on last rows only."""
    problems: tuple[Problem, ...]
    trial: Trial
    choices: Mapping[str, Any]
    """What `Reader` would be told, by name."""
    guessed: tuple[str, ...]
    """Which of the roles were guessed."""

    def to_json(self) -> dict[str, Any]:
        """Plain numbers and words."""
        plain = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "choices"}
        plain |= {"choices": _worded(self.choices), "flags": self.flags()}
        return json.loads(json.dumps(_plain(plain)))

    def flags(self) -> list[str]:
        """The choices as words of `counterpoint fit`'s command line."""
        words: list[str] = []
        for name, value in _worded(self.choices).items():
            words += [f"--{name.replace('_', '-')}", *(value if isinstance(value, list) else [str(value)])]
        return words

    def command(self) -> str:
        """The command line to run next."""
        return shlex.join(["counterpoint", "fit", "--run", "runs/first", "--data", self.source or "TABLE", *self.flags()])

    def study(self) -> str:
        """The choices as a study file for `counterpoint run`."""
        lines = ["# How the table is read; written by counterpoint check. See from_dataframe for what each word means.", "[table]"]
        for name, value in _worded(self.choices).items():
            text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
            lines.append(f"{name} = {text}" + ("  # guessed" if name in self.guessed else ""))
        return "\n".join(lines) + "\n"

    def page(self) -> str:
        """Everything, as Markdown."""
        parts = [f"# {self.source or 'The table'}", self.summary(), "## Columns", _markdown(self.table())]
        for title, text in self.sections().items():
            parts += [f"## {title}", text]
        return "\n\n".join(parts) + "\n"
