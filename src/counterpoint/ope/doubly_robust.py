"""A critic corrected by what was logged: DR (Jiang and Li, 2016), WDR and MAGIC (Thomas and Brunskill, 2016).

Σ_t γ^t·(w_t·(r_t − Q(s_t, a_t)) + w_{t−1}·V(s_t)), summed over episodes, with w_t = ρ_t/n and w_{−1} = 1/n for DR and
w_t = ρ_t/Σρ_t for WDR; ρ as in `weighting`. An episode that has ended keeps its last weight, and 0 are its rewards and
values. Where a record stops (truncated) the critic's value of the state that it stops in stands for the rest, as one
more reward. Where the critic is right all three are, whatever the weights.

The critic is held fixed: it should not have been fitted on the subjects it values (`FQE.cross_fit`).
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from counterpoint.core.errors import require
from counterpoint.ope.critic import Critic
from counterpoint.ope.episodes import Question
from counterpoint.ope.weighting import by_subject, discounts, mean, relative_weight, summed

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
