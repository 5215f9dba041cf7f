"""Helpers of all result pages: select, group and average rows, and join Markdown blocks."""

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from counterpoint.core.statistics import Interval
from counterpoint.core.tables import Row


def unique(rows: Iterable[Row], column: str) -> list[Any]:
    """Return the values of a column in the order in which they first appear."""
    return list(dict.fromkeys(row[column] for row in rows))


def select(rows: Iterable[Row], **values: object) -> list[Row]:
    """Return the rows whose columns equal `values`."""
    return [row for row in rows if all(row[column] == value for column, value in values.items())]


def group_by(rows: Iterable[Row], *columns: str) -> dict[tuple[Any, ...], list[Row]]:
    """Group rows by their values in `columns`, in the order in which these first appear."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[column] for column in columns), []).append(row)
    return groups


def mean(values: Iterable[float | None]) -> float | None:
    """Average the values that are not None; None if there are none."""
    numbers = [value for value in values if value is not None]
    return fmean(numbers) if numbers else None


def column_mean(rows: Iterable[Row], column: str) -> float | None:
    """Average a column over the rows where it is not None."""
    return mean(row[column] for row in rows)


def formats(**columns: Sequence[str]) -> dict[str, str]:
    """Map columns to format specs: `formats(f2=["bias"], f0=["logs"])` is `{"bias": ".2f", "logs": ".0f"}`."""
    return {column: f".{spec[1:]}f" for spec, names in columns.items() for column in names}


def from_to(interval: Interval) -> str:
    """Write an interval as `6.55 (6.50 to 6.60)`."""
    return f"{interval.estimate:.2f} ({interval.low:.2f} to {interval.high:.2f})"


def markdown_page(*blocks: str) -> str:
    """Join blocks (headings, paragraphs, tables) with blank lines; empty blocks are left out."""
    return "\n\n".join(block for block in blocks if block) + "\n"
