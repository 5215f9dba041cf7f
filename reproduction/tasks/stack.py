"""Tasks side by side as one: in a stack of jobs, each may have a reward and an end of its own."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from counterpoint.core.errors import require
from counterpoint.tasks.base import Conclusion, Task


class TaskStack(Task):
    """K tasks of the same actions and outcomes: task k rewards and ends the steps [k]."""

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
        each = self._each(lambda task, *steps: task.expected(*steps), state, action, next_state)
        reward, survival = map(torch.stack, zip(*each, strict=True))
        return reward, survival

    def conclude(self, state: Tensor, action: Tensor, next_state: Tensor, uniform: Tensor) -> Conclusion:
        each = self._each(lambda task, *steps: task.conclude(*steps), state, action, next_state, uniform)
        return Conclusion(*map(torch.stack, zip(*each, strict=True)))

    def _each(self, judge: Callable[..., Any], *steps: Tensor) -> list[Any]:
        """What every task makes of its own share of the steps."""
        return [judge(task, *own) for task, *own in zip(self.tasks, *steps, strict=True)]
