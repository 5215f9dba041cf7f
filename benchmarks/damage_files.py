"""Damage to files: headers, delimiters, encodings, packing."""

import gzip
import math
import random
from dataclasses import dataclass
from datetime import datetime

from damage_log import NUMBERS, Log
from damage_registry import ID, Trace, change, fresh, kind

# Files


@kind("a byte order mark")
def _(log: Log, rng: random.Random) -> Trace:
    log.file = _marked
    return Trace("byte order")


@kind("lines of Windows")
def _(log: Log, rng: random.Random) -> Trace:
    log.newline = "\r\n"
    return Trace("line end")


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
    return Trace(f"total|{ID}")


@kind("a line of words at the end")
def _(log: Log, rng: random.Random) -> Trace:
    log.below = [[rng.choice(("End of report", "(780 rows affected)", "Source: data warehouse"))]]
    return Trace("last line|fewer cells")


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
    return Trace("cut off|incomplete|last line|fewer cells")


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


@kind("brackets in the file's name, and a file that they match")
def _(log: Log, rng: random.Random) -> Trace:
    log.beside, log.stem = "log1", "log[12]"
    return Trace("file|name|bracket")


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
