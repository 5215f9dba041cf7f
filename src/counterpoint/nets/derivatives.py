"""The two costly steps of `laws.SkewedSpline`'s log density, with their derivatives written out.

While a law is fitted its minibatches are small, so that time goes by the number of operations: these are a third of
those that automatic differentiation makes. Both can be differentiated once.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

LOG_ROOT_TWO_PI = 0.5 * math.log(2 * math.pi)


class _Unbend(Function):
    """(y, μ, log σ, s) ↦ (z, log dz/dy) where y = μ + σ·b₁(b₂(…(z))), b(z) = z + s·(√(1 + (z − t)²) − 1).

    A bend is a quadratic equation: with v = y − t + s, x = z − t, r = √(1 + x²) and q = √(1 − s² + v²),

        x = (v − s·q)/(1 − s²),    b′ = q/r,    ∂x/∂y = r/q,    ∂x/∂s = (1 − r)·r/q,

        ∂log b′/∂x = s/(r²·q),    ∂log b′/∂s = x/q.

    The raw numbers are μ, log σ and the bends' s, the last two before bound·tanh(raw/bound) and steepest·tanh(raw).
    """

    @staticmethod
    def forward(
        ctx: Any,
        y: Float[Tensor, "*n"],
        raw: Float[Tensor, "w *n"],
        knots: Sequence[float],
        bound: float,
        steepest: float,
    ) -> tuple[Float[Tensor, "*n"], Float[Tensor, "*n"]]:
        one, log_scale, s = raw.new_ones(()), (raw[1] / bound).tanh_().mul_(bound), raw[2:].tanh().mul_(steepest)
        shrink = log_scale.neg().exp_()
        z = standard = (y - raw[0]).mul_(shrink)
        rest, x, q = torch.addcmul(one, s, s, value=-1), torch.empty_like(s), torch.empty_like(s)
        bends = list(zip(knots, s.unbind(0), rest.unbind(0), x.unbind(0), q.unbind(0), strict=True))
        for knot, s_i, rest_i, x_i, q_i in reversed(bends):
            v = (z + s_i).sub_(knot)
            torch.addcmul(rest_i, v, v, out=q_i).sqrt_()
            z = torch.addcmul(v, s_i, q_i, value=-1, out=x_i).div_(rest_i) + knot
        r = torch.addcmul(one, x, x).sqrt_()
        flatter = r / q
        ctx.bound, ctx.steepest = bound, steepest
        ctx.save_for_backward(log_scale, shrink, standard, s, x, q, r, flatter)
        return z, flatter.log().sum(0).sub_(log_scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_z: Tensor, by_log: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        log_scale, shrink, standard, s, x, q, r, flatter = ctx.saved_tensors
        by_slope = by_log / q
        by_x, by_each = (by_slope * s).div_(r).div_(r), torch.empty_like(x)
        for by_x_i, flatter_i, by_y in zip(by_x.unbind(0), flatter.unbind(0), by_each.unbind(0), strict=True):
            by_z = torch.mul(by_z - by_x_i, flatter_i, out=by_y)
        by_y, by_raw = by_z * shrink, s.new_empty(len(s) + 2, *log_scale.shape)
        torch.neg(by_y, out=by_raw[0])
        torch.addcmul(by_log, by_z, standard, out=by_raw[1]).mul_((log_scale / ctx.bound).square_().sub_(1))
        by_s = torch.addcmul(by_each, by_each, r, value=-1).addcmul_(by_slope, x, value=-1)
        torch.mul(by_s, (s / ctx.steepest).square_().sub_(1).mul_(-ctx.steepest), out=by_raw[2:])
        return by_y, by_raw, None, None, None


class _LogDensity(Function):
    """log φ(u) + log du/dz of u = y₀ + h·B/A, one piece of a rational-quadratic spline for every z (`spline.py`).

    t = (z − x₀)/w,    A = s + c·t(1 − t),    B = t·(s·t + d₀(1 − t)),    du/dz = s²·N/A²,

    N = c·t² + 2s·t + d₀(1 − 2t),    which is computed as a sum of what is positive.
    """

    @staticmethod
    def forward(ctx: Any, z: Float[Tensor, "*n"], pieces: Float[Tensor, "7 *n"]) -> Float[Tensor, "*n"]:
        x0, y0, c, width, height, s, d0 = pieces.unbind(0)
        t = (z - x0).div_(width)
        rest = torch.sub(z.new_ones(()), t)
        over, a = torch.addcmul(s * t, d0, rest), torch.addcmul(s, c, t * rest)
        d1 = torch.add(c, s, alpha=2).sub_(d0)
        n = torch.addcmul(over * rest, t, torch.addcmul(s * rest, d1, t))
        ratio = (t * over).div_(a)
        u = torch.addcmul(y0, height, ratio)
        ctx.save_for_backward(pieces, t, over, a, n, ratio, u)
        log_slope = (s / a).square_().mul_(n).log_()
        return log_slope.addcmul_(u, u, value=-0.5).sub_(LOG_ROOT_TWO_PI)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_log: Tensor) -> tuple[Tensor, Tensor]:
        pieces, t, over, a, n, ratio, u = ctx.saved_tensors
        _, _, c, width, height, s, d0 = pieces.unbind(0)
        by_x0, by_y0, by_c, by_width, by_height, by_s, by_d0 = (by_pieces := torch.empty_like(pieces)).unbind(0)
        torch.mul(by_log, u, out=by_y0).neg_()
        torch.mul(by_y0, ratio, out=by_height)
        by_b, by_n = (by_y0 * height).div_(a), by_log / n
        by_a = torch.addcdiv(by_b * ratio, by_log, a, value=2).neg_()
        slope, turn, square = s - d0, torch.sub(t.new_ones(()), t, alpha=2), t.square()
        both = t - square
        torch.addcmul(by_a, by_b, square, out=by_s).addcmul_(by_n, t, value=2).addcdiv_(by_log, s, value=2)
        torch.mul(by_b, both, out=by_d0).addcmul_(by_n, turn)
        torch.mul(by_a, both, out=by_c).addcmul_(by_n, square)
        by_t = (by_a * c).mul_(turn).addcmul_(by_b, torch.addcmul(over, t, slope))
        by_z = by_t.addcmul_(by_n, torch.addcmul(slope, c, t), value=2).div_(width)
        torch.neg(by_z, out=by_x0)
        torch.mul(by_x0, t, out=by_width)
        return by_z, by_pieces


unbend: Callable[..., tuple[Tensor, Tensor]] = _Unbend.apply
piece_log_density: Callable[[Tensor, Tensor], Tensor] = _LogDensity.apply
