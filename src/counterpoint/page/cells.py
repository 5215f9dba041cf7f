"""Cells of the page's tables: counts of ten subjects or more, and numbers rounded to three digits."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.data.transitions import Transitions

SMALLEST = 10
"""Smallest count of subjects that is shown."""
FEW = f"<{SMALLEST}"
TAILS = (0.05, 0.1, 0.25)


@dataclass(frozen=True)
class PageTable:
    """A table of texts; the first cell of a row is its name."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: tuple[int, ...] = (0,)
    """Columns that hold words; the others hold numbers."""
    note: str = ""


@dataclass(frozen=True)
class Heat:
    """A heat map of shares with shades from 0 to 9; a hidden cell has no shade."""

    caption: str
    across: str
    down: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    cells: tuple[tuple[tuple[str, int | None], ...], ...]


def hidden(subjects: Sequence[int]) -> list[bool]:
    """Mark the cells that are hidden: those of fewer than ten subjects and, if that is a single cell, the smallest
    other one, because the hidden count would follow from the total."""
    small = [0 < count < SMALLEST for count in subjects]
    others = [i for i, count in enumerate(subjects) if count >= SMALLEST]
    if sum(small) == 1 and others:
        small[min(others, key=subjects.__getitem__)] = True
    return small


def counted(count: int) -> str:
    """Format a number of subjects."""
    return FEW if 0 < count < SMALLEST else f"{count:,}"


def share(value: float) -> str:
    """Format a share in per cent, with one decimal below ten."""
    if 0 < value < 0.0005:
        return "<0.1%"
    return f"{value:.1%}" if 0 < value < 0.0995 else f"{value:.0%}"


def number(value: float) -> str:
    """Format a number with three significant digits and a minus sign."""
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
    """Format a value and its interval, rounded to three digits of the largest."""
    largest = max(map(abs, (value, low, high))) or 1.0
    digits = 2 - math.floor(math.log10(largest)) if math.isfinite(largest) else 2
    middle, *ends = (number(round(end, digits)) for end in (value, low, high))
    return f"{middle} ({' to '.join(ends)})"


def over_steps(rows: int, episodes: int) -> str:
    """The steps that a logged return adds up."""
    return f"over all logged steps of an episode ({number(rows / episodes)} on average)"


def tail(subjects: int) -> float | None:
    """The outermost quantile level with at least ten subjects beyond it; None for too few subjects."""
    return next((level for level in TAILS if level * subjects >= SMALLEST), None)


def subjects_in(rows: Transitions, cell: Int[Tensor, " n"], cells: int) -> list[int]:
    """Count the subjects with a row in each cell; −1 marks rows without a cell."""
    inside = cell >= 0
    names = max(len(rows.subject_names), 1)
    pairs = (cell[inside] * names + rows.subject[inside]).unique()
    return torch.bincount(pairs // names, minlength=cells).tolist()


def shares_in(cell: Int[Tensor, " n"], cells: int) -> list[float]:
    """Share of the rows in each cell."""
    counts = torch.bincount(cell[cell >= 0], minlength=cells).double()
    return (counts / max(float(counts.sum()), 1.0)).tolist()


def quantiles(values: Float[Tensor, " n"], *levels: float) -> list[float]:
    """Quantiles of a vector of any size; `torch.quantile` has a limit."""
    ordered = values.double().sort().values
    places = [level * (len(ordered) - 1) for level in levels]
    return [float(torch.lerp(ordered[int(p)], ordered[math.ceil(p)], p % 1)) for p in places]
