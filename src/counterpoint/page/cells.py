"""What a page may say of patients: counts of ten or more, numbers rounded to three digits, no row and no name."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.data.transitions import Transitions

SMALLEST = 10
"""Subjects that a shown cell has at least, where it has any."""
FEW = f"<{SMALLEST}"
TAILS = (0.05, 0.1, 0.25)


@dataclass(frozen=True)
class PageTable:
    """Text in rows; the first cell of a row names it."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: tuple[int, ...] = (0,)
    """Columns of words; the others hold numbers."""
    note: str = ""


@dataclass(frozen=True)
class Heat:
    """A table of shares, each shaded by its size from 0 to 9; a cell without a share has no shade."""

    caption: str
    across: str
    down: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    cells: tuple[tuple[tuple[str, int | None], ...], ...]


def hidden(subjects: Sequence[int]) -> list[bool]:
    """Which cells are not shown: those of a few subjects and, where that is one alone, the smallest other cell too,
    for the total would tell it."""
    small = [0 < count < SMALLEST for count in subjects]
    others = [i for i, count in enumerate(subjects) if count >= SMALLEST]
    if sum(small) == 1 and others:
        small[min(others, key=subjects.__getitem__)] = True
    return small


def counted(count: int) -> str:
    """A number of subjects."""
    return FEW if 0 < count < SMALLEST else f"{count:,}"


def share(value: float) -> str:
    """A share in per cent, to a tenth below ten."""
    if 0 < value < 0.0005:
        return "<0.1%"
    return f"{value:.1%}" if 0 < value < 0.0995 else f"{value:.0%}"


def number(value: float) -> str:
    """Three digits, with a true minus."""
    if not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    digits = 2 - math.floor(math.log10(abs(value)))
    value = round(value, digits)
    tiny = abs(value) < 1e-4
    text = f"{value:.2e}" if tiny else f"{value:,.{max(digits, 0)}f}"
    text = text.rstrip("0").rstrip(".") if "." in text and not tiny else text
    return text.replace("-", "−")


def between(value: float, low: float, high: float) -> str:
    """A value and its interval, all rounded where the largest has three digits."""
    largest = max(map(abs, (value, low, high))) or 1.0
    digits = 2 - math.floor(math.log10(largest)) if math.isfinite(largest) else 2
    middle, *ends = (number(round(each, digits)) for each in (value, low, high))
    return f"{middle} ({' to '.join(ends)})"


def tail(subjects: int) -> float | None:
    """The outermost quantile that enough subjects lie beyond; none where they are few."""
    return next((level for level in TAILS if level * subjects >= SMALLEST), None)


def subjects_in(rows: Transitions, cell: Int[Tensor, " n"], cells: int) -> list[int]:
    """How many subjects have a row in each cell; rows of no cell are numbered −1."""
    there, names = cell >= 0, max(len(rows.subject_names), 1)
    pairs = (cell[there] * names + rows.subject[there]).unique()
    return torch.bincount(pairs // names, minlength=cells).tolist()


def shares_in(cell: Int[Tensor, " n"], cells: int) -> list[float]:
    """The share of the rows in each cell."""
    found = torch.bincount(cell[cell >= 0], minlength=cells).double()
    return (found / max(float(found.sum()), 1.0)).tolist()


def quantiles(values: Float[Tensor, " n"], *levels: float) -> list[float]:
    """Quantiles, whatever the size; `torch.quantile` refuses large tables."""
    ordered = values.double().sort().values
    places = [level * (len(ordered) - 1) for level in levels]
    return [float(torch.lerp(ordered[int(p)], ordered[math.ceil(p)], p % 1)) for p in places]
