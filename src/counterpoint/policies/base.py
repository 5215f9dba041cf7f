"""A policy says what to do in a state; a policy learner is a recipe that makes one from a table and a task."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor, nn

from counterpoint.artifacts import Artifact
from counterpoint.data.jobs import NO_THETA, Job
from counterpoint.data.shapes import Action, State, Theta
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.errors import CounterpointError
from counterpoint.nets.training import Monitor
from counterpoint.simulation.rollout import Actor
from counterpoint.tasks.base import Task


class Policy(nn.Module, Artifact, ABC):
    """What a learner returns. `act` is a pure function of the state and the subject's factor."""

    kind: ClassVar[str] = "policy"
    actions: Discrete

    @abstractmethod
    def actor(self) -> Actor:
        """This policy alone as an actor."""

    @classmethod
    @abstractmethod
    def together(cls, policies: Sequence["Policy"]) -> Actor:
        """Policies of one shape as one actor, for evaluating many at once."""

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @torch.no_grad()
    def act(self, state: State, theta: Theta = NO_THETA) -> Action:
        """The action to take in each state, as feature values, where the states are."""
        factors = theta.expand(len(state), -1)
        chosen = self.actor()(state[None].to(self.device), factors[None].to(self.device))
        return chosen[0].to(state)

    def __call__(self, state: State, random: torch.Generator) -> Action:
        """The form a simulator asks for; the generator is not needed."""
        return self.act(state)


@dataclass(frozen=True)
class Learned:
    """The two ends of a training run: the checkpoint its own rule selected, and the last one."""

    selected: Policy
    last: Policy


class PolicyLearner(ABC):
    """Hyperparameters with one verb; every method of the paper's figures is one of these."""

    def fit(
        self,
        data: Transitions,
        task: Task,
        seed: int = 0,
        monitor: Monitor = Monitor(),
        device: str = "cpu",
        theta: Theta = NO_THETA,
    ) -> Policy:
        """Learn on one table."""
        return self.fit_many([Job(data, seed, theta)], task, monitor, device)[0].selected

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
