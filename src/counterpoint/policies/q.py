"""Policies that act by the largest Q-value; several networks vote by their mean."""

from collections.abc import Sequence
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.core.artifacts import Saved
from counterpoint.data.conversion import convert_states
from counterpoint.data.jobs import NO_THETA, Categories, Job, Origin, check_factors, context, spread_levels
from counterpoint.data.schema import Schema
from counterpoint.data.shapes import Theta
from counterpoint.data.spaces import Discrete
from counterpoint.nets.dueling import DuelingQ
from counterpoint.nets.stacked import stack, unstack, with_weights
from counterpoint.nets.training import Trained
from counterpoint.policies.base import Kept, Learned, Policy, saved_verdict
from counterpoint.simulation.rollout import Actor


@final
class QPolicy(Policy):
    """argmax_a of the mean Q of its networks."""

    def __init__(self, recipe: Any, network: DuelingQ, schema: Schema, origin: Origin) -> None:
        super().__init__()
        self.recipe, self.network, self.schema, self.origin = recipe, network.eval(), schema, origin

    @torch.no_grad()
    def values(self, state: Any, theta: Theta = NO_THETA) -> Float[Tensor, "n actions"]:
        """Q(s, a) of every action; states as in `act`."""
        state = convert_states(state, self.schema.states).values
        theta = check_factors(theta, len(state))
        told = context(spread_levels(state, self.schema.categories), theta=theta).to(self.device)
        return self.network(told.expand(self.network.members, -1, -1)).mean(0).to(state)

    def index(self, state: Any, theta: Theta = NO_THETA) -> Int[Tensor, " n"]:
        """The number of the best action."""
        return self.values(state, theta).argmax(-1)

    @property
    def factor_width(self) -> int:
        return self.network.states.mean.shape[-1] - self.schema.spread_width

    def weights(self) -> dict[str, Tensor]:
        return self.network.state_dict()

    def actor(self) -> Actor:
        return greedy(self.network, self.actions, self.network.members, self.schema.categories)

    @classmethod
    def together(cls, policies: Sequence["QPolicy"]) -> Actor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """All networks as one stack; policy k's votes are averaged."""
        first, weights = policies[0], stack([policy.weights() for policy in policies])
        votes, width = first.network.members, first.network.states.mean.shape[-1]
        network = first.recipe.build(width, first.actions.count, votes * len(policies))
        return greedy(with_weights(network, weights), first.actions, votes, first.schema.categories)


def greedy(network: DuelingQ, actions: Discrete, votes: int = 1, categories: Categories = ()) -> Actor:
    """Act by the largest Q, `votes` neighbouring networks having one mean; categories are seen level by level.

    A network that learned without subject factors is not told them.
    """

    @torch.no_grad()
    def act(state: Float[Tensor, "k n s"], theta: Float[Tensor, "k n t"]) -> Float[Tensor, "k n a"]:
        levels = spread_levels(state, categories)
        told = context(levels, theta=theta) if network.states.mean.shape[-1] > levels.shape[-1] else levels
        values = network(told.repeat_interleave(votes, 0) if votes > 1 else told)
        return actions.features(values.unflatten(0, (len(values) // votes, votes)).mean(1).argmax(-1))

    return act


def q_policies(
    recipe: Any, trained: Trained, jobs: Sequence[Job], actions: Discrete, kept: Sequence[Kept] = ()
) -> list[Learned]:
    """The policies of a trained stack, job by job; one for both ends where no checkpoint was chosen.

    `kept` are the chosen checkpoints, one a network; the networks of a job share theirs.
    """

    def policies(weights: dict[str, Tensor]) -> list[QPolicy]:
        parts = unstack(weights, len(jobs))
        return [_policy(recipe, part, job, actions) for part, job in zip(parts, jobs, strict=True)]

    last = policies(trained.last)
    selected = last if trained.selected is trained.last else policies(trained.selected)
    for policy, chosen in zip(selected, kept[:: max(len(kept) // len(jobs), 1)], strict=False):
        policy.kept = chosen
    return [Learned(*both) for both in zip(selected, last, strict=True)]


def _policy(recipe: Any, weights: dict[str, Tensor], job: Job, actions: Discrete) -> QPolicy:
    network = _network(recipe, weights, actions)
    return QPolicy(recipe, network, job.data.schema, Origin.of(job))


def saved_q_policy(recipe: Any, saved: Saved) -> QPolicy:
    """The policy back from its artifact."""
    network = _network(recipe, saved.weights, saved.schema.actions)
    policy = QPolicy(recipe, network, saved.schema, saved.origin)
    policy.verdict = saved_verdict(saved)
    return policy


def _network(recipe: Any, weights: dict[str, Tensor], actions: Discrete) -> DuelingQ:
    members, _, width = weights["states.mean"].shape
    return with_weights(recipe.build(width, actions.count, members), weights)
