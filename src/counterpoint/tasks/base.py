"""Base classes of tasks: `Task` defines actions, reward and end of an episode, `KnownSCM` the transition as well."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.data.schema import Schema, agree, agree_on_actions
from counterpoint.data.shapes import Action, Flag, Noise, Reward, State
from counterpoint.data.spaces import ActionSpace
from counterpoint.data.transitions import Transitions, first_outcome


class StepResult(NamedTuple):
    """Reward, outcome (−1 where the episode goes on) and next state (NaN where there is none) of simulated steps."""

    reward: Float[Tensor, "*n"]
    outcome: Int[Tensor, "*n"]
    next_state: State


class Task(ABC):
    """Base class of decision problems: actions, and the reward and end of an episode as pure tensor functions.

    A task whose episodes end at random overrides `expected`, the mean over that end, and `draw_result`, which draws it.
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
        """Return the reward of each step."""

    @abstractmethod
    def terminated(self, next_state: State) -> Flag:
        """Return whether the episode is over in `next_state`."""

    def expected(
        self, state: State, action: Action, next_state: State
    ) -> tuple[Float[Tensor, "*n"], Float[Tensor, "*n"]]:
        """Return the mean reward of each step, and the probability that the episode goes on after it."""
        return self.reward(state, action, next_state), (~self.terminated(next_state)).float()

    def draw_result(
        self,
        state: State,
        action: Action,
        next_state: State,
        uniform: Float[Tensor, "*n"],
    ) -> StepResult:
        """Draw the end of each step; `uniform` are draws in [0, 1) that decide random ends."""
        reward = self.reward(state, action, next_state)
        return StepResult(reward, first_outcome(self.terminated(next_state)), next_state)


def check_task(task: Task, schema: Schema, other: str = "table") -> None:
    """Raise an error where the task has other actions than `schema` or, if it names its state columns, other columns.

    `other` names the owner of `schema` in the message.
    """
    task_schema = getattr(task, "schema", None)
    if isinstance(task_schema, Schema):
        agree(task_schema, schema, "task", other)
    else:
        agree_on_actions(task.actions, schema.actions, "task", other)


class KnownSCM(Task):
    """A task whose structural equation s' = f(s, a, u) and noise are known: a simulator with true counterfactuals."""

    state_names: tuple[str, ...]
    noise_width: int

    @property
    def schema(self) -> Schema:
        return Schema.of(self.state_names, self.actions)

    @abstractmethod
    def initial(self, count: int, generator: torch.Generator) -> Float[Tensor, "n s"]:
        """Draw first states."""

    @abstractmethod
    def noise(self, count: int, generator: torch.Generator) -> Float[Tensor, "n u"]:
        """Draw the exogenous noise u."""

    @abstractmethod
    def transition(self, state: State, action: Action, noise: Noise) -> State:
        """Return the next state s' = f(s, a, u)."""

    def at_evaluation(self) -> "KnownSCM":
        """Return the task in which policies are evaluated; itself unless its noise differs in evaluation."""
        return self

    def observe(self, state: State, generator: torch.Generator) -> State:
        """Return the state as the policy observes it: itself, unless the task has observation noise."""
        return state

    def of_subjects(self, subject: Int[Tensor, " n"]) -> "KnownSCM":
        """Return the task with these subjects' parameters, row by row; itself where subjects do not differ."""
        return self

    def counterfactual(self, rows: Transitions, action: Action) -> Float[Tensor, "n s"]:
        """Return true next states under another action, with the noise recorded in `rows.noise`."""
        return self.of_subjects(rows.subject).transition(rows.state, action, rows.noise)
