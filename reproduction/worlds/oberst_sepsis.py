r"""OberstSepsis of DTR-Bench: sepsis as four vital signs in levels, three treatments, and diabetes that is hidden.

Oberst and Sontag, "Counterfactual off-policy evaluation with Gumbel-max structural causal models", ICML 2019
(github.com/clinicalml/gumbel-max-scm); in the form of Luo et al., "DTR-Bench", 2024 (github.com/GilesLuo/DTRGym).
Heart rate and blood pressure are low, normal or high, oxygen is low or normal, glucose has five levels. Each step gives
or withholds antibiotics, ventilation and vasopressors; vital signs that no treatment acts on fluctuate. Three abnormal
signs are death, −1; no abnormal sign without treatment is discharge, +1. The levels are observed as numbers, and
glucose is not (their `proj_obs`). In the authors' code 4,000 episodes of 40 steps have mean returns of −.871 at random,
−.824 untreated, −.132 with all treatments and −.455 with antibiotics (standard errors at most .009).

The behaviour policy is that of Oberst and Sontag: the optimal policy, which knows diabetes and glucose, with any other
treatment at random in a small share of the decisions.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int

from counterpoint.data.knowledge import Knowledge
from counterpoint.data.spaces import ActionSpace
from reproduction.worlds.base import Actions, Change, Columns, Hidden, Numbers, World

DIABETES = 0.2
ACTIONS = 8
"""4·antibiotics + 2·ventilation + vasopressors."""
LABELS = ("none", "V", "E", "EV", "A", "AV", "AE", "AEV")
START = {
    "heart_rate": (0.25, 0.5, 0.25),
    "pressure": (0.25, 0.5, 0.25),
    "oxygen": (0.2, 0.8),
}
GLUCOSE = ((0.05, 0.15, 0.6, 0.15, 0.05), (0.01, 0.05, 0.15, 0.6, 0.19))
"""First glucose without and with diabetes."""
NORMAL = (1, 1, 1, 2)
"""Normal levels of heart rate, blood pressure, oxygen and glucose."""
DISCOUNT, SWEEPS = 0.99, 500
"""Of the optimal policy."""


@dataclass(frozen=True)
class OberstSepsis(World):
    """Hourly decisions about three treatments."""

    steps: int = 40
    random_share: float = 0.15
    """Share of decisions of the behaviour policy that are any other treatment."""

    name: ClassVar[str] = "oberst-sepsis"
    state: ClassVar[tuple[str, ...]] = (
        "heart_rate",
        "pressure",
        "oxygen",
        "antibiotics",
        "vasopressors",
        "ventilation",
    )
    action: ClassVar[tuple[str, ...]] = ("treatment",)
    marker: ClassVar[str] = ""
    evaluation_subjects: ClassVar[int] = 4000

    def begin(self, subjects: int, random: np.random.Generator) -> Hidden:
        hidden = _drawn(subjects, random)
        # Nobody begins dead or discharged.
        while (over := _reward(hidden) != 0).any():
            again = _drawn(subjects, random)
            hidden = {name: np.where(over, again[name], values) for name, values in hidden.items()}
        return hidden

    def observe(self, hidden: Hidden) -> Columns:
        shifted = {"heart_rate": hidden["heart_rate"] - 1, "pressure": hidden["pressure"] - 1}
        return {name: np.asarray(shifted.get(name, hidden[name]), dtype=float) for name in self.state}

    def noise(self, subjects: int, random: np.random.Generator) -> Float[np.ndarray, "n u"]:
        return random.random((subjects, 9))

    def step(self, hidden: Hidden, action: Actions, noise: Float[np.ndarray, "n u"]) -> Change:
        after = dict(hidden)
        chosen = action[:, 0].astype(int)
        antibiotics, ventilation, vasopressors = chosen // 4 % 2, chosen // 2 % 2, chosen % 2
        before = {name: hidden[name] == 1 for name in ("antibiotics", "ventilation", "vasopressors")}
        _antibiotics(after, antibiotics == 1, before["antibiotics"], noise[:, 0], noise[:, 1])
        _ventilation(after, ventilation == 1, before["ventilation"], noise[:, 2])
        _vasopressors(after, vasopressors == 1, before["vasopressors"], noise[:, 3], noise[:, 4])
        on = {"antibiotics": antibiotics, "ventilation": ventilation, "vasopressors": vasopressors}
        free = {name: (on[name] == 0) & ~before[name] for name in on}
        _fluctuate(after, "heart_rate", free["antibiotics"], noise[:, 5], 0.1, 2)
        _fluctuate(after, "pressure", free["antibiotics"] & free["vasopressors"], noise[:, 6], 0.1, 2)
        _fluctuate(after, "oxygen", free["ventilation"], noise[:, 7], 0.1, 1)
        diabetic = hidden["diabetes"] == 1
        # In the authors' code glucose without diabetes rises to no more than level 1, and falls there from above.
        _fluctuate(after, "glucose", (vasopressors == 0) & ~diabetic, noise[:, 8], 0.1, 1)
        _fluctuate(after, "glucose", (vasopressors == 0) & diabetic, noise[:, 8], 0.3, 4)
        after |= on
        reward = _reward(after)
        return Change(after, reward, reward != 0, reward < 0)

    def behave(self, hidden: Hidden, columns: Columns, random: np.random.Generator) -> Actions:
        best = optimal_policy()[tuple(hidden[name] for name in TENSOR)]
        other = (best + random.integers(1, ACTIONS, len(best))) % ACTIONS
        at_random = random.random(len(best)) < self.random_share
        return np.where(at_random, other, best)[:, None].astype(float)

    def optimal(self, hidden: Hidden, columns: Columns, random: np.random.Generator) -> Actions:
        """Return the treatment of the optimal policy, which sees diabetes and glucose."""
        return optimal_policy()[tuple(hidden[name] for name in TENSOR)][:, None].astype(float)

    def at_random(self, hidden: Hidden, columns: Columns, random: np.random.Generator) -> Actions:
        """Draw every treatment with the same probability."""
        return random.integers(ACTIONS, size=(len(hidden["oxygen"]), 1)).astype(float)

    def textbook(self, columns: Columns) -> Actions:
        """Return the treatment of every abnormal sign, and keep what is given until all signs are normal."""
        high = (columns["heart_rate"] > 0) | (columns["pressure"] > 0)
        low_oxygen, low_pressure = columns["oxygen"] < 1, columns["pressure"] < 0
        abnormal = (columns["heart_rate"] != 0) | (columns["pressure"] != 0) | low_oxygen
        antibiotics = high | (abnormal & (columns["antibiotics"] > 0))
        ventilation = low_oxygen | (abnormal & (columns["ventilation"] > 0))
        return (4.0 * antibiotics + 2.0 * ventilation + low_pressure)[:, None]

    @property
    def labels(self) -> tuple[str, ...]:
        return LABELS

    def label(self, action: Actions) -> Mapping[str, Any]:
        return {"treatment": [LABELS[int(number)] for number in action[:, 0]]}

    def amounts(self, choice: Mapping[str, Any]) -> list[float]:
        return [float(LABELS.index(choice["treatment"]))]

    @property
    def space(self) -> ActionSpace | None:
        return None

    @property
    def knowledge(self) -> Knowledge:
        return Knowledge(reward_range=(-1.0, 1.0))


TENSOR = ("diabetes", "heart_rate", "pressure", "oxygen", "glucose", "antibiotics", "ventilation", "vasopressors")
"""Axes of the table of the optimal policy."""
SHAPE = (2, 3, 3, 2, 5, 2, 2, 2)


def _drawn(subjects: int, random: np.random.Generator) -> Hidden:
    diabetes = (random.random(subjects) < DIABETES).astype(int)
    hidden: Hidden = {name: random.choice(len(share), subjects, p=share) for name, share in START.items()}
    levels = [random.choice(5, subjects, p=share) for share in GLUCOSE]
    hidden["glucose"] = np.where(diabetes == 1, levels[1], levels[0])
    none = np.zeros(subjects, dtype=int)
    return {**hidden, "diabetes": diabetes, "antibiotics": none, "ventilation": none, "vasopressors": none}


def _reward(hidden: Hidden) -> Numbers:
    signs = ("heart_rate", "pressure", "oxygen", "glucose")
    abnormal = sum(hidden[name] != normal for name, normal in zip(signs, NORMAL, strict=True))
    treated = (hidden["antibiotics"] + hidden["ventilation"] + hidden["vasopressors"]) > 0
    return np.where(abnormal >= 3, -1.0, np.where((abnormal == 0) & ~treated, 1.0, 0.0))


def _antibiotics(
    after: Hidden, on: Bool[np.ndarray, " n"], was_on: np.ndarray, first: Numbers, second: Numbers
) -> None:
    """Bring high heart rate and blood pressure down half of the time; when stopped, they rise in one case of ten."""
    for name, uniform in (("heart_rate", first), ("pressure", second)):
        level = after[name]
        fallen = on & (level == 2) & (uniform < 0.5)
        risen = ~on & was_on & (level == 1) & (uniform < 0.1)
        after[name] = np.where(fallen, 1, np.where(risen, 2, level))


def _ventilation(after: Hidden, on: Bool[np.ndarray, " n"], was_on: np.ndarray, uniform: Numbers) -> None:
    level = after["oxygen"]
    risen = on & (level == 0) & (uniform < 0.7)
    fallen = ~on & was_on & (level == 1) & (uniform < 0.1)
    after["oxygen"] = np.where(risen, 1, np.where(fallen, 0, level))


def _vasopressors(
    after: Hidden, on: Bool[np.ndarray, " n"], was_on: np.ndarray, first: Numbers, second: Numbers
) -> None:
    """Raise blood pressure, with diabetes more and glucose too; when stopped, blood pressure may fall."""
    diabetic, level = after["diabetes"] == 1, after["pressure"]
    plain = np.where(on & ~diabetic & (first < 0.7), np.minimum(level + 1, 2), level)
    from_normal = np.where(first < 0.9, 2, 1)
    from_low = np.where(first < 0.5, 1, np.where(first < 0.9, 2, 0))
    sensitive = np.where(level == 1, from_normal, np.where(level == 0, from_low, level))
    level = np.where(on & diabetic, sensitive, plain)
    fallen = ~on & was_on & (first < np.where(diabetic, 0.05, 0.1))
    after["pressure"] = np.where(fallen, np.maximum(level - 1, 0), level)
    raised = on & diabetic & (second < 0.5)
    after["glucose"] = np.where(raised, np.minimum(after["glucose"] + 1, 4), after["glucose"])


def _fluctuate(
    after: Hidden, name: str, moves: Bool[np.ndarray, " n"], uniform: Numbers, chance: float, highest: int
) -> None:
    level = after[name]
    down, up = np.maximum(level - 1, 0), np.minimum(level + 1, highest)
    moved = np.where(uniform < chance, down, np.where(uniform < 2 * chance, up, level))
    after[name] = np.where(moves, moved, level)


@lru_cache(maxsize=1)
def optimal_policy() -> Int[np.ndarray, "d h b o g a e v"]:
    """Return the action of the optimal policy in every full state, by value iteration on simulated transitions."""
    states = np.stack([axis.flatten() for axis in np.meshgrid(*map(np.arange, SHAPE), indexing="ij")])
    hidden: Hidden = dict(zip(TENSOR, states, strict=True))
    over, count = _reward(hidden) != 0, states.shape[1]
    world = OberstSepsis()
    random = np.random.default_rng(0)
    value = np.zeros(count)
    reached = [[_index(world, hidden, action, random) for _ in range(200)] for action in range(ACTIONS)]
    quality = np.zeros((count, ACTIONS))
    for _ in range(SWEEPS // 5):
        kept = np.where(over, _reward(hidden), DISCOUNT * value)
        quality = np.stack([np.mean([kept[place] for place in places], 0) for places in reached], 1)
        updated = np.where(over, 0.0, quality.max(1))
        if np.abs(updated - value).max() < 1e-4:
            break
        value = updated
    return quality.argmax(1).reshape(SHAPE)


def _index(world: OberstSepsis, hidden: Hidden, action: int, random: np.random.Generator) -> Int[np.ndarray, " n"]:
    """Return the full states that one draw of the noise leads to."""
    count = len(hidden["oxygen"])
    change = world.step(hidden, np.full((count, 1), float(action)), world.noise(count, random))
    return np.ravel_multi_index(tuple(change.after[name] for name in TENSOR), SHAPE)
