"""A task says what actions exist, what a transition is worth, and when an episode ends; some tasks know the truth."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from counterpoint.data.spaces import ActionSpace
from counterpoint.data.transitions import Transitions


class Task(ABC):
    """Reward and end as pure tensor functions, so that imagined rows get theirs from the same place as real ones."""

    actions: ActionSpace
    discount: float

    @abstractmethod
    def reward(
        self, state: Float[Tensor, "*n s"], action: Float[Tensor, "*n a"], next_state: Float[Tensor, "*n s"]
    ) -> Float[Tensor, "*n"]:
        """What the step was worth."""

    @abstractmethod
    def terminated(self, next_state: Float[Tensor, "*n s"]) -> Bool[Tensor, "*n"]:
        """Whether the episode is over in `next_state`."""


class KnownSCM(Task):
    """A task whose structural equation s' = f(s, a, u) and noise are known: simulator and judge of counterfactuals."""

    state_names: tuple[str, ...]
    noise_width: int

    @abstractmethod
    def initial(self, count: int, generator: torch.Generator) -> Float[Tensor, "n s"]:
        """First states."""

    @abstractmethod
    def noise(self, count: int, generator: torch.Generator) -> Float[Tensor, "n u"]:
        """Draws of the noise u."""

    @abstractmethod
    def transition(
        self, state: Float[Tensor, "*n s"], action: Float[Tensor, "*n a"], noise: Float[Tensor, "*n u"]
    ) -> Float[Tensor, "*n s"]:
        """The structural equation s' = f(s, a, u)."""

    def observe(self, state: Float[Tensor, "*n s"], generator: torch.Generator) -> Float[Tensor, "*n s"]:
        """What the policy sees of the state; the state itself unless the task blurs it."""
        return state

    def of_subjects(self, subject: Int[Tensor, " n"]) -> "KnownSCM":
        """The structural equation of these subjects, row by row; the task itself where subjects do not differ."""
        return self

    def counterfactual(self, rows: Transitions, action: Float[Tensor, "n a"]) -> Float[Tensor, "n s"]:
        """The truth: the same state and the same recorded noise, another action. `rows.noise` must hold the noise."""
        return self.of_subjects(rows.subject).transition(rows.state, action, rows.noise)
