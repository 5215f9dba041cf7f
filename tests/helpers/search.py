"""What `test_search.py` shares with other test modules."""

from dataclasses import dataclass

import torch
from torch import Tensor

import counterpoint as cp
from counterpoint.data.jobs import Origin
from counterpoint.data.schema import Schema
from counterpoint.nets.training import Schedule
from counterpoint.policies.searched import SearchedPolicy
from helpers.recipes import BRIEF


@dataclass(frozen=True)
class Drift(cp.KnownSCM):
    """s' = s + a + u/10 in two columns, one action each; being away from 0 costs. The best action is −s."""

    continuous: bool = True
    actions = cp.Box((-1.0, -1.0), (1.0, 1.0))
    state_names = ("x", "y")
    noise_width = 2
    discount, horizon = 0.99, 8

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return -next_state.square().sum(-1)

    def terminated(self, next_state: Tensor) -> Tensor:
        return torch.zeros_like(next_state[..., 0]).bool()

    def initial(self, count: int, generator: torch.Generator) -> Tensor:
        return 2 * torch.rand(count, 2, generator=generator) - 1

    def noise(self, count: int, generator: torch.Generator) -> Tensor:
        return torch.randn(count, 2, generator=generator)

    def transition(self, state: Tensor, action: Tensor, noise: Tensor) -> Tensor:
        return state + action + 0.1 * noise


DRIFT = Drift()

LOG = cp.simulate(DRIFT, cp.random_policy(DRIFT), 30, 8, seed=1)

MODEL_RECIPE = cp.DensitySCM(ensemble=2, hidden=(8,), likelihood=BRIEF)

SEARCH = cp.Search(
    model=MODEL_RECIPE,
    draws=cp.models.PosteriorDraws(3),
    optimizer=cp.learners.CrossEntropy(candidates=32, elites=6),
    schedule=Schedule(steps=12, check_every=4, log_every=4),
)


def policy(
    numbers: list[float], schema: Schema, rule: object, mean: list[float], spread: list[float]
) -> SearchedPolicy:
    weights = {"numbers": torch.tensor(numbers), "returns": torch.zeros(2)}
    weights |= {"mean": torch.tensor([mean]), "spread": torch.tensor([spread])}
    return SearchedPolicy(cp.Search(rule=rule), weights, schema, Origin(0, "", ""))  # pyright: ignore[reportArgumentType]
