"""What a linear value function sees of a state and an action: columns, actions, and a hidden layer that is not learned.

φ(s, a) = (1, s, 1[a = 1], …, 1[a = A], relu(s·Ω + β + B_a)),    Ω, β, B drawn once (Rahimi & Recht 2007)
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.core.errors import CounterpointError
from counterpoint.core.seeding import generator
from counterpoint.data.jobs import spread_levels
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions

FAR = 5.0
"""Standard deviations beyond which a column says nothing more: one wild value must not decide a regression."""
BLOCK = 8192
"""Rows looked at at once."""


class Features:
    """Features of a log's states and actions, the same for all members: they know the states and nothing of rewards."""

    def __init__(self, rows: Transitions, hidden: int, seed: int, device: torch.device) -> None:
        if not isinstance(rows.actions, Discrete):
            raise CounterpointError("continuous doses have no list of actions to value; cut them with actions=Bins()")
        self.categories, self.actions, self.device = rows.schema.categories, rows.actions.count, device
        plain = len(rows.schema.states) - len(self.categories)
        spread = spread_levels(rows.state, self.categories)
        scale, mean = torch.std_mean(spread, 0, correction=0)
        scale[scale <= 1e-8], scale[plain:], mean[plain:] = 1.0, 1.0, 0.0  # A level stays 0 or 1.
        random = generator(seed, "features")
        slopes = torch.randn(spread.shape[1], hidden, generator=random) * max(plain + len(self.categories), 1) ** -0.5
        offsets = torch.randn(1, hidden, generator=random) + torch.randn(self.actions, hidden, generator=random)
        self.mean, self.scale, self.slopes, self.offsets = (x.to(device) for x in (mean, scale, slopes, offsets))
        self.width = 1 + spread.shape[1] + self.actions + hidden

    def taken(self, state: Float[Tensor, "n s"], action: Int[Tensor, " n"]) -> Float[Tensor, "n d"]:
        """φ(s, a) of one action for every state."""
        return self._by_block(self._taken, state, action)

    def expected(self, state: Float[Tensor, "n s"], chance: Float[Tensor, "n a"]) -> Float[Tensor, "n d"]:
        """Σ_a π(a|s)·φ(s, a): a linear function of it is the value of the state."""
        return self._by_block(self._expected, state, chance)

    def _by_block(self, function: Callable[[Tensor, Tensor], Tensor], state: Tensor, told: Tensor) -> Tensor:
        found = torch.empty(len(state), self.width, device=self.device)
        blocks = zip(found.split(BLOCK), state.split(BLOCK), told.split(BLOCK), strict=True)
        for out, own, also in blocks:
            out.copy_(function(self._standard(own.to(self.device)), also.to(self.device)))
        return found

    def _standard(self, state: Float[Tensor, "n s"]) -> Float[Tensor, "n w"]:
        return ((spread_levels(state, self.categories) - self.mean) / self.scale).clamp(-FAR, FAR)

    def _taken(self, z: Float[Tensor, "n w"], action: Int[Tensor, " n"]) -> Float[Tensor, "n d"]:
        hidden = (z @ self.slopes + self.offsets[action]).relu()
        chosen = torch.nn.functional.one_hot(action, self.actions).to(z)
        return torch.cat([torch.ones_like(z[:, :1]), z, chosen, hidden], 1)

    def _expected(self, z: Float[Tensor, "n w"], chance: Float[Tensor, "n a"]) -> Float[Tensor, "n d"]:
        before, chance = z @ self.slopes, chance.to(z)
        hidden = torch.zeros_like(before)
        for action, offset in enumerate(self.offsets):
            likely = chance[:, action].nonzero()[:, 0]
            hidden.index_add_(0, likely, (before[likely] + offset).relu() * chance[likely, action, None])
        return torch.cat([chance.sum(1, keepdim=True), z * chance.sum(1, keepdim=True), chance, hidden], 1)
