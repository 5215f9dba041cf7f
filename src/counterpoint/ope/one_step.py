"""A critic corrected one step at a time: doubly robust with partial histories of one action (Hu and Wager, 2023).

    δ_t = r_t + γ·V(s_{t+1}) − Q(s_t, a_t),    ρ_t = π(a_t|s_t)/μ(a_t|s_t)
    mean V(s_0) + (Σ γ^t·ρ_t·δ_t / Σ γ^t·ρ_t)·(Σ γ^t / episodes),    Σ over all logged rows

A product of ratios over a whole record is the weight of few records or none. The ratio of one step alone mends what a
critic gets wrong first, what rare actions lead to; what it leaves is the critic's error where the policy's states are
distributed otherwise than the log's, a product of two errors.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.errors import require
from counterpoint.core.settings import Share, Weight, checked
from counterpoint.core.statistics import Interval
from counterpoint.ope.critic import Critic
from counterpoint.ope.episodes import Question
from counterpoint.ope.weighting import by_subject, discounts, summed


def one_step_doubly_robust(
    question: Question, counts: Float[Tensor, "b subjects"], *, critic: Critic
) -> Float[Tensor, " b"]:
    """Right where the critic is; NaN where no logged action is one of the policy's."""
    require(
        len(critic.taken) == 1,
        f"the critic has {len(critic.taken)} members, and one is to be corrected; pass that of cross_fit",
    )
    episodes, rows = question.episodes, question.rows
    error = rows.reward.double() + question.discount * critic.after[0].double() - critic.taken[0].double()
    share = discounts(question) * episodes.present
    weight = question.ratio.double() * share
    first = critic.state[0].double()[episodes.places[:, 0]]
    sums = (weight * episodes.table(error)).sum(1), weight.sum(1), share.sum(1), first, torch.ones_like(first)
    corrected, weighed, logged, value, count = summed(episodes, torch.stack(sums, 1), counts).unbind(1)
    return (value + corrected / weighed * logged) / count


def one_step_effective_sample_size(question: Question) -> float:
    """How many subjects of rows with equal ratios would be as sure (Kish): subjects·(Σρ)² / (rows·Σρ²)."""
    ratio = question.ratio.double()[question.episodes.present]
    square = ratio.square().sum().clamp(min=torch.finfo(ratio.dtype).tiny)
    return float(question.episodes.subjects * ratio.sum().square() / (len(ratio) * square))


def one_step_largest_share(question: Question) -> float:
    """The share of all ratios that the heaviest subject has; 0 where nobody has any."""
    ratio = (question.ratio.double() * question.episodes.present).sum(1)
    own = by_subject(question.episodes, ratio)
    return float(own.amax() / own.sum().clamp(min=torch.finfo(own.dtype).tiny))


@checked
def widened(found: Interval, spread: Weight, confidence: Share = 0.95) -> Interval:
    """An interval in which a critic was held fixed, with the critic's own standard deviation over resamples added.

    Both sides h become √(h² + (z·spread)²), as if the two errors had nothing to do with each other.
    """
    from scipy.special import ndtri

    reach = spread * float(ndtri((1 + confidence) / 2))
    low, high = (math.hypot(end - found.estimate, reach) for end in (found.low, found.high))
    return Interval(found.estimate, found.estimate - low, found.estimate + high)
