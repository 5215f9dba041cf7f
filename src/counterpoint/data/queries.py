"""Questions as users have them (tensors, arrays, lists, DataFrames, one row alone), checked, and answered in kind."""

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
from counterpoint.data.tables.missing import filled
from counterpoint.data.tables.state_columns import encoded

Answer = Callable[[Tensor, Sequence[Column]], Any]
"""From numbers and their columns to whatever the question was."""


@dataclass(frozen=True)
class Query:
    """A question as numbers, and how its answer is given."""

    values: Float[Tensor, "n w"]
    answer: Answer
    table: Callable[[dict[str, list[Any]]], Any] | None = None
    """How named columns are given back, where the question had names."""


def ask(question: Any, columns: Sequence[Column], what: str = "state") -> Query:
    """States in whatever form: named columns are found by name, others must be as many, in order; none may be odd."""
    asked = _numbers(question, columns, what)
    _check_width(asked.values, columns, what)
    if not math.isfinite(asked.values.sum()):  # One number tells that all are, which is the usual case.
        asked = replace(asked, values=_finite(asked.values, columns, what))
    _check_codes(asked.values, columns, what)
    return asked


def _finite(values: Tensor, columns: Sequence[Column], what: str) -> Tensor:
    """Infinite values are refused, missing ones filled."""
    infinite = values.isinf().any(1).nonzero()
    if len(infinite):
        raise CounterpointError(f"the {what} is infinite at row {int(infinite[0])}; correct it")
    return _without_missing(values, columns, what) if bool(values.isnan().any()) else values


def _numbers(question: Any, columns: Sequence[Column], what: str) -> Query:
    if isinstance(question, Tensor):
        return _of_tensor(question, what)
    if isinstance(question, Mapping):
        return _of_mapping(dict(question), columns, what)
    if _is_series(question):
        asked = _of_mapping(question.to_dict(), columns, what)
        return _by_name(asked.values, lambda data: type(question)({k: v[0] for k, v in data.items()}))
    if isinstance(question, np.ndarray | list | tuple | int | float | np.number):
        return _of_array(question, what)
    return _of_frame(question, columns, what)


def _of_tensor(question: Tensor, what: str) -> Query:
    if question.is_complex() or question.dtype == torch.bool or question.ndim > 2:
        raise CounterpointError(f"the {what} is a {question.dtype} of {question.ndim} axes; pass rows of real numbers")
    rows, one = (question, False) if question.ndim == 2 else (question.reshape(1, -1), True)
    kind = question.dtype if question.is_floating_point() else torch.float32
    return Query(rows.float(), lambda x, _: (x[0] if one else x).to(question.device, kind))


def _of_array(question: Any, what: str) -> Query:
    try:
        array = np.asarray(question)
        with np.errstate(over="ignore"):
            numbers = array.astype(np.float32) if array.dtype.kind in "iufO" else None
    except (ValueError, TypeError):
        numbers = None
    if numbers is None or numbers.ndim > 2:
        raise CounterpointError(f"the {what} is not rows of numbers; pass one list of numbers a row, or a DataFrame")
    rows, one = (numbers, False) if numbers.ndim == 2 else (numbers.reshape(1, -1), True)
    if not isinstance(question, np.ndarray):
        return Query(torch.from_numpy(rows), lambda x, _: (x[0] if one else x).tolist())
    kind = question.dtype if question.dtype.kind == "f" else np.float32
    return Query(torch.from_numpy(rows.copy()), lambda x, _: (x[0] if one else x).cpu().numpy().astype(kind))


def _is_series(question: Any) -> bool:
    return hasattr(question, "to_dict") and hasattr(question, "index") and not hasattr(question, "columns")


def _of_mapping(question: dict[Any, Any], columns: Sequence[Column], what: str) -> Query:
    """One row by name: {"lactate": 2.1, …}."""
    import pandas as pd

    single = all(np.ndim(value) == 0 for value in question.values())
    try:
        frame = pd.DataFrame({key: [value] if single else value for key, value in question.items()})
    except (ValueError, TypeError):
        raise CounterpointError(f"the {what} has columns of different lengths; give one value a row in each") from None
    values = _of_frame(frame, columns, what).values
    return _by_name(values, lambda data: {k: v[0] for k, v in data.items()} if single else data)


def _by_name(values: Tensor, table: Callable[[dict[str, list[Any]]], Any]) -> Query:
    def answer(x: Tensor, names: Sequence[Column]) -> Any:
        return table({column.name: said(x[:, i], column) for i, column in enumerate(names)})

    return Query(values, answer, table)


def _of_frame(question: Any, columns: Sequence[Column], what: str) -> Query:
    import narwhals as nw

    table = open_table(question, [column.name for column in columns if not column.mask_of])
    values = np.column_stack([_named(table, column) for column in columns] or [np.zeros((len(table), 0))])
    backend = table.frame.implementation

    def named(data: dict[str, list[Any]]) -> Any:
        frame = nw.from_dict(data, backend=backend).to_native()
        return frame.set_index(question.index) if hasattr(question, "index") and hasattr(frame, "set_index") else frame

    return _by_name(torch.from_numpy(values.astype(np.float32)), named)


def _named(table: CheckedColumns, column: Column) -> np.ndarray:
    if not column.mask_of:
        return encoded(table, column)
    if column.name in table.frame.columns:
        return encoded(table, column)
    return (~table.present(column.mask_of)).astype(float)


def said(values: Float[Tensor, " n"], column: Column) -> list[Any]:
    """A column in the user's words: its levels where it has any that are not just numbers."""
    numbers = values.tolist()
    if not column.levels or all(level.lstrip("-").isdigit() for level in column.levels):
        places = [float(level) for level in column.levels]
        return [places[int(x)] for x in numbers] if places else numbers
    return [column.levels[int(x)] for x in numbers]


def _without_missing(values: Tensor, columns: Sequence[Column], what: str) -> Tensor:
    for i, column in enumerate(columns):
        absent = values[:, i].isnan().nonzero()
        if len(absent) and column.fill is None:
            raise CounterpointError(
                f"the {what} has no '{column.name}' at row {int(absent[0])} (missing, or not a number); give it a value"
            )
    whole = filled(list(columns), values.double().cpu().numpy())
    return torch.from_numpy(whole).to(values)


def _check_width(values: Tensor, columns: Sequence[Column], what: str) -> None:
    if values.shape[1] != len(columns):
        names = listed([column.name for column in columns])
        raise CounterpointError(
            f"the {what} has {values.shape[1]} columns and {len(columns)} are needed; pass one value each for {names}"
        )


def _check_codes(values: Tensor, columns: Sequence[Column], what: str) -> None:
    for i, column in enumerate(columns):
        if column.levels:
            own = values[:, i]
            wrong = ((own != own.round()) | (own < 0) | (own >= len(column.levels))).nonzero()
            if len(wrong):
                raise CounterpointError(
                    f"the {what} column '{column.name}' is no code 0 to {len(column.levels) - 1} at row"
                    f" {int(wrong[0])}; give the place of its level, or pass a DataFrame with the level itself"
                )


def ask_actions(question: Any, schema: Schema, rows: int, what: str = "action") -> Query:
    """Actions in whatever form: features, one action for all rows, or a DataFrame with the table's action columns."""
    asked = _chosen(question, schema, what)
    values = asked.values
    if len(values) == 1 != rows:
        asked, values = _for_all(question, asked), values.expand(rows, -1)
    if len(values) != rows:
        raise CounterpointError(f"{len(values)} actions for {rows} rows; give one for each row, or one for all")
    if not bool(values.isfinite().all()):
        raise CounterpointError(
            f"the {what} is not finite at row {int((~values.isfinite()).any(1).nonzero()[0])}; correct it"
        )
    check_actions(schema.actions, values, what)
    return replace(asked, values=values)


def _for_all(question: Any, asked: Query) -> Query:
    """One action for many rows: the answer has a row for each, in a table where the question had names."""
    if asked.table is None:
        return Query(asked.values, lambda x, _: _restack(question, x))
    import narwhals as nw

    plain = isinstance(question, Mapping) or _is_series(question)
    named = "pandas" if plain else open_table(question, []).frame.implementation
    return _by_name(asked.values, lambda data: nw.from_dict(data, backend=named).to_native())


def _chosen(question: Any, schema: Schema, what: str) -> Query:
    columns = [Column(name) for name in schema.action_names]
    if isinstance(question, str):
        return Query(_by_label([question], schema), lambda x, _: x.tolist())
    is_frame = not isinstance(question, Tensor | np.ndarray | list | tuple | int | float | np.number)
    if is_frame and schema.doses:
        return _by_doses(question, schema)
    words = _words(question)
    if words:
        return Query(_by_label(words, schema), lambda x, _: x.tolist())
    asked = _numbers(question, columns, what)
    flat = asked.values.shape[0] == 1 != asked.values.shape[1] and schema.actions.width == 1
    if flat:  # One dose a row, as a flat list.
        return Query(asked.values.T, lambda x, c: _restack(question, x))
    return asked


def _words(question: Any) -> list[str]:
    """A list of labels; empty where the question is anything else."""
    several = isinstance(question, list | tuple) or (isinstance(question, np.ndarray) and question.ndim == 1)
    return list(question) if several and len(question) and isinstance(question[0], str) else []


def _restack(question: Any, x: Tensor) -> Any:
    if isinstance(question, Tensor):
        return x.to(question.device)
    return x.cpu().numpy() if isinstance(question, np.ndarray) else x.tolist()


def _by_label(labels: list[str], schema: Schema) -> Tensor:
    place = {label: i for i, label in enumerate(schema.labels())} if isinstance(schema.actions, Discrete) else {}
    wrong = [label for label in labels if label not in place]
    if wrong:
        raise CounterpointError(f"'{wrong[0]}' is none of the actions {listed(list(place))}; name one of them")
    return schema.actions.features(torch.tensor([place[label] for label in labels]))  # pyright: ignore[reportAttributeAccessIssue]


def _by_doses(question: Any, schema: Schema) -> Query:
    if isinstance(question, Mapping) or _is_series(question):
        import pandas as pd

        single = all(np.ndim(value) == 0 for value in dict(question).values())
        question = pd.DataFrame([dict(question)] if single else dict(question))
    table = open_table(question, [column.name for column in schema.doses])
    features = coded_actions(table, list(schema.doses), np.ones(len(table), dtype=bool), schema.actions).features
    return replace(_of_frame(question, [], "action"), values=features)
