"""Impute missing values: by linear interpolation where few are missing, then from the most similar row (1-NN).

    distance² = Σ_j ((x_j − y_j) / sd_j)²      over the columns with less than 5% missing

The published code interpolates across patients and takes values from any patient; `corrected` interpolates within a
stay and takes values from training patients only (`donor`).
"""

from collections.abc import Callable, Sequence

import numpy as np

from counterpoint.core.errors import CounterpointError

FEW = 0.05
"""A column with a smaller share missing is interpolated and used in the distance."""
PIECE = 10_000
"""Rows among which the most similar one is searched, as published."""


def imputed(
    values: np.ndarray,
    names: Sequence[str],
    stay: np.ndarray,
    donor: np.ndarray,
    faithful: bool,
    report: Callable[[int, int], None],
) -> np.ndarray:
    """Return [rows, columns] without missing values, taken from `donor` rows; rows are sorted by stay and bloc."""
    values = values.copy()
    few = np.isnan(values).mean(0) < FEW
    for column in np.flatnonzero(few):
        values[:, column] = _lined(values[:, column], np.zeros_like(stay) if faithful else stay)
    likeness = _standardised(values[:, few], donor)
    for begin in range(0, len(values), PIECE):
        # The last piece reaches back, so that it has as many rows to take from as the others.
        among = slice(max(0, min(begin, len(values) - PIECE)), min(begin + PIECE, len(values)))
        values[among] = _from_similar(values[among], likeness[among], donor[among])
        report(among.stop, len(values))
    return _centred(values, donor, names)


def _lined(column: np.ndarray, stay: np.ndarray) -> np.ndarray:
    """Interpolate between two known values of a stay; do not extrapolate."""
    observed = np.flatnonzero(~np.isnan(column))
    if not len(observed):
        return column
    rows = np.arange(len(column))
    line = np.interp(rows, observed, column[observed], left=np.nan, right=np.nan)
    before = observed[np.clip(np.searchsorted(observed, rows, "right") - 1, 0, None)]
    after = observed[np.clip(np.searchsorted(observed, rows), None, len(observed) - 1)]
    within = (stay[before] == stay) & (stay[after] == stay)
    return np.where(np.isnan(column) & within, line, column)


def _standardised(values: np.ndarray, donor: np.ndarray) -> np.ndarray:
    centre = np.nanmean(values[donor], 0)
    spread = np.nanstd(values[donor], 0)
    return np.nan_to_num((values - centre) / np.where(spread > 0, spread, 1.0))


def _from_similar(values: np.ndarray, likeness: np.ndarray, donor: np.ndarray) -> np.ndarray:
    from sklearn.neighbors import NearestNeighbors

    missing = np.isnan(values)
    values = values.copy()
    for column in np.flatnonzero(missing.any(0)):
        donors = np.flatnonzero(~missing[:, column] & donor)
        if len(donors) and likeness.shape[1]:
            nearest = NearestNeighbors(n_neighbors=1, algorithm="brute").fit(likeness[donors])
            needy = np.flatnonzero(missing[:, column])
            chosen = nearest.kneighbors(likeness[needy], return_distance=False)[:, 0]
            values[needy, column] = values[donors[chosen], column]
    return values


def _centred(values: np.ndarray, donor: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Fill with the donor rows' median where no similar row has a value."""
    for column in map(int, np.flatnonzero(np.isnan(values).any(0))):
        observed = values[donor & ~np.isnan(values[:, column]), column]
        if not len(observed):
            raise CounterpointError(f"{names[column]} was measured in no training patient; use a larger database")
        values[np.isnan(values[:, column]), column] = np.median(observed)
    return values
