"""The action columns of a user's table as actions: numbers as they are, labels, bins, products of several columns."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from counterpoint.core.errors import CounterpointError, require
from counterpoint.data.doses import ActionColumn, Bins, product_space
from counterpoint.data.schema import Schema
from counterpoint.data.spaces import TOLERANCE, ActionSpace, Box, Discrete, check_actions
from counterpoint.data.tables.columns import CheckedColumns, quoted
from counterpoint.data.tables.training_only import training_levels

if TYPE_CHECKING:
    from counterpoint.data.tables.reader import Reader

FEW = 50
"""A numeric action with at most this many distinct values is taken to be discrete."""


@dataclass(frozen=True)
class ReadActions:
    """The features of every row's action in the table's row order, their space, names, and how they were coded."""

    features: torch.Tensor
    space: ActionSpace
    names: tuple[str, ...]
    columns: tuple[ActionColumn, ...] = ()


def read_actions(
    columns: CheckedColumns, how: "Reader", needed: np.ndarray, training: np.ndarray, like: Schema | None
) -> ReadActions:
    """The table's actions; the cuts of bins are learned from the training rows."""
    if like is not None:
        return _alike(columns, how, needed, like)
    bins = {name: _bins_of(name, how.bins) for name in how.action}
    text = [bool(how.labels) or _holds_labels(columns, name) for name in how.action]
    _check_bins(how, text)
    if how.labels and len(how.action) > 1:
        raise CounterpointError(f"labels name the actions of one column, not of {quoted(how.action)}; pass one column")
    if how.actions is not None and any(text):
        return _labelled(columns, how, needed)
    if not any(text) and not any(bins.values()):
        return _numbers(columns, how, needed, how.actions)
    if how.actions is not None:
        raise CounterpointError("bins make the actions themselves; leave actions away, or the bins")
    coded = [_column(columns, name, bins[name], how, needed, training) for name in how.action]
    return coded_actions(columns, coded, needed)


def _alike(columns: CheckedColumns, how: "Reader", needed: np.ndarray, like: Schema) -> ReadActions:
    if like.doses:
        return coded_actions(columns, list(like.doses), needed, like.actions)
    read = _labelled(columns, how, needed) if how.labels else _numbers(columns, how, needed, like.actions)
    return ReadActions(read.features, like.actions, like.action_names)


def _holds_labels(columns: CheckedColumns, name: str) -> bool:
    if columns.holds_stray_text(name):
        columns.measured(name)  # Says which row is not a number.
    return columns.holds_labels(name)


def _check_bins(how: "Reader", text: list[bool]) -> None:
    """Words have no amounts to cut."""
    words = [name for name, is_text in zip(how.action, text, strict=True) if is_text]
    for bins in how.bins:
        if bins.column in words or (not bins.column and len(words) == len(how.action)):
            raise CounterpointError(f"bins are for amounts, and column '{words[0]}' holds words; leave the bins away")


def _bins_of(name: str, bins: tuple[Bins, ...]) -> Bins | None:
    own = [each for each in bins if each.column == name]
    return next(iter(own or [each for each in bins if not each.column]), None)


def _numbers(columns: CheckedColumns, how: "Reader", needed: np.ndarray, space: ActionSpace | None) -> ReadActions:
    names = how.action
    amounts = np.column_stack([columns.numbers(name, needed) for name in names])
    values = amounts.astype(np.float32)
    vanish = ((values == 0) & (amounts != 0) & needed[:, None]).any(0)
    require(not vanish.any(), f"{quoted(names)} holds doses that single precision makes 0; change the unit")
    merged = any(
        len(np.unique(a[needed])) > len(np.unique(v[needed])) for a, v in zip(amounts.T, values.T, strict=True)
    )
    require(not merged, f"{quoted(names)} holds doses that single precision cannot tell apart; change the unit")
    # Rows that are not needed may lack an action: any valid one keeps the row numbers right.
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
    """An action of a space as the columns of a table say it: its features, or its index."""
    if isinstance(space, Box):
        return space.low
    return space.values[0] if columns == space.width else (0.0,)


def _labelled(columns: CheckedColumns, how: "Reader", needed: np.ndarray) -> ReadActions:
    """Treatments by name for a space that is given: the features of action i stand for label i."""
    name, space = how.action[0], how.actions
    if not (isinstance(space, Discrete) and space.count == len(how.labels)):
        raise CounterpointError(
            f"column '{name}' holds labels; pass labels=[…], one for each action of a Discrete space, or no actions"
        )
    codes = columns.places(name, list(how.labels), needed)[0]
    names = (name,) if space.width == 1 else tuple(f"{name}_{i}" for i in range(space.width))
    if space == Discrete.one_hot(space.count):
        names = tuple(f"{name}={label}" for label in how.labels)
    said = ActionColumn(name, labels=how.labels)
    return ReadActions(space.features(torch.from_numpy(codes)), space, names, (said,))


def _column(
    columns: CheckedColumns, name: str, bins: Bins | None, how: "Reader", needed: np.ndarray, training: np.ndarray
) -> ActionColumn:
    """How one of several columns is coded: labels, bins, or the few amounts it holds."""
    declared = dict(how.categorical).get(name)
    if how.labels or declared or columns.holds_labels(name):
        ordered = columns.categories(name)
        labels = how.labels or declared or ordered or training_levels(columns, name, needed, training)
        return ActionColumn(name, labels=tuple(labels), ordered=bool(ordered and not how.labels))
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
    """Every column's value as a code, and the codes together as one action of the product or of a given space."""
    index = np.zeros(len(columns), dtype=np.int64)
    for column in coded:
        index = index * column.count + _codes(columns, column, needed)
    space = space if isinstance(space, Discrete) else product_space(coded)
    names = tuple(name for column in coded for name in column.feature_names())
    return ReadActions(space.features(torch.from_numpy(index)), space, names, tuple(coded))


def _codes(columns: CheckedColumns, column: ActionColumn, needed: np.ndarray) -> np.ndarray:
    if column.labels:
        return np.where(needed, columns.places(column.name, list(column.labels), needed)[0], 0)
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
    """The distinct rows in lexicographic order; column by column, as sorting whole rows is ten times slower."""
    rows = np.zeros(len(values), dtype=np.int64)
    for column in values.T:
        codes = np.unique(column, return_inverse=True)[1]
        rows = np.unique(rows * (codes.max() + 1) + codes, return_inverse=True)[1]
    return values[np.unique(rows, return_index=True)[1]]
