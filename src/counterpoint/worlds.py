"""Many fitted models as one vectorised simulator, and policies judged inside it, without the environment."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.data.jobs import Job
from counterpoint.dynamics.base import DynamicsModel, HeadNetwork
from counterpoint.policies.base import Actor
from counterpoint.scm.base import Mechanism, StructuralCausalModel
from counterpoint.seeding import generator
from counterpoint.tasks.base import Task


class Worlds:
    """Every ensemble member of every fitted model as a world of its own, all stepped in one batch."""

    def __init__(self, models: Sequence[StructuralCausalModel] | Sequence[DynamicsModel]) -> None:
        self.device, self.models = models[0].device, len(models)
        self.network = _one_network(models).to(self.device).eval()
        self.count = self.network.members

    @torch.no_grad()
    def step(
        self, state: Float[Tensor, "w n s"], action: Float[Tensor, "w n a"], random: torch.Generator
    ) -> Float[Tensor, "w n s"]:
        """Next states with fresh noise: the same for every model, so that none depends on the models beside it."""
        context, members, episodes = torch.cat([state, action], -1), self.count // self.models, state.shape[1]
        if isinstance(self.network, HeadNetwork):
            chance = self.network.chance((members, episodes), random)
            return state + self.network.sample(context, chance.repeat(self.models, 1, 1))
        noise = self.network.prior(members * episodes, random).to(state).view(members, episodes, -1)
        return self.network.predict(context, state, noise.repeat(self.models, 1, 1))


def _one_network(models: Sequence[StructuralCausalModel] | Sequence[DynamicsModel]) -> Mechanism | HeadNetwork:
    """The members of all models in one stack."""
    first = models[0]
    size = len(first.state_names)
    if isinstance(first, DynamicsModel):
        parts: list[Any] = [model.network for model in models]
        whole: Any = first.recipe.network(size, first.network.context_mean.shape[-1], sum(p.members for p in parts))
    else:
        parts = [model.mechanism for model in models]  # pyright: ignore[reportAttributeAccessIssue]
        whole = first.recipe.mechanism(size, first.mechanism.context_width, sum(p.members for p in parts))
    states = [part.state_dict() for part in parts]
    whole.load_state_dict({name: torch.cat([state[name] for state in states]) for name in states[0]})
    return whole


@dataclass(frozen=True)
class Rollouts:
    """How policies are judged inside fitted models: a policy's return in every ensemble member of its own model."""

    starts: int = 32
    """Episodes in every ensemble member, from first states of the table."""
    horizon: int = 200
    """Steps an episode."""

    def judge(self, worlds: Worlds, jobs: Sequence[Job], task: Task) -> "RolloutJudge":
        """A judge of one policy for each job; the worlds are shared out evenly."""
        return RolloutJudge(self, worlds, jobs, task)


class RolloutJudge:
    """Scores K policies by minus their mean return in their own worlds; the same starts and noise at every call."""

    def __init__(self, how: Rollouts, worlds: Worlds, jobs: Sequence[Job], task: Task) -> None:
        self.how, self.worlds, self.task = how, worlds, task
        self.members = worlds.count // len(jobs)
        self.starts = torch.stack([self._starts(job) for job in jobs])

    def _starts(self, job: Job) -> Float[Tensor, "n s"]:
        table = job.data
        first = table.state[~table.imagined & (table.step == table.step.min())]
        return first[
            torch.randint(len(first), (self.members * self.how.starts,), generator=generator(job.seed, "starts"))
        ]

    @torch.no_grad()
    def __call__(self, actor: Actor) -> Float[Tensor, " k"]:
        return -self.returns(actor).mean(1)

    @torch.no_grad()
    def returns(self, actor: Actor) -> Float[Tensor, "k n"]:
        """Undiscounted return of every episode, K policies × (members × starts) episodes."""
        device = self.worlds.device
        random = torch.Generator(device).manual_seed(0)
        state = self.starts.to(device)
        policies, episodes, size = state.shape
        alive = torch.ones(policies, episodes, device=device)
        total = torch.zeros(policies, episodes, device=device)
        for _ in range(self.how.horizon):
            action = actor(state)
            by_world = (x.reshape(self.worlds.count, self.how.starts, -1) for x in (state, action))
            after = self.worlds.step(*by_world, random).view(policies, episodes, size)
            after = torch.where(alive[..., None].bool(), after, state)
            total += alive * self.task.reward(state, action, after)
            alive = alive * (~self.task.terminated(after)).float()
            state = after
        return total
