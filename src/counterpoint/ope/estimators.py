"""Estimators of a policy's mean return: importance sampling and its doubly robust corrections of a critic.

With the importance ratios ρ_t = π(a_t|s_t)/μ(a_t|s_t) and the weights w_t = Π_{k ≤ t} ρ_k of an episode. After its end
an episode keeps its last weight and has reward zero, so that episodes of different length are weighted together. An
episode whose record stops (truncated) counts with its logged return; the estimators with a critic add the critic's
value of the last state.

Every estimator takes bootstrap counts of subjects and returns one value for each resample. A resample in which all
weights are zero has no weighted estimate: NaN. Critics are held fixed; they should be fitted on other subjects than
those they are applied to (`FQE.cross_fit`).
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from counterpoint.core.errors import require
from counterpoint.ope.fqe import Critic
from counterpoint.ope.problem import Episodes, OPEData

Z90 = 1.6448536269514722
"""Half the width of a 90% interval of a normal variable, in standard deviations."""
RETURNS = 10
"""Default number of j-step returns that MAGIC mixes."""


def logged_return(data: OPEData, counts: Float[Tensor, "b subjects"]) -> Float[Tensor, " b"]:
    """Mean logged return: the value of the behaviour policy."""
    return mean(data.episodes, rewards(data).sum(1), counts)


def importance_sampling(data: OPEData, counts: Float[Tensor, "b subjects"]) -> Float[Tensor, " b"]:
    """IS: mean of w_T·Σ_t γ^t·r_t (Precup, Sutton and Singh, 2000).

    Unbiased for a known behaviour policy; the variance grows with every step.
    """
    return mean(data.episodes, data.weight[:, -1] * rewards(data).sum(1), counts)


def per_decision_importance_sampling(data: OPEData, counts: Float[Tensor, "b subjects"]) -> Float[Tensor, " b"]:
    """Per-decision IS: mean of Σ_t γ^t·w_t·r_t (Precup, Sutton and Singh, 2000)."""
    return mean(data.episodes, (data.weight * rewards(data)).sum(1), counts)


def weighted_importance_sampling(data: OPEData, counts: Float[Tensor, "b subjects"]) -> Float[Tensor, " b"]:
    """WIS: Σ w_T·G / Σ w_T over episodes with return G (Precup, Sutton and Singh, 2000).

    Slightly biased, of far smaller variance than IS, and always within the range of the logged returns.
    """
    weight = relative_weight(data)[:, -1]
    weighted_returns = summed(data.episodes, weight * rewards(data).sum(1), counts)
    return weighted_returns / summed(data.episodes, weight, counts)


def per_decision_weighted_importance_sampling(
    data: OPEData, counts: Float[Tensor, "b subjects"]
) -> Float[Tensor, " b"]:
    """Per-decision WIS: Σ_t γ^t·(Σ w_t·r_t / Σ w_t), inner sums over episodes (Thomas, 2015)."""
    weight = relative_weight(data)
    weighted_rewards = summed(data.episodes, weight * rewards(data), counts)
    return (weighted_rewards / summed(data.episodes, weight, counts)).sum(1)


def doubly_robust(data: OPEData, counts: Float[Tensor, "b subjects"], *, critic: Critic) -> Float[Tensor, " b"]:
    """DR: mean of Σ_t γ^t·(w_t·(r_t − Q(s_t, a_t)) + w_{t−1}·V(s_t)) (Jiang and Li, 2016).

    Unbiased if the behaviour policy is known or the critic is correct.
    """
    terms = _CriticTerms.of(data, critic)
    weight = data.weight
    return mean(data.episodes, (weight * terms.residual + _previous(weight) * terms.value).sum(1), counts)


def weighted_doubly_robust(
    data: OPEData, counts: Float[Tensor, "b subjects"], *, critic: Critic
) -> Float[Tensor, " b"]:
    """WDR: DR with weights that are normalised to sum to 1 at every step (Thomas and Brunskill, 2016)."""
    terms = _CriticTerms.of(data, critic)
    weight = relative_weight(data)
    previous = _previous(weight)
    episodes = data.episodes
    correction = summed(episodes, weight * terms.residual, counts) / summed(episodes, weight, counts)
    value = summed(episodes, previous * terms.value, counts) / summed(episodes, previous, counts)
    return (correction + value).sum(1)


def magic(
    data: OPEData, counts: Float[Tensor, "b subjects"], *, critic: Critic, returns: int = RETURNS
) -> Float[Tensor, " b"]:
    """MAGIC: mixture of j-step returns with the least estimated mean squared error (Thomas and Brunskill, 2016).

    g_j = Σ_{t ≤ j} γ^t·w_t·(r_t − Q_t) + Σ_{t ≤ j+1} γ^t·w_{t−1}·V_t uses the log for j + 1 steps and the critic
    afterwards: j = −1 is the critic alone, the last one is WDR. The mixture x minimises x'(Ω + bb')x over the simplex,
    with Ω the covariance of the g_j over subjects and b_j the distance of g_j to the 90% interval of WDR. Up to
    `returns` of them are mixed, evenly spaced in j. The interval is a normal one, while the paper bootstraps: a
    bootstrap inside every resample would be a thousand times slower.
    """
    steps = _SubjectSteps.of(data, critic)
    length = steps.weight.shape[1]
    selected = torch.linspace(0, length, min(returns, length + 1)).round().long()
    return torch.stack([_mixture(steps.returns(drawn)[:, selected], drawn) for drawn in counts])


def one_step_doubly_robust(
    data: OPEData, counts: Float[Tensor, "b subjects"], *, critic: Critic
) -> Float[Tensor, " b"]:
    """One-step DR: the critic corrected by ratios of single decisions (Hu and Wager, 2023, with histories of length 1).

        δ_t = r_t + γ·V(s_{t+1}) − Q(s_t, a_t)
        mean V(s_0) + (Σ γ^t·ρ_t·δ_t / Σ γ^t·ρ_t)·(Σ γ^t / episodes),    Σ over all logged rows

    Products of ratios over whole episodes leave weight on few episodes. A single-step ratio corrects the critic's
    largest errors, those about the effects of rare actions. The remaining bias is a product of two errors: the critic's
    and the difference between the state distributions of policy and log. Consistent if the critic is correct; NaN if
    the policy takes none of the logged actions.
    """
    _require_one_member(critic)
    episodes, rows = data.episodes, data.rows
    error = rows.reward.double() + data.discount * critic.after[0].double() - critic.taken[0].double()
    share = discounts(data) * episodes.present
    weight = data.ratio.double() * share
    first = critic.state[0].double()[episodes.places[:, 0]]
    sums = (weight * episodes.table(error)).sum(1), weight.sum(1), share.sum(1), first, torch.ones_like(first)
    errors, weights, shares, values, count = summed(episodes, torch.stack(sums, 1), counts).unbind(1)
    return (values + errors / weights * shares) / count


def effective_sample_size(data: OPEData) -> float:
    """Effective number of subjects by episode weights: (Σ w)² / Σ w², w a subject's weight (Kish, 1965)."""
    weight = by_subject(data.episodes, relative_weight(data)[:, -1])
    share = weight / weight.sum().clamp(min=torch.finfo(weight.dtype).tiny)
    return float(share.sum() / share.square().sum().clamp(min=torch.finfo(share.dtype).tiny))


def one_step_effective_sample_size(data: OPEData) -> float:
    """Effective number of subjects by single-step ratios: subjects·(Σρ)² / (rows·Σρ²) (Kish, 1965)."""
    ratio = data.ratio.double()[data.episodes.present]
    squares = ratio.square().sum().clamp(min=torch.finfo(ratio.dtype).tiny)
    return float(data.episodes.subjects * ratio.sum().square() / (len(ratio) * squares))


def one_step_largest_share(data: OPEData) -> float:
    """Share of all single-step ratios on the subject with the largest sum; 0 if all ratios are zero."""
    ratio = (data.ratio.double() * data.episodes.present).sum(1)
    sums = by_subject(data.episodes, ratio)
    return float(sums.amax() / sums.sum().clamp(min=torch.finfo(sums.dtype).tiny))


def rewards(data: OPEData) -> Float[Tensor, "e t"]:
    """Discounted logged rewards γ^t·r_t; 0 after the end of an episode."""
    return data.episodes.table(data.rows.reward.double()) * discounts(data)


def discounts(data: OPEData) -> Float[Tensor, " t"]:
    """γ^t of every step."""
    return data.discount ** torch.arange(data.episodes.places.shape[1], dtype=torch.double)


def relative_weight(data: OPEData) -> Float[Tensor, "e t"]:
    """w_t divided by the largest w_t of all episodes, so that products of many small ratios do not underflow."""
    log_weight = data.ratio.double().log().cumsum(1)
    return (log_weight - log_weight.amax(0)).exp().nan_to_num(nan=0.0)


def summed(
    episodes: Episodes, table: Float[Tensor, "e *w"], counts: Float[Tensor, "b subjects"]
) -> Float[Tensor, "b *w"]:
    """Sum over episodes, weighted by the counts of their subjects."""
    return counts @ by_subject(episodes, table)


def mean(episodes: Episodes, values: Float[Tensor, " e"], counts: Float[Tensor, "b subjects"]) -> Float[Tensor, " b"]:
    """Mean over episodes, weighted by the counts of their subjects."""
    return summed(episodes, values, counts) / summed(episodes, torch.ones_like(values), counts)


def by_subject(episodes: Episodes, table: Float[Tensor, "e *w"]) -> Float[Tensor, "subjects *w"]:
    """Sum over every subject's episodes."""
    return table.new_zeros(episodes.subjects, *table.shape[1:]).index_add_(0, episodes.subject, table)


def _require_one_member(critic: Critic) -> None:
    require(
        len(critic.taken) == 1,
        f"the critic has {len(critic.taken)} members, and one is to be corrected; pass that of FQE.cross_fit",
    )


@dataclass(frozen=True, eq=False)
class _CriticTerms:
    """The terms of DR: those weighted by w_t, and those weighted by w_{t−1}."""

    residual: Float[Tensor, "e t"]
    """γ^t·(r_t − Q(s_t, a_t)), plus γ^t·γ·V(s_{t+1}) at the last step of a truncated episode."""
    value: Float[Tensor, "e t"]
    """γ^t·V(s_t)."""

    @classmethod
    def of(cls, data: OPEData, critic: Critic) -> "_CriticTerms":
        _require_one_member(critic)
        episodes, rows, step = data.episodes, data.rows, discounts(data)
        last = torch.zeros(len(rows), dtype=torch.bool)
        last[episodes.places.gather(1, episodes.length[:, None] - 1)] = True
        rest = data.discount * critic.after[0].double() * (last & ~rows.terminated)
        residual = episodes.table(rows.reward.double() + rest - critic.taken[0].double())
        return cls(residual * step, episodes.table(critic.state[0].double()) * step)


@dataclass(frozen=True, eq=False)
class _SubjectSteps:
    """Sums over every subject's episodes, by step, that make up the j-step returns of MAGIC."""

    weight: Float[Tensor, "subjects t"]
    previous: Float[Tensor, "subjects t"]
    residual: Float[Tensor, "subjects t"]
    value: Float[Tensor, "subjects t"]

    @classmethod
    def of(cls, data: OPEData, critic: Critic) -> "_SubjectSteps":
        terms = _CriticTerms.of(data, critic)
        weight = relative_weight(data)
        previous = _previous(weight)
        tables = weight, previous, weight * terms.residual, previous * terms.value
        return cls(*(by_subject(data.episodes, table) for table in tables))

    def returns(self, drawn: Float[Tensor, " subjects"]) -> Float[Tensor, "subjects j"]:
        """Every subject's contribution to the j-step returns of one resample, from j = −1 on."""
        residual = (self.residual / (drawn @ self.weight)).cumsum(1)
        value = (self.value / (drawn @ self.previous)).cumsum(1)
        return nn.functional.pad(residual, (1, 0)) + torch.cat([value, value[:, -1:]], 1)


def _previous(weight: Float[Tensor, "e t"]) -> Float[Tensor, "e t"]:
    """w_{t−1}, which is 1 before the first step."""
    return nn.functional.pad(weight[:, :-1], (1, 0), value=1.0)


def _mixture(contributions: Float[Tensor, "subjects j"], drawn: Float[Tensor, " subjects"]) -> Float[Tensor, ""]:
    """The mixture of j-step returns with the least estimated error; the last of them is WDR."""
    value, count = drawn @ contributions, drawn.sum()
    deviations = contributions - value / count
    covariance = count / (count - 1) * (deviations.T * drawn) @ deviations
    half_width = Z90 * covariance[-1, -1].sqrt()
    bias = value - value.clamp(value[-1] - half_width, value[-1] + half_width)
    return _simplex_minimum(covariance + bias.outer(bias)) @ value


def _simplex_minimum(matrix: Float[Tensor, "j j"]) -> Float[Tensor, " j"]:
    """Minimise x'Mx over the simplex: x = y/Σy, where y ≥ 0 minimises y'My/2 − Σy, by non-negative least squares.

    A small multiple of the identity makes the solution unique if returns are identical. It is much smaller than the
    critic's variance, which may be a millionth of that of WDR.
    """
    from scipy.optimize import nnls

    scale = matrix.diagonal().mean()
    if not scale > 0:  # All returns are equal, or NaN, which is passed on.
        return torch.full_like(matrix[0], 1 / len(matrix)) + scale
    lower = torch.linalg.cholesky(matrix / scale + 1e-12 * torch.eye(len(matrix), dtype=matrix.dtype))
    ones = torch.ones(len(matrix), 1, dtype=matrix.dtype)
    solution = nnls(lower.T.numpy(), torch.linalg.solve_triangular(lower, ones, upper=False)[:, 0].numpy())[0]
    return torch.from_numpy(solution / solution.sum())
