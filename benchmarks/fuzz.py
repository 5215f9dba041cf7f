"""Damaged tables, damaged files and wrong calls: each is refused in one line or answered exactly.

    python benchmarks/fuzz.py [--tables 4000] [--artifacts 600] [--calls 500] [--seed 0]
    python benchmarks/fuzz.py --only tables --case 17        # one case again, with all it says

Tables: clean logs with up to three kinds of damage are read by `from_dataframe` and, from what its docstring says, by a
slow reader of dictionaries and loops in this file; every number must be the same. Artifacts: fitted things, tables and
run folders with damaged files must be refused or come back as they were. Calls: every public verb and recipe with
nonsense in one argument must be refused. A refusal is a `CounterpointError` of one line with the fix behind a
semicolon; that of a table names what is wrong and shows no cell of a state. What is refused though nothing but harmless
things were done to it is a needless refusal. The last line is a JSON object; the exit code says whether all went well.
"""

import argparse
import atexit
import contextlib
import csv
import gzip
import inspect
import io
import json
import math
import operator
import random
import re
import shutil
import statistics
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import torch
from pyarrow import parquet

import counterpoint as cp
from counterpoint.checks.findings import CheckReport, Finding
from counterpoint.cli import main as cli
from counterpoint.core.artifacts import tensors_hash
from counterpoint.core.tables import markdown_table
from counterpoint.data.transitions import COLUMNS

NAN, INF = math.nan, math.inf
REFUSED, NOTED, UNCHANGED = "refused in one line", "read with a note", "read unchanged"
TRACEBACK, SILENT, NEEDLESS = "tracebacks", "silent changes", "needless refusals"
ARGUMENTS = tuple(inspect.signature(cp.from_dataframe).parameters)
KINDS, BAD = (REFUSED, NOTED, UNCHANGED, TRACEBACK, SILENT, NEEDLESS), (TRACEBACK, SILENT, NEEDLESS)


@dataclass(frozen=True)
class Verdict:
    """What came of one case."""

    kind: str
    why: str = ""


def refusal(error: Exception, secrets: Sequence[str] | None = None) -> Verdict:
    """Whether an error is a refusal as it should be."""
    text = str(error)
    if not isinstance(error, cp.CounterpointError):
        return Verdict(TRACEBACK, f"{type(error).__name__}: {' '.join(text.split())[:150]}")
    shown = [secret for secret in secrets or () if secret in text]
    faults = {
        "more than one line": "\n" in text,
        "no fix behind a semicolon": not re.search(r";\s*\w+", text),
        "nothing named": secrets is not None and not re.search(rf"column|row|=|'|/|{'|'.join(ARGUMENTS)}", text),
        f"the cell {''.join(shown[:1])} shown": bool(shown),
    }
    wrong = [name for name, there in faults.items() if there]
    return Verdict(TRACEBACK, f"{wrong[0]}: {text!r}") if wrong else Verdict(REFUSED, text)


# Tables: clean logs.


@dataclass
class Case:
    """A table to be read: its cells, how `from_dataframe` is called, what it is kept in, and what is done to it."""

    columns: dict[str, list[Any]]
    options: dict[str, Any]
    form: str
    names: dict[str, Any] = field(default_factory=dict)
    """Columns that the frame or file calls otherwise."""
    frames: list[Callable[[Any], Any]] = field(default_factory=list)
    files: list[Callable[[bytes], bytes]] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)

    def role(self, role: str, rng: random.Random) -> str:
        """A column with a role; one that is not there where none has it."""
        return rng.choice(listed(self.options.get(role)) or ["none"])

    def every(self, name: str, change: Callable[[Any, int], Any]) -> None:
        """Change every cell of a column that can be changed so."""
        for row, value in enumerate(self.columns.get(name, ())):
            with contextlib.suppress(TypeError, ValueError, AttributeError):
                self.columns[name][row] = change(value, row)


DELIMITERS = {"csv": ",", "tsv": "\t", "csv.gz": ",", "semicolon": ";"}
FORMS = ("pandas", "polars", "parquet", *DELIMITERS)
START = datetime(2024, 1, 30, 20)


def clean(rng: random.Random) -> Case:
    """A log that can be read without a doubt."""
    sizes = [rng.randint(3, 8) for _ in range(rng.randint(4, 9))]
    subject = rng.choice([lambda i: f"{i:03d}", lambda i: f"P-{i}", lambda i: str(7 * i), lambda i: 11 * i + 3])
    step = rng.choice([1, 4, 0.5])
    clock = rng.choice([lambda t: t * step, lambda t: START + timedelta(hours=t * step),
                        lambda t: str(START + timedelta(hours=t * step))])  # fmt: skip
    rows = [(i, t, t == size - 1) for i, size in enumerate(sizes) for t in range(size)]
    odd, long = rng.choice(["lactate", "πίεση", "state: a, b=c; 'd'"]), rng.choice(["reward", "reward " * 60])
    pick = lambda *values: [rng.choice(values) for _ in rows]
    turn = lambda *values: [values[(i * i + i // 2) % len(values)] for i in range(len(rows))]
    columns = {
        "id": [subject(i) for i, _, _ in rows], "time": [clock(t) for _, t, _ in rows],
        "hr": [round(rng.uniform(40, 180), 3) for _ in rows], odd: [round(rng.gauss(13, 1), 4) for _ in rows],
        "vent": turn(0, 1), "ward": turn("sicu-blue", "micu-red", "step-down"),
        "dose": pick(0.0, 0.5, 1.5, 4.0), "drug": turn("none", "saline", "vasopressor"),
        "amount": [round(max(rng.gauss(1, 1.5), 0.0), 2) for _ in rows],
        long: [round(rng.gauss(0, 1), 3) for _ in rows], "stay": [t >= 4 for _, t, _ in rows],
        "died": [last and i % 2 == 0 for i, _, last in rows], "home": [last and i % 2 == 1 for i, _, last in rows],
        "over": ["yes" if last else "no" for _, _, last in rows],
    }  # fmt: skip
    state = ["hr", *rng.sample([odd, "vent", "ward"], rng.randint(1, 3))]
    named = {"subject": "id", "time": "time", "state": state, "reward": long}
    return Case(columns, {**named, **rng.choice(ACTIONS), **rng.choice(ENDS)}, rng.choice(FORMS))


# fmt: off
ACTIONS: list[dict[str, Any]] = [
    {"action": "dose"}, {"action": "drug"}, {"action": ["dose", "drug"]},
    {"action": "drug", "labels": ["vasopressor", "saline", "none", "other"]},
    {"action": "amount", "actions": cp.Bins(count=4)},
    {"action": ["amount", "drug"], "actions": [cp.Bins("amount", count=3)]},
    {"action": "dose", "actions": cp.Discrete.of([0, 0.5, 1.5, 4, 8])},
    {"action": ["dose", "amount"], "actions": cp.Box((0.0, 0.0), (4.0, 100.0))},
]
ENDS: list[dict[str, Any]] = [
    {"done": ["died", "home"]}, {"done": "over"}, {"done": "died", "truncated": "home"}, {"last": "drop"},
    {"done": "died", "last": "terminal"}, {"done": "died", "last": "drop", "episode": "stay"},
    {"last": "terminal", "episode": "stay"},
]
# fmt: on


# Tables: damage.

Damage = Callable[[Case, random.Random], Any]
TEXT = ("csv", "tsv", "semicolon")


def cell(role: str, value: Any) -> Damage:
    """A strange value in one cell of a column, in some, or in all."""

    def damage(case: Case, rng: random.Random) -> None:
        share, count = rng.choice([0.0, 0.2, 1.0]), len(case.columns["id"])
        rows = {rng.randrange(count or 1), *(row for row in range(count) if rng.random() < share)}
        strange = lambda old, row: (value(row) if callable(value) else value) if row in rows else old
        case.every(case.role(role, rng), strange)

    return damage


def every(role: str, change: Callable[[Any, int], Any]) -> Damage:
    return lambda case, rng: case.every(case.role(role, rng), change)


def rows_of(choose: Callable[[list[int], random.Random], list[int]]) -> Damage:
    """Other rows, or the same in another order."""

    def damage(case: Case, rng: random.Random) -> None:
        picked = choose(list(range(len(case.columns["id"]))), rng)
        case.columns = {name: [values[i] for i in picked] for name, values in case.columns.items()}

    return damage


def frame(change: Callable[[Any], Any], *forms: str) -> Damage:
    """Something done to the DataFrame, in memory or before it is written."""

    def damage(case: Case, rng: random.Random) -> None:
        case.form = rng.choice(forms or ("pandas", "pandas", "parquet"))
        case.frames.append(change)

    return damage


def series(role: str, change: Callable[[Any], Any]) -> Damage:
    def damage(case: Case, rng: random.Random) -> None:
        name = case.role(role, rng)
        frame(lambda table: table.assign(**{name: change(table[name])}))(case, rng)

    return damage


def content(change: Callable[[bytes, random.Random], bytes], *forms: str) -> Damage:
    """Something done to the bytes of a file."""

    def damage(case: Case, rng: random.Random) -> None:
        case.form = case.form if case.form in (forms or DELIMITERS) else rng.choice(forms or ("csv", "parquet"))
        own = random.Random(rng.random())
        case.files.append(lambda data: change(data, own))

    return damage


def lines(change: Callable[[list[str]], Any]) -> Damage:
    """Something done to the lines of a text file."""

    def changed(whole: bytes, rng: random.Random) -> bytes:
        text = whole.decode(errors="replace").splitlines() or [""]
        return "\n".join([*(change(text) or text), ""]).encode()

    return content(changed, *TEXT)


def delimiter(header: str) -> str:
    return max(",;\t", key=header.count)


def flipped(whole: bytes, rng: random.Random) -> bytes:
    broken = bytearray(whole)
    for _ in range(rng.randint(1, 3) if whole else 0):
        broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
    return bytes(broken)


def shortened(whole: bytes, rng: random.Random) -> bytes:
    return whole[: rng.randrange(len(whole) + 1)]


def category(ordered: bool) -> Callable[[pd.Series], pd.Series]:
    return lambda s: s.astype(pd.CategoricalDtype(sorted(s.dropna().unique(), reverse=True), ordered=ordered))


def with_next(case: Case, rng: random.Random) -> None:
    """Columns of next states that are the state of the row below, whoever's it is."""
    for name in [name for name in case.options["state"] if name in case.columns]:
        case.columns[f"next {name}"] = [*case.columns[name][1:], *case.columns[name][:1]]
    case.options["next_state"] = [f"next {name}" for name in case.options["state"]]


# fmt: off
CELLS: dict[str, Any] = {
    "NaN": NAN, "infinity": INF, "1e-300": 1e-300, "1e39": 1e39, "text": "sekret", "empty text": "", "blanks": "  ",
    "2**60": lambda row: 2**60 + row, "2**70": 2**70, "bytes": b"sekret", "a list": [1, 2], "a dict": {"a": 1},
    "a complex": 1j, "a decimal": Decimal("1.25"), "a date": datetime(2021, 5, 3), "a unit": "12 mmHg",
    "a comma": "1,5", "an underscore": "1_000", "nothing": None, "a bool": True, "NA": "NA", "NaT": "NaT",
    "a quote": 'a"b', "a new line": "a\nb", "a negative": -3.0, "a millionth": 1e-7, "Arabic digits": "١٢",
    "a percentage": "50%", "less than": "<5",
}
HARMLESS: dict[str, Damage] = {
    "shuffled rows": rows_of(lambda rows, rng: rng.sample(rows, len(rows))),
    "permuted columns": lambda case, rng: setattr(
        case, "columns", dict(rng.sample(list(case.columns.items()), len(case.columns)))),
    "a byte order mark": content(lambda whole, rng: b"\xef\xbb\xbf" + whole, *TEXT),
    "CRLF": content(lambda whole, rng: whole.replace(b"\n", b"\r\n"), *TEXT),
    "a blank line": lines(lambda text: text.insert(len(text) // 2 + 1, "")),
    "an odd index": frame(lambda table: table.set_index(table.columns[2], drop=False), "pandas"),
    "nullable dtypes": frame(lambda table: table.convert_dtypes()),
    "an unused odd column": lambda case, rng: case.columns.update(odd=[[{"a": 1j}]] * len(case.columns["id"])),
    "words for flags": every("done", lambda v, row: "Died" if v in (True, "yes") else "alive"),
    "numbers for flags": every("done", lambda v, row: float(v in (True, "yes"))),
    "UTF-16, as told": lambda case, rng: (case.options.update(encoding="utf-16"), content(
        lambda whole, rng: whole.decode().encode("utf-16"), *TEXT)(case, rng)),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "gaps cut": {"gaps": "cut"}, "gaps bridged": {"gaps": "bridge"}, "another step": {"step": 3, "gaps": "cut"},
    "a step of hours": {"step": "4h"}, "no step": {"step": "soon"}, "a step of 0": {"step": 0},
    "last=truncate": {"last": "truncate"}, "last=drop": {"last": "drop"}, "last=never": {"last": "never"},
    "last rows": {"outcome": "last row of the subject"}, "an unknown encoding": {"encoding": "klingon"},
    "marked rows": {"outcome": "marked row", "last": "terminal"}, "medians": {"missing": "median"},
    "means": {"missing": "mean", "masks": ["hr"]}, "lines": {"missing": "linear"}, "guesses": {"missing": "guess"},
    "carried forward": {"carry_forward": 2, "missing": "median"}, "carried, else refused": {"carry_forward": 2},
    "carried backward": {"carry_forward": -1}, "masks": {"masks": ["hr"]}, "a mask of nothing": {"masks": ["SpO2"]},
    "declared categories": {"categorical": ["vent", "hr"]}, "0/1 as numbers": {"numeric": ["vent"]},
    "declared levels": {"categorical": {"ward": ["step-down", "micu-red", "sicu-blue", "other"]}},
    "wrong levels": {"categorical": {"ward": ["a", "b"]}}, "text as numbers": {"numeric": ["ward"]},
    "both at once": {"numeric": ["hr"], "categorical": ["hr"]}, "units": {"units": {"hr": "1/min"}},
    "units of nothing": {"units": {"SpO2": "%"}}, "bins": {"actions": cp.Bins()},
    "bins of another column": {"actions": cp.Bins("SpO2")}, "bins of words": {"action": "drug", "actions": cp.Bins()},
    "cuts": {"action": "amount", "actions": cp.Bins(cuts=(0.5, 1.0, 2.0), zero=False)},
    "bins and labels": {"action": "amount", "actions": cp.Bins(), "labels": ["a", "b"]},
    "too few labels": {"action": "drug", "labels": ["saline"]}, "labels twice": {"labels": ["saline", "saline"]},
    "a small space": {"action": "dose", "actions": cp.Discrete.of([0, 1])}, "a column twice": {"state": ["hr", "hr"]},
    "a small box": {"action": "dose", "actions": cp.Box((0.0,), (1.0,))}, "no such column": {"state": ["hr", "SpO2"]},
    "a next state too few": {"next_state": ["amount"]}, "the reward as a state": {"state": ["hr", "reward"]},
    "the subject as a state": {"state": ["hr", "id"]}, "no state": {"state": []},
}
DAMAGE: dict[str, Damage] = {
    **HARMLESS,
    **{f"{what} in the {role}": cell(role, value) for what, value in CELLS.items()
       for role in ("subject", "time", "state", "action", "reward", "done")},
    **{name: lambda case, rng, options=options: case.options.update(options) for name, options in OPTIONS.items()},
    "a state that is gone": lambda case, rng: case.columns.pop(case.role("state", rng), None),
    "a reward that is gone": lambda case, rng: case.columns.pop(case.options["reward"], None),
    "a renamed column": lambda case, rng: case.names.update({case.role("state", rng): "HR "}),
    "a number for a name": lambda case, rng: case.names.update({case.role("state", rng): 5}),
    "two columns of one name": lambda case, rng: case.names.update(amount=case.role("state", rng)),
    "no word of ends": lambda case, rng: [case.options.pop(key, None) for key in ("done", "last", "truncated")],
    "next states": with_next,
    "duplicated rows": rows_of(lambda rows, rng: rows + rng.sample(rows, min(2, len(rows)))),
    "dropped rows": rows_of(lambda rows, rng: sorted(rng.sample(rows, len(rows) * 3 // 4))),
    "one row a subject": rows_of(lambda rows, rng: rows[:: rng.randint(3, 9)]),
    "no rows": rows_of(lambda rows, rng: []),
    "irregular times": every("time", lambda v, row: v + 0.3 * (row * 7 % 5)),
    "days between": every("time", lambda v, row: v + timedelta(days=row % 3)),
    "negative times": every("time", lambda v, row: -v),
    "huge times": every("time", lambda v, row: int(v) + 2**60),
    "mixed time zones": every("time", lambda v, row: f"{v:%Y-%m-%d %H:%M}+0{row % 2 * 2}:00"),
    "one time zone": every("time", lambda v, row: v.replace(tzinfo=UTC)),
    "US dates": every("time", lambda v, row: f"{v:%m/%d/%Y %H:%M}"),
    "European dates": every("time", lambda v, row: f"{v:%d/%m/%Y %H:%M}"),
    "dates of either kind": lambda case, rng: case.columns.update(
        time=[f"02/{case.columns['id'][:row].count(v) + 1:02}/2024" for row, v in enumerate(case.columns["id"])]),
    "clock times": every("time", lambda v, row: f"{v:%H:%M}"),
    "plain dates": every("time", lambda v, row: (START + timedelta(days=row)).date()),
    "epoch seconds as a state": every("state", lambda v, row: 1_700_000_000 + 60 * row),
    "a constant state": every("state", lambda v, row: 5.25),
    "a state all missing": every("state", lambda v, row: None),
    "a state known now and then": every("state", lambda v, row: v if row % 5 == 0 else None),
    "a static state with holes": lambda case, rng: case.columns.update(
        hr=[None if row % 3 == 0 else f"{v}"[-1:].isdigit() * 60.5 for row, v in enumerate(case.columns["id"])]),
    "an offset": every("state", lambda v, row: float(v) + 3e7),
    "many words": every("state", lambda v, row: f"free text {row}"),
    "numbers and words": every("state", lambda v, row: f"{row % 3}" if row % 2 else f"word {row % 5}"),
    "bools with holes": every("state", lambda v, row: (True, None, False)[row % 3]),
    "huge whole numbers": every("state", lambda v, row: 2**60 + row),
    "a repeated flag": lambda case, rng: case.columns.update(died=[str(v)[-1] < "5" for v in case.columns["id"]]),
    "a flag of 2s": every("done", lambda v, row: 2 if v else 0),
    "foreign words for flags": every("done", lambda v, row: "ja" if v else "nein"),
    "two outcomes in a row": lambda case, rng: case.columns.update(home=list(case.columns["died"])),
    "rewards on marked rows only": lambda case, rng: case.every(
        case.options["reward"], lambda v, row: v if case.columns["died"][row] else None),
    "rewards at the end": lambda case, rng: case.every(
        case.options["reward"], lambda v, row: 50.0 if case.columns["over"][row] == "yes" else 0.0),
    "ids 007 and 7": every("subject", lambda v, row: ("007", "7", "07")[row % 3]),
    "ids as floats": every("subject", lambda v, row: float(re.sub(r"\D", "", str(v)))),
    "ids as bytes": every("subject", lambda v, row: str(v).encode()),
    "negative doses": every("action", lambda v, row: v - 1.0),
    "many doses": every("action", lambda v, row: v + row / 64),
    "doses close together": every("action", lambda v, row: v + row % 2 * 1e-6),
    "a category": series("state", category(False)), "an ordered category": series("state", category(True)),
    "a category of actions": series("action", category(False)), "ordered actions": series("action", category(True)),
    "a category of ids": series("subject", category(True)),
    "half precision": series("state", lambda s: s.astype("half")),
    "decimals": series("state", lambda s: s.map(lambda v: Decimal(str(v)))),
    "small whole numbers": series("state", lambda s: s.round().astype("int8")),
    "unsigned times": series("time", lambda s: s.astype("uint64")),
    "local times": series("time", lambda s: pd.to_datetime(s).dt.tz_localize("Europe/Berlin")),
    "durations": series("time", lambda s: pd.to_timedelta(s, unit="h")),
    "periods": series("time", lambda s: pd.to_datetime(s).dt.to_period("h")),
    "objects": frame(lambda table: table.astype(object)), "a lazy frame": frame(lambda table: table.lazy(), "polars"),
    "names of two": frame(lambda t: t.set_axis(pd.MultiIndex.from_product([["a"], t.columns]), axis=1), "pandas"),
    "polars categories": frame(lambda table: table.with_columns(pl.col(pl.String).cast(pl.Categorical)), "polars"),
    "latin-1": content(lambda whole, rng: whole.replace(b"e", b"\xe9"), *TEXT),
    "UTF-16": content(lambda whole, rng: whole.decode(errors="replace").encode("utf-16"), *TEXT),
    "a file cut short": content(shortened), "a packed file cut short": content(shortened, "csv.gz"),
    "an empty file": content(lambda whole, rng: b""), "flipped bits": content(flipped),
    "flipped bits in Parquet": content(flipped, "parquet"), "a header alone": lines(lambda text: text[:1]),
    "everything quoted": lines(lambda text: [text[0], *(re.sub(r"[^,;\t]+", r'"\g<0>"', x) for x in text[1:])]),
    "an open quote": lines(lambda text: [*text[:-1], '"' + text[-1]]),
    "a delimiter too many": lines(lambda text: [*text[:-1], text[-1] + delimiter(text[0])]),
    "delimiters at the ends": lines(lambda text: [text[0], *(line + delimiter(text[0]) for line in text[1:])]),
    "a comment first": lines(lambda text: ["# export of 2024, ward 3", *text]),
    "a zero byte": content(lambda whole, rng: whole[:-9] + b"\0" + whole[-9:], *TEXT),
    "decimal commas": content(lambda whole, rng: re.sub(rb"(\d)\.(\d)", rb"\1,\2", whole), "semicolon"),
}
# fmt: on


def table_case(seed: int, number: int) -> Case:
    rng = random.Random(f"{seed}/tables/{number}")
    case = clean(rng)
    case.damage = rng.sample(list(DAMAGE), rng.choice([0, 1, 1, 1, 2, 2, 3]))
    for name in case.damage:
        DAMAGE[name](case, rng)
    return case


def in_hand(case: Case, folder: Path) -> Any:
    """What the user has: a frame, or the path of a file."""
    if case.form in DELIMITERS:
        text = io.StringIO()
        writer = csv.writer(text, delimiter=DELIMITERS[case.form], lineterminator="\n")
        writer.writerow([case.names.get(name, name) for name in case.columns])
        writer.writerows(zip(*case.columns.values(), strict=True))
        suffix = "csv" if case.form == "semicolon" else case.form
        return on_disk(folder / f"table.{suffix}", text.getvalue().encode(), case)
    plain = pd.DataFrame(case.columns).rename(columns=case.names)
    try:
        table = pl.DataFrame(case.columns, strict=False) if case.form == "polars" and not case.names else plain
        for change in case.frames:
            table = change(table)
        if case.form != "parquet":
            return table
        table.to_parquet(folder / "table.parquet")  # pyright: ignore[reportAttributeAccessIssue]
        return on_disk(folder / "table.parquet", (folder / "table.parquet").read_bytes(), case)
    except Exception:  # What pandas or polars will not build is no case for us; the plain frame is.
        return plain


def on_disk(path: Path, whole: bytes, case: Case) -> Path:
    whole = gzip.compress(whole, mtime=0) if path.suffix == ".gz" else whole
    for change in case.files:
        whole = change(whole)
    path.write_bytes(whole)
    return path


# Tables: the slow reader, from what the docstrings say.


class UnreadableError(Exception):
    """Nothing can be read from this without inventing something."""


def demand(holds: bool, why: str) -> None:
    if not holds:
        raise UnreadableError(why)


@dataclass(frozen=True)
class Told:
    """A column of Python values, None where one is missing; `order` are the labels of an ordered category."""

    values: list[Any]
    category: bool = False
    order: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        kinds = {"number": bool | int | float, "text": str, "date": date, "duration": timedelta}
        known = [value for value in self.values if value is not None]
        found = [kind for kind, cls in kinds.items() if all(isinstance(value, cls) for value in known)]
        demand(bool(found), "values of several kinds, or of a strange one")
        return found[0]

    @property
    def labels(self) -> list[Any]:
        return [None if value == "" else value for value in self.values]

    def numbers(self) -> list[Any]:
        demand(self.kind == "number", "no numbers")
        values = [None if value is None else float(value) for value in self.values]
        demand(all(value is None or abs(value) < 3.4028236e38 for value in values), "too large")
        return values

    def codes(self, levels: Sequence[str]) -> list[Any]:
        found = [None if value is None else label(value) for value in self.labels]
        demand(all(value is None or value in levels for value in found), "an unknown level")
        return [None if value is None else float(levels.index(value)) for value in found]


def label(value: Any) -> str:
    whole = isinstance(value, bool) or (isinstance(value, float) and value.is_integer())
    return str(int(value)) if whole else str(value)


def listed(names: Any) -> list[str]:
    return [] if not names else [names] if isinstance(names, str) else list(names)


ABSENT = {"", "NA", "N/A", "n/a", "#N/A", "#NA", "NaN", "nan", "-NaN", "-nan", "NULL", "null"}
NUMBER = re.compile(r"\s*[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf|infinity)\s*", re.IGNORECASE | re.ASCII)


def told(table: Any, case: Case) -> list[tuple[Any, Told]]:
    """Every column of a frame or a file."""
    if isinstance(table, Path) and table.suffix != ".parquet":
        return told_text(table, case)
    if isinstance(table, pd.DataFrame):
        return [(name, told_series(column)) for name, column in table.items()]
    try:
        arrow = parquet.read_table(table) if isinstance(table, Path) else table.to_arrow()
    except Exception as error:
        raise UnreadableError("no Parquet file, or a lazy frame") from error
    return [(name, told_arrow(column)) for name, column in zip(arrow.column_names, arrow.columns, strict=True)]


def told_series(column: pd.Series) -> Told:
    is_category = isinstance(column.dtype, pd.CategoricalDtype)
    order = map(label, column.cat.categories) if is_category and column.cat.ordered else ()
    return Told([plain(value) for value in column], is_category, tuple(order))


def told_arrow(column: Any) -> Told:
    is_category = pa.types.is_dictionary(column.type)
    ordered = is_category and column.type.ordered
    order = map(label, column.chunk(0).dictionary.to_pylist()) if ordered else ()
    return Told([plain(value) for value in column.to_pylist()], is_category, tuple(order))


def plain(value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    if value is pd.NA or value is pd.NaT or (isinstance(value, float | Decimal) and value != value):
        return None
    return float(value) if isinstance(value, Decimal) else value


def told_text(path: Path, case: Case) -> list[tuple[str, Told]]:
    """A text file by Python's own reader, each column as what all of its cells are."""
    try:
        whole = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        encoding = case.options.get("encoding", "utf-8")
        text = io.StringIO(whole.decode(encoding).removeprefix("\ufeff"), newline="")
        rows = [row for row in csv.reader(text, delimiter=DELIMITERS[case.form]) if row]
    except Exception as error:
        raise UnreadableError("no text") from error
    demand(len(rows) > 1 and len({len(row) for row in rows}) == 1, "no rows, or rows of different lengths")
    verbatim = (case.options["subject"], case.options.get("episode"))
    columns = zip(rows[0], zip(*rows[1:], strict=True), strict=True)
    return [(name, typed(cells, name in verbatim, case.form == "semicolon")) for name, cells in columns]


def typed(cells: Sequence[str], verbatim: bool, comma: bool) -> Told:
    known = [cell for cell in cells if cell not in ABSENT]
    of = lambda change: Told([None if cell in ABSENT else change(cell) for cell in cells])
    point = lambda cell: cell.replace(",", ".") if comma else cell
    if not verbatim and all(NUMBER.fullmatch(point(cell)) for cell in known):
        return of(lambda cell: int(cell) if cell.strip().isdigit() else float(point(cell)))
    if not verbatim and all(cell.lower() in ("true", "false", "0", "1") for cell in known):
        return of(lambda cell: cell.lower() in ("true", "1"))
    return of(str)


def moments(column: Told) -> tuple[list[Any], bool]:
    """Times as numbers, in nanoseconds where they are dates."""
    demand(all(value is not None for value in column.values), "a time is missing")
    if column.kind == "number":
        demand(all(math.isfinite(value) for value in column.values), "an infinite time")
        return column.values, False
    if column.kind == "duration":
        return [pd.Timedelta(value).as_unit("ns").value for value in column.values], True
    stamps = [pd.Timestamp(value) for value in (dates(column.values) if column.kind == "text" else column.values)]
    demand(len({stamp.tzinfo is None for stamp in stamps}) == 1, "some times have a zone")
    return [stamp.as_unit("ns").value for stamp in stamps], True


def dates(texts: list[str]) -> list[datetime]:
    """ISO dates, or dates of which one at least tells the day from the month."""
    with contextlib.suppress(ValueError):
        return [datetime.fromisoformat(text) for text in texts]
    found: list[list[datetime]] = []
    for day in ("%m/%d", "%d/%m"):
        for form in (f"{day}/%Y", f"{day}/%Y %H:%M", f"{day}/%Y %H:%M:%S", f"{day}/%y %H:%M"):
            with contextlib.suppress(ValueError):
                found.append([datetime.strptime(text, form) for text in texts])
    demand(len(found) == 1, "no dates, or none that tells the day from the month")
    return found[0]


@dataclass
class Row:
    """One row of the result, by its place in the table as given."""

    place: int
    episode: int
    step: int
    outcome: int
    truncated: bool = False
    after: int | None = None


class SlowReader:
    """`from_dataframe` with dictionaries and loops: `columns` is what must come out, `notes` what must be said."""

    def __init__(self, columns: list[tuple[Any, Told]], options: dict[str, Any]) -> None:
        self.how = {"missing": "refuse", "masks": (), "categorical": (), "carry_forward": 0, **options}
        self.told, self.notes, self.filled = dict(columns), [], False
        self.state, self.action, self.done, self.following_names, self.numeric = (
            listed(options.get(name)) for name in ("state", "action", "done", "next_state", "numeric"))  # fmt: skip
        single = [options.get(key) for key in ("subject", "time", "reward", "episode", "truncated")]
        names = [name for name, _ in columns]
        for name in [*self.state, *self.action, *self.done, *self.following_names, *filter(None, single)]:
            demand(names.count(name) == 1, f"{name} is there {names.count(name)} times")
        given = options.get("actions")
        self.bins = [given] if isinstance(given, cp.Bins) else given if isinstance(given, list) else []
        self.labels = {name: self.told[name].kind == "text" or self.told[name].category for name in self.action}
        self.check_options()
        self.columns = self.read()

    def check_options(self) -> None:
        """Words that speak of nothing, or against each other."""
        how = self.how
        demand(not set(self.numeric) & set(how["categorical"]), "number and category at once")
        demand({*self.numeric, *how["masks"]} <= set(self.state), "declared, but no state")
        demand({*how["categorical"], *how.get("units", ())} <= {*self.state, *self.action}, "declared, but not there")
        demand(not (how.get("labels") and self.bins), "bins and labels")
        demand(not how.get("outcome") or bool(self.done), "an outcome, but no done")
        for bins in self.bins:
            cut = [name for name in self.action if bins.column in (name, "") and not self.labels[name]]
            demand(bool(cut), "bins of no numbers")

    def read(self) -> dict[str, list[Any]]:
        how, time = self.how, self.told[self.how["time"]]
        self.subject = self.ids(how["subject"])
        group = self.ids(how["episode"]) if how.get("episode") else [0] * len(self.subject)
        self.key = list(zip(self.subject, group, strict=True))
        self.moment, self.dated = moments(time)
        self.order = sorted(range(len(self.key)), key=lambda i: (*self.key[i], self.moment[i]))
        pairs = [(a, b) for a, b in pairwise(self.order) if self.key[a] == self.key[b]]
        demand(all(self.moment[a] != self.moment[b] for a, b in pairs), "a row twice")
        self.outcome = self.outcomes()
        self.stopped = self.flags(how["truncated"]) if how.get("truncated") else [False] * len(self.key)
        going = [(a, b) for a, b in pairs if self.outcome[a] < 0 and not self.stopped[a]]  # A marked end has no next.
        self.length, jumps = self.gaps({b: float(self.moment[b] - self.moment[a]) for a, b in going})
        rows = self.kept(jumps)
        demand(len(rows) > 0, "nothing is left")
        if len({self.subject[row.place] for row in rows}) < len(set(self.subject)):
            self.notes.append(("no row",))
        return self.result(rows)

    def ids(self, name: str) -> list[Any]:
        column = self.told[name]
        demand(column.kind != "date" and all(v is not None and str(v).strip() for v in column.values), "a missing id")
        return column.values

    def flags(self, name: str) -> list[bool]:
        yes = ("yes", "y", "true", "t", "1", "died", "dead", "deceased", "expired")
        no = ("no", "n", "false", "f", "0", "alive", "survived", "lived")
        values = [label(v).strip().lower() for v in self.told[name].values]
        demand(all(v in (*yes, *no) for v in values) and self.told[name].kind in ("text", "number"), "no flags")
        return [value in yes for value in values]

    def outcomes(self) -> list[int]:
        found, last = [-1] * len(self.key), {self.subject[i]: i for i in self.order}
        for place, name in enumerate(self.done):
            marked = self.flags(name)
            if self.how.get("outcome") == "last row of the subject":
                demand(all(marked[last[self.subject[i]]] for i in self.order if marked[i]), "not on the last row")
                marked = [flag and last[self.subject[i]] == i for i, flag in enumerate(marked)]
            demand(not any(flag and found[i] >= 0 for i, flag in enumerate(marked)), "two outcomes")
            found = [place if flag else before for flag, before in zip(marked, found, strict=True)]
        return found

    def gaps(self, apart: dict[int, float]) -> tuple[float, set[int]]:
        """The length of a step, and the rows before which an episode is cut because a step is missing."""
        length = self.step(list(apart.values())) if apart else INF
        jumps = {row for row, distance in apart.items() if abs(distance / length - 1) > 0.5}
        if not jumps or self.following_names:
            return length, set()
        demand(self.how.get("gaps") in ("cut", "bridge"), "gaps, and no word of them")
        self.notes.append(("not one step",))
        return length, jumps if self.how["gaps"] == "cut" else set()

    def step(self, apart: list[float]) -> float:
        """As given, or the commonest distance, or the median one where no distance is common."""
        if self.how.get("step") is None:
            common, times = min(Counter(apart).items(), key=lambda item: (-item[1], item[0]))
            return common if 2 * times >= len(apart) else statistics.median(apart)
        try:
            given = self.how["step"]
            length = pd.Timedelta(given).total_seconds() * 1e9 if self.dated else float(given)
        except ValueError:
            length = 0.0
        demand(0 < length < INF, "no length of time")
        return length

    def kept(self, jumps: set[int]) -> list[Row]:
        """The rows that lead somewhere, with how their episodes end."""
        episodes: list[list[int]] = []
        for i in self.order:
            before = episodes[-1][-1] if episodes else i
            goes_on = before != i and self.key[before] == self.key[i] and i not in jumps
            if goes_on and self.outcome[before] < 0 and not self.stopped[before]:
                episodes[-1].append(i)
            else:
                episodes.append([i])
        found: list[Row] = []
        for number, (episode, following) in enumerate(zip(episodes, [*episodes[1:], [-1]], strict=True)):
            found += self.ended(episode, number, following[0] in jumps)
        numbers = {episode: i for i, episode in enumerate(dict.fromkeys(row.episode for row in found))}
        return [replace(row, episode=numbers[row.episode]) for row in found]

    def ended(self, episode: list[int], number: int, cut: bool) -> list[Row]:
        afters = [*episode[1:], None]
        rows = [Row(i, number, step, self.outcome[i], after=afters[step]) for step, i in enumerate(episode)]
        if rows[-1].outcome >= 0:
            return rows
        how = "truncate" if cut or self.stopped[episode[-1]] else self.how.get("last")
        demand(how in ("terminal", "truncate", "drop"), "an end, and no word of it")
        if how == "terminal":
            rows[-1].outcome = len(self.done)
        elif how == "drop" or not self.following_names:
            rows.pop()
        if how == "truncate" and rows:
            rows[-1].truncated = True
        return rows

    def result(self, rows: list[Row]) -> dict[str, list[Any]]:
        states, levels = self.states(rows)
        places = [row.place for row in rows]
        (chosen, space), reward = self.actions(places), self.picked(self.how["reward"], places)
        ended = self.done and any(row.outcome == len(self.done) for row in rows)
        return {
            "state": [states[row.place] for row in rows],
            "next_state": self.following(rows, states, levels),
            "action": chosen,
            "reward": reward,
            **{name: [getattr(row, name) for row in rows] for name in ("outcome", "truncated", "episode", "step")},
            "subject": [label(self.subject[row.place]) for row in rows],
            "outcome names": [*self.done, *(["ended"] if ended else [])] or ["terminated"],
            "state names": [*self.state, *(f"{name}_missing" for name in self.how["masks"])],
            "levels": levels,
            "space": space,
        }

    def picked(self, name: str, places: list[int], precise: bool = True) -> list[Any]:
        """The numbers of a column in some rows, none of them missing."""
        values = self.told[name].numbers()
        demand(all(values[place] is not None for place in places), f"a missing value of {name}")
        self.precise(name, [self.told[name].values[place] for place in places] if precise else ())
        return [values[place] for place in places]

    def states(self, rows: list[Row]) -> tuple[list[list[float]], list[list[str]]]:
        """Every row's state without a hole, and the columns' levels."""
        read = [self.state_column(name) for name in self.state]
        holes = {name: [float(v is None) for v in column] for name, (column, _) in zip(self.state, read, strict=True)}
        for name, (column, levels) in zip(self.state, read, strict=True):
            self.precise(name, () if levels else self.told[name].values)
            self.carry(column)
            self.fill(column, levels, rows)
        masks = [holes[name] for name in self.how["masks"]]
        states = [list(row) for row in zip(*(column for column, _ in read), *masks, strict=True)]
        return states, [*(levels for _, levels in read), *(["0", "1"] for _ in masks)]

    def state_column(self, name: str) -> tuple[list[Any], list[str]]:
        """Text, 0/1 and categories are categories, other columns numbers, unless declared otherwise."""
        column, declared = self.told[name], self.how["categorical"]
        own = list(declared.get(name, ())) if isinstance(declared, dict) else []
        if name in self.numeric or not (name in declared or column.kind == "text" or column.category):
            numbers = column.numbers()
            binary = name not in self.numeric and set(numbers) - {None} == {0, 1}
            return numbers, ["0", "1"] if binary else []
        levels = own or list(column.order) or [label(v) for v in sorted({*column.labels} - {None})]
        demand(bool(own) or 2 <= len(levels) <= 50, "too few or too many levels")
        return column.codes(levels), levels

    def carry(self, column: list[Any]) -> None:
        """Holes take the subject's own value where it never changes, else the last one seen, if it is fresh."""
        seen = {s: [i for i in self.order if self.subject[i] == s and column[i] is not None] for s in set(self.subject)}
        given, limit = list(column), self.how["carry_forward"]
        demand(limit >= 0, "carried backward")
        never_changes = all(len({given[i] for i in rows}) <= 1 for rows in seen.values())
        static = never_changes and any(len(rows) > 1 for rows in seen.values()) and self.how["missing"] != "refuse"
        for i in [i for i in self.order if given[i] is None]:
            own = seen[self.subject[i]]
            age = {j: (self.moment[i] - self.moment[j]) / self.length for j in own}
            fresh = [j for j in own if 0 <= age[j] <= limit + 1e-9]
            if static and own:
                column[i] = given[own[0]]
            elif limit and fresh:
                column[i] = given[min(fresh, key=lambda j: age[j])]

    def fill(self, column: list[Any], levels: list[str], rows: list[Row]) -> None:
        """Other holes take what is usual among the rows that are kept."""
        method = self.how["missing"]
        demand(method in ("refuse", "median", "mean", "linear"), "no such fill")
        known = [column[row.place] for row in rows if column[row.place] is not None]
        self.filled |= method != "refuse"
        if None not in column:
            return
        demand(method != "refuse" and len(known) > 0, "a missing state")
        usual = statistics.fmean(known) if method == "mean" else statistics.median(known)
        if levels:
            usual = min(Counter(known).items(), key=lambda item: (-item[1], item[0]))[0]
        elif method == "linear" and len(self.state) > 1:
            usual = NAN  # A regression, which is not worked out here.
        column[:] = [usual if value is None else value for value in column]

    def precise(self, name: str, values: Sequence[Any]) -> None:
        """Digits that single precision loses must be spoken of."""
        known = [value for value in values if isinstance(value, int | float)]
        lost = [abs(value - type(value)(np.float32(value))) for value in known]
        spread = statistics.pstdev([float(value - known[0]) for value in known]) if known else 0.0
        if any(np.float32(value) == 0 != value for value in known) or max(lost, default=0) > 2e-3 * spread > 0:
            self.notes.append((name, "precision"))

    def following(self, rows: list[Row], states: list[list[float]], levels: list[list[str]]) -> list[list[float]]:
        if not self.following_names:
            return [[NAN] * len(levels) if row.after is None else states[row.after] for row in rows]
        demand(not self.how["masks"] and len(self.following_names) == len(self.state), "other next states")
        own = zip(self.following_names, levels, strict=True)
        columns = [self.told[name].codes(known) if known else self.told[name].numbers() for name, known in own]
        found = [[column[row.place] for column in columns] for row in rows]
        for row, after in zip(rows, found, strict=True):
            demand(None not in after or (row.outcome >= 0 and set(after) == {None}), "a missing next state")
        return [[NAN if value is None else value for value in after] for after in found]

    def actions(self, places: list[int]) -> tuple[list[list[float]], Any]:
        """What describes every kept row's action, and the space: a list of actions, or two bounds."""
        given, labels = self.how.get("actions"), self.how.get("labels", ())
        demand(not labels or (len(self.action) == 1 and len(set(labels)) == len(labels)), "labels of what?")
        is_space, coded = isinstance(given, cp.Discrete | cp.Box), any(self.labels.values()) or bool(labels)
        demand(not (is_space and coded), "labels, and a space of numbers")
        if coded or self.bins:
            columns = [self.coded_action(name, places) for name in self.action]
            space: list[list[float]] = [[]]
            for _, values in columns:
                space = [[*before, *value] for before in space for value in values]
            return [[x for codes, values in columns for x in values[codes[i]]] for i in range(len(places))], space
        chosen = [list(row) for row in zip(*(self.picked(name, places) for name in self.action), strict=True)]
        if is_space:
            return chosen, bounds(given)
        single = sorted({tuple(float(np.float32(value)) for value in row) for row in chosen})
        ends = [[end(column) for column in zip(*single, strict=True)] for end in (min, max)]
        return chosen, list(map(list, single)) if len(single) <= 50 else ends

    def coded_action(self, name: str, places: list[int]) -> tuple[list[int], list[list[float]]]:
        """The code of every row, and what describes each code."""
        column, declared = self.told[name], list(self.how.get("labels", ()))
        if declared or self.labels[name]:
            own = Told([column.labels[place] for place in places])
            known = sorted({*own.values} - {None})
            stray = [value for value in known if isinstance(value, str) and NUMBER.fullmatch(value)]
            demand(bool(declared) or 2 * len(stray) < max(len(known), 1), "words among doses")
            labels = declared or list(column.order) or [label(value) for value in known]
            codes = own.codes(labels)
            demand(None not in codes, "a missing action")
            numbered = [[float(i)] for i in range(len(labels))]
            one_hot = [[float(i == j) for j in range(len(labels))] for i in range(len(labels))]
            return [int(code) for code in codes], numbered if column.order and not declared else one_hot
        amounts = self.picked(name, places, precise=False)
        bins = [each for each in self.bins if each.column == name] or [each for each in self.bins if not each.column]
        if bins:
            return binned(amounts, bins[0])
        doses = sorted(set(amounts))
        return [doses.index(amount) for amount in amounts], [[dose] for dose in doses]


def binned(amounts: list[float], how: cp.Bins) -> tuple[list[int], list[list[float]]]:
    """Bin k holds the amounts from cut k−1 to below cut k; no dose is a bin of its own; empty bins are left out."""
    zero = how.zero and 0 in amounts
    given = [amount for amount in amounts if not (zero and amount == 0)]
    demand(not zero or all(amount > 0 for amount in given), "doses below none")
    shares = np.arange(1, how.count - zero) / (how.count - zero)
    cuts = list(how.cuts) or (sorted(set(np.quantile(given, shares).tolist())) if given else [])
    place = [-1 if zero and amount == 0 else sum(cut <= amount for cut in cuts) for amount in amounts]
    used = sorted(set(place))
    demand(len(used) > 1, "one dose only")
    medians = [statistics.median([a for a, p in zip(amounts, place, strict=True) if p == bin_]) for bin_ in used]
    return [used.index(p) for p in place], [[median] for median in medians]


def bounds(space: Any) -> Any:
    return [list(row) for row in (space.values if isinstance(space, cp.Discrete) else (space.low, space.high))]


def difference(rows: cp.Transitions, slow: SlowReader) -> str:
    """The first thing that the package read otherwise."""
    numbers = ("state", "next_state", "action", "reward", "outcome", "truncated", "episode", "step")
    found = {name: getattr(rows, name).tolist() for name in numbers} | {
        "subject": [rows.subject_names[i] for i in rows.subject.tolist()], "space": bounds(rows.actions),
        "outcome names": list(rows.outcome_names), "state names": list(rows.state_names),
        "levels": [list(column.levels) for column in rows.schema.states],
    }  # fmt: skip
    for name, right in slow.columns.items():
        left, close = found[name], False
        if name in ("state", "next_state", "action", "reward", "space") and np.shape(left) == np.shape(right):
            one, two = np.array(left, dtype=np.float32), np.array(right, dtype=np.float64).astype(np.float32)
            alike = (one == two) | (np.isnan(one) & np.isnan(two))
            fills = np.isclose(one, two, rtol=1e-5) | (np.isnan(two) & np.isfinite(one))
            close = bool((alike | fills if slow.filled else alike).all())
        if left != right and not close:
            return f"{name} is {str(left)[:90]} for {str(right)[:90]}"
    return ""


def judge_table(case: Case) -> Verdict:
    """Read a table twice and compare."""
    cells = {str(v) for name in case.options["state"] for v in case.columns.get(name, ()) if not isinstance(v, bool)}
    secrets = [cell for cell in cells if len(cell) > 4 and cell not in str(case.options)]
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = in_hand(case, Path(folder))
        caught.clear()
        try:
            rows = cp.from_dataframe(table, **case.options)
        except Exception as error:
            found = refusal(error, secrets)
            needless = found.kind == REFUSED and set(case.damage) <= set(HARMLESS)
            return Verdict(NEEDLESS, found.why) if needless else found
        try:
            slow = SlowReader(told(table, case), case.options)
        except UnreadableError as error:
            return Verdict(SILENT, f"read, though {error}")
    return compared(rows, slow, caught, secrets)


def compared(rows: cp.Transitions, slow: SlowReader, caught: list[Any], secrets: list[str]) -> Verdict:
    notes = [str(each.message) for each in caught if issubclass(each.category, cp.CounterpointWarning)]
    stray = [str(each.message) for each in caught if not issubclass(each.category, cp.CounterpointWarning)]
    why = difference(rows, slow)
    why = why or next((f"a note shows {cell}" for cell in secrets if any(cell in note for note in notes)), "")
    for words in slow.notes:
        why = why or ("" if any(all(word in note for word in words) for note in notes) else f"no note of {words}")
    if why or stray:
        return Verdict(SILENT, why) if why else Verdict(TRACEBACK, f"a warning not ours: {stray[0][:100]}")
    return Verdict(NOTED, "; ".join(notes)) if notes else Verdict(UNCHANGED)


# Artifacts.

THINGS = ("scm", "task", "policy", "rows.parquet", "rows.csv", "run")
PARTS = ("policy", "scm", "task", "training", "held_out", "augmented", "policy_verdict")
BRIEF = cp.models.Likelihood(cp.Schedule(steps=4, check_every=2), batch=16)


@cache
def study() -> cp.Transitions:
    """A user's table with labels, bins, a fill, a static category and one that changes."""
    rng = random.Random(5)
    places = [(subject, hour) for subject in range(24) for hour in range(6)]
    columns = {
        "id": [f"P{subject:02}" for subject, _ in places], "hour": [hour for _, hour in places],
        "hr": [rng.gauss(80, 9) if place != (1, 1) else None for place in places],
        "sex": ["fm"[subject % 2] for subject, _ in places], "ward": [rng.choice("AB") for _ in places],
        "drug": [rng.choice("ab") for _ in places], "dose": [abs(rng.gauss(0, 2)) for _ in places],
        "reward": [rng.gauss(0, 1) for _ in places], "died": [hour == 5 and s % 3 == 0 for s, hour in places],
    }  # fmt: skip
    named = {"subject": "id", "time": "hour", "state": ["hr", "sex", "ward"], "action": ["dose", "drug"]}
    choices = {"actions": [cp.Bins("dose", count=3)], "last": "truncate", "missing": "median", "held_out": 0.25}
    with warnings.catch_warnings(action="ignore"):
        return cp.from_dataframe(pd.DataFrame(columns), **named, reward="reward", done="died", **choices)


@cache
def fitted(seed: int) -> dict[str, Any]:
    """One small model, task and policy."""
    training = study().split(0.25)[0]
    task = cp.Outcome(hidden=(4,), likelihood=BRIEF).fit(training, seed)
    scm = cp.DensitySCM(cp.models.Gaussian(), ensemble=2, hidden=(4,), likelihood=BRIEF).fit(training, seed)
    policy = cp.D3QN(hidden=(4,), schedule=cp.Schedule(steps=3), batch=8).fit(training, task, seed)
    return {"task": task, "scm": scm, "policy": policy}


def keep(folder: Path, seed: int) -> None:
    """Everything on disk, alone and in a run folder."""
    made, training = fitted(seed), study().split(0.25)[0]
    for name, thing in made.items():
        thing.save(folder / name)
    for suffix in ("parquet", "csv"):
        cp.write(training, folder / f"rows.{suffix}")
    run = cp.Run(folder / "run")
    few = Finding("rows", 40.0, 50.0, passed=False, sentence="Seen on few rows.", grave=False)
    found = CheckReport((few,), rows=40, held_out=True, state_names=training.state_names).to_json()
    run.start(study(), 0.25, 0)
    run.keep_task(made["task"])
    run.keep_model(made["scm"])
    run.keep("check", lambda path: path.write_text(json.dumps(found)), ["scm"])
    imagined = cp.Augmenter(alternatives=1).augment(training, made["scm"], made["task"])
    run.keep("augmented", lambda path: cp.write(imagined, path), ["data", "split", "task", "scm"])
    run.keep("policy", made["policy"].save, ["data", "split", "task", "scm", "augmented"])


def essence(thing: Any) -> Any:
    """What is the same in two things only if they are the same; a check that cannot be used is none."""
    if isinstance(thing, cp.Transitions):
        names = (thing.schema, thing.subject_names, thing.outcome_names)
        return names, tensors_hash({name: getattr(thing, name) for name in COLUMNS})
    return thing if isinstance(thing, cp.policies.Verdict) else (thing.fingerprint, tensors_hash(thing.tensors()))


def answers(path: Path) -> dict[str, Callable[[], Any]]:
    """What can be asked of a thing on disk."""
    if path.name == "run":
        return {part: lambda part=part: essence(getattr(cp.Run(path), part)) for part in PARTS}
    return {path.name: lambda: essence((cp.read if path.suffix else cp.load)(path))}


LITERALS = ("1e999", "-1e999", "NaN", "9" * 5000, "[" * 10**5 + "]" * 10**5, "null", "true",
            '{"a":' * 10**5 + "1" + "}" * 10**5,
            '"x"', "[]", "{}", "-1", "0", "1e-320", '"\\ud800"', "[[1]]", '{"type": "D3QN"}')  # fmt: skip


def edited(text: str, rng: random.Random) -> str:
    """JSON with one thing in it changed."""
    value = json.loads(text)
    (box, key), (other, other_key) = rng.choices(list(places_in(value)), k=2)
    how = rng.choice(["swap", "more", "less", "twice", "literal", "literal"])
    if how == "twice" and isinstance(key, str):
        return text.replace(f'"{key}":', f'"{key}": {rng.choice(LITERALS)}, "{key}":', 1)
    if how == "swap" and not isinstance(box[key], dict | list) and not isinstance(other[other_key], dict | list):
        box[key], other[other_key] = other[other_key], box[key]
    elif how == "more":
        box[key] = box[key] * 100 if isinstance(box[key], int | float) and box[key] else "changed"
    elif how == "less":
        del box[key]
    else:
        box[key] = "@@"
    return json.dumps(value).replace('"@@"', rng.choice(LITERALS))


def places_in(value: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places_in(value[key])


def with_header(path: Path) -> tuple[Any, str]:
    """A Parquet table, and what the package says of it beside the columns."""
    return parquet.read_table(path), parquet.read_metadata(path).metadata[b"counterpoint"].decode()


def write_again(path: Path, table: Any, header: str) -> None:
    with parquet.ParquetWriter(path, table.schema) as file:
        file.write_table(table)
        file.add_key_value_metadata({"counterpoint": header})


def edit_words(path: Path, rng: random.Random, other: Path) -> None:
    """Something else in a file's JSON."""
    if path.suffix == ".json":
        path.write_text(edited(path.read_text(), rng))
    elif path.suffix == ".csv":
        head, _, rest = path.read_text().partition("\n")
        start = head.index("{")
        path.write_text(f"{head[:start]}{edited(head[start:], rng)}\n{rest}")
    elif path.suffix == ".parquet":
        table, header = with_header(path)
        write_again(path, table, edited(header, rng))
    else:
        path.write_bytes(path.read_bytes().replace(b'"shape":[', b'"shape":[1,', 1))


def edit_number(path: Path, rng: random.Random, other: Path) -> None:
    """Another number in a table or among weights."""
    if path.suffix == ".parquet":
        table, header = with_header(path)
        place = rng.randrange(table.num_columns)
        values = table.column(place).to_pylist()
        values[rng.randrange(len(values))] = not values[0] if isinstance(values[0], bool) else 7
        changed = pa.array(values, table.field(place).type)
        write_again(path, table.set_column(place, table.field(place), changed), header)
    elif path.suffix == ".csv":
        text = path.read_text().splitlines()
        row = rng.randrange(2, len(text))
        text[row] = re.sub(r"\d", lambda digit: str(9 - int(digit[0])), text[row], count=rng.randint(1, 9))
        path.write_text("\n".join([*text, ""]))
    else:
        path.write_bytes(flipped(path.read_bytes(), rng))


def linked(path: Path, goal: Path | str) -> None:
    path.unlink()
    path.symlink_to(goal)


def rewritten(change: Callable[[bytes, random.Random], bytes]) -> Callable[[Path, random.Random, Path], Any]:
    return lambda path, rng, other: path.write_bytes(change(path.read_bytes(), rng))


# fmt: off
FILE_DAMAGE: dict[str, Callable[[Path, random.Random, Path], Any]] = {
    "flipped bits": rewritten(flipped), "cut short": rewritten(shortened),
    "bytes put in": rewritten(lambda b, rng: b[: (at := rng.randrange(len(b)))] + rng.randbytes(5) + b[at:]),
    "bytes taken out": rewritten(lambda b, rng: b[: (at := rng.randrange(len(b)))] + b[at + rng.randint(1, 9) :]),
    "bytes behind": rewritten(lambda b, rng: b + rng.randbytes(20)), "zeros": rewritten(lambda b, rng: bytes(len(b))),
    "nothing in it": rewritten(lambda b, rng: b""), "edited words": edit_words, "words edited otherwise": edit_words,
    "an edited number": edit_number, "another's file": lambda path, rng, other: shutil.copy(other, path),
    "no file": lambda path, rng, other: path.unlink(),
    "a folder": lambda path, rng, other: (path.unlink(), path.mkdir()),
    "a link to itself": lambda path, rng, other: linked(path, path),
    "a link to nothing": lambda path, rng, other: linked(path, "nowhere"),
    "a link to a folder": lambda path, rng, other: linked(path, path.parent),
    "a link to another's": lambda path, rng, other: linked(path, other.resolve()),
}
# fmt: on


@cache
def originals() -> tuple[Path, dict[str, dict[str, Any]]]:
    """Two sets of everything on disk, which stay whole until the process ends, and what the first holds."""
    folder = Path(tempfile.mkdtemp(prefix="counterpoint-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for seed in (0, 1):
        keep(folder / str(seed), seed)
    return folder, {name: {key: ask() for key, ask in answers(folder / "0" / name).items()} for name in THINGS}


def artifact_case(seed: int, number: int) -> tuple[str, str, str]:
    """A thing, one of its files, and what is done to it."""
    rng = random.Random(f"{seed}/artifacts/{number}")
    thing, root = rng.choice(THINGS), originals()[0] / "0"
    files = sorted(str(path.relative_to(root)) for path in (root / thing).rglob("*") if path.is_file()) or [thing]
    return thing, rng.choice(files), rng.choice(list(FILE_DAMAGE))


def judge_artifact(case: tuple[str, str, str], number: int) -> Verdict:
    (thing, file, damage), (source, held) = case, originals()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "0"
        shutil.copytree(source / "0", copy)
        FILE_DAMAGE[damage](copy / file, random.Random(number), source / "1" / file)
        found = [judge_answer(ask, held[thing][name]) for name, ask in answers(copy / thing).items()]
    return min(found, key=lambda verdict: (verdict.kind not in BAD, verdict.kind != REFUSED))


def judge_answer(ask: Callable[[], Any], right: Any) -> Verdict:
    try:
        with warnings.catch_warnings(action="ignore"):
            answer = ask()
    except Exception as error:
        return refusal(error)
    same = answer == right or (isinstance(answer, cp.policies.Verdict) and answer.trust == "not checked")
    return Verdict(UNCHANGED) if same else Verdict(SILENT, "not as it was written")


# Wrong calls.

Call = tuple[str, Callable[[], Any]]
# fmt: off
WRONG: dict[Any, tuple[Any, ...]] = {
    int: (0, -5, NAN, INF, 1e9, 2.5, "x", None, ()), float: (-5.0, NAN, INF, "x", None, (), 1j), bool: ("x", None, 5),
    str: (5, None, b"x", ()), Literal: ("nonsense", None, 5),
    tuple: ((0,), (-5,), (NAN,), ("x",), (None,), None, 5, "x"),
}
MEANT: dict[Any, str] = {
    0: "check_every patience horizon seed draw_seed few_rows lags", 5: "rewards alternatives horizon",
    ("x",): "levels labels state done reasons",
    -5: "seed draw_seed step_reward died_reward discharged_reward radio_cost chemo_cost death_cost",
    (0,): "order static computed scores knots cuts low high", (-5,): "knots cuts low", "x": "name column unit mask_of",
    None: "fill folder reader learned_with actions last outcome gaps",
}
"""Values that are odd, and the fields where they mean something all the same."""
# fmt: on


def wrong_recipes() -> Iterator[Call]:
    """Every recipe, space and column that a user writes, with one field wrong."""
    plain = """learners.BCQ D3QN HIV learners.MVE learners.PETS learners.STEVE Augmenter AutoSCM BiCoGAN Bins CartPole
        models.ConditionalBiCoGAN DensitySCM models.Deterministic models.GaussianDynamics CTRLg models.Likelihood
        models.Mixture models.MixtureDynamics models.Monitor Outcome learners.Planner simulation.CheckpointSelection
        Schedule models.SkewedSpline models.Spline Tumour policies.Verdict Ward"""
    named = [operator.attrgetter(name)(cp)() for name in plain.split()]
    made = [
        cp.BiCoGAN().training,
        cp.Box((0.0,), (1.0,)),
        cp.Column("hr"),
        cp.Discrete.of([0, 1]),
        cp.models.MixedSCM(((1, 2),)),
    ]
    for recipe in [*named, *made, study().layout]:
        hints = get_type_hints(type(recipe))
        for name in [each.name for each in fields(recipe)]:
            kind = get_origin(hints[name]) or hints[name]
            for value in WRONG.get(kind, (5, "x", None)):
                optional = value is None and type(None) in get_args(hints[name])
                if not optional and name not in MEANT.get(value, "").split():
                    yield f"{type(recipe).__name__}({name}={value!r})", partial(replace, recipe, **{name: value})


def right_calls() -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Every public verb with arguments that it takes."""
    folder, made, pole = originals()[0] / "0", fitted(0), cp.CartPole()
    scm, policy, task, rows = made["scm"], made["policy"], made["task"], study().split(0.25)[0].with_next()
    trials, cart = cp.simulate(pole, cp.random_policy(pole), 3, 4, 0), replace(policy.recipe)
    driver, state, action = cart.fit(trials, pole), rows.state[:5], rows.action[:5]
    fit = {"data": rows, "seed": 0, "monitor": cp.models.Monitor(), "device": "cpu"}
    table = pd.DataFrame({"id": ["a", "a"], "t": [0, 1], "x": [1.5, 2.5], "dose": [0, 1], "r": [0.0, 1.0]})
    patients = pd.DataFrame({"id": ["n"], "hour": [0], "hr": [80.0], "sex": ["f"], "ward": ["A"]})
    read = {"subject": "id", "time": "t", "state": ["x"], "action": "dose", "reward": "r", "last": "terminal"}
    none = dict.fromkeys(("done", "truncated", "episode", "next_state", "actions", "outcome", "step", "gaps", "like"))
    empty = dict.fromkeys(("labels", "categorical", "numeric", "masks"), ()) | {"units": {}, "missing": "refuse"}
    logged = ("state", "action", "reward", "next_state", "terminated", "truncated", "subject", "step", "actions")
    # fmt: off
    return {
        "from_dataframe": (cp.from_dataframe, {"table": table, **read, **none, **empty, "carry_forward": 0.0,
                                               "encoding": "utf-8", "held_out": 0.0, "seed": 0}),
        "DensitySCM.fit": (scm.recipe.fit, fit), "Outcome.fit": (task.recipe.fit, fit),
        "D3QN.fit": (cart.fit, {**fit, "data": trials, "task": pole}),
        "CTRLg.fit": (cp.CTRLg().fit, {"data": trials, "task": pole, "device": "nowhere"}),
        "scm.predict": (scm.predict, {"state": state, "action": action, "noise": scm.abduct(rows[:5])}),
        "scm.sample": (scm.sample, {"state": state, "action": action, "random": torch.Generator()}),
        "scm.counterfactual": (scm.counterfactual, {"rows": rows[:5], "action": action}),
        "scm.abduct": (scm.abduct, {"rows": rows[:5], "theta": torch.zeros(1, 0)}),
        "policy.act": (driver.act, {"state": trials.state, "theta": torch.zeros(1, 0)}),
        "policy.values": (driver.values, {"state": trials.state, "theta": torch.zeros(1, 0)}),
        "policy.with_verdict": (policy.with_verdict, {"verdict": cp.policies.Verdict()}),
        "policy.save": (policy.save, {"folder": folder / "again"}),
        "check": (cp.check_scm, {"model": scm, "rows": rows, "seed": 0}),
        "augment": (cp.Augmenter().augment, {"data": rows, "model": scm, "task": task, "seed": 0}),
        "recommend": (cp.recommend, {"policy": policy, "table": patients, "logged": rows, "seed": 0}),
        "evaluate": (cp.true_return, {"policy": driver, "task": pole, "trials": 2, "seed": 0, "horizon": 3}),
        "simulate": (cp.simulate, {"task": pole, "policy": cp.random_policy(pole), "trials": 2, "steps": 2, "seed": 0}),
        "random_policy": (cp.random_policy, {"task": pole}), "windows": (trials.windows, {"length": 2}),
        "trial_subset": (cp.simulation.trial_subset, {"transitions": trials, "trials": 2}),
        "split": (trials.split, {"held_out": 0.2, "seed": 0}), "rows.to": (trials.to, {"device": "cpu"}),
        "concatenate": (cp.data.concatenate, {"tables": [trials, trials]}),
        "write": (cp.write, {"transitions": trials, "path": folder / "again.csv"}),
        "read": (cp.read, {"path": folder / "rows.csv"}), "load": (cp.load, {"folder": folder / "scm"}),
        "Run": (lambda folder: cp.Run(folder).policy, {"folder": folder / "run"}),
        "ModelSimulator": (cp.simulation.ModelSimulator, {"models": [scm]}),
        "TaskSimulator": (cp.simulation.TaskSimulator, {"task": pole}),
        "Rollout": (
            cp.simulation.Rollout,
            {"simulator": cp.simulation.TaskSimulator(pole), "task": pole, "act": driver.actor()},
        ),
        "SCMEnv": (cp.simulation.SCMEnv.of_model, {"model": scm, "task": task, "rows": rows}),
        "named_methods": (cp.learners.named_methods, {"learner": cart}),
        "Discrete.of": (cp.Discrete.of, {"values": [0, 1]}),
        "location_scale": (cp.models.location_scale, {"ensemble": 2}),
        "Discrete.one_hot": (cp.Discrete.one_hot, {"count": 2}),
        "Schema.of": (cp.Schema.of, {"state_names": ["a"], "actions": cp.Discrete.of([0, 1])}),
        "Transitions.logged": (cp.Transitions.logged, {name: getattr(trials, name) for name in logged}),
    }
    # fmt: on


def wrong_values(name: str, right: Any) -> dict[str, Any]:
    """What a user may pass by mistake in place of an argument; nothing that means something there."""
    numbers = {"-5": -5, "NaN": NAN, "infinity": INF, "a complex": 1j}
    things = {"an object": object(), "a dict": {"a": 1}, "a list": ["x", 2.5], "a frame": pd.DataFrame({"z": [1]})}
    wrong: dict[str, Any] = numbers | things
    if not isinstance(right, Path) and name != "encoding":
        wrong["text"] = "nonsense"
    if right is not None and not (isinstance(right, tuple | dict) and not right) and name != "act":
        wrong |= {"None": None, "()": ()}
    if isinstance(right, torch.Tensor) and right.numel():
        wrong |= {"NaNs": right * NAN, "infinities": right * INF, "too wide": torch.cat([right, right], -1)}
        wrong |= {"complexes": right + 1j, "three axes": right[None], "letters": np.full(right.shape, "a")}
    if isinstance(right, cp.Transitions) and name in ("data", "logged"):
        wrong |= {"no rows": right[:0], "NaN states": replace(right, state=right.state * NAN)}
    return {what: value for what, value in wrong.items() if (name, what) != ("seed", "-5")}


FINE = {"scm.predict(state=NaNs)", "scm.sample(state=NaNs)", "Schema.of(state_names=())", *(
    f"Transitions.logged({name}={what})" for name in ("state", "next_state", "action", "reward")
    for what in ("NaNs", "infinities")
)}  # fmt: skip
"""Odd values that are filled as the table was, or that only a fit must refuse."""


def wrong_calls() -> Iterator[Call]:
    for verb, (function, arguments) in right_calls().items():
        for name, right in arguments.items():
            for what, value in wrong_values(name, right).items():
                if f"{verb}({name}={what})" not in FINE:
                    yield f"{verb}({name}={what})", partial(function, **{**arguments, name: value})


COMMANDS = """
    nonsense | fit | fit --run | fit --run NEW | fit --run NEW --data NONE | fit --run NEW --data NONE.csv
    fit --run NEW --data FOLDER | fit --run TABLE --data TABLE | FIT NAMED | FIT --subject id | FIT --held-out 2
    FIT --held-out nan | FIT --seed x | FIT --device tpu | FIT --save-seconds nan | FIT NAMED --bins x=y
    FIT NAMED --bins inf | FIT NAMED --bins nan | FIT NAMED --bins a=nan,1 | FIT NAMED --bins a=2,1
    FIT NAMED --units x | FIT NAMED --last never | FIT NAMED --step soon | FIT NAMED --carry-forward nan
    FIT NAMED --categorical = | FIT scm:density --scm.ensemble 0 | FIT scm:density --scm.hidden -5
    FIT scm:density --scm.law nonsense | check-scm --run NONE | check-scm --run RUN --data NONE
    check-scm --run TABLE | augment --run NONE | augment --run TABLE | augment --run RUN --alternatives -5
    train --run NONE | train --run RUN --method magic | train --run RUN --batch 0 | train --run RUN --device tpu
    train --run RUN --learning-rate nan | train --run RUN --method pets --batch 3
    train --run RUN --schedule.steps -5 | evaluate --run NONE | evaluate --run RUN --trials 0
    recommend --run RUN | recommend --run RUN --data NONE | recommend --run NONE --data TABLE
    recommend --run RUN --data TABLE | recommend --run RUN --data FOLDER | run TABLE | run TABLE --config NONE
    run TABLE --config TABLE | run NONE --config TABLE | simulate --run NEW --trials 0
    simulate --run NEW --steps -5 | simulate --run NEW --trials 3 --held-out 5 | simulate --run TABLE --trials 3
    simulate --run NEW --trials 3 task:hiv --task.patients -5 | bench nonsense
    simulate --run NEW --trials 3 task:cartpole --task.gravity nan | bench counterfactuals --seeds -5 --out NEW
    reproduce sd --seeds 0 | reproduce sd --trials 0 | reproduce sd --quick --methods magic --out NEW
    reproduce sd --random-action-share nan | reproduce sd --pack-size -5
"""


def wrong_commands() -> Iterator[Call]:
    folder = originals()[0] / "0"
    words = {"FIT": "fit --run NEW --data TABLE", "NAMED": "--subject id --time t --state x --action a --reward r"}
    paths = {"NEW": "new", "NONE": "nowhere", "TABLE": "rows.csv", "RUN": "run", "FOLDER": "scm"}
    for line in re.split(r"[|\n]", COMMANDS.strip()):
        spoken = re.sub(r"FIT|NAMED", lambda found: words[found[0]], line)
        whole = re.sub(r"NEW|NONE|TABLE|RUN|FOLDER", lambda found: str(folder / paths[found[0]]), spoken)
        yield f"counterpoint {line.strip()}", partial(command, whole.split())


def command(words: list[str]) -> None:
    """A command line in this process; what it says of an error is raised."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            cli.main(words)
    except SystemExit as left:
        text = said.getvalue().strip()
        if left.code != 2:
            raise RuntimeError(f"exit code {left.code}") from None
        ours = "counterpoint: " in text
        raise cp.CounterpointError(text if ours else "the flag parser's own words; see --help") from None


@cache
def call_cases(seed: int) -> list[Call]:
    """All wrong calls, the three kinds dealt in turn, so that a few are some of each."""
    rng, kinds = random.Random(f"{seed}/calls"), [list(each()) for each in (wrong_recipes, wrong_calls, wrong_commands)]
    dealt = [(rng.sample(range(len(kind)), len(kind)), kind) for kind in kinds]
    ranked = [(place, i, kind[which]) for i, (order, kind) in enumerate(dealt) for place, which in enumerate(order)]
    return [call for _, _, call in sorted(ranked, key=lambda each: each[:2])]


def judge_call(call: Call) -> Verdict:
    """Anything but a refusal is wrong; that arguments are too few or too many is Python's own affair."""
    try:
        with warnings.catch_warnings(action="ignore"):
            call[1]()
    except Exception as error:
        own = isinstance(error, TypeError) and re.search(r"positional argument|required|unexpected keyword", str(error))
        return Verdict(REFUSED, str(error)) if own else refusal(error)
    return Verdict(SILENT, "accepted")


# All of it.


def judged(part: str, number: int, seed: int) -> tuple[str, Verdict]:
    """What one case is, and what came of it."""
    if part == "tables":
        case = table_case(seed, number)
        return f"{case.form}, {', '.join(case.damage) or 'no damage'}", judge_table(case)
    if part == "artifacts":
        damaged = artifact_case(seed, number)
        return f"{damaged[2]}: {damaged[1]}", judge_artifact(damaged, number)
    call = call_cases(seed)[number]
    return call[0], judge_call(call)


def examine(part: str, cases: Sequence[int], seed: int, shown: int) -> dict[str, Any]:
    """A row of the table; the first offenders are printed."""
    counts, offenders = Counter(dict.fromkeys(KINDS, 0)), 0
    for number in cases:
        what, verdict = judged(part, number, seed)
        counts[verdict.kind] += 1
        if verdict.kind in BAD or len(cases) == 1:
            offenders += 1
            if offenders <= shown:
                print(f"--only {part} --case {number} --seed {seed}: {verdict.kind}: {what[:120]}: {verdict.why[:200]}")
    return {"part": part, "cases": len(cases), **counts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for part, count in (("tables", 4000), ("artifacts", 600), ("calls", 500)):
        parser.add_argument(f"--{part}", type=int, default=count, help=f"how many {part}; 0 for none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=("tables", "artifacts", "calls"), help="one part")
    parser.add_argument("--case", type=int, help="one case of that part")
    parser.add_argument("--show", type=int, default=10, help="offenders of a part that are printed")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for part in ("tables", "artifacts", "calls") if asked.only is None else (asked.only,):
        most = len(call_cases(asked.seed)) if part == "calls" else getattr(asked, part)
        cases = range(min(getattr(asked, part), most)) if asked.case is None else [asked.case]
        rows.append(examine(part, cases, asked.seed, asked.show))
    print(markdown_table(rows))
    print(json.dumps({"seed": asked.seed, "parts": rows}))
    sys.exit(any(row[kind] for row in rows for kind in BAD))


if __name__ == "__main__":
    main()
