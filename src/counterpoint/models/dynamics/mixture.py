"""Base-M: a mixture density network over the whole state vector (Bishop 1994; paper, section 5.1 and appendix).

    p(s' | s, a) = Σ_k α_k(s, a) Π_i N(s'_i; μ_ki(s, a), σ_ki(s, a)²)

One component is chosen for the vector as a whole, so columns that move together in the data do so in the draws.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.settings import Positive
from counterpoint.models.dynamics.base import DynamicsRecipe, OutputLaw, normal
from counterpoint.nets.laws import LOG_ROOT_TWO_PI, bounded_log_scale


@dataclass(frozen=True)
class JointMixture(OutputLaw):
    """Logits of the components, then their means and log standard deviations, column by column."""

    components: int

    def width(self, size: int) -> int:
        return self.components * (1 + 2 * size)

    def log_prob(self, raw: Float[Tensor, "*n w"], y: Float[Tensor, "*n d"]) -> Float[Tensor, "*n"]:
        weights, mean, log_scale = self._parts(raw, y.shape[-1])
        standard = (y[..., None, :] - mean) * torch.exp(-log_scale)
        parts = (-0.5 * standard.square() - LOG_ROOT_TWO_PI - log_scale).sum(-1)
        return torch.logsumexp(weights + parts, -1)

    def chance(self, shape: Sequence[int], size: int, random: torch.Generator) -> Float[Tensor, "*n c"]:
        """A uniform draw that chooses the component, then a normal one for every column."""
        threshold = torch.rand(*shape, 1, generator=random, device=random.device)
        return torch.cat([threshold, normal(shape, size, random)], -1)

    def sample(self, raw: Float[Tensor, "*n w"], chance: Float[Tensor, "*n c"], size: int) -> Float[Tensor, "*n d"]:
        weights, mean, log_scale = self._parts(raw, size)
        threshold, draw = chance.split([1, size], -1)
        # The last component takes what rounding leaves, so the sum stops before it.
        chosen = (weights.exp().cumsum(-1)[..., :-1] <= threshold).sum(-1)[..., None, None]
        index = chosen.expand(*chosen.shape[:-1], size)
        mean, log_scale = (table.gather(-2, index).squeeze(-2) for table in (mean, log_scale))
        return mean + log_scale.exp() * draw

    def _parts(self, raw: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Log weights [*n k], means and log standard deviations [*n k d]."""
        count = self.components
        logits, mean, scale = raw.split([count, count * size, count * size], -1)
        mean, scale = (table.unflatten(-1, (count, size)) for table in (mean, scale))
        return logits.log_softmax(-1), mean, bounded_log_scale(scale)


@dataclass(frozen=True)
class MixtureDynamics(DynamicsRecipe):
    """Base-M: several bells for every (s, a), chosen for the whole state at once."""

    components: Positive = 5
    """Gaussians in the mixture; the paper's α."""

    def head(self) -> JointMixture:
        return JointMixture(self.components)
