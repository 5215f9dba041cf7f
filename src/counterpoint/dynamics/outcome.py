"""Reward and end learned from the log, for users who have rows but no function of them.

    r(s, a, s') by least squares,    P(terminated | s') by logistic regression, both through a network
    r(s, a) by ridge regression for rows that end without a next state

A row may end with an outcome and no next state (a death, a discharge). Neither network sees it: there is no s' to see.
Its reward is a function of its own, linear because such rows are few, which answers only where `next_state` is NaN; the
end is then certain. Imagined rows always have a next state; in a log whose every end lacks one, they therefore never
end, and no outcome is invented for them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from counterpoint import artifacts
from counterpoint.data.jobs import Job, Origin, check_fittable
from counterpoint.data.spaces import ActionSpace
from counterpoint.data.transitions import Transitions
from counterpoint.dynamics.base import CHUNK, Head, HeadNetwork, fit_network
from counterpoint.dynamics.deterministic import Point
from counterpoint.errors import CounterpointError
from counterpoint.nets.conditional import Likelihood
from counterpoint.nets.stacked import members_of
from counterpoint.nets.training import Monitor
from counterpoint.seeding import derive
from counterpoint.tasks.base import Task


class Bernoulli(Head):
    """Independent yes or no in every column, from logits."""

    def width(self, size: int) -> int:
        return size

    def log_prob(self, raw: Float[Tensor, "*n w"], y: Float[Tensor, "*n d"]) -> Float[Tensor, "*n"]:
        return -torch.nn.functional.binary_cross_entropy_with_logits(raw, y, reduction="none").sum(-1)

    def chance(self, shape: Sequence[int], size: int, random: torch.Generator) -> Float[Tensor, "*n c"]:
        return torch.rand(*shape, size, generator=random, device=random.device)

    def sample(self, raw: Float[Tensor, "*n w"], chance: Float[Tensor, "*n c"], size: int) -> Float[Tensor, "*n d"]:
        return (chance < raw.sigmoid()).to(raw)

    def unit(self, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """0 and 1 stay what they are."""
        return torch.zeros_like(mean), torch.ones_like(scale)


class Heads(nn.Module):
    """The learned functions of M jobs: two networks, and for rows without a next state a linear one."""

    outcome_weight: Tensor
    outcome_bias: Tensor

    def __init__(self, members: int, state: int, action: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.reward = HeadNetwork(members, 2 * state + action, 1, Point(), hidden, batch_norm=False)
        self.end = HeadNetwork(members, state, 1, Bernoulli(), hidden, batch_norm=False)
        self.register_buffer("outcome_weight", torch.zeros(members, state + action))
        self.register_buffer("outcome_bias", torch.full((members,), torch.nan))


@final
class LearnedTask(nn.Module, Task):
    """A task whose reward and end were learned; it stands wherever a task does."""

    def __init__(self, recipe: "Outcome", heads: Heads, actions: ActionSpace, origin: Any) -> None:
        super().__init__()
        self.recipe, self.heads, self.actions = recipe, heads.eval(), actions
        self.discount, self.origin = recipe.discount, origin

    @torch.no_grad()
    def reward(
        self, state: Float[Tensor, "*n s"], action: Float[Tensor, "*n a"], next_state: Float[Tensor, "*n s"]
    ) -> Float[Tensor, "*n"]:
        """The expected reward; where `next_state` is NaN, that of a row which ends there."""
        known = ~next_state.isnan().any(-1)
        expected = self._apply(self.heads.reward, torch.cat([state, action, next_state], -1))
        if bool(known.all()):
            return expected
        return torch.where(known, expected, self._outcome(torch.cat([state, action], -1)))

    @torch.no_grad()
    def termination_probability(self, next_state: Float[Tensor, "*n s"]) -> Float[Tensor, "*n"]:
        """How likely the episode is over in `next_state`; certain where it is NaN."""
        return self._apply(self.heads.end, next_state).sigmoid().nan_to_num(nan=1.0)

    def terminated(self, next_state: Float[Tensor, "*n s"]) -> Bool[Tensor, "*n"]:
        """Over where that is more likely than not."""
        return self.termination_probability(next_state) > 0.5

    def save(self, folder: Path | str) -> None:
        """Write weights and recipe into `folder`."""
        artifacts.save(folder, self.heads.state_dict(), self.header())

    def header(self) -> dict[str, Any]:
        """All that is needed to rebuild the task around its weights."""
        return {
            "kind": "task",
            "recipe": artifacts.encode(self.recipe),
            "actions": artifacts.encode(self.actions),
            "state": self.heads.end.context_mean.shape[-1],
            "origin": artifacts.encode(self.origin),
        }

    def _apply(self, network: HeadNetwork, context: Tensor) -> Tensor:
        """The network's output for rows of any leading shape, in the units of the data."""
        pieces = context.flatten(0, -2).split(CHUNK)
        raw = torch.cat([network.raw(piece[None])[0, :, 0] for piece in pieces])
        return (raw * network.y_scale.flatten() + network.y_mean.flatten()).view(context.shape[:-1])

    def _outcome(self, context: Tensor) -> Tensor:
        if bool(self.heads.outcome_bias.isnan()):
            raise CounterpointError(
                "the reward of a row without a next state was asked for, but none was fitted on; pass rows.with_next()"
            )
        return context @ self.heads.outcome_weight[0] + self.heads.outcome_bias


@dataclass(frozen=True)
class Outcome:
    """Learns reward and end from the real rows of a log."""

    discount: float = 0.99
    """Discount of the task; nothing in a log says what it should be."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of both networks."""
    ridge: float = 1.0
    """Penalty of the linear reward of rows without a next state, in rows' worth of evidence a column."""
    likelihood: Likelihood = Likelihood()
    """How the networks are fitted."""

    def fit(self, data: Transitions, seed: int = 0, monitor: Monitor = Monitor(), device: str = "cpu") -> LearnedTask:
        """Fit on one table."""
        return self.fit_many([Job(data, seed)], monitor, device)[0]

    def fit_many(self, jobs: Sequence[Job], monitor: Monitor = Monitor(), device: str = "cpu") -> list[LearnedTask]:
        """Fit every job, all in one loop a network."""
        tables = [_tables(job) for job in jobs]
        seeds = [derive(job.seed, "outcome") for job in jobs]
        first = jobs[0].data
        heads = Heads(len(jobs), first.state_size, first.action.shape[1], self.hidden).to(artifacts.device_of(device))
        identity = artifacts.recipe_hash(self, [(job.data.fingerprint, job.seed) for job in jobs])
        for name, network in (("reward", heads.reward), ("end", heads.end)):
            fit_network(network, [t[name] for t in tables], seeds, self.likelihood, identity, monitor.stage(name))
        for k, job in enumerate(jobs):
            self._fit_outcome(heads, k, job.data)
        return [self._cut(heads, i, len(jobs), job) for i, job in enumerate(jobs)]

    def rebuild(
        self, header: dict[str, Any], weights: dict[str, Tensor], actions: ActionSpace, origin: Any
    ) -> LearnedTask:
        """The fitted task back from its artifact."""
        heads = Heads(1, header["state"], actions.width, self.hidden)
        heads.load_state_dict(weights)
        return LearnedTask(self, heads, actions, origin)

    def _fit_outcome(self, heads: Heads, member: int, data: Transitions) -> None:
        """Ridge regression of the reward on the standardised (s, a); few rows shrink to their mean."""
        rows = data[~data.imagined & ~data.has_next]
        if not len(rows):
            return
        context = torch.cat([rows.state, rows.action], -1).double()
        mean, reward = context.mean(0), rows.reward.double()
        scale = context.std(0, correction=0)
        scale = torch.where(scale > 1e-8, scale, 1.0)
        standard = (context - mean) / scale
        gram = standard.T @ standard + self.ridge * torch.eye(len(mean), dtype=context.dtype, device=context.device)
        weight = torch.linalg.solve(gram, standard.T @ (reward - reward.mean())) / scale
        heads.outcome_weight[member] = weight.to(heads.outcome_weight)
        heads.outcome_bias[member] = (reward.mean() - mean @ weight).to(heads.outcome_bias)

    def _cut(self, stack: Heads, index: int, jobs: int, job: Job) -> LearnedTask:
        heads = Heads(1, job.data.state_size, job.data.action.shape[1], self.hidden)
        heads.load_state_dict(members_of(stack.state_dict(), jobs, index, 1))
        heads.to(stack.outcome_bias.device)
        return LearnedTask(self, heads, job.data.actions, Origin.of(job))


def _tables(job: Job) -> dict[str, dict[str, Tensor]]:
    check_fittable(job.data.real)
    _check_reward(job.data)
    rows = job.data.real.with_next()
    return {
        "reward": {
            "context": torch.cat([rows.state, rows.action, rows.next_state], -1),
            "y": rows.reward[:, None],
        },
        "end": {"context": rows.next_state, "y": rows.terminated[:, None].to(rows.state)},
    }


def _check_reward(data: Transitions) -> None:
    bad = (~data.reward.isfinite() & ~data.imagined).nonzero()
    if len(bad):
        raise CounterpointError(f"the reward is not finite at row {int(bad[0])}; fill or drop such rows")
