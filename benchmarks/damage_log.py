"""A clean hospital log that `damage.py` spoils: patients whose lactate and pulse a drug lowers, as text cells.

Severity x of a patient with mood m and response b follows x' = .85 x + .15 m + .18 − b·tanh(dose / 8) + .12 u; lactate
is exp(x), the pulse and the creatinine follow it with noise. Clinicians give more to those who are worse, and vary. The
reward is −exp(x'), −12 at a death and 2 at a discharge.
"""

import copy
import csv
import io
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

Row = dict[str, Any]
"""Cells as text, by column; `_when` is the moment of the row and `_who` the number of the patient."""
STATE = ("age", "sex", "ward", "heart_rate", "lactate", "creatinine", "ventilated")
NUMBERS = ("heart_rate", "lactate", "creatinine")
NAMES = ("patient", "charttime", *STATE, "dose_mg", "reward", "died", "discharged")
LENIENT = ("--gaps", "cut", "--missing", "median", "--carry-forward", "2", "--last", "truncate")
"""How a user reads a log with gaps, missing values and open ends."""


@dataclass(frozen=True)
class Base:
    """What kind of clean log: how ids, times and doses are written, and the options of `fit`."""

    name: str
    identity: Callable[[int], str]
    clock: Callable[[datetime, datetime], str]
    """A moment of a patient, and the patient's first, as a cell."""
    dose: Callable[[float], float]
    words: tuple[str, ...]
    """Flags of `fit` besides the columns."""
    complete: bool
    """Whether there are no missing values, no gaps and no open ends."""
    dated: bool = True


def _iso(moment: datetime, _: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M")


BASES = (
    Base("strict", lambda i: f"{i:04d}", _iso, lambda d: round(d, 1), ("--bins", "3"), complete=True),
    Base("lenient", lambda i: f"P-{i}", _iso, lambda d: round(d, 1), ("--bins", "3", *LENIENT), complete=False),
    Base("american", lambda i: str(4000 + i), lambda t, _: t.strftime("%m/%d/%Y %H:%M"), lambda d: round(d, 1),
         ("--bins", "3", *LENIENT), complete=False),
    Base("hours", lambda i: str(10 + i), lambda t, first: f"{(t - first).total_seconds() / 3600:g}",
         lambda d: 0.0 if d < 1 else 5.0 if d < 8 else 10.0, LENIENT, complete=False, dated=False),
)  # fmt: skip


@dataclass
class Log:
    """A table of text cells, how it is written as a file, and the options of the commands."""

    base: Base
    rows: list[Row]
    names: list[str]
    state: list[str] = field(default_factory=lambda: list(STATE))
    time: str = "charttime"
    words: tuple[str, ...] = ()
    delimiter: str = ","
    encoding: str = "utf-8"
    header: list[str] | None = None
    """The names as the file has them, where they differ."""
    top: list[list[str]] = field(default_factory=list)
    """Lines above the rows, below the header; those of `above` stand above it."""
    above: list[list[str]] = field(default_factory=list)
    below: list[list[str]] = field(default_factory=list)
    newline: str = "\n"
    suffix: str = ".csv"
    file: Callable[[bytes], bytes] = bytes
    """What is done to the bytes of the file."""
    fifo: bool = False
    stem: str = ""
    """The file's name without its suffix, where it matters."""
    beside: str = ""
    """The name of another table in the same folder."""
    held: frozenset[int] = frozenset()
    """The patients whom `fit` keeps aside."""

    def copy(self) -> "Log":
        return copy.deepcopy(self)

    def content(self) -> bytes:
        text = io.StringIO()
        writer = csv.writer(text, delimiter=self.delimiter, lineterminator=self.newline)
        head = self.names if self.header is None else self.header
        cells = [[row.get(name, "") for name in self.names] for row in self.rows]
        writer.writerows([*self.above, head, *self.top, *cells, *self.below])
        return self.file(text.getvalue().encode(self.encoding, errors="replace"))

    def options(self) -> list[str]:
        """The flags of the roles, which `check` and `fit` share."""
        return ["--subject", "patient", "--time", self.time, "--state", *self.state, "--action", "dose_mg",
                "--reward", "reward", "--done", "died", "discharged"]  # fmt: skip

    def subjects(self) -> list[int]:
        return list(dict.fromkeys(row["_who"] for row in self.rows))

    def of(self, who: Iterable[int]) -> list[Row]:
        chosen = set(who)
        return [row for row in self.rows if row["_who"] in chosen]

    def last(self, who: int) -> Row:
        return max(self.of([who]), key=lambda row: row["_when"])

    def first(self, who: int) -> Row:
        return min(self.of([who]), key=lambda row: row["_when"])


def clean(base: Base, seed: int, patients: int = 70, new: bool = False) -> Log:
    """A log of `patients`; `new` ones have no outcome, and their last dose is yet to be chosen."""
    rng = random.Random(f"{base.name}/{seed}/{new}")
    start = datetime(2024, 1, 3, 6)
    rows: list[Row] = []
    for who in range(patients):
        rows += _stay(
            base, who + 500 * new, start + timedelta(days=rng.randrange(300), hours=rng.randrange(24)), rng, new
        )
    names = [name for name in NAMES if not (new and name in ("reward", "died", "discharged"))]
    return Log(base, rows, names, words=base.words)


def _stay(base: Base, who: int, admitted: datetime, rng: random.Random, new: bool) -> list[Row]:
    """The rows of one patient, four hours apart."""
    mood, response = rng.gauss(0.9, 0.35), rng.uniform(0.25, 0.55)
    severity, age, sex = mood + rng.gauss(0, 0.3), rng.randint(30, 88), rng.choice("fm")
    length, ventilated, moment, ward, rows = rng.randint(7, 15), rng.random() < 0.4, admitted, "ward", list[Row]()
    length = rng.randint(2, 8) if new else length
    for _ in range(length):
        ward = "icu" if severity > 1.1 else "hdu" if severity > 0.6 else "ward"
        ventilated = ventilated if rng.random() < 0.8 else severity + rng.gauss(0, 0.5) > 0.9
        wanted = 9 * math.exp(0.8 * (severity - 0.9) + rng.gauss(0, 0.55))
        dose = base.dose(0.0 if rng.random() < 0.25 else wanted)
        rows.append({
            "_who": who, "_when": moment, "patient": base.identity(who), "charttime": base.clock(moment, admitted),
            "age": str(age), "sex": sex, "ward": ward, "heart_rate": f"{78 + 14 * severity + rng.gauss(0, 6):.0f}",
            "lactate": f"{math.exp(severity):.2f}",
            "creatinine": f"{0.9 * math.exp(0.35 * severity + rng.gauss(0, 0.15)):.2f}",
            "ventilated": str(int(ventilated)), "dose_mg": f"{dose:g}",
        })  # fmt: skip
        severity = 0.85 * severity + 0.15 * mood + 0.18 - response * math.tanh(dose / 8) + 0.12 * rng.gauss(0, 1)
        rows[-1] |= {"reward": f"{-math.exp(severity):.3f}", "died": "0", "discharged": "0"}
        moment += timedelta(hours=4)
    if not new:
        _end(base, rows, severity, rng)
    if not base.complete:
        _holes(rows, rng)
    if new:
        rows[-1]["dose_mg"] = ""
    return rows


def _end(base: Base, rows: list[Row], severity: float, rng: random.Random) -> None:
    dies = rng.random() < 1 / (1 + math.exp(-2.5 * (severity - 0.9)))
    if base.complete or rng.random() < 0.85:
        rows[-1]["died" if dies else "discharged"] = "1"
        rows[-1]["reward"] = "-12" if dies else "2"


def _holes(rows: list[Row], rng: random.Random) -> None:
    """A missing value here and there, and now and then a missing row."""
    for row in rows:
        for name in ("lactate", "creatinine"):
            if rng.random() < 0.04:
                row[name] = ""
    if len(rows) > 6 and rng.random() < 0.1:
        del rows[rng.randrange(2, len(rows) - 3)]
