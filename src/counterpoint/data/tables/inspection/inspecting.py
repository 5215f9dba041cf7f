"""`check`: open, look, count, suggest, try."""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from counterpoint.data.tables.inspection.actions import suggested_bins
from counterpoint.data.tables.inspection.choices import suggested_choices, try_loading
from counterpoint.data.tables.inspection.columns import names_given, open_columns
from counterpoint.data.tables.inspection.facts import ROLES
from counterpoint.data.tables.inspection.findings import find
from counterpoint.data.tables.inspection.page import Inspection
from counterpoint.data.tables.inspection.problems import about_encoding, problems_of
from counterpoint.data.tables.inspection.roles import look_at


def check(
    table: Any,
    *,
    subject: str = "",
    time: str = "",
    state: str | Sequence[str] = (),
    action: str | Sequence[str] = (),
    reward: str = "",
    done: str | Sequence[str] = (),
    episode: str = "",
    encoding: str = "utf-8",
) -> Inspection:
    """Look at a table before it is loaded: a pandas or polars DataFrame, or the path of a CSV, TSV or Parquet file.

    Columns whose role is not given are guessed; the result says which. Nothing is changed and nothing is kept.

    Example:
        >>> found = counterpoint.check("patients.csv", action=["vasopressor", "fluid"])  # doctest: +SKIP
        >>> print(found.page())  # doctest: +SKIP
    """
    named = {"subject": subject, "episode": episode, "time": time, "reward": reward}
    named |= {"done": done, "action": action, "state": state}
    given = {role: names_given(role, named.get(role, ())) for role in ROLES}
    columns, used_encoding = open_columns(table, given, encoding)
    look = look_at(columns, given)
    bins = suggested_bins(look)
    found = find(look, bins)
    path = str(table) if isinstance(table, str | os.PathLike) else ""
    found = replace(found, source=path, encoding=used_encoding)
    found = replace(found, choices=suggested_choices(look, found, bins))
    problems = (*about_encoding(encoding, used_encoding), *problems_of(look, found))
    return replace(found, problems=problems, trial=try_loading(look, found.choices, bins))
