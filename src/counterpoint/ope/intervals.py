"""How sure an estimate is: the bias-corrected and accelerated bootstrap (BCa; Efron, 1987) over subjects.

What is drawn again is subjects with all of their episodes: rows of one episode, and episodes of one subject, are alike.
Both ends are quantiles Φ(z₀ + (z₀ + z)/(1 − a·(z₀ + z))) of the resampled estimates; z₀ = Φ⁻¹(share of them below the
estimate) mends the bias of the median, a = Σd³/(6·(Σd²)^1.5) a spread that changes with the value, where d is how far
the estimates without one subject lie below their mean.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.errors import require
from counterpoint.core.seeding import derive
from counterpoint.core.settings import Positive, Share, checked
from counterpoint.core.statistics import Interval
from counterpoint.ope.problem import Question, resampled, subject_folds

Counts = Float[Tensor, "b subjects"]
Estimator = Callable[[Question, Counts], Float[Tensor, " b"]]
"""The value of a policy in every resampled table; a resample is a row of counts of subjects."""

GROUPS = 400
"""More subjects than this are left out in so many random groups: the skewness of sums of groups is a's as well."""
NUMBERS = 2**22
"""Counts held at once."""


@checked
def interval_of(
    estimator: Estimator, question: Question, draws: Positive = 1000, confidence: Share = 0.95, seed: int = 0
) -> Interval:
    """An estimate with its BCa interval over subjects.

    Where some resample has no estimate, because it draws nobody who was treated as the policy would, the interval has
    no ends: from −∞ to ∞.
    """
    return _interval(lambda counts: estimator(question, counts), question.episodes.subjects, draws, confidence, seed)


@checked
def paired_interval(
    estimator: Estimator,
    question: Question,
    other: Question,
    baseline: Estimator | None = None,
    draws: Positive = 1000,
    confidence: Share = 0.95,
    seed: int = 0,
) -> Interval:
    """How much more a policy is worth than another one, in the same resampled subjects.

    `baseline` estimates the other one, where not the same function does: one with its own critic, or `logged_return`.
    """
    require(
        question.episodes.rows.fingerprint == other.episodes.rows.fingerprint,
        "the two policies are judged on different tables, so nothing is paired; ask both questions about the same rows",
    )
    against = baseline or estimator
    return _interval(
        lambda counts: estimator(question, counts) - against(other, counts),
        question.episodes.subjects,
        draws,
        confidence,
        seed,
    )


def bca(
    estimate: float, draws: Float[Tensor, " b"], left_out: Float[Tensor, " g"], confidence: float = 0.95
) -> Interval:
    """The interval of resampled estimates and of those without one subject, or group; without these, a is 0."""
    from scipy.special import ndtr, ndtri

    if not (bool(draws.isfinite().all()) and bool(left_out.isfinite().all()) and np.isfinite(estimate)):
        return Interval(estimate, -np.inf, np.inf)
    values, least = draws.double().numpy(), 0.5 / len(draws)
    below = ((values < estimate).mean() + (values <= estimate).mean()) / 2
    bias, tail = ndtri(below.clip(least, 1 - least)), (1 - confidence) / 2
    shift = bias + ndtri(np.array([tail, 1 - tail]))
    low, high = np.quantile(values, ndtr(bias + shift / (1 - _acceleration(left_out) * shift)))
    return Interval(estimate, float(low), float(high))


def _acceleration(left_out: Float[Tensor, " g"]) -> float:
    apart = left_out.double().mean() - left_out.double() if len(left_out) else left_out
    square = float(apart.square().sum())
    return float(apart.pow(3).sum()) / (6 * square**1.5) if square > 0 else 0.0


def _interval(
    value: Callable[[Counts], Float[Tensor, " b"]], subjects: int, draws: int, confidence: float, seed: int
) -> Interval:
    require(subjects > 1, "the table has one subject, and how others would differ is not in it; pass the rows of more")
    estimate = float(value(torch.ones(1, subjects, dtype=torch.double)))
    drawn = torch.cat([value(counts) for counts in _resamples(subjects, draws, seed)])
    without = torch.cat([value(counts) for counts in _leaving_out(subjects, seed)])
    return bca(estimate, drawn, without, confidence)


def _resamples(subjects: int, draws: int, seed: int) -> Iterator[Counts]:
    at_once = max(1, NUMBERS // subjects)
    for start in range(0, draws, at_once):
        yield resampled(subjects, min(at_once, draws - start), derive(seed, "resamples", start))


def _leaving_out(subjects: int, seed: int) -> Iterator[Counts]:
    """The table without each subject, or where they are many without each group of them."""
    group = subject_folds(subjects, min(subjects, GROUPS), derive(seed, "left out"))
    for part in torch.arange(min(subjects, GROUPS)).split(max(1, NUMBERS // subjects)):
        yield (group != part[:, None]).double()
