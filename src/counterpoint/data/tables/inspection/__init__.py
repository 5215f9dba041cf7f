"""Inspect a table before it is read: roles of columns, problems, and the flags that settle them."""

from counterpoint.data.tables.inspection.facts import ColumnFacts, TableProblem
from counterpoint.data.tables.inspection.inspecting import check
from counterpoint.data.tables.inspection.page import (
    ISOLATED,
    LEGEND,
    MEANS,
    QUANTILES,
    Inspection,
    column_rows,
    markdown,
    sections,
    summary,
)

__all__ = [
    "ISOLATED",
    "LEGEND",
    "MEANS",
    "QUANTILES",
    "ColumnFacts",
    "Inspection",
    "TableProblem",
    "check",
    "column_rows",
    "markdown",
    "sections",
    "summary",
]
