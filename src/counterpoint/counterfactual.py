"""From logged rows to imagined ones: other actions in the same states, answered by a model (paper, section 3.1)."""

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.data.spaces import Box, Discrete
from counterpoint.data.transitions import Transitions, concatenate
from counterpoint.errors import CounterpointError
from counterpoint.seeding import generator
from counterpoint.tasks.base import Task


@runtime_checkable
class Imaginer(Protocol):
    """A fitted model that can say what follows another action: an SCM by abduction, any other model by drawing."""

    def imagine(
        self, rows: Transitions, action: Float[Tensor, "n a"], random: torch.Generator
    ) -> tuple[Float[Tensor, "n s"], Float[Tensor, "n u"]]:
        """Next states and the noise that made them."""
        ...

    def sample(
        self, state: Float[Tensor, "n s"], action: Float[Tensor, "n a"], random: torch.Generator
    ) -> Float[Tensor, "n s"]:
        """Next states with fresh noise."""
        ...


@dataclass(frozen=True)
class Augmenter:
    """Makes imagined rows: other actions, uniform over the space, next states from a model, the rest from the task."""

    alternatives: int = 0
    """Imagined rows a real row; 0 takes every other action of a discrete space."""
    fresh_noise: bool = False
    """Draw new noise instead of keeping the factual noise: the ablation that shows what counterfactuals buy."""

    def imagine(self, data: Transitions, model: Imaginer, task: Task, seed: int = 0) -> Transitions:
        """The imagined rows alone; `source` is the row of `data` each came from."""
        random = generator(seed, "alternatives")
        real = (~data.imagined & data.has_next).nonzero()[:, 0]
        picks = self._actions(data[real], random)
        source = real.repeat_interleave(picks.shape[1])
        rows, action = data[source], picks.flatten(0, 1)
        next_state, noise = self._next(rows, action, model, random)
        return replace(
            rows,
            action=action,
            action_index=data.actions.index(action),
            reward=task.reward(rows.state, action, next_state),
            next_state=next_state,
            terminated=task.terminated(next_state),
            truncated=torch.zeros_like(rows.truncated),
            imagined=torch.ones_like(rows.imagined),
            source=source,
            noise=noise,
        )

    def augment(self, data: Transitions, model: Imaginer, task: Task, seed: int = 0) -> Transitions:
        """Real rows, then imagined ones; the noise column speaks of imagined rows only."""
        real = replace(data, noise=data.noise[:, :0])
        return concatenate([real, self.imagine(data, model, task, seed)])

    def _next(
        self, rows: Transitions, action: Tensor, model: Imaginer, random: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        if self.fresh_noise:
            return model.sample(rows.state, action, random), rows.noise[:, :0]
        return model.imagine(rows, action, random)

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
