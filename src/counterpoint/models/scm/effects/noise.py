"""How large the noise of a row is: a combined error, part of it constant and part proportional to the amount.

    e_t ~ N(0, K + diag(q·ŝ'_t)²)

Rows under little noise say more about a subject than others, so the linear model weighs them by this.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

ROUNDS = 10
"""Rounds of reweighting in which the two parts are separated."""
LEAST = 1e-4
"""Share of a column's mean square residual that stays constant noise at least."""
NUGGET = 1e-6
"""Variance that every equation has beside its noise, as a share of its mean square change: a column that is a function
of the others would otherwise outweigh all that are not."""


@dataclass(frozen=True)
class CombinedNoise:
    """The noise of every column."""

    constant: Float[Tensor, "d d"]
    """K."""
    share: Float[Tensor, " d"]
    """q, in units of the amount; all 0 where the noise is constant."""

    @classmethod
    def of(cls, residual: Float[Tensor, "m d"], amount: Float[Tensor, "m d"], combined: bool) -> "CombinedNoise":
        """What explains squared residuals column by column, and products of residuals beside."""
        if not combined:
            covariance = residual.T @ residual / len(residual)
            nugget = NUGGET * torch.eye(len(covariance)).to(covariance)
            return cls(proper(covariance + nugget), torch.zeros_like(residual[0]))
        square = residual.square() + NUGGET
        parts = [_combined(r, a) for r, a in zip(square.T, amount.square().T, strict=True)]
        base, share = torch.stack(parts).T
        weight = (base + share * amount.square()).rsqrt()
        white, total = residual * weight.square(), weight.square()
        constant = (white.T @ white) / (total.T @ total)
        constant = constant + torch.diag(base - constant.diagonal())
        return cls(proper(constant), share.sqrt())

    @property
    def combined(self) -> bool:
        return bool(self.share.any())

    def roots(self, amount: Float[Tensor, "m d"]) -> Float[Tensor, "m d d"]:
        """Cholesky factors of every row's covariance."""
        if not self.combined:
            return torch.linalg.cholesky(self.constant).expand(len(amount), -1, -1)
        return torch.linalg.cholesky(self.constant + (self.share * amount).square().diag_embed())


def proper(covariance: Float[Tensor, "d d"]) -> Float[Tensor, "d d"]:
    """The nearest covariance without a direction that has (nearly) no noise."""
    scale = covariance.diagonal().clamp(min=1e-30).sqrt()
    value, vector = torch.linalg.eigh((covariance + covariance.T) / 2 / (scale[:, None] * scale))
    return (vector * value.clamp(min=LEAST)) @ vector.T * (scale[:, None] * scale)


def _combined(square: Float[Tensor, " m"], amount: Float[Tensor, " m"]) -> Float[Tensor, " 2"]:
    """The constant and the proportional part of a variance, by reweighted least squares, neither below zero."""
    total, inputs = square.mean().clamp(min=1e-30), torch.stack([torch.ones_like(amount), amount], 1)
    alone = torch.stack([total, torch.zeros_like(total)])
    parts = alone
    for _ in range(ROUNDS):
        weight = (inputs @ parts).square().reciprocal()[:, None]
        left, right = inputs.T @ (weight * inputs), inputs.T @ (weight[:, 0] * square)
        solved = torch.linalg.solve(left + 1e-12 * left.diagonal().mean() * torch.eye(2).to(left), right)
        if not bool(solved.isfinite().all()) or bool(solved[1] <= 0):
            return alone
        parts = torch.stack([solved[0].maximum(LEAST * total), solved[1]])
    return parts
