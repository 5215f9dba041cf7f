"""Parametrisation of the columns' equations: the change modelled (difference, ratio, log ratio) and the features."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.settings import Count, Finite, check_settings
from counterpoint.data.jobs import Categories, scaled_doses, spread_levels
from counterpoint.data.spaces import constant

Change = Literal["difference", "ratio", "log ratio"]
"""y = s' − s,    y = s'/s − 1,    y = ln s' − ln s; the last two for columns that are always positive."""
CHANGES: tuple[Change, ...] = get_args(Change)
SMALLEST = 1e-3
"""A ratio never takes a column below this share of itself: what is positive stays positive."""
LEAK = 1e-3
"""Slope beyond the limits: a next value still rises with its noise, as abduction needs, and goes nowhere."""
TINY = 1e-30


@dataclass(frozen=True)
class EquationForm:
    """Which columns of a state have an equation, and what each equation models."""

    changes: tuple[Change, ...]
    """One for each column of the state; those of columns without an equation are not read."""
    categories: Categories = ()
    unpredicted: tuple[Count, ...] = ()
    """Columns without an equation, which are inputs only: static ones, and those carried over from another."""
    scales: tuple[tuple[Count, Count], ...] = ()
    """(column of state and action, state column) of doses that act per a static column, as a weight, and of columns
    that remember such doses."""
    limits: tuple[tuple[Finite, Finite], ...] = ()
    """Lowest and highest next value of every moving column; () for no limits."""
    combined: bool = False
    """Whether part of the noise is proportional to the amount, in columns whose change is a difference."""

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def moving(self) -> list[int]:
        """The columns that have an equation."""
        return [column for column in range(len(self.changes)) if column not in self.unpredicted]

    @property
    def relative(self) -> tuple[bool, ...]:
        """Columns whose change is a ratio; their logarithm is the feature."""
        return tuple(change != "difference" and i not in self.unpredicted for i, change in enumerate(self.changes))

    @property
    def additive(self) -> tuple[float, ...]:
        """1 for every moving column whose change is a difference, else 0."""
        return tuple(float(self.changes[column] == "difference") for column in self.moving)

    def of_moving(self, state: Float[Tensor, "*n s"]) -> Float[Tensor, "*n d"]:
        """The columns that have an equation; does not synchronise with the GPU."""
        return state.index_select(-1, constant(tuple(self.moving), state.device)) if self.unpredicted else state

    def features(self, inputs: Float[Tensor, "*n c"]) -> Float[Tensor, "*n f"]:
        """Features of state and action, before standardisation."""
        inputs = scaled_doses(inputs, self.scales)
        if any(self.relative):
            rest = inputs.shape[-1] - len(self.changes)
            logged = constant((*self.relative, *[False] * rest), inputs.device)
            inputs = torch.where(logged, inputs.clamp(min=TINY).log(), inputs)
        return spread_levels(inputs, self.categories)

    def change(self, state: Float[Tensor, "*n s"], after: Float[Tensor, "*n s"]) -> Float[Tensor, "*n d"]:
        """y of every moving column."""
        before, after = self.of_moving(state), self.of_moving(after)
        plain = after - before
        if not any(self.relative):
            return plain
        ratio, logarithm = self._kinds(state)
        positive = before.clamp(min=TINY)
        logged = after.clamp(min=TINY).log() - positive.log()
        return torch.where(logarithm, logged, torch.where(ratio, plain / positive, plain))

    def after(self, state: Float[Tensor, "*n s"], y: Float[Tensor, "*n d"]) -> Float[Tensor, "*n s"]:
        """The next state that these changes lead to; columns without an equation stay as they are."""
        before = self.of_moving(state)
        moved = before + y
        if any(self.relative):
            ratio, logarithm = self._kinds(state)
            grown = torch.where(logarithm, y.clamp(max=80).exp(), (1 + y).clamp(min=SMALLEST))
            moved = torch.where(ratio | logarithm, before * grown, moved)
        if self.limits:
            low, high = (constant(side, state.device) for side in zip(*self.limits, strict=True))
            held = moved.clamp(low, high)
            moved = held + LEAK * (moved - held)
        if not self.unpredicted:
            return moved
        return state.contiguous().index_copy(-1, constant(tuple(self.moving), state.device), moved)

    def log_slope(self, state: Float[Tensor, "*n s"], after: Float[Tensor, "*n s"]) -> Float[Tensor, "*n d"]:
        """log dy/ds': what a density of y is multiplied by to be one of the column itself."""
        ratio, logarithm = self._kinds(state)
        before, after = (self.of_moving(x).clamp(min=TINY).log() for x in (state, after))
        return torch.where(logarithm, -after, torch.where(ratio, -before, torch.zeros_like(before)))

    def _kinds(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Which moving columns are ratios, and which are log ratios."""
        changes = [self.changes[column] for column in self.moving]
        ratio, logarithm = (tuple(change == kind for change in changes) for kind in ("ratio", "log ratio"))
        return constant(ratio, state.device), constant(logarithm, state.device)
