"""Methods of the clinical benchmark by their names in the table: rules, learners of this package, and d3rlpy's.

A method learns from a log of a world and returns what is deployed there. A method of this package also returns the
policy and the rows that it was learned from, which off-policy evaluation needs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal, Protocol

import numpy as np
import pandas as pd
import torch

from counterpoint.core.errors import require
from counterpoint.core.seeding import derive
from counterpoint.data.doses import Bins
from counterpoint.data.shapes import Action, Flag, Reward, State
from counterpoint.data.spaces import ActionSpace, Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.learners.base import PolicyLearner
from counterpoint.learners.ctrl_g import CTRLg
from counterpoint.learners.methods import QUICK_SEARCH
from counterpoint.learners.near_practice import NearPractice
from counterpoint.learners.practice import Constant, Practice
from counterpoint.models.dynamics.outcome import Outcome
from counterpoint.ope.continuous import ShiftedDoses
from counterpoint.policies.base import Policy
from counterpoint.tasks.base import Task
from reproduction.peers_d3rlpy import offline
from reproduction.worlds.base import Actions, Columns, Decide, Deployment, Hidden, Insider, World, acting

UPDATES = 5000
"""Updates of a learner of d3rlpy."""
DISCOUNT = 0.99
"""Discount of d3rlpy's learners, its default."""


@dataclass(frozen=True)
class Learned:
    """What a method returned."""

    policy: Policy | Decide | None = None
    """Deployed in the world; None where `insider` is."""
    insider: Insider | None = None
    """What is deployed with the hidden state in view: the behaviour policy, or a fixed change of its doses."""
    rows: Transitions | None = None
    """The log, where what is deployed can be evaluated from it."""
    evaluated: Policy | ShiftedDoses | None = None
    """What is evaluated."""

    def deploy(self, world: World, subjects: int, seed: int) -> Deployment:
        """Return the true returns."""
        if self.insider is not None:
            return world.reference(self.insider, subjects, seed)
        assert self.policy is not None
        return world.value(self.policy, subjects, seed)


class Method(Protocol):
    """A recipe of a policy."""

    def supports(self, world: World) -> bool:
        """Whether the world has what the method needs."""
        ...

    def learn(self, world: World, frame: pd.DataFrame, seed: int) -> Learned:
        """Learn from a log."""
        ...


@dataclass(frozen=True)
class Rule:
    """A rule of the world that learns nothing."""

    name: Literal["as logged", "nothing", "textbook"]

    def supports(self, world: World) -> bool:
        return self.name != "nothing" or world.has_none

    def learn(self, world: World, frame: pd.DataFrame, seed: int) -> Learned:
        if self.name == "as logged":
            return Learned(insider=world.behave)
        return Learned(getattr(world, self.name))


@dataclass(frozen=True)
class DoseChange:
    """A fixed change of the behaviour policy's doses, whose effect the log can speak about: it learns nothing."""

    factor: float

    def supports(self, world: World) -> bool:
        return world.space is not None

    def learn(self, world: World, frame: pd.DataFrame, seed: int) -> Learned:
        rows, factor = world.read(frame), self.factor

        def deployed(hidden: Hidden, columns: Columns, random: np.random.Generator) -> Actions:
            return factor * world.behave(hidden, columns, random)

        evaluated = ShiftedDoses(rows.schema, lambda state, action: factor * action)
        return Learned(insider=deployed, rows=rows, evaluated=evaluated)


class ActionsAlone(Task):
    """A task without reward and end, for learners that have no use for either."""

    discount = 1.0
    horizon = 1

    def __init__(self, actions: ActionSpace) -> None:
        self.actions = actions

    def reward(self, state: State, action: Action, next_state: State) -> Reward:
        return torch.zeros_like(next_state[..., 0])

    def terminated(self, next_state: State) -> Flag:
        return torch.zeros_like(next_state[..., 0], dtype=torch.bool)


@dataclass(frozen=True)
class Learner:
    """A learner of this package, with reward and end learned from the log."""

    learner: PolicyLearner[Any]
    bins: int = 0
    """Doses that continuous ones are cut into; 0 for none."""
    of_columns: bool = False
    """Whether it learns from states and actions alone, so that reward and end need not be learned."""

    def supports(self, world: World) -> bool:
        return True

    def learn(self, world: World, frame: pd.DataFrame, seed: int) -> Learned:
        cut = Bins(count=self.bins) if self.bins and world.space is not None else None
        rows = world.read(frame, bins=cut)
        task = ActionsAlone(rows.actions) if self.of_columns else Outcome().fit(rows, seed=derive(seed, "outcome"))
        policy = self.learner.fit(rows, task, seed=derive(seed, "policy"))
        return Learned(policy, rows=rows, evaluated=policy)


@dataclass(frozen=True)
class D3rlpy:
    """A learner of d3rlpy."""

    name: str
    """Its name where actions are continuous."""
    listed: str
    """Its name where actions are listed; "" for none."""

    def supports(self, world: World) -> bool:
        return bool(self.name if world.space is not None else self.listed)

    def learn(self, world: World, frame: pd.DataFrame, seed: int) -> Learned:
        rows = world.read(frame)
        name = self.listed if isinstance(rows.actions, Discrete) else self.name
        require(bool(name), f"{self.name} has no form for listed actions; leave it out")
        choose = offline(name, rows, derive(seed, "d3rlpy") % 2**31, UPDATES, DISCOUNT)
        return Learned(acting(choose, rows.schema, world))


def methods() -> dict[str, Method]:
    """Return all methods whose libraries are installed."""
    found: dict[str, Method] = {
        "as logged": Rule("as logged"),
        "nothing": Rule("nothing"),
        "textbook": Rule("textbook"),
        "doses × 0.8": DoseChange(0.8),
        "doses × 1.25": DoseChange(1.25),
        "commonest": Learner(Constant("commonest"), of_columns=True),
        "practice": Learner(Practice(), of_columns=True),
        "practice, drawn": Learner(Practice(stochastic=True), of_columns=True),
        "near practice": Learner(NearPractice()),
        "search": Learner(QUICK_SEARCH),
        "CTRL_g": Learner(CTRLg(), bins=5),
    }
    if find_spec("d3rlpy"):
        found |= {
            "d3rlpy BC": D3rlpy("BC", "DiscreteBC"),
            "d3rlpy IQL": D3rlpy("IQL", ""),
            "d3rlpy CQL": D3rlpy("CQL", "DiscreteCQL"),
            "d3rlpy TD3+BC": D3rlpy("TD3+BC", ""),
            "d3rlpy BCQ": D3rlpy("", "DiscreteBCQ"),
        }
    return found


PRACTICE = "practice"
"""What every method is compared with."""
CANDIDATES = ("practice", "practice, drawn", "near practice", "search", "CTRL_g")
"""Methods among which verdicts may choose."""
DEFAULT = "near practice"
"""The method of `counterpoint train` where none is named, which is chosen where no verdict speaks for another."""
BETTER = "better than practice"
"""The verdict that speaks for a method."""
QUICK: tuple[str, ...] = (
    "as logged",
    "nothing",
    "textbook",
    "doses × 1.25",
    "commonest",
    "practice",
    "practice, drawn",
)


def some(names: tuple[str, ...]) -> Mapping[str, Method]:
    """Return the methods of these names."""
    return {name: method for name, method in methods().items() if name in names}
