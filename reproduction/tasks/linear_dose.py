"""A linear task with one continuous dose, in which the mean return of any policy is cheap to simulate.

    x' = .9·x − .5·a + .3·c + .3·u,    reward −x² − .1·a²,    c: a constant of the subject

The clinicians give a = .4·x + .2·c + spread·ε. With `positive` the dose is exp of that, or nothing where x is low.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self, final

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.settings import check_settings
from counterpoint.data.jobs import Origin
from counterpoint.data.schema import Column, Schema
from counterpoint.data.spaces import Box
from counterpoint.policies.base import Policy
from counterpoint.simulation.rollout import Actor
from counterpoint.tasks.base import KnownSCM


@dataclass(frozen=True)
class LinearDose(KnownSCM):
    """The task; its action is a dose."""

    horizon: int = 20
    """Steps of an episode."""
    spread: float = 0.4
    """Standard deviation of the clinicians' doses given the state."""
    positive: bool = False
    """Whether doses are positive or none, instead of any number."""

    state_names = ("x", "c")
    noise_width = 1

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def actions(self) -> Box:  # pyright: ignore[reportIncompatibleVariableOverride]
        return Box((0.0,), (20.0,)) if self.positive else Box((-10.0,), (10.0,))

    @property
    def schema(self) -> Schema:
        return Schema((Column("x"), Column("c", static=True)), self.actions, ("dose",))

    def initial(self, count: int, generator: torch.Generator) -> Float[Tensor, "n s"]:
        return torch.randn(count, 2, generator=generator)

    def noise(self, count: int, generator: torch.Generator) -> Float[Tensor, "n u"]:
        return torch.randn(count, 1, generator=generator)

    def transition(self, state: Tensor, action: Tensor, noise: Tensor) -> Tensor:
        x, c = state[..., :1], state[..., 1:]
        dose = action - 1.0 if self.positive else action
        return torch.cat([0.9 * x - 0.5 * dose + 0.3 * c + 0.3 * noise, c.expand_as(x)], -1)

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return -next_state[..., 0].square() - 0.1 * action[..., 0].square()

    def terminated(self, state: Tensor) -> Tensor:
        return torch.zeros_like(state[..., 0], dtype=torch.bool)

    def clinicians(self, state: Tensor, random: torch.Generator) -> Tensor:
        """The behaviour policy."""
        normal = torch.randn(*state.shape[:-1], 1, generator=random)
        usual = 0.4 * state[..., :1] + 0.2 * state[..., 1:]
        if not self.positive:
            return (usual + self.spread * normal).clamp(-10.0, 10.0)
        given = torch.rand(*state.shape[:-1], 1, generator=random) < torch.sigmoid(2 + 2 * state[..., :1])
        return torch.where(given, (usual + self.spread * normal).exp(), 0.0).clamp(0.0, 20.0)

    def rule(self, state: Tensor, more: float = 0.0, shift: float = 0.0) -> Tensor:
        """A deterministic policy: the clinicians' usual dose, with another slope and level."""
        usual = (0.4 + more) * state[..., :1] + 0.2 * state[..., 1:] + shift
        return (usual.exp().clamp(0.0, 20.0)) if self.positive else usual.clamp(-10.0, 10.0)


@final
class RulePolicy(Policy):
    """A policy given by a function of the state; it cannot be saved."""

    def __init__(self, schema: Schema, rule: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.schema, self.rule, self.origin, self.recipe = schema, rule, Origin(0, "", ""), None
        self.register_buffer("nothing", torch.zeros(1))

    def weights(self) -> dict[str, Tensor]:
        return {"nothing": torch.zeros(1)}

    def actor(self) -> Actor:
        return lambda state, theta: self.rule(state)

    def rollout_actor(self, others: Sequence[Self] = ()) -> Actor:
        rules = [policy.rule for policy in (self, *others)]
        return lambda state, theta: torch.stack([rule(part) for rule, part in zip(rules, state, strict=True)])
