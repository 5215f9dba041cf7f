"""Read the action columns of a user's table: numbers, labels, bins of amounts, and products of several columns."""

from dataclasses import dataclass

import numpy as np
import torch

from counterpoint.core.errors import CounterpointError, require
from counterpoint.data.doses import ActionColumn, Bins, product_space
from counterpoint.data.layout import Layout
from counterpoint.data.schema import Schema, quoted
from counterpoint.data.spaces import TOLERANCE, ActionSpace, Box, Discrete, check_actions
from counterpoint.data.tables.columns import CheckedColumns
from counterpoint.data.tables.state_columns import training_levels

DISTINCT = 0.99
"""Share of the distinct doses that single precision must tell apart: among thousands of measured doses two are nearly
equal by chance, while a column in a wrong unit loses most of them."""
FEW = 50
"""A numeric action with at most this many distinct values is discrete."""


@dataclass(frozen=True)
class ReadActions:
    """Features of every row's action in the table's own order, and their space, names and coding."""

    features: torch.Tensor
    space: ActionSpace
    names: tuple[str, ...]
    columns: tuple[ActionColumn, ...] = ()


def read_actions(
    columns: CheckedColumns, layout: Layout, needed: np.ndarray, training: np.ndarray, like: Schema | None
) -> ReadActions:
    """Return the actions of the table. Cuts of bins are learned from the training rows; `like` gives a known coding."""
    if like is not None:
        return _alike(columns, layout, needed, like)
    bins = {name: _bins_of(name, layout.bins) for name in layout.action}
    text = [bool(layout.labels) or _holds_labels(columns, name) for name in layout.action]
    _check_bins(layout, text)
    if layout.labels and len(layout.action) > 1:
        raise CounterpointError(
            f"labels name the actions of one column, not of {quoted(layout.action)}; pass one column"
        )
    if layout.actions is not None and any(text):
        return _labelled(columns, layout, needed)
    if not any(text) and not any(bins.values()):
        return _numbers(columns, layout, needed, layout.actions)
    if layout.actions is not None:
        raise CounterpointError("bins make the actions themselves; leave actions away, or the bins")
    coded = [_column(columns, name, bins[name], layout, needed, training) for name in layout.action]
    return coded_actions(columns, coded, needed)


def _alike(columns: CheckedColumns, layout: Layout, needed: np.ndarray, like: Schema) -> ReadActions:
    if like.doses:
        return coded_actions(columns, list(like.doses), needed, like.actions)
    read = _labelled(columns, layout, needed) if layout.labels else _numbers(columns, layout, needed, like.actions)
    return ReadActions(read.features, like.actions, like.action_names)


def _holds_labels(columns: CheckedColumns, name: str) -> bool:
    if columns.holds_stray_text(name):
        columns.measured(name)  # Refuses the column and names the row.
    return columns.holds_labels(name)


def _check_bins(layout: Layout, text: list[bool]) -> None:
    """Refuse bins for a column of words."""
    words = [name for name, is_text in zip(layout.action, text, strict=True) if is_text]
    for bins in layout.bins:
        if bins.column in words or (not bins.column and len(words) == len(layout.action)):
            raise CounterpointError(f"bins are for amounts, and column '{words[0]}' holds words; leave the bins away")


def _bins_of(name: str, bins: tuple[Bins, ...]) -> Bins | None:
    """Return the bins of a column: those that name it, else those that name no column."""
    named = [candidate for candidate in bins if candidate.column == name]
    unnamed = [candidate for candidate in bins if not candidate.column]
    return next(iter(named or unnamed), None)


def _numbers(columns: CheckedColumns, layout: Layout, needed: np.ndarray, space: ActionSpace | None) -> ReadActions:
    names = layout.action
    amounts = np.column_stack([columns.numbers(name, needed) for name in names])
    values = amounts.astype(np.float32)
    vanish = ((values == 0) & (amounts != 0) & needed[:, None]).any(0)
    require(not vanish.any(), f"{quoted(names)} holds doses that single precision makes 0; change the unit")
    merged = any(
        len(np.unique(v[needed])) < DISTINCT * len(np.unique(a[needed]))
        for a, v in zip(amounts.T, values.T, strict=True)
    )
    require(not merged, f"{quoted(names)} holds doses that single precision cannot tell apart; change the unit")
    # Rows that are not needed may lack an action; a valid one is put there, so that row numbers stay the same.
    values[~needed] = values[needed][0] if space is None or needed.any() else _any_of(space, len(names))
    space = _infer(values, names) if space is None else space
    features = torch.from_numpy(values)
    if isinstance(space, Discrete) and len(names) == 1 < space.width:
        check_actions(Discrete.of(list(range(space.count))), features, f"action index in column '{names[0]}'")
        features = space.features(features[:, 0].round().long())
        return ReadActions(features, space, tuple(f"{names[0]}_{i}" for i in range(space.width)))
    check_actions(space, features, f"action in {quoted(names)}")
    return ReadActions(features, space, names)


def _any_of(space: ActionSpace, columns: int) -> tuple[float, ...]:
    """Return some action of a space in the table's columns: its features, or its index."""
    if isinstance(space, Box):
        return space.low
    return space.values[0] if columns == space.width else (0.0,)


def _labelled(columns: CheckedColumns, layout: Layout, needed: np.ndarray) -> ReadActions:
    """Code treatments by name for a declared space: label i is action i."""
    name = layout.action[0]
    space = layout.actions
    if not (isinstance(space, Discrete) and space.count == len(layout.labels)):
        raise CounterpointError(
            f"column '{name}' holds labels; pass labels=[…], one for each action of a Discrete space, or no actions"
        )
    codes = columns.places(name, list(layout.labels), needed)
    names = (name,) if space.width == 1 else tuple(f"{name}_{i}" for i in range(space.width))
    if space == Discrete.one_hot(space.count):
        names = tuple(f"{name}={label}" for label in layout.labels)
    column = ActionColumn(name, labels=layout.labels)
    return ReadActions(space.features(torch.from_numpy(codes)), space, names, (column,))


def _column(
    columns: CheckedColumns, name: str, bins: Bins | None, layout: Layout, needed: np.ndarray, training: np.ndarray
) -> ActionColumn:
    """Return the coding of a column: labels, bins, or the few amounts that it holds."""
    declared = dict(layout.categorical).get(name)
    if layout.labels or declared or columns.holds_labels(name):
        ordered = columns.categories(name)
        labels = layout.labels or declared or ordered or training_levels(columns, name, needed, training)
        return ActionColumn(name, labels=tuple(labels), ordered=bool(ordered and not layout.labels))
    amounts = columns.numbers(name, needed)
    if bins is not None:
        return bins.fit(name, amounts[needed & training])
    distinct = np.unique(amounts[needed])
    if len(distinct) > FEW:
        raise CounterpointError(
            f"column '{name}' has {len(distinct)} different doses beside a column of labels or bins; cut it into bins"
        )
    return ActionColumn(name, doses=tuple(map(float, distinct)))


def coded_actions(
    columns: CheckedColumns, coded: list[ActionColumn], needed: np.ndarray, space: ActionSpace | None = None
) -> ReadActions:
    """Code every column, and combine the codes to actions of the product space or of a given space."""
    index = np.zeros(len(columns), dtype=np.int64)
    for column in coded:
        index = index * column.count + _codes(columns, column, needed)
    space = space if isinstance(space, Discrete) else product_space(coded)
    names = tuple(name for column in coded for name in column.feature_names())
    return ReadActions(space.features(torch.from_numpy(index)), space, names, tuple(coded))


def _codes(columns: CheckedColumns, column: ActionColumn, needed: np.ndarray) -> np.ndarray:
    if column.labels:
        return np.where(needed, columns.places(column.name, list(column.labels), needed), 0)
    amounts = columns.numbers(column.name, needed)
    negative = needed & (amounts < 0)
    if column.zero and negative.any():
        raise CounterpointError(
            f"column '{column.name}' has a negative dose at row {negative.argmax()}, below no dose; correct the row"
        )
    codes = np.where(needed, column.codes(np.where(needed, amounts, 0.0)), 0)
    if (codes < 0).any():
        raise CounterpointError(
            f"column '{column.name}' has a dose at row {(codes < 0).argmax()} that is none of the known ones"
            f" ({(codes < 0).sum()} such rows); correct the rows or cut the doses into bins"
        )
    return codes


def _infer(values: np.ndarray, names: tuple[str, ...]) -> ActionSpace:
    distinct = _distinct(values)
    close = len(values.T) == 1 and len(distinct) <= FEW and (np.diff(distinct[:, 0]) <= TOLERANCE).any()
    require(not close, f"two doses in {quoted(names)} are closer than {TOLERANCE:g}; change the unit or round them")
    if len(distinct) <= FEW:
        return Discrete(tuple(tuple(map(float, row)) for row in distinct))
    return Box(tuple(map(float, values.min(0))), tuple(map(float, values.max(0))))


def _distinct(values: np.ndarray) -> np.ndarray:
    """Return the distinct rows in lexicographic order, column by column: sorting whole rows is ten times slower."""
    rows = np.zeros(len(values), dtype=np.int64)
    for column in values.T:
        codes = np.unique(column, return_inverse=True)[1]
        rows = np.unique(rows * (codes.max() + 1) + codes, return_inverse=True)[1]
    return values[np.unique(rows, return_index=True)[1]]
