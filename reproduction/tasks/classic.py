"""Three control problems of Gymnasium as tasks: reward and end are functions of the observation, as in Gymnasium.

    Pendulum-v1                  r = −(angle² + 0.1·speed² + 0.001·torque²) before the step, and no end
    Acrobot-v1                   r = −1 a step and 0 at the end, where −cos θ₁ − cos(θ₁ + θ₂) > 1
    MountainCarContinuous-v0     r = −0.1·force² and 100 at the end, where position ≥ 0.45 and velocity ≥ 0

The dynamics are Gymnasium's: logs and evaluations of policies come from `gymnasium.make(gym_id)`. A `TaskStack` gives
each job of a stack its own reward and end.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from counterpoint.core.errors import require
from counterpoint.core.settings import Positive, Share, check_settings
from counterpoint.data.knowledge import Knowledge
from counterpoint.data.schema import Schema
from counterpoint.data.shapes import Action, Flag, Reward, State
from counterpoint.data.spaces import Box, Discrete
from counterpoint.tasks.base import StepResult, Task

GOAL = 0.45


class ClassicControl(Task):
    """A task whose environment is Gymnasium's."""

    gym_id: ClassVar[str]
    state_names: ClassVar[tuple[str, ...]]
    knowledge: ClassVar[Knowledge]
    """Angles are given as cosine and sine; Gymnasium clips speeds and positions."""

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def schema(self) -> Schema:
        return Schema.of(self.state_names, self.actions, knowledge=self.knowledge)


@dataclass(frozen=True)
class Pendulum(ClassicControl):
    """Swing a pendulum up and hold it there; the motor is too weak to lift it at once."""

    horizon: Positive = 200
    """Steps after which an episode is cut, as in Pendulum-v1."""
    discount: Share = 0.99

    gym_id = "Pendulum-v1"
    actions = Box((-2.0,), (2.0,))
    state_names = ("cosine", "sine", "speed")
    knowledge = Knowledge(bounds=(("speed", -8.0, 8.0),), circles=(("cosine", "sine"),))
    ceiling = 0.0

    def reward(self, state: State, action: Action, next_state: State) -> Reward:
        """The cost of the state at the start of the step; the angle is 0 upright."""
        angle = torch.atan2(state[..., 1], state[..., 0])
        return -(angle.square() + 0.1 * state[..., 2].square() + 0.001 * action[..., 0].square())

    def terminated(self, next_state: State) -> Flag:
        return torch.zeros_like(next_state[..., 0], dtype=torch.bool)


@dataclass(frozen=True)
class Acrobot(ClassicControl):
    """Swing the free end of two links above a line, by a torque at the joint between them."""

    horizon: Positive = 500
    """Steps after which an episode is cut, as in Acrobot-v1."""
    discount: Share = 0.99

    gym_id = "Acrobot-v1"
    actions = Discrete.of([-1.0, 0.0, 1.0])
    state_names = ("cosine_1", "sine_1", "cosine_2", "sine_2", "speed_1", "speed_2")
    knowledge = Knowledge(
        bounds=(("speed_1", -4 * math.pi, 4 * math.pi), ("speed_2", -9 * math.pi, 9 * math.pi)),
        circles=(("cosine_1", "sine_1"), ("cosine_2", "sine_2")),
    )
    ceiling = 0.0

    def reward(self, state: State, action: Action, next_state: State) -> Reward:
        """−1 for every step but the last."""
        return self.terminated(next_state).to(next_state) - 1

    def terminated(self, next_state: State) -> Flag:
        cosine_1, sine_1, cosine_2, sine_2 = next_state[..., :4].unbind(-1)
        return -cosine_1 - (cosine_1 * cosine_2 - sine_1 * sine_2) > 1


@dataclass(frozen=True)
class MountainCar(ClassicControl):
    """Drive a weak car up a hill by swinging back first; every push has a cost."""

    horizon: Positive = 999
    """Steps after which an episode is cut, as in MountainCarContinuous-v0."""
    discount: Share = 0.99

    gym_id = "MountainCarContinuous-v0"
    actions = Box((-1.0,), (1.0,))
    state_names = ("position", "velocity")
    knowledge = Knowledge(bounds=(("position", -1.2, 0.6), ("velocity", -0.07, 0.07)))
    ceiling = 100.0

    def reward(self, state: State, action: Action, next_state: State) -> Reward:
        """100 at the goal, minus the cost of the push."""
        return 100 * self.terminated(next_state).to(next_state) - 0.1 * action[..., 0].square()

    def terminated(self, next_state: State) -> Flag:
        return (next_state[..., 0] >= GOAL) & (next_state[..., 1] >= 0)


class TaskStack(Task):
    """K tasks with the same actions and outcomes: task k gives reward and end of the steps [k]."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        require(len(tasks) > 0, "there are no tasks to stack; give at least one")
        first = tasks[0]
        alike = all((task.actions, task.outcome_names) == (first.actions, first.outcome_names) for task in tasks)
        require(alike, "the tasks differ in their actions or outcomes; stack those that agree")
        self.tasks, self.actions, self.outcome_names = tuple(tasks), first.actions, first.outcome_names
        self.discount, self.horizon = first.discount, max(task.horizon for task in tasks)

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return torch.stack(self._each(lambda task, *steps: task.reward(*steps), state, action, next_state))

    def terminated(self, next_state: Tensor) -> Tensor:
        return torch.stack(self._each(lambda task, after: task.terminated(after), next_state))

    def expected(self, state: Tensor, action: Tensor, next_state: Tensor) -> tuple[Tensor, Tensor]:
        expected = self._each(lambda task, *steps: task.expected(*steps), state, action, next_state)
        reward, survival = map(torch.stack, zip(*expected, strict=True))
        return reward, survival

    def draw_result(self, state: Tensor, action: Tensor, next_state: Tensor, uniform: Tensor) -> StepResult:
        ends = self._each(lambda task, *steps: task.draw_result(*steps), state, action, next_state, uniform)
        return StepResult(*map(torch.stack, zip(*ends, strict=True)))

    def _each(self, function: Callable[..., Any], *steps: Tensor) -> list[Any]:
        """Apply a function to every task and its steps."""
        return [function(task, *part) for task, *part in zip(self.tasks, *steps, strict=True)]
