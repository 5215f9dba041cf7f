"""The state columns of a user's table: numbers as they are, categories as codes."""

from typing import TYPE_CHECKING

import numpy as np

from counterpoint.core.errors import CounterpointError
from counterpoint.data.schema import Column, Schema
from counterpoint.data.tables.columns import CheckedColumns
from counterpoint.data.tables.training_only import check_levels, training_levels

if TYPE_CHECKING:
    from counterpoint.data.tables.reader import Reader

MOST_LEVELS = 50
"""A text column with more levels than this is an id or free text."""
BINARY = ("0", "1")


def read_states(
    columns: CheckedColumns, how: "Reader", training: np.ndarray, like: Schema | None = None
) -> tuple[np.ndarray, list[Column]]:
    """The columns side by side in the table's own order, NaN where a value is missing, and what each is.

    Levels that are not declared are those of the `training` subjects' rows.
    """
    if like is not None:
        known = [column for column in like.states if not column.mask_of]
    else:
        declared, units = dict(how.categorical), dict(how.units)
        known = [_column(columns, name, declared, how.numeric, units.get(name, ""), training) for name in how.state]
    return np.column_stack([encoded(columns, column) for column in known]), known


def encoded(columns: CheckedColumns, column: Column) -> np.ndarray:
    """One column as numbers: as they are, or the places of its levels."""
    if not column.levels:
        return columns.measured(column.name)
    return columns.coded(column.name, list(column.levels))


def _column(
    columns: CheckedColumns,
    name: str,
    declared: dict[str, tuple[str, ...]],
    numeric: tuple[str, ...],
    unit: str,
    training: np.ndarray,
) -> Column:
    """What a column is: as declared; else text and 0/1 are categories, and other numbers are numbers."""
    if name in numeric:
        return Column(name, (), unit)
    if declared.get(name):
        return Column(name, declared[name], unit)
    if name not in declared and columns.holds_stray_text(name):
        columns.measured(name)  # Says which row is not a number.
    if name in declared or columns.holds_labels(name):
        return Column(name, _levels(columns, name, training), unit)
    values = columns.measured(name)
    if np.unique(values[~np.isnan(values)]).tolist() != [0.0, 1.0]:
        return Column(name, (), unit)
    check_levels(name, {"0", "1"} - {f"{value:g}" for value in np.unique(values[training])})
    return Column(name, BINARY, unit)


def _levels(columns: CheckedColumns, name: str, training: np.ndarray) -> tuple[str, ...]:
    levels = columns.categories(name) or training_levels(columns, name, columns.present(name), training)
    if not 2 <= len(levels) <= MOST_LEVELS:
        what = "one level only" if len(levels) < 2 else f"{len(levels)} levels, too many for categories"
        raise CounterpointError(f"state column '{name}' has {what}; drop it, or encode it as numbers")
    return tuple(levels)
