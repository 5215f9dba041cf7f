"""A task says what actions exist, what a transition is worth, and when an episode ends; some tasks know the truth."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.data.schema import Schema, agree, agree_on_actions
from counterpoint.data.shapes import Action, Flag, Noise, Reward, State
from counterpoint.data.spaces import ActionSpace
from counterpoint.data.transitions import Transitions, first_outcome


class Conclusion(NamedTuple):
    """How imagined steps turned out: reward, outcome (−1 where life goes on), next state (NaN where there is none)."""

    reward: Float[Tensor, "*n"]
    outcome: Int[Tensor, "*n"]
    next_state: State


class Task(ABC):
    """Reward and end as pure tensor functions, so that imagined rows get theirs from the same place as real ones.

    A task whose end is a matter of chance overrides `expected` and `conclude`, which weigh the end and draw it.
    """

    actions: ActionSpace
    discount: float
    horizon: int
    """Steps after which an episode is cut."""
    selection_horizon: int | None = None
    """Steps of an episode by which checkpoints are selected inside a model; None for the horizon."""
    ceiling: float | None = None
    """The largest possible return of an episode, where there is one."""
    outcome_names: tuple[str, ...] = ("terminated",)

    @abstractmethod
    def reward(self, state: State, action: Action, next_state: State) -> Reward:
        """What the step was worth."""

    @abstractmethod
    def terminated(self, next_state: State) -> Flag:
        """Whether the episode is over in `next_state`."""

    def expected(
        self, state: State, action: Action, next_state: State
    ) -> tuple[Float[Tensor, "*n"], Float[Tensor, "*n"]]:
        """The mean reward of a step, and the probability that the episode goes on after it."""
        return self.reward(state, action, next_state), (~self.terminated(next_state)).float()

    def conclude(
        self,
        state: State,
        action: Action,
        next_state: State,
        uniform: Float[Tensor, "*n"],
    ) -> Conclusion:
        """One drawn end of each step; `uniform` between 0 and 1 decides what chance decides."""
        reward = self.reward(state, action, next_state)
        return Conclusion(reward, first_outcome(self.terminated(next_state)), next_state)


def check_task(task: Task, schema: Schema, they: str = "table") -> None:
    """Raise one line where the task speaks of other actions or, as far as it names them, other state columns."""
    own = getattr(task, "schema", None)
    if isinstance(own, Schema):
        agree(own, schema, "task", they)
    else:
        agree_on_actions(task.actions, schema.actions, "task", they)


class KnownSCM(Task):
    """A task whose structural equation s' = f(s, a, u) and noise are known: simulator and judge of counterfactuals."""

    state_names: tuple[str, ...]
    noise_width: int

    @property
    def schema(self) -> Schema:
        return Schema.of(self.state_names, self.actions)

    @abstractmethod
    def initial(self, count: int, generator: torch.Generator) -> Float[Tensor, "n s"]:
        """First states."""

    @abstractmethod
    def noise(self, count: int, generator: torch.Generator) -> Float[Tensor, "n u"]:
        """Draws of the noise u."""

    @abstractmethod
    def transition(self, state: State, action: Action, noise: Noise) -> State:
        """The structural equation s' = f(s, a, u)."""

    def at_evaluation(self) -> "KnownSCM":
        """The task in which a policy is judged; itself unless its noise is another then."""
        return self

    def observe(self, state: State, generator: torch.Generator) -> State:
        """What the policy sees of the state; the state itself unless the task has observation noise."""
        return state

    def of_subjects(self, subject: Int[Tensor, " n"]) -> "KnownSCM":
        """The structural equation of these subjects, row by row; the task itself where subjects do not differ."""
        return self

    def counterfactual(self, rows: Transitions, action: Action) -> Float[Tensor, "n s"]:
        """The truth: the same state and the same recorded noise, another action. `rows.noise` must hold the noise."""
        return self.of_subjects(rows.subject).transition(rows.state, action, rows.noise)
