"""Replay rows from rollouts of the learning policy inside the model, refreshed while it learns.

One-step rows hold other actions in logged states; a policy that has learned from them reaches states outside the log.
These rows cover such states: episodes of the ε-greedy policy in every member of the model. The reward of a row is its
mean and its end a probability, both from the task.
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
    """Settings of the rollouts: episodes, random actions, rounds kept, and their share of a minibatch."""

    share: Share = 0.5
    """Share of a minibatch; the learner divides the rest between real and one-step rows."""
    every: Positive = 150
    """Updates between two rounds of episodes."""
    episodes: Positive = 8
    """Episodes a round in every member of the model, from states of the log."""
    steps: Positive = 100
    """Steps an episode, unless it ends before."""
    rounds: Positive = 5
    """Rounds kept; the oldest is overwritten."""
    random_actions: Share = 0.3
    """Share of actions that are random."""

    def __post_init__(self) -> None:
        check_settings(self)

    def replay(
        self, models: Sequence[Model], jobs: Sequence[Job], task: Task, sees_factor: bool = True
    ) -> "RolloutReplay":
        """The replay memory of every job; each job has its own model."""
        return RolloutReplay(self, ModelSimulator(models), jobs, task, sees_factor)


class RolloutReplay(nn.Module):
    """The replay memory of K jobs. `order` lists the valid rows first and `count` counts them; saved in checkpoints."""

    state: Tensor
    action: Tensor
    reward: Tensor
    next_state: Tensor
    not_terminated: Tensor
    valid: Tensor
    order: Tensor
    count: Tensor

    def __init__(
        self, recipe: RolloutRows, simulator: ModelSimulator, jobs: Sequence[Job], task: Task, sees_factor: bool
    ) -> None:
        super().__init__()
        self.sees_factor = sees_factor
        self.recipe, self.simulator, self.jobs = recipe, simulator, jobs
        self.task = on_device(task, simulator.device)
        self.categories: Categories = jobs[0].data.schema.categories
        self.starts = [_start_states(job, model) for job, model in zip(jobs, simulator.models, strict=True)]
        self.round_rows = recipe.episodes * simulator.members * recipe.steps
        rows = self.round_rows * recipe.rounds
        first_state, first_theta = self.starts[0]
        width = self._inputs(first_state[:1], first_theta[:1]).shape[-1]
        shapes = {"state": (width,), "next_state": (width,)}
        for name in NAMES:
            dtype = torch.long if name == "action" else torch.float32
            self._keep(name, torch.zeros(len(jobs), rows, *shapes.get(name, ()), dtype=dtype))
        self._keep("valid", torch.zeros(len(jobs), rows, dtype=torch.bool))
        self._keep("order", torch.zeros(len(jobs), rows, dtype=torch.long))
        self._keep("count", torch.ones(len(jobs)))

    def _keep(self, name: str, tensor: Tensor) -> None:
        self.register_buffer(name, tensor.to(self.simulator.device))

    def _inputs(self, state: Tensor, theta: Tensor) -> Tensor:
        levels = spread_levels(state, self.categories)
        return context(levels, theta=theta) if self.sees_factor else levels

    @torch.no_grad()
    def refresh(self, actor: Actor, update: int) -> None:
        """Replace the oldest round by episodes of the current policies; `update` is the number of updates done."""
        first = (update // self.recipe.every % self.recipe.rounds) * self.round_rows
        randoms = [generator(job.seed, "rollouts", update) for job in self.jobs]
        starts = [self._drawn_starts(*starts, random) for starts, random in zip(self.starts, randoms, strict=True)]
        state, theta = (torch.stack(column).to(self.simulator.device) for column in zip(*starts, strict=True))
        episodes = state.shape[1]
        noise = self.simulator.fresh(episodes, seed=update)
        rollout = Rollout(self.simulator, self.task, self._explorer(actor, randoms))
        self.valid[:, first : first + self.round_rows] = False
        for t, step in enumerate(rollout(state, noise, self.recipe.steps, theta)):
            rows = slice(first + t * episodes, first + (t + 1) * episodes)
            self.state[:, rows] = self._inputs(step.state, theta)
            self.action[:, rows] = self._index(step.action)
            self.reward[:, rows] = step.reward
            self.next_state[:, rows] = self._inputs(step.next_state, theta)
            self.not_terminated[:, rows] = step.survival
            self.valid[:, rows] = (step.alive > 0) & step.next_state.isfinite().all(-1)
        require(
            bool(self.valid.any(1).all()),
            "no step of an episode inside the fitted model is finite, so nothing can be learned; check the model"
            " (counterpoint check-scm) or declare the bounds of the state (fit --bounds)",
        )
        self.order.copy_(torch.sort((~self.valid).to(torch.uint8), dim=1, stable=True).indices)
        self.count.copy_(self.valid.sum(1).clamp(min=1))

    def _drawn_starts(self, state: Tensor, theta: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor]:
        count = self.simulator.members * self.recipe.episodes
        rows = torch.randint(len(state), (count,), generator=random)
        return state[rows], theta[rows]

    def _explorer(self, actor: Actor, randoms: Sequence[torch.Generator]) -> Actor:
        """The policies with a share of random actions."""

        def act(state: Tensor, theta: Tensor) -> Tensor:
            share = self.recipe.random_actions
            draws = [_random_actions(self._actions, state.shape[1], share, random) for random in randoms]
            replaced, other = (torch.stack(column).to(state.device) for column in zip(*draws, strict=True))
            return torch.where(replaced[..., None], other, actor(state, theta))

        return act

    @property
    def _actions(self) -> Discrete:
        assert isinstance(self.task.actions, Discrete)
        return self.task.actions

    def _index(self, action: Float[Tensor, "k e a"]) -> Int[Tensor, "k e"]:
        return self._actions.index(action.flatten(0, 1)).view(action.shape[:2])

    def sample(self, uniform: Float[Tensor, "n b"], networks: int) -> list[Tensor]:
        """Sample a minibatch of valid replay rows for every network, the `networks` of one job being neighbours.

        `uniform` are draws in [0, 1) that choose the rows.
        """
        job = torch.arange(len(uniform), device=uniform.device)[:, None] // networks
        place = (uniform * self.count[job]).long().clamp(max=self.order.shape[1] - 1)
        rows = self.order[job, place]
        return [getattr(self, name)[job, rows] for name in NAMES]


def _random_actions(actions: Discrete, count: int, share: float, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Which of `count` actions are random, and the random ones."""
    return torch.rand(count, generator=random) < share, actions.sample(count, random)


def _start_states(job: Job, model: Model) -> tuple[Float[Tensor, "n s"], Float[Tensor, "n t"]]:
    """The states of the real rows and the factors of their subjects."""
    real = ~job.data.imagined
    theta = job.rows_theta if job.theta.shape[1] else model.subjects(job.data)
    return job.data.state[real], theta[real]
