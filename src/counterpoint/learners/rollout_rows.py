"""Rows from rollouts of the learning policy inside the model, made anew while it learns.

One-step rows show other actions in logged states; a policy that has learned from them goes where the log never was.
These rows follow it there: episodes of the greedy policy with some random actions, in every member of the model. The
reward of a row is its mean and its end a probability, as the task says.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from counterpoint.core.errors import require
from counterpoint.core.seeding import generator
from counterpoint.core.settings import Positive, Share, check_settings
from counterpoint.data.jobs import Categories, Job, context, spread_levels
from counterpoint.data.spaces import Discrete
from counterpoint.models.base import Model
from counterpoint.simulation.models import ModelSimulator
from counterpoint.simulation.rollout import Actor, Rollout, on_device
from counterpoint.tasks.base import Task

NAMES = ("state", "action", "reward", "next_state", "not_terminated")


@dataclass(frozen=True)
class RolloutRows:
    """How many such rows there are, how they come about, and what share of a minibatch they are."""

    share: Share = 0.5
    """Share of a minibatch; the rest is shared out between real and one-step rows as the learner says."""
    every: Positive = 150
    """Updates between two rounds of episodes."""
    episodes: Positive = 8
    """Episodes a round in every member of the model, from states of the log."""
    steps: Positive = 100
    """Steps an episode, unless it ends before."""
    rounds: Positive = 5
    """Rounds kept; the oldest makes room."""
    random_actions: Share = 0.3
    """Share of actions that are random."""

    def __post_init__(self) -> None:
        check_settings(self)

    def replay(
        self, models: Sequence[Model], jobs: Sequence[Job], task: Task, sees_factor: bool = True
    ) -> "RolloutReplay":
        """Where the rows of every job are kept; each job has its own model."""
        return RolloutReplay(self, ModelSimulator(models), jobs, task, sees_factor)


class RolloutReplay(nn.Module):
    """The rows of K jobs, the valid ones found by `order` and counted; all of it is part of a checkpoint."""

    state: Tensor
    action: Tensor
    reward: Tensor
    next_state: Tensor
    not_terminated: Tensor
    valid: Tensor
    order: Tensor
    count: Tensor

    def __init__(
        self, how: RolloutRows, simulator: ModelSimulator, jobs: Sequence[Job], task: Task, sees_factor: bool
    ) -> None:
        super().__init__()
        self.sees_factor = sees_factor
        self.how, self.simulator, self.jobs, self.task = how, simulator, jobs, on_device(task, simulator.device)
        self.categories: Categories = jobs[0].data.schema.categories
        self.known = [_states(job, model) for job, model in zip(jobs, simulator.models, strict=True)]
        self.round_rows = how.episodes * simulator.members * how.steps
        rows, width = self.round_rows * how.rounds, self._told(*(x[:1] for x in self.known[0])).shape[-1]
        shapes = {"state": (width,), "next_state": (width,)}
        for name in NAMES:
            kind = torch.long if name == "action" else torch.float32
            self._keep(name, torch.zeros(len(jobs), rows, *shapes.get(name, ()), dtype=kind))
        self._keep("valid", torch.zeros(len(jobs), rows, dtype=torch.bool))
        self._keep("order", torch.zeros(len(jobs), rows, dtype=torch.long))
        self._keep("count", torch.ones(len(jobs)))

    def _keep(self, name: str, tensor: Tensor) -> None:
        self.register_buffer(name, tensor.to(self.simulator.device))

    def _told(self, state: Tensor, theta: Tensor) -> Tensor:
        levels = spread_levels(state, self.categories)
        return context(levels, theta=theta) if self.sees_factor else levels

    @torch.no_grad()
    def refresh(self, actor: Actor, update: int) -> None:
        """A round of episodes of the policies as they are after `update` updates."""
        members, first = self.simulator.members, (update // self.how.every % self.how.rounds) * self.round_rows
        randoms = [generator(job.seed, "rollouts", update) for job in self.jobs]
        starts = [self._starts(known, members, random) for known, random in zip(self.known, randoms, strict=True)]
        state, theta = (torch.stack(column).to(self.simulator.device) for column in zip(*starts, strict=True))
        noise = self.simulator.fresh(state.shape[1], seed=update)
        rollout = Rollout(self.simulator, self.task, self._explorer(actor, randoms))
        each = state.shape[1]
        self.valid[:, first : first + self.round_rows] = False
        for t, step in enumerate(rollout(state, noise, self.how.steps, theta)):
            rows = slice(first + t * each, first + (t + 1) * each)
            self.state[:, rows], self.next_state[:, rows] = (
                self._told(step.state, theta),
                self._told(step.next_state, theta),
            )
            self.action[:, rows] = self._index(step.action)
            self.reward[:, rows], self.not_terminated[:, rows] = step.reward, step.survival
            self.valid[:, rows] = (step.alive > 0) & step.next_state.isfinite().all(-1)
        require(
            bool(self.valid.any(1).all()),
            "no step of an episode inside the fitted model is finite, so nothing can be learned; check the model"
            " (counterpoint check-scm) or declare the bounds of the state (fit --bounds)",
        )
        self.order.copy_(torch.sort((~self.valid).to(torch.uint8), dim=1, stable=True).indices)
        self.count.copy_(self.valid.sum(1).clamp(min=1))

    def _starts(self, known: tuple[Tensor, Tensor], members: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        picked = torch.randint(len(known[0]), (members * self.how.episodes,), generator=random)
        return known[0][picked], known[1][picked]

    def _explorer(self, actor: Actor, randoms: Sequence[torch.Generator]) -> Actor:
        """The policies, with some random actions."""

        def act(state: Tensor, theta: Tensor) -> Tensor:
            drawn = [_explored(self._actions, state.shape[1], self.how.random_actions, random) for random in randoms]
            random, other = (torch.stack(column).to(state.device) for column in zip(*drawn, strict=True))
            return torch.where(random[..., None], other, actor(state, theta))

        return act

    @property
    def _actions(self) -> Discrete:
        assert isinstance(self.task.actions, Discrete)
        return self.task.actions

    def _index(self, action: Float[Tensor, "k e a"]) -> Int[Tensor, "k e"]:
        return self._actions.index(action.flatten(0, 1)).view(action.shape[:2])

    def take(self, uniform: Float[Tensor, "n b"], networks: int) -> list[Tensor]:
        """Valid rows, `uniform` saying which; the networks of one job stand side by side."""
        job = torch.arange(len(uniform), device=uniform.device)[:, None] // networks
        place = (uniform * self.count[job]).long().clamp(max=self.order.shape[1] - 1)
        rows = self.order[job, place]
        return [getattr(self, name)[job, rows] for name in NAMES]


def _explored(actions: Discrete, count: int, share: float, random: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.rand(count, generator=random) < share, actions.sample(count, random)


def _states(job: Job, model: Model) -> tuple[Float[Tensor, "n s"], Float[Tensor, "n t"]]:
    """The states of the real rows and the factors of their subjects."""
    real = ~job.data.imagined
    theta = job.rows_theta if job.theta.shape[1] else model.subjects(job.data)
    return job.data.state[real], theta[real]
