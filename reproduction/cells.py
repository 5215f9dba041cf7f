"""Finished cells as files of their own: what is done is skipped, what fails is written down as it happens."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from counterpoint.core.artifacts import write_text
from counterpoint.core.errors import CounterpointError
from reproduction.executors import Executor, Failure, Report

Rows = list[dict[str, Any]]


def read_rows(path: Path, columns: Sequence[str]) -> Rows | None:
    """The rows that a finished cell left behind; None where there is nothing whole."""
    try:
        rows = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    whole = isinstance(rows, list) and all(isinstance(row, dict) and row.keys() >= set(columns) for row in rows)
    return rows if whole else None


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """A finished cell, whole or absent."""
    write_text(path, json.dumps(rows))


def carry_out(
    orders: Sequence[Any],
    work: Callable[..., Any],
    keep: Callable[[Any, Any], None],
    named: Callable[[Any], str],
    total: int,
    failures: Path,
    executor: Executor,
    report: Report,
    cells: int = 1,
) -> list[str]:
    """Do what is left of `total` cells, `cells` of them an order; `keep(order, outcome)` takes what each led to.

    Gives the names and reasons of those that failed, which `failures` holds from the moment they do.
    """
    done, failed = total - cells * len(orders), []
    report("cells", done, total)
    failures.unlink(missing_ok=True)
    for index, outcome in executor.run(work, orders, report):
        if isinstance(outcome, Failure):
            failed.append(f"{named(orders[index])}: {outcome.reason}")
            write_text(failures, "\n".join(failed))
        else:
            keep(orders[index], outcome)
        done += cells
        report("cells", done, total)
    return failed


def refuse_failures(failed: Sequence[str], total: int, what: str) -> None:
    """Raise one line where something failed, once everything else is written."""
    if failed:
        raise CounterpointError(f"{len(failed)} of {total} {what} failed ({'; '.join(failed[:3])}); run it again")


def code_version() -> str:
    """Stands in for the hash of the code until all experiments are on the frame of `experiment.py`."""
    return ""
