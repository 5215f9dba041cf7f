"""Damage to times, ids and rows."""

import random
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from damage_log import NUMBERS, Log, Row
from damage_registry import DATED, ID, TIME, Trace, change, deciding, ended, fresh, kind, share, times, whole

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
    return Trace(f"{TIME}|minute|twice|double")


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
    return Trace("died.*(after|row|end|follow)|after.*died")


@kind("rows after death that repeat its flag", "log")
def _(log: Log, rng: random.Random) -> Trace:
    for who in share(ended(log, "died"), rng, 0.1, 0.45):
        _go_on(log, who, rng.randint(1, 3), {})
    return Trace("died.*(after|row|end|follow)|after.*died")


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
    return Trace("died.*(after|row|end|follow)|after.*died")


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
    return Trace("episodes? end|last row")


@kind("rows lost in the middle")
def _(log: Log, rng: random.Random) -> Trace:
    ends = [end(who) for who in log.subjects() for end in (log.first, log.last)]
    lost = share([row for row in log.rows if row not in ends], rng, 0.02, 0.15)
    log.rows = [row for row in log.rows if row not in lost]
    return Trace("one step|gap", right=log)


@kind("rows twice")
def _(log: Log, rng: random.Random) -> Trace:
    log.rows += [dict(row) for row in share(log.rows, rng, 0.01, 0.3)]
    return Trace("same '?(subject|patient|time)|twice|repeat|duplicate")


@kind("two values for one time")
def _(log: Log, rng: random.Random) -> Trace:
    name = rng.choice(NUMBERS)
    log.rows += [row | {name: times(1.3)(row[name] or "1")} for row in share(deciding(log), rng, 0.01, 0.2)]
    return Trace("same '?(subject|patient|time)|twice|repeat|duplicate")


@kind("rows in any order")
def _(log: Log, rng: random.Random) -> Trace:
    rng.shuffle(log.rows)
    return Trace("in another order")


@kind("columns in any order")
def _(log: Log, rng: random.Random) -> Trace:
    rng.shuffle(log.names)
    return Trace("in another order")


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
    return Trace(ID, ids=rename(log.rows, how))


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
    return Trace(ID, ids=rename(log.rows, how))


@kind("leading zeros lost from all ids", bases=("strict",))
def _(log: Log, rng: random.Random) -> Trace:
    """Ids in another order hold out other patients, so the right reading is of ids in that order that lost nothing."""
    right = log.copy()
    written = rename(right.rows, lambda cell: f"p{int(cell)}")
    kept = {cell: new for new, cell in written.items()}
    renamed = rename(log.rows, lambda cell: str(int(cell)))
    return Trace(ID, right=right, ids={new: kept[cell] for new, cell in renamed.items()})


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
