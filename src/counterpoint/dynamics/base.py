"""Models p(s' | s, a, θ) that cannot abduct: they draw a next state, but not the one that would have followed in a row.

The paper's three baselines (section 5.1 and appendix "Three Baselines") share this file and differ in their head alone.
Like the SCMs they model the change s' − s, on standardised inputs and outputs, by maximum likelihood; unlike the
default SCM they are one network each, of the paper's widths and with its batch norm.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from counterpoint import artifacts
from counterpoint.data.jobs import NO_THETA, Job, Origin, Padded, fitting_table
from counterpoint.data.spaces import ActionSpace, check_actions
from counterpoint.data.transitions import Transitions
from counterpoint.nets.conditional import Likelihood, LikelihoodLearner
from counterpoint.nets.stacked import StackedMLP, initialise, members_of
from counterpoint.nets.training import Monitor, Trained, train
from counterpoint.seeding import derive

CHUNK = 65_536
"""Rows handled at once: memory is bounded by this, not by the table."""


class Head(ABC):
    """What the raw outputs of a network mean: a law of a whole vector y, in standardised units."""

    @abstractmethod
    def width(self, size: int) -> int:
        """Raw numbers that describe a law of `size` columns."""

    @abstractmethod
    def log_prob(self, raw: Float[Tensor, "*n w"], y: Float[Tensor, "*n d"]) -> Float[Tensor, "*n"]:
        """Log density of the vector."""

    @abstractmethod
    def chance(self, shape: Sequence[int], size: int, random: torch.Generator) -> Float[Tensor, "*n c"]:
        """The chance of one draw for every row of a table of this shape."""

    @abstractmethod
    def sample(self, raw: Float[Tensor, "*n w"], chance: Float[Tensor, "*n c"], size: int) -> Float[Tensor, "*n d"]:
        """What that chance makes of the law."""

    def unit(self, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Centre and unit of y inside the network; its mean and standard deviation unless the head has its own."""
        return mean, scale


class HeadNetwork(nn.Module):
    """K members of p(y | context); the members' own means and standard deviations standardise inputs and outputs."""

    context_mean: Tensor
    context_scale: Tensor
    y_mean: Tensor
    y_scale: Tensor

    def __init__(
        self, members: int, context: int, size: int, head: Head, hidden: Sequence[int], batch_norm: bool
    ) -> None:
        super().__init__()
        self.members, self.size, self.head = members, size, head
        for name, width in (("context", context), ("y", size)):
            self.register_buffer(f"{name}_mean", torch.zeros(members, 1, width))
            self.register_buffer(f"{name}_scale", torch.ones(members, 1, width))
        self.net = StackedMLP(members, context, hidden, head.width(size), nn.ReLU, batch_norm)

    @torch.no_grad()
    def standardise_to(self, context: Padded, y: Padded) -> None:
        """Take mean and standard deviation of the rows that count."""
        mean, scale = _moments(context, "context")
        self.context_mean.copy_(mean)
        self.context_scale.copy_(torch.where(scale > 1e-8, scale, 1.0))
        mean, scale = _moments(y, "y")
        # A constant is its mean: a tiny unit leaves the network nothing to add to it.
        mean, scale = self.head.unit(mean, scale.maximum(1e-6 * mean.abs().clamp(min=1.0)))
        self.y_mean.copy_(mean)
        self.y_scale.copy_(scale)

    def raw(self, context: Float[Tensor, "k n c"]) -> Float[Tensor, "k n w"]:
        return self.net((context - self.context_mean) / self.context_scale)

    def log_prob(self, context: Float[Tensor, "k n c"], y: Float[Tensor, "k n d"]) -> Float[Tensor, "k n 1"]:
        """Log density of the whole vector, in the units of y."""
        standard = self.head.log_prob(self.raw(context), (y - self.y_mean) / self.y_scale)
        return (standard - self.y_scale.log().sum(-1))[..., None]

    def chance(self, shape: Sequence[int], random: torch.Generator) -> Float[Tensor, "*n u"]:
        """The chance of one draw a row, drawn where the generator lives."""
        return self.head.chance(shape, self.size, random)

    def sample(self, context: Float[Tensor, "k n c"], chance: Float[Tensor, "k n u"]) -> Float[Tensor, "k n d"]:
        standard = self.head.sample(self.raw(context), chance.to(context), self.size)
        return standard * self.y_scale + self.y_mean


class _Learner(LikelihoodLearner):
    """Batch norm validates on its running statistics: held-out rows (and padding) must not move them."""

    def score(self) -> Float[Tensor, " k"]:
        self.law.eval()
        score = super().score()
        self.law.train()
        return score


def fit_network(
    network: HeadNetwork,
    tables: Sequence[dict[str, Tensor]],
    seeds: Sequence[int],
    how: Likelihood,
    identity: str,
    monitor: Monitor,
) -> Trained:
    """Fit member k of `network` on `tables[k]` (columns `context` and `y`) from `seeds[k]`."""
    initialise(network, seeds)
    learner = _Learner(network, tables, seeds, how)  # pyright: ignore[reportArgumentType]
    trained = train(learner, how.schedule, seeds, identity, monitor)
    network.eval()
    return trained


@final
class DynamicsModel(nn.Module):
    """A fitted model of the dynamics: M members that stand for one law in equal parts."""

    def __init__(
        self, recipe: Any, network: HeadNetwork, actions: ActionSpace, state_names: tuple[str, ...], origin: Any
    ) -> None:
        super().__init__()
        self.recipe, self.network, self.actions = recipe, network.eval(), actions
        self.state_names, self.origin = state_names, origin

    @torch.no_grad()
    def sample(
        self,
        state: Float[Tensor, "n s"],
        action: Float[Tensor, "n a"],
        random: torch.Generator,
        theta: Float[Tensor, "_ t"] = NO_THETA,
    ) -> Float[Tensor, "n s"]:
        """A next state of each row, from a member picked at random for that row.

        Picking keeps the spread that a member has learned, and adds the members' disagreement; a mean of draws would
        shrink the first and hide the second.
        """
        check_actions(self.actions, action)
        columns = [column.to(self.device) for column in (state, action, theta.expand(len(state), -1))]
        pieces = zip(*(column.split(CHUNK) for column in columns), strict=True)
        drawn = [self._pick(s, a, t, random).to(state) for s, a, t in pieces]
        return torch.cat(drawn)

    @torch.no_grad()
    def sample_members(
        self,
        state: Float[Tensor, "m n s"],
        action: Float[Tensor, "m n a"],
        random: torch.Generator,
        theta: Float[Tensor, "_ t"] = NO_THETA,
    ) -> Float[Tensor, "m n s"]:
        """A next state from every member for rows of its own."""
        context = torch.cat([state, action, theta.to(state).expand(*state.shape[:2], -1)], -1)
        return state + self.network.sample(context, self.network.chance(state.shape[:2], random))

    def imagine(
        self, rows: Transitions, action: Float[Tensor, "n a"], random: torch.Generator
    ) -> tuple[Float[Tensor, "n s"], Float[Tensor, "n 0"]]:
        """Next states for imagined rows: drawn afresh, blind to what followed in the row; no noise to store."""
        next_state = self.sample(rows.state, action, random)
        return next_state, next_state.new_zeros(len(rows), 0)

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    def save(self, folder: Path | str) -> None:
        """Write weights and recipe into `folder`."""
        artifacts.save(folder, self.network.state_dict(), self.header())

    def header(self) -> dict[str, Any]:
        """All that is needed to rebuild the model around its weights."""
        return {
            "kind": "dynamics",
            "recipe": artifacts.encode(self.recipe),
            "actions": artifacts.encode(self.actions),
            "state_names": list(self.state_names),
            "context": self.network.context_mean.shape[-1],
            "members": self.network.members,
            "origin": artifacts.encode(self.origin),
        }

    def _pick(self, state: Tensor, action: Tensor, theta: Tensor, random: torch.Generator) -> Tensor:
        members = self.network.members
        drawn = self.sample_members(state.expand(members, -1, -1), action.expand(members, -1, -1), random, theta)
        picked = torch.randint(members, (len(state),), generator=random, device=random.device).to(state.device)
        return drawn[picked, torch.arange(len(state), device=state.device)]


@dataclass(frozen=True)
class DynamicsRecipe(ABC):
    """What the baselines share; the paper's networks are 2 × 300, linear + batch norm + ReLU (appendix)."""

    ensemble: int = 1
    """Members; planners use several, the paper's baselines one."""
    hidden: tuple[int, ...] = (300, 300)
    """Widths of the network from (s, a, θ) to the head."""
    batch_norm: bool = True
    """Batch normalisation after every hidden layer, as in the paper."""
    likelihood: Likelihood = Likelihood()
    """How it is fitted."""

    @abstractmethod
    def head(self) -> Head:
        """The law of the change s' − s."""

    def fit(self, data: Transitions, seed: int = 0, monitor: Monitor = Monitor(), device: str = "cpu") -> DynamicsModel:
        """Fit on one table."""
        return self.fit_many([Job(data, seed)], monitor, device)[0]

    def fit_many(self, jobs: Sequence[Job], monitor: Monitor = Monitor(), device: str = "cpu") -> list[DynamicsModel]:
        """Fit every job, all in one loop."""
        tables = [change_table(job) for job in jobs]
        seeds = [derive(job.seed, "member", m) for job in jobs for m in range(self.ensemble)]
        state, context = tables[0]["y"].shape[1], tables[0]["context"].shape[1]
        network = self.network(state, context, len(seeds)).to(artifacts.device_of(device))
        identity = artifacts.recipe_hash(self, [(job.data.fingerprint, job.seed) for job in jobs])
        stacked = [table for table in tables for _ in range(self.ensemble)]
        fit_network(network, stacked, seeds, self.likelihood, identity, monitor)
        return [self._cut(network, i, len(jobs), job) for i, job in enumerate(jobs)]

    def network(self, state: int, context: int, members: int) -> HeadNetwork:
        """An unfitted network of the right shape, to train or to load weights into."""
        return HeadNetwork(members, context, state, self.head(), self.hidden, self.batch_norm)

    def rebuild(
        self, header: dict[str, Any], weights: dict[str, Tensor], actions: ActionSpace, origin: Any
    ) -> DynamicsModel:
        """The fitted model back from its artifact."""
        state_names = tuple(header["state_names"])
        network = self.network(len(state_names), header["context"], header["members"])
        network.load_state_dict(weights)
        return DynamicsModel(self, network, actions, state_names, origin)

    def _cut(self, stack: HeadNetwork, index: int, jobs: int, job: Job) -> DynamicsModel:
        network = self.network(stack.size, stack.context_mean.shape[-1], self.ensemble)
        network.load_state_dict(members_of(stack.state_dict(), jobs, index, 1))
        network.to(next(stack.parameters()).device)
        origin = Origin.of(job)
        return DynamicsModel(self, network, job.data.actions, job.data.state_names, origin)


def change_table(job: Job) -> dict[str, Tensor]:
    """Context (s, a, θ) and change s' − s of the real rows that have a next state; refuses what cannot be fitted."""
    table = fitting_table(job)
    return {"context": table["context"], "y": table["next_state"] - table["state"]}


def normal(shape: Sequence[int], size: int, random: torch.Generator) -> Float[Tensor, "*n d"]:
    """Standard normal draws where the generator lives."""
    return torch.randn(*shape, size, generator=random, device=random.device)


def _moments(padded: Padded, name: str) -> tuple[Tensor, Tensor]:
    values, mask, count = padded.columns[name], padded.mask()[..., None], padded.count[:, None, None]
    mean = (values * mask).sum(1, keepdim=True) / count
    return mean, (((values - mean) * mask).square().sum(1, keepdim=True) / count).sqrt()
