"""Actions that the page shows: all of a finite space, or combinations of a few quantiles of continuous doses."""

from dataclasses import dataclass
from itertools import product

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.data.schema import Schema
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.page.cells import number, quantiles, tail

MOST_DOSES = 2
"""Continuous doses whose low, median and high quantiles are combined; of the others only the median is used."""


@dataclass(frozen=True)
class ActionGrid:
    """Grid of actions that are pairs of doses: action i is in cell (i // columns, i % columns)."""

    down: str
    across: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Choices:
    """Names and features of actions."""

    labels: tuple[str, ...]
    features: Float[Tensor, "actions a"]
    grid: ActionGrid | None = None

    def __len__(self) -> int:
        return len(self.labels)


def choices_of(rows: Transitions) -> Choices | None:
    """The actions of a table; None if the quantiles of its doses could show those of a single subject."""
    if isinstance(rows.actions, Discrete):
        return Choices(tuple(rows.schema.labels(units=True)), rows.actions.table(), grid_of(rows.schema))
    level = tail(len(rows.subject.unique()))
    if level is None:
        return None
    doses = [sorted(set(quantiles(dose, level, 0.5, 1 - level))) for dose in rows.action.T[:MOST_DOSES]]
    doses += [quantiles(dose, 0.5) for dose in rows.action.T[MOST_DOSES:]]
    pairs = list(product(*doses))
    labels, units = [], dict(rows.schema.action_units)
    for pair in pairs:
        doses_of_pair = zip(rows.action_names, pair, strict=True)
        labels.append(
            ", ".join(f"{name} {number(dose)} {units.get(name, '')}".rstrip() for name, dose in doses_of_pair)
        )
    return Choices(tuple(labels), torch.tensor(pairs, dtype=rows.action.dtype))


def grid_of(schema: Schema) -> ActionGrid | None:
    """The grid of two action columns whose values are all combined, the last changing fastest; None for others."""
    choices = schema.choices()
    if len(choices[0]) != 2:
        return None
    down, across = choices[0]
    lines, columns = ([*dict.fromkeys(choice[name] for choice in choices)] for name in (down, across))
    if [tuple(choice.values()) for choice in choices] != list(product(lines, columns)):
        return None
    names = with_unit(schema, down), with_unit(schema, across)
    return ActionGrid(*names, tuple(map(_label, lines)), tuple(map(_label, columns)))


def with_unit(schema: Schema, name: str) -> str:
    """Name of a dose with its unit, where one was declared."""
    unit = dict(schema.action_units).get(name, "")
    return f"{name} ({unit})" if unit else name


def _label(value: str | float) -> str:
    return value if isinstance(value, str) else number(value)


def nearest(choices: Choices, action: Float[Tensor, "n a"]) -> Int[Tensor, " n"]:
    """Number of the choice nearest to each action, in units of the choices' standard deviation."""
    scale = choices.features.std(0).nan_to_num().clamp(min=1e-8)
    return torch.cdist(action / scale, choices.features / scale).argmin(1)
