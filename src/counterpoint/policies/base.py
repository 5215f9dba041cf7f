"""A policy says what to do in a state; a policy learner is a recipe that makes one from a table and a task."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from counterpoint import artifacts
from counterpoint.data.jobs import Job, Origin
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.errors import CounterpointError
from counterpoint.nets.training import Monitor, Trained
from counterpoint.tasks.base import Task

Actor = Callable[[Float[Tensor, "k n s"]], Float[Tensor, "k n a"]]
"""K policies at once: policy k acts in the states [k]."""


class Policy(nn.Module, ABC):
    """What a learner returns. `act` is a pure function of the state."""

    recipe: Any
    actions: Discrete
    state_names: tuple[str, ...]
    origin: Origin

    @abstractmethod
    def act(self, state: Float[Tensor, "n s"]) -> Float[Tensor, "n a"]:
        """The action to take in each state, as feature values."""

    @classmethod
    @abstractmethod
    def together(cls, policies: Sequence["Policy"]) -> Actor:
        """Policies of one shape as one actor, for evaluating many at once."""

    @abstractmethod
    def weights(self) -> dict[str, Tensor]:
        """What is saved."""

    def save(self, folder: Path | str) -> None:
        """Write weights and recipe into `folder`; `counterpoint.load` brings the same actions back, bit for bit."""
        artifacts.save(folder, self.weights(), self.header())

    def header(self) -> dict[str, Any]:
        return {
            "kind": "policy",
            "recipe": artifacts.encode(self.recipe),
            "actions": artifacts.encode(self.actions),
            "state_names": list(self.state_names),
            "origin": artifacts.encode(self.origin),
        }

    def __call__(self, state: Float[Tensor, "n s"], random: torch.Generator) -> Float[Tensor, "n a"]:
        """The form a simulator asks for; the generator is not needed."""
        return self.act(state)


@dataclass(frozen=True)
class Learned:
    """The two ends of a training run: the checkpoint its own rule selected, and the last one."""

    selected: Policy
    last: Policy


def both_ends(trained: Trained, jobs: int, policy: Callable[[dict[str, Tensor], int], Policy]) -> list[Learned]:
    """A stack's run, job by job, with `policy(weights, job)`; one policy for both ends where nothing was chosen."""
    last = [policy(trained.last, i) for i in range(jobs)]
    if trained.selected is trained.last:
        return [Learned(each, each) for each in last]
    return [Learned(policy(trained.selected, i), each) for i, each in enumerate(last)]


class PolicyLearner(ABC):
    """Hyperparameters with one verb; every method of the paper's figures is one of these."""

    def fit(
        self, data: Transitions, task: Task, seed: int = 0, monitor: Monitor = Monitor(), device: str = "cpu"
    ) -> Policy:
        """Learn on one table."""
        return self.fit_many([Job(data, seed)], task, monitor, device)[0].selected

    @abstractmethod
    def fit_many(
        self, jobs: Sequence[Job], task: Task, monitor: Monitor = Monitor(), device: str = "cpu"
    ) -> list[Learned]:
        """Learn every job, all in one loop."""


def discrete(task: Task) -> Discrete:
    """The task's action space, which a Q-network needs to be finite."""
    if not isinstance(task.actions, Discrete):
        raise CounterpointError("this learner needs a discrete action space; give the doses as Discrete.of([...])")
    return task.actions


def action_numbers(data: Transitions) -> Int[Tensor, " n"]:
    """The rows' action numbers, all of them inside the space."""
    outside = (data.action_index < 0).nonzero()
    if len(outside):
        raise CounterpointError(f"row {int(outside[0])} has an action outside the discrete action space; correct it")
    return data.action_index
