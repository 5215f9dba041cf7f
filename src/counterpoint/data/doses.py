"""Doses and treatments of a user's table as actions: labels, bins of amounts, and products of several columns."""

import math
from dataclasses import dataclass
from itertools import product

import numpy as np

from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.settings import Finite, check_settings
from counterpoint.data.spaces import Discrete

MOST_ACTIONS = 1000
"""A product of several columns with more actions than this is surely not meant."""


@dataclass(frozen=True)
class Bins:
    """Cuts a column of amounts into a few doses: by quantiles of the training subjects' doses, or where you say.

    Bin k holds the amounts from cut k−1 (included) to cut k (excluded); what stands for it is the median dose in it.
    """

    column: str = ""
    """The action column; empty for every numeric one that no other `Bins` names."""
    count: int = 5
    """Bins, that of no dose among them; fewer where doses tie."""
    cuts: tuple[Finite, ...] = ()
    """Where to cut instead of at quantiles, in rising order."""
    zero: bool = True
    """Whether no dose (0) is a bin of its own, as in "none, and four quartiles of what was given"."""

    def __post_init__(self) -> None:
        check_settings(self)
        require(
            isinstance(self.count, int) and 2 <= self.count <= MOST_ACTIONS,
            f"{self.count} bins; use 2 to {MOST_ACTIONS}",
        )
        require(
            list(self.cuts) == sorted(set(self.cuts)),
            f"cuts={self.cuts} do not rise; give different numbers from the lowest to the highest",
        )

    def fit(self, name: str, amounts: np.ndarray) -> "ActionColumn":
        """The cuts and doses of one column, from the amounts given to training subjects."""
        zero = self.zero and bool((amounts == 0).any())
        given = amounts[amounts != 0] if zero else amounts
        if zero and (given < 0).any():
            raise CounterpointError(
                f"column '{name}' has negative doses, so no dose is not its lowest bin; use Bins(zero=False)"
            )
        cuts = np.array(self.cuts or _quantiles(given, self.count - zero))
        used = np.unique(np.searchsorted(cuts, given, side="right"))
        cuts = cuts[used[1:] - 1]  # Bins that nobody was given are left out.
        bins = np.searchsorted(cuts, given, side="right")
        doses = [0.0] * zero + [float(np.median(given[bins == b])) for b in range(len(used))]
        require(
            len(doses) > 1, f"column '{name}' has one dose only, so nothing can be chosen; drop it or cut elsewhere"
        )
        return ActionColumn(name, cuts=tuple(map(float, cuts)), zero=zero, doses=tuple(doses))


def _quantiles(given: np.ndarray, bins: int) -> np.ndarray:
    """Cuts that make equal shares, ties aside; the lowest amount is no cut, for nothing lies below it."""
    if not len(given):
        return np.zeros(0)
    cuts = np.unique(np.quantile(given, np.arange(1, bins) / bins))
    return cuts[cuts > given.min()]


@dataclass(frozen=True)
class ActionColumn:
    """One action column of a user's table: what its values become, and what an action says in it."""

    name: str
    labels: tuple[str, ...] = ()
    """Treatments by name; code i is labels[i]."""
    ordered: bool = False
    """Whether the labels stand in an order, as none < low < high; else every one is a feature of its own."""
    cuts: tuple[float, ...] = ()
    zero: bool = False
    doses: tuple[float, ...] = ()
    """The dose that stands for each bin, or each of a few amounts where there are no cuts."""

    @property
    def count(self) -> int:
        return len(self.labels) or len(self.doses)

    def codes(self, amounts: np.ndarray) -> np.ndarray:
        """The bin of each amount, or the place of each of a few amounts (−1 where it is none of them)."""
        if self.cuts or self.zero:
            bins = np.searchsorted(np.array(self.cuts), amounts, side="right") + self.zero
            return np.where(amounts == 0, 0, bins) if self.zero else bins
        near = np.abs(amounts[:, None] - np.array(self.doses))
        same = near.min(1) <= 1e-5 * np.maximum(1, np.abs(amounts))
        return np.where(same, near.argmin(1), -1)

    def features(self) -> list[tuple[float, ...]]:
        """What describes each of the column's values to a model."""
        if self.labels and not self.ordered:
            return list(Discrete.one_hot(len(self.labels)).values)
        return [(float(i),) for i in range(len(self.labels))] if self.labels else [(dose,) for dose in self.doses]

    def feature_names(self) -> list[str]:
        one_hot = self.labels and not self.ordered
        return [f"{self.name}={label}" for label in self.labels] if one_hot else [self.name]

    def says(self, code: int) -> str | float:
        return self.labels[code] if self.labels else self.doses[code]


def product_space(columns: list[ActionColumn]) -> Discrete:
    """Every combination of the columns' values; the last column changes fastest."""
    count = math.prod(column.count for column in columns)
    require(
        count <= MOST_ACTIONS,
        f"{' × '.join(str(column.count) for column in columns)} actions are too many to learn from; use fewer Bins",
    )
    return Discrete(tuple(tuple(x for part in row for x in part) for row in product(*(c.features() for c in columns))))
