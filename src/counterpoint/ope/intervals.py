"""Confidence intervals: the bias-corrected and accelerated bootstrap (BCa; Efron, 1987) over subjects.

Subjects are resampled with all of their episodes, because rows of one subject are dependent. Both ends are quantiles
Φ(z₀ + (z₀ + z)/(1 − a·(z₀ + z))) of the resampled estimates. z₀ = Φ⁻¹(share of them below the estimate) corrects the
bias of the median; a = Σd³/(6·(Σd²)^1.5) corrects for a variance that depends on the value, where d is the mean of the
leave-one-subject-out estimates minus each of them.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.errors import require
from counterpoint.core.seeding import derive
from counterpoint.core.settings import Positive, Share, Weight, checked
from counterpoint.core.statistics import Interval
from counterpoint.ope.problem import (
    OPEData,
    resampled,
    subject_folds,
)

Counts = Float[Tensor, "b subjects"]
Estimator = Callable[[OPEData, Counts], Float[Tensor, " b"]]
"""Maps the data and bootstrap counts of subjects to one estimate for each resample."""

MAX_LEFT_OUT = 400
"""More subjects than this are left out in this many random groups; their sums have the same a."""
MAX_COUNTS = 2**22
"""Counts in memory at once."""


@checked
def interval_of(
    estimator: Estimator, data: OPEData, draws: Positive = 1000, confidence: Share = 0.95, seed: int = 0
) -> Interval:
    """Estimate with BCa interval over subjects.

    The interval is (−∞, ∞) if a resample has no estimate because no drawn subject was treated as by the policy.
    """
    return _interval(lambda counts: estimator(data, counts), data.episodes.subjects, draws, confidence, seed)


@checked
def paired_interval(
    estimator: Estimator,
    data: OPEData,
    other: OPEData,
    baseline: Estimator | None = None,
    draws: Positive = 1000,
    confidence: Share = 0.95,
    seed: int = 0,
) -> Interval:
    """Estimated difference of the mean returns of two policies, with interval, on the same resampled subjects.

    `baseline` is the estimator for `other`, by default `estimator`: one with another critic, or `logged_return`.
    """
    require(
        data.episodes.rows.fingerprint == other.episodes.rows.fingerprint,
        "the two policies are evaluated on different tables, so nothing is paired; evaluate both on the same rows",
    )
    subtracted = baseline or estimator
    return _interval(
        lambda counts: estimator(data, counts) - subtracted(other, counts),
        data.episodes.subjects,
        draws,
        confidence,
        seed,
    )


@checked
def widened(interval: Interval, spread: Weight, confidence: Share = 0.95) -> Interval:
    """Add the critic's standard deviation over resamples to an interval for which the critic was held fixed.

    A half-width h becomes √(h² + (z·spread)²), as for independent errors.
    """
    from scipy.special import ndtri

    reach = spread * float(ndtri((1 + confidence) / 2))
    low = math.hypot(interval.low - interval.estimate, reach)
    high = math.hypot(interval.high - interval.estimate, reach)
    return Interval(interval.estimate, interval.estimate - low, interval.estimate + high)


def bca(
    estimate: float, draws: Float[Tensor, " b"], left_out: Float[Tensor, " g"], confidence: float = 0.95
) -> Interval:
    """BCa interval from resampled and leave-one-out estimates; a is 0 if `left_out` is empty."""
    from scipy.special import ndtr, ndtri

    if not (bool(draws.isfinite().all()) and bool(left_out.isfinite().all()) and np.isfinite(estimate)):
        return Interval(estimate, -np.inf, np.inf)
    values = draws.double().numpy()
    smallest_share = 0.5 / len(draws)
    below = ((values < estimate).mean() + (values <= estimate).mean()) / 2
    bias = ndtri(below.clip(smallest_share, 1 - smallest_share))
    tail = (1 - confidence) / 2
    shift = bias + ndtri(np.array([tail, 1 - tail]))
    low, high = np.quantile(values, ndtr(bias + shift / (1 - _acceleration(left_out) * shift)))
    return Interval(estimate, float(low), float(high))


def _acceleration(left_out: Float[Tensor, " g"]) -> float:
    deviations = left_out.double().mean() - left_out.double() if len(left_out) else left_out
    squares = float(deviations.square().sum())
    return float(deviations.pow(3).sum()) / (6 * squares**1.5) if squares > 0 else 0.0


def _interval(
    value: Callable[[Counts], Float[Tensor, " b"]], subjects: int, draws: int, confidence: float, seed: int
) -> Interval:
    require(
        subjects > 1, "the table has one subject, so the variation between subjects is unknown; pass the rows of more"
    )
    estimate = float(value(torch.ones(1, subjects, dtype=torch.double)))
    resampled_values = torch.cat([value(counts) for counts in _resamples(subjects, draws, seed)])
    left_out = torch.cat([value(counts) for counts in _leaving_out(subjects, seed)])
    return bca(estimate, resampled_values, left_out, confidence)


def _resamples(subjects: int, draws: int, seed: int) -> Iterator[Counts]:
    chunk = max(1, MAX_COUNTS // subjects)
    for start in range(0, draws, chunk):
        yield resampled(subjects, min(chunk, draws - start), derive(seed, "resamples", start))


def _leaving_out(subjects: int, seed: int) -> Iterator[Counts]:
    """Counts that leave out one subject each, or one group of subjects where there are many."""
    group = subject_folds(subjects, min(subjects, MAX_LEFT_OUT), derive(seed, "left out"))
    for numbers in torch.arange(min(subjects, MAX_LEFT_OUT)).split(max(1, MAX_COUNTS // subjects)):
        yield (group != numbers[:, None]).double()
