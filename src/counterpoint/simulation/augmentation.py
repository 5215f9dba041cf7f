"""Augment a log with imagined rows: next states of other actions in the logged states (paper, section 3.1)."""

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
"""Rows imagined at once. Their random draws depend only on the seed and on the number of the piece, so that pieces can
be computed in any order and on any machine."""


@runtime_checkable
class Imaginer(Protocol):
    """A fitted model that predicts next states of other actions: an SCM by abduction, any other model by sampling."""

    def imagine(
        self, rows: Transitions, action: Float[Tensor, "n m a"], random: torch.Generator, theta: Tensor = ...
    ) -> Float[Tensor, "n m s"]:
        """Return next states under m other actions for every row."""
        ...

    def sample(self, state: State, action: Action, random: torch.Generator, theta: Tensor = ...) -> State:
        """Draw next states with new noise."""
        ...


@dataclass(frozen=True)
class Augmenter:
    """Generate imagined rows: uniformly drawn actions, next states from a model, rewards from the task."""

    alternatives: Positive | None = None
    """Number of imagined rows per real row; None for every other action of a discrete space."""
    fresh_noise: bool = False
    """Draw new noise instead of keeping the factual noise: an ablation that measures the benefit of counterfactuals."""

    def __post_init__(self) -> None:
        check_settings(self)

    @checked
    def imagine(
        self, data: Transitions, model: Imaginer, task: Task, seed: int = 0, theta: Theta = NO_THETA
    ) -> Transitions:
        """Return imagined rows only; `source` is the real row of each, `theta` the factors of the rows of `data`."""
        return gather(self._pieces(data, model, task, seed, theta), self._count(data))

    @checked
    def augment(
        self, data: Transitions, model: Imaginer, task: Task, seed: int = 0, theta: Theta = NO_THETA
    ) -> Transitions:
        """Return real rows, then imagined ones, without noise: `model.abduct(data[rows.source])` infers it again."""
        imagined = self._pieces(data, model, task, seed, theta)
        return gather(chain([without_noise(data)], imagined), len(data) + self._count(data))

    def _count(self, data: Transitions) -> int:
        """Return the number of rows that will be imagined."""
        rows = int((~data.imagined & data.has_next).sum())
        return rows * (self._alternatives(data.actions) if rows else 0)

    def _alternatives(self, space: ActionSpace) -> int:
        """Return the number of alternative actions per row."""
        if isinstance(space, Discrete):
            require(space.count > 1, "there is one action only, so there is no other to imagine; give a log with more")
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
        """Return the imagined rows of piece `number` of a table, whose real rows are `rows`."""
        check_task(task, rows.schema)
        if isinstance(model, Model):
            agree(model.schema, rows.schema)
        _check_outcomes(rows, task)
        piece = (number,) if number else ()
        random = generator(seed, "alternatives", *piece)
        ends = generator(seed, "ends", *piece)
        real = (~rows.imagined & rows.has_next).nonzero()[:, 0]
        sources = rows if len(real) == len(rows) else rows[real]
        action, index = self._actions(sources, random)
        next_state = self._next(sources, action, model, random, theta.expand(len(rows), -1)[real])
        uniform = torch.rand(len(next_state), generator=ends).to(next_state)
        state = sources.state.repeat_interleave(action.shape[1], 0)
        taken = action.flatten(0, 1)
        reward, outcome, next_state = task.draw_result(state, taken, next_state, uniform)
        columns = {"state": state, "action": taken, "reward": reward, "outcome": outcome, "next_state": next_state}
        return _imagined(sources, real + number * PIECE, **columns, action_index=index.flatten())

    def _next(
        self, rows: Transitions, action: Float[Tensor, "n m a"], model: Imaginer, random: torch.Generator, theta: Tensor
    ) -> State:
        """Return next states, one row for every alternative; the noise of a real row is abducted once."""
        if not self.fresh_noise:
            return model.imagine(rows, action, random, theta).flatten(0, 1)
        state, factors = (x.repeat_interleave(action.shape[1], 0) for x in (rows.state, theta))
        return model.sample(state, action.flatten(0, 1), random, factors)

    def _actions(self, rows: Transitions, random: torch.Generator) -> tuple[Float[Tensor, "n m a"], Int[Tensor, "n m"]]:
        """Draw other actions for each row; return their features and, in a finite space, their indices."""
        space = rows.actions
        if isinstance(space, Discrete):
            index = self._other_actions(rows.action_index, space, random)
            return space.features(index), index
        doses = self._doses(len(rows), space, random)
        return doses, space.index(doses.flatten(0, 1)).view(doses.shape[:2])

    def _other_actions(self, taken: Int[Tensor, " n"], space: Discrete, random: torch.Generator) -> Int[Tensor, "n m"]:
        """Draw different actions except the one taken: its index plus 1 … count−1, in random order for each row."""
        order = torch.rand(len(taken), space.count - 1, generator=random).argsort(1)
        shifts = order[:, : self._alternatives(space)].sort(1).values + 1
        return (taken[:, None] + shifts.to(taken.device)) % space.count

    def _doses(self, rows: int, space: Box, random: torch.Generator) -> Float[Tensor, "n m a"]:
        count = self._alternatives(space)
        return space.sample(rows * count, random).view(rows, count, -1)


def without_noise(rows: Transitions) -> Transitions:
    """Return the rows without the exogenous noise that a simulator recorded."""
    return replace(rows, noise=rows.noise[:, :0])


def _imagined(rows: Transitions, source: Int[Tensor, " n"], **columns: Tensor) -> Transitions:
    """Return imagined rows with these columns, equally many for each of `rows`."""
    size = len(columns["state"])
    repeated = {"source": source, **{name: getattr(rows, name) for name in ("subject", "episode", "step")}}
    return replace(
        rows,
        **columns,
        **{name: column.repeat_interleave(size // max(len(rows), 1)) for name, column in repeated.items()},
        truncated=rows.truncated.new_zeros(size),
        imagined=rows.imagined.new_ones(size),
        noise=rows.noise.new_zeros(size, 0),
    )


def _check_outcomes(data: Transitions, task: Task) -> None:
    """Refuse outcomes that differ between table and task; a single outcome may have any name."""
    logged = data.outcome_names
    expected = task.outcome_names
    require(
        logged == expected or len(logged) == len(expected) == 1,
        f"the table's outcomes are {', '.join(logged)} and the task's {', '.join(expected)};"
        " use a task with the table's",
    )
