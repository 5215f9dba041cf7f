"""The costly steps of `laws.SkewedSpline`'s penalised log density, with their derivatives written out.

While a law is fitted its minibatches are small, so that time goes by the number of operations: these are a third of
those that automatic differentiation makes. All can be differentiated once.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

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
        one = raw.new_ones(())
        log_scale, s = _bounded(raw[1], bound, bound), _bounded(raw[2:], steepest, 1.0)
        shrink = log_scale.neg().exp_()
        standard = (y - raw[0]).mul_(shrink)
        rest, x, q = torch.addcmul(one, s, s, value=-1), torch.empty_like(s), torch.empty_like(s)
        bends = list(zip(knots, s.unbind(0), rest.unbind(0), x.unbind(0), q.unbind(0), strict=True))
        x_before, before = standard, 0.0
        for knot, s_i, rest_i, x_i, q_i in reversed(bends):
            v = torch.add(x_before + s_i, one, alpha=before - knot)
            torch.addcmul(rest_i, v, v, out=q_i).sqrt_()
            x_before, before = torch.addcmul(v, s_i, q_i, value=-1, out=x_i).div_(rest_i), knot
        z = torch.add(x_before, one, alpha=before)
        r = torch.addcmul(one, x, x).sqrt_()
        flatter = r / q
        ctx.bound, ctx.steepest = bound, steepest
        ctx.save_for_backward(raw, log_scale, shrink, standard, s, x, q, r, flatter)
        return z, flatter.prod(0).log_().sub_(log_scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_z: Tensor, by_log: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        raw, log_scale, shrink, standard, s, x, q, r, flatter = ctx.saved_tensors
        by_slope = by_log / q
        by_x, by_each = (by_slope * s).div_(r).div_(r), torch.empty_like(x)
        for by_x_i, flatter_i, by_y in zip(by_x.unbind(0), flatter.unbind(0), by_each.unbind(0), strict=True):
            by_z = torch.mul(by_z - by_x_i, flatter_i, out=by_y)
        by_y, by_raw = by_z * shrink, torch.empty_like(raw)
        torch.neg(by_y, out=by_raw[0])
        by_log_scale = torch.addcmul(by_log, by_z, standard, out=by_raw[1])
        by_log_scale.mul_(_bounded_slope(log_scale, ctx.bound, ctx.bound)).neg_()
        by_s = torch.addcmul(by_each, by_each, r, value=-1).addcmul_(by_slope, x, value=-1)
        torch.mul(by_s, _bounded_slope(s, ctx.steepest, 1.0), out=by_raw[2:])
        return by_y, by_raw, None, None, None


def _bounded(raw: Tensor, bound: float, unit: float) -> Tensor:
    """bound·tanh(raw/unit) by the sigmoid, which is several times as fast on a processor."""
    return torch.sub(raw.new_ones(()), (raw * (2 / unit)).sigmoid_(), alpha=2).mul_(-bound)


def _bounded_slope(value: Tensor, bound: float, unit: float) -> Tensor:
    """The derivative of `_bounded` where it has this value."""
    return torch.addcmul(value.new_full((), bound / unit), value, value, value=-1 / (bound * unit))


class _LogDensity(Function):
    """log φ(u) + log du/dz of u = y₀ + h·B/A, the piece of a spline that z lies in (`laws.SplineTable`).

    t = (z − x₀)/w,    A = s + c·t(1 − t),    B = t·(s·t + d₀(1 − t)),    du/dz = s²·N/A²,

    N = c·t² + 2s·t + d₀(1 − 2t),    which is computed as a sum of what is positive.

    A product with a matrix of zeros and ones looks the pieces up, and its transpose adds up their gradients.
    """

    @staticmethod
    def forward(
        ctx: Any, z: Float[Tensor, "*m n"], knots: Float[Tensor, "*m k"], pieces: Float[Tensor, "*m 7 p"]
    ) -> Float[Tensor, "*m n"]:
        chosen = _chosen(z, knots)
        numbers = pieces @ chosen
        x0, y0, c, width, height, s, d0 = numbers.unbind(-2)
        t = (z - x0).div_(width)
        rest = torch.sub(z.new_ones(()), t)
        over, a = torch.addcmul(s * t, d0, rest), torch.addcmul(s, c, t * rest)
        d1 = torch.add(c, s, alpha=2).sub_(d0)
        n = torch.addcmul(over * rest, t, torch.addcmul(s * rest, d1, t))
        ratio = (t * over).div_(a)
        u = torch.addcmul(y0, height, ratio)
        ctx.save_for_backward(chosen, numbers, t, over, a, n, ratio, u)
        log_slope = (s / a).square_().mul_(n).log_()
        return log_slope.addcmul_(u, u, value=-0.5).sub_(LOG_ROOT_TWO_PI)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_log: Tensor) -> tuple[Tensor, None, Tensor]:
        chosen, numbers, t, over, a, n, ratio, u = ctx.saved_tensors
        _, _, c, width, height, s, d0 = numbers.unbind(-2)
        by_x0, by_y0, by_c, by_width, by_height, by_s, by_d0 = (by_numbers := torch.empty_like(numbers)).unbind(-2)
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
        return by_z, None, by_numbers @ chosen.mT


def _chosen(z: Float[Tensor, "*m n"], knots: Float[Tensor, "*m k"]) -> Float[Tensor, "*m p n"]:
    """1 at the piece that a value lies in, 0 at the others: 1 where its first knot is passed, less the next one's."""
    passed = z.new_empty(*knots.shape, z.shape[-1])
    torch.gt(z[..., None, :], knots[..., None], out=passed)
    chosen = pad(passed, (0, 0, 1, 0), value=1.0)
    chosen[..., :-1, :].sub_(passed)
    return chosen


class _Pieces(Function):
    """Raw widths, heights and inner slopes ↦ (knots of x and y, the seven numbers of every piece): `laws.SplineTable`.

        sizes = 2·bound·softmax(soft(2r)/2),    slope = exp(soft(r)),    soft(r) = r/(1 + |r/log flattest|)

    The knots are for looking pieces up, so that they have no derivative.
    """

    @staticmethod
    def forward(
        ctx: Any, raw: Float[Tensor, "*m w"], bins: int, bound: float, flattest: float
    ) -> tuple[Float[Tensor, "*m 2 k"], Float[Tensor, "*m 7 p"]]:
        under = raw.abs()
        under[..., : 2 * bins] *= 2
        under = torch.add(raw.new_ones(()), under, alpha=-1 / math.log(flattest))
        soft_sizes, soft_slopes = (raw / under).split_with_sizes([2 * bins, bins - 1], -1)
        sizes = soft_sizes.unflatten(-1, (2, bins)).softmax(-1).mul_(2 * bound)
        knots, slopes = pad(sizes.cumsum(-1), (1, 0)).sub_(bound), pad(soft_slopes, (1, 1)).exp_()
        (width, height), first = sizes.unbind(-2), slopes[..., :-1]
        mean = height / width
        # Outside, (x₀, y₀, c) = 0 and (w, h, s, d₀) = 1 are the identity.
        pieces = raw.new_zeros(*raw.shape[:-1], 7, bins + 2)
        pieces[..., 3:, :: bins + 1].fill_(1.0)
        inside = pieces[..., 1:-1]
        inside[..., :2, :] = knots[..., :-1]
        inside[..., 2, :] = torch.add(first + slopes[..., 1:], mean, alpha=-2)
        inside[..., 3:5, :] = sizes
        inside[..., 5, :] = mean
        inside[..., 6, :] = first
        ctx.bound = bound
        ctx.save_for_backward(under, sizes, slopes, mean)
        ctx.mark_non_differentiable(knots)
        ctx.set_materialize_grads(False)
        return knots, pieces

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_knots: None, by_pieces: Tensor) -> tuple[Tensor, None, None, None]:
        under, sizes, slopes, mean = ctx.saved_tensors
        by_start, by_curve, by_size, by_mean, by_first = by_pieces[..., 1:-1].split_with_sizes([2, 1, 2, 1, 1], -2)
        by_curve = by_curve[..., 0, :]
        by_mean = torch.sub(by_mean[..., 0, :], by_curve, alpha=2) / sizes[..., 0, :]
        # A size moves the starts of all later pieces.
        by_sizes = by_size + by_start.sum(-1, keepdim=True) - by_start.cumsum(-1)
        by_sizes[..., 0, :].addcmul_(by_mean, mean, value=-1)
        by_sizes[..., 1, :] += by_mean
        by_sizes -= (by_sizes * sizes).sum(-1, keepdim=True).div_(2 * ctx.bound)
        by_slopes = by_first[..., 0, 1:] + by_curve[..., 1:] + by_curve[..., :-1]
        by_soft = torch.cat([(by_sizes * sizes).flatten(-2), by_slopes * slopes[..., 1:-1]], -1)
        return by_soft / under.square(), None, None, None


class _Departure(Function):
    """Σ ε·log(1 + sd/ε) of a member's numbers, sd over the rows; ∂sd/∂x = (x − mean)/(n − 1)/sd."""

    @staticmethod
    def forward(ctx: Any, x: Float[Tensor, "k n d w"], unit: float, least: float) -> Float[Tensor, " k"]:
        centred = x - x.mean(1, keepdim=True)
        spread = centred.square().sum(1, keepdim=True).div_(x.shape[1] - 1).add_(least).sqrt_()
        ctx.unit = unit
        ctx.save_for_backward(centred, spread)
        return (spread / unit).log1p_().sum((1, 2, 3)).mul_(unit)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_sum: Tensor) -> tuple[Tensor, None, None]:
        centred, spread = ctx.saved_tensors
        slope = torch.addcmul(spread, spread, spread, value=1 / ctx.unit).mul_(centred.shape[1] - 1)
        return centred * (by_sum[:, None, None, None] / slope), None, None


unbend: Callable[..., tuple[Tensor, Tensor]] = _Unbend.apply
spline_log_density: Callable[[Tensor, Tensor, Tensor], Tensor] = _LogDensity.apply
spline_pieces: Callable[[Tensor, int, float, float], tuple[Tensor, Tensor]] = _Pieces.apply
departure: Callable[[Tensor, float, float], Tensor] = _Departure.apply
