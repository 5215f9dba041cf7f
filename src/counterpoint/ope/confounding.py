"""How wrong an estimate can be if whoever logged acted on findings that the table lacks.

The marginal sensitivity model (Tan 2006) with strength Λ ≥ 1: knowing the unmeasured findings changes the odds of the
action that was taken by a factor between 1/Λ and Λ.

    per step      at every decision:  1/μ_t becomes 1 + (1/μ_t − 1)·λ_t with λ_t in [1/Λ, Λ], all steps at once
    per record    over a whole record: the product w = Π_t π_t/μ_t becomes w·λ with λ in [1/Λ, Λ]

The bound per step holds whatever the findings do from step to step (as Kallus & Zhou 2020 allow) and is soon as wide as
the returns for long records; the bound per record speaks of all decisions together. The self-normalised estimate
Σ w_i·G_i / Σ w_i is smallest over such weights where episodes of a return below some threshold have their largest
weight and the others their smallest (Zhao, Small & Bhattacharya 2019), so trying every threshold finds it exactly.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.errors import require
from counterpoint.core.settings import Range, check_settings
from counterpoint.ope.estimators import relative_weight, rewards
from counterpoint.ope.problem import Question

STRONGEST = 20.0
"""Strengths beyond this are not looked at."""
HALVINGS = 20
"""Steps of the bisection for the strength at which a conclusion is lost."""
AT_ONCE = 4_000_000
"""Numbers of a resampled table that are handled at once."""

Strength = Annotated[float, Range(1, STRONGEST)]


@dataclass(frozen=True)
class Confounding:
    """Which strengths of unmeasured confounding are looked at."""

    strengths: tuple[Strength, ...] = (1.0, 1.1, 1.25, 1.5, 2.0, 3.0)
    """Λ; 1 is no confounding."""
    per: Literal["record", "step"] = "record"
    """What Λ bounds: the odds of all decisions of a record together, or of every decision."""

    def __post_init__(self) -> None:
        check_settings(self)
        require(len(self.strengths) > 0, "strengths names no strength of confounding; give at least one, as (1.5,)")


@dataclass(frozen=True)
class Bound:
    """What the estimate can be under one strength of confounding."""

    strength: float
    lowest: float
    highest: float
    low: float
    """The lower end of the confidence interval of `lowest`."""
    high: float
    """The upper end of that of `highest`."""

    def __post_init__(self) -> None:
        check_settings(self)


def weight_range(
    question: Question, strength: float, per: Literal["record", "step"]
) -> tuple[Float[Tensor, " e"], Float[Tensor, " e"]]:
    """The smallest and the largest weight that every episode can have, in some common unit."""
    if per == "record":
        weight = relative_weight(question)[:, -1]
        return weight / strength, weight * strength
    taken = question.rows.action_index[:, None]
    policy, behaviour = (table.gather(1, taken)[:, 0].double() for table in (question.policy, question.behaviour))
    low, high = (_log_product(question, policy * (1 + (1 / behaviour - 1) * odds)) for odds in (1 / strength, strength))
    return (low - high.amax()).exp().nan_to_num(nan=0.0), (high - high.amax()).exp().nan_to_num(nan=0.0)


def extremes(
    value: Float[Tensor, " e"],
    low: Float[Tensor, " e"],
    high: Float[Tensor, " e"],
    counts: Float[Tensor, "b e"],
) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"]]:
    """The smallest and the largest Σ c·w·value / Σ c·w over all weights with low ≤ w ≤ high."""
    return _lowest(value, low, high, counts), -_lowest(-value, low, high, counts)


def bounded(
    question: Question, counts: Float[Tensor, "b subjects"], strength: float, per: Literal["record", "step"]
) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"]]:
    """The extremes of weighted importance sampling in every resampled table.

    Where no record has any weight it could be any logged return, so these have the extremes.
    """
    value = rewards(question).sum(1)
    low, high = weight_range(question, strength, per)
    pieces = counts.split(max(1, AT_ONCE // len(value)))
    found = [extremes(value, low, high, piece[:, question.episodes.subject]) for piece in pieces]
    lowest, highest = (torch.cat(part) for part in zip(*found, strict=True))
    return lowest.nan_to_num(nan=float(value.min())), highest.nan_to_num(nan=float(value.max()))


def bounds(
    question: Question, counts: Float[Tensor, "b subjects"], how: Confounding, confidence: float = 0.95
) -> tuple[Bound, ...]:
    """The bound of every strength, with the percentile interval over the resampled tables."""
    return tuple(_bound(question, counts, strength, how.per, (1 - confidence) / 2) for strength in how.strengths)


def lost_at(
    question: Question,
    counts: Float[Tensor, "b subjects"],
    logged: Float[Tensor, " b"],
    per: Literal["record", "step"],
    confidence: float = 0.95,
) -> float | None:
    """The strength from which on the policy is no longer surely better (or worse) than `logged`; none where it never
    was, `STRONGEST` where it still is there."""
    tail = (1 - confidence) / 2
    better: Callable[[float], bool] = lambda s: bool((bounded(question, counts, s, per)[0] - logged).quantile(tail) > 0)
    worse: Callable[[float], bool] = lambda s: bool(
        (bounded(question, counts, s, per)[1] - logged).quantile(1 - tail) < 0
    )
    holds = better if better(1.0) else worse
    if not holds(1.0):
        return None
    sure, lost = 0.0, math.log(STRONGEST)
    if holds(STRONGEST):
        return STRONGEST
    for _ in range(HALVINGS):
        middle = (sure + lost) / 2
        sure, lost = (middle, lost) if holds(math.exp(middle)) else (sure, middle)
    return math.exp(lost)


def _bound(question: Question, counts: Tensor, strength: float, per: Literal["record", "step"], tail: float) -> Bound:
    (lowest,), (highest,) = (found.tolist() for found in bounded(question, torch.ones_like(counts[:1]), strength, per))
    low, high = bounded(question, counts, strength, per)
    return Bound(strength, lowest, highest, float(low.quantile(tail)), float(high.quantile(1 - tail)))


def _log_product(question: Question, ratio: Float[Tensor, " n"]) -> Float[Tensor, " e"]:
    return torch.where(question.episodes.present, question.episodes.table(ratio), 1.0).log().sum(1)


def _lowest(value: Tensor, low: Tensor, high: Tensor, counts: Float[Tensor, "b e"]) -> Float[Tensor, " b"]:
    order = value.argsort()
    value, low, more, counts = value[order], low[order], (high - low)[order], counts[:, order]
    total, weight = ((counts * each).sum(1, keepdim=True) for each in (low * value, low))
    raised, added = ((counts * each).cumsum(1) for each in (more * value, more))
    tried = torch.cat([total / weight, (total + raised) / (weight + added)], 1)
    return tried.amin(1)
