"""Black-box optimizers that draw candidates around a mean: the cross-entropy method and an evolution strategy.

    cross-entropy        mean, deviation ← those of the best candidates                   (Rubinstein & Kroese 2004)
    evolution strategy   mean ← mean + Adam(Σ_c rank_c · draw_c), draws in mirrored pairs    (Salimans et al. 2017)

The first fits a deviation for every parameter and suits few parameters; the second follows an estimated gradient and
suits hundreds. The libraries cma and evotorch run one search at a time; here K searches are members of one stack.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from counterpoint.core.errors import require
from counterpoint.core.settings import Amount, Fraction, Positive, Rate, check_settings


class SearchDistribution(nn.Module):
    """The normal distribution of the candidates of K jobs × R restarts, with the moments of Adam."""

    mean: Tensor
    deviation: Tensor
    momentum: Tensor
    curvature: Tensor

    def __init__(self, mean: Float[Tensor, "k r p"], deviation: Float[Tensor, " p"]) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation.expand_as(mean).clone())
        self.register_buffer("momentum", torch.zeros_like(mean))
        self.register_buffer("curvature", torch.zeros_like(mean))

    def candidates(self, draw: Float[Tensor, "k r c p"]) -> Float[Tensor, "k r c p"]:
        return self.mean[:, :, None] + self.deviation[:, :, None] * draw


class BlackBoxOptimizer(ABC):
    """Updates a search distribution by the scores of its candidates."""

    candidates: int
    spread: float

    @abstractmethod
    def learn(
        self,
        distribution: SearchDistribution,
        draw: Float[Tensor, "k r c p"],
        score: Float[Tensor, "k r c"],
        share: Float[Tensor, ""],
    ) -> None:
        """Update the distribution after a round; `share` of all rounds are done."""

    def start(self, first: Float[Tensor, "k r p"], scale: Float[Tensor, " p"]) -> SearchDistribution:
        """The distribution before the first round, centred at 0 for the first restart and at `first` for the others."""
        offset = first * scale * self.spread
        offset[:, 0] = 0
        return SearchDistribution(offset, scale * self.spread)


def check_pairs(candidates: int) -> None:
    """Refuse an odd number of candidates, which are drawn in mirrored pairs."""
    require(candidates % 2 == 0, f"{candidates} candidates are no mirrored pairs; use an even number")


@dataclass(frozen=True)
class CrossEntropy(BlackBoxOptimizer):
    """The cross-entropy method: refit mean and deviation to the best candidates, round after round."""

    candidates: Positive = 48
    """Policies tried in a round, for every restart; an even number."""
    elites: Positive = 8
    """The best candidates, to which the distribution is fitted."""
    spread: Amount = 1.0
    """Deviation of the first draws, in standardised units of the state."""
    extra: Amount = 0.3
    """Deviation added in the first round, falling to 0 in the last, against premature convergence."""
    step: Fraction = 0.8
    """How far mean and deviation move towards those of the elites."""

    def __post_init__(self) -> None:
        check_settings(self)
        check_pairs(self.candidates)
        require(self.elites <= self.candidates, f"{self.elites} elites of {self.candidates} candidates; use fewer")

    def learn(self, distribution: SearchDistribution, draw: Tensor, score: Tensor, share: Tensor) -> None:
        best = score.topk(self.elites, -1).indices
        elite = distribution.candidates(draw).gather(2, best[..., None].expand(*best.shape, draw.shape[-1]))
        spread, mean = torch.var_mean(elite, 2, correction=0)
        distribution.mean.lerp_(mean, self.step)
        wider = (spread + (self.extra * (1 - share)).square()).sqrt()
        distribution.deviation.lerp_(wider, self.step)


@dataclass(frozen=True)
class EvolutionStrategy(BlackBoxOptimizer):
    """An evolution strategy: Adam on the gradient of the expected rank, estimated from mirrored draws."""

    candidates: Positive = 64
    """Policies tried in a round, for every restart; an even number."""
    spread: Amount = 0.3
    """Deviation of the draws, in standardised units of the state."""
    learning_rate: Rate = 0.1
    """Step of Adam, falling linearly to 0."""

    def __post_init__(self) -> None:
        check_settings(self)
        check_pairs(self.candidates)

    def learn(self, distribution: SearchDistribution, draw: Tensor, score: Tensor, share: Tensor) -> None:
        rank = score.argsort(-1).argsort(-1).to(draw) / (score.shape[-1] - 1) - 0.5
        gradient = (rank[..., None] * draw).mean(2)
        distribution.momentum.lerp_(gradient, 0.2)
        distribution.curvature.lerp_(gradient.square(), 0.2)
        along = distribution.momentum / (distribution.curvature.sqrt() + 1e-8)
        distribution.mean += self.learning_rate * (1 - share) * distribution.deviation / self.spread * along
