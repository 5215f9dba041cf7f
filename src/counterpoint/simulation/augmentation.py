"""From logged rows to imagined ones: other actions in the same states, answered by a model (paper, section 3.1)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.seeding import generator
from counterpoint.core.settings import Positive, check_settings, checked
from counterpoint.data.jobs import NO_THETA
from counterpoint.data.schema import agree
from counterpoint.data.shapes import Action, State, Theta
from counterpoint.data.spaces import ActionSpace, Box, Discrete
from counterpoint.data.transitions import Transitions, gather
from counterpoint.models.base import Model
from counterpoint.tasks.base import Task, check_task

PIECE = 16_384
"""Rows imagined at once. What chance decides for them depends on the seed and on their place in the table alone, so
that pieces can be imagined in any order and on any machine."""


@runtime_checkable
class Imaginer(Protocol):
    """A fitted model that can say what follows another action: an SCM by abduction, any other model by drawing."""

    def imagine(
        self, rows: Transitions, action: Float[Tensor, "n m a"], random: torch.Generator, theta: Tensor = ...
    ) -> Float[Tensor, "n m s"]:
        """Next states under m other actions for every row."""
        ...

    def sample(self, state: State, action: Action, random: torch.Generator, theta: Tensor = ...) -> State:
        """Next states with fresh noise."""
        ...


@dataclass(frozen=True)
class Augmenter:
    """Makes imagined rows: other actions, uniform over the space, next states from a model, the rest from the task."""

    alternatives: Positive | None = None
    """Imagined rows per real row; None for every other action of a discrete space."""
    fresh_noise: bool = False
    """Draw new noise instead of keeping the factual noise: the ablation that shows what counterfactuals buy."""

    def __post_init__(self) -> None:
        check_settings(self)

    @checked
    def imagine(
        self, data: Transitions, model: Imaginer, task: Task, seed: int = 0, theta: Theta = NO_THETA
    ) -> Transitions:
        """The imagined rows alone; `source` is the row of `data` each came from, `theta` the factors of its rows."""
        return gather(self._pieces(data, model, task, seed, theta), self._count(data))

    @checked
    def augment(
        self, data: Transitions, model: Imaginer, task: Task, seed: int = 0, theta: Theta = NO_THETA
    ) -> Transitions:
        """Real rows, then imagined ones. No noise is kept: `model.abduct(data[rows.source])` finds it again."""
        imagined = self._pieces(data, model, task, seed, theta)
        real = without_noise(data)
        return gather(chain([real], imagined), len(data) + self._count(data))

    def _count(self, data: Transitions) -> int:
        """Rows that will be imagined."""
        rows = int((~data.imagined & data.has_next).sum())
        return rows * (self._alternatives(data.actions) if rows else 0)

    def _alternatives(self, space: ActionSpace) -> int:
        """The number of alternative actions per row."""
        if isinstance(space, Discrete):
            return min(self.alternatives or space.count - 1, space.count - 1)
        if self.alternatives is None:
            raise CounterpointError(
                "a continuous action space has no list of all actions; set alternatives to 1 or more"
            )
        return self.alternatives

    def _pieces(self, data: Transitions, model: Imaginer, task: Task, seed: int, theta: Theta) -> Iterator[Transitions]:
        require(len(data) > 0, "the table has no rows to imagine others of; give some")
        factors = model.subjects(data) if isinstance(model, Model) and not theta.shape[1] else theta
        factors = factors.expand(len(data), -1)
        for number in range(max(-(-len(data) // PIECE), 1)):
            rows = slice(number * PIECE, (number + 1) * PIECE)
            yield self.piece(data[rows], number, model, task, seed, factors[rows])

    def piece(
        self, rows: Transitions, number: int, model: Imaginer, task: Task, seed: int = 0, theta: Theta = NO_THETA
    ) -> Transitions:
        """The imagined rows of the `number`th piece of a table."""
        check_task(task, rows.schema)
        if isinstance(model, Model):
            agree(model.schema, rows.schema)
        _check_outcomes(rows, task)
        place = (number,) if number else ()
        random, ends = (generator(seed, purpose, *place) for purpose in ("alternatives", "ends"))
        real = (~rows.imagined & rows.has_next).nonzero()[:, 0]
        known = rows if len(real) == len(rows) else rows[real]
        action, index = self._actions(known, random)
        next_state = self._next(known, action, model, random, theta.expand(len(rows), -1)[real])
        uniform = torch.rand(len(next_state), generator=ends).to(next_state)
        state, taken = known.state.repeat_interleave(action.shape[1], 0), action.flatten(0, 1)
        reward, outcome, next_state = task.conclude(state, taken, next_state, uniform)
        columns = {"state": state, "action": taken, "reward": reward, "outcome": outcome, "next_state": next_state}
        return _imagined(known, real + number * PIECE, **columns, action_index=index.flatten())

    def _next(
        self, rows: Transitions, action: Float[Tensor, "n m a"], model: Imaginer, random: torch.Generator, theta: Tensor
    ) -> State:
        """Next states, a row for every alternative; the noise of a real row is found once."""
        if not self.fresh_noise:
            return model.imagine(rows, action, random, theta).flatten(0, 1)
        state, factors = (x.repeat_interleave(action.shape[1], 0) for x in (rows.state, theta))
        return model.sample(state, action.flatten(0, 1), random, factors)

    def _actions(self, rows: Transitions, random: torch.Generator) -> tuple[Float[Tensor, "n m a"], Int[Tensor, "n m"]]:
        """Other actions for each row: their features and, where they are on a list, their places on it."""
        space = rows.actions
        if isinstance(space, Discrete):
            index = self._other_actions(rows.action_index, space, random)
            return space.features(index), index
        doses = self._doses(len(rows), space, random)
        return doses, space.index(doses.flatten(0, 1)).view(doses.shape[:2])

    def _other_actions(self, taken: Int[Tensor, " n"], space: Discrete, random: torch.Generator) -> Int[Tensor, "n m"]:
        """Different actions, none of them the one taken: a shift by 1 … count−1, the shifts shuffled row by row."""
        order = torch.rand(len(taken), space.count - 1, generator=random).argsort(1)
        shifts = order[:, : self._alternatives(space)].sort(1).values + 1
        return (taken[:, None] + shifts.to(taken.device)) % space.count

    def _doses(self, rows: int, space: Box, random: torch.Generator) -> Float[Tensor, "n m a"]:
        count = self._alternatives(space)
        return space.sample(rows * count, random).view(rows, count, -1)


def without_noise(rows: Transitions) -> Transitions:
    """The same rows, blind to the luck that a simulator recorded."""
    return replace(rows, noise=rows.noise[:, :0])


def _imagined(rows: Transitions, source: Int[Tensor, " n"], **columns: Tensor) -> Transitions:
    """What was answered about `rows`, equally often about each."""
    size = len(columns["state"])
    again = {"source": source, **{name: getattr(rows, name) for name in ("subject", "episode", "step")}}
    return replace(
        rows,
        **columns,
        **{name: column.repeat_interleave(size // max(len(rows), 1)) for name, column in again.items()},
        truncated=rows.truncated.new_zeros(size),
        imagined=rows.imagined.new_ones(size),
        noise=rows.noise.new_zeros(size, 0),
    )


def _check_outcomes(data: Transitions, task: Task) -> None:
    """One outcome may have any name; several must be the same in the table and in the task."""
    table, known = data.outcome_names, task.outcome_names
    require(
        table == known or len(table) == len(known) == 1,
        f"the table's outcomes are {', '.join(table)} and the task's {', '.join(known)}; use a task with the table's",
    )
