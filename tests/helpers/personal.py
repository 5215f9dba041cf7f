"""What `test_personal.py` shares with other test modules."""

import torch
from torch import Tensor

import counterpoint as cp
from counterpoint.nets.training import Schedule
from counterpoint.tasks.base import KnownSCM
from helpers.effects import BRIEF

DOSES = cp.Discrete.of([-1.0, -0.5, 0.0, 0.5, 1.0])


class TwoKinds(KnownSCM):
    """s' = s ± a + noise, away from 0 costs: half of the subjects need the dose that harms the others."""

    actions, discount, horizon, selection_horizon = DOSES, 0.9, 8, 4
    state_names, noise_width = ("x",), 1

    def __init__(self, response: Tensor | None = None) -> None:
        self.response = torch.zeros(1) if response is None else response

    def of_subjects(self, subject: Tensor) -> "TwoKinds":
        return TwoKinds(torch.where(subject % 2 == 0, 1.0, -1.0))

    def initial(self, count: int, generator: torch.Generator) -> Tensor:
        return torch.where(torch.rand(count, 1, generator=generator) < 0.5, -1.0, 1.0)

    def noise(self, count: int, generator: torch.Generator) -> Tensor:
        return torch.randn(count, 1, generator=generator)

    def transition(self, state: Tensor, action: Tensor, noise: Tensor) -> Tensor:
        return state + self.response[:, None] * action + 0.2 * noise

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return -next_state[..., 0].square()

    def terminated(self, next_state: Tensor) -> Tensor:
        return torch.zeros_like(next_state[..., 0], dtype=torch.bool)


TASK = TwoKinds()

ROWS = cp.simulate(TASK, cp.random_policy(TASK), 30, 8, seed=0)

"""Trial i is of subject i."""

MODEL = cp.RandomEffects(factors=1, changes=("difference",), ensemble=2, hidden=(4,), schedule=BRIEF)

SEARCH = cp.Search(
    MODEL, None, schedule=Schedule(steps=8, check_every=4), optimizer=cp.learners.CrossEntropy(16), choosing_starts=8,
    sees_factor=False,
)  # fmt: skip

GROUPED = cp.CTRLp(SEARCH)
