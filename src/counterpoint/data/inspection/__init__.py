"""What is in a table before it is loaded: what each column seems to be, what is odd, and which flags settle it."""

from counterpoint.data.inspection.facts import ColumnFacts, Problem
from counterpoint.data.inspection.inspecting import inspect
from counterpoint.data.inspection.page import LEGEND, MEANS, Inspection, column_rows, markdown, sections, summary

__all__ = [
    "LEGEND",
    "MEANS",
    "ColumnFacts",
    "Inspection",
    "Problem",
    "column_rows",
    "inspect",
    "markdown",
    "sections",
    "summary",
]
