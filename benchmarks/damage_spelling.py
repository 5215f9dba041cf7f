"""Damage to how numbers, levels and flags are written."""

import random

from damage_log import NUMBERS, Log
from damage_registry import Trace, change, deciding, kind, share

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
