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
    limit = 1e-4 if isinstance(logged.actions, Discrete) else float(taken.quantile(RARE))
    return Support(taken, _nearest(alternative / scale, given), limit)


def similar_rows(rows: Transitions, logged: Transitions, neighbours: int) -> Tensor:
    """The row numbers of the most similar logged states, a row itself never among them."""
    from sklearn.neighbors import NearestNeighbors

    scale, count = _scale(logged.state), max(1, min(neighbours, len(logged) // 5))
    whole = [torch.cat([table.state, table.action, table.next_state], 1) for table in (logged, rows)]
    identity = torch.cat(whole).nan_to_num().unique(dim=0, return_inverse=True)[1]
    enough = min(len(logged), count + int(identity.bincount().max()))
    states, asked = ((table.state.double() / scale).cpu().numpy() for table in (logged, rows))
    found = NearestNeighbors(n_neighbors=enough).fit(states).kneighbors(asked, return_distance=False)
    nearest = torch.from_numpy(found).to(identity)
    itself = identity[nearest] == identity[len(logged) :, None]
    return nearest.gather(1, itself.int().argsort(stable=True)[:, :count])


def _nearest(action: Float[Tensor, "n a"], given: Float[Tensor, "n k a"]) -> Float[Tensor, " n"]:
    return (action[:, None] - given).norm(dim=-1).amin(1)


def _scale(values: Tensor) -> Tensor:
    deviation = values.std(0)
    return torch.where(deviation > 1e-8, deviation, 1.0)
