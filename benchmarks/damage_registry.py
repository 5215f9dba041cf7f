"""A kind of damage is a function of a clean log and a seeded random generator; `KINDS` has all that are registered.

A kind says what a warning must name: a pattern that a line of output has to match to count. Where the right reading is
not that of the clean log (values written as NA, say), the kind gives the log that should have been read.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from damage_log import Log, Row

ID = r"'patient'|\bids?\b"
TIME = r"charttime|\b(dates?|dated|clock|years?|zones?)\b|one step"


@dataclass(frozen=True)
class Trace:
    """What was done, and how its treatment is judged."""

    named: str
    """A pattern of the lines that warn of it; lines that describe clean tables too never count."""
    right: Log | None = None
    """The log whose reading is right; the clean one where none is given."""
    ids: dict[str, str] = field(default_factory=dict)
    """Ids that are written otherwise and mean the same, as written and as in the clean log."""


Damage = Callable[[Log, random.Random], Trace]
Where = Literal["log", "new", "both"]
ALL = ("strict", "lenient", "american", "hours")
DATED = ("strict", "lenient", "american")


@dataclass(frozen=True)
class Kind:
    damage: Damage
    where: Where = "both"
    bases: tuple[str, ...] = ALL


KINDS: dict[str, Kind] = {}


def kind(name: str, where: Where = "both", bases: tuple[str, ...] = ALL) -> Callable[[Damage], Damage]:
    def register(damage: Damage) -> Damage:
        KINDS[name] = Kind(damage, where, bases)
        return damage

    return register


def share(items: Sequence, rng: random.Random, low: float, high: float) -> list:
    """A random share of them, one at least."""
    return rng.sample(list(items), max(1, round(rng.uniform(low, high) * len(items))))


def fresh(log: Log) -> bool:
    """Whether the log is of new patients."""
    return "reward" not in log.names


def deciding(log: Log) -> list[Row]:
    """The rows that matter: all of a log, the last ones of new patients."""
    return [log.last(who) for who in log.subjects()] if fresh(log) else log.rows


def whole(log: Log, rng: random.Random, low: float, high: float) -> list[Row]:
    """All rows of a share of the patients."""
    return log.of(share(log.subjects(), rng, low, high))


def change(rows: Iterable[Row], name: str, how: Callable[[str], str]) -> None:
    """Change the cells that have a value."""
    for row in rows:
        if row[name] != "":
            row[name] = how(row[name])


def times(factor: float) -> Callable[[str], str]:
    return lambda cell: f"{float(cell) * factor:.6g}"


def ended(log: Log, name: str) -> list[int]:
    return [who for who in log.subjects() if log.last(who)[name] == "1"]
