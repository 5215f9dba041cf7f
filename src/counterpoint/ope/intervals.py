"""Confidence intervals of an estimate, and its bounds under unmeasured confounding.

Intervals are the bias-corrected and accelerated bootstrap (BCa; Efron, 1987) over subjects.

Subjects are resampled with all of their episodes, because rows of one subject are dependent. Both ends are quantiles
Φ(z₀ + (z₀ + z)/(1 − a·(z₀ + z))) of the resampled estimates. z₀ = Φ⁻¹(share of them below the estimate) corrects the
bias of the median; a = Σd³/(6·(Σd²)^1.5) corrects for a variance that depends on the value, where d is the mean of the
leave-one-subject-out estimates minus each of them.

Bounds are those of the marginal sensitivity model (Tan, 2006) of strength Λ ≥ 1: unmeasured confounders change the odds
of the logged action by a factor between 1/Λ and Λ.

    per step      at every decision:  1/μ_t becomes 1 + (1/μ_t − 1)·λ_t with λ_t in [1/Λ, Λ], at all steps together
    per record    over a whole record: the weight w = Π_t π_t/μ_t becomes w·λ with λ in [1/Λ, Λ]

The bound per step allows confounders that vary from step to step (Kallus and Zhou, 2020); for long records it soon
covers the whole range of returns. The bound per record limits the effect on all decisions together. The self-normalised
estimate Σ w_i·G_i / Σ w_i is smallest over such weights when episodes with a return below some threshold have their
largest weight and the others their smallest (Zhao, Small and Bhattacharya, 2019). Trying all thresholds is exact.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.errors import require
from counterpoint.core.seeding import derive
from counterpoint.core.settings import Checked, Positive, Range, Share, Weight, check_settings, checked
from counterpoint.core.statistics import Interval
from counterpoint.data.transitions import subject_folds
from counterpoint.ope.estimators import relative_weight, rewards
from counterpoint.ope.problem import OPEData, resampled

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


MAX_STRENGTH = 20.0
"""Largest strength that is examined."""
BISECTIONS = 20
"""Steps of the bisection for the breakdown strength."""
MAX_NUMBERS = 4_000_000
"""Numbers of a resampled table in memory at once."""

Strength = Annotated[float, Range(1, MAX_STRENGTH)]
Per = Literal["record", "step"]


@dataclass(frozen=True)
class Confounding:
    """Strengths of unmeasured confounding for the sensitivity analysis."""

    strengths: tuple[Strength, ...] = (1.0, 1.1, 1.25, 1.5, 2.0, 3.0)
    """Λ; 1 is no confounding."""
    per: Per = "record"
    """What Λ bounds: the odds of all decisions of a record together, or of every decision."""

    def __post_init__(self) -> None:
        check_settings(self)
        require(len(self.strengths) > 0, "strengths names no strength of confounding; give at least one, as (1.5,)")


@dataclass(frozen=True)
class ConfoundingBound(Checked):
    """Range of the estimate under one strength of confounding."""

    strength: float
    lowest: float
    highest: float
    low: float
    """Lower end of the confidence interval of `lowest`."""
    high: float
    """Upper end of the confidence interval of `highest`."""


def weight_range(data: OPEData, strength: float, per: Per) -> tuple[Float[Tensor, " e"], Float[Tensor, " e"]]:
    """Smallest and largest weight that every episode can have, up to a common factor."""
    if per == "record":
        weight = relative_weight(data)[:, -1]
        return weight / strength, weight * strength
    taken = data.rows.action_index[:, None]
    policy = data.policy.gather(1, taken)[:, 0].double()
    behaviour = data.behaviour.gather(1, taken)[:, 0].double()
    low = _log_product(data, policy * (1 + (1 / behaviour - 1) * (1 / strength)))
    high = _log_product(data, policy * (1 + (1 / behaviour - 1) * strength))
    return (low - high.amax()).exp().nan_to_num(nan=0.0), (high - high.amax()).exp().nan_to_num(nan=0.0)


def extremes(
    value: Float[Tensor, " e"],
    low: Float[Tensor, " e"],
    high: Float[Tensor, " e"],
    counts: Float[Tensor, "b e"],
) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"]]:
    """Smallest and largest Σ c·w·value / Σ c·w over all weights with low ≤ w ≤ high."""
    return _minimum(value, low, high, counts), -_minimum(-value, low, high, counts)


def bounded(
    data: OPEData, counts: Float[Tensor, "b subjects"], strength: float, per: Per
) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"]]:
    """Smallest and largest value of weighted importance sampling in every resample.

    If all weights of a resample are zero, these are the smallest and the largest logged return.
    """
    value = rewards(data).sum(1)
    low, high = weight_range(data, strength, per)
    chunks = counts.split(max(1, MAX_NUMBERS // len(value)))
    results = [extremes(value, low, high, chunk[:, data.episodes.subject]) for chunk in chunks]
    lowest, highest = (torch.cat(parts) for parts in zip(*results, strict=True))
    return lowest.nan_to_num(nan=float(value.min())), highest.nan_to_num(nan=float(value.max()))


def bounds(
    data: OPEData, counts: Float[Tensor, "b subjects"], settings: Confounding, confidence: float = 0.95
) -> tuple[ConfoundingBound, ...]:
    """Bound for every strength, with the percentile interval over the resamples."""
    tail = (1 - confidence) / 2
    return tuple(_bound(data, counts, strength, settings.per, tail) for strength in settings.strengths)


def breakdown_strength(
    data: OPEData,
    counts: Float[Tensor, "b subjects"],
    logged: Float[Tensor, " b"],
    per: Per,
    confidence: float = 0.95,
) -> float | None:
    """Smallest strength at which the difference from the `logged` return is no longer significant.

    None if it is not significant without confounding; `MAX_STRENGTH` if it still is at that strength.
    """
    tail = (1 - confidence) / 2

    def significantly_better(strength: float) -> bool:
        lowest, _ = bounded(data, counts, strength, per)
        return bool((lowest - logged).quantile(tail) > 0)

    def significantly_worse(strength: float) -> bool:
        _, highest = bounded(data, counts, strength, per)
        return bool((highest - logged).quantile(1 - tail) < 0)

    significant = significantly_better if significantly_better(1.0) else significantly_worse
    if not significant(1.0):
        return None
    if significant(MAX_STRENGTH):
        return MAX_STRENGTH
    low, high = 0.0, math.log(MAX_STRENGTH)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if significant(math.exp(middle)):
            low = middle
        else:
            high = middle
    return math.exp(high)


def _bound(data: OPEData, counts: Tensor, strength: float, per: Per, tail: float) -> ConfoundingBound:
    lowest, highest = bounded(data, torch.ones_like(counts[:1]), strength, per)
    low, high = bounded(data, counts, strength, per)
    return ConfoundingBound(
        strength, float(lowest), float(highest), float(low.quantile(tail)), float(high.quantile(1 - tail))
    )


def _log_product(data: OPEData, ratio: Float[Tensor, " n"]) -> Float[Tensor, " e"]:
    return torch.where(data.episodes.present, data.episodes.table(ratio), 1.0).log().sum(1)


def _minimum(value: Tensor, low: Tensor, high: Tensor, counts: Float[Tensor, "b e"]) -> Float[Tensor, " b"]:
    """Minimum over all thresholds: the episodes sorted before one have their largest weight."""
    order = value.argsort()
    value, low, extra, counts = value[order], low[order], (high - low)[order], counts[:, order]
    total = (counts * (low * value)).sum(1, keepdim=True)
    weight = (counts * low).sum(1, keepdim=True)
    added_total = (counts * (extra * value)).cumsum(1)
    added_weight = (counts * extra).cumsum(1)
    candidates = torch.cat([total / weight, (total + added_total) / (weight + added_weight)], 1)
    return candidates.amin(1)
