"""Objectives of a search: the mean of a policy's returns over the members of a model, or a risk-averse statistic."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from counterpoint.core.settings import Fraction, Weight, check_settings


class Objective(ABC):
    """Base class of objectives, which are maximised. Episodes of one member differ in first state and noise only."""

    @abstractmethod
    def over_members(self, value: Float[Tensor, "k m c"]) -> Float[Tensor, "k c"]:
        """Reduce each candidate's mean returns in the members to one number."""

    def __call__(self, returns: Float[Tensor, "k m c n"]) -> Float[Tensor, "k c"]:
        return self.over_members(returns.mean(-1))


@dataclass(frozen=True)
class MeanReturn(Objective):
    """The mean over members."""

    def over_members(self, value: Float[Tensor, "k m c"]) -> Float[Tensor, "k c"]:
        return value.mean(1)


@dataclass(frozen=True)
class LowerBound(Objective):
    """The mean over members less a multiple of their standard deviation, which penalises disagreement."""

    deviations: Weight = 1.0
    """Number of standard deviations that are subtracted."""

    def __post_init__(self) -> None:
        check_settings(self)

    def over_members(self, value: Float[Tensor, "k m c"]) -> Float[Tensor, "k c"]:
        return value.mean(1) - self.deviations * value.std(1, correction=0)


@dataclass(frozen=True)
class WorstShare(Objective):
    """The mean over each candidate's worst members: the conditional value at risk over members."""

    share: Fraction = 0.25
    """Share of the members that count, at least one."""

    def __post_init__(self) -> None:
        check_settings(self)

    def over_members(self, value: Float[Tensor, "k m c"]) -> Float[Tensor, "k c"]:
        count = max(1, math.ceil(self.share * value.shape[1]))
        return value.sort(1).values[:, :count].mean(1)
