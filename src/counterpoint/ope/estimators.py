"""Importance sampling: logged episodes, weighted by how much likelier the policy makes them than whoever logged them.

ρ_t = Π_{k ≤ t} π(a_k|s_k)/μ(a_k|s_k). An episode that has ended keeps its last weight and earns nothing more, so that
episodes of all lengths are weighed together. One whose record stops (truncated) is taken as over: its return is what
was logged. With c the counts of a resample, G the discounted return and T the last step:

IS      Σ c·ρ_T·G / Σ c                  per decision  Σ_t γ^t·(Σ c·ρ_t·r_t / Σ c)
WIS     Σ c·ρ_T·G / Σ c·ρ_T              per decision  Σ_t γ^t·(Σ c·ρ_t·r_t / Σ c·ρ_t)

(Precup, Sutton and Singh, 2000; Thomas, 2015). A resample in which every weight is 0 has no weighted estimate: NaN.


A critic corrected by what was logged: DR (Jiang and Li, 2016), WDR and MAGIC (Thomas and Brunskill, 2016).

Σ_t γ^t·(w_t·(r_t − Q(s_t, a_t)) + w_{t−1}·V(s_t)), summed over episodes, with w_t = ρ_t/n and w_{−1} = 1/n for DR and
w_t = ρ_t/Σρ_t for WDR; ρ as in `weighting`. An episode that has ended keeps its last weight, and 0 are its rewards and
values. Where a record stops (truncated) the critic's value of the state that it stops in stands for the rest, as one
more reward. Where the critic is right all three are, whatever the weights.

The critic is held fixed: it should not have been fitted on the subjects it values (`FQE.cross_fit`).


A critic corrected one step at a time: doubly robust with partial histories of one action (Hu and Wager, 2023).

    δ_t = r_t + γ·V(s_{t+1}) − Q(s_t, a_t),    ρ_t = π(a_t|s_t)/μ(a_t|s_t)
    mean V(s_0) + (Σ γ^t·ρ_t·δ_t / Σ γ^t·ρ_t)·(Σ γ^t / episodes),    Σ over all logged rows

A product of ratios over a whole record is the weight of few records or none. The ratio of one step alone mends what a
critic gets wrong first, what rare actions lead to; what it leaves is the critic's error where the policy's states are
distributed otherwise than the log's, a product of two errors.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from counterpoint.core.errors import require
from counterpoint.core.settings import Share, Weight, checked
from counterpoint.core.statistics import Interval
from counterpoint.ope.fqe import Critic
from counterpoint.ope.problem import Episodes, Question


def logged_return(question: Question, counts: Float[Tensor, "b subjects"]) -> Float[Tensor, " b"]:
    """What whoever logged the episodes earned in them, whatever the policy."""
    return mean(question.episodes, rewards(question).sum(1), counts)


def importance_sampling(question: Question, counts: Float[Tensor, "b subjects"]) -> Float[Tensor, " b"]:
    """Unbiased where the behaviour is known, and of a variance that grows with every step."""
    return mean(question.episodes, question.weight[:, -1] * rewards(question).sum(1), counts)


def per_decision_importance_sampling(question: Question, counts: Float[Tensor, "b subjects"]) -> Float[Tensor, " b"]:
    """The same, where a reward is weighted by the decisions before it alone."""
    return mean(question.episodes, (question.weight * rewards(question)).sum(1), counts)


def weighted_importance_sampling(question: Question, counts: Float[Tensor, "b subjects"]) -> Float[Tensor, " b"]:
    """A weighted mean of the logged returns: slightly biased, far less varied, never outside what was earned."""
    weight = relative_weight(question)[:, -1]
    earned = summed(question.episodes, weight * rewards(question).sum(1), counts)
    return earned / summed(question.episodes, weight, counts)


def per_decision_weighted_importance_sampling(
    question: Question, counts: Float[Tensor, "b subjects"]
) -> Float[Tensor, " b"]:
    """Weighted means step by step."""
    weight = relative_weight(question)
    earned = summed(question.episodes, weight * rewards(question), counts)
    return (earned / summed(question.episodes, weight, counts)).sum(1)


def effective_sample_size(question: Question) -> float:
    """How many subjects of equal weight would be as sure (Kish): (Σ w)² / Σ w², w a subject's share of all weight."""
    share = _subject_shares(question)
    return float(share.sum() / share.square().sum().clamp(min=torch.finfo(share.dtype).tiny))


def largest_weight_share(question: Question) -> float:
    """The share of all weight that the heaviest subject has; 0 where nobody has any."""
    return float(_subject_shares(question).amax())


def rewards(question: Question) -> Float[Tensor, "e t"]:
    """Logged rewards γ^t·r_t, 0 behind the end of an episode."""
    reward = question.episodes.table(question.rows.reward.double())
    return reward * discounts(question)


def discounts(question: Question) -> Float[Tensor, " t"]:
    """γ^t of every step."""
    return question.discount ** torch.arange(question.episodes.places.shape[1], dtype=torch.double)


def relative_weight(question: Question) -> Float[Tensor, "e t"]:
    """ρ_t over the largest ρ_t of all episodes: a product of many small ratios would round to 0, and all weight go."""
    log = question.ratio.double().log().cumsum(1)
    return (log - log.amax(0)).exp().nan_to_num(nan=0.0)


def summed(
    episodes: Episodes, table: Float[Tensor, "e *w"], counts: Float[Tensor, "b subjects"]
) -> Float[Tensor, "b *w"]:
    """The sum over episodes, each as often as its subject was drawn."""
    return counts @ by_subject(episodes, table)


def mean(episodes: Episodes, values: Float[Tensor, " e"], counts: Float[Tensor, "b subjects"]) -> Float[Tensor, " b"]:
    """The mean over episodes, each as often as its subject was drawn."""
    return summed(episodes, values, counts) / summed(episodes, torch.ones_like(values), counts)


def by_subject(episodes: Episodes, table: Float[Tensor, "e *w"]) -> Float[Tensor, "subjects *w"]:
    """The sum over every subject's episodes."""
    return table.new_zeros(episodes.subjects, *table.shape[1:]).index_add_(0, episodes.subject, table)


def _subject_shares(question: Question) -> Float[Tensor, " subjects"]:
    weight = by_subject(question.episodes, relative_weight(question)[:, -1])
    return weight / weight.sum().clamp(min=torch.finfo(weight.dtype).tiny)


Z90 = 1.6448536269514722
"""A 90% interval of a normal variable reaches so many standard deviations to either side."""
RETURNS = 10
"""Most j-step returns that MAGIC mixes."""


def doubly_robust(question: Question, counts: Float[Tensor, "b subjects"], *, critic: Critic) -> Float[Tensor, " b"]:
    """Unbiased where the behaviour is known or the critic right."""
    parts = _Parts.of(question, critic)
    weight = question.weight
    return mean(question.episodes, (weight * parts.residual + _before(weight) * parts.value).sum(1), counts)


def weighted_doubly_robust(
    question: Question, counts: Float[Tensor, "b subjects"], *, critic: Critic
) -> Float[Tensor, " b"]:
    """The same with weights that sum to 1 at every step."""
    parts, weight = _Parts.of(question, critic), relative_weight(question)
    episodes, before = question.episodes, _before(weight)
    corrected = summed(episodes, weight * parts.residual, counts) / summed(episodes, weight, counts)
    valued = summed(episodes, before * parts.value, counts) / summed(episodes, before, counts)
    return (corrected + valued).sum(1)


def magic(
    question: Question, counts: Float[Tensor, "b subjects"], *, critic: Critic, returns: int = RETURNS
) -> Float[Tensor, " b"]:
    """Model and data, mixed so that squared bias and variance are least together.

    g_j = Σ_{t ≤ j} γ^t·w_t·(r_t − Q_t) + Σ_{t ≤ j+1} γ^t·w_{t−1}·V_t trusts the data for j + 1 steps and the critic
    from there on: j = −1 is the critic alone, the last one WDR. The mixture x minimises x'(Ω + bb')x over the simplex,
    where Ω is the covariance of the g_j over subjects and b_j how far g_j lies outside the 90% interval of WDR. Up to
    `returns` of them are mixed, evenly spread. The interval is normal where the authors draw a bootstrap: a bootstrap
    within every resample would be drawn a thousand times.
    """
    steps = _Steps.of(question, critic)
    longest = steps.weight.shape[1]
    picked = torch.linspace(0, longest, min(returns, longest + 1)).round().long()
    return torch.stack([_mixed(steps.returns(drawn)[:, picked], drawn) for drawn in counts])


@dataclass(frozen=True, eq=False)
class _Parts:
    """What is weighted by ρ_t, and what by ρ_{t−1}."""

    residual: Float[Tensor, "e t"]
    """γ^t·(r_t − Q(s_t, a_t)), with γ·V(s_{t+1}) on top where the record stops."""
    value: Float[Tensor, "e t"]
    """γ^t·V(s_t)."""

    @classmethod
    def of(cls, question: Question, critic: Critic) -> "_Parts":
        require(
            len(critic.taken) == 1,
            f"the critic has {len(critic.taken)} members, and one is to be corrected; pass that of FQE.cross_fit",
        )
        episodes, rows, step = question.episodes, question.rows, discounts(question)
        last = torch.zeros(len(rows), dtype=torch.bool)
        last[episodes.places.gather(1, episodes.length[:, None] - 1)] = True
        rest = question.discount * critic.after[0].double() * (last & ~rows.terminated)
        residual = episodes.table(rows.reward.double() + rest - critic.taken[0].double())
        return cls(residual * step, episodes.table(critic.state[0].double()) * step)


@dataclass(frozen=True, eq=False)
class _Steps:
    """The sums over every subject's episodes that MAGIC's returns are made of, step by step."""

    weight: Float[Tensor, "subjects t"]
    before: Float[Tensor, "subjects t"]
    residual: Float[Tensor, "subjects t"]
    value: Float[Tensor, "subjects t"]

    @classmethod
    def of(cls, question: Question, critic: Critic) -> "_Steps":
        parts, weight = _Parts.of(question, critic), relative_weight(question)
        before = _before(weight)
        tables = weight, before, weight * parts.residual, before * parts.value
        return cls(*(by_subject(question.episodes, table) for table in tables))

    def returns(self, drawn: Float[Tensor, " subjects"]) -> Float[Tensor, "subjects j"]:
        """Every subject's part of every j-step return of one resample, from j = −1 on."""
        residual = (self.residual / (drawn @ self.weight)).cumsum(1)
        value = (self.value / (drawn @ self.before)).cumsum(1)
        return nn.functional.pad(residual, (1, 0)) + torch.cat([value, value[:, -1:]], 1)


def _before(weight: Float[Tensor, "e t"]) -> Float[Tensor, "e t"]:
    """ρ_{t−1}, which is 1 before the first step."""
    return nn.functional.pad(weight[:, :-1], (1, 0), value=1.0)


def _mixed(parts: Float[Tensor, "subjects j"], drawn: Float[Tensor, " subjects"]) -> Float[Tensor, ""]:
    """The best mixture of j-step returns, the last of which is WDR."""
    value, count = drawn @ parts, drawn.sum()
    apart = parts - value / count
    covariance = count / (count - 1) * (apart.T * drawn) @ apart
    reach = Z90 * covariance[-1, -1].sqrt()
    bias = value - value.clamp(value[-1] - reach, value[-1] + reach)
    return _least(covariance + bias.outer(bias)) @ value


def _least(matrix: Float[Tensor, "j j"]) -> Float[Tensor, " j"]:
    """The x of the simplex with the least x'Mx: y/Σy, where y ≥ 0 minimises y'My/2 − Σy, by non-negative least squares.

    A trace of the identity keeps the answer unique where returns are copies of each other; the critic's variance may be
    a millionth of WDR's, and must stand out against it.
    """
    from scipy.optimize import nnls

    scale = matrix.diagonal().mean()
    if not scale > 0:  # All returns are one, or not a number, which stays so.
        return torch.full_like(matrix[0], 1 / len(matrix)) + scale
    lower = torch.linalg.cholesky(matrix / scale + 1e-12 * torch.eye(len(matrix), dtype=matrix.dtype))
    ones = torch.ones(len(matrix), 1, dtype=matrix.dtype)
    found = nnls(lower.T.numpy(), torch.linalg.solve_triangular(lower, ones, upper=False)[:, 0].numpy())[0]
    return torch.from_numpy(found / found.sum())


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
