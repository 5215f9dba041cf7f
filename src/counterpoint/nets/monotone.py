"""Stacked generators s' = G(c, u), strictly increasing in the noise: ∂s'_i/∂u_i > 0 for every context c = (s, a, θ).

The paper (Theorem 1; appendix E) asks for a monotone perceptron whose positive weights are exponentials, w = e^v. Three
things that it leaves open are settled here for both generators.

- Which noise moves which state: s'_i depends on u_i alone (diagonal), so that the noise can be read off state by state.
- Strictness: ReLU is flat on one side, so a skip (slope + softplus(·))·u_i is added; no weight can make it vanish.
- Shape: positive weights and ReLU give convex functions of u only, so half of the units that carry noise use the
  activation turned by half a circle, x ↦ −φ(−x).
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils.parametrize import register_parametrization

from counterpoint.nets.stacked import StackedBatchNorm, StackedLinear, StackedMLP

LEAST_SLOPE = 1e-3
"""The smallest ∂s'_i/∂u_i, in standard deviations of s' per standard deviation of noise."""
CONTEXT = -1
"""The owner of a unit that carries no noise."""

Rising = Callable[[Float[Tensor, "k n d"]], Float[Tensor, "k n d"]]


class Exponential(nn.Module):
    """w = e^v: positive, whatever training does to v."""

    def forward(self, raw: Tensor) -> Tensor:
        return raw.exp()

    def right_inverse(self, weight: Tensor) -> Tensor:
        return weight.log()


class MonotoneLinear(nn.Module):
    """K linear maps between owned units: from a context unit any weight, within one owner e^v, between owners none."""

    free: Tensor
    rising: Tensor

    def __init__(self, members: int, inputs: Int[Tensor, " i"], outputs: Int[Tensor, " o"]) -> None:
        super().__init__()
        self.raw = nn.Parameter(torch.zeros(members, len(inputs), len(outputs)))
        self.bias = nn.Parameter(torch.zeros(members, 1, len(outputs)))
        from_context = (inputs == CONTEXT)[:, None].expand(-1, len(outputs))
        self.register_buffer("free", from_context.float(), persistent=False)
        same_owner = (inputs[:, None] == outputs) & ~from_context
        self.register_buffer("rising", same_owner.float(), persistent=False)

    def weight(self) -> Float[Tensor, "k i o"]:
        return self.raw * self.free + self.raw.exp() * self.rising

    def forward(self, x: Float[Tensor, "k n i"]) -> Float[Tensor, "k n o"]:
        return torch.baddbmm(self.bias, x, self.weight())

    @torch.no_grad()
    def initialise(self, member: int, random: torch.Generator) -> None:
        """Free weights uniform in ±1/√fan-in; positive ones around 1/fan-in, since positive terms never cancel."""
        shape = self.raw.shape[1:]
        bound = self.free.sum(0).clamp(min=1).rsqrt().cpu()
        free = (2 * torch.rand(shape, generator=random) - 1) * bound
        spread = 0.5 * torch.randn(shape, generator=random)
        rising = spread - self.rising.sum(0).clamp(min=1).log().cpu()
        self.raw[member] = torch.where(self.free.cpu() > 0, free, rising).to(self.raw)
        self.bias[member] = ((2 * torch.rand(1, shape[1], generator=random) - 1) * bound).to(self.bias)


class WholeGenerator(nn.Module):
    """A generator no part of which can be worked out from the context alone."""

    per_member = 1

    def given(self, context: Float[Tensor, "k n c"]) -> Rising:
        """The generator as a function of the noise alone."""
        return lambda noise: self(context, noise)


class PaperGenerator(WholeGenerator):
    """The paper's generator: linear + batch norm + ReLU of the given widths (appendix E: 200 → 400 → 600 → 600).

    Half of every layer's units see the context only; the other half is shared out among the d noises, and such a unit
    is increasing in its own noise. Batch norm keeps its sign because its scale is an exponential too. Increasing in u
    holds with the running statistics, that is, in use; while training the statistics of the batch move with u.
    """

    def __init__(self, members: int, context: int, size: int, hidden: Sequence[int]) -> None:
        super().__init__()
        owners = [_inputs(context, size), *(_shared_out(width, size) for width in hidden), torch.arange(size)]
        self.linear = nn.ModuleList(MonotoneLinear(members, *pair) for pair in pairwise(owners))
        self.norm = nn.ModuleList(StackedBatchNorm(members, len(owner)) for owner in owners[1:-1])
        for linear, norm in zip(self.linear, self.norm, strict=False):
            register_parametrization(norm, "weight", Exponential())
            linear.bias.requires_grad_(False)  # batch norm takes it out again
        for i, owner in enumerate(owners[1:-1]):
            self.register_buffer(f"sign_{i}", _signs(owner), persistent=False)
        self.slope = nn.Parameter(torch.zeros(members, 1, size))

    def forward(self, context: Float[Tensor, "k n c"], noise: Float[Tensor, "k n d"]) -> Float[Tensor, "k n d"]:
        hidden = torch.cat([context, noise], -1)
        for i, norm in enumerate(self.norm):
            sign = getattr(self, f"sign_{i}")
            hidden = sign * F.relu(sign * norm(self.linear[i](hidden)))
        return self.linear[-1](hidden) + (LEAST_SLOPE + F.softplus(self.slope)) * noise

    @torch.no_grad()
    def folded(self) -> "FoldedGenerator":
        """The same function in use, for as long as no weight changes."""
        *layers, last = cast(list[MonotoneLinear], list(self.linear))
        norms = cast(list[StackedBatchNorm], list(self.norm))
        maps = [_folded(linear, norm) for linear, norm in zip(layers, norms, strict=True)]
        signs = [getattr(self, f"sign_{i}") for i in range(len(norms))]
        return FoldedGenerator([*maps, (last.weight(), last.bias)], signs, LEAST_SLOPE + F.softplus(self.slope))


class FoldedGenerator(WholeGenerator):
    """A `PaperGenerator` in use, with all that does not depend on the row worked out once: linear maps and clamps.

        γ·(x·W + b − mean)/√(variance + ε) + β = x·W' + b',    ReLU(z) = clamp(z, 0, ∞),    −ReLU(−z) = clamp(z, −∞, 0)

    A rollout of thousands of steps would otherwise take every exponential of every weight anew at each of them, and
    pass over every layer several times instead of once.
    """

    def __init__(
        self,
        maps: Sequence[tuple[Float[Tensor, "k _ _"], Float[Tensor, "k 1 _"]]],
        signs: Sequence[Float[Tensor, " _"]],
        slope: Float[Tensor, "k 1 d"],
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_as_linear(*pair) for pair in maps)
        self.slope = nn.Parameter(slope, requires_grad=False)
        for i, sign in enumerate(signs):
            self.register_buffer(f"least_{i}", torch.where(sign > 0, 0.0, -torch.inf), persistent=False)
            self.register_buffer(f"most_{i}", torch.where(sign > 0, torch.inf, 0.0), persistent=False)

    def forward(self, context: Float[Tensor, "k n c"], noise: Float[Tensor, "k n d"]) -> Float[Tensor, "k n d"]:
        hidden = torch.cat([context, noise], -1)
        for i, layer in enumerate(self.layers[:-1]):
            hidden = layer(hidden).clamp_(getattr(self, f"least_{i}"), getattr(self, f"most_{i}"))
        return torch.addcmul(self.layers[-1](hidden), self.slope, noise)


def _folded(linear: MonotoneLinear, norm: StackedBatchNorm) -> tuple[Float[Tensor, "k i o"], Float[Tensor, "k 1 o"]]:
    """A linear map and the batch norm behind it, by its running statistics, as one map."""
    scale = norm.weight * torch.rsqrt(norm.running_variance + norm.epsilon)
    return linear.weight() * scale, (linear.bias - norm.running_mean) * scale + norm.bias


def _as_linear(weight: Float[Tensor, "k i o"], bias: Float[Tensor, "k 1 o"]) -> StackedLinear:
    layer = StackedLinear(0, 0, 0)
    layer.weight, layer.bias = (nn.Parameter(part, requires_grad=False) for part in (weight, bias))
    return layer


class DiagonalGenerator(nn.Module):
    """A generator that trains well: for every state a network of its own, and two small monotone layers.

        s'_i = μ_i(c) + softplus(σ_i(c))·u_i + Σ_j e^{v_j}·h_j,    h = φ(e^V·φ(e^w·u_i + b(c)) + b'(c))

    with φ = ELU for half of the units and −ELU(−x) for the others; μ, σ, b, b' come from a perceptron of the context.
    """

    turned: Tensor

    def __init__(
        self, members: int, context: int, size: int, hidden: Sequence[int] = (64, 64), width: int = 16
    ) -> None:
        super().__init__()
        self.size, self.width, self.per_member = size, width, size
        stack = members * size
        self.context = StackedMLP(stack, context, hidden, 2 * width + 2)
        owned = torch.zeros(width, dtype=torch.long)
        self.first = MonotoneLinear(stack, owned[:1], owned)
        self.second = MonotoneLinear(stack, owned, owned)
        self.last = MonotoneLinear(stack, owned, owned[:1])
        self.register_buffer("turned", _signs(owned), persistent=False)

    def forward(self, context: Float[Tensor, "k n c"], noise: Float[Tensor, "k n d"]) -> Float[Tensor, "k n d"]:
        return self.given(context)(noise)

    def given(self, context: Float[Tensor, "k n c"]) -> Rising:
        """The generator as a function of the noise alone; the context's network runs once."""
        members = context.shape[0]
        repeated = context[:, None].expand(-1, self.size, -1, -1).flatten(0, 1)
        centre, slope, first, second = self.context(repeated).split([1, 1, self.width, self.width], -1)
        slope = LEAST_SLOPE + F.softplus(slope)

        def rise(noise: Tensor) -> Tensor:
            u = noise.transpose(1, 2).reshape(members * self.size, -1, 1)
            hidden = self._bend(self.first(u) + first)
            hidden = self._bend(self.second(hidden) + second)
            y = centre + slope * u + self.last(hidden)
            return y.view(members, self.size, -1).transpose(1, 2)

        return rise

    def _bend(self, x: Tensor) -> Tensor:
        return self.turned * F.elu(self.turned * x)


def _inputs(context: int, size: int) -> Int[Tensor, " w"]:
    return torch.cat([torch.full((context,), CONTEXT), torch.arange(size)])


def _shared_out(width: int, size: int) -> Int[Tensor, " w"]:
    """Owners of a layer's units: half the context, the rest in equal blocks to the noises (at least one unit each)."""
    block = max(1, width // 2 // size)
    return torch.cat(
        [torch.full((max(0, width - size * block),), CONTEXT), torch.arange(size).repeat_interleave(block)]
    )


def _signs(owners: Int[Tensor, " w"]) -> Float[Tensor, " w"]:
    """−1 for every second unit that carries noise, whose activation is turned; 1 for all others."""
    turned = (owners != CONTEXT) & (torch.arange(len(owners)) % 2 == 1)
    return torch.where(turned, -1.0, 1.0)
