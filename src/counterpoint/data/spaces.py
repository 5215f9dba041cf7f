"""Action spaces: a finite list of treatments, or a box of doses."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.settings import check_settings, checked

TOLERANCE = 1e-5
LARGEST = 1e30
"""Largest absolute feature; beyond it single precision overflows."""


@dataclass(frozen=True)
class Discrete:
    """A finite action space; `values[i]` are the features of action `i`.

    Use `Discrete.of([0, 0.1, 0.2])` for ordered doses and `Discrete.one_hot(4)` for unordered treatments.
    """

    values: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        check_settings(self)
        _check_values(self.values)

    @classmethod
    @checked
    def of(cls, values: "list[float] | tuple[float, ...]") -> "Discrete":
        """Return a space of doses with one feature each."""
        return cls(tuple((_number(value),) for value in values))

    @classmethod
    @checked
    def one_hot(cls, count: int) -> "Discrete":
        """Return a space of unordered treatments."""
        require(isinstance(count, int) and count > 0, f"{count} treatments; give a whole number of 1 or more")
        return cls(tuple(tuple(float(i == j) for j in range(count)) for i in range(count)))

    @property
    def count(self) -> int:
        return len(self.values)

    @property
    def width(self) -> int:
        return len(self.values[0])

    @property
    def low(self) -> tuple[float, ...]:
        return tuple(min(column) for column in zip(*self.values, strict=True))

    @property
    def high(self) -> tuple[float, ...]:
        return tuple(max(column) for column in zip(*self.values, strict=True))

    def table(self, like: Tensor | None = None) -> Float[Tensor, "count a"]:
        """Return the features of all actions, on the device of `like`."""
        return constant(self.values, torch.device("cpu") if like is None else like.device).float()

    def features(self, index: Int[Tensor, "*n"]) -> Float[Tensor, "*n a"]:
        return self.table(index)[index]

    def index(self, features: Float[Tensor, "n a"]) -> Int[Tensor, " n"]:
        """Return the action with these features; -1 where there is none."""
        # cdist needs n × count numbers only, but ignores NaN.
        nearest = torch.cdist(features, self.table(features).to(features.dtype), p=float("inf")).min(1)
        matches = (nearest.values <= TOLERANCE) & ~features.isnan().any(1)
        return torch.where(matches, nearest.indices, -1)

    def contains(self, features: Float[Tensor, "n a"]) -> Bool[Tensor, " n"]:
        return self.index(features) >= 0

    def sample(self, count: int, generator: torch.Generator) -> Float[Tensor, "n a"]:
        return self.table()[torch.randint(self.count, (count,), generator=generator)]


def nearest(actions: Discrete, features: Float[Tensor, "*n a"]) -> Float[Tensor, "*n a"]:
    """Return the action whose features t are nearest to f; for one-hot treatments that of the largest feature.

    ‖f − t‖² is least where f·t − ‖t‖²/2 is largest, which is one matrix product. Features
    are scaled by the ranges of the columns, so that columns with large units do not dominate in single precision.
    """
    table, near, length = _measured(actions, features.device, features.dtype)
    nearness = torch.addmm(length, features.reshape(-1, near.shape[0]), near)
    return table.index_select(0, nearness.argmax(-1)).view(features.shape)


@lru_cache(maxsize=64)
def _measured(actions: Discrete, device: torch.device, kind: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return the features t, and with the ranges c of the columns t/c² and −‖t/c‖²/2."""
    table, unit = (torch.tensor(values, device=device).to(kind) for values in (actions.values, _units(actions)))
    near = table * unit
    return table, (near * unit).mT.contiguous(), -near.square().sum(-1) / 2


@lru_cache(maxsize=64)
def _units(actions: Discrete) -> tuple[float, ...]:
    """Return one over the range of every column; 1 for a constant column."""
    return tuple(1 / (high - low) if high > low else 1.0 for low, high in zip(actions.low, actions.high, strict=True))


@dataclass(frozen=True)
class Box:
    """A continuous action space: every dose between `low` and `high`, column by column."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self) -> None:
        check_settings(self)
        bounds = [*self.low, *self.high]
        require(
            0 < len(self.low) == len(self.high) and all(math.isfinite(bound) for bound in bounds),
            f"Box({self.low}, {self.high}) has no bounds; give one finite low and high for each column",
        )
        require(
            all(low <= high for low, high in zip(self.low, self.high, strict=True)),
            f"Box({self.low}, {self.high}) has a low above its high; exchange them",
        )

    @property
    def width(self) -> int:
        return len(self.low)

    def index(self, features: Float[Tensor, "n a"]) -> Int[Tensor, " n"]:
        """Return -1 everywhere: continuous actions have no index."""
        return torch.full((len(features),), -1, dtype=torch.long, device=features.device)

    def contains(self, features: Float[Tensor, "n a"]) -> Bool[Tensor, " n"]:
        low, high = (torch.tensor(bound, device=features.device) for bound in (self.low, self.high))
        return ((features >= low - TOLERANCE) & (features <= high + TOLERANCE)).all(1)

    def sample(self, count: int, generator: torch.Generator) -> Float[Tensor, "n a"]:
        low, high = torch.tensor(self.low), torch.tensor(self.high)
        return low + (high - low) * torch.rand(count, self.width, generator=generator)


ActionSpace = Discrete | Box


def constant(values: tuple[Any, ...], device: torch.device) -> Tensor:
    """Return a cached tensor on a device: copying it there at every step would synchronise the GPU."""
    return _constant(values, type(values[0]) if values else float, device)


@lru_cache(maxsize=256)
def _constant(values: tuple[Any, ...], kind: type, device: torch.device) -> Tensor:
    """The type is part of the cache's key, because (0,) and (False,) are equal."""
    return torch.tensor(values, device=device)


def places(columns: Sequence[int], device: torch.device) -> Int[Tensor, " c"]:
    """Return a cached index tensor on a device."""
    return constant(tuple(columns), device).long()


def check_actions(space: ActionSpace, action: Float[Tensor, "n a"], what: str = "action") -> None:
    """Refuse actions outside the space; the message names the first row."""
    if action.shape[1] != space.width:
        raise CounterpointError(
            f"{what} has {action.shape[1]} columns but the action space has {space.width}; pass one value per column"
        )
    outside = (~space.contains(action)).nonzero()
    if len(outside):
        row = int(outside[0])
        raise CounterpointError(
            f"{what} {action[row].tolist()} at row {row} is outside the action space {describe(space)}"
            f" ({len(outside)} such rows); correct the rows or widen the space"
        )


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise CounterpointError(f"{value!r} is not a number that an action can be; give numbers") from None


def _check_values(values: tuple[tuple[float, ...], ...]) -> None:
    rows = [tuple(map(_number, value)) if isinstance(value, tuple) else () for value in values]
    require(len(rows) > 0, "Discrete has no actions; give at least one")
    require(
        len({len(row) for row in rows}) == 1 and len(rows[0]) > 0,
        "Discrete describes its actions by different numbers of features; give each action the same",
    )
    wrong = [row for row in rows if not all(math.isfinite(x) and abs(x) < LARGEST for x in row)]
    require(not wrong, f"action {wrong[:1]} of Discrete is not finite; give finite numbers")
    apart = torch.cdist(*[torch.tensor(rows, dtype=torch.double)] * 2, p=float("inf")).fill_diagonal_(torch.inf)
    close = [row for row, least in zip(rows, apart.amin(1).tolist(), strict=True) if least <= TOLERANCE]
    require(not close, f"action {close[:1]} stands in Discrete twice, or too close to another; name each once")


def _alike(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return all(abs(a - b) <= TOLERANCE for a, b in zip(one, other, strict=True))


def same_space(one: ActionSpace, other: ActionSpace) -> bool:
    """Return whether two spaces are equal, rounding aside."""
    if type(one) is not type(other) or one.width != other.width:
        return False
    if isinstance(one, Discrete) and isinstance(other, Discrete):
        return one.count == other.count and all(map(_alike, one.values, other.values))
    return _alike(one.low, other.low) and _alike(one.high, other.high)


def describe(space: ActionSpace) -> str:
    """Return a short text for an action space."""
    if isinstance(space, Box):
        return f"[{', '.join(map(str, space.low))}]…[{', '.join(map(str, space.high))}]"
    shown = [value[0] if len(value) == 1 else value for value in space.values[:12]]
    return f"{{{', '.join(map(str, shown))}{', …' if space.count > 12 else ''}}}"
