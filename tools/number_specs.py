"""What a number on a page is: a file of results/ or of published figures, a reduction of a column, filters, a format.

    sd.csv; mean return_selected; method=CTRL_g + search; trials=5 / 10; .1f

Alternatives in a filter stand for as many numbers, in their order; the format is `.0f` where none is given. Reductions
are mean, median, iqm, min, max, sd, sum, count (of rows, or of those where a condition holds), `min mean COLUMN by
OTHER` (of a reduction within each value of another column), and `difference COLUMN by seed`, which takes
`method=A − B`, pairs seeds, and gives the mean difference and both ends of its 95% interval. A column may be an
expression: `return_selected - return_last`, `low <= truth <= high`.

A JSON file is one row of its figures, nested ones by `outer.inner`; `benchmarks/fit_speed.json#fits` are the rows of a
list in it, or of an object whose values are rows, which get their key as `name`.
"""

import json
import operator
import re
from collections.abc import Callable, Mapping
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from counterpoint.core.statistics import iqm
from reproduction.statistics import paired_difference

FOLDERS = tuple(Path(__file__).parents[1] / folder for folder in ("results", "reproduction/pages"))
REDUCTIONS: Mapping[str, Callable[[pd.Series], float]] = {
    "mean": lambda values: float(values.mean()),
    "median": lambda values: float(values.median()),
    "iqm": lambda values: float(iqm(values)),
    "min": lambda values: float(values.min()),
    "max": lambda values: float(values.max()),
    "sd": lambda values: float(values.std()),
    "sum": lambda values: float(values.sum()),
    "count": lambda values: float(values.sum() if is_bool_dtype(values) else len(values)),
}
DIFFERENCE, LESS = "difference", " − "
NOTHING = "–"
"""What a value begins with in a line of a table that has none."""
MENTIONED = 20
"""Values of a column that a complaint lists."""
OPERATORS: Mapping[str, Callable[[pd.Series, object], pd.Series]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    "=": operator.eq,
}
FILTER = re.compile(r"([\w. ]+?)\s*(>=|<=|!=|=)\s*(.*)")
FORMAT = re.compile(r"[+,]*\.\d[f%]")
Filter = tuple[str, str, str]
"""Column, sign and value."""


class SpecificationError(Exception):
    """A specification that cannot be answered."""


def answers(spec: str) -> list[str]:
    """The numbers that a specification stands for, as they are printed; none where no row fits."""
    last = spec.rsplit(";", 1)[-1].strip()
    form = last if FORMAT.fullmatch(last) else ".0f"
    return [printed(value, form) for value in exact(spec)]


def exact(spec: str) -> list[float]:
    """The numbers that a specification stands for, unrounded."""
    name, what, *rest = (part.strip() for part in spec.split(";"))
    rows, values = table(name), []
    for filters in product(*(alternatives(each) for each in rest if not FORMAT.fullmatch(each))):
        values += reduced(rows, what, filters)
    return values


def table(name: str) -> pd.DataFrame:
    """The rows of the file of that name."""
    file, _, part = name.partition("#")
    return read(located(file), part)


def located(file: str) -> Path:
    """The path of that name in the first folder that has it."""
    for folder in FOLDERS:
        if (folder / file).is_file():
            return folder / file
    raise SpecificationError(f"there is no {file} in {' or '.join(folder.name for folder in FOLDERS)}")


@cache
def read(path: Path, part: str = "") -> pd.DataFrame:
    if path.suffix == ".csv":
        return pd.read_csv(path)
    found = json.loads(path.read_text(encoding="utf-8"))
    rows = found.get(part) if part else found
    if part and isinstance(rows, dict):
        rows = [{"name": name, **row} for name, row in rows.items() if isinstance(row, dict)]
    if part and not (isinstance(rows, list) and rows):
        raise SpecificationError(f"{path.name} has no list '{part}'")
    return pd.json_normalize(rows)


def alternatives(text: str) -> list[Filter]:
    """One filter for each value that is named."""
    found = FILTER.fullmatch(text)
    if found is None:
        raise SpecificationError(f"'{text}' is neither a filter (column=value) nor a format (.1f)")
    return [(found[1], found[2], value.strip()) for value in found[3].split(" / ")]


def reduced(rows: pd.DataFrame, what: str, filters: tuple[Filter, ...]) -> list[float]:
    """One number, or the three of a difference; none where no row fits."""
    names, expression, key = parsed(what)
    if names == [DIFFERENCE]:
        return difference(rows, expression, key, filters)
    chosen = filtered(rows, filters)
    if not len(chosen):
        return []
    values = column(chosen, expression)
    for name in reversed(names[1:]):
        values = values.groupby(column(chosen, key)).agg(REDUCTIONS[name])
    return [REDUCTIONS[names[0]](values)]


def parsed(what: str) -> tuple[list[str], str, str]:
    """Reductions, column and the column by whose values rows are taken together."""
    expression, _, key = what.partition(" by ")
    names: list[str] = []
    while expression.split(" ")[0] in (*REDUCTIONS, DIFFERENCE):
        name, _, expression = expression.partition(" ")
        names.append(name)
    grouped = names == [DIFFERENCE] or len(names) == 2
    if not names or len(names) > 2 or grouped != bool(key):
        raise SpecificationError(f"'{what}' is no reduction of a column")
    return names, expression, key


def difference(rows: pd.DataFrame, expression: str, key: str, filters: tuple[Filter, ...]) -> list[float]:
    """What a filter `A − B` asks for: the mean of A less B on the same seeds, and its 95% interval; none for A − A."""
    sides = [tuple((name, sign, side(value, place)) for name, sign, value in filters) for place in (0, 1)]
    if sides[0] == sides[1]:
        return []
    chosen = [filtered(rows, own) for own in sides]
    means = [column(own, expression).groupby(own[key]).mean() for own in chosen]
    both = pd.concat(means, axis=1, join="inner").to_numpy()
    if len(both) < 2:
        return []
    found = paired_difference(both[:, 0], both[:, 1], np.mean)
    return [found.estimate, found.low, found.high]


def side(value: str, place: int) -> str:
    return value.split(LESS)[place] if LESS in value else value


def filtered(rows: pd.DataFrame, filters: tuple[Filter, ...]) -> pd.DataFrame:
    """The rows that fit all filters; a value that no row has at all is a misspelt one."""
    fits = pd.Series(True, rows.index)
    for name, sign, value in filters:
        values = column(rows, name)
        numeric = is_numeric_dtype(values) and not is_bool_dtype(values)
        if value.startswith(NOTHING):
            return rows[:0]
        own = OPERATORS[sign](values, float(value)) if numeric else OPERATORS[sign](values.astype(str), value)
        if sign == "=" and not own.any():
            raise SpecificationError(f"no row has {name}={value}; of those there are {', '.join(known(values))}")
        fits &= own
    return rows[fits]


def known(values: pd.Series) -> list[str]:
    """What stands in a column, shortened."""
    found = list(map(str, values.unique()))
    return [*found[:MENTIONED], "…"] if len(found) > MENTIONED else found


def column(rows: pd.DataFrame, expression: str) -> pd.Series:
    """A column, or an expression of columns; the rows themselves where there is none."""
    if not expression:
        return pd.Series(1.0, rows.index)
    try:
        return rows[expression] if expression in rows else rows.eval(expression, engine="python")
    except (ValueError, TypeError, SyntaxError, LookupError, NameError) as error:
        raise SpecificationError(f"'{expression}' cannot be computed from {', '.join(rows)}: {error}") from error


def printed(value: float, form: str) -> str:
    """As pages write it: a true minus, and none before nothing."""
    text = format(value, form)
    return text.replace("-", "−" if re.search("[1-9]", text) else "")
