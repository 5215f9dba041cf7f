"""Search for parameters by drawing candidates around a mean, many searches side by side.

    cross-entropy        mean, deviation ← those of the best candidates                   (Rubinstein & Kroese 2004)
    evolution strategy   mean ← mean + Adam(Σ_c rank_c · draw_c), draws in mirrored pairs    (Salimans et al. 2017)

The first learns a deviation for every number and suits few of them; the second follows an estimated gradient and suits
hundreds. Written here because every search of a grid is a member of one stack, with the checkpoints of the one training
loop; the field's libraries (cma, evotorch) run one search at a time.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from counterpoint.core.errors import require
from counterpoint.core.settings import Amount, Fraction, Positive, Rate, check_settings


class Distribution(nn.Module):
    """Where the candidates of K jobs × R restarts are drawn; what a search has learned so far."""

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


class BlackBox(ABC):
    """How a distribution follows the scores of its candidates."""

    candidates: int
    spread: float

    @abstractmethod
    def learn(
        self,
        found: Distribution,
        draw: Float[Tensor, "k r c p"],
        score: Float[Tensor, "k r c"],
        share: Float[Tensor, ""],
    ) -> None:
        """One round; `share` of all rounds are done."""

    def start(self, first: Float[Tensor, "k r p"], scale: Float[Tensor, " p"]) -> Distribution:
        """Before the first round; the first of a job's restarts begins at the middle, the others at their draw."""
        offset = first * scale * self.spread
        offset[:, 0] = 0
        return Distribution(offset, scale * self.spread)


def check_pairs(candidates: int) -> None:
    """Candidates are drawn in mirrored pairs."""
    require(candidates % 2 == 0, f"{candidates} candidates are no mirrored pairs; use an even number")


@dataclass(frozen=True)
class CrossEntropy(BlackBox):
    """Refit mean and deviation to the best candidates, round after round."""

    candidates: Positive = 48
    """Policies tried in a round, for every restart; an even number."""
    elites: Positive = 8
    """The best of them, which the next draws are fitted to."""
    spread: Amount = 1.0
    """Deviation of the first draws, in standardised units of the state."""
    extra: Amount = 0.3
    """Deviation added at first, falling to nothing at the last round, so that a narrow round is no dead end."""
    step: Fraction = 0.8
    """How far mean and deviation move towards the elites' own."""

    def __post_init__(self) -> None:
        check_settings(self)
        check_pairs(self.candidates)
        require(self.elites <= self.candidates, f"{self.elites} elites of {self.candidates} candidates; use fewer")

    def learn(self, found: Distribution, draw: Tensor, score: Tensor, share: Tensor) -> None:
        best = score.topk(self.elites, -1).indices
        elite = found.candidates(draw).gather(2, best[..., None].expand(*best.shape, draw.shape[-1]))
        spread, mean = torch.var_mean(elite, 2, correction=0)
        found.mean.lerp_(mean, self.step)
        wider = (spread + (self.extra * (1 - share)).square()).sqrt()
        found.deviation.lerp_(wider, self.step)


@dataclass(frozen=True)
class EvolutionStrategy(BlackBox):
    """Follow the gradient of the expected score, estimated from mirrored draws of ranks."""

    candidates: Positive = 64
    """Policies tried in a round, for every restart; an even number."""
    spread: Amount = 0.3
    """Deviation of the draws, in standardised units of the state."""
    learning_rate: Rate = 0.1
    """Step of Adam, falling linearly to 0."""

    def __post_init__(self) -> None:
        check_settings(self)
        check_pairs(self.candidates)

    def learn(self, found: Distribution, draw: Tensor, score: Tensor, share: Tensor) -> None:
        rank = score.argsort(-1).argsort(-1).to(draw) / (score.shape[-1] - 1) - 0.5
        gradient = (rank[..., None] * draw).mean(2)
        found.momentum.lerp_(gradient, 0.2)
        found.curvature.lerp_(gradient.square(), 0.2)
        along = found.momentum / (found.curvature.sqrt() + 1e-8)
        found.mean += self.learning_rate * (1 - share) * found.deviation / self.spread * along
