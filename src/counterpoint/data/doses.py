"""Coding of a table's treatments as actions: labels, bins of amounts, and products of several columns."""

import math
from dataclasses import dataclass
from itertools import chain, product

import numpy as np

from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.settings import Finite, check_settings
from counterpoint.data.spaces import Discrete

MOST_ACTIONS = 1000
"""Largest number of actions in a product of several columns."""
WIDE = 3.0
"""Bins whose doses differ by more than this factor are noted."""


@dataclass(frozen=True)
class Bins:
    """Cut a column of amounts into a few doses, by quantiles of the training subjects' doses or at given cuts.

    Bin k holds the amounts from cut k−1 (included) to cut k (excluded) and is represented by its median dose.
    """

    column: str = ""
    """The action column; empty for every numeric one that no other `Bins` names."""
    count: int = 5
    """Number of bins, including that of no dose; fewer where doses tie."""
    cuts: tuple[Finite, ...] = ()
    """Where to cut instead of at quantiles, in rising order."""
    zero: bool = True
    """Whether no dose (0) is a bin of its own."""

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
        """Learn the cuts and doses of one column from the amounts that training subjects were given."""
        zero = self.zero and bool((amounts == 0).any())
        doses = amounts[amounts != 0] if zero else amounts
        if zero and (doses < 0).any():
            raise CounterpointError(
                f"column '{name}' has negative doses, so no dose is not its lowest bin; correct these rows, or use"
                " Bins(zero=False) in Python"
            )
        cuts = np.array(self.cuts or _quantiles(doses, self.count - zero))
        used = np.unique(np.searchsorted(cuts, doses, side="right"))
        cuts = cuts[used[1:] - 1]  # Empty bins are left out.
        bins = np.searchsorted(cuts, doses, side="right")
        members = [doses[bins == b] for b in range(len(used))]
        values = [0.0] * zero + [float(np.median(part)) for part in members]
        spans = [(0.0, 0.0)] * zero + [(float(part.min()), float(part.max())) for part in members]
        require(
            len(values) > 1, f"column '{name}' has one dose only, so nothing can be chosen; drop it or cut elsewhere"
        )
        return ActionColumn(name, cuts=tuple(map(float, cuts)), zero=zero, doses=tuple(values), spans=tuple(spans))


def _quantiles(doses: np.ndarray, bins: int) -> np.ndarray:
    """Return cuts at equal shares, without the lowest amount, below which there is nothing."""
    if not len(doses):
        return np.zeros(0)
    cuts = np.unique(np.quantile(doses, np.arange(1, bins) / bins))
    return cuts[cuts > doses.min()]


@dataclass(frozen=True)
class ActionColumn:
    """Coding of one action column of a user's table."""

    name: str
    labels: tuple[str, ...] = ()
    """Names of treatments; code i is labels[i]."""
    ordered: bool = False
    """Whether the labels are ordered, as none < low < high; otherwise they are one-hot features."""
    cuts: tuple[float, ...] = ()
    zero: bool = False
    doses: tuple[float, ...] = ()
    """The dose that represents each bin, or the few amounts of a column without cuts."""
    spans: tuple[tuple[float, float], ...] = ()
    """Smallest and largest dose of the training subjects in each bin."""

    @property
    def count(self) -> int:
        """Number of actions."""
        return len(self.labels) or len(self.doses)

    def codes(self, amounts: np.ndarray) -> np.ndarray:
        """Return the bin of each amount, or the index of each of a few amounts (−1 where it is none of them)."""
        if self.cuts or self.zero:
            bins = np.searchsorted(np.array(self.cuts), amounts, side="right") + self.zero
            return np.where(amounts == 0, 0, bins) if self.zero else bins
        near = np.abs(amounts[:, None] - np.array(self.doses))
        same = near.min(1) <= 1e-5 * np.maximum(1, np.abs(amounts))
        return np.where(same, near.argmin(1), -1)

    def features(self) -> list[tuple[float, ...]]:
        """Return the features of each code."""
        if self.labels and not self.ordered:
            return list(Discrete.one_hot(len(self.labels)).values)
        return [(float(i),) for i in range(len(self.labels))] if self.labels else [(dose,) for dose in self.doses]

    def feature_names(self) -> list[str]:
        """Return the names of the features."""
        one_hot = self.labels and not self.ordered
        return [f"{self.name}={label}" for label in self.labels] if one_hot else [self.name]

    def value(self, code: int) -> str | float:
        """Return the label or the dose of a code."""
        return self.labels[code] if self.labels else self.doses[code]

    def in_words(self, code: int) -> str:
        """A treatment's name, or a dose with the range that it stands for."""
        if self.labels:
            return self.labels[code]
        low, high = self.spans[code] if self.spans else (0.0, 0.0)
        ranged = f" ({low:.3g}–{high:.3g})" if low < high else ""
        return f"{self.doses[code]:g}{ranged}"

    def wide(self) -> list[str]:
        """A note where one dose stands for doses that differ more than `WIDE`-fold, with better cuts.

        A bin that begins at 0 is left out: no cut makes its doses similar.
        """
        broad = [(low, high) for low, high in self.spans if low > 0 and high > WIDE * low]
        if not broad:
            return []
        cuts, top = list(self.cuts), self.spans[-1][1]
        for low, high in broad:
            pieces = math.ceil(math.log(high / low) / math.log(WIDE))
            cuts += [float(f"{low * (high / low) ** (k / pieces):.2g}") for k in range(1, pieces)]
        better = ",".join(f"{cut:.3g}" for cut in sorted(set(cuts)) if cut < top)
        bins = "bin stands" if len(broad) == 1 else "bins stand"
        return [
            f"{len(broad)} {bins} for doses of '{self.name}' that differ more than {WIDE:g}-fold, and each is given as"
            f" one dose; cut them finer: --bins {self.name}={better}"
        ]


def product_space(columns: list[ActionColumn]) -> Discrete:
    """Return the space of all combinations of the columns' codes; the last column changes fastest."""
    count = math.prod(column.count for column in columns)
    require(
        count <= MOST_ACTIONS,
        f"{' × '.join(str(column.count) for column in columns)} actions are too many to learn from; use fewer Bins",
    )
    combinations = product(*(column.features() for column in columns))
    return Discrete(tuple(tuple(chain.from_iterable(row)) for row in combinations))
