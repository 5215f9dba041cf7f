"""What episodes would have earned in every member of a model, and how sure their mean is."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.core.seeding import derive, generator
from counterpoint.core.settings import Positive, Share, checked
from counterpoint.core.statistics import Bootstrap, Interval
from counterpoint.ope.episodes import resampled


@dataclass(frozen=True, eq=False)
class MemberReturns:
    """Returns of episodes, the same ones in every member."""

    returns: Float[Tensor, "e m"]
    subject: Int[Tensor, " e"]
    """Whose episode it is: 0, 1, … without gaps."""

    @property
    def value(self) -> float:
        """The mean over episodes and members."""
        return float(self.returns.double().mean())

    @property
    def subjects(self) -> int:
        return int(self.subject.max()) + 1

    def resampled(self, counts: Float[Tensor, "b subjects"]) -> Float[Tensor, "b m"]:
        """The mean over episodes in every member, where subject k stands `counts[:, k]` times in the log."""
        both = torch.cat([self.returns, torch.ones_like(self.returns[:, :1])], 1).double()
        sums = both.new_zeros(self.subjects, both.shape[1]).index_add_(0, self.subject, both)
        found = counts.double() @ sums
        return found[:, :-1] / found[:, -1:]

    @checked
    def interval(self, confidence: Share = 0.95, draws: Positive = 1000, seed: int = 0) -> Interval:
        """Where the value lies: subjects drawn again, and with them one member, since nobody knows which is right."""
        means = self.resampled(resampled(self.subjects, draws, derive(seed, "subjects")))
        member = torch.randint(means.shape[1], (draws, 1), generator=generator(seed, "members"))
        return Bootstrap(draws, confidence, seed).around(self.value, means.gather(1, member)[:, 0].numpy())
