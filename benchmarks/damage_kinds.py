"""Kinds of damage that hospital tables have, each as a function of a clean log and a seeded random generator.

A kind says what a warning must name: a pattern that a line of output has to match to count. Where the right reading is
not that of the clean log (values written as NA, say), the kind gives the log that should have been read.
"""

import gzip
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from damage_log import NUMBERS, Log, Row

MULTIPLES = (0.001, 0.01, 88.4, 100.0, 1000.0)
"""Factors between units that leave no value where others may be."""
ID, TIME = r"patient|\bids?\b|subject", "charttime|date|time|year|clock|step"


@dataclass(frozen=True)
class Trace:
    """What was done, and how its treatment is judged."""

    named: str
    """A pattern of the lines that warn of it."""
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


# Values


@kind("another unit in some patients")
def _(log: Log, rng: random.Random) -> Trace:
    name = rng.choice(NUMBERS)
    change(whole(log, rng, 0.1, 0.45), name, times(rng.choice(MULTIPLES)))
    return Trace(name)


@kind("another unit in some rows")
def _(log: Log, rng: random.Random) -> Trace:
    name = rng.choice(NUMBERS)
    change(share(deciding(log), rng, 0.05, 0.4), name, times(rng.choice(MULTIPLES)))
    return Trace(name)


@kind("another unit from a day on", "log", DATED)
def _(log: Log, rng: random.Random) -> Trace:
    name, factor = rng.choice((*NUMBERS, "dose_mg")), rng.choice(MULTIPLES)
    moments = sorted(row["_when"] for row in log.rows)
    day = moments[round(len(moments) * rng.uniform(0.4, 0.85))]
    change([row for row in log.rows if row["_when"] >= day], name, times(factor))
    return Trace(name)


@kind("doses in micrograms in some patients", "log")
def _(log: Log, rng: random.Random) -> Trace:
    change(whole(log, rng, 0.1, 0.4), "dose_mg", times(1000))
    return Trace("dose_mg")


@kind("doses in grams in some patients", "log")
def _(log: Log, rng: random.Random) -> Trace:
    change(whole(log, rng, 0.1, 0.4), "dose_mg", times(0.001))
    return Trace("dose_mg")


@kind("all new patients in another unit", "new")
def _(log: Log, rng: random.Random) -> Trace:
    name = rng.choice(NUMBERS)
    change(log.rows, name, times(rng.choice(MULTIPLES)))
    return Trace(name)


@kind("a sentinel for missing values")
def _(log: Log, rng: random.Random) -> Trace:
    name, sentinel = rng.choice(NUMBERS), rng.choice(("-999", "999", "9999", "-1", "-9", "99999"))
    change(share(deciding(log), rng, 0.01, 0.3), name, lambda _: sentinel)
    return Trace(name)


@kind("zeros for missing values")
def _(log: Log, rng: random.Random) -> Trace:
    name = rng.choice(NUMBERS)
    change(share(deciding(log), rng, 0.03, 0.3), name, lambda _: "0")
    return Trace(name)


@kind("an isolated value")
def _(log: Log, rng: random.Random) -> Trace:
    name, row = rng.choice(NUMBERS), rng.choice(deciding(log))
    row[name] = rng.choice(("9999", "1e6", "-250", "100000"))
    return Trace(name)


@kind("an isolated dose", "log")
def _(log: Log, rng: random.Random) -> Trace:
    rng.choice(log.rows)["dose_mg"] = rng.choice(("9999", "100000", "1e7"))
    return Trace("dose_mg")


@kind("an isolated reward", "log")
def _(log: Log, rng: random.Random) -> Trace:
    rng.choice(log.rows)["reward"] = rng.choice(("1e9", "-1e6", "9999"))
    return Trace("reward")


@kind("rewards of another scale in some patients", "log")
def _(log: Log, rng: random.Random) -> Trace:
    change(whole(log, rng, 0.1, 0.35), "reward", times(rng.choice((100.0, 1000.0))))
    return Trace("reward")


@kind("negative doses", "log")
def _(log: Log, rng: random.Random) -> Trace:
    change(share(log.rows, rng, 0.01, 0.1), "dose_mg", lambda cell: f"-{cell}" if float(cell) else "-5")
    return Trace("dose_mg")


@kind("a value at a ceiling", "log")
def _(log: Log, rng: random.Random) -> Trace:
    name = rng.choice(NUMBERS)
    cells = sorted(float(row[name]) for row in log.rows if row[name])
    top = cells[round(len(cells) * rng.uniform(0.6, 0.8))]
    change(log.rows, name, lambda cell: f"{min(float(cell), top):g}")
    return Trace(name)


@kind("a column that never changes")
def _(log: Log, rng: random.Random) -> Trace:
    name = rng.choice(NUMBERS)
    cell = rng.choice([row[name] for row in log.rows if row[name]])
    for row in log.rows:
        row[name] = cell
    return Trace(name, right=log if fresh(log) else None)


@kind("an empty column")
def _(log: Log, rng: random.Random) -> Trace:
    name = rng.choice(NUMBERS)
    for row in log.rows:
        row[name] = ""
    return Trace(f"{name}.*(empty|missing|measured)|missing.*{name}")


@kind("two columns swapped in some patients")
def _(log: Log, rng: random.Random) -> Trace:
    one, two = rng.choice((("heart_rate", "lactate"), ("heart_rate", "creatinine"), ("age", "creatinine")))
    for row in whole(log, rng, 0.1, 0.4):
        row[one], row[two] = row[two], row[one]
    return Trace(f"{one}|{two}")


@kind("cells moved to the left in some rows")
def _(log: Log, rng: random.Random) -> Trace:
    lost = rng.choice(log.names[2:6])
    place = log.names.index(lost)
    for row in share(deciding(log), rng, 0.01, 0.1):
        cells = [row[name] for name in log.names]
        cells = [*cells[:place], *cells[place + 1 :], ""]
        row |= dict(zip(log.names, cells, strict=True))
    return Trace("column '")


# Spelling of numbers


@kind("decimal commas in a column")
def _(log: Log, rng: random.Random) -> Trace:
    name = rng.choice(("lactate", "creatinine"))
    change(log.rows, name, lambda cell: cell.replace(".", ","))
    return Trace(name)


@kind("decimal commas in some rows")
def _(log: Log, rng: random.Random) -> Trace:
    name = rng.choice(("lactate", "creatinine", "dose_mg"))
    change(share(deciding(log), rng, 0.05, 0.5), name, lambda cell: cell.replace(".", ","))
    return Trace(name)


@kind("semicolons and decimal commas")
def _(log: Log, rng: random.Random) -> Trace:
    log.delimiter = ";"
    for name in (*NUMBERS, "dose_mg", "reward"):
        change([row for row in log.rows if name in row], name, lambda cell: cell.replace(".", ","))
    return Trace("comma|decimal")


@kind("semicolons, and a decimal comma in one column only")
def _(log: Log, rng: random.Random) -> Trace:
    name, log.delimiter = rng.choice(("lactate", "creatinine")), ";"
    change(log.rows, name, lambda cell: cell.replace(".", ","))
    return Trace("lactate|creatinine|reward|dose_mg")


@kind("separators of thousands")
def _(log: Log, rng: random.Random) -> Trace:
    name, mark = rng.choice(NUMBERS), rng.choice((",", "'", " "))
    for each in {
        id(row): row for row in (log.rows if rng.random() < 0.5 else share(deciding(log), rng, 0.1, 0.5))
    }.values():
        change([each], name, lambda cell: f"{float(cell) * 1000:,.0f}".replace(",", mark))
    return Trace(name)


@kind("units inside cells")
def _(log: Log, rng: random.Random) -> Trace:
    name, unit = rng.choice((("lactate", " mmol/L"), ("heart_rate", "/min"), ("dose_mg", " mg"), ("dose_mg", "mg")))
    rows = log.rows if rng.random() < 0.5 else share(deciding(log), rng, 0.05, 0.6)
    change(rows, name, lambda cell: cell + unit)
    return Trace(name)


@kind("censored laboratory values")
def _(log: Log, rng: random.Random) -> Trace:
    name, limit = rng.choice(
        (("lactate", "<0.5"), ("creatinine", "< 0.8"), ("lactate", ">4.0"), ("creatinine", "≤0.8"))
    )
    change(share(deciding(log), rng, 0.01, 0.2), name, lambda _: limit)
    return Trace(name)


@kind("codes for missing values")
def _(log: Log, rng: random.Random) -> Trace:
    name, code = (
        rng.choice(NUMBERS),
        rng.choice(("NULL", "NA", "n/a", "-", ".", "unknown", "#N/A", "missing", "?", "null")),
    )
    rows = share(deciding(log), rng, 0.01, 0.2)
    change(rows, name, lambda _: "")
    right = log.copy()
    for row in rows:
        row[name] = row[name] or code
    return Trace(name, right=right)


@kind("percent signs and stars in cells")
def _(log: Log, rng: random.Random) -> Trace:
    name, mark = rng.choice(NUMBERS), rng.choice(("*", " H", "%", " (L)", "!"))
    change(share(deciding(log), rng, 0.01, 0.3), name, lambda cell: cell + mark)
    return Trace(name)


@kind("other digits and minus signs")
def _(log: Log, rng: random.Random) -> Trace:
    name = rng.choice(NUMBERS)
    digits = str.maketrans("0123456789", rng.choice(("٠١٢٣٤٥٦٧٨٩", "０１２３４５６７８９")))
    change(share(deciding(log), rng, 0.01, 0.3), name, lambda cell: cell.translate(digits))
    return Trace(name)


@kind("letters for digits")
def _(log: Log, rng: random.Random) -> Trace:
    name = rng.choice(NUMBERS)
    rows = [row for row in deciding(log) if any(d in row[name] for d in "01")]
    change(share(rows, rng, 0.01, 0.1), name, lambda cell: cell.replace("0", "O").replace("1", "l"))
    return Trace(name)


@kind("numbers with blanks around them")
def _(log: Log, rng: random.Random) -> Trace:
    name = rng.choice((*NUMBERS, "age"))
    change(share(log.rows, rng, 0.05, 1.0), name, lambda cell: f" {cell} ")
    return Trace(name)


@kind("doses as text and as numbers", "log")
def _(log: Log, rng: random.Random) -> Trace:
    words = {"0": rng.choice(("none", "nil", "held", "0.0", "0 mg"))}
    rows = share([row for row in log.rows if row["dose_mg"] == "0"], rng, 0.1, 1.0)
    change(rows, "dose_mg", lambda cell: words[cell])
    return Trace("dose_mg")


@kind("doses written as 5 and as 5.0", "log")
def _(log: Log, rng: random.Random) -> Trace:
    change(share(log.rows, rng, 0.1, 0.9), "dose_mg", lambda cell: f"{float(cell):.2f}")
    return Trace("dose_mg")


@kind("no dose left empty", "log")
def _(log: Log, rng: random.Random) -> Trace:
    change([row for row in log.rows if row["dose_mg"] == "0"], "dose_mg", lambda _: "")
    return Trace("dose_mg")


# Levels and flags


@kind("blanks behind some levels")
def _(log: Log, rng: random.Random) -> Trace:
    name = rng.choice(("ward", "sex"))
    change(share(deciding(log), rng, 0.05, 0.6), name, lambda cell: cell + rng.choice((" ", "  ", "\u00a0")))
    return Trace(name)


@kind("levels in capitals")
def _(log: Log, rng: random.Random) -> Trace:
    name = rng.choice(("ward", "sex"))
    change(share(deciding(log), rng, 0.05, 0.6), name, rng.choice((str.upper, str.capitalize)))
    return Trace(name)


@kind("a misspelt level")
def _(log: Log, rng: random.Random) -> Trace:
    rows = [row for row in deciding(log) if row["ward"] == "icu"] or deciding(log)
    change(share(rows, rng, 0.0, 0.02), "ward", lambda _: rng.choice(("icuu", "i.c.u", "icu?")))
    return Trace("ward")


@kind("a level that only held-out patients have", "log")
def _(log: Log, rng: random.Random) -> Trace:
    who = share(sorted(log.held), rng, 0.0, 0.3)
    change(log.of(who), "ward", lambda _: "burns")
    return Trace("ward")


@kind("a level that no training patient has", "new")
def _(log: Log, rng: random.Random) -> Trace:
    change(share(deciding(log), rng, 0.1, 0.5), rng.choice(("ward", "sex")), lambda _: "x")
    return Trace("ward|sex")


@kind("a state flag in several spellings")
def _(log: Log, rng: random.Random) -> Trace:
    words = {"0": ["0", "no", "FALSE", "n"], "1": ["1", "yes", "TRUE", "y"]}
    change(share(log.rows, rng, 0.1, 0.9), "ventilated", lambda cell: rng.choice(words[cell]))
    return Trace("ventilated")


@kind("a state flag of 0, 1 and 2")
def _(log: Log, rng: random.Random) -> Trace:
    change(share(deciding(log), rng, 0.01, 0.06), "ventilated", lambda _: "2")
    return Trace("ventilated")


@kind("outcomes in several spellings", "log")
def _(log: Log, rng: random.Random) -> Trace:
    words = {"0": ["0", "no", "False", "N"], "1": ["1", "yes", "TRUE", "y"]}
    change(log.rows, rng.choice(("died", "discharged")), lambda cell: rng.choice(words[cell]))
    return Trace("died|discharged")


@kind("an outcome that is neither yes nor no", "log")
def _(log: Log, rng: random.Random) -> Trace:
    name = rng.choice(("died", "discharged"))
    rng.choice(log.rows)[name] = rng.choice(("2", "?", "transfer", "-1"))
    return Trace(name)


@kind("outcomes left empty where they are 0", "log")
def _(log: Log, rng: random.Random) -> Trace:
    name = rng.choice(("died", "discharged"))
    change([row for row in log.rows if row[name] == "0"], name, lambda _: "")
    return Trace(name)


# Rewards, doses and columns that know what they cannot


@kind("doses one row early", "log")
def _(log: Log, rng: random.Random) -> Trace:
    _shift(log, "dose_mg", -1, "0")
    return Trace("dose_mg")


@kind("doses one row late", "log")
def _(log: Log, rng: random.Random) -> Trace:
    _shift(log, "dose_mg", 1, "0")
    return Trace("dose_mg")


@kind("rewards one row early", "log")
def _(log: Log, rng: random.Random) -> Trace:
    _shift(log, "reward", -1, "0")
    return Trace("reward")


@kind("rewards one row late", "log")
def _(log: Log, rng: random.Random) -> Trace:
    _shift(log, "reward", 1, "0")
    return Trace("reward")


def _shift(log: Log, name: str, by: int, end: str) -> None:
    """Every patient's cells some rows later."""
    for who in log.subjects():
        rows = sorted(log.of([who]), key=lambda row: row["_when"])
        cells = [row[name] for row in rows]
        moved = [end, *cells[:-1]] if by > 0 else [*cells[1:], end]
        for row, cell in zip(rows, moved, strict=True):
            row[name] = cell


@kind("the length of stay as a state", "log")
def _(log: Log, rng: random.Random) -> Trace:
    name, length = rng.choice(("los", "stay_hours", "length_of_stay")), {}
    for who in log.subjects():
        hours = (log.last(who)["_when"] - log.first(who)["_when"]).total_seconds() / 3600
        length[who] = hours if name != "los" else round(hours / 24, 2)
    return _column(log, name, lambda row: f"{length[row['_who']]:g}")


@kind("the disposition as a state", "log")
def _(log: Log, rng: random.Random) -> Trace:
    dead, home = set(ended(log, "died")), set(ended(log, "discharged"))
    words = rng.choice((("home", "died", "transfer"), ("1", "2", "3")))
    return _column(
        log,
        "disposition",
        lambda row: words[1] if row["_who"] in dead else words[0] if row["_who"] in home else words[2],
    )


@kind("a score that is the reward of its own row", "log")
def _(log: Log, rng: random.Random) -> Trace:
    factor, offset = rng.choice((1.0, -1.0, 2.5)), rng.choice((0.0, 10.0))
    return _column(log, "risk_score", lambda row: f"{offset + factor * float(row['reward']):.3f}")


@kind("a column that holds the next row's value", "log")
def _(log: Log, rng: random.Random) -> Trace:
    after = {}
    for who in log.subjects():
        rows = sorted(log.of([who]), key=lambda row: row["_when"])
        for row, later in zip(rows, [*rows[1:], rows[-1]], strict=True):
            after[id(row)] = later["heart_rate"]
    return _column(log, "pulse", lambda row: after[id(row)])


@kind("the total dose of the stay as a state", "log")
def _(log: Log, rng: random.Random) -> Trace:
    total = {who: sum(float(row["dose_mg"] or 0) for row in log.of([who])) for who in log.subjects()}
    return _column(log, "stay_total_mg", lambda row: f"{total[row['_who']]:.1f}")


def _column(log: Log, name: str, cell: Callable[[Row], str]) -> Trace:
    for row in log.rows:
        row[name] = cell(row)
    log.names, log.state = [*log.names, name], [*log.state, name]
    return Trace(name)


# Time


def rewrite(log: Log, rows: Iterable[Row], how: Callable[[datetime], str]) -> None:
    for row in rows:
        row["charttime"] = how(row["_when"])


@kind("days before months, up to the twelfth", bases=("american",))
def _(log: Log, rng: random.Random) -> Trace:
    for who in log.subjects():  # Stays that begin in the first nine days, so that no day tells itself from a month.
        move = timedelta(days=rng.randint(2, 9) - log.first(who)["_when"].day)
        for row in log.of([who]):
            row["_when"] += move
    rewrite(log, log.rows, lambda moment: moment.strftime("%d/%m/%Y %H:%M"))
    return Trace(TIME)


@kind("days before months", bases=DATED)
def _(log: Log, rng: random.Random) -> Trace:
    mark = rng.choice("/.-")
    rewrite(log, log.rows, lambda moment: moment.strftime(f"%d{mark}%m{mark}%Y %H:%M"))
    return Trace(TIME)


@kind("days before months in some patients", bases=("american",))
def _(log: Log, rng: random.Random) -> Trace:
    rows = [row for row in whole(log, rng, 0.2, 0.6) if row["_when"].day <= 12]
    rewrite(log, rows, lambda moment: moment.strftime("%d/%m/%Y %H:%M"))
    return Trace(TIME)


@kind("a year mistyped", bases=DATED)
def _(log: Log, rng: random.Random) -> Trace:
    row = rng.choice([row for row in log.rows if row not in deciding(log)] if fresh(log) else log.rows)
    year = rng.choice((2205, 2042, 1924, 2240))
    rewrite(log, [row], lambda moment: log.base.clock(moment.replace(year=year, day=min(moment.day, 28)), moment))
    return Trace(TIME)


@kind("a placeholder for unknown dates", bases=DATED)
def _(log: Log, rng: random.Random) -> Trace:
    rows = [rng.choice(log.of([who])) for who in share(log.subjects(), rng, 0.02, 0.2)]
    moment = rng.choice((datetime(1900, 1, 1), datetime(1970, 1, 1), datetime(2099, 12, 31)))
    rewrite(log, rows, lambda _: log.base.clock(moment, moment))
    return Trace(TIME)


@kind("rows dated before the admission", bases=DATED)
def _(log: Log, rng: random.Random) -> Trace:
    for who in share(log.subjects(), rng, 0.03, 0.2):
        row = log.last(who)
        rewrite(log, [row], lambda moment: log.base.clock(moment - timedelta(days=rng.randint(20, 400)), moment))
    return Trace(TIME)


@kind("years of two digits", bases=DATED)
def _(log: Log, rng: random.Random) -> Trace:
    rows = log.rows if rng.random() < 0.6 else share(log.rows, rng, 0.1, 0.6)
    rewrite(log, rows, lambda moment: moment.strftime("%m/%d/%y %H:%M"))
    return Trace(TIME)


@kind("Excel's serial dates", bases=DATED)
def _(log: Log, rng: random.Random) -> Trace:
    rows = log.rows if rng.random() < 0.5 else share(log.rows, rng, 0.05, 0.6)
    rewrite(log, rows, lambda moment: f"{(moment - datetime(1899, 12, 30)) / timedelta(days=1):.5f}")
    return Trace(TIME)


@kind("dates in two formats", bases=DATED)
def _(log: Log, rng: random.Random) -> Trace:
    form = rng.choice(("%d %b %Y %H:%M", "%Y%m%d%H%M", "%d.%m.%Y %H:%M", "%Y-%m-%dT%H:%M:%SZ"))
    rewrite(log, share(log.rows, rng, 0.05, 0.6), lambda moment: moment.strftime(form))
    return Trace(TIME)


@kind("the hour of the day as time", "log", DATED)
def _(log: Log, rng: random.Random) -> Trace:
    for row in log.rows:
        row["hour"] = str(row["_when"].hour)
    log.names, log.time = [*log.names, "hour"], "hour"
    return Trace(f"hour|{TIME}")


@kind("the hour of the day in place of the date", "new", DATED)
def _(log: Log, rng: random.Random) -> Trace:
    rewrite(log, log.rows, lambda moment: str(moment.hour))
    return Trace(TIME)


@kind("days without hours", bases=DATED)
def _(log: Log, rng: random.Random) -> Trace:
    rewrite(log, log.rows, lambda moment: log.base.clock(moment.replace(hour=0), moment)[:10])
    return Trace(TIME)


@kind("zones on some times", bases=("strict", "lenient"))
def _(log: Log, rng: random.Random) -> Trace:
    zone = rng.choice(("+05:00", "-08:00", "+09:30"))
    rows = share(log.rows, rng, 0.05, 0.5) if rng.random() < 0.7 else whole(log, rng, 0.1, 0.5)
    rewrite(log, rows, lambda moment: moment.strftime("%Y-%m-%d %H:%M") + zone)
    return Trace(f"zone|offset|{TIME}")


@kind("minutes for hours in some patients", bases=("hours",))
def _(log: Log, rng: random.Random) -> Trace:
    change(whole(log, rng, 0.1, 0.4), "charttime", times(60))
    return Trace(TIME)


@kind("rows charted twice, a minute apart")
def _(log: Log, rng: random.Random) -> Trace:
    for row in share([row for row in log.rows if row not in map(log.last, log.subjects())], rng, 0.02, 0.2):
        first = log.first(row["_who"])["_when"]
        again = row | {"_when": row["_when"] + timedelta(minutes=1)}
        log.rows.append(again | {"charttime": log.base.clock(again["_when"], first)})
    return Trace(f"{TIME}|twice|double")


@kind("times left empty")
def _(log: Log, rng: random.Random) -> Trace:
    for row in share(log.rows, rng, 0.01, 0.1):
        row["charttime"] = ""
    return Trace(TIME)


# Whose rows


@kind("rows after death", "log")
def _(log: Log, rng: random.Random) -> Trace:
    for who in share(ended(log, "died"), rng, 0.1, 0.6):
        _go_on(log, who, rng.randint(1, 3), {"died": "0", "reward": "0"})
    return Trace("died|after|outcome")


@kind("rows after death that repeat its flag", "log")
def _(log: Log, rng: random.Random) -> Trace:
    for who in share(ended(log, "died"), rng, 0.1, 0.45):
        _go_on(log, who, rng.randint(1, 3), {})
    return Trace("died|after|outcome")


def _go_on(log: Log, who: int, count: int, cells: Row) -> None:
    last, first = log.last(who), log.first(who)["_when"]
    for step in range(count):
        moment = last["_when"] + (step + 1) * timedelta(hours=4)
        log.rows.append(last | {"_when": moment, "charttime": log.base.clock(moment, first)} | cells)


@kind("deaths marked one row early", "log")
def _(log: Log, rng: random.Random) -> Trace:
    for who in share(ended(log, "died"), rng, 0.1, 0.7):
        *_, before, last = sorted(log.of([who]), key=lambda row: row["_when"])
        before["died"], last["died"] = "1", "0"
    return Trace("died|after|outcome")


@kind("an outcome on all rows of fewer than half", "log")
def _(log: Log, rng: random.Random) -> Trace:
    name = rng.choice(("died", "discharged"))
    change(log.of(share(ended(log, name), rng, 0.1, 0.4)), name, lambda _: "1")
    return Trace(name)


@kind("an outcome on all rows", "log")
def _(log: Log, rng: random.Random) -> Trace:
    name = rng.choice(("died", "discharged"))
    change(log.of(ended(log, name)), name, lambda _: "1")
    return Trace(name)


@kind("two outcomes at once", "log")
def _(log: Log, rng: random.Random) -> Trace:
    for who in share(ended(log, "died"), rng, 0.05, 0.4):
        log.last(who)["discharged"] = "1"
    return Trace("died|discharged")


@kind("last rows lost", "log", ("strict",))
def _(log: Log, rng: random.Random) -> Trace:
    lost = [log.last(who) for who in share(log.subjects(), rng, 0.05, 0.4)]
    log.rows = [row for row in log.rows if row not in lost]
    return Trace("episodes? end|died|discharged|last")


@kind("rows lost in the middle")
def _(log: Log, rng: random.Random) -> Trace:
    ends = [end(who) for who in log.subjects() for end in (log.first, log.last)]
    lost = share([row for row in log.rows if row not in ends], rng, 0.02, 0.15)
    log.rows = [row for row in log.rows if row not in lost]
    return Trace("step|gap", right=log)


@kind("rows twice")
def _(log: Log, rng: random.Random) -> Trace:
    log.rows += [dict(row) for row in share(log.rows, rng, 0.01, 0.3)]
    return Trace("same|twice|repeat|duplicate")


@kind("two values for one time")
def _(log: Log, rng: random.Random) -> Trace:
    name = rng.choice(NUMBERS)
    log.rows += [row | {name: times(1.3)(row[name] or "1")} for row in share(deciding(log), rng, 0.01, 0.2)]
    return Trace("same|twice|repeat|duplicate")


@kind("rows in any order")
def _(log: Log, rng: random.Random) -> Trace:
    rng.shuffle(log.rows)
    return Trace("order")


@kind("columns in any order")
def _(log: Log, rng: random.Random) -> Trace:
    rng.shuffle(log.names)
    return Trace("order")


@kind("columns of a spreadsheet's index")
def _(log: Log, rng: random.Random) -> Trace:
    for place, row in enumerate(log.rows):
        row["Unnamed: 0"] = str(place)
    log.names = ["Unnamed: 0", *log.names]
    return Trace("Unnamed")


def rename(rows: Iterable[Row], how: Callable[[str], str]) -> dict[str, str]:
    """Write ids otherwise; the new ones with the old."""
    known = {}
    for row in rows:
        known[how(row["patient"])] = row["patient"]
        row["patient"] = how(row["patient"])
    return known


@kind("records copied under other ids", "log")
def _(log: Log, rng: random.Random) -> Trace:
    rows = whole(log, rng, 0.15, 1.0)
    how = rng.choice((lambda cell: f"{cell}-2", lambda cell: f"9{cell}", lambda cell: f"ext{cell}"))
    log.rows += [row | {"patient": how(row["patient"]), "_who": row["_who"] + 1000} for row in rows]
    return Trace("cop(y|ies)|same record|identical|twice|duplicate|same rows|more than one")


@kind("ids that look like markup")
def _(log: Log, rng: random.Random) -> Trace:
    how = rng.choice(
        (
            lambda cell: f"P{cell}[b]",
            lambda cell: f"[/]{cell}",
            lambda cell: f"[red]{cell}[/red]",
            lambda cell: f"{cell}\\",
        )
    )
    return Trace("patient", ids=rename(log.rows, how))


@kind("ids that are formulas")
def _(log: Log, rng: random.Random) -> Trace:
    how = rng.choice(
        (
            lambda cell: f"=1+{cell}",
            lambda cell: f"+{cell}",
            lambda cell: f"@{cell}",
            lambda cell: f"\t{cell}",
            lambda cell: f"-{cell}",
        )
    )
    return Trace("patient", ids=rename(log.rows, how))


@kind("leading zeros lost from all ids", bases=("strict",))
def _(log: Log, rng: random.Random) -> Trace:
    return Trace(ID, ids=rename(log.rows, lambda cell: str(int(cell))))


@kind("leading zeros lost from some ids", bases=("strict",))
def _(log: Log, rng: random.Random) -> Trace:
    rename(share(log.rows, rng, 0.05, 0.6), lambda cell: str(int(cell)))
    return Trace(f"{ID}.*zero|zero.*({ID})")


@kind("ids as 12.0 in all rows", bases=("american", "hours"))
def _(log: Log, rng: random.Random) -> Trace:
    return Trace(ID, ids=rename(log.rows, lambda cell: f"{cell}.0"))


@kind("ids as 12.0 in some rows", bases=("american", "hours"))
def _(log: Log, rng: random.Random) -> Trace:
    rename(share(log.rows, rng, 0.05, 0.6), lambda cell: f"{cell}.0")
    return Trace(f"({ID}).*(zero|blank|decimal|differ|written|\\.0|alike|spell)")


@kind("ids with blanks or other letters in some rows")
def _(log: Log, rng: random.Random) -> Trace:
    rename(share(log.rows, rng, 0.05, 0.6), rng.choice((lambda cell: f"{cell} ", lambda cell: f" {cell}")))
    return Trace(f"({ID}).*(zero|blank|decimal|differ|written|alike|spell)")


@kind("ids in lower case in some rows", bases=("lenient",))
def _(log: Log, rng: random.Random) -> Trace:
    rename(share(log.rows, rng, 0.05, 0.6), str.lower)
    return Trace(f"({ID}).*(case|capital|letter|differ|written|alike|spell)")


@kind("ids left empty")
def _(log: Log, rng: random.Random) -> Trace:
    for row in share(log.rows, rng, 0.01, 0.1):
        row["patient"] = ""
    return Trace(ID)


@kind("the column of ids renamed")
def _(log: Log, rng: random.Random) -> Trace:
    log.header = [
        rng.choice(("patient_id", "Patient", "subject", "ID")) if name == "patient" else name for name in log.names
    ]
    return Trace(ID)


@kind("the column of times renamed")
def _(log: Log, rng: random.Random) -> Trace:
    log.header = [
        rng.choice(("time", "Charttime", "chart_time")) if name == "charttime" else name for name in log.names
    ]
    return Trace(TIME)


@kind("a state column renamed or lost")
def _(log: Log, rng: random.Random) -> Trace:
    lost = rng.choice(NUMBERS)
    log.header = [rng.choice((f" {lost}", lost.upper(), f"{lost}.1")) if name == lost else name for name in log.names]
    return Trace(lost)


@kind("finished patients among the new", "new")
def _(log: Log, rng: random.Random) -> Trace:
    log.names = [*log.names, "died", "discharged"]
    change([log.last(who) for who in share(log.subjects(), rng, 0.1, 0.5)], "died", lambda _: "1")
    return Trace("died|end|finished")


# Files


@kind("a byte order mark")
def _(log: Log, rng: random.Random) -> Trace:
    log.file = _marked
    return Trace("byte")


@kind("lines of Windows")
def _(log: Log, rng: random.Random) -> Trace:
    log.newline = "\r\n"
    return Trace("line")


@kind("a second header with units")
def _(log: Log, rng: random.Random) -> Trace:
    units = {"heart_rate": "/min", "lactate": "mmol/L", "creatinine": "mg/dL", "dose_mg": "mg", "age": "years"}
    log.top = [[units.get(name, "") for name in log.names]]
    return Trace("column '")


@kind("a line of groups above the header")
def _(log: Log, rng: random.Random) -> Trace:
    log.above = [["", "", "Demographics", *[""] * (len(log.names) - 4), "Outcome"]]
    return Trace("column '")


@kind("a comment above the header")
def _(log: Log, rng: random.Random) -> Trace:
    log.above = [[rng.choice(("# exported 2024-11-02", "Report of ward 3", "sep=,"))]]
    return Trace("column '")


@kind("a row of totals at the end")
def _(log: Log, rng: random.Random) -> Trace:
    means = {
        name: f"{sum(float(row[name] or 0) for row in log.rows) / len(log.rows):.2f}" for name in (*NUMBERS, "dose_mg")
    }
    if not fresh(log):
        means |= {"reward": "-1.9", "died": "0", "discharged": "0"}
    last = log.rows[-1]
    filled = {"charttime": last["charttime"], "age": "58", "sex": "m", "ward": "ward", "ventilated": "0"}
    row = {"patient": rng.choice(("TOTAL", "Mean", "Sum", "")), **means, **(filled if rng.random() < 0.6 else {})}
    log.below = [[row.get(name, "") for name in log.names]]
    return Trace(f"two rows that follow|total|mean|sum|{ID}")


@kind("a line of words at the end")
def _(log: Log, rng: random.Random) -> Trace:
    log.below = [[rng.choice(("End of report", "(780 rows affected)", "Source: data warehouse"))]]
    return Trace("line|row")


@kind("empty rows at the end")
def _(log: Log, rng: random.Random) -> Trace:
    log.below = [[""] * len(log.names)] * rng.randint(1, 4)
    return Trace(ID)


@kind("the header again within the table")
def _(log: Log, rng: random.Random) -> Trace:
    log.rows.insert(
        rng.randrange(1, len(log.rows)),
        {name: name for name in log.names} | {"_who": -1, "_when": datetime(2024, 1, 1)},
    )
    return Trace("column '")


@kind("a column twice")
def _(log: Log, rng: random.Random) -> Trace:
    name = rng.choice(NUMBERS)
    log.header, log.names = [*log.names, name], [*log.names, rng.choice([other for other in NUMBERS if other != name])]
    return Trace(name)


@kind("a file cut off")
def _(log: Log, rng: random.Random) -> Trace:
    part, cells = rng.uniform(0.3, 0.95), rng.randint(2, 6)
    log.file = _Cut(part, cells)
    return Trace("line|row|file")


@kind("another delimiter")
def _(log: Log, rng: random.Random) -> Trace:
    log.delimiter = rng.choice(("|", ";", "\t", "^"))
    return Trace("column '|comma")


@kind("another encoding")
def _(log: Log, rng: random.Random) -> Trace:
    levels = {"icu": "Überwachung", "hdu": "Mittelpflege", "ward": "Säle"}
    log.encoding = rng.choice(("latin-1", "utf-16", "cp1252"))
    change(log.rows, "ward", levels.__getitem__)
    return Trace("encoding|not text|ward")


@kind("broken bytes")
def _(log: Log, rng: random.Random) -> Trace:
    log.file = _Broken(rng.randrange(10**6), rng.choice((b"\xff", b"\x00", b'"', b"\xc3")))
    return Trace("column '|file|line|bytes|encoding|not text")


@kind("a packed file", "both")
def _(log: Log, rng: random.Random) -> Trace:
    log.suffix, log.file = ".csv.gz", _packed
    return Trace("gz")


@kind("a packed file that is huge once unpacked")
def _(log: Log, rng: random.Random) -> Trace:
    log.suffix, log.file = ".csv.gz", _bomb
    return Trace("gz|large|unpack|size")


@kind("a packed file cut off")
def _(log: Log, rng: random.Random) -> Trace:
    log.suffix, part = ".csv.gz", rng.uniform(0.2, 0.95)
    log.file = _CutPacked(part)
    return Trace("gz|file")


@kind("a pipe in place of a file")
def _(log: Log, rng: random.Random) -> Trace:
    log.fifo = True
    return Trace("file|pipe")


@kind("an empty file")
def _(log: Log, rng: random.Random) -> Trace:
    log.file = rng.choice((_nothing, _header_only))
    return Trace("rows|empty")


@kind("a spreadsheet named as a table")
def _(log: Log, rng: random.Random) -> Trace:
    log.file = _spreadsheet
    return Trace("file|text|encoding")


def _marked(content: bytes) -> bytes:
    return b"\xef\xbb\xbf" + content


def _packed(content: bytes) -> bytes:
    return gzip.compress(content, 1)


def _bomb(content: bytes) -> bytes:
    """The table, and behind it 256 MB of its last row, packed into members that are the same."""
    row = content.splitlines(keepends=True)[-1]
    return gzip.compress(content, 1) + 16 * gzip.compress(row * math.ceil((16 << 20) / len(row)), 1)


def _nothing(_: bytes) -> bytes:
    return b""


def _header_only(content: bytes) -> bytes:
    return content.splitlines(keepends=True)[0]


def _spreadsheet(content: bytes) -> bytes:
    return b"PK\x03\x04\x14\x00\x06\x00" + gzip.compress(content, 1)


@dataclass(frozen=True)
class _Cut:
    part: float
    cells: int

    def __call__(self, content: bytes) -> bytes:
        """Whole lines, and some cells of the next."""
        lines = content.splitlines(keepends=True)
        count = max(2, round(len(lines) * self.part))
        return b"".join(lines[:count]) + b",".join(lines[min(count, len(lines) - 1)].split(b",")[: self.cells])


@dataclass(frozen=True)
class _CutPacked:
    part: float

    def __call__(self, content: bytes) -> bytes:
        packed = gzip.compress(content, 1)
        return packed[: round(len(packed) * self.part)]


@dataclass(frozen=True)
class _Broken:
    place: int
    byte: bytes

    def __call__(self, content: bytes) -> bytes:
        header = content.index(b"\n") + 1
        place = header + self.place % (len(content) - header)
        return content[:place] + self.byte + content[place:]
