"""Convert a user's states and actions to tensors, and results back to the form of the input.

Inputs are tensors, arrays, lists, DataFrames, or one row alone; a DataFrame gives a DataFrame, an array an array.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.errors import CounterpointError
from counterpoint.data.schema import Column, Schema, listed
from counterpoint.data.spaces import Discrete, check_actions
from counterpoint.data.tables.action_columns import coded_actions
from counterpoint.data.tables.columns import CheckedColumns, open_table
from counterpoint.data.tables.made_columns import TableColumn
from counterpoint.data.tables.missing import filled
from counterpoint.data.tables.state_columns import encoded

Restore = Callable[[Tensor, Sequence[Column]], Any]
FromColumns = Callable[[dict[str, list[Any]]], Any]


@dataclass(frozen=True)
class Converted:
    """Input as a tensor, with the functions that convert a result back."""

    values: Float[Tensor, "n w"]
    restore: Restore
    """From a tensor and the columns that it has to the form of the input."""
    from_columns: FromColumns | None = None
    """From values by column name to the form of the input; None where the input had no column names."""


def convert_states(states: Any, columns: Sequence[Column], what: str = "state") -> Converted:
    """Convert states, check them and fill missing values.

    Args:
        states: Rows of numbers in the order of `columns`, or a table or mapping with columns of these names.
        columns: The columns that are needed.
        what: What the numbers are, for messages.
    """
    converted = _numbers(states, columns, what)
    values = converted.values
    if values.shape[1] != len(columns):
        names = listed([column.name for column in columns])
        raise CounterpointError(
            f"the {what} has {values.shape[1]} columns and {len(columns)} are needed; pass one value each for {names}"
        )
    if not math.isfinite(values.sum()):  # One number shows that all are finite, which is the usual case.
        values = _finite(values, columns, what)
    _check_codes(values, columns, what)
    return replace(converted, values=values)


def convert_actions(actions: Any, schema: Schema, rows: int, what: str = "action") -> Converted:
    """Convert actions for `rows` rows: features, labels, one action for all rows, or a table of the action columns."""
    converted = _action_values(actions, schema, what)
    values = converted.values
    if len(values) == 1 != rows:
        converted = _repeated(actions, converted)
        values = values.expand(rows, -1)
    if len(values) != rows:
        raise CounterpointError(f"{len(values)} actions for {rows} rows; give one for each row, or one for all")
    finite = values.isfinite().all(1)
    if not bool(finite.all()):
        raise CounterpointError(f"the {what} is not finite at row {int((~finite).nonzero()[0])}; correct it")
    check_actions(schema.actions, values, what)
    return replace(converted, values=values)


def _numbers(values: Any, columns: Sequence[Column], what: str) -> Converted:
    if isinstance(values, Tensor):
        return _of_tensor(values, what)
    if isinstance(values, Mapping):
        return _of_mapping(dict(values), columns, what)
    if _is_series(values):
        row = _of_mapping(values.to_dict(), columns, what).values
        return _named(row, lambda data: type(values)({name: cells[0] for name, cells in data.items()}))
    if isinstance(values, np.ndarray | list | tuple | int | float | np.number):
        return _of_array(values, what)
    return _of_frame(values, columns, what)


def _of_tensor(values: Tensor, what: str) -> Converted:
    if values.is_complex() or values.dtype == torch.bool or values.ndim > 2:
        raise CounterpointError(f"the {what} is a {values.dtype} of {values.ndim} axes; pass rows of real numbers")
    single = values.ndim < 2
    dtype = values.dtype if values.is_floating_point() else torch.float32
    rows = values.reshape(1, -1) if single else values
    return Converted(rows.float(), lambda x, _: (x[0] if single else x).to(values.device, dtype))


def _of_array(values: Any, what: str) -> Converted:
    try:
        array = np.asarray(values)
        with np.errstate(over="ignore"):
            numbers = array.astype(np.float32) if array.dtype.kind in "iufO" else None
    except (ValueError, TypeError):
        numbers = None
    if numbers is None or numbers.ndim > 2:
        raise CounterpointError(f"the {what} is not rows of numbers; pass one list of numbers a row, or a DataFrame")
    single = numbers.ndim < 2
    rows = numbers.reshape(1, -1) if single else numbers
    if not isinstance(values, np.ndarray):
        return Converted(torch.from_numpy(rows), lambda x, _: (x[0] if single else x).tolist())
    dtype = values.dtype if values.dtype.kind == "f" else np.float32
    return Converted(torch.from_numpy(rows.copy()), lambda x, _: (x[0] if single else x).cpu().numpy().astype(dtype))


def _is_series(values: Any) -> bool:
    return hasattr(values, "to_dict") and hasattr(values, "index") and not hasattr(values, "columns")


def _of_mapping(row: dict[Any, Any], columns: Sequence[Column], what: str) -> Converted:
    """Convert {"lactate": 2.1, …}, or {"lactate": [2.1, …], …}."""
    import pandas as pd

    single = all(np.ndim(value) == 0 for value in row.values())
    try:
        frame = pd.DataFrame({name: [value] if single else value for name, value in row.items()})
    except (ValueError, TypeError):
        raise CounterpointError(f"the {what} has columns of different lengths; give one value a row in each") from None
    values = _of_frame(frame, columns, what).values
    return _named(values, lambda data: {name: cells[0] for name, cells in data.items()} if single else data)


def _named(values: Tensor, from_columns: FromColumns) -> Converted:
    def restore(x: Tensor, columns: Sequence[Column]) -> Any:
        return from_columns({column.name: labelled(x[:, i], column) for i, column in enumerate(columns)})

    return Converted(values, restore, from_columns)


def _of_frame(frame: Any, columns: Sequence[Column], what: str) -> Converted:
    import narwhals as nw

    table = open_table(frame, [column.name for column in columns if not column.mask_of])
    values = np.column_stack([_cells(table, column) for column in columns] or [np.zeros((len(table), 0))])
    backend = table.frame.implementation

    def from_columns(data: dict[str, list[Any]]) -> Any:
        result = nw.from_dict(data, backend=backend).to_native()
        indexed = hasattr(frame, "index") and hasattr(result, "set_index")
        return result.set_index(frame.index) if indexed else result

    return _named(torch.from_numpy(values.astype(np.float32)), from_columns)


def _cells(table: CheckedColumns, column: Column) -> np.ndarray:
    if column.mask_of and column.name not in table.frame.columns:
        return (~table.present(column.mask_of)).astype(float)
    return encoded(table, column, TableColumn(column.name, column.name))


def labelled(values: Float[Tensor, " n"], column: Column) -> list[Any]:
    """Return a column of numbers, with codes replaced by their levels (as numbers where all levels are)."""
    numbers = values.tolist()
    if not column.levels:
        return numbers
    if all(level.lstrip("-").isdigit() for level in column.levels):
        return [float(column.levels[int(x)]) for x in numbers]
    return [column.levels[int(x)] for x in numbers]


def _finite(values: Tensor, columns: Sequence[Column], what: str) -> Tensor:
    """Refuse infinite values; fill missing ones."""
    infinite = values.isinf().any(1).nonzero()
    if len(infinite):
        raise CounterpointError(f"the {what} is infinite at row {int(infinite[0])}; correct it")
    for i, column in enumerate(columns):
        absent = values[:, i].isnan().nonzero()
        if len(absent) and column.fill is None:
            raise CounterpointError(
                f"the {what} has no '{column.name}' at row {int(absent[0])} (missing, or not a number); give it a value"
            )
    if not bool(values.isnan().any()):
        return values
    return torch.from_numpy(filled(list(columns), values.double().cpu().numpy())).to(values)


def _check_codes(values: Tensor, columns: Sequence[Column], what: str) -> None:
    for i, column in enumerate(columns):
        if column.levels:
            codes = values[:, i]
            wrong = ((codes != codes.round()) | (codes < 0) | (codes >= len(column.levels))).nonzero()
            if len(wrong):
                raise CounterpointError(
                    f"the {what} column '{column.name}' is no code 0 to {len(column.levels) - 1} at row"
                    f" {int(wrong[0])}; give the place of its level, or pass a DataFrame with the level itself"
                )


def _repeated(actions: Any, converted: Converted) -> Converted:
    """Let one action stand for many rows: the result has one row for each."""
    if converted.from_columns is None:
        return Converted(converted.values, lambda x, _: _like(actions, x))
    import narwhals as nw

    plain = isinstance(actions, Mapping) or _is_series(actions)
    frame: Any = actions
    backend = "pandas" if plain else open_table(frame, []).frame.implementation
    return _named(converted.values, lambda data: nw.from_dict(data, backend=backend).to_native())


def _action_values(actions: Any, schema: Schema, what: str) -> Converted:
    is_frame = not isinstance(actions, str | Tensor | np.ndarray | list | tuple | int | float | np.number)
    if is_frame and schema.doses:
        return _of_dose_columns(actions, schema)
    labels = _labels(actions)
    if labels:
        return Converted(_by_label(labels, schema), lambda x, _: x.tolist())
    converted = _numbers(actions, [Column(name) for name in schema.action_names], what)
    rows, width = converted.values.shape
    if rows == 1 != width and schema.actions.width == 1:  # One dose a row, as a flat list.
        return Converted(converted.values.T, lambda x, _: _like(actions, x))
    return converted


def _labels(actions: Any) -> list[str]:
    """Return the labels of a label or a list of labels; [] for any other input."""
    if isinstance(actions, str):
        return [actions]
    is_list = isinstance(actions, list | tuple) or (isinstance(actions, np.ndarray) and actions.ndim == 1)
    return list(actions) if is_list and len(actions) and isinstance(actions[0], str) else []


def _like(values: Any, x: Tensor) -> Any:
    if isinstance(values, Tensor):
        return x.to(values.device)
    return x.cpu().numpy() if isinstance(values, np.ndarray) else x.tolist()


def _by_label(labels: list[str], schema: Schema) -> Tensor:
    space = schema.actions
    names = schema.labels() if isinstance(space, Discrete) else []
    index = {label: i for i, label in enumerate(names)}
    if isinstance(space, Discrete):
        index |= {label: i for i, label in enumerate(schema.plain_labels())}
    wrong = [label for label in labels if label not in index]
    if wrong or not isinstance(space, Discrete):
        raise CounterpointError(f"'{wrong[0]}' is none of the actions {listed(names)}; name one of them")
    return space.features(torch.tensor([index[label] for label in labels]))


def _of_dose_columns(actions: Any, schema: Schema) -> Converted:
    frame = actions
    if isinstance(actions, Mapping) or _is_series(actions):
        import pandas as pd

        row = dict(actions)
        single = all(np.ndim(value) == 0 for value in row.values())
        frame = pd.DataFrame([row] if single else row)
    table = open_table(frame, [column.name for column in schema.doses])
    features = coded_actions(table, list(schema.doses), np.ones(len(table), dtype=bool), schema.actions).features
    return replace(_of_frame(frame, [], "action"), values=features)
