"""What is in a user's table before it is loaded: what each column seems to be, what is odd, and which flags settle it.

Roles that are not given are guessed by name and content, and the loader is tried with them. No value of a patient is
shown: a mean or a cut needs 20 subjects behind it, and an action is named where 5 subjects had it.
"""

import csv
import json
import math
import os
import re
import shlex
from codecs import BOM_UTF16_BE, BOM_UTF16_LE, getincrementaldecoder
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from counterpoint.data.action_columns import FEW
from counterpoint.data.columns import DATES, TEXT_SUFFIXES, WORDS, CheckedColumns, kind_of, open_table, quoted
from counterpoint.data.doses import ActionColumn, Bins
from counterpoint.data.layout import REGULAR, changes
from counterpoint.data.missing import steady
from counterpoint.data.reader import Reader
from counterpoint.data.spaces import Discrete
from counterpoint.data.state_columns import MOST_LEVELS
from counterpoint.data.table_format import MARK
from counterpoint.errors import CounterpointError, require

Kind = Literal["number", "whole number", "yes/no", "category", "date", "text or id", "empty", "unreadable"]
AMOUNTS = ("number", "whole number", "yes/no")
USABLE = (*AMOUNTS, "category")
"""Kinds that a model can take."""
ROLES = ("subject", "episode", "time", "reward", "done", "truncated", "action", "state", "next_state")
NEEDED = ("subject", "time", "state", "action", "reward")
Roles = dict[str, tuple[str, ...]]
ALIKE = 0.999
"""Columns whose correlation is beyond this say the same."""
SPARSE = 0.95
"""A column with a larger share of missing values is not suggested as state."""
STEPS = (1, 4, 8)
"""For how many steps values are carried forward to see what is left missing."""
ENOUGH = 0.05
"""Share of missing values that a suggested carrying forward may leave to be filled."""
OFTEN = 0.2
"""Share of missing values from which a mask is worth a thought."""
SAMPLE = 20_000
"""Rows that columns are compared on."""
TRIED = 100_000
"""A table of more rows is tried on as many of its subjects as have about this many."""
MANY, SOME = 20, 5
"""Subjects behind a mean or a cut that is shown, and behind an action that is named."""
RARE = 10
"""An action taken on fewer rows teaches little."""
MOST_ACTION_COLUMNS = 3
"""Every combination of their doses is an action, so more are not guessed."""

PEOPLE = {"id", "identifier", "patient", "pat", "pid", "subject", "person", "participant", "mrn", "individual",
          "animal", "traj", "trajectory"}  # fmt: skip
STAYS = {"stay", "icustay", "encounter", "episode", "hadm"}
NUMBERED = {"case", "unit", "user", "uniquep"}, {"admission", "hospitalization"}
"""People and stays, where a number or an id of theirs is named."""
CLOCKS = {"time", "hour", "hours", "step", "bloc", "block", "date", "datetime", "timestamp", "timestep", "day", "days",
          "minute", "minutes", "week", "month", "visit", "period", "window", "cycle", "t"}  # fmt: skip
MOMENTS = ("time", "date", "timestamp")
ENDS = ("died", "death", "dead", "mort", "deceased", "expire", "discharg", "surviv", "alive", "terminal", "terminated",
        "done", "outcome")  # fmt: skip
GENERAL = ("terminal", "terminated", "done", "outcome")
"""An end of whatever kind; a column that says more is taken first."""
STOPS = ("truncated", "censored", "timeout")
TREATMENTS = ("dose", "treatment", "drug", "vaso", "iv", "fluid", "medication", "infusion", "therapy", "input",
              "insulin", "heparin", "norepinephrine", "chemo", "radio")  # fmt: skip
SUMS = ("total", "cum", "sum", "balance")

SAME, ID = "says the same as", "an id"
ENDING, OVERLAP, OTHER = "tells how it ends", "overlaps another outcome", "another treatment"
LEFT_OUT = (
    (ENDING, "as state it would tell the future, and an outcome must be yes or no", "--done NAME"),
    (OVERLAP, "a row can have one outcome only", "--done NAME"),
    (OTHER, "what is given in the same hour belongs to the action, not to the state before it", "--action NAME"),
)
"""Why columns are left out that a user may want to choose, and how."""
MEANS = "mean ± sd"
SETTLED = "it is left out"
UNNAMED = f"fewer than {SOME} subjects"
LEGEND = f"A role with a question mark is a guess. No patient's values are shown; a mean needs {MANY} subjects."


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
class Records:
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
    leading_zeros: int = 0
    """Subjects whose name is another's but for leading zeros or blanks."""


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
class Problem:
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


@dataclass(frozen=True)
class Inspection:
    """What `inspect` found: `page` to read, `to_json` to keep, `flags` and `study` to go on with."""

    source: str
    """The path; empty for a DataFrame."""
    encoding: str
    records: Records
    columns: tuple[ColumnFacts, ...]
    clock: Clock | None
    missing: Gone
    actions: Actions
    outcomes: tuple[End, ...]
    open_ends: int
    """Episodes whose last row has no outcome."""
    rewards: Rewards
    guessed: tuple[str, ...]
    """The roles that were guessed."""
    choices: dict[str, Any] = field(default_factory=dict)
    """What the loader would be told, by the names of `Reader`'s fields; bins as the command line has them."""
    problems: tuple[Problem, ...] = ()
    trial: Trial = Trial()

    def to_json(self) -> dict[str, Any]:
        """Plain numbers and words."""
        return json.loads(json.dumps(asdict(self) | {"flags": self.flags()}))

    def flags(self) -> list[str]:
        """The choices as words of `counterpoint fit`'s command line."""
        words: list[str] = []
        for name, value in self.choices.items():
            words += [f"--{name.replace('_', '-')}", *map(str, value if isinstance(value, list) else [value])]
        return words

    def command(self) -> str:
        """The command line to run next."""
        start = ["counterpoint", "fit", "--run", "runs/first", "--data", self.source or "TABLE"]
        unnamed = [word for role in NEEDED if role not in self.choices for word in (f"--{role}", "NAME")]
        return shlex.join([*start, *self.flags(), *unnamed])

    def call(self) -> str:
        """The same in Python."""
        words = [f"{name}={value!r}" for name, value in self.choices.items() if name != "bins"]
        bins = ", ".join(f"cp.Bins({dose.name!r}, {dose.bins})" for dose in self.actions.doses if dose.bins)
        return f"cp.from_dataframe({', '.join(['table', *words, *([f'actions=[{bins}]'] if bins else [])])})"

    def study(self) -> str:
        """The choices as a study file for `counterpoint run`."""
        lines = ["# How the table is read, as counterpoint check suggests.", "[table]"]
        for name, value in self.choices.items():
            text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
            lines.append(f"{name} = {text}" + ("  # guessed" if name in self.guessed else ""))
        return "\n".join(lines) + "\n"

    def page(self) -> str:
        """Everything, as Markdown."""
        parts = [f"# {self.source or 'The table'}", summary(self), "## Columns", markdown(column_rows(self)), LEGEND]
        for title, text in sections(self).items():
            parts += [f"## {title}", text]
        return "\n\n".join(parts) + "\n"


def inspect(
    table: Any,
    *,
    subject: str = "",
    time: str = "",
    state: str | Sequence[str] = (),
    action: str | Sequence[str] = (),
    reward: str = "",
    done: str | Sequence[str] = (),
    episode: str = "",
    encoding: str = "utf-8",
) -> Inspection:
    """Look at a table before it is loaded: a pandas or polars DataFrame, or the path of a CSV, TSV or Parquet file.

    Columns whose role is not given are guessed; the result says which. Nothing is changed and nothing is kept.

    Example:
        >>> found = counterpoint.inspect("patients.csv", action=["vasopressor", "fluid"])  # doctest: +SKIP
        >>> print(found.page())  # doctest: +SKIP
    """
    named = {"subject": subject, "episode": episode, "time": time, "reward": reward}
    named |= {"done": done, "action": action, "state": state}
    given = {role: _names(role, named.get(role, ())) for role in ROLES}
    columns, used_encoding = _open(table, given, encoding)
    look = _look(columns, given)
    bins = _suggested_bins(look)
    found = _find(look, bins)
    path = str(table) if isinstance(table, str | os.PathLike) else ""
    found = replace(found, source=path, encoding=used_encoding)
    found = replace(found, choices=_choices(look, found, bins))
    problems = (*_about_encoding(encoding, used_encoding), *_problems(look, found))
    return replace(found, problems=problems, trial=_try(look, found.choices, bins))


def _names(role: str, given: Any) -> tuple[str, ...]:
    """One name or several; an empty one is none."""
    listed = isinstance(given, Iterable) and not isinstance(given, str)
    several = tuple(given) if listed else () if given is None else (given,)
    wrong = [name for name in several if not isinstance(name, str)]
    require(not wrong, f"{role}={given!r} does not name a column; give its name, or a list of names")
    return tuple(str(name) for name in several if name)


def _open(table: Any, given: Roles, encoding: str) -> tuple[CheckedColumns, str]:
    """The table, its ids as text so that 007 is not 7, and the encoding that it was read in."""
    named = [name for names in given.values() for name in names]
    ids = [*given["subject"], *given["episode"]]
    if isinstance(table, str | os.PathLike):
        _check_foreign(Path(table))
    if isinstance(table, str | os.PathLike) and kind_of(Path(table)) in TEXT_SUFFIXES:
        encoding, header = _peek(Path(table), encoding)
        ids += [name for name in header if name not in named and _id_of(name)]
    columns = open_table(table, named, ids, encoding)
    names = list(columns.frame.columns)
    require(bool(names), "the table has no columns; pass one with a column for subject, time, state and action")
    for name in names:
        require(isinstance(name, str) and name != "", f"a column is named {name!r}; give every column a name in text")
        require(names.count(name) == 1, f"column '{name}' occurs {names.count(name)} times; rename or drop the others")
    return columns, encoding


def _check_foreign(path: Path) -> None:
    """Refuse our own tables, which say what they hold; what is wrong with other files is the loader's to say."""
    from pyarrow import parquet

    try:
        with path.open("rb") as file:
            ours = file.read(len(MARK)) == MARK.encode()
        if path.suffix.lower() == ".parquet":
            ours = b"counterpoint" in (parquet.read_metadata(path).metadata or {})
    except (OSError, ValueError):
        return
    require(not ours, f"{path} was written by counterpoint and needs no check; pass it to fit --data without flags")


def _peek(path: Path, asked: str) -> tuple[str, list[str]]:
    """The encoding in which every byte is text, the one asked for first, and the words of the first line."""
    import pyarrow as pa

    try:
        with pa.input_stream(path) as file:
            head = file.read(65_536)
        utf16 = ["utf-16"] if head[:2] in (BOM_UTF16_LE, BOM_UTF16_BE) else []
        encoding = next(name for name in (asked, *utf16, "utf-8", "cp1252", "latin-1") if _decodes(path, name))
        line = next(iter(head.decode(encoding, errors="ignore").splitlines()), "").removeprefix("\ufeff")
        words = {word for mark in ",;\t" for row in csv.reader([line], delimiter=mark) for word in row}
    except (OSError, ValueError, LookupError, csv.Error):
        return asked, []  # The loader says what is wrong with the file.
    return encoding, sorted(words)


def _decodes(path: Path, encoding: str) -> bool:
    import pyarrow as pa

    decoder = getincrementaldecoder(encoding)()
    try:
        with pa.input_stream(path) as file:
            while chunk := file.read(1 << 20):
                decoder.decode(chunk)
        decoder.decode(b"", final=True)
    except UnicodeError:
        return False
    return True


@dataclass(frozen=True)
class _Column:
    """A column as numbers: amounts as they are, dates and labels as codes, yes and no as 1 and 0, NaN where missing."""

    name: str
    kind: Kind
    values: np.ndarray
    distinct: int
    labels: tuple[str, ...] = ()
    """What the codes stand for."""
    trouble: str = ""
    """Why a model cannot take it."""


def _take(columns: CheckedColumns, name: str) -> _Column:
    try:
        return _read(columns, name)
    except (CounterpointError, OverflowError) as error:
        large = "holds whole numbers that are too large; make them text, or smaller"
        line = large if isinstance(error, OverflowError) else str(error).removeprefix(f"column '{name}' ")
        return _Column(name, "unreadable", np.full(len(columns), np.nan), 0, trouble=line)


def _read(columns: CheckedColumns, name: str) -> _Column:
    import pyarrow as pa

    if columns.holds_labels(name):
        return _labels(columns, name)
    kind = columns.arrow(name).type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_duration(kind):
        codes = _codes(columns, name)
        return _Column(name, "date", np.where(codes < 0, np.nan, codes), int(codes.max()) + 1)
    values = columns.measured(name)
    known = np.unique(values[~np.isnan(values)])
    return _Column(name, _amount_kind(known), values, len(known))


def _amount_kind(known: np.ndarray) -> Kind:
    if not len(known):
        return "empty"
    if known.tolist() == [0, 1]:
        return "yes/no"
    return "whole number" if (known == np.round(known)).all() else "number"


def _labels(columns: CheckedColumns, name: str) -> _Column:
    """Text: yes and no, dates, a few levels, or an id."""
    used, codes = np.unique(_codes(columns, name), return_inverse=True)
    every = columns.arrow(name).dictionary_encode().dictionary.to_pylist()
    labels = tuple(str(every[code]) for code in used.tolist() if code >= 0)
    codes = codes.astype(float) - (used[0] < 0)  # The first is −1 where a value is missing.
    codes[codes < 0] = np.nan
    stray = columns.categories(name) is None and columns.holds_stray_text(name)
    trouble = "holds numbers as text, or text among numbers; make it all numbers" if stray else ""
    truth = [WORDS.get(label.strip().lower()) for label in labels]
    if set(truth) == {True, False}:
        meant = np.array([*truth, np.nan], dtype=float)[np.nan_to_num(codes, nan=-1).astype(int)]
        return _Column(name, "yes/no", meant, 2, ("no", "yes"), trouble)
    kind: Kind = "text or id" if len(labels) > MOST_LEVELS else "category" if labels else "empty"
    kind = "date" if labels and not stray and _are_dates(labels[:100]) else kind
    return _Column(name, kind, codes, len(labels), labels, trouble)


def _are_dates(labels: Sequence[str]) -> bool:
    import pandas as pd

    for form in DATES:
        try:
            pd.to_datetime(pd.Series(labels, dtype="str"), format=form)
        except (ValueError, TypeError, OverflowError):
            continue
        return True
    return False


def _codes(columns: CheckedColumns, name: str) -> np.ndarray:
    """What a column holds as numbers 0, 1, 2 … in the order of the first rows; −1 where it is missing."""
    encoded = columns.arrow(name).dictionary_encode()
    return np.where(columns.present(name), encoded.indices.fill_null(-1).to_numpy(), -1).astype(np.int64)


@dataclass(frozen=True)
class _Log:
    """The rows in the order of subject, episode and time; every array is in that order."""

    order: np.ndarray
    subject: np.ndarray
    opens: np.ndarray
    """Where a subject or an episode begins."""
    same: np.ndarray
    """Where subject, episode and time are those of the row before."""
    elapsed: np.ndarray
    """Steps since the subject's row before; 0 for its first."""
    step: str
    """How long a step is; empty where no clock says so."""
    trouble: str = ""
    """Why the times cannot be read."""

    @property
    def last(self) -> np.ndarray:
        """Where an episode ends."""
        return np.r_[self.opens[1:], True]

    @cached_property
    def first_row(self) -> np.ndarray:
        """For each row its subject's first."""
        begins = changes(self.subject)
        return np.flatnonzero(begins)[np.cumsum(begins) - 1]


def _log(columns: CheckedColumns, roles: Roles) -> _Log:
    """Sort the rows; without a subject they are one subject's, without a clock they stay as they are."""
    none = np.zeros(len(columns), dtype=np.int64)
    subject, episode = (_codes(columns, roles[role][0]) if roles[role] else none for role in ("subject", "episode"))
    moment, per_second, trouble = none, None, "no clock"
    try:
        if roles["time"]:
            times = columns.times(roles["time"][0])
            moment, per_second, trouble = times.values, times.per_second, ""
    except CounterpointError as error:
        trouble = str(error)
    order = np.lexsort((moment, episode, subject))
    begins = changes(subject[order])
    opens = begins | changes(episode[order])
    if trouble:
        return _Log(order, subject[order], opens, none > 0, (~begins).astype(float), "", trouble)
    apart = np.r_[0.0, np.diff(moment[order].astype(np.int64 if moment.dtype.kind in "iu" else float))]
    length = _length(apart[~opens & (apart > 0)])
    elapsed = np.where(begins, 0.0, apart / length)
    return _Log(order, subject[order], opens, ~opens & (apart == 0), elapsed, _said(length, per_second))


def _length(apart: np.ndarray) -> float:
    """The commonest distance of two rows, or the median one where it is not that of half of them."""
    if not len(apart):
        return 1.0
    lengths, counts = np.unique(apart, return_counts=True)
    common = counts.max() * 2 >= counts.sum()
    return float(lengths[counts.argmax()] if common else np.median(apart))


def _said(length: float, per_second: float | None) -> str:
    """A length of time as --step takes it."""
    if per_second is None:
        return f"{length:.10g}"
    seconds, sizes = length / per_second, {"D": 86_400, "h": 3_600, "min": 60, "s": 1}
    whole = [unit for unit, size in sizes.items() if seconds % size == 0 and seconds < 1000 * size]
    near = [unit for unit, size in sizes.items() if seconds >= size]
    unit = next(iter([*whole, *near]), "s")
    return f"{seconds / sizes[unit]:.3g}{unit}" if seconds >= 1 else f"{seconds:.9f}s"


@dataclass(frozen=True)
class _Look:
    """The table with the roles of its columns."""

    columns: CheckedColumns
    taken: dict[str, _Column]
    given: Roles
    roles: Roles
    log: _Log
    alike: dict[str, list[str]]
    static: set[str]
    unused: dict[str, str]
    """Why a column has no role."""

    def those(self, role: str) -> list[_Column]:
        return [self.taken[name] for name in self.roles[role]]

    def free(self) -> list[_Column]:
        return _free(self.taken, self.roles)

    def sorted(self, column: _Column) -> np.ndarray:
        return column.values[self.log.order]

    def flag(self, column: _Column) -> np.ndarray:
        """Where a yes/no column is true, sorted."""
        return (self.sorted(column) == 1) & (column.kind in AMOUNTS)

    def subjects_of(self, rows: np.ndarray) -> int:
        """How many subjects have such a row; rows are sorted."""
        own = self.log.subject[rows]
        return int(changes(own).sum()) if len(own) and self.roles["subject"] else 0


def _look(columns: CheckedColumns, given: Roles) -> _Look:
    """Take every column once, and find out what each is: first whose and when, then the rest."""
    taken = {name: _take(columns, name) for name in columns.frame.columns}
    for name in (*given["subject"], *given["episode"]):
        require(taken[name].kind != "unreadable", f"column '{name}' {taken[name].trouble}")
    roles = dict(given)  # Filled as one role after the other is found.
    roles["subject"] = given["subject"] or _guess_subject(_free(taken, roles))
    roles["episode"] = given["episode"] or _guess_episode(columns, _free(taken, roles), roles["subject"])
    roles["time"] = given["time"] or _guess_time(columns, _free(taken, roles), roles)
    log = _log(columns, roles)
    ids = (*roles["subject"], *roles["episode"])
    alike = _alike([column for column in taken.values() if column.kind in USABLE and column.name not in ids])
    look = _Look(columns, taken, given, roles, log, alike, _static(taken, log, roles), {})
    roles["reward"] = given["reward"] or _guess_reward(look.free())
    roles["truncated"] = _named(look.free(), STOPS, ("yes/no",))[:1]
    roles["done"] = given["done"] or _guess_done(look)
    roles["action"] = given["action"] or _guess_action(look)
    roles["state"] = given["state"] or _guess_state(look)
    roles["next_state"] = _guess_next(look)
    return look


def _free(taken: dict[str, _Column], roles: Roles) -> list[_Column]:
    used = {name for names in roles.values() for name in names}
    return [column for name, column in taken.items() if name not in used]


def _tokens(name: str) -> list[str]:
    """The words of a column's name: 'maxDose_vaso' is max, dose, vaso."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def _says(name: str, words: Sequence[str]) -> bool:
    """Whether a word of the name is one of these, or begins with one that is long enough to tell."""
    return any(token == word or (len(word) > 2 and token.startswith(word)) for token in _tokens(name) for word in words)


def _named(free: Sequence[_Column], words: Sequence[str], kinds: Sequence[str]) -> tuple[str, ...]:
    return tuple(c.name for c in free if _says(c.name, words) and c.kind in kinds and c.distinct > 1)


def _id_of(name: str) -> Literal["", "person", "stay"]:
    """Whether a name is that of an id, and of whose."""
    compact = "".join(_tokens(name))
    bare = re.sub(r"(identifier|id|number|num|nr|no|key)$", "", compact)
    if compact in PEOPLE or (bare != compact and bare in PEOPLE | NUMBERED[0]):
        return "person"
    stay = bare in NUMBERED[1] or bare.endswith(("stay", "encounter"))
    return "stay" if compact in STAYS or (bare != compact and (stay or bare in STAYS)) else ""


def _is_id(column: _Column) -> bool:
    return column.kind in ("whole number", "text or id", "category", "yes/no")


def _numbers_rows(column: _Column) -> bool:
    """Whether it numbers the rows of the whole table."""
    return column.kind == "whole number" and MOST_LEVELS < column.distinct == len(column.values)


def _guess_subject(free: list[_Column]) -> tuple[str, ...]:
    """A person's id, else a stay's, else a text that recurs; one that never recurs is the last choice."""
    ids = [column for column in free if _id_of(column.name) and _is_id(column)]
    ids.sort(key=lambda column: (_id_of(column.name), column.distinct if _id_of(column.name) == "stay" else 0))
    whole = [column for column in free if column.kind == "text or id" and not np.isnan(column.values).any()]
    texts = [column for column in whole if 2 * column.distinct <= len(column.values)]
    found = sorted([*ids, *texts], key=lambda column: column.distinct == len(column.values))
    return tuple(column.name for column in found[:1])


def _guess_episode(columns: CheckedColumns, free: list[_Column], subject: tuple[str, ...]) -> tuple[str, ...]:
    """A stay's id that divides the rows of subjects; the finest where there are several."""
    stays = [c for c in free if subject and _id_of(c.name) == "stay" and _is_id(c) and c.distinct < len(c.values)]
    for column in sorted(stays, key=lambda each: -each.distinct):
        whose, stay = _codes(columns, subject[0]), _codes(columns, column.name)
        pairs = len(np.unique(whose * (stay.max() + 2) + stay))
        if pairs == len(np.unique(stay)) > len(np.unique(whose)):
            return (column.name,)
    return ()


def _guess_time(columns: CheckedColumns, free: list[_Column], roles: Roles) -> tuple[str, ...]:
    """What is called a time and tells a subject's rows apart best, else what always rises within subjects."""
    group = np.zeros(len(columns), dtype=np.int64)
    for role in ("subject", "episode"):
        own = _codes(columns, roles[role][0]) + 1 if roles[role] else np.zeros_like(group)
        group = group * (own.max() + 1) + own
    likely = [column for column in free if column.kind in (*AMOUNTS, "date") and column.distinct > 1]
    named = [column for column in likely if _is_clock(column.name)]
    clashes = [_clashes(column.values, group) for column in named]
    if clashes and min(clashes) < len(columns) - len(np.unique(group)):
        return (named[int(np.argmin(clashes))].name,)
    dates = [column for column in likely if column.kind in ("date", "whole number") and not _numbers_rows(column)]
    return tuple(column.name for column in dates if _rises(column.values, group))[:1]


def _is_clock(name: str) -> bool:
    tokens = _tokens(name)
    return bool(CLOCKS & set(tokens)) or "".join(tokens).endswith(MOMENTS)


def _clashes(values: np.ndarray, group: np.ndarray) -> int:
    """Rows that repeat the value of another of their group, or have none."""
    order = np.lexsort((values, group))
    return int((~changes(values[order]) & ~changes(group[order])).sum() + np.isnan(values).sum())


def _rises(values: np.ndarray, group: np.ndarray) -> bool:
    inside = ~changes(group)
    return bool(inside.any() and (np.diff(values, prepend=np.nan)[inside] > 0).all())


def _guess_reward(free: list[_Column]) -> tuple[str, ...]:
    found = [column.name for column in free if column.kind in AMOUNTS]
    return tuple(name for name in found if _says(name, ("reward",)) or _tokens(name) == ["r"])[:1]


def _guess_done(look: _Look) -> tuple[str, ...]:
    """Outcomes that never meet on a row; those that say what happened come first."""
    named = [column for column in look.free() if _says(column.name, ENDS)]
    fit = [c for c in named if c.kind == "yes/no" and (c.name in look.static or np.nanmean(c.values) <= 0.5)]
    look.unused.update({column.name: ENDING for column in named} | {column.name: OVERLAP for column in fit})
    marked = np.zeros(len(look.columns), dtype=bool)
    for column in sorted(fit, key=lambda each: _says(each.name, GENERAL)):
        if not (marked & (column.values == 1)).any():
            del look.unused[column.name]
            marked |= column.values == 1
    return tuple(column.name for column in fit if column.name not in look.unused)


def _guess_action(look: _Look) -> tuple[str, ...]:
    """Columns called action, else those named after a treatment, but no copies and no sums over the stay."""
    free = [c for c in look.free() if not c.trouble and not _says(c.name, SUMS) and c.name not in look.unused]
    called = _named(free, ("action",), USABLE) or tuple(c.name for c in free if _tokens(c.name) == ["a"])
    treatments, chosen = _named(free, TREATMENTS, USABLE), list[str]()
    for name in called or treatments:
        if len(chosen) < MOST_ACTION_COLUMNS and not set(look.alike.get(name, [])) & set(chosen):
            chosen.append(name)
    look.unused.update({name: OTHER for name in (*called, *treatments) if name not in chosen})
    return tuple(chosen)


def _guess_state(look: _Look) -> tuple[str, ...]:
    """Every other column that a model can take and that says something of its own."""
    chosen, used = list[str](), {name for names in look.roles.values() for name in names}
    for column in look.free():
        copies = [other for other in look.alike.get(column.name, []) if other in used or other in chosen]
        same = f"{SAME} '{copies[0]}'" if copies else ""
        reason = look.unused.get(column.name) or _unfit(column, look.taken) or same
        look.unused.update({column.name: reason} if reason else {})
        chosen += [] if reason else [column.name]
    return tuple(chosen)


def _unfit(column: _Column, taken: dict[str, _Column]) -> str:
    """Why a column is no state; empty where it may be one."""
    reasons = {
        column.trouble.partition(";")[0]: column.kind == "unreadable",
        ID: bool(_id_of(column.name)) and _is_id(column),
        "empty": column.kind == "empty",
        "a date": column.kind == "date" or "".join(_tokens(column.name)).endswith(MOMENTS),
        "numbers the rows": _numbers_rows(column),
        "numbers as text": bool(column.trouble),
        "an id or free text": column.kind == "text or id",
        "always the same": column.distinct < 2,
        "nearly always missing": float(np.isnan(column.values).mean()) > SPARSE,
        "a next state": _before(column.name) in taken,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _before(name: str) -> str:
    """The state that a column is the next one of."""
    bare = name.removeprefix("next_").removesuffix("_next")
    return bare if bare != name else ""


def _guess_next(look: _Look) -> tuple[str, ...]:
    """The columns of the next state, where there is one for every column of the state."""
    after = {_before(name): name for name in look.taken if _before(name)}
    states = look.roles["state"]
    return tuple(after[name] for name in states) if set(states) <= set(after) else ()


def _alike(columns: list[_Column]) -> dict[str, list[str]]:
    """Which columns say the same: by the correlation over the rows that both have, on a sample of rows."""
    found: dict[str, list[str]] = {column.name: [] for column in columns}
    if not columns:
        return found
    count = len(columns[0].values)
    rows = np.linspace(0, count - 1, min(count, SAMPLE, 1 + 10_000_000 // len(columns))).astype(int)
    close = np.abs(_correlation(np.column_stack([column.values[rows] for column in columns]))) > ALIKE
    for i, j in np.argwhere(np.triu(close, 1)).tolist():
        found[columns[i].name].append(columns[j].name)
        found[columns[j].name].append(columns[i].name)
    return found


def _correlation(values: np.ndarray) -> np.ndarray:
    """Of every pair of columns over the rows that both have; 0 where these are under ten or all the same."""
    there = ~np.isnan(values)
    count = np.maximum(there.sum(0), 1)
    centred = np.where(there, values - np.where(there, values, 0.0).sum(0) / count, 0.0)
    spread = np.sqrt((centred**2).sum(0) / count)
    z, own = centred / np.where(spread > 0, spread, 1.0), there.astype(float)
    both = np.maximum(own.T @ own, 1)
    mean = z.T @ own / both
    variance = (z**2).T @ own / both - mean**2
    known = (both >= 10) & (variance > 1e-9) & (variance.T > 1e-9)
    return np.where(known, (z.T @ z / both - mean * mean.T) / np.sqrt(np.where(known, variance * variance.T, 1.0)), 0.0)


def _static(taken: dict[str, _Column], log: _Log, roles: Roles) -> set[str]:
    """The columns that differ between subjects and never change within one."""
    if not roles["subject"] or changes(log.subject).all():
        return set()
    differ = [column for column in taken.values() if column.distinct > 1]
    return {column.name for column in differ if steady(column.values[log.order][:, None], log.subject).all()}


def _find(look: _Look, bins: Sequence[Bins]) -> Inspection:
    """What the table holds; what to do about it comes later."""
    facts, ends = tuple(_facts(look, column) for column in look.taken.values()), _ends(look)
    open_ends = _open_ends(look, ends)
    return Inspection(
        source="",
        encoding="",
        records=_records(look),
        columns=facts,
        clock=_clock(look.log),
        missing=_gone(look, facts),
        actions=_actions(look, bins),
        outcomes=ends,
        open_ends=int(open_ends.sum()),
        rewards=_rewards(look, open_ends),
        guessed=tuple(role for role in ROLES if look.roles[role] and not look.given[role]),
    )


def _facts(look: _Look, column: _Column) -> ColumnFacts:
    """What may be said of a column without showing a value of it."""
    values, readable = look.sorted(column), column.kind != "unreadable"
    missing = np.isnan(values) & readable
    held = [role for role in ROLES if column.name in look.roles[role]]
    mean, sd = _centre(look, values) if "state" in held and column.kind in AMOUNTS else (None, None)
    run, left = _runs(look.log, missing) if missing.any() else (0, {})
    return ColumnFacts(
        name=column.name,
        role=", ".join(held).replace("done", "outcome").replace("_", " "),
        guessed=bool(held) and not any(column.name in look.given[role] for role in held),
        kind="text or id" if column.labels and {"subject", "episode"} & {*held} else column.kind,
        distinct=column.distinct,
        missing=float(missing.mean()),
        constant=column.distinct == 1,
        static=column.name in look.static,
        like=next(iter(look.alike.get(column.name, [])), ""),
        mean=mean,
        sd=sd,
        longest_run=run,
        left=left,
        note=_note(look, column, held),
    )


def _note(look: _Look, column: _Column, held: list[str]) -> str:
    """Why a column is not used, or what to know of it."""
    if not held:
        return look.unused.get(column.name, "not named")
    used = {*look.roles["action"], *look.roles["state"]}
    copies = [name for name in look.alike.get(column.name, []) if "state" in held and name in used]
    notes = {
        f"{SAME} '{(copies or [''])[0]}'": bool(copies),
        column.trouble.partition(";")[0]: bool(column.trouble) and bool({"state", "action"} & {*held}),
        "always the same": column.distinct == 1,
        "fixed within subjects": column.name in look.static and bool({"state", "action"} & {*held}),
        "read as a category": column.name in _categories(look),
    }
    return "; ".join(note for note, holds in notes.items() if holds)


def _centre(look: _Look, values: np.ndarray) -> tuple[float | None, float | None]:
    """Mean and deviation to three digits, where enough subjects have a value and it is not always the same."""
    known = values[~np.isnan(values)]
    if look.subjects_of(~np.isnan(values)) < MANY or (known == known[0]).all():
        return None, None
    return float(f"{known.mean():.3g}"), float(f"{known.std():.3g}")


def _runs(log: _Log, missing: np.ndarray) -> tuple[int, dict[str, float]]:
    """The longest run of a subject's rows without a value, and the share missing once values are carried forward."""
    rows, clock = np.arange(len(missing)), np.cumsum(log.elapsed)
    seen = np.maximum.accumulate(np.where(missing, -1, rows))
    own = seen >= log.first_row
    age = np.where(own, clock - clock[seen], np.inf)
    run = rows - np.where(own, seen, log.first_row - 1)
    return int(run[missing].max()), {str(n): float((missing & (age > n + 1e-9)).mean()) for n in STEPS}


def _gone(look: _Look, facts: Sequence[ColumnFacts]) -> Gone:
    """How much of the state is missing."""
    states = [fact for fact in facts if fact.name in look.roles["state"]]
    if not states:
        return Gone()
    readable = [column.values for column in look.those("state") if column.kind != "unreadable"]
    rows = np.isnan(readable).any(0) if readable else np.zeros(1)
    left = {str(n): float(np.mean([fact.left.get(str(n), 0.0) for fact in states])) for n in STEPS}
    return Gone(float(rows.mean()), float(np.mean([fact.missing for fact in states])), left)


def _records(look: _Look) -> Records:
    """How many rows and subjects, and what is odd about whose they are."""
    log, rows = look.log, len(look.columns)
    if not look.roles["subject"]:
        return Records(rows, duplicates=int(log.same.sum()))
    sizes = np.diff(np.r_[np.flatnonzero(changes(log.subject)), rows])
    names = look.those("subject")[0].labels
    bare = {re.sub(r"(?<!\d)0+(?=\d)", "", name.strip()) for name in names}
    return Records(
        rows=rows,
        subjects=len(sizes),
        episodes=int(log.opens.sum()),
        rows_least=int(sizes.min()),
        rows_median=float(np.median(sizes)),
        rows_most=int(sizes.max()),
        single=int((sizes == 1).sum()),
        duplicates=int(log.same.sum()),
        nobody=int((log.subject < 0).sum()),
        leading_zeros=len(names) - len(bare),
    )


def _clock(log: _Log) -> Clock | None:
    """How regular the times are; none where there are none."""
    if not log.step:
        return None
    steps = log.elapsed[~log.opens & ~log.same]
    off = np.abs(steps - 1)
    return Clock(
        step=log.step,
        pairs=len(steps),
        gaps=int((off > REGULAR).sum()),
        longest=float(f"{steps.max():.3g}") if len(steps) else 0.0,
        irregular=float((off > 0.01).mean()) if len(steps) else 0.0,
    )


def _ends(look: _Look) -> tuple[End, ...]:
    """How often and where every outcome is marked."""
    starts = np.flatnonzero(changes(look.log.subject))
    size = np.diff(np.r_[starts, len(look.columns)])
    ends = []
    for column in look.those("done"):
        flag = look.flag(column)
        count, final = np.add.reduceat(flag.astype(int), starts), flag[starts + size - 1]
        whole = (count == size) & (size > 1)
        masks = (flag, count > 0, whole, (count > 1) & ~whole, (count > 0) & ~final, np.isnan(column.values))
        ends.append(End(column.name, *(int(mask.sum()) for mask in masks)))
    return tuple(ends)


def _repeats(ends: Sequence[End]) -> bool:
    """Whether an outcome is repeated on all rows of at least half the subjects that had it."""
    return any(end.repeated and 2 * end.repeated >= end.subjects for end in ends)


def _open_ends(look: _Look, ends: Sequence[End]) -> np.ndarray:
    """The last rows of episodes that nothing marks."""
    final = np.r_[changes(look.log.subject)[1:], True] | (not _repeats(ends))
    marked = np.zeros(len(look.columns), dtype=bool)
    for column in look.those("done"):
        marked |= look.flag(column) & final
    for column in look.those("truncated"):
        marked |= look.flag(column)
    return look.log.last & ~marked


def _rewards(look: _Look, open_ends: np.ndarray) -> Rewards:
    """Where rewards stand, and whether the last rows that nothing marks carry unusual ones."""
    found = [column for column in look.those("reward") if column.kind in AMOUNTS]
    if not found:
        return Rewards()
    reward, last = look.sorted(found[0]), look.log.last
    known = ~np.isnan(reward)
    paid, lost, usual = known & (reward != 0), reward[open_ends & known], reward[~last & known]
    low, high = (usual.min(), usual.max()) if len(usual) else (-1e300, 1e300)
    unlike = (lost < low - (high - low)) | (lost > high + (high - low))  # As the loader has it.
    return Rewards(
        missing=int((~known & ~last).sum()),
        last_only=bool(paid.any() and not (paid & ~last).any() and not last.all()),
        constant=found[0].distinct == 1,
        unlike=bool(unlike.any()),
    )


def _suggested_bins(look: _Look) -> tuple[Bins, ...]:
    """Bins for doses that differ too often to choose from, alone or in combination."""
    columns = look.those("action")
    amounts = [column for column in columns if column.kind in AMOUNTS and not column.labels]
    many = [column for column in amounts if column.distinct > FEW]
    if len(amounts) == len(columns) > 1 and not many and _combinations(amounts) > FEW:
        many = amounts
    return tuple(Bins(column.name, 5 if len(columns) < MOST_ACTION_COLUMNS else 3) for column in many)


def _combinations(columns: Sequence[_Column]) -> int:
    index = np.zeros(len(columns[0].values), dtype=np.int64)
    for column in columns:
        codes = np.unique(column.values, return_inverse=True)[1]
        index = np.unique(index * (codes.max() + 1) + codes, return_inverse=True)[1]
    return int(index.max()) + 1


def _actions(look: _Look, bins: Sequence[Bins]) -> Actions:
    """How often every action, and every combination of several columns' actions, was taken."""
    columns, cut = look.those("action"), {each.column: each for each in bins}
    coded = [_coded(look, column, cut.get(column.name)) for column in columns]
    names = [own[0] if each.name in cut else _known_names(look, *own) for each, own in zip(columns, coded, strict=True)]
    doses = tuple(
        _dose(look, column, cut.get(column.name), own, codes)
        for column, own, (_, codes) in zip(columns, names, coded, strict=True)
    )
    possible = math.prod(map(len, names)) if names else 0
    if not 0 < possible <= 1_000_000:
        return Actions(doses)
    index, known = np.zeros(len(look.columns), dtype=np.int64), np.ones(len(look.columns), dtype=bool)
    for labels, codes in coded:
        index, known = index * len(labels) + codes, known & (codes >= 0)
    places, counts = np.unique(index[known], return_counts=True)
    support: dict[tuple[str, ...], int] = {}
    for place, count in zip(places.tolist(), counts.tolist(), strict=True):
        words = _words(place, names)
        support[words] = support.get(words, 0) + count
    return Actions(doses, possible, len(places), int((counts < RARE).sum()), tuple(support.items()))


def _words(place: int, names: Sequence[list[str]]) -> tuple[str, ...]:
    """What the columns say in one combination; the last column changes fastest."""
    words: list[str] = []
    for own in reversed(names):
        place, code = divmod(place, len(own))
        words.append(own[code])
    return tuple(reversed(words))


def _coded(look: _Look, column: _Column, bins: Bins | None) -> tuple[list[str], np.ndarray]:
    """The actions of one column and each sorted row's place among them, −1 where it has none."""
    values = look.sorted(column)
    known, nothing = ~np.isnan(values), ([], np.full(len(values), -1))
    if column.labels:
        return list(column.labels), np.where(known, values, -1).astype(np.int64)
    if bins is not None:
        try:
            fitted = bins.fit(column.name, values[known])
        except CounterpointError:
            return nothing  # The trial says why.
        codes = fitted.codes(np.where(known, values, 0.0))
        return _bin_names(fitted, look.subjects_of(known) >= MANY), np.where(known, codes, -1)
    amounts = np.unique(values[known])
    if not 0 < len(amounts) <= FEW or column.kind not in AMOUNTS:
        return nothing
    return [f"{amount:.10g}" for amount in amounts], np.where(known, np.searchsorted(amounts, values), -1)


def _bin_names(column: ActionColumn, shown: bool) -> list[str]:
    """Bins by their cuts, or by their numbers where too few subjects are behind the cuts."""
    cuts = [f"{float(f'{cut:.3g}'):g}" for cut in column.cuts]  # 1250, not 1.25e+03.
    if not shown or not cuts or len(set(cuts)) < len(cuts):
        return [f"bin {i}" for i in range(column.count)]
    inner = [f"{low} to {high}" for low, high in pairwise(cuts)]
    return ["0"] * column.zero + [f"below {cuts[0]}", *inner, f"{cuts[-1]} and up"]


def _known_names(look: _Look, labels: list[str], codes: np.ndarray) -> list[str]:
    """The labels; an action that few subjects had is not named."""
    if not labels:
        return []
    pairs = np.unique(look.log.subject[codes >= 0] * len(labels) + codes[codes >= 0])
    subjects = np.bincount(pairs % len(labels), minlength=len(labels))
    return [label if count >= SOME else UNNAMED for label, count in zip(labels, subjects, strict=True)]


def _dose(look: _Look, column: _Column, bins: Bins | None, names: list[str], codes: np.ndarray) -> Dose:
    support: dict[str, int] = {}
    for name, count in zip(names, np.bincount(codes[codes >= 0], minlength=len(names)).tolist(), strict=True):
        support[name] = support.get(name, 0) + count
    return Dose(
        name=column.name,
        distinct=column.distinct,
        bins=bins.count if bins else 0,
        missing=int(np.isnan(column.values).sum()),
        negative=int((column.values < 0).sum()),
        static=column.name in look.static,
        choices=len(names),
        support=support,
    )


def _choices(look: _Look, found: Inspection, bins: Sequence[Bins]) -> dict[str, Any]:
    """What the loader should be told; what is left away is as it would be anyway."""
    roles, clock, gone = look.roles, found.clock, found.missing
    carry = next((n for n in STEPS if gone.left.get(str(n), 0.0) <= ENOUGH), STEPS[-1])
    helps = gone.cells > 0 and gone.left[str(carry)] < gone.cells
    wanted: dict[str, Any] = {role: "".join(roles[role][:1]) for role in ("subject", "time", "episode")}
    wanted |= {role: list(roles[role]) for role in ("state", "action")}
    wanted |= {"reward": "".join(roles["reward"][:1]), "done": list(roles["done"])}
    wanted |= {
        "outcome": "last row of the subject" if _repeats(found.outcomes) else "",
        "truncated": "".join(roles["truncated"]),
        "next_state": list(roles["next_state"]),
        "last": _last(look, found) if found.open_ends else "",
        "step": clock.step if clock and clock.gaps else "",
        "gaps": ("cut" if 2 * clock.gaps <= clock.pairs else "bridge") if clock and clock.gaps else "",
        "categorical": _categories(look),
        "missing": "median" if gone.cells else "",
        "carry_forward": carry if helps else 0,
        "bins": [f"{each.column}={each.count}" for each in bins],
        "encoding": found.encoding if found.encoding != "utf-8" else "",
    }
    return {name: value for name, value in wanted.items() if value}


def _categories(look: _Look) -> list[str]:
    """Whole numbers of the state with two values that are not 0 and 1, as 1 and 2 for a sex."""
    return [c.name for c in look.those("state") if c.kind == "whole number" and c.distinct == 2]


def _last(look: _Look, found: Inspection) -> str:
    """What an end without an outcome is: one of its own where its reward or a general flag says so, else a stop."""
    general = [look.taken[name] for name, why in look.unused.items() if why == OVERLAP and _says(name, GENERAL)]
    ends = _open_ends(look, found.outcomes)
    marked = any(look.flag(column)[ends].all() for column in general)
    return "terminal" if found.rewards.unlike or marked or look.log.opens.all() else "truncate"


def _try(look: _Look, choices: dict[str, Any], bins: Sequence[Bins]) -> Trial:
    """What the loader makes of the table; a long one is tried on some of its subjects."""
    told: dict[str, Any] = {role: () if role in ("state", "action") else "" for role in NEEDED}
    told |= {name: tuple(value) if isinstance(value, list) else value for name, value in choices.items()}
    told |= {"bins": tuple(bins), "categorical": tuple((name, ()) for name in _categories(look))}
    sample = _some_subjects(look)
    frame = look.columns.frame if sample is None else look.columns.frame[sample]
    tried = 0 if sample is None else len(sample)
    try:
        rows, notes = Reader(**told).read(frame.to_native())
    except CounterpointError as error:
        return Trial(sample=tried, error=re.sub(r"\[[^\]]*\]|\{[^}]*\}", "[…]", str(error)))  # Doses stand in brackets.
    except Exception as error:  # An odd table must not end the inspection, and foreign words may quote patients.
        return Trial(sample=tried, error=f"the loader failed with {type(error).__name__}; please report it")
    return Trial(
        rows=len(rows),
        episodes=len(rows.episode.unique()),
        subjects=len(rows.subject.unique()),
        states=len(rows.schema.states),
        actions=rows.actions.count if isinstance(rows.actions, Discrete) else 0,
        ends={name: int((rows.outcome == place).sum()) for place, name in enumerate(rows.outcome_names)},
        stopped=int(rows.truncated.sum()),
        sample=tried,
        notes=tuple(notes),
    )


def _some_subjects(look: _Look) -> np.ndarray | None:
    """The rows of every k-th subject, in the table's order; none where all rows are few enough."""
    every = -(-len(look.columns) // TRIED)
    if every == 1:
        return None
    number = np.cumsum(changes(look.log.subject))
    return np.sort(look.log.order[number % every == 1][:TRIED])


Rule = tuple[Any, str, str, str]
"""Whether a problem is there, what it is, why it matters, and what settles it."""


def _problems(look: _Look, found: Inspection) -> Iterator[Problem]:
    """What must be decided or mended, the hardest first."""
    rules = [
        *_about_roles(look),
        *_about_subjects(found.records, "".join(look.roles["subject"])),
        *_about_time(look, found),
        *_about_columns(look, found),
        *_about_missing(found),
        *(rule for dose in found.actions.doses for rule in _about_dose(dose)),
        *_about_support(found.actions),
        *(rule for end in found.outcomes for rule in _about_end(end, "outcome" in found.choices)),
        *_about_ends(found),
        *_about_rewards(found.rewards, "".join(look.roles["reward"])),
    ]
    return (Problem(*words) for holds, *words in rules if holds)


def _about_encoding(asked: str, used: str) -> list[Problem]:
    what, why = f"the file is not {asked}; it can be read as {used}", "letters beyond a to z would be refused or wrong"
    return [Problem(what, why, f"--encoding {used}")] if asked != used else []


def _about_roles(look: _Look) -> list[Rule]:
    add = "add one: perhaps 1 on the row of a discharge, −1 on that of a death, 0 on all others"
    needed = {
        "subject": ("says whose row it is", "patients cannot be followed, nor held out from training"),
        "time": ("orders the rows of a subject", "nothing says which row comes next"),
        "state": ("can be a state", "a model must see how the patient is"),
        "action": ("looks like an action", "nothing can be asked about other doses"),
        "reward": ("looks like a reward", f"nothing says what is good; {add}"),
    }
    return [(not look.roles[role], f"no column {what}", why, f"--{role} NAME") for role, (what, why) in needed.items()]


def _about_subjects(records: Records, name: str) -> list[Rule]:
    nobody = f"{_count(records.nobody, 'row')} without a value in '{name}'"
    alike = f"{_count(records.leading_zeros, 'id')} in '{name}' like another but for zeros or blanks, as 7 and 007"
    twice = f"{_count(records.duplicates, 'row')} with the same subject and time as another"
    first = "nothing says which comes first, so the loader refuses them"
    if records.duplicates * 2 > records.rows:
        first += "; is this a list of measurements? then give each kind a column"
    keep = "keep one row for each, or --episode NAME where a subject has several stays"
    single = f"{records.single:,} of {_count(records.subjects, 'subject')} with one row only"
    lost = "one row leads nowhere: without an outcome it is lost, unless it is taken for an end"
    return [
        (records.nobody, nobody, "the loader refuses nobody's rows", "drop them"),
        (records.leading_zeros, alike, "one patient may be taken for two", "write the ids alike"),
        (records.duplicates, twice, first, keep),
        (records.single, single, lost, "--last terminal"),
    ]


def _about_time(look: _Look, found: Inspection) -> list[Rule]:
    clock, name, choice = (
        found.clock or Clock("", 0, 0, 0.0, 0.0),
        "".join(look.roles["time"]),
        found.choices.get("gaps"),
    )
    why = "a model of one step must not see two; cut ends the episode there, bridge takes the rows as consecutive"
    if choice == "bridge":
        why = "one model of a step fits steps of all lengths badly; better bring the table to a grid of equal steps"
    what = f"{clock.gaps:,} of {_count(clock.pairs, 'pair')} of rows are not one step of {clock.step} apart"
    trouble = look.log.trouble if name else ""
    return [
        (trouble, f"the times in '{name}' cannot be read", trouble, "mend them, or --time NAME"),
        (clock.gaps, what, why, f"--gaps {choice} --step {clock.step}"),
    ]


def _about_columns(look: _Look, found: Inspection) -> Iterator[Rule]:
    ids = {*look.roles["subject"], *look.roles["episode"], *look.roles["done"]}
    for column in look.taken.values():
        what, _, fix = column.trouble.partition("; ")
        odd = column.trouble and column.name not in ids and look.unused.get(column.name) != ID
        yield odd, f"column '{column.name}' {what}", "a model cannot take it as it is", fix or "leave it out"
    for fact in found.columns:
        what = f"column '{fact.name}' {fact.note.partition(';')[0]} (|correlation| above {ALIKE})"
        why, fix = "two names for one thing hide what causes what", "leave one out" if fact.role else SETTLED
        yield fact.note.startswith(SAME), what, why, fix
    dull = [fact.name for fact in found.columns if "state" in fact.role and fact.constant]
    yield dull, f"{quoted(dull)} always the same", "it teaches nothing", "leave it out of --state"
    sums = [name for name in look.roles["state"] if _says(name, SUMS) and _says(name, TREATMENTS)]
    why = "the state before the action would then know the action"
    yield sums, f"{quoted(sums)} may count the dose of its own row", why, "leave it out, or move it down one row"
    for reason, why, flag in LEFT_OUT:
        names = [name for name, own in look.unused.items() if own == reason]
        yield names, f"{quoted(names)} left out: {reason}", why, flag


def _about_missing(found: Inspection) -> list[Rule]:
    gone, carried = found.missing, found.choices.get("carry_forward")
    lack = f"{_share(gone.rows)} of the rows lack a value of the state ({_share(gone.cells)} of all values)"
    left = f"; carried forward {_count(carried, 'step')}, {_share(gone.left[str(carried)])} are left" if carried else ""
    fill = "--missing median" + (f" --carry-forward {carried}" if carried else "")
    often = [fact.name for fact in found.columns if "state" in fact.role and fact.missing > OFTEN]
    what, why = f"{quoted(often)} missing on more than a fifth of the rows", "that nobody measured may say something"
    return [
        (gone.cells, lack, f"the loader refuses them unless told how to fill them{left}", fill),
        (often, what, f"{why}; a mask keeps it", f"--masks {shlex.join(often)}"),
    ]


def _about_dose(dose: Dose) -> list[Rule]:
    name = dose.name
    why = "policies choose from a list; bins are quantiles of what was given, and no dose is a bin of its own"
    known = "the action must be known on every row but a last one that is dropped"
    fixed = "what a patient always gets cannot be told from who the patient is"
    return [
        (dose.bins, f"{dose.distinct:,} different doses in '{name}'", why, f"--bins {name}={dose.bins}"),
        (
            dose.missing,
            f"{_count(dose.missing, 'row')} without a value in '{name}'",
            known,
            "write 0 where none was given",
        ),
        (dose.negative, f"{_count(dose.negative, 'negative dose')} in '{name}'", "no dose is below none", "mend them"),
        (dose.static, f"'{name}' never changes within a subject", fixed, "--action NAME"),
        (dose.distinct < 2, f"'{name}' is always the same", "there is nothing to choose", "--action NAME"),
    ]


def _about_support(actions: Actions) -> list[Rule]:
    never, fewer = actions.possible - actions.taken, "fewer --bins, or pool them in the table"
    what = f"{never} of {actions.possible} combinations of actions never taken"
    rare = f"{_count(actions.rare, 'action')} taken on fewer than {RARE} rows"
    return [
        (never, what, "nothing can be learned of them", fewer),
        (actions.rare, rare, "what follows them is guesswork", fewer),
    ]


def _about_end(end: End, repeated: bool) -> list[Rule]:
    name, ever = end.name, _count(end.early, "subject")
    whole = f"'{name}' is true on every row of {_count(end.repeated, 'subject')}"
    several = f"'{name}' is true on several rows of {_count(end.several, 'subject')}"
    missing = f"{_count(end.missing, 'row')} without a value in '{name}'"
    early = f"'{name}' is true of {ever}, but not on the last row"
    flag = "--outcome 'last row of the subject'"
    return [
        (not end.rows, f"'{name}' is never true, or not yes or no", "no record ends with it", "--done NAME"),
        (end.repeated and repeated, whole, "each of these rows would be an end", flag),
        (end.early and repeated, early, "the loader cannot tell when it happened", "mark the last row too"),
        (
            end.several and not repeated,
            several,
            "every marked row ends an episode",
            "mark one row, drop those after it",
        ),
        (end.missing, missing, "the loader refuses them", "write 0 where it did not happen"),
    ]


def _about_ends(found: Inspection) -> list[Rule]:
    why = "truncate says that the record stops and life goes on, terminal that it is an end, drop loses the last row"
    if found.rewards.unlike:
        why = "their last rewards are unlike all others, so they seem to be ends; truncate would lose these rewards"
    what = f"{found.open_ends:,} of {_count(found.records.episodes, 'episode')} end without an outcome"
    only = "no record ends with a death or a discharge, they only stop"
    return [
        (not found.outcomes, "no outcome column", only, "--done NAME"),
        (found.open_ends and found.records.episodes, what, why, f"--last {found.choices.get('last')}"),
    ]


def _about_rewards(rewards: Rewards, name: str) -> list[Rule]:
    gone = f"{_count(rewards.missing, 'row')} before an episode's last without a value in '{name}'"
    last = f"rewards other than 0 in '{name}' stand on last rows only"
    many = "a policy then learns from ends only, so it matters that they are marked and that there are many"
    return [
        (rewards.missing, gone, "the loader refuses them", "write 0 where nothing is earned"),
        (
            rewards.constant,
            f"the reward '{name}' is always the same",
            "no policy is better than another",
            "--reward NAME",
        ),
        (rewards.last_only, last, many, "mark these rows in --done"),
    ]


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _share(share: float) -> str:
    """A share in percent; one that is neither 0 nor 1 is not rounded to it."""
    percent = 100 * share
    if percent in (0.0, 100.0):
        return f"{percent:.0f}%"
    return "<0.1%" if percent < 0.1 else ">99.9%" if percent > 99.9 else f"{percent:.1f}%"


def summary(found: Inspection) -> str:
    """The table in a sentence."""
    records = found.records
    start = f"{_count(records.rows, 'row')} and {_count(len(found.columns), 'column')}"
    if not records.subjects:
        return f"{start}; no column says whose rows they are."
    episodes = f" in {_count(records.episodes, 'episode')}" if records.episodes != records.subjects else ""
    size = f"{records.rows_least:,} to {records.rows_most:,} rows each, median {records.rows_median:g}"
    twice = f"{_count(records.duplicates, 'row')} repeat another's subject and time"
    single = f"{_count(records.single, 'subject')} with one row only"
    unique = "No two rows have the same subject and time"
    whose = f"{_count(records.subjects, 'subject')}{episodes}: {size}; {single}"
    return f"{start}. {whose}. {twice if records.duplicates else unique}."


def column_rows(found: Inspection) -> list[dict[str, str]]:
    """A line for every column, those with a role first."""
    ranks = {"subject": 0, "episode": 1, "time": 2, "state": 3, "action": 4, "": 9}
    return [
        {
            "column": fact.name,
            "role": (fact.role or "–") + (" ?" if fact.guessed else ""),
            "kind": fact.kind,
            "values": f"{fact.distinct:,}",
            "missing": _share(fact.missing),
            MEANS: "" if fact.mean is None else f"{fact.mean:g} ± {fact.sd:g}",
            "note": fact.note,
        }
        for fact in sorted(found.columns, key=lambda fact: ranks.get(fact.role, 5))
    ]


def sections(found: Inspection) -> dict[str, str]:
    """The rest of the page by title."""
    settled, unsettled = _said_problems(found)
    parts = {
        "Time": _said_time(found.clock),
        "Missing values of the state": _said_missing(found),
        "Actions": _said_actions(found.actions),
        "Outcomes and rewards": _said_outcomes(found),
        "To mend or to decide": unsettled or "Nothing.",
        "Settled by the flags below, unless you know better": settled,
        "What the loader would do": _said_trial(found.trial),
        "Once this is mended"
        if found.trial.error
        else "Next": f"    {found.command() if found.source else found.call()}",
    }
    return {title: text for title, text in parts.items() if text}


def _said_time(clock: Clock | None) -> str:
    if clock is None:
        return ""
    gaps = (
        f"{clock.gaps:,} are not one step apart, the longest {clock.longest:g} steps" if clock.gaps else "none is a gap"
    )
    exact = f"; {_share(clock.irregular)} are not exactly one step" if clock.irregular else ""
    return f"One step is {clock.step}. Of {_count(clock.pairs, 'pair')} of consecutive rows {gaps}{exact}."


def _said_missing(found: Inspection) -> str:
    gone = found.missing
    if not gone.cells:
        return "None." if "state" in found.choices else ""
    rows = [
        {"column": fact.name, "missing": _share(fact.missing), "longest run": f"{fact.longest_run:,}"}
        | {_count(n, "step"): _share(fact.left[str(n)]) for n in STEPS}
        for fact in found.columns
        if "state" in fact.role and fact.left
    ]
    rows += [{"column": "all states", "missing": _share(gone.cells), "longest run": "–"}]
    rows[-1] |= {_count(n, "step"): _share(gone.left[str(n)]) for n in STEPS}
    start = f"{_share(gone.rows)} of the rows lack at least one value. The longest run is in rows of one subject; the"
    return f"{start} last columns say what is left once values are carried forward so far.\n\n{markdown(rows)}"


def _said_actions(actions: Actions) -> str:
    parts = list[str]()
    for dose in actions.doses:
        cut = f", cut into {dose.choices} bins" if dose.bins and dose.choices else ""
        parts.append(f"{dose.name}: {_count(dose.distinct, 'different value')}{cut}.")
        if dose.support and len(actions.doses) != 2:
            parts.append(markdown([{dose.name: name, "rows": f"{rows:,}"} for name, rows in dose.support.items()]))
    if len(actions.doses) == 2 and actions.possible:
        parts.append(_grid(actions))
    if len(actions.doses) > 1 and actions.possible:
        seen = f"{actions.taken:,} were taken, {actions.rare:,} of them on fewer than {RARE} rows."
        parts.append(f"Together they make {actions.possible:,} actions, one for every combination: {seen}")
    return "\n\n".join(parts)


def _grid(actions: Actions) -> str:
    """The rows of every pair of actions, the first column's down and the second's across."""
    (down, across), rows = actions.doses, dict(actions.support)
    head = f"{down.name} ↓ {across.name} →"
    lines = [{head: one} | {two: f"{rows.get((one, two), 0):,}" for two in across.support} for one in down.support]
    return markdown(lines)


def _said_outcomes(found: Inspection) -> str:
    lines = [f"{end.name}: {_count(end.subjects, 'subject')}, {_count(end.rows, 'row')}" for end in found.outcomes]
    if found.records.episodes:
        lines.append(f"{found.open_ends:,} of {_count(found.records.episodes, 'episode')} end without an outcome")
    if found.rewards.last_only:
        lines.append("rewards other than 0 stand on last rows only")
    return "\n".join(f"- {line}" for line in lines)


def _said_problems(found: Inspection) -> tuple[str, str]:
    """The problems that the suggested flags settle, and those that they do not."""
    settled, unsettled, words = list[str](), list[str](), set(found.flags())
    for problem in found.problems:
        part = settled if problem.flag == SETTLED or set(shlex.split(problem.flag)) <= words else unsettled
        part.append(f"{len(part) + 1}. {problem.what}\n   Why: {problem.why}\n   Do: {problem.flag}")
    return "\n".join(settled), "\n".join(unsettled)


def _said_trial(trial: Trial) -> str:
    start = f"Tried on {trial.sample:,} rows with the flags below" if trial.sample else "With the flags below"
    if trial.error:
        return f"{start}, it stops: {trial.error}"
    ends = [f"{count:,} in '{name}'" for name, count in trial.ends.items() if count]
    actions = _count(trial.actions, "action") if trial.actions else "continuous actions"
    said = (
        f"{start}, it reads {_count(trial.rows, 'row')} in {_count(trial.episodes, 'episode')} of"
        f" {_count(trial.subjects, 'subject')}, with {_count(trial.states, 'state column')} and {actions}."
        f" Episodes end: {', '.join([*ends, f'{trial.stopped:,} without an outcome'])}."
    )
    return "\n".join([said, *(f"- It warns: {note}" for note in trial.notes)])


def markdown(rows: Sequence[dict[str, str]]) -> str:
    """Rows as a Markdown table that is also aligned to the eye; numbers stand to the right."""
    lines = [[*rows[0]], *([*row.values()] for row in rows)]
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    places = range(len(cells[0]))
    right = [all(re.match(r"[<>]?\d[\d,.]*%?$|–$", line[i]) for line in cells[1:]) for i in places]
    widths = [max(3, *(len(line[i]) for line in cells)) for i in places]
    cells.insert(1, ["-" * (widths[i] - 1) + (":" if right[i] else "-") for i in places])
    padded = [[(str.rjust if right[i] else str.ljust)(line[i], widths[i]) for i in places] for line in cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in padded)
