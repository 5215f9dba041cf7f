"""Damage to values: units, sentinels, outliers, leaks, and doses or rewards that stand in another row."""

import random
from collections.abc import Callable

from damage_log import NUMBERS, Log, Row
from damage_registry import DATED, Trace, change, deciding, ended, fresh, kind, share, times, whole

MULTIPLES = (0.001, 0.01, 0.1, 10.0, 100.0, 1000.0)
CONVERSIONS = {"creatinine": (88.4,), "lactate": (9.01,), "heart_rate": ()}
"""Factors between the units of two laboratories, beside powers of ten."""
KNOWN_LATE = "outcome|end|stay|after|later|next|future|follow|reward|same row|know|leak"
"""Words for what a column knows before it can."""
SHIFTED = "early|late|before|after|shift|next|previous|past|future"


def factor(name: str, rng: random.Random) -> float:
    return rng.choice((*MULTIPLES, *CONVERSIONS.get(name, ())))


# Values


@kind("another unit in some patients")
def _(log: Log, rng: random.Random) -> Trace:
    name = rng.choice(NUMBERS)
    change(whole(log, rng, 0.1, 0.45), name, times(factor(name, rng)))
    return Trace(name)


@kind("another unit in some rows")
def _(log: Log, rng: random.Random) -> Trace:
    name = rng.choice(NUMBERS)
    change(share(deciding(log), rng, 0.05, 0.4), name, times(factor(name, rng)))
    return Trace(name)


@kind("another unit from a day on", "log", DATED)
def _(log: Log, rng: random.Random) -> Trace:
    name = rng.choice((*NUMBERS, "dose_mg"))
    moments = sorted(row["_when"] for row in log.rows)
    day = moments[round(len(moments) * rng.uniform(0.4, 0.85))]
    change([row for row in log.rows if row["_when"] >= day], name, times(factor(name, rng)))
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
    change(log.rows, name, times(factor(name, rng)))
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


@kind("a top bin of doses that differ tenfold", "log", DATED)
def _(log: Log, rng: random.Random) -> Trace:
    doses = sorted(float(row["dose_mg"]) for row in log.rows if row["dose_mg"])
    high = doses[round(len(doses) * 0.9)]
    rows = [row for row in log.rows if row["dose_mg"] and float(row["dose_mg"]) >= high]
    change(rows, "dose_mg", lambda cell: f"{float(cell) * rng.uniform(1, 10):.1f}")
    return Trace("dose_mg")


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


# Rewards, doses and columns that know what they cannot


@kind("doses one row early", "log")
def _(log: Log, rng: random.Random) -> Trace:
    _shift(log, "dose_mg", -1, "0")
    return Trace(f"dose_mg.*({SHIFTED})|({SHIFTED}).*dose_mg")


@kind("doses one row late", "log")
def _(log: Log, rng: random.Random) -> Trace:
    _shift(log, "dose_mg", 1, "0")
    return Trace(f"dose_mg.*({SHIFTED})|({SHIFTED}).*dose_mg")


@kind("rewards one row early", "log")
def _(log: Log, rng: random.Random) -> Trace:
    _shift(log, "reward", -1, "0")
    return Trace(f"reward.*({SHIFTED})|({SHIFTED}).*reward")


@kind("rewards one row late", "log")
def _(log: Log, rng: random.Random) -> Trace:
    _shift(log, "reward", 1, "0")
    return Trace(f"reward.*({SHIFTED})|({SHIFTED}).*reward")


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
    slope, offset = rng.choice((1.0, -1.0, 2.5)), rng.choice((0.0, 10.0))
    return _column(log, "risk_score", lambda row: f"{offset + slope * float(row['reward']):.3f}")


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
    return Trace(f"{name}.*({KNOWN_LATE})|({KNOWN_LATE}).*{name}")
