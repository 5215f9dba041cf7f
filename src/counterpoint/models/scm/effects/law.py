"""The law of a step given the subject's factor, which is linear in the factor: so the factor's posterior is exact.

    y = μ(x) + B(x)·θ + D(x)·R(x)·u,    R·R' = K + diag(q·ŝ')²,    u ~ N(0, I),    θ ~ N(0, I)

μ is a linear model plus what a network adds to it, and B is linear in x: θ bends slopes. K is a covariance (one cause
may move several columns); with q, part of the noise is proportional to the amount ŝ' that μ predicts, which
pharmacologists call a combined error; D is a diagonal, exp(network). The network's last layer starts at zero: the law
starts as the linear mixed-effects model, whose own numbers stay. A subject's posterior after any rows is

    precision  I + Σ_t A_t'A_t,    information  Σ_t A_t'e_t,    A = (D·R)⁻¹B,    e = (D·R)⁻¹(y − μ).
"""

from collections.abc import Sequence
from math import log, pi
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from counterpoint.models.scm.effects.changes import EquationForm
from counterpoint.models.scm.effects.linear import LinearEffects
from counterpoint.models.scm.effects.prepared import Prepared
from counterpoint.nets.laws import bounded_log_scale
from counterpoint.nets.stacked import StackedLinear, StackedMLP, Standardizer

FIRST_SHARE = 1e-3
"""Least q at first, in standardised units."""


class StepLaw(NamedTuple):
    """The law of a step in standardised units."""

    mean: Float[Tensor, "k n d"]
    effect: Float[Tensor, "k n d r"]
    deviation: Float[Tensor, "k n d"]
    root: Float[Tensor, "k _ d d"]
    """R, one for all rows where no noise is proportional."""


class SubjectEvidence(NamedTuple):
    """What each row says of its subject, and its log density where θ is 0."""

    information: Float[Tensor, "k n r"]
    precision: Float[Tensor, "k n r r"]
    log_density: Float[Tensor, "k n"]


class EffectsLaw(nn.Module):
    """K members of the law."""

    unit: Tensor
    amount: Tensor
    rotation: Tensor

    def __init__(self, members: int, layout: EquationForm, inputs: int, factors: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.members, self.layout, self.factors, self.size = members, layout, factors, len(layout.moving)
        d = self.size
        self.x = Standardizer(members, inputs)
        self.register_buffer("unit", torch.ones(members, 1, d))
        self.register_buffer("amount", torch.zeros(members, 1, d))
        self.register_buffer("rotation", torch.eye(factors).expand(members, -1, -1).contiguous())
        self.mean = nn.Parameter(torch.zeros(members, 1 + inputs, d))
        self.effect = nn.Parameter(torch.zeros(members, 1 + inputs, d * factors))
        self.corner = nn.Parameter(torch.zeros(members, d, d))
        self.proportional = nn.Parameter(torch.full((members, 1, d), log(FIRST_SHARE)))
        self.net = StackedMLP(members, inputs, hidden, 2 * d)

    @torch.no_grad()
    def silence(self, members: Bool[Tensor, " k"]) -> None:
        """Let the network of these members add nothing."""
        last = [layer for layer in self.net.modules() if isinstance(layer, StackedLinear)][-1]
        last.weight[members] = 0.0
        last.bias[members] = 0.0

    @torch.no_grad()
    def take(self, member: int, effects_of_sums: LinearEffects, ready: Prepared) -> None:
        """Start a member from a linear model of a prepared table's sums."""
        effects = ready.effects(effects_of_sums)
        self.x.mean[member], self.x.scale[member] = ready.rows.units.x
        self.unit[member], self.amount[member] = ready.rows.units.change, ready.rows.units.amount
        self.mean[member] = effects.mean.float()
        self.effect[member] = effects.effect.flatten(1).float()
        self.proportional[member] = ready.share(effects_of_sums).clamp(min=FIRST_SHARE).log().float()
        root = torch.linalg.cholesky(effects.covariance)
        self.corner[member] = (root.tril(-1) + root.diagonal().log().diag()).float()

    def step(self, inputs: Float[Tensor, "k n c"], state: Float[Tensor, "k n s"]) -> StepLaw:
        """The law given state and action."""
        x = self.x(self.layout.features(inputs))
        line = torch.cat([torch.ones_like(x[..., :1]), x], -1)
        d, bends = self.size, self.net(x)
        mean = line @ self.mean + bends[..., :d]
        turned = (self.effect.unflatten(-1, (d, self.factors)) @ self.rotation[:, None]).flatten(-2)
        effect = (line @ turned).unflatten(-1, (d, self.factors))
        deviation = bounded_log_scale(bends[..., d:]).exp()
        return StepLaw(mean, effect, deviation, self._root(mean, state))

    def _root(self, mean: Tensor, state: Tensor) -> Float[Tensor, "k _ d d"]:
        root = (self.corner.tril(-1) + self.corner.diagonal(0, 1, 2).exp().diag_embed())[:, None]
        if not self.layout.combined:
            return root
        amounts = (self.layout.of_moving(state) + mean * self.unit) * self.amount
        extra = (self.proportional.exp() * amounts).square()
        return torch.linalg.cholesky_ex(root @ root.mT + extra.diag_embed())[0]

    def change(
        self, step: StepLaw, theta: Float[Tensor, "k n r"], noise: Float[Tensor, "k n d"]
    ) -> Float[Tensor, "k n d"]:
        """y for a subject and its noise."""
        alike = step.root.shape[1] == 1
        drawn = noise @ step.root[:, 0].mT if alike else (step.root @ noise[..., None])[..., 0]
        return (self._centre(step, theta) + step.deviation * drawn) * self.unit

    def _centre(self, step: StepLaw, theta: Float[Tensor, "k n r"]) -> Float[Tensor, "k n d"]:
        """The mean of y for a subject, by sums: a product of tiny matrices a row is slow."""
        return step.mean + (step.effect * theta[..., None, :]).sum(-1) if self.factors else step.mean

    def noise(self, step: StepLaw, theta: Float[Tensor, "k n r"], y: Float[Tensor, "k n d"]) -> Float[Tensor, "k n d"]:
        """The noise behind y."""
        rest = (y / self.unit - self._centre(step, theta)) / step.deviation
        return torch.linalg.solve_triangular(step.root, rest[..., None], upper=False)[..., 0]

    def evidence(self, step: StepLaw, y: Float[Tensor, "k n d"]) -> SubjectEvidence:
        """What each row says of its subject."""
        deviation = step.deviation[..., None]
        rest = (y / self.unit - step.mean)[..., None] / deviation
        white = torch.linalg.solve_triangular(step.root, torch.cat([step.effect / deviation, rest], -1), upper=False)
        a, e = white[..., :-1], white[..., -1]
        volume = (step.deviation * self.unit).log().sum(-1) + step.root.diagonal(0, 2, 3).log().sum(-1)
        density = -0.5 * (e.square().sum(-1) + self.size * log(2 * pi)) - volume
        return SubjectEvidence((a * e[..., None]).sum(-2), a.mT @ a, density)


def marginal(information: Float[Tensor, "*n r"], precision: Float[Tensor, "*n r r"]) -> Float[Tensor, "*n"]:
    """What knowing a subject's rows together adds to its log density at θ = 0; `precision` with the prior's."""
    root = torch.linalg.cholesky_ex(precision)[0]
    white = torch.linalg.solve_triangular(root, information[..., None], upper=False)[..., 0]
    return 0.5 * white.square().sum(-1) - root.diagonal(0, -2, -1).log().sum(-1)
