"""Parametric policies that a search can move: a row of numbers decides what is done in every state.

    x = (state − mean) / spread, and the subject's factor behind it
    OrderedDose     dose = start + reach · tanh(W·x + b), rounded to the nearest dose where doses are a list
                    start: the logged median of continuous doses, the middle of a list
                    reach: from the median to the ends of the central 95% of the logged doses, on either side of it
    ScoredActions   argmax_a (W·x + b)_a, which assumes no order of the actions

With `hidden` widths a network with tanh units stands between x and the last linear map.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.errors import require
from counterpoint.core.settings import Widths, check_settings
from counterpoint.data.schema import Schema
from counterpoint.data.spaces import ActionSpace, Box, Discrete, nearest
from counterpoint.data.transitions import Transitions

Parameters = Float[Tensor, "*k p"]


@dataclass(frozen=True)
class Rule(ABC):
    """A class of policies; a frozen recipe of its shape, never of its numbers."""

    hidden: Widths = ()
    """Widths of the tanh layers; none for a linear rule, which can be read."""

    def __post_init__(self) -> None:
        check_settings(self)

    @abstractmethod
    def outputs(self, actions: ActionSpace) -> int:
        """Scores that one state has."""

    @abstractmethod
    def choose(
        self, scores: Float[Tensor, "k *n o"], actions: ActionSpace, doses: Float[Tensor, "k 3 a"]
    ) -> Float[Tensor, "k *n a"]:
        """The action that the scores stand for; `doses` are each policy's start and reach."""

    @abstractmethod
    def sentences(
        self, weights: Float[Tensor, "s o"], bias: Float[Tensor, " o"], schema: Schema, doses: Float[Tensor, "3 a"]
    ) -> list[str]:
        """A linear rule in words, its weights in the units of the columns."""

    def width(self, inputs: int, actions: ActionSpace) -> int:
        """Numbers that make one policy."""
        return sum((before + 1) * after for before, after in self._layers(inputs, actions))

    def scale(self, inputs: int, actions: ActionSpace) -> Float[Tensor, " p"]:
        """How far apart the numbers of unlike policies are: 1 in a linear rule, 1/√inputs in a layer of a network."""
        parts = [
            torch.full(((before + 1) * after,), (before if self.hidden else 1) ** -0.5)
            for before, after in self._layers(inputs, actions)
        ]
        return torch.cat(parts)

    def scores(
        self, parameters: Float[Tensor, "b p"], x: Float[Tensor, "b n i"], actions: ActionSpace
    ) -> Float[Tensor, "b n o"]:
        """What every policy of a batch thinks of its own states."""
        return self.through([part for pair in self.maps(parameters, x.shape[-1], actions) for part in pair], x)

    def through(self, maps: Sequence[Tensor], x: Float[Tensor, "b n i"]) -> Float[Tensor, "b n o"]:
        """The same from weights and biases, one after another."""
        for i in range(0, len(maps), 2):
            x = torch.baddbmm(maps[i + 1], torch.tanh(x) if i else x, maps[i])
        return x

    def maps(
        self, parameters: Float[Tensor, "b p"], inputs: int, actions: ActionSpace
    ) -> list[tuple[Float[Tensor, "b i o"], Float[Tensor, "b 1 o"]]]:
        """The numbers as weights and biases, layer by layer."""
        maps, first = [], 0
        for before, after in self._layers(inputs, actions):
            middle, last = first + before * after, first + (before + 1) * after
            weight = parameters[:, first:middle].view(-1, before, after)
            maps.append((weight, parameters[:, None, middle:last]))
            first = last
        return maps

    def _layers(self, inputs: int, actions: ActionSpace) -> list[tuple[int, int]]:
        return list(pairwise([inputs, *self.hidden, self.outputs(actions)]))


@dataclass(frozen=True)
class OrderedDose(Rule):
    """A dose that rises or falls with a score. Assumes that the actions' features are amounts."""

    def outputs(self, actions: ActionSpace) -> int:
        return actions.width

    def choose(
        self, scores: Float[Tensor, "k *n o"], actions: ActionSpace, doses: Float[Tensor, "k 3 a"]
    ) -> Float[Tensor, "k *n a"]:
        start, below, above = doses[:, None].unbind(-2)
        dose = torch.addcmul(start, torch.tanh(scores), torch.where(scores > 0, above, below))
        return nearest(actions, dose) if isinstance(actions, Discrete) else dose

    def sentences(
        self, weights: Float[Tensor, "s o"], bias: Float[Tensor, " o"], schema: Schema, doses: Float[Tensor, "3 a"]
    ) -> list[str]:
        said, ends = [], "" if isinstance(schema.actions, Box) else ", rounded to the nearest dose"
        units = dict(schema.action_units)
        for i, feature in enumerate(schema.action_names):
            name = _with_unit(feature, units.get(feature, ""))
            start, below, above = doses[:, i].tolist()
            line = linear(weights[:, i], float(bias[i]), input_names(schema, len(weights)))
            if f"{below:g}" == f"{above:g}":
                said.append(f"{name} = {start:g} + {above:g} · tanh({line}){ends}")
            else:
                reach = f"({above:.3g} where z > 0, else {below:.3g})"
                said.append(f"{name} = {start:.3g} + {reach} · tanh(z){ends}, with z = {line}")
        return said


@dataclass(frozen=True)
class ScoredActions(Rule):
    """The action with the highest score, each scored on its own. Assumes a finite list of actions."""

    def outputs(self, actions: ActionSpace) -> int:
        return listed(actions).count

    def choose(
        self, scores: Float[Tensor, "k *n o"], actions: ActionSpace, doses: Float[Tensor, "k 3 a"]
    ) -> Float[Tensor, "k *n a"]:
        return listed(actions).features(scores.argmax(-1))

    def sentences(
        self, weights: Float[Tensor, "s o"], bias: Float[Tensor, " o"], schema: Schema, doses: Float[Tensor, "3 a"]
    ) -> list[str]:
        inputs = input_names(schema, len(weights))
        scores = [
            f"score of {label} = {linear(weights[:, i], float(bias[i]), inputs)}"
            for i, label in enumerate(schema.labels(units=True))
        ]
        return ["the action with the highest score:", *scores]


CENTRAL = 0.95
"""Share of the logged doses, around their median, within which a rule for continuous doses stays."""


def middle_doses(actions: ActionSpace) -> Float[Tensor, "3 a"]:
    """Where a dose starts and how far it reaches below and above: the middle of the space and half its range."""
    ends = list(zip(actions.low, actions.high, strict=True))
    half = [(high - low) / 2 for low, high in ends]
    return torch.tensor([[(low + high) / 2 for low, high in ends], half, half])


def logged_doses(logged: Transitions) -> Float[Tensor, "3 a"]:
    """The same by the real rows of a log: the median dose, and the way to both ends of the central 95% of doses.

    The largest dose of a log is often an error or an exception: half of it is many times what is usually given. Doses
    below and above the median are counted apart, so that a column that is mostly 0 can still rise.
    """
    columns = logged.real.action.cpu().sort(0).values.unbind(1)
    return torch.stack([_reach(column) for column in columns], 1)


def _reach(ordered: Float[Tensor, " n"]) -> Float[Tensor, " 3"]:
    """Median of sorted doses, and its distances from the doses that 5% of those below and above it are beyond."""
    median = ordered[(len(ordered) - 1) // 2]
    below, above = ordered[ordered < median], ordered[ordered > median]
    low = below[int((1 - CENTRAL) * (len(below) - 1))] if len(below) else median
    high = above[math.ceil(CENTRAL * (len(above) - 1))] if len(above) else median
    return torch.stack([median, median - low, high - median])


def listed(actions: ActionSpace) -> Discrete:
    """The space as a finite list; another is refused."""
    require(
        isinstance(actions, Discrete),
        "one score an action needs a finite list of actions, and the doses are continuous; use OrderedDose()",
    )
    assert isinstance(actions, Discrete)
    return actions


def is_ordered(actions: ActionSpace) -> bool:
    """Whether the actions' features are amounts: continuous doses, or numbers that are not one flag a treatment."""
    if isinstance(actions, Box):
        return True
    flags = all(sorted(value) == [*[0.0] * (actions.width - 1), 1.0] for value in actions.values)
    return not (flags and actions.width > 1)


def linear(weights: Float[Tensor, " s"], bias: float, names: Sequence[str]) -> str:
    """w·x + b with the names of the columns, in the columns' units, so the weights are not comparable."""
    terms = [f"{'+' if w >= 0 else '−'} {abs(w):.3g}·{name}" for w, name in zip(weights.tolist(), names, strict=True)]
    return " ".join([f"{bias:.3g}".replace("-", "−"), *terms])


def input_names(schema: Schema, width: int) -> list[str]:
    """A name for every input of a rule: columns with their units, levels of categories, then the subject's factors."""
    coded = {column for column, _ in schema.categories}
    plain = [_with_unit(c.name, c.unit) for i, c in enumerate(schema.states) if i not in coded]
    levels = [f"[{schema.states[i].name} = {level}]" for i, _ in schema.categories for level in schema.states[i].levels]
    known = [*plain, *levels]
    return [*known, *(f"factor {i + 1}" for i in range(width - len(known)))]


def _with_unit(name: str, unit: str) -> str:
    return f"{name} ({unit})" if unit else name
