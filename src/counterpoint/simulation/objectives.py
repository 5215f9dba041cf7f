"""What a search makes of a policy's returns in the members of a model: the mean, or something more cautious."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from counterpoint.core.settings import Fraction, Weight, check_settings


class Objective(ABC):
    """Larger is better. A member is a world that the data leave open; its episodes differ by start and noise alone."""

    @abstractmethod
    def over_members(self, value: Float[Tensor, "k m c"]) -> Float[Tensor, "k c"]:
        """One number from a candidate's mean return in every member."""

    def __call__(self, returns: Float[Tensor, "k m c n"]) -> Float[Tensor, "k c"]:
        return self.over_members(returns.mean(-1))


@dataclass(frozen=True)
class MeanReturn(Objective):
    """Every member counts alike."""

    def over_members(self, value: Float[Tensor, "k m c"]) -> Float[Tensor, "k c"]:
        return value.mean(1)


@dataclass(frozen=True)
class LowerBound(Objective):
    """The mean over members less some of their standard deviations: where members disagree, a policy is worth less."""

    deviations: Weight = 1.0
    """Standard deviations taken off."""

    def __post_init__(self) -> None:
        check_settings(self)

    def over_members(self, value: Float[Tensor, "k m c"]) -> Float[Tensor, "k c"]:
        return value.mean(1) - self.deviations * value.std(1, correction=0)


@dataclass(frozen=True)
class WorstShare(Objective):
    """The mean of the worst members alone, each candidate's own worst (conditional value at risk over members)."""

    share: Fraction = 0.25
    """Share of the members that count, at least one."""

    def __post_init__(self) -> None:
        check_settings(self)

    def over_members(self, value: Float[Tensor, "k m c"]) -> Float[Tensor, "k c"]:
        count = max(1, math.ceil(self.share * value.shape[1]))
        return value.sort(1).values[:, :count].mean(1)
