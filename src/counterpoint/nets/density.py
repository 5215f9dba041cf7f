"""One-dimensional conditional laws that are strictly increasing in their noise: u ~ N(0,1), y = f(parameters, u).

Each law turns `width` raw numbers from a network into a density, its abduction u = f⁻¹(y) and its prediction y = f(u).
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from zuko.transforms import MonotonicRQSTransform

LOG_ROOT_TWO_PI = 0.5 * math.log(2 * math.pi)
BOUND = 5.0
"""The spline bends within ±5 standard deviations and is the identity outside."""


def bounded_log_scale(raw: Tensor) -> Tensor:
    """A log standard deviation kept within e^±7, softly."""
    return 7 * torch.tanh(raw / 7)


@dataclass(frozen=True)
class Gaussian:
    """y = μ + σ·u."""

    @property
    def width(self) -> int:
        return 2

    def log_prob(self, parameters: Float[Tensor, "*n w"], y: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return -0.5 * self.abduct(parameters, y).square() - LOG_ROOT_TWO_PI - bounded_log_scale(parameters[..., 1])

    def abduct(self, parameters: Float[Tensor, "*n w"], y: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return (y - parameters[..., 0]) * torch.exp(-bounded_log_scale(parameters[..., 1]))

    def predict(self, parameters: Float[Tensor, "*n w"], u: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return parameters[..., 0] + u * torch.exp(bounded_log_scale(parameters[..., 1]))


@dataclass(frozen=True)
class Spline:
    """y = μ + σ·spline⁻¹(u): location-scale with a rational-quadratic spline that bends the noise (Durkan et al. 2019)."""

    bins: int = 8
    """Pieces of the spline."""

    @property
    def width(self) -> int:
        return 2 + 3 * self.bins - 1

    def _bend(self, parameters: Tensor) -> MonotonicRQSTransform:
        bins = self.bins
        widths, heights, slopes = parameters[..., 2:].split([bins, bins, bins - 1], dim=-1)
        return MonotonicRQSTransform(widths, heights, slopes, bound=BOUND, slope=1e-3)

    def log_prob(self, parameters: Float[Tensor, "*n w"], y: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        straight = Gaussian().abduct(parameters, y)
        u, log_slope = self._bend(parameters).call_and_ladj(straight)
        return -0.5 * u.square() - LOG_ROOT_TWO_PI + log_slope - bounded_log_scale(parameters[..., 1])

    def abduct(self, parameters: Float[Tensor, "*n w"], y: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return self._bend(parameters)(Gaussian().abduct(parameters, y))

    def predict(self, parameters: Float[Tensor, "*n w"], u: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return Gaussian().predict(parameters, self._bend(parameters).inv(u))


@dataclass(frozen=True)
class Mixture:
    """y is the Φ(u)-quantile of a mixture of Gaussians: Theorem 1 made literal, α = F(y | s, a)."""

    components: int = 5
    """Gaussians in the mixture."""

    @property
    def width(self) -> int:
        return 3 * self.components

    def _parts(self, parameters: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits, means, scales = parameters.split(self.components, dim=-1)
        return logits.log_softmax(-1), means, bounded_log_scale(scales)

    def log_prob(self, parameters: Float[Tensor, "*n w"], y: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        weights, means, scales = self._parts(parameters)
        standard = (y[..., None] - means) * torch.exp(-scales)
        return torch.logsumexp(weights - 0.5 * standard.square() - LOG_ROOT_TWO_PI - scales, -1)

    def abduct(self, parameters: Float[Tensor, "*n w"], y: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """u = Φ⁻¹(F(y)), computed from the smaller tail so that far values keep their digits."""
        weights, means, scales = self._parts(parameters)
        standard = (y[..., None] - means) * torch.exp(-scales)
        below = torch.logsumexp(weights + torch.special.log_ndtr(standard), -1)
        above = torch.logsumexp(weights + torch.special.log_ndtr(-standard), -1)
        upper = below > above
        tail = _normal_quantile_of_log(torch.where(upper, above, below))
        return torch.where(upper, -tail, tail)

    def predict(self, parameters: Float[Tensor, "*n w"], u: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """The quantile by bisection between the components' own quantiles, which always bracket it."""
        _, means, scales = self._parts(parameters)
        quantiles = means + u[..., None] * torch.exp(scales)
        low, high = quantiles.amin(-1), quantiles.amax(-1)
        for _ in range(40):
            middle = (low + high) / 2
            too_low = self.abduct(parameters, middle) < u
            low, high = torch.where(too_low, middle, low), torch.where(too_low, high, middle)
        return (low + high) / 2


def _normal_quantile_of_log(log_probability: Tensor) -> Tensor:
    """Φ⁻¹(e^x) for x ≤ log ½: a tail expansion far out, and three Newton steps on log Φ."""
    x = log_probability
    near = torch.special.ndtri(torch.exp(x).clamp(min=1e-30))
    far = -torch.sqrt((-2 * x).clamp(min=1e-6))
    u = torch.where(x > -60.0, near, far)
    for _ in range(3):
        log_cdf = torch.special.log_ndtr(u)
        log_density = -0.5 * u.square() - LOG_ROOT_TWO_PI
        u = u - (log_cdf - x) * torch.exp(log_cdf - log_density)
    return u


Law = Gaussian | Spline | Mixture
