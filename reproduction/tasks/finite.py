"""A finite Markov decision process with known transition probabilities, so that values are exact.

P(s' | s, a) is a table; s' is a state or an outcome, which has its own reward. The structural equation is the inverse
of the cumulative table: s' is the first whose cumulative probability exceeds u, uniform between 0 and 1.
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
from counterpoint.tasks.base import KnownSCM, StepResult

WHOLE = 1e-6
"""Tolerance of the sum of probabilities."""
TIED = 1e-7
"""Actions whose values differ by less are ties."""


@dataclass(frozen=True, eq=False)
class FiniteProcess(KnownSCM):
    """One categorical state column; actions are categories."""

    start: Float[Tensor, " s"]
    """P(s_0)."""
    chance: Float[Tensor, "s a e"] = field(repr=False)
    """P(s' | s, a): over the states, then over the outcomes."""
    end_rewards: tuple[float, ...] = (0.0, 1.0)
    """Reward of the step with each outcome; other steps have none."""
    outcome_names: tuple[str, ...] = ("died", "survived")
    horizon: Positive = 100
    """Steps after which an episode is cut."""
    discount: Share = 1.0
    noise_width = 1

    def __post_init__(self) -> None:
        check_settings(self)
        states, _, places = self.chance.shape
        require(len(self.end_rewards) == len(self.outcome_names), "outcomes and their rewards differ in number")
        require(
            len(self.start) == states and places == states + len(self.outcome_names),
            f"{len(self.start)} first states and {places} successors for {states} states and"
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
        """The reward of the outcome; 0 for other steps."""
        rewards = next_state.new_tensor((0.0, *self.end_rewards))
        return rewards[(next_state[..., 0].nan_to_num() - self.count + 1).clamp(min=0).long()]

    def terminated(self, next_state: State) -> Flag:
        return next_state[..., 0].isnan() | (next_state[..., 0] >= self.count)

    def draw_result(self, state: State, action: Action, next_state: State, uniform: Reward) -> StepResult:
        """A step with an outcome has no next state."""
        ended = self.terminated(next_state)
        outcome: Int[Tensor, "*n"] = torch.where(ended, next_state[..., 0].long() - self.count, GOES_ON)
        return StepResult(
            self.reward(state, action, next_state), outcome, next_state.masked_fill(ended[..., None], torch.nan)
        )

    def initial(self, count: int, generator: torch.Generator) -> Float[Tensor, "n 1"]:
        return torch.multinomial(self.start, count, replacement=True, generator=generator)[:, None].float()

    def noise(self, count: int, generator: torch.Generator) -> Float[Tensor, "n 1"]:
        return torch.rand(count, 1, generator=generator)

    def transition(self, state: State, action: Action, noise: Noise) -> State:
        """Rows after an outcome are not used; they take the last state's table."""
        here = state[..., 0].long().clamp(max=self.count - 1)
        after = torch.searchsorted(self.cumulated[here, self.actions.index(action)], noise, right=True)
        return after.clamp(max=self.cumulated.shape[-1] - 1).to(state)

    def value(self, policy: Float[Tensor, "s a"]) -> float:
        """Return the exact value of a policy, given by its action probabilities, without a horizon."""
        return float(self.start.double() @ self._state_values(policy))

    def optimal(self) -> Float[Tensor, "s a"]:
        """Return the optimal policy, by policy iteration; of tied actions it takes the first."""
        best = torch.full(self.chance.shape[:2], 1 / self.actions.count, dtype=torch.double)
        places = torch.arange(self.actions.count)
        while True:
            values = torch.cat([self.discount * self._state_values(best), torch.tensor(self.end_rewards).double()])
            gain = self.chance.double() @ values
            tied = gain > gain.amax(1, keepdim=True) - TIED
            greedy = torch.nn.functional.one_hot(torch.where(tied, places, len(places)).amin(1), len(places)).double()
            if torch.equal(greedy, best):
                return best.float()
            best = greedy

    def _state_values(self, policy: Float[Tensor, "s a"]) -> Float[Tensor, " s"]:
        """Solve V = r + γPV."""
        after = torch.einsum("sa,sae->se", policy.double(), self.chance.double())
        ends = after[:, self.count :] @ torch.tensor(self.end_rewards).double()
        stays = torch.eye(self.count).double() - self.discount * after[:, : self.count]
        return torch.linalg.solve(stays, ends)
