"""The actions that a page speaks of: all of a finite space, a few doses of a continuous one; as a grid where they are
pairs of two doses."""

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
"""Continuous doses of which low, middle and high are combined."""


@dataclass(frozen=True)
class ActionGrid:
    """Actions that are pairs: action i stands in cell (i // columns, i % columns)."""

    down: str
    across: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Choices:
    """Actions by name and by features."""

    labels: tuple[str, ...]
    features: Float[Tensor, "actions a"]
    grid: ActionGrid | None = None

    def __len__(self) -> int:
        return len(self.labels)


def choices_of(rows: Transitions) -> Choices | None:
    """What a page asks the model about; none where no dose can be named without a patient's."""
    if isinstance(rows.actions, Discrete):
        return Choices(tuple(rows.schema.labels()), rows.actions.table(), grid_of(rows.schema))
    level = tail(len(rows.subject.unique()))
    if level is None:
        return None
    doses = [sorted(set(quantiles(own, level, 0.5, 1 - level))) for own in rows.action.T[:MOST_DOSES]]
    doses += [quantiles(own, 0.5) for own in rows.action.T[MOST_DOSES:]]
    pairs = list(product(*doses))
    said = [", ".join(f"{name} {number(dose)}" for name, dose in zip(rows.action_names, pair)) for pair in pairs]  # noqa: B905
    return Choices(tuple(said), torch.tensor(pairs, dtype=rows.action.dtype))


def grid_of(schema: Schema) -> ActionGrid | None:
    """Two action columns whose values are all combined, the last changing fastest."""
    choices = schema.choices()
    if len(choices[0]) != 2:
        return None
    down, across = choices[0]
    lines, columns = ([*dict.fromkeys(choice[name] for choice in choices)] for name in (down, across))
    if [tuple(choice.values()) for choice in choices] != list(product(lines, columns)):
        return None
    return ActionGrid(down, across, tuple(map(_said, lines)), tuple(map(_said, columns)))


def _said(value: str | float) -> str:
    return value if isinstance(value, str) else number(value)


def nearest(choices: Choices, action: Float[Tensor, "n a"]) -> Int[Tensor, " n"]:
    """The place of the choice that is nearest to each action, in units of the choices' spread."""
    scale = choices.features.std(0).nan_to_num().clamp(min=1e-8)
    return torch.cdist(action / scale, choices.features / scale).argmin(1)
