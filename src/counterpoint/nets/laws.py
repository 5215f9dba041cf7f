"""One-dimensional conditional laws that are strictly increasing in their noise: u ~ N(0,1), y = f(parameters, u).

Each law turns raw numbers into a density, its abduction u = f⁻¹(y) and its prediction y = f(u). Where the raw numbers
are zero it is (nearly) the standard normal law: a network whose last layer is zero starts from what standardised y.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Transform
from torch.nn.functional import embedding
from zuko.transforms import MonotonicRQSTransform

from counterpoint.core.settings import Finite, Fraction, Positive, check_settings
from counterpoint.nets.derivatives import LOG_ROOT_TWO_PI, spline_log_density, spline_pieces, unbend

BOUND = 5.0
"""A spline bends within ±5 standard deviations and is the identity outside."""
SLOPE = 1e-3
"""Pieces and their ends have slopes between this and its inverse."""


class SplineTable:
    """The pieces of one rational-quadratic spline for each entry of a leading shape that broadcasts against the values.

    With t = (x − x₀)/w in the piece from (x₀, y₀) of width w, height h, mean slope s = h/w and end slopes d₀, d₁,

        y = y₀ + h·t·(s·t + d₀(1 − t)) / (s + c·t(1 − t)),    c = d₀ + d₁ − 2s    (Durkan et al., 2019)

    and back by the quadratic formula. The two pieces outside are lines of slope 1. A table of the pieces makes this
    several times faster than the general transformation.

    The raw numbers are those of zuko's `MonotonicRQSTransform`: widths, heights and slopes at the inner knots.
    """

    def __init__(self, raw: Float[Tensor, "*m w"], bins: int) -> None:
        knots, self.pieces = spline_pieces(raw, bins, BOUND, SLOPE)
        self.x, self.y = knots.unbind(-2)

    def log_density(self, z: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Log density of z where its value here is standard normal."""
        if self.x.dim() > 1 and self.x.shape[-2] == 1:
            return self._log_density(z, self.x.squeeze(-2), self.pieces.squeeze(-3))
        return self._log_density(z[..., None], self.x, self.pieces)[..., 0]

    def _log_density(self, z: Tensor, knots: Tensor, pieces: Tensor) -> Tensor:
        leading = z.shape[:-1]
        return spline_log_density(z, knots.expand(*leading, -1), pieces.expand(*leading, -1, -1))

    def forward(self, x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        x0, y0, curve, width, height, mean, first = self._piece(self.x, x).unbind(-1)
        t = (x - x0) / width
        rest = 1 - t
        over, under = torch.addcmul(mean * t, first, rest), torch.addcmul(mean, curve, t * rest)
        return torch.addcmul(y0, height, t * over / under)

    def inverse(self, y: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        x0, y0, curve, width, height, mean, first = self._piece(self.y, y).unbind(-1)
        above = y - y0
        bent, scaled = above * curve, above * mean
        a, b = torch.addcmul(bent, height, mean - first), height * first - bent
        root = torch.addcmul(b.square(), a, scaled, value=4).sqrt_()
        return torch.addcmul(x0, width, scaled / (b + root), value=2)

    def _piece(self, knots: Float[Tensor, "*m k"], values: Float[Tensor, "*n"]) -> Float[Tensor, "*n 7"]:
        """The seven numbers of the piece that every value lies in."""
        passed = torch.zeros(values.shape, dtype=torch.uint8, device=values.device)
        for knot in knots.unbind(-1):
            passed += (values > knot).view(torch.uint8)
        leading, count = self.pieces.shape[:-2], self.pieces.shape[-1]
        # Short integers throughout: looking up is bound by memory.
        first = torch.arange(0, leading.numel() * count, count, device=values.device, dtype=torch.int32).view(leading)
        return embedding(passed + first, self.pieces.mT.flatten(0, -2))


LARGEST_LOG_SCALE = 7.0
"""A standard deviation lies within e^± this."""


class LawParameters(NamedTuple):
    """The raw numbers of a law: `own` depend on the context, `shared` are the same in every context."""

    own: Float[Tensor, "*n w"]
    shared: Float[Tensor, "*n v"]


def bounded(raw: Tensor, bound: float, unit: float = 1.0) -> Tensor:
    """bound·tanh(raw/unit); without gradients on a processor by the sigmoid, which is three times as fast there."""
    if raw.is_cuda or torch.is_grad_enabled():
        return bound * torch.tanh(raw / unit)
    return torch.add(raw.new_tensor(-bound), (raw * (2 / unit)).sigmoid_(), alpha=2 * bound)


def bounded_log_scale(raw: Tensor) -> Tensor:
    """A log standard deviation kept within ±`LARGEST_LOG_SCALE`, softly."""
    return bounded(raw, LARGEST_LOG_SCALE, LARGEST_LOG_SCALE)


def log_normal(u: Tensor) -> Tensor:
    """Log density of the standard normal law."""
    return -0.5 * u.square() - LOG_ROOT_TWO_PI


class UnsharedLaw(ABC):
    """A law whose shape no two contexts share: its residual is its noise."""

    @abstractmethod
    def abduct(self, raw: LawParameters, y: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """The noise behind y."""

    @abstractmethod
    def predict(self, raw: LawParameters, u: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """What the noise leads to."""

    def residual(self, raw: LawParameters, y: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return self.abduct(raw, y)

    def restore(self, raw: LawParameters, residual: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return self.predict(raw, residual)


@dataclass(frozen=True)
class Gaussian(UnsharedLaw):
    """y = μ + σ·u."""

    @property
    def width(self) -> int:
        return 2

    @property
    def shared(self) -> int:
        return 0

    def log_prob(self, raw: LawParameters, y: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return log_normal(self.abduct(raw, y)) - bounded_log_scale(raw.own[..., 1])

    def abduct(self, raw: LawParameters, y: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return (y - raw.own[..., 0]) * torch.exp(-bounded_log_scale(raw.own[..., 1]))

    def predict(self, raw: LawParameters, u: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return torch.addcmul(raw.own[..., 0], u, torch.exp(bounded_log_scale(raw.own[..., 1])))


@dataclass(frozen=True)
class Spline(UnsharedLaw):
    """y = μ + σ·spline⁻¹(u): location-scale, its noise bent by a rational-quadratic spline (Durkan et al. 2019)."""

    bins: Positive = 8
    """Pieces of the spline."""

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def width(self) -> int:
        return 2 + 3 * self.bins - 1

    @property
    def shared(self) -> int:
        return 0

    def log_prob(self, raw: LawParameters, y: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        u, log_slope = _spline(raw.own[..., 2:], self.bins).call_and_ladj(Gaussian().abduct(raw, y))
        return log_normal(u) + log_slope - bounded_log_scale(raw.own[..., 1])

    def abduct(self, raw: LawParameters, y: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return _through(_spline(raw.own[..., 2:], self.bins), Gaussian().abduct(raw, y))

    def predict(self, raw: LawParameters, u: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return Gaussian().predict(raw, _through(_spline(raw.own[..., 2:], self.bins).inv, u))


@dataclass(frozen=True)
class SkewedSpline:
    """y = μ + σ·b₁(b₂(…(base(u)))): a shape that all contexts share, bent a little by each.

    `base` is a spline whose raw numbers do not depend on the context: it learns from every row what kind of noise there
    is (two modes, heavy tails). A bend at t has one number s of the context, |s| ≤ `steepest` < 1,

        b(z) = z + s·(√(1 + (z − t)²) − 1),    slope 1 + s·(z − t)/√(1 + (z − t)²),

    so that it flattens one side and steepens the other; several bends turn skew and tails. Both directions are closed
    forms, and beyond the outermost bends the law continues as a line.
    """

    knots: tuple[Finite, ...] = (-2.0, -1.0, 0.0, 1.0, 2.0)
    """Where the bends are, in standard deviations."""
    bins: Positive = 8
    """Pieces of the shared spline."""
    steepest: Fraction = 0.6
    """A bend's slopes lie between 1 − this and 1 + this; near 1, several bends together blow up errors in far rows."""

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def width(self) -> int:
        return 2 + len(self.knots)

    @property
    def shared(self) -> int:
        return 3 * self.bins - 1

    def log_prob(self, raw: LawParameters, y: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        z, log_slope = unbend(y, raw.own.movedim(-1, 0), self.knots, LARGEST_LOG_SCALE, self.steepest)
        return self._base(raw).log_density(z) + log_slope

    def abduct(self, raw: LawParameters, y: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return self._base(raw).forward(self.residual(raw, y))

    def predict(self, raw: LawParameters, u: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return self.restore(raw, self._base(raw).inverse(u))

    def residual(self, raw: LawParameters, y: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """base(u): a counterfactual can go through it and leave the noise itself unknown."""
        z = Gaussian().abduct(raw, y)
        for knot, s in reversed(self._bends(raw)):
            z = _unbend(z - knot, s) + knot
        return z

    def restore(self, raw: LawParameters, residual: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        z, one = residual, residual.new_ones(())
        for knot, s in self._bends(raw):
            x = z - knot
            z = torch.addcmul(z - s, s, torch.addcmul(one, x, x).sqrt_())
        return Gaussian().predict(raw, z)

    def _base(self, raw: LawParameters) -> SplineTable:
        return SplineTable(raw.shared, self.bins)

    def _bends(self, raw: LawParameters) -> list[tuple[float, Tensor]]:
        strengths = bounded(raw.own[..., 2:], self.steepest)
        return list(zip(self.knots, strengths.unbind(-1), strict=True))


@dataclass(frozen=True)
class Mixture(UnsharedLaw):
    """y is the Φ(u)-quantile of a mixture of Gaussians: Theorem 1 made literal, α = F(y | s, a)."""

    components: Positive = 5
    """Gaussians in the mixture."""

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def width(self) -> int:
        return 3 * self.components

    @property
    def shared(self) -> int:
        return 0

    def _parts(self, raw: LawParameters) -> tuple[Tensor, Tensor, Tensor]:
        """Log weights, means and log standard deviations; the means start apart, for alike they would stay alike."""
        logits, means, scales = raw.own.split(self.components, dim=-1)
        # Made where it is needed: a graph of a GPU's work cannot hold a copy from elsewhere.
        apart = torch.linspace(-1.5, 1.5, self.components, dtype=means.dtype, device=means.device)
        return logits.log_softmax(-1), means + apart * (self.components > 1), bounded_log_scale(scales)

    def log_prob(self, raw: LawParameters, y: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        weights, means, scales = self._parts(raw)
        standard = (y[..., None] - means) * torch.exp(-scales)
        return torch.logsumexp(weights + log_normal(standard) - scales, -1)

    def abduct(self, raw: LawParameters, y: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """u = Φ⁻¹(F(y)), computed from the smaller tail so that far values keep their digits."""
        return _mixture_noise(self._parts(raw), y)

    def predict(self, raw: LawParameters, u: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """The quantile by bisection between the components' own quantiles, which always bracket it."""
        parts = self._parts(raw)
        quantiles = parts[1] + u[..., None] * torch.exp(parts[2])
        low, high = quantiles.amin(-1), quantiles.amax(-1)
        for _ in range(40):
            middle = (low + high) / 2
            too_low = _mixture_noise(parts, middle) < u
            low, high = torch.where(too_low, middle, low), torch.where(too_low, high, middle)
        return (low + high) / 2


def _spline(raw: Float[Tensor, "*n w"], bins: int) -> MonotonicRQSTransform:
    widths, heights, slopes = raw.split([bins, bins, bins - 1], dim=-1)
    return MonotonicRQSTransform(widths, heights, slopes, bound=BOUND, slope=SLOPE)


def _through(transform: Transform, x: Tensor) -> Tensor:
    """`transform(x)`, whose type torch does not tell."""
    return cast(Tensor, transform(x))


def _unbend(y: Tensor, s: Tensor) -> Tensor:
    """The x with x + s(√(1 + x²) − 1) = y: a quadratic equation whose other root belongs to −√."""
    y = y + s
    rest = 1 - s.square()
    return torch.addcmul(y, s, torch.sqrt(torch.addcmul(rest, y, y)), value=-1) / rest


def _mixture_noise(parts: tuple[Tensor, Tensor, Tensor], y: Tensor) -> Tensor:
    weights, means, scales = parts
    standard = (y[..., None] - means) * torch.exp(-scales)
    below = torch.logsumexp(weights + torch.special.log_ndtr(standard), -1)
    above = torch.logsumexp(weights + torch.special.log_ndtr(-standard), -1)
    upper = below > above
    tail = _normal_quantile_of_log(torch.where(upper, above, below))
    return torch.where(upper, -tail, tail)


def _normal_quantile_of_log(log_probability: Tensor) -> Tensor:
    """Φ⁻¹(e^x) for x ≤ log ½: a tail expansion far out, and three Newton steps on log Φ."""
    x = log_probability
    near = torch.special.ndtri(torch.exp(x).clamp(min=1e-30))
    far = -torch.sqrt((-2 * x).clamp(min=1e-6))
    u = torch.where(x > -60.0, near, far)
    for _ in range(3):
        log_cdf = torch.special.log_ndtr(u)
        u = u - (log_cdf - x) * torch.exp(log_cdf - log_normal(u))
    return u


Law = Gaussian | Spline | SkewedSpline | Mixture
