"""Read the state columns of a user's table: numbers as they are, categories as codes."""

from collections.abc import Sequence

import numpy as np

from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.wording import counted
from counterpoint.data.layout import Layout
from counterpoint.data.schema import Column
from counterpoint.data.tables.columns import CheckedColumns
from counterpoint.data.tables.made_columns import TableColumn, table_columns

MOST_LEVELS = 50
"""A text column with more levels than this is taken for an id or free text."""
BINARY = ("0", "1")


def read_states(
    columns: CheckedColumns, layout: Layout, training: np.ndarray, like: Sequence[Column] | None = None
) -> tuple[np.ndarray, list[Column]]:
    """Return the state columns in the table's own order, NaN where a value is missing, and their descriptions.

    Levels that are not declared are those of the `training` subjects' rows; `like` gives the columns of another table.
    """
    places = table_columns(layout)
    if like is not None:
        states = [column for column in like if not column.mask_of]
    else:
        states = [_column(columns, place, layout, training) for place in places]
    cells = [encoded(columns, column, place) for column, place in zip(states, places, strict=True)]
    return np.column_stack(cells), states


def encoded(columns: CheckedColumns, column: Column, place: TableColumn) -> np.ndarray:
    """Return one column as numbers, or as codes of its levels; NaN where a value is missing."""
    if not column.levels:
        return place.read(columns.measured(place.source))
    return columns.coded(place.source, list(column.levels))


def _column(columns: CheckedColumns, place: TableColumn, layout: Layout, training: np.ndarray) -> Column:
    """Describe a column: as declared; otherwise text and 0/1 are categories, and other numbers are numbers."""
    name = place.name
    if place.period is not None:
        return Column(name)
    declared = dict(layout.categorical)
    unit = dict(layout.units).get(name, "")
    if name in layout.numeric:
        return Column(name, (), unit)
    if declared.get(name):
        return Column(name, declared[name], unit)
    if name not in declared and columns.holds_stray_text(name):
        columns.measured(name)  # Refuses the column and names the row.
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


def training_levels(columns: CheckedColumns, name: str, needed: np.ndarray, training: np.ndarray) -> list[str]:
    """Return the levels in the training subjects' rows; refuse levels that only held-out subjects have."""
    levels = columns.codes(name, needed & training)[1]
    check_levels(name, set(columns.codes(name, needed)[1]) - set(levels))
    return levels


def check_levels(name: str, held_out_only: set[str]) -> None:
    """Refuse levels that only held-out subjects have. They are patients' data, so the message does not show them."""
    require(
        not held_out_only,
        f"column '{name}' has {counted(len(held_out_only), 'level')} that only held-out subjects have, of which"
        f" nothing can be learned; join levels, choose another seed, or declare them with"
        f" --categorical {name}=LEVEL,LEVEL",
    )
