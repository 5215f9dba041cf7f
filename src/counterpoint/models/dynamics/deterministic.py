"""Base-D: s' = f(s, a), fitted by least squares (paper, section 5.1)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.models.dynamics.base import DynamicsRecipe, OutputLaw


class PointLaw(OutputLaw):
    """One value and no spread; as a Gaussian of fixed unit variance its maximum likelihood is least squares."""

    def width(self, size: int) -> int:
        return size

    def log_prob(self, raw: Float[Tensor, "*n w"], y: Float[Tensor, "*n d"]) -> Float[Tensor, "*n"]:
        """−½‖y − f‖², a score up to a constant: a point has no density."""
        return -0.5 * (y - raw).square().sum(-1)

    def chance(self, shape: Sequence[int], size: int, random: torch.Generator) -> Float[Tensor, "*n c"]:
        return torch.zeros(*shape, 0)

    def sample(self, raw: Float[Tensor, "*n w"], chance: Float[Tensor, "*n c"], size: int) -> Float[Tensor, "*n d"]:
        return raw


@dataclass(frozen=True)
class Deterministic(DynamicsRecipe):
    """Base-D: the conditional mean of s', which leaves all noise out."""

    def head(self) -> PointLaw:
        return PointLaw()
