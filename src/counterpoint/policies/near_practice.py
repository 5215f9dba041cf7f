"""Policies near practice: what the clinicians do in a state, tilted by a readable rule of few numbers.

    doses            d(s) = (m(s) + ε)·exp(λ·t(s)) − ε,    m(s) practice's median dose, ε > 0 where many doses are 0
    listed actions   π_λ(a|s) ∝ π(a|s)·exp(λ·t(s)·x_a)       (incremental intervention; Kennedy 2019), x_a its features,
                     of which the most probable action is taken, or actions are drawn
    t(s) = clip(b + W·z(s)),   z the standardised columns;    0 ≤ λ ≤ 1 is how far the policy goes from practice

λ = 0 is practice itself. Doses stay within the logged range, and a listed action needs a probability in practice.
`act` and `recommend` name the most probable action. Where the clinicians vary so much that it does not stand for what
they do, rollouts and evaluations draw the actions.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Protocol, Self, final

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.artifacts import Saved
from counterpoint.core.seeding import generator
from counterpoint.core.settings import checked
from counterpoint.data.jobs import Origin, spread_levels
from counterpoint.data.schema import Schema
from counterpoint.data.shapes import Action, State
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.policies.base import Policy, saved_verdict
from counterpoint.policies.practice import PracticePolicy, PracticeRecipe, saved_practice
from counterpoint.policies.rule import input_names, linear
from counterpoint.simulation.rollout import Actor

DOSE_TILT = (-1.5, 1.0)
"""Smallest and largest tilt of a dose: from a quarter to almost three times practice's."""
ACTION_TILT = (-4.0, 4.0)
"""Smallest and largest tilt of the log odds between the lowest and the highest value of an action's feature."""
MIN_PROBABILITY = 0.02
"""Probability in practice that a listed action needs for its weight to grow."""
MAX_DEVIATIONS = 3.0
"""Standard deviations at which columns are clipped, so that no line is extended beyond the log."""
LABELLED_WEIGHT = 0.005
"""Change of a dose, as a share for one standard deviation of a column, below which the column is not mentioned."""
FEW_ACTIONS, MAIN_COLUMNS = 4, 3
"""Features of listed actions up to which whole rules are shown; of more features only the columns that matter most."""

TABLES = ("numbers", "share", "drawn", "mean", "spread", "offset")
"""Names of the policy's own weights."""


class NearPracticeRecipe(Protocol):
    """What a policy near practice needs of its recipe."""

    @property
    def practice(self) -> PracticeRecipe:
        """The recipe of the practice."""
        ...


@final
class NearPracticePolicy(Policy):
    """Practice with a tilt; `share` is λ, `drawn` is 1 where listed actions are drawn, `notes` are the evidence."""

    numbers: Tensor
    share: Tensor
    drawn: Tensor
    mean: Tensor
    spread: Tensor
    offset: Tensor

    def __init__(
        self,
        recipe: NearPracticeRecipe,
        practice: PracticePolicy,
        weights: dict[str, Tensor],
        schema: Schema,
        origin: Origin,
        notes: tuple[str, ...] = (),
    ) -> None:
        """`weights` holds the `numbers` W and b of the tilt, its `share` λ, whether actions are `drawn`, `mean` and
        `spread` of the columns, and the `offset` ε of each dose."""
        super().__init__()
        self.recipe, self.practice, self.schema, self.origin, self.notes = recipe, practice, schema, origin, notes
        for name in TABLES:
            self.register_buffer(name, weights[name])

    @property
    def stochastic(self) -> bool:
        """Whether actions are drawn."""
        return bool(self.drawn)

    @checked
    def with_share(self, share: float) -> Self:
        """The same policy that goes another way from practice: 0 for practice itself, 1 for the whole tilt."""
        policy = copy(self)
        policy._buffers = {**self._buffers, "share": torch.full_like(self.share, share)}
        return policy

    @checked
    def with_history(self, rows: Transitions) -> Self:
        """The policy for the one subject of a record: practice moves to how this subject is treated."""
        policy = copy(self)
        policy._modules = {**self._modules, "practice": self.practice.with_history(rows)}
        return policy

    def weights(self) -> dict[str, Tensor]:
        own = {name: getattr(self, name) for name in TABLES}
        return {**own, **{f"practice.{name}": tensor for name, tensor in self.practice.weights().items()}}

    def extras(self) -> dict[str, Any]:
        return {**super().extras(), "evidence": list(self.notes), "notes": list(self.practice.notes)}

    def actor(self) -> Actor:
        def act(state: Float[Tensor, "k n s"], theta: Float[Tensor, "k n t"]) -> Float[Tensor, "k n a"]:
            return self.decide(state[0])[None]

        return act

    def rollout_actor(self, others: Sequence[Self] = ()) -> Actor:
        policies = [self, *others]
        randoms = [generator(policy.origin.seed, "near practice") for policy in policies]

        def act(state: Float[Tensor, "k n s"], theta: Float[Tensor, "k n t"]) -> Float[Tensor, "k n a"]:
            parts = zip(policies, state, randoms, strict=True)
            return torch.stack([policy._acted(own, random) for policy, own, random in parts])

        return act

    def __call__(self, state: State, random: torch.Generator) -> Action:
        """Act as a behaviour policy of a simulator."""
        return self._acted(state.to(self.device), random).to(state)

    def _acted(self, state: Float[Tensor, "n s"], random: torch.Generator) -> Float[Tensor, "n a"]:
        """The actions in some states, drawn where the policy draws."""
        return self.decide(state, torch.rand(len(state), generator=random) if bool(self.drawn) else None)

    @torch.no_grad()
    def decide(self, state: Float[Tensor, "n s"], uniform: Float[Tensor, " n"] | None = None) -> Float[Tensor, "n a"]:
        """The actions in some states; of listed actions the one that `uniform` draws, or the most probable one."""
        return self.tilted(state, self._amount(state), uniform)

    @torch.no_grad()
    def probabilities(self, state: State) -> Float[Tensor, "*n a"]:
        """Probability of every listed action in each state: 1 for the most probable one where none are drawn."""
        flat = state.reshape(-1, state.shape[-1])
        probability = self.tilted_probabilities(flat, self._amount(flat))
        if not bool(self.drawn):
            probability = torch.nn.functional.one_hot(probability.argmax(-1), probability.shape[-1]).to(probability)
        return probability.unflatten(0, state.shape[:-1])

    def _amount(self, state: Float[Tensor, "n s"]) -> Float[Tensor, "n f"]:
        return self.share * tilt(self.numbers[None], self.columns(state)[None], self.schema)[0]

    def columns(self, state: State) -> Float[Tensor, "*n i"]:
        """z: the standardised columns of states."""
        spread = spread_levels(state, self.schema.categories)
        return ((spread - self.mean) / self.spread).clamp(-MAX_DEVIATIONS, MAX_DEVIATIONS)

    def tilted(
        self, state: Float[Tensor, "n s"], amount: Float[Tensor, "n f"], uniform: Float[Tensor, " n"] | None
    ) -> Float[Tensor, "n a"]:
        """The actions in some states under a tilt of practice; listed ones as `uniform` draws them."""
        if not isinstance(self.actions, Discrete):
            low, high = self.practice.range
            dose = (self.practice.dose(state) + self.offset) * amount.exp() - self.offset
            return dose.clamp(low, high)
        probability = self.tilted_probabilities(state, amount)
        if uniform is None:
            return self.actions.features(probability.argmax(-1))
        above = (probability.cumsum(-1) <= uniform.to(probability)[:, None]).sum(-1)
        return self.actions.features(above.clamp(max=probability.shape[1] - 1))

    def tilted_probabilities(self, state: Float[Tensor, "n s"], amount: Float[Tensor, "n f"]) -> Float[Tensor, "n a"]:
        """π_λ of listed actions; practice's own rare actions keep at most their probability in practice."""
        probability = self.practice.probabilities(state)
        weight = (amount @ action_features(self.schema).to(state).T).exp()
        rare = probability < MIN_PROBABILITY
        weight = torch.where(rare, weight.clamp(max=1.0), weight)
        tilted = probability * weight
        return tilted / tilted.sum(-1, keepdim=True)

    def explain(self) -> str:
        """The rule in words, in the names and units of the user's columns, and the evidence for it."""
        if float(self.share) == 0:
            return "\n".join(["practice itself: the log does not support a change", *self.notes])
        return "\n".join([*self._sentences(), *self.notes])

    def _sentences(self) -> list[str]:
        weights = self.numbers.view(-1, tilt_width(self.schema)) * self.share
        slope, level = weights[:-1] / self.spread[:, None], weights[-1] - (self.mean / self.spread) @ weights[:-1]
        names = input_names(self.schema, len(slope))
        if isinstance(self.actions, Discrete) and weights.shape[1] > FEW_ACTIONS:
            return self._main_columns(weights, names)
        lines = []
        for j, feature in enumerate(tilt_names(self.schema)):
            line = linear(slope[:, j], float(level[j]), names)
            if isinstance(self.actions, Discrete):
                lines.append(f"odds of more {feature} = those of practice × exp({line})")
                lines += self._percentages(weights[:-1, j], names, f"odds of more {feature}")
                continue
            bounds = f"between {DOSE_TILT[0] * float(self.share):.2g} and {DOSE_TILT[1] * float(self.share):.2g}"
            lines.append(f"{feature} = practice's median × exp(z), z = {line}, kept {bounds}")
            lines += self._percentages(weights[:-1, j], names, feature)
        return lines

    def _main_columns(self, weights: Float[Tensor, "w f"], names: Sequence[str]) -> list[str]:
        """The columns that matter most for each of many features of the actions."""
        features = tilt_names(self.schema)
        lines = [
            f"odds against practice's; of {len(names)} columns the {MAIN_COLUMNS} with the largest weights are shown"
        ]
        for j, feature in enumerate(features):
            average = f"odds of more {feature} × {float(weights[-1, j].exp()):.2g} in the average state"
            main = torch.zeros_like(weights[:-1, j])
            top = weights[:-1, j].abs().topk(min(MAIN_COLUMNS, len(names))).indices
            main[top] = weights[top, j]
            lines += self._percentages(main, names, average) or [f"  {average}"]
        return lines

    def _percentages(self, weights: Float[Tensor, " i"], names: Sequence[str], dose: str) -> list[str]:
        """Changes of a dose or of odds with each column, by the column's standard deviation, the largest first."""
        order = weights.abs().argsort(descending=True).tolist()
        parts = []
        for i in order:
            change = float(weights[i].exp()) - 1
            if abs(change) >= LABELLED_WEIGHT:
                word = "more" if change > 0 else "less"
                parts.append(f"{abs(change):.0%} {word} per {float(self.spread[i]):.3g} of {names[i]}")
        return [f"  {dose}: {'; '.join(parts)}"] if parts else []


def tilt_width(schema: Schema) -> int:
    """Number of tilts: one for each dose or feature of the actions."""
    return schema.actions.width


def tilt_names(schema: Schema) -> tuple[str, ...]:
    """Names of the tilts."""
    return schema.action_names


def action_features(schema: Schema) -> Float[Tensor, "a f"]:
    """Features of the listed actions from −½ to ½, so that a tilt is a change of log odds from the lowest to the
    highest value."""
    assert isinstance(schema.actions, Discrete)
    table = schema.actions.table()
    low, high = table.amin(0), table.amax(0)
    return (table - (low + high) / 2) / torch.where(high > low, high - low, 1.0)


def tilt(numbers: Float[Tensor, "c p"], columns: Float[Tensor, "c n i"], schema: Schema) -> Float[Tensor, "c n f"]:
    """t(s) of c rules, each in its own states."""
    weights = numbers.unflatten(-1, (-1, tilt_width(schema)))
    amount = torch.baddbmm(weights[:, -1:], columns, weights[:, :-1])
    return amount.clamp(*(ACTION_TILT if isinstance(schema.actions, Discrete) else DOSE_TILT))


def saved_near_practice(recipe: NearPracticeRecipe, saved: Saved) -> NearPracticePolicy:
    """The policy back from its artifact."""
    prefix = "practice."
    inner = {name.removeprefix(prefix): x for name, x in saved.weights.items() if name.startswith(prefix)}
    practice = saved_practice(recipe.practice, replace(saved, weights=inner))
    own = {name: x for name, x in saved.weights.items() if not name.startswith(prefix)}
    policy = NearPracticePolicy(recipe, practice, own, saved.schema, saved.origin, tuple(saved.header["evidence"]))
    policy.verdict = saved_verdict(saved)
    return policy
