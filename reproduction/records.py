"""The code, the machine and the seconds that the cells of an experiment record."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from counterpoint.core.provenance import provenance


def where() -> dict[str, Any]:
    """The code and the machine that make a cell's numbers, to be kept with them."""
    record = provenance()
    return {name: record[name] for name in ("commit", "device")}


def ran_on(cells: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """How many cells each code and machine made."""
    found = Counter((cell.get("commit"), cell.get("device")) for cell in cells)
    return [{"commit": commit, "device": device, "cells": count} for (commit, device), count in found.items()]


def same_commit(one: str | None, other: str | None) -> bool:
    """Whether two records name one commit, whole or in its first digits, both edited or neither."""
    if one is None or other is None:
        return one is other
    (left, edited), (right, too) = ((name.removesuffix("-dirty"), name.endswith("-dirty")) for name in (one, other))
    return edited == too and (left.startswith(right) or right.startswith(left))


def seconds_by(cells: Iterable[Mapping[str, Any]], column: str) -> dict[str, float]:
    """How long the cells of each kind took together; a table holds no seconds, so that two runs of it are the same."""
    total: Counter[str] = Counter()
    for cell in cells:
        total[str(cell[column])] += cell["seconds"]
    return {kind: round(seconds, 1) for kind, seconds in total.items()}


def made_by(cells: Iterable[Sequence[Mapping[str, Any]]], column: str) -> dict[str, Any]:
    """Which code and machine made cells that have rows, and how long those of each kind took."""
    first = [rows[0] for rows in cells if rows]
    return {"ran_on": ran_on(first), "seconds": seconds_by(first, column)}
