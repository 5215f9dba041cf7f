"""Values that nobody measured: a line between neighbours where few are missing, then the most similar row that has one.

    distance² = Σ_j ((x_j − y_j) / sd_j)²      over the columns with less than 5% missing

The published code draws the line through the whole column, from one patient into the next, and takes values from any
patient; `corrected` draws it within a stay, and lets only training patients give values.
"""

from collections.abc import Callable, Sequence

import numpy as np

from counterpoint.core.errors import CounterpointError

FEW = 0.05
"""A column with a smaller share missing is filled by lines, and says which rows are similar."""
PIECE = 10_000
"""Rows among which the most similar is sought, as published."""


def imputed(
    values: np.ndarray,
    names: Sequence[str],
    stay: np.ndarray,
    giving: np.ndarray,
    faithful: bool,
    report: Callable[[int, int], None],
) -> np.ndarray:
    """[rows, columns] without a missing value, wherever any giving row has one; rows in the order of stay and bloc."""
    values = values.copy()
    few = np.isnan(values).mean(0) < FEW
    for column in np.flatnonzero(few):
        values[:, column] = _lined(values[:, column], np.zeros_like(stay) if faithful else stay)
    likeness = _standardised(values[:, few], giving)
    for begin in range(0, len(values), PIECE):
        # The last piece reaches back, so that it has as many rows to take from as the others.
        among = slice(max(0, min(begin, len(values) - PIECE)), min(begin + PIECE, len(values)))
        values[among] = _from_similar(values[among], likeness[among], giving[among])
        report(among.stop, len(values))
    return _centred(values, giving, names)


def _lined(column: np.ndarray, stay: np.ndarray) -> np.ndarray:
    """Gaps between two known values of a stay filled along a line; before the first and after the last they stay."""
    known = np.flatnonzero(~np.isnan(column))
    if not len(known):
        return column
    rows = np.arange(len(column))
    line = np.interp(rows, known, column[known], left=np.nan, right=np.nan)
    before = known[np.clip(np.searchsorted(known, rows, "right") - 1, 0, None)]
    after = known[np.clip(np.searchsorted(known, rows), None, len(known) - 1)]
    within = (stay[before] == stay) & (stay[after] == stay)
    return np.where(np.isnan(column) & within, line, column)


def _standardised(values: np.ndarray, giving: np.ndarray) -> np.ndarray:
    known = values[giving]
    centre, spread = np.nanmean(known, 0), np.nanstd(known, 0)
    return np.nan_to_num((values - centre) / np.where(spread > 0, spread, 1.0))


def _from_similar(values: np.ndarray, likeness: np.ndarray, giving: np.ndarray) -> np.ndarray:
    from sklearn.neighbors import NearestNeighbors

    values, missing = values.copy(), np.isnan(values)
    for column in np.flatnonzero(missing.any(0)):
        donors = np.flatnonzero(~missing[:, column] & giving)
        if len(donors) and likeness.shape[1]:
            nearest = NearestNeighbors(n_neighbors=1, algorithm="brute").fit(likeness[donors])
            needy = np.flatnonzero(missing[:, column])
            chosen = nearest.kneighbors(likeness[needy], return_distance=False)[:, 0]
            values[needy, column] = values[donors[chosen], column]
    return values


def _centred(values: np.ndarray, giving: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """The giving rows' median where no similar row had a value."""
    for column in map(int, np.flatnonzero(np.isnan(values).any(0))):
        known = values[giving & ~np.isnan(values[:, column]), column]
        if not len(known):
            raise CounterpointError(f"{names[column]} was measured in no training patient; use a larger database")
        values[np.isnan(values[:, column]), column] = np.median(known)
    return values
