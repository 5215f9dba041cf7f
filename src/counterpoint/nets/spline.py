"""A rational-quadratic spline that many values share, evaluated from a table of its pieces (Durkan et al. 2019).

With t = (x − x₀)/w in the piece from (x₀, y₀) of width w, height h, mean slope s = h/w and end slopes d₀, d₁,

    y = y₀ + h·t·(s·t + d₀(1 − t)) / (s + c·t(1 − t)),    c = d₀ + d₁ − 2s,

and back by the quadratic formula. The two pieces outside are lines of slope 1. Looking pieces up once instead of
computing them for every value makes this several times faster than the general transformation it is built from.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from zuko.transforms import MonotonicRQSTransform


class SplineTable:
    """The pieces of one spline for each entry of a leading shape that broadcasts against the values."""

    def __init__(self, spline: MonotonicRQSTransform) -> None:
        self.x, self.y = spline.horizontal, spline.vertical
        width, height, slope = self.x.diff(dim=-1), self.y.diff(dim=-1), spline.derivatives
        mean, first, last = height / width, slope[..., :-1], slope[..., 1:]
        # Outside, (x₀, w, y₀, h, s, d₀, c) = (0, 1, 0, 1, 1, 1, 0) is the identity.
        inside = (self.x[..., :-1], width, self.y[..., :-1], height, mean, first, first + last - 2 * mean)
        columns = zip(inside, (0.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0), strict=True)
        self.pieces = torch.stack([torch.nn.functional.pad(c, (1, 1), value=outside) for c, outside in columns], -1)

    def forward(self, x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        x0, width, y0, height, mean, first, curve = self._piece(self.x, x)
        t = (x - x0) / width
        rest = 1 - t
        over, under = torch.addcmul(mean * t, first, rest), torch.addcmul(mean, curve, t * rest)
        return torch.addcmul(y0, height, t * over / under)

    def inverse(self, y: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        x0, width, y0, height, mean, first, curve = self._piece(self.y, y)
        above = y - y0
        bent, scaled = above * curve, above * mean
        a, b = torch.addcmul(bent, height, mean - first), height * first - bent
        root = torch.addcmul(b.square(), a, scaled, value=4).sqrt_()
        return torch.addcmul(x0, width, scaled / (b + root), value=2)

    def _piece(self, knots: Float[Tensor, "*m k"], values: Float[Tensor, "*n"]) -> tuple[Tensor, ...]:
        """The seven numbers of the piece that every value lies in."""
        passed = torch.zeros(values.shape, dtype=torch.uint8, device=values.device)
        for knot in knots.unbind(-1):
            passed += (values > knot).view(torch.uint8)
        leading, count = self.pieces.shape[:-2], self.pieces.shape[-2]
        # Short integers throughout: looking up is bound by memory.
        first = torch.arange(0, leading.numel() * count, count, device=values.device, dtype=torch.int32).view(leading)
        return torch.nn.functional.embedding(passed + first, self.pieces.flatten(0, -2)).unbind(-1)
