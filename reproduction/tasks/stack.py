"""A stack of tasks: each job of a stack has its own reward and end."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from counterpoint.core.errors import require
from counterpoint.tasks.base import StepResult, Task


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
