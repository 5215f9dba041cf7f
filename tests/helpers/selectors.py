"""Selectors of checkpoints made from a function, for tests."""

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from counterpoint.simulation.rollout import Actor


@dataclass(frozen=True)
class FunctionSelector:
    """Scores checkpoints by a function of the actor."""

    score: Callable[[Actor], Tensor]
    recipe: object = None
    horizon: int = 0

    def __call__(self, actor: Actor) -> Float[Tensor, " k"]:
        return self.score(actor)
