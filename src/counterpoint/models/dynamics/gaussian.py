"""Base-S: s' ~ N(μ(s, a), diag σ²(s, a)), fitted by maximum likelihood (paper, section 5.1)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.models.dynamics.base import DynamicsRecipe, OutputLaw, normal
from counterpoint.nets.laws import LOG_ROOT_TWO_PI, bounded_log_scale


class DiagonalGaussian(OutputLaw):
    """Means, then log standard deviations."""

    def width(self, size: int) -> int:
        return 2 * size

    def log_prob(self, raw: Float[Tensor, "*n w"], y: Float[Tensor, "*n d"]) -> Float[Tensor, "*n"]:
        mean, log_scale = _parts(raw)
        standard = (y - mean) * torch.exp(-log_scale)
        return (-0.5 * standard.square() - LOG_ROOT_TWO_PI - log_scale).sum(-1)

    def chance(self, shape: Sequence[int], size: int, random: torch.Generator) -> Float[Tensor, "*n c"]:
        return normal(shape, size, random)

    def sample(self, raw: Float[Tensor, "*n w"], chance: Float[Tensor, "*n c"], size: int) -> Float[Tensor, "*n d"]:
        mean, log_scale = _parts(raw)
        return mean + log_scale.exp() * chance


def _parts(raw: Tensor) -> tuple[Tensor, Tensor]:
    mean, scale = raw.chunk(2, -1)
    return mean, bounded_log_scale(scale)


@dataclass(frozen=True)
class GaussianDynamics(DynamicsRecipe):
    """Base-S: one bell for every (s, a), independent over the state's columns."""

    def head(self) -> DiagonalGaussian:
        return DiagonalGaussian()
