"""Support of an alternative action: how far it lies from every action that was taken in similar states."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions

NEIGHBOURS = 50
"""Similar states that are asked which actions were taken there."""
RARE = 0.99
"""A dose is outside the support where it is farther from its neighbours' doses than 99% of the doses really taken."""


@dataclass(frozen=True)
class Support:
    """Distances, in standard deviations of the logged actions, to the nearest action taken in similar states."""

    taken: Float[Tensor, " n"]
    alternative: Float[Tensor, " n"]
    limit: float
    """A larger distance is outside the support."""

    @property
    def outside(self) -> float:
        """Share of alternative actions outside the support."""
        return float((self.alternative > self.limit).float().mean())


def support(
    rows: Transitions, alternative: Float[Tensor, "n a"], logged: Transitions, neighbours: int = NEIGHBOURS
) -> Support:
    """Score one alternative action for each of `rows` against the `logged` rows, of which they may be a part.

    A treatment from a finite list must have been given to one of the similar states; a dose must be near one given.
    """
    similar = similar_rows(rows, logged, neighbours)
    scale = _scale(logged.action)
    given = logged.action[similar] / scale
    taken = _nearest(rows.action / scale, given)
    discrete = isinstance(logged.actions, Discrete)
    limit = 1e-4 if discrete else float(taken.quantile(RARE))
    return Support(taken, _nearest(alternative / scale, given), limit)


def similar_rows(rows: Transitions, logged: Transitions, neighbours: int) -> Tensor:
    """The row numbers of the most similar logged states, a row itself never among them."""
    centre, scale = logged.state.mean(0), _scale(logged.state)
    distance = torch.cdist((rows.state - centre) / scale, (logged.state - centre) / scale)
    itself = torch.cdist(_whole(rows), _whole(logged), p=float("inf")) == 0
    count = max(1, min(neighbours, len(logged) // 5))
    return distance.masked_fill(itself, float("inf")).topk(count, largest=False).indices


def _whole(rows: Transitions) -> Tensor:
    return torch.cat([rows.state, rows.action, rows.next_state], 1)


def _nearest(action: Float[Tensor, "n a"], given: Float[Tensor, "n k a"]) -> Float[Tensor, " n"]:
    return (action[:, None] - given).norm(dim=-1).amin(1)


def _scale(values: Tensor) -> Tensor:
    deviation = values.std(0)
    return torch.where(deviation > 1e-8, deviation, 1.0)
