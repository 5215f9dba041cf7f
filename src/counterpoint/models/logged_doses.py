"""A linear law of the logged doses given the state, from which the distance of another dose is measured.

    a = B·x(s) + e,   x(s) = (1, s, s²) standardised,   Var e = Σ
    z(s, a) = ‖Σ^(−1/2)·(a − B·x(s))‖,      d(s, a) = max(0, z(s, a) − z₀.₉₅)

d counts standard deviations of the dose residual beyond the range that holds 95% of the logged doses. For a listed
treatment with the probability p it grows like 1/√p. It needs a few hundred numbers, which are saved with a model: a
fitted model does not keep its log.
"""

from collections.abc import Mapping
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor, nn

from counterpoint.data.jobs import Categories, spread_levels
from counterpoint.data.spaces import ActionSpace, Discrete, nearest
from counterpoint.data.transitions import Transitions

USUAL = 0.95
"""Share of the logged doses that have distance 0."""
RIDGE = 1e-3
"""Ridge of the regression, in standardised units."""
FAR = 4.0
"""Standard deviations at which states are cut, so that squares of strange ones do not decide what is usual."""
LEAST = 1e-4
"""Least residual variance, as a share of the dose's variance: a dose that follows from the state has no other range."""


class LoggedDoses(nn.Module):
    """Usual doses by state, and how far another dose is from them."""

    mean: Tensor
    scale: Tensor
    coefficients: Tensor
    whitening: Tensor
    limit: Tensor

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        for name in ("mean", "scale", "coefficients", "whitening", "limit"):
            self.register_buffer(name, tensors[name])

    @classmethod
    @torch.no_grad()
    def of(cls, rows: Transitions) -> Self:
        """Fit the law on the real rows of a log."""
        real = rows[~rows.imagined]
        state = spread_levels(real.state, real.schema.categories).double()
        action = real.action.double()
        deviation = state.std(0, correction=0)
        scale = torch.where(deviation > 1e-8, deviation, 1.0)
        empty = {"coefficients": action[:0], "whitening": action[:0], "limit": action.new_zeros(())}
        law = cls({"mean": state.mean(0), "scale": scale, **empty})
        features = law._features(state)
        gram = features.T @ features + RIDGE * len(features) * torch.eye(features.shape[1]).to(features)
        law.coefficients = torch.linalg.solve(gram, features.T @ action)
        residual = action - features @ law.coefficients
        least = LEAST * action.var(0, correction=0) + 1e-12
        covariance = residual.T @ residual / len(residual) + least.diag()
        law.whitening = torch.linalg.inv(torch.linalg.cholesky(covariance)).T
        law.limit = (residual @ law.whitening).norm(dim=1).quantile(USUAL)
        return law.float()

    def _features(self, state: Float[Tensor, "n w"]) -> Float[Tensor, "n f"]:
        x = ((state - self.mean) / self.scale).clamp(-FAR, FAR)
        return torch.cat([torch.ones_like(x[:, :1]), x, x.square() - 1], 1)

    def mean_dose(self, state: Float[Tensor, "n s"], categories: Categories) -> Float[Tensor, "n a"]:
        """The mean logged dose in states like these."""
        return self._features(spread_levels(state, categories)) @ self.coefficients

    def distance(
        self, state: Float[Tensor, "n s"], action: Float[Tensor, "n a"], categories: Categories
    ) -> Float[Tensor, " n"]:
        """Distance d of each action from those logged in such states."""
        residual = action - self.mean_dose(state, categories)
        return ((residual @ self.whitening).norm(dim=1) - self.limit).clamp(min=0)

    def usual(self, state: Float[Tensor, "n s"], actions: ActionSpace, categories: Categories) -> Float[Tensor, "n a"]:
        """The action nearest to the mean logged dose."""
        dose = self.mean_dose(state, categories)
        if isinstance(actions, Discrete):
            return nearest(actions, dose)
        low, high = (torch.tensor(ends).to(dose) for ends in (actions.low, actions.high))
        return dose.clamp(low, high)
