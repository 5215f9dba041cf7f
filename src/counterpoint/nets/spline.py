"""A rational-quadratic spline that many values share, evaluated from a table of its pieces (Durkan et al. 2019).

With t = (x − x₀)/w in the piece from (x₀, y₀) of width w, height h, mean slope s = h/w and end slopes d₀, d₁,

    y = y₀ + h·t·(s·t + d₀(1 − t)) / (s + c·t(1 − t)),    c = d₀ + d₁ − 2s,

and back by the quadratic formula. The two pieces outside are lines of slope 1. Looking pieces up once instead of
computing them for every value makes this several times faster than the general transformation it is built from.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import embedding

from counterpoint.nets.derivatives import spline_log_density, spline_pieces

BOUND = 5.0
"""A spline bends within ±5 standard deviations and is the identity outside."""
SLOPE = 1e-3
"""Pieces and their ends have slopes between this and its inverse."""


class SplineTable:
    """The pieces of one spline for each entry of a leading shape that broadcasts against the values.

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
