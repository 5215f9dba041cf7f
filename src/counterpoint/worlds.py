"""Many fitted models as one vectorised simulator, and policies judged inside it, without the environment."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.data.transitions import Transitions
from counterpoint.policies.base import Actor
from counterpoint.seeding import derive
from counterpoint.tasks.base import Task


class Simulator(Protocol):
    """W worlds side by side."""

    worlds: int

    def step(
        self, state: Float[Tensor, "w n s"], action: Float[Tensor, "w n a"], random: torch.Generator
    ) -> Float[Tensor, "w n s"]:
        """The next states, world by world, with fresh noise."""
        ...


@dataclass(frozen=True)
class Rollouts:
    """How policies are judged inside fitted models: a policy's return in every ensemble member of its own model."""

    starts: int = 32
    """Episodes in every ensemble member, from first states of the table."""
    horizon: int = 200
    """Steps an episode."""

    def judge(self, simulator: Simulator, tables: Sequence[Transitions], task: Task, seed: int) -> "RolloutJudge":
        """A judge of one policy for each table; `simulator` holds the same number of worlds for each."""
        return RolloutJudge(self, simulator, tables, task, seed)


class RolloutJudge:
    """Scores K policies by minus their mean return in their own worlds; the same starts and noise at every call."""

    def __init__(self, how: Rollouts, simulator: Simulator, tables: Sequence[Transitions], task: Task, seed: int) -> None:
        self.how, self.simulator, self.task, self.seed = how, simulator, task, seed
        self.members = simulator.worlds // len(tables)
        starts = [self._starts(t, derive(seed, "starts", k)) for k, t in enumerate(tables)]
        self.starts = torch.stack(starts)

    def _starts(self, table: Transitions, seed: int) -> Float[Tensor, "n s"]:
        first = table.state[~table.imagined & (table.step == table.step.min())]
        pick = torch.randint(len(first), (self.members * self.how.starts,), generator=torch.Generator().manual_seed(seed))
        return first[pick]

    @torch.no_grad()
    def __call__(self, actor: Actor) -> Float[Tensor, " k"]:
        return -self.returns(actor).mean(1)

    @torch.no_grad()
    def returns(self, actor: Actor) -> Float[Tensor, "k n"]:
        """Undiscounted return of every episode, K policies × (members × starts) episodes."""
        device = self.simulator.device  # pyright: ignore[reportAttributeAccessIssue]
        random = torch.Generator(device).manual_seed(derive(self.seed, "noise"))
        state = self.starts.to(device)
        policies, episodes, size = state.shape
        alive = torch.ones(policies, episodes, device=device)
        total = torch.zeros(policies, episodes, device=device)
        for _ in range(self.how.horizon):
            action = actor(state)
            worlds = (x.reshape(self.simulator.worlds, self.how.starts, -1) for x in (state, action))
            after = self.simulator.step(*worlds, random).view(policies, episodes, size)
            after = torch.where(alive[..., None].bool(), after, state)
            total += alive * self.task.reward(state, action, after)
            alive = alive * (~self.task.terminated(after)).float()
            state = after
        return total
