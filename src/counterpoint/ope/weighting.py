"""Importance sampling: logged episodes, weighted by how much likelier the policy makes them than whoever logged them.

ρ_t = Π_{k ≤ t} π(a_k|s_k)/μ(a_k|s_k). An episode that has ended keeps its last weight and earns nothing more, so that
episodes of all lengths are weighed together. One whose record stops (truncated) is taken as over: its return is what
was logged. With c the counts of a resample, G the discounted return and T the last step:

IS      Σ c·ρ_T·G / Σ c                  per decision  Σ_t γ^t·(Σ c·ρ_t·r_t / Σ c)
WIS     Σ c·ρ_T·G / Σ c·ρ_T              per decision  Σ_t γ^t·(Σ c·ρ_t·r_t / Σ c·ρ_t)

(Precup, Sutton and Singh, 2000; Thomas, 2015). A resample in which every weight is 0 has no weighted estimate: NaN.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.ope.episodes import Episodes, Question


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
