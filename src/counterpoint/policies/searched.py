"""What a search gives: a rule of few numbers as a policy, with its returns inside the model."""

from collections.abc import Sequence
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from counterpoint.data.jobs import Origin
from counterpoint.data.schema import Schema
from counterpoint.policies.base import Policy
from counterpoint.policies.rule import middle_doses
from counterpoint.simulation.rollout import Actor


@final
class SearchedPolicy(Policy):
    """A rule of few numbers, with its returns inside the model that it was searched in."""

    numbers: nn.Parameter
    returns: Tensor
    mean: Tensor
    spread: Tensor
    doses: Tensor

    def __init__(self, recipe: Any, weights: dict[str, Tensor], schema: Schema, origin: Origin) -> None:
        super().__init__()
        self.recipe, self.schema, self.origin = recipe, schema, origin
        self.rule = recipe.rule_for(schema.actions)
        self.actors: dict[torch.device, Actor] = {}
        self.numbers = nn.Parameter(weights["numbers"], requires_grad=False)
        for name in ("returns", "mean", "spread"):
            self.register_buffer(name, weights[name])
        self.register_buffer("doses", weights["doses"] if "doses" in weights else middle_doses(schema.actions))

    @property
    def device(self) -> torch.device:
        return self.mean.device

    @property
    def return_in_model(self) -> float:
        """Mean return over the members of the model, from the starts and noise that the policy was chosen by."""
        return float(self.returns.mean())

    @property
    def factor_width(self) -> int:
        return self.mean.shape[-1] - self.schema.spread_width

    def weights(self) -> dict[str, Tensor]:
        return {name: getattr(self, name).data for name in ("numbers", "returns", "mean", "spread", "doses")}

    def actor(self) -> Actor:
        """Made once where the policy is: one state is answered in microseconds."""
        device = self.device
        if device not in self.actors:
            self.actors[device] = self.together([self])
        return self.actors[device]

    @classmethod
    def together(cls, policies: Sequence["SearchedPolicy"]) -> Actor:  # pyright: ignore[reportIncompatibleMethodOverride]
        first = policies[0]
        recipe, rule, categories, actions = first.recipe, first.rule, first.schema.categories, first.actions
        maps = [torch.cat(parts) for parts in zip(*(policy._raw() for policy in policies), strict=True)]
        doses = torch.stack([policy.doses for policy in policies])

        def act(state: Float[Tensor, "k n s"], theta: Float[Tensor, "k n t"]) -> Float[Tensor, "k n a"]:
            return rule.choose(rule.through(maps, recipe.told(state, theta, categories)), actions, doses)

        return act

    def _raw(self) -> list[Tensor]:
        """Weights and biases, layer by layer, for states as they are: the first layer undoes the standardisation."""
        maps = self.rule.maps(self.numbers[None], self.mean.shape[-1], self.actions)
        weight, bias = maps[0]
        slope = weight / self.spread.mT
        return [slope, bias - self.mean @ slope, *(part for pair in maps[1:] for part in pair)]

    def explain(self) -> str:
        """The rule in words, in the names and units of the user's columns."""
        if self.rule.hidden:
            widths = " and ".join(map(str, self.rule.hidden))
            return f"a network with {widths} tanh units, which cannot be said in words; use a rule without hidden units"
        slope, level = self._raw()
        return "\n".join(self.rule.sentences(slope[0], level[0, 0], self.schema, self.doses))
