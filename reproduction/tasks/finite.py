"""A finite decision process: states and what ends them are listed, and so is every probability, so values are exact.

P(s' | s, a) is a table; s' is a state, or an end with a reward of its own. The structural equation is the inverse of
the cumulated table: s' is the first whose cumulated probability exceeds u, uniform between 0 and 1.
"""

from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.core.errors import require
from counterpoint.core.settings import Positive, Share, check_settings
from counterpoint.data.schema import Column, Schema, numbered
from counterpoint.data.shapes import Action, Flag, Noise, Reward, State
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import GOES_ON
from counterpoint.tasks.base import Conclusion, KnownSCM

WHOLE = 1e-6
"""How far probabilities may sum from 1."""
TIED = 1e-7
"""Actions whose values differ by less are equally good."""


@dataclass(frozen=True, eq=False)
class FiniteProcess(KnownSCM):
    """One categorical state column; actions are numbered, without an order."""

    start: Float[Tensor, " s"]
    """P(s_0)."""
    chance: Float[Tensor, "s a e"] = field(repr=False)
    """P(s' | s, a): over the states first, over the ends behind them."""
    end_rewards: tuple[float, ...] = (0.0, 1.0)
    """Reward of the step that ends so; no other step has any."""
    outcome_names: tuple[str, ...] = ("died", "survived")
    horizon: Positive = 100
    """Steps after which a record is cut."""
    discount: Share = 1.0
    noise_width = 1

    def __post_init__(self) -> None:
        check_settings(self)
        states, _, places = self.chance.shape
        require(len(self.end_rewards) == len(self.outcome_names), "outcomes and their rewards differ in number")
        require(
            len(self.start) == states and places == states + len(self.outcome_names),
            f"{len(self.start)} first states and {places} places to go for {states} states and"
            f" {len(self.outcome_names)} outcomes; list every state, then every outcome",
        )
        for table in (self.start, self.chance):
            whole = bool((table >= 0).all()) and bool(((table.sum(-1) - 1).abs() < WHOLE).all())
            require(whole, "probabilities are negative or do not sum to 1; give those of all states")

    @property
    def count(self) -> int:
        return len(self.start)

    @cached_property
    def actions(self) -> Discrete:  # pyright: ignore[reportIncompatibleVariableOverride]
        return Discrete.one_hot(self.chance.shape[1])

    @cached_property
    def schema(self) -> Schema:  # pyright: ignore[reportIncompatibleVariableOverride]
        column = Column("state", levels=tuple(str(i) for i in range(self.count)))
        return Schema((column,), self.actions, numbered("action", self.actions.width))

    @property
    def state_names(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.schema.state_names

    @cached_property
    def cumulated(self) -> Float[Tensor, "s a e"]:
        return (self.chance.double().cumsum(-1)).float()

    def reward(self, state: State, action: Action, next_state: State) -> Reward:
        """What the end is worth, if the step is one."""
        rewards = next_state.new_tensor((0.0, *self.end_rewards))
        return rewards[(next_state[..., 0].nan_to_num() - self.count + 1).clamp(min=0).long()]

    def terminated(self, next_state: State) -> Flag:
        return next_state[..., 0].isnan() | (next_state[..., 0] >= self.count)

    def conclude(self, state: State, action: Action, next_state: State, uniform: Reward) -> Conclusion:
        """An end leaves no next state."""
        ended = self.terminated(next_state)
        outcome: Int[Tensor, "*n"] = torch.where(ended, next_state[..., 0].long() - self.count, GOES_ON)
        return Conclusion(
            self.reward(state, action, next_state), outcome, next_state.masked_fill(ended[..., None], torch.nan)
        )

    def initial(self, count: int, generator: torch.Generator) -> Float[Tensor, "n 1"]:
        return torch.multinomial(self.start, count, replacement=True, generator=generator)[:, None].float()

    def noise(self, count: int, generator: torch.Generator) -> Float[Tensor, "n 1"]:
        return torch.rand(count, 1, generator=generator)

    def transition(self, state: State, action: Action, noise: Noise) -> State:
        """What follows an end is another patient's business: there the last state's table stands in."""
        here = state[..., 0].long().clamp(max=self.count - 1)
        after = torch.searchsorted(self.cumulated[here, self.actions.index(action)], noise, right=True)
        return after.clamp(max=self.cumulated.shape[-1] - 1).to(state)

    def value(self, policy: Float[Tensor, "s a"]) -> float:
        """What the policy, so likely to take each action, earns from first states on; exact, and never cut."""
        return float(self.start.double() @ self._worth(policy))

    def optimal(self) -> Float[Tensor, "s a"]:
        """The best policy, by policy iteration; of equally good actions it takes the first."""
        best = torch.full(self.chance.shape[:2], 1 / self.actions.count, dtype=torch.double)
        places = torch.arange(self.actions.count)
        while True:
            worth = torch.cat([self.discount * self._worth(best), torch.tensor(self.end_rewards).double()])
            gain = self.chance.double() @ worth
            equal = gain > gain.amax(1, keepdim=True) - TIED
            found = torch.nn.functional.one_hot(torch.where(equal, places, len(places)).amin(1), len(places)).double()
            if torch.equal(found, best):
                return best.float()
            best = found

    def _worth(self, policy: Float[Tensor, "s a"]) -> Float[Tensor, " s"]:
        """V = r + γPV, solved."""
        after = torch.einsum("sa,sae->se", policy.double(), self.chance.double())
        ends = after[:, self.count :] @ torch.tensor(self.end_rewards).double()
        stays = torch.eye(self.count).double() - self.discount * after[:, : self.count]
        return torch.linalg.solve(stays, ends)
