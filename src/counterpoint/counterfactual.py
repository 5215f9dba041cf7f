"""From logged rows to imagined ones: other actions in the same states, answered by a model (paper, section 3.1)."""

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.data.jobs import NO_THETA
from counterpoint.data.schema import agree
from counterpoint.data.shapes import Action, State, Theta
from counterpoint.data.spaces import Box, Discrete
from counterpoint.data.transitions import Transitions, concatenate
from counterpoint.errors import CounterpointError, require
from counterpoint.model import Model
from counterpoint.seeding import generator
from counterpoint.settings import Count, check_settings
from counterpoint.tasks.base import Task, check_task


@runtime_checkable
class Imaginer(Protocol):
    """A fitted model that can say what follows another action: an SCM by abduction, any other model by drawing."""

    def imagine(
        self, rows: Transitions, action: Float[Tensor, "n m a"], random: torch.Generator, theta: Tensor = ...
    ) -> tuple[Float[Tensor, "n m s"], Float[Tensor, "n u"]]:
        """Next states under m other actions for every row, and the noise that the row's answers share."""
        ...

    def sample(self, state: State, action: Action, random: torch.Generator, theta: Tensor = ...) -> State:
        """Next states with fresh noise."""
        ...


@dataclass(frozen=True)
class Augmenter:
    """Makes imagined rows: other actions, uniform over the space, next states from a model, the rest from the task."""

    alternatives: Count = 0
    """Imagined rows a real row; 0 takes every other action of a discrete space."""
    fresh_noise: bool = False
    """Draw new noise instead of keeping the factual noise: the ablation that shows what counterfactuals buy."""

    def __post_init__(self) -> None:
        check_settings(self)

    def imagine(
        self, data: Transitions, model: Imaginer, task: Task, seed: int = 0, theta: Theta = NO_THETA
    ) -> Transitions:
        """The imagined rows alone; `source` is the row of `data` each came from, `theta` the factors of its rows."""
        check_task(task, data.schema)
        if isinstance(model, Model):
            agree(model.schema, data.schema)
        _check_outcomes(data, task)
        random = generator(seed, "alternatives")
        real = (~data.imagined & data.has_next).nonzero()[:, 0]
        factors = model.subjects(data) if isinstance(model, Model) and not theta.shape[1] else theta
        theta = factors.expand(len(data), -1)[real]
        picks = self._actions(data[real], random)
        source = real.repeat_interleave(picks.shape[1])
        rows, action = data[source], picks.flatten(0, 1)
        next_state, noise = self._next(data[real], picks, model, random, theta)
        uniform = torch.rand(len(rows), generator=generator(seed, "ends")).to(next_state)
        reward, outcome, next_state = task.conclude(rows.state, action, next_state, uniform)
        return replace(
            rows,
            action=action,
            action_index=data.actions.index(action),
            reward=reward,
            next_state=next_state,
            outcome=outcome,
            truncated=torch.zeros_like(rows.truncated),
            imagined=torch.ones_like(rows.imagined),
            source=source,
            noise=noise,
        )

    def augment(
        self, data: Transitions, model: Imaginer, task: Task, seed: int = 0, theta: Theta = NO_THETA
    ) -> Transitions:
        """Real rows, then imagined ones; the noise column speaks of imagined rows only."""
        real = replace(data, noise=data.noise[:, :0])
        return concatenate([real, self.imagine(data, model, task, seed, theta)])

    def _next(
        self, rows: Transitions, action: Float[Tensor, "n m a"], model: Imaginer, random: torch.Generator, theta: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Next states and noise, a row for every alternative; the noise of a real row is found once."""
        count = action.shape[1]
        if self.fresh_noise:
            state, factors = (x.repeat_interleave(count, 0) for x in (rows.state, theta))
            return model.sample(state, action.flatten(0, 1), random, factors), rows.noise[:, :0].repeat(count, 1)
        next_state, noise = model.imagine(rows, action, random, theta)
        return next_state.flatten(0, 1), noise.repeat_interleave(count, 0)

    def _actions(self, rows: Transitions, random: torch.Generator) -> Float[Tensor, "n m a"]:
        space = rows.actions
        if isinstance(space, Discrete):
            return space.features(self._other_actions(rows.action_index, space, random))
        return self._doses(len(rows), space, random)

    def _other_actions(self, taken: Int[Tensor, " n"], space: Discrete, random: torch.Generator) -> Int[Tensor, "n m"]:
        """Different actions, none of them the one taken: a shift by 1 … count−1, the shifts shuffled row by row."""
        others = space.count - 1
        count = min(self.alternatives or others, others)
        shifts = torch.rand(len(taken), others, generator=random).argsort(1)[:, :count].sort(1).values + 1
        return (taken[:, None] + shifts.to(taken.device)) % space.count

    def _doses(self, rows: int, space: Box, random: torch.Generator) -> Float[Tensor, "n m a"]:
        if not self.alternatives:
            raise CounterpointError(
                "a continuous action space has no list of all actions; set alternatives to 1 or more"
            )
        return space.sample(rows * self.alternatives, random).view(rows, self.alternatives, -1)


def _check_outcomes(data: Transitions, task: Task) -> None:
    """One outcome may have any name; several must be the same in the table and in the task."""
    table, known = data.outcome_names, task.outcome_names
    require(
        table == known or len(table) == len(known) == 1,
        f"the table's outcomes are {', '.join(table)} and the task's {', '.join(known)}; use a task with the table's",
    )
