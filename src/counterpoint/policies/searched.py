"""Policies found by a search: a parametric rule with its returns inside the model."""

from collections.abc import Sequence
from typing import Protocol, Self, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from counterpoint.core.artifacts import Saved
from counterpoint.data.jobs import Categories, Origin
from counterpoint.data.schema import Schema
from counterpoint.data.shapes import State, Theta
from counterpoint.data.spaces import ActionSpace
from counterpoint.policies.base import Policy, saved_verdict
from counterpoint.policies.rule import Rule, middle_doses
from counterpoint.simulation.rollout import Actor


class SearchRecipe(Protocol):
    """What a search policy needs of its recipe: the class of rules and what a rule sees."""

    def rule_for(self, actions: ActionSpace) -> Rule:
        """The class of rules for an action space."""
        ...

    def inputs(self, state: State, theta: Theta, categories: Categories) -> Float[Tensor, "*n i"]:
        """The inputs of a rule."""
        ...


@final
class SearchedPolicy(Policy):
    """A parametric rule, with its returns inside the model that it was searched in.

    `weights` holds its `numbers`, the `returns` in every member of the model, the `mean` and `spread` of the inputs,
    and the `doses` where the rule starts and how far it reaches.
    """

    numbers: nn.Parameter
    returns: Tensor
    mean: Tensor
    spread: Tensor
    doses: Tensor

    def __init__(self, recipe: SearchRecipe, weights: dict[str, Tensor], schema: Schema, origin: Origin) -> None:
        super().__init__()
        self.recipe, self.schema, self.origin = recipe, schema, origin
        self.rule = recipe.rule_for(schema.actions)
        self.cached: tuple[torch.device, Actor] | None = None
        self.numbers = nn.Parameter(weights["numbers"], requires_grad=False)
        for name in ("returns", "mean", "spread"):
            self.register_buffer(name, weights[name])
        self.register_buffer("doses", weights["doses"] if "doses" in weights else middle_doses(schema.actions))

    @property
    def return_in_model(self) -> float:
        """Mean return over the members of the model, from the starts and noise that the policy was selected by."""
        return float(self.returns.mean())

    @property
    def factor_width(self) -> int:
        return self.mean.shape[-1] - self.schema.spread_width

    def weights(self) -> dict[str, Tensor]:
        return {name: getattr(self, name).data for name in ("numbers", "returns", "mean", "spread", "doses")}

    def actor(self) -> Actor:
        """The actor, cached per device: acting in one state takes microseconds."""
        device = self.device
        if self.cached is None or self.cached[0] != device:
            self.cached = device, self.rollout_actor()
        return self.cached[1]

    def rollout_actor(self, others: Sequence[Self] = ()) -> Actor:
        recipe, rule, categories, actions = self.recipe, self.rule, self.schema.categories, self.actions
        width = self.factor_width
        policies = [self, *others]
        maps = [torch.cat(parts) for parts in zip(*(policy._raw_maps() for policy in policies), strict=True)]
        doses = torch.stack([policy.doses for policy in policies])

        def act(state: Float[Tensor, "k n s"], theta: Float[Tensor, "k n t"]) -> Float[Tensor, "k n a"]:
            return rule.choose(rule.through(maps, recipe.inputs(state, theta[..., :width], categories)), actions, doses)

        return act

    def _raw_maps(self) -> list[Tensor]:
        """Weights and biases of every layer for raw states: the first layer undoes the standardisation."""
        maps = self.rule.maps(self.numbers[None], self.mean.shape[-1], self.actions)
        weight, bias = maps[0]
        slope = weight / self.spread.mT
        return [slope, bias - self.mean @ slope, *(part for pair in maps[1:] for part in pair)]

    def explain(self) -> str:
        """The rule in words, in the names and units of the user's columns."""
        if self.rule.hidden:
            widths = " and ".join(map(str, self.rule.hidden))
            return f"a network with {widths} tanh units, which cannot be said in words; use a rule without hidden units"
        slope, level = self._raw_maps()
        return "\n".join(self.rule.sentences(slope[0], level[0, 0], self.schema, self.doses))


def saved_search_policy(recipe: SearchRecipe, saved: Saved) -> SearchedPolicy:
    """The policy back from its artifact."""
    policy = SearchedPolicy(recipe, saved.weights, saved.schema, saved.origin)
    policy.verdict = saved_verdict(saved)
    return policy
