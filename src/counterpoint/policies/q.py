"""Policies that take the action with the largest Q-value, the mean over one or more networks, and these networks."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, Self, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from counterpoint.core.artifacts import Saved
from counterpoint.data.conversion import convert_states
from counterpoint.data.jobs import NO_THETA, Categories, Origin, check_factors, context, spread_levels
from counterpoint.data.schema import Schema
from counterpoint.data.shapes import Theta
from counterpoint.data.spaces import Discrete
from counterpoint.nets.stacked import StackedMLP, Standardizer, stack, with_weights
from counterpoint.policies.base import Policy, saved_verdict
from counterpoint.simulation.rollout import Actor


class DuelingQ(nn.Module):
    """K dueling Q-networks (Wang et al., 2016; paper, section 4): Q(s, a) = V(s) + A(s, a) − mean_a A(s, a).

    They have a shared trunk; the last layer gives the value and the advantages side by side.
    """

    def __init__(self, members: int, state: int, hidden: Sequence[int], actions: int) -> None:
        super().__init__()
        self.members = members
        self.states = Standardizer(members, state)
        self.net = StackedMLP(members, state, hidden, 1 + actions, nn.ReLU)

    def forward(self, state: Float[Tensor, "k n s"]) -> Float[Tensor, "k n actions"]:
        """What is acted by; the values themselves, unless something constrains the actions."""
        return self.values(state)

    def values(self, state: Float[Tensor, "k n s"]) -> Float[Tensor, "k n actions"]:
        """Q(s, a) of every action."""
        out = self.net(self.states(state))
        value, advantage = out[..., :1], out[..., 1:]
        return value + advantage - advantage.mean(-1, keepdim=True)

    def separate(self) -> list[Iterable[nn.Parameter]]:
        """The parts that share no weight: a limit on the gradient of one must not slow another."""
        return [self.net.parameters()]

    def share(self, online: "DuelingQ") -> None:
        """Take over from the network in training what has no slow copy; here nothing."""


class QRecipe(Protocol):
    """A recipe of Q-networks."""

    def build(self, state: int, actions: int, members: int) -> DuelingQ:
        """Untrained Q-networks for `state` input columns."""
        ...


@final
class QPolicy(Policy):
    """π(s) = argmax_a of the mean Q(s, a) of its networks."""

    def __init__(self, recipe: QRecipe, network: DuelingQ, schema: Schema, origin: Origin) -> None:
        super().__init__()
        self.recipe, self.network, self.schema, self.origin = recipe, network.eval(), schema, origin

    @torch.no_grad()
    def values(self, state: Any, theta: Theta = NO_THETA) -> Float[Tensor, "n actions"]:
        """Q(s, a) of every action; states as in `act`."""
        state = convert_states(state, self.schema.states).values
        theta = check_factors(theta, len(state))
        inputs = context(spread_levels(state, self.schema.categories), theta=theta).to(self.device)
        return self.network(inputs.expand(self.network.members, -1, -1)).mean(0).to(state)

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

    def rollout_actor(self, others: Sequence[Self] = ()) -> Actor:
        """All networks as one stack; the networks of policy k vote by their mean."""
        weights = stack([policy.weights() for policy in (self, *others)])
        votes, width = self.network.members, self.network.states.mean.shape[-1]
        network = self.recipe.build(width, self.actions.count, votes * (1 + len(others)))
        return greedy(with_weights(network, weights), self.actions, votes, self.schema.categories)


def greedy(network: DuelingQ, actions: Discrete, votes: int = 1, categories: Categories = ()) -> Actor:
    """An actor that takes the largest mean Q of every `votes` neighbouring networks; categories are one-hot coded.

    A network that was trained without subject factors does not see them.
    """

    @torch.no_grad()
    def act(state: Float[Tensor, "k n s"], theta: Float[Tensor, "k n t"]) -> Float[Tensor, "k n a"]:
        levels = spread_levels(state, categories)
        inputs = context(levels, theta=theta) if network.states.mean.shape[-1] > levels.shape[-1] else levels
        values = network(inputs.repeat_interleave(votes, 0) if votes > 1 else inputs)
        return actions.features(values.unflatten(0, (len(values) // votes, votes)).mean(1).argmax(-1))

    return act


def saved_q_policy(recipe: QRecipe, saved: Saved) -> QPolicy:
    """The policy back from its artifact."""
    network = q_network(recipe, saved.weights, saved.schema.actions)
    policy = QPolicy(recipe, network, saved.schema, saved.origin)
    policy.verdict = saved_verdict(saved)
    return policy


def q_network(recipe: QRecipe, weights: dict[str, Tensor], actions: Discrete) -> DuelingQ:
    """Q-networks of the recipe with these weights."""
    members, _, width = weights["states.mean"].shape
    return with_weights(recipe.build(width, actions.count, members), weights)
