"""Base class of the clinical worlds: simulators with hidden states, which are logged, deployed in, and branched.

A world keeps its hidden state and the subjects' parameters to itself. A log has the observed columns alone. All noise
of the world is drawn by (seed, step), so that a policy, the behaviour policy and a branch of a log meet the same noise:

    h_{t+1} = f(h_t, a_t, u_t),    x_t = g(h_t),    a counterfactual replays f from h_t with the same u_t, u_{t+1}, …
"""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from counterpoint.core.errors import CounterpointWarning, require
from counterpoint.core.seeding import derive
from counterpoint.data.doses import Bins
from counterpoint.data.jobs import NO_THETA
from counterpoint.data.knowledge import Knowledge, Recursion
from counterpoint.data.schema import Schema
from counterpoint.data.spaces import ActionSpace, Discrete
from counterpoint.data.tables.dataframe import from_dataframe
from counterpoint.data.transitions import Transitions
from counterpoint.policies.base import Policy

Numbers = Float[np.ndarray, " n"]
Columns = dict[str, Numbers]
"""Observed values of every subject, by column."""
Hidden = dict[str, np.ndarray]
"""Hidden state of every subject: arrays whose first axis is the subject."""
Actions = Float[np.ndarray, "n a"]
Decide = Callable[[Columns], Actions]
"""Chooses the actions of all subjects from their observed columns."""
Insider = Callable[[Hidden, Columns, np.random.Generator], Actions]
"""Chooses the actions with the hidden state in view: a behaviour policy with its habits, or an oracle."""


class Change(NamedTuple):
    """What one step leads to."""

    after: Hidden
    reward: Numbers
    done: Bool[np.ndarray, " n"]
    danger: Bool[np.ndarray, " n"]
    """Whether the subject is in a dangerous state after the step."""


class Moment(NamedTuple):
    """One step of all subjects as it was simulated."""

    hidden: Hidden
    columns: Columns
    action: Actions
    change: Change
    alive: Bool[np.ndarray, " n"]
    """Whether the subject's episode had not ended before the step."""


@dataclass(frozen=True)
class Deployment:
    """What a policy does to every subject of a closed loop."""

    returns: Numbers
    """Sum of the rewards of the episode."""
    danger: Numbers
    """Share of the steps in danger."""


@dataclass(frozen=True)
class Branches:
    """Logged moments, other actions there, and the true states that follow.

    After the first step the logged actions of the same subject are repeated, with the noise of the log.
    """

    subject: Int[np.ndarray, " n"]
    step: Int[np.ndarray, " n"]
    plan: Float[np.ndarray, "n h a"]
    """Actions from the branching to the horizon."""
    logged: Float[np.ndarray, "n h a"]
    """Actions of the log in these steps."""
    factual: Float[np.ndarray, "n h s"]
    """Observed columns of the log after 1 to h steps."""
    truth: Float[np.ndarray, "n h s"]
    """The same under `plan`."""


class World(ABC):
    """A simulator of subjects who differ, with a behaviour policy that logs them."""

    name: ClassVar[str]
    state: ClassVar[tuple[str, ...]]
    """Observed columns."""
    action: ClassVar[tuple[str, ...]]
    has_none: ClassVar[bool] = True
    """Whether a subject can be left without treatment."""
    marker: ClassVar[str]
    """The observed column that the treatment is for; "" where there is none."""
    noise_size: ClassVar[float] = 0.0
    """Standard deviation of one step's noise in that column."""
    steps: int
    """Steps of an episode."""
    evaluation_subjects: ClassVar[int] = 200
    """Subjects that the true return of a policy is a mean over."""

    @abstractmethod
    def begin(self, subjects: int, random: np.random.Generator) -> Hidden:
        """Draw subjects: parameters, first states, and all that happens whatever is done."""

    @abstractmethod
    def observe(self, hidden: Hidden) -> Columns:
        """Return the observed columns."""

    @abstractmethod
    def noise(self, subjects: int, random: np.random.Generator) -> Float[np.ndarray, "n u"]:
        """Draw the noise of one step."""

    @abstractmethod
    def step(self, hidden: Hidden, action: Actions, noise: Float[np.ndarray, "n u"]) -> Change:
        """Return the states after a step; a pure function."""

    @abstractmethod
    def behave(self, hidden: Hidden, columns: Columns, random: np.random.Generator) -> Actions:
        """Draw the actions of the behaviour policy, whose habits are part of the hidden state."""

    @property
    @abstractmethod
    def space(self) -> ActionSpace | None:
        """Actions that a policy may choose; None where the log lists them."""

    @property
    @abstractmethod
    def knowledge(self) -> Knowledge:
        """Facts about the columns that a clinician knows."""

    @property
    def columns(self) -> tuple[str, ...]:
        """State columns that a log is read with."""
        return self.state

    @abstractmethod
    def textbook(self, columns: Columns) -> Actions:
        """Return the actions of the rule in the world's textbook: a policy that nobody learned from the log."""

    def read(self, frame: pd.DataFrame, held_out: float = 0.0, seed: int = 0, bins: Bins | None = None) -> Transitions:
        """Read a log of this world with the roles of its columns declared.

        Args:
            frame: What `log` returned, or a part of it.
            held_out: Share of the subjects that cuts and fills are learned without.
            seed: Seed that chooses them.
            bins: Cut the doses for a learner that needs a list of actions.
        """
        knowledge = self._of_bins() if bins else self.knowledge
        made = self.table({name: frame[name].to_numpy() for name in self.state})
        with warnings.catch_warnings():
            # It says that doses are continuous, which is what they are here.
            warnings.simplefilter("ignore", CounterpointWarning)
            return from_dataframe(
                frame.assign(**made), subject="id", time="time", state=self.columns, action=self.action,
                reward="reward", done="done" if bool(frame["done"].any()) else None, last="truncate",
                labels=self.labels, actions=bins or self.space, knowledge=knowledge, held_out=held_out, seed=seed,
            )  # fmt: skip

    def _of_bins(self) -> Knowledge:
        """Return the facts that are left when doses are cut: a sum of doses is no sum of their bins."""
        kept = [r for r in self.knowledge.recursions if not any(source in self.action for source, _ in r.weights)]
        return replace(self.knowledge, recursions=tuple(kept))

    def nothing(self, columns: Columns) -> Actions:
        """Return no treatment for every subject."""
        require(self.has_none, f"{self.name} has no action that is no treatment; leave it out")
        return np.zeros((len(columns[self.state[0]]), len(self.action)))

    def label(self, action: Actions) -> Mapping[str, Any]:
        """Return actions as columns of a log."""
        return {name: action[:, i] for i, name in enumerate(self.action)}

    def amounts(self, choice: Mapping[str, Any]) -> list[float]:
        """Return one action, given as values of the log's action columns, as numbers."""
        return [float(choice[name]) for name in self.action]

    def table(self, columns: Columns) -> Columns:
        """Return the observed columns and those that `read` makes of them, such as the parts of a clock."""
        return columns

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the listed actions, whether or not a log has all of them; () where actions are amounts."""
        return ()

    def log(self, subjects: int, seed: int) -> pd.DataFrame:
        """Log subjects under the behaviour policy: one row for each subject and time.

        The last row of a subject whose episode has not ended gives the row before it a next state.
        """
        parts = []
        for t, moment in enumerate(self.logged(subjects, seed)):
            part = {"id": np.arange(subjects), "time": np.full(subjects, t), **moment.columns}
            part |= {**self.label(moment.action), "reward": moment.change.reward, "done": moment.change.done}
            parts.append(pd.DataFrame(part)[moment.alive])
        return pd.concat(parts).sort_values(["id", "time"], ignore_index=True)

    def logged(self, subjects: int, seed: int) -> list[Moment]:
        """Return the steps behind `log`, and one more."""
        return list(self._run(subjects, seed, self.steps + 1, self.behave))

    def practice(self, subjects: int, seed: int) -> Deployment:
        """Return what the behaviour policy does to the subjects of `log`."""
        return self.reference(self.behave, subjects, seed)

    def reference(self, insider: Insider, subjects: int, seed: int) -> Deployment:
        """Return what a policy that sees the hidden state does to the subjects of `log`."""
        return deployment(list(self._run(subjects, seed, self.steps, insider)))

    def value(self, policy: Policy | Decide, subjects: int, seed: int) -> Deployment:
        """Return what a policy does to the subjects of `log(subjects, seed)`, in a closed loop with the same noise."""
        decide = decider(policy, self) if isinstance(policy, Policy) else policy
        return self.reference(lambda hidden, columns, random: decide(columns), subjects, seed)

    def counterfactual(
        self,
        moments: Sequence[Moment],
        subjects: int,
        seed: int,
        alternative: Float[np.ndarray, "t n a"],
        horizon: int = 1,
    ) -> Branches:
        """Branch a log at every step under other actions, with the noise of the log.

        Args:
            moments: What `logged(subjects, seed)` returned.
            subjects: Its subjects.
            seed: Its seed.
            alternative: The action at the branching, for every step of the log and every subject.
            horizon: Steps that are followed; after the first one the logged actions are repeated.
        """
        require(1 <= horizon <= self.steps, f"a horizon of {horizon} steps is none; give 1 to {self.steps}")
        observed = [self._states(moment.columns) for moment in moments]
        parts = []
        for t in range(len(moments) - horizon):
            plan = np.stack([alternative[t], *(moments[t + k].action for k in range(1, horizon))], 1)
            hidden, states = moments[t].hidden, []
            for k in range(horizon):
                hidden = self.step(hidden, plan[:, k], self._noise(subjects, seed, t + k)).after
                states.append(self._states(self.observe(hidden)))
            followed = moments[t + horizon].alive
            part = {
                "subject": np.arange(subjects),
                "step": np.full(subjects, t),
                "plan": plan,
                "logged": np.stack([moments[t + k].action for k in range(horizon)], 1),
                "factual": np.stack(observed[t + 1 : t + 1 + horizon], 1),
                "truth": np.stack(states, 1),
            }
            parts.append({name: values[followed] for name, values in part.items()})
        return Branches(**{name: np.concatenate([part[name] for part in parts]) for name in parts[0]})

    def _states(self, columns: Columns) -> Float[np.ndarray, "n s"]:
        return np.stack([columns[name] for name in self.state], 1)

    def _noise(self, subjects: int, seed: int, step: int) -> Float[np.ndarray, "n u"]:
        return self.noise(subjects, np.random.default_rng(derive(seed, self.name, "noise", step)))

    def _run(self, subjects: int, seed: int, steps: int, insider: Insider) -> Iterator[Moment]:
        """Yield step after step under `insider`, until all episodes have ended."""
        hidden = self.begin(subjects, np.random.default_rng(derive(seed, self.name, "subjects")))
        alive = np.ones(subjects, dtype=bool)
        for t in range(steps):
            columns = self.observe(hidden)
            random = np.random.default_rng(derive(seed, self.name, "behaviour", t))
            action = insider(hidden, columns, random)
            change = self.step(hidden, action, self._noise(subjects, seed, t))
            yield Moment(hidden, columns, action, change, alive)
            hidden, alive = change.after, alive & ~change.done
            if not alive.any():
                return


def deployment(moments: Sequence[Moment]) -> Deployment:
    """Sum the rewards of simulated steps, and count those in danger, until every subject's end."""
    alive = np.stack([moment.alive for moment in moments])
    rewards = np.stack([moment.change.reward for moment in moments])
    danger = np.stack([moment.change.danger for moment in moments])
    return Deployment((rewards * alive).sum(0), (danger & alive).sum(0) / alive.sum(0))


def decayed_sum(column: str, source: str, half_life: float) -> Recursion:
    """Return the recursion of a sum of which half is left after `half_life` steps: b' = 0.5^(1/half-life)·(b + x)."""
    kept = 0.5 ** (1 / half_life)
    return Recursion(column, ((column, kept), (source, kept)))


def clock(cosine: str, sine: str, steps: int) -> tuple[Recursion, Recursion]:
    """Return the recursions of a clock whose hand turns once in `steps` steps."""
    cos, sin = math.cos(2 * math.pi / steps), math.sin(2 * math.pi / steps)
    return (
        Recursion(cosine, ((cosine, cos), (sine, -sin))),
        Recursion(sine, ((sine, cos), (cosine, sin))),
    )


def decider(policy: Policy, world: World) -> Decide:
    """Let a policy act on observed columns; one that learns about its subjects remembers the episode."""
    actor = policy.rollout_actor()
    theta = torch.zeros(1, policy.factor_width) if policy.factor_width else NO_THETA

    @torch.no_grad()
    def choose(state: Float[Tensor, "n s"]) -> Float[Tensor, "n a"]:
        return actor(state[None], theta.expand(len(state), -1)[None])[0]

    return acting(choose, policy.schema, world)


def acting(choose: Callable[[Tensor], Tensor], schema: Schema, world: World) -> Decide:
    """Let a function from states to actions, in the terms of a log's schema, act on observed columns."""
    levels = {column.name: column.levels for column in schema.states if column.levels}
    finite = isinstance(schema.actions, Discrete)
    amounts = np.array([world.amounts(choice) for choice in schema.choices()]) if finite else np.zeros((0, 0))

    def decide(columns: Columns) -> Actions:
        table = world.table(columns)
        values = [_coded(table[name], levels.get(name, ())) for name in schema.state_names]
        action = choose(torch.from_numpy(np.stack(values, 1)).float())
        if isinstance(schema.actions, Discrete):
            return amounts[schema.actions.index(action).numpy()]
        return action.numpy().astype(float)

    return decide


def _coded(values: Numbers, levels: Sequence[str]) -> Numbers:
    """Return numbers, or the places of a category's levels."""
    if not levels:
        return values
    places = {float(level): place for place, level in enumerate(levels)}
    return np.array([places[float(value)] for value in values], dtype=float)
