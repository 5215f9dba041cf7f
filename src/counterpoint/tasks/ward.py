"""A ward whose patients die or are discharged, with known hazards; the last row of a record has no next state.

    x' = x + .1 − dose + .3u₁                        severity; untreated it creeps up
    y' = .5y + dose + .1u₂                              the drug's level
    P(died | s, a) = sigmoid(1.2x + 3.5(.5y + dose) − 6)
    P(discharged | s, a) = (1 − P(died))·sigmoid(−1.5x − 2)

Each step costs a little, death costs much more, and a discharge is rewarded. The drug heals over days and harms at
once: a method that ignores why records end takes it for harmless.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.core.settings import Finite, Positive, Share, check_settings
from counterpoint.data.shapes import Action, Flag, Noise, Reward, State
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import GOES_ON
from counterpoint.tasks.base import KnownSCM, StepResult


@dataclass(frozen=True)
class Ward(KnownSCM):
    """A ward with two states, three doses, and the outcomes death and discharge."""

    command: ClassVar = ("ward", "two states, three doses, deaths and discharges")
    step_reward: Finite = -0.1
    """Reward of a step after which the patient stays."""
    died_reward: Finite = -10.0
    """Reward of the step in which the patient dies."""
    discharged_reward: Finite = 5.0
    """Reward of the step in which the patient is discharged."""
    horizon: Positive = 40
    """Steps after which a record is cut."""
    discount: Share = 0.98

    def __post_init__(self) -> None:
        check_settings(self)

    actions = Discrete.of([0.0, 0.5, 1.0])
    state_names = ("severity", "drug")
    outcome_names = ("died", "discharged")
    noise_width = 2

    def hazard(self, state: State, action: Action) -> Float[Tensor, "*n 3"]:
        """Return P(died), P(discharged) and P(stays) in this step."""
        level = 0.5 * state[..., 1] + action[..., 0]
        died = (1.2 * state[..., 0] + 3.5 * level - 6).sigmoid()
        home = (1 - died) * (-1.5 * state[..., 0] - 2).sigmoid()
        return torch.stack([died, home, 1 - died - home], -1)

    def reward(self, state: State, action: Action, next_state: State) -> Reward:
        """Return the reward of a step after which the patient stays."""
        return torch.full_like(state[..., 0], self.step_reward)

    def terminated(self, next_state: State) -> Flag:
        """Return whether the row has no next state; for other rows `expected` gives the probability of an end."""
        return next_state.isnan().any(-1)

    def expected(self, state: State, action: Action, next_state: State) -> tuple[Tensor, Tensor]:
        hazard = self.hazard(state, action)
        return (hazard * hazard.new_tensor(self._rewards())).sum(-1), hazard[..., 2]

    def draw_result(self, state: State, action: Action, next_state: State, uniform: Reward) -> StepResult:
        drawn = (uniform[..., None] >= self.hazard(state, action).cumsum(-1)[..., :2]).sum(-1)
        outcome: Int[Tensor, "*n"] = torch.where(drawn == 2, GOES_ON, drawn)
        ended = (outcome >= 0)[..., None]
        return StepResult(state.new_tensor(self._rewards())[drawn], outcome, next_state.masked_fill(ended, torch.nan))

    def initial(self, count: int, generator: torch.Generator) -> Float[Tensor, "n 2"]:
        severity = 0.5 + 1.5 * torch.rand(count, generator=generator)
        return torch.stack([severity, torch.zeros(count)], 1)

    def noise(self, count: int, generator: torch.Generator) -> Float[Tensor, "n 2"]:
        return torch.randn(count, 2, generator=generator)

    def transition(self, state: State, action: Action, noise: Noise) -> State:
        severity = state[..., 0] + 0.1 - action[..., 0] + 0.3 * noise[..., 0]
        drug = 0.5 * state[..., 1] + action[..., 0] + 0.1 * noise[..., 1]
        return torch.stack([severity, drug], -1)

    def _rewards(self) -> tuple[float, float, float]:
        return self.died_reward, self.discharged_reward, self.step_reward
