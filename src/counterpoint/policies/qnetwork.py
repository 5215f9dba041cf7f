"""Policies that act by the largest Q-value; several networks vote by their mean."""

from collections.abc import Sequence
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.data.jobs import Origin
from counterpoint.data.spaces import Discrete
from counterpoint.nets.dueling import DuelingQ
from counterpoint.policies.base import Actor, Policy


@final
class QPolicy(Policy):
    """argmax_a of the mean Q of its networks."""

    def __init__(
        self, recipe: Any, network: DuelingQ, actions: Discrete, state_names: tuple[str, ...], origin: Origin
    ) -> None:
        super().__init__()
        self.recipe, self.network, self.actions = recipe, network.eval(), actions
        self.state_names, self.origin = state_names, origin

    @torch.no_grad()
    def values(self, state: Float[Tensor, "n s"]) -> Float[Tensor, "n actions"]:
        """Q(s, a) of every action."""
        return self.network(state.expand(self.network.members, -1, -1)).mean(0)

    def index(self, state: Float[Tensor, "n s"]) -> Int[Tensor, " n"]:
        """The number of the best action."""
        return self.values(state).argmax(-1)

    def act(self, state: Float[Tensor, "n s"]) -> Float[Tensor, "n a"]:
        return self.actions.features(self.index(state))

    def weights(self) -> dict[str, Tensor]:
        return self.network.state_dict()

    @classmethod
    def together(cls, policies: Sequence["QPolicy"]) -> Actor:
        """All networks as one stack; policy k's votes are averaged."""
        states = [policy.network.state_dict() for policy in policies]
        first = policies[0]
        votes = first.network.members
        network = first.recipe.network(len(first.state_names), first.actions.count, votes * len(policies))
        network.load_state_dict({name: torch.cat([s[name] for s in states]) for name in states[0]})
        return greedy(network.to(next(first.parameters()).device).eval(), first.actions, votes)


def greedy(network: DuelingQ, actions: Discrete, votes: int = 1) -> Actor:
    """Act by the largest Q, `votes` neighbouring networks having one mean."""

    @torch.no_grad()
    def act(state: Float[Tensor, "k n s"]) -> Float[Tensor, "k n a"]:
        values = network(state.repeat_interleave(votes, 0) if votes > 1 else state)
        return actions.features(values.view(-1, votes, *values.shape[1:]).mean(1).argmax(-1))

    return act
