"""How much one cohort is like another: marginals and transition statistics of two tables of decisions side by side.

Everything is a number over many patients; one that fewer than `FEWEST` patients stand behind is left out.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from counterpoint.sources.mimic.columns import CTRL46

FEWEST = 10
"""Patients below which a number would tell of single ones."""
SEVERITY = {"SOFA 0 to 4": (0, 4), "SOFA 5 to 9": (5, 9), "SOFA 10 and more": (10, 99)}
"""Groups of rows, by the score of the bloc."""
Row = dict[str, Any]
Table = Any
"""A data frame; pandas cannot tell the types of what is taken from it."""


def likeness(cohorts: Mapping[str, Table], columns: Sequence[str] = CTRL46) -> list[Row]:
    """A row a statistic, with a value for each cohort; None where too few patients stand behind it."""
    decided = {name: _decided(table) for name, table in cohorts.items()}
    measures: list[tuple[str, str, str, Callable[[Table], float | None]]] = [
        ("cohort", "", name, measure if name in COUNTS else _enough(measure)) for name, measure in COHORT.items()
    ]
    measures += [
        ("column", column, name, _of(measure, column)) for column in columns for name, measure in COLUMN.items()
    ]
    measures += [("action", f"fluid {i // 5}, vasopressor {i % 5}", "share of rows", _action(i)) for i in range(25)]
    measures += [
        ("severity", group, name, _within(*limits, measure))
        for group, limits in SEVERITY.items()
        for name, measure in BY_SEVERITY.items()
    ]
    return [
        {"of": of, "name": name, "statistic": statistic} | {each: measure(table) for each, table in decided.items()}
        for of, name, statistic, measure in measures
    ]


def _decided(table: Table) -> Table:
    """The rows in which something was decided, with how each stay ends and where it begins."""
    fatal, begins = table.groupby("stay")["died"].transform("any"), ~table["stay"].duplicated()
    return table.assign(fatal=fatal, begins=begins)[table["action"].notna()]


def _patients(rows: Table) -> int:
    return rows["patient"].nunique()


def _lengths(rows: Table) -> Any:
    return rows.groupby("stay").size()


def _quantile(share: float) -> Callable[[Table, str], float]:
    return lambda rows, column: float(rows[column].quantile(share))


def _pairs(rows: Table, column: str) -> tuple[np.ndarray, np.ndarray]:
    """A column in a bloc and in the next one of the same stay."""
    after = rows.groupby("stay")[column].shift(-1)
    return rows[column][after.notna()].to_numpy(float), after.dropna().to_numpy(float)


def autocorrelation(rows: Table, column: str) -> float | None:
    """Correlation of a column with itself one bloc later."""
    return _correlation(*_pairs(rows, column))


def _change(rows: Table, column: str) -> float:
    now, after = _pairs(rows, column)
    return float((after - now).std())


def _unchanged(rows: Table, column: str) -> float:
    now, after = _pairs(rows, column)
    return float((after == now).mean())


def _with_sofa(rows: Table, column: str) -> float | None:
    return _correlation(rows[column].to_numpy(float), rows["SOFA"].to_numpy(float))


def _correlation(one: np.ndarray, other: np.ndarray) -> float | None:
    return float(np.corrcoef(one, other)[0, 1]) if one.std() > 0 and other.std() > 0 else None


def _enough(measure: Callable[[Table], float | None]) -> Callable[[Table], float | None]:
    return lambda rows: measure(rows) if _patients(rows) >= FEWEST else None


def _of(measure: Callable[[Table, str], float | None], column: str) -> Callable[[Table], float | None]:
    return _enough(lambda rows: measure(rows, column))


def _action(number: int) -> Callable[[Table], float | None]:
    def share(rows: Table) -> float | None:
        taken = rows["action"] == number
        return float(taken.mean()) if _patients(rows[taken]) >= FEWEST else None

    return share


def _within(low: int, high: int, flag: Callable[[Table], Any]) -> Callable[[Table], float | None]:
    """The share of a flag in the rows of a group; missing values of the flag are not counted."""

    def share(rows: Table) -> float | None:
        own = rows[rows["SOFA"].between(low, high)]
        flags = flag(own).dropna()
        return float(flags.mean()) if _patients(own.loc[flags.index]) >= FEWEST else None

    return share


COUNTS = ("patients", "stays", "rows")
"""Told however small."""
COHORT: dict[str, Callable[[Table], float | None]] = {
    "patients": lambda rows: float(_patients(rows)),
    "stays": lambda rows: float(rows["stay"].nunique()),
    "rows": lambda rows: float(len(rows)),
    "share of stays that end in death": lambda rows: float(rows["fatal"][rows["begins"]].mean()),
    "share of stays without an outcome": lambda rows: 1 - float(rows.groupby("stay")["terminated"].any().mean()),
    "blocs a stay, mean": lambda rows: float(_lengths(rows).mean()),
    "blocs a stay, lower quartile": lambda rows: float(_lengths(rows).quantile(0.25)),
    "blocs a stay, median": lambda rows: float(_lengths(rows).median()),
    "blocs a stay, upper quartile": lambda rows: float(_lengths(rows).quantile(0.75)),
    "age, mean": lambda rows: float(rows.groupby("patient")["age"].first().mean()),
    "share of women": lambda rows: float(rows.groupby("patient")["gender"].first().mean()),
    "SOFA, mean": lambda rows: float(rows["SOFA"].mean()),
    "share of rows ventilated": lambda rows: float(rows["mechvent"].mean()),
    "share of rows with fluid": lambda rows: float((rows["fluid_bin"] > 0).mean()),
    "share of rows with a vasopressor": lambda rows: float((rows["vaso_bin"] > 0).mean()),
    "fluid, autocorrelation": lambda rows: autocorrelation(rows, "fluid_bin"),
    "vasopressor, autocorrelation": lambda rows: autocorrelation(rows, "vaso_bin"),
}
"""Of a whole cohort."""
COLUMN: dict[str, Callable[[Table, str], float | None]] = {
    "lower quartile": _quantile(0.25),
    "median": _quantile(0.5),
    "upper quartile": _quantile(0.75),
    "autocorrelation": autocorrelation,
    "SD of the change": _change,
    "share unchanged": _unchanged,
    "correlation with SOFA": _with_sofa,
}
"""Of a state column: over all blocs, and from a bloc to the next of the same stay."""
BY_SEVERITY: dict[str, Callable[[Table], Any]] = {
    "share with fluid": lambda rows: rows["fluid_bin"] > 0,
    "share with a vasopressor": lambda rows: rows["vaso_bin"] > 0,
    "share ventilated": lambda rows: rows["mechvent"] == 1,
    "share of the stays that begin there that end in death": lambda rows: rows["fatal"][rows["begins"]],
}
"""Flags of rows by how ill the patient is."""
