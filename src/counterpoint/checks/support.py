"""Support of an alternative action: how far it lies from every action that was taken in similar states."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from counterpoint.core.errors import require
from counterpoint.core.seeding import generator
from counterpoint.core.settings import Positive, Share, check_settings
from counterpoint.data.far_values import near
from counterpoint.data.jobs import spread_levels
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions

NEIGHBOURS = 50
"""Number of similar states whose actions are compared."""
RARE = 0.99
"""A dose is outside the support where it is farther from its neighbours' doses than 99% of the doses really taken."""

UNLIKE = 0.999
"""A state is like none where it is farther from its neighbours than 99.9% of the logged states are from theirs."""
MOST = 20_000
"""Logged rows among which similar states are looked for."""


@dataclass(frozen=True)
class Threshold:
    """How often an action must have been taken in similar logged rows to count as supported."""

    share: Share = 0.05
    """Smallest share of the similar rows."""
    rows: Positive = 3
    """Fewest similar rows: one or two may be errors of the record."""

    def __post_init__(self) -> None:
        check_settings(self)

    @classmethod
    def stated(cls, share: float | None) -> "Threshold":
        """The threshold that a user chose, a share alone; the default where none was."""
        return cls() if share is None else cls(share, 1)

    def met(self, taken: Float[Tensor, "*n"], similar: int) -> Bool[Tensor, "*n"]:
        """Whether so many of the `similar` rows are enough."""
        return (taken >= self.rows) & (taken >= self.share * similar - 1e-9)

    def __str__(self) -> str:
        return f"{self.share:.3g} of the similar logged rows, at least {self.rows} row{'s' if self.rows > 1 else ''}"


@dataclass(frozen=True)
class SupportDistances:
    """Distances, in standard deviations of the logged actions, to the nearest action taken in similar states."""

    taken: Float[Tensor, " n"]
    alternative: Float[Tensor, " n"]
    limit: float
    """A larger distance is outside the support."""

    @property
    def outside(self) -> float:
        """Share of alternative actions outside the support."""
        return float((self.alternative > self.limit).float().mean())


class SimilarRows:
    """Which logged rows are like a state, and how far a state may be from all of them before it is like none."""

    def __init__(self, logged: Transitions, neighbours: int = NEIGHBOURS, most: int = MOST, seed: int = 0) -> None:
        from sklearn.neighbors import NearestNeighbors

        real = (~logged.imagined).nonzero()[:, 0]
        require(bool(logged.state[real].isfinite().all()), "the log has states that are not finite; fill them")
        require(len(real) > 1, "the log has too few rows to look for similar states in; pass the training rows")
        picked = real[torch.randperm(len(real), generator=generator(seed, "similar"))[:most].sort().values]
        self.logged = logged[picked]
        self.spread = spread_levels(self.logged.state, logged.schema.categories)
        self.scale = _scale(self.spread)
        self.count = max(1, min(neighbours, len(self.logged) // 5))
        self.index = NearestNeighbors(n_neighbors=self.count).fit((self.spread / self.scale).double().cpu().numpy())

    @cached_property
    def limit(self) -> float:
        """Distances of the rows themselves, each without itself, of which few are larger."""
        return float(torch.from_numpy(self.index.kneighbors()[0]).mean(1).quantile(UNLIKE))

    def nearest(self, state: Float[Tensor, "n s"]) -> tuple[Int[Tensor, "n k"], Float[Tensor, " n"]]:
        """The most similar rows' places in `logged`, and their mean distance."""
        query = spread_levels(state, self.logged.schema.categories) / self.scale
        distance, places = self.index.kneighbors(query.double().cpu().numpy())
        return torch.from_numpy(places), torch.from_numpy(distance).mean(1)

    def rows(self, state: Float[Tensor, "n s"]) -> tuple[Int[Tensor, "n k"], Bool[Tensor, " n"]]:
        """The most similar rows' places in `logged`, and whether the state is like any row at all."""
        places, distance = self.nearest(state)
        return places, distance <= self.limit

    def taken(self, state: Float[Tensor, "n s"], actions: int) -> tuple[Int[Tensor, "n actions"], Bool[Tensor, " n"]]:
        """How many of the similar rows took each action of a finite space, and whether there are similar rows."""
        rows, is_similar = self.rows(state)
        return self.counted(rows, actions), is_similar

    def counted(self, rows: Int[Tensor, "n k"], actions: int) -> Int[Tensor, "n actions"]:
        """How many of these rows took each action."""
        index = self.logged.action_index.cpu()[rows].clamp(min=0)
        return torch.zeros(len(rows), actions, dtype=torch.long).scatter_add_(1, index, torch.ones_like(index))


class NearLog(nn.Module):
    """Whether steps of K jobs stay near their own log: (s, a) no farther from a logged pair than logged ones are.

    Made for every step of a simulation, so it looks at `most` pairs a job, drawn at random, by one matrix product.
    """

    pairs: Tensor
    scale: Tensor
    limit: Tensor

    def __init__(self, logs: Sequence[Transitions], seeds: Sequence[int], most: int = 512) -> None:
        super().__init__()
        tables = [_pairs(log, seed, most) for log, seed in zip(logs, seeds, strict=True)]
        self.categories = logs[0].schema.categories
        places = torch.arange(max(len(table) for table, _, _ in tables))  # A shorter log's pairs are repeated.
        pairs = torch.stack([table[places % len(table)] for table, _, _ in tables])
        self.register_buffer("pairs", pairs, persistent=False)
        self.register_buffer("scale", torch.stack([scale for _, scale, _ in tables])[:, None], persistent=False)
        self.register_buffer("limit", torch.stack([limit for _, _, limit in tables])[:, None], persistent=False)

    def outside(self, state: Float[Tensor, "k e s"], action: Float[Tensor, "k e a"]) -> Bool[Tensor, "k e"]:
        """Steps unlike all of the log."""
        pairs = torch.cat([spread_levels(state, self.categories), action], -1) / self.scale
        return torch.cdist(pairs, self.pairs).amin(-1) > self.limit


def _pairs(log: Transitions, seed: int, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logged pairs in units of their standard deviations, those units, and how far a pair is from the nearest other."""
    real = log[~log.imagined]
    pairs = torch.cat([spread_levels(real.state, real.schema.categories), real.action], 1)
    scale = _scale(pairs)
    picked = torch.randperm(len(pairs), generator=generator(seed, "near"))[:most]
    near = pairs[picked] / scale
    apart = torch.cdist(near, near).fill_diagonal_(torch.inf).amin(1)
    return near, scale, apart.quantile(RARE)


NEAR_DOSE = 0.1
"""Doses within this share of the range of the logged ones count as the same."""
TAIL = 0.05
"""Share of the logged doses at either end that does not count in that range: one large dose would widen it."""


def near_doses(
    similar: SimilarRows, state: Float[Tensor, "n s"], action: Float[Tensor, "n a"]
) -> tuple[Float[Tensor, " n"], Bool[Tensor, " n"]]:
    """Share of the similar rows in which about that dose was given, and whether there are similar rows."""
    rows, is_similar = similar.rows(state)
    doses = similar.logged.action.cpu()
    return about_as_much(doses, doses[rows], action.cpu()[:, None]).double().mean(1), is_similar


def about_as_much(
    logged: Float[Tensor, "m a"], dose: Float[Tensor, "*#n a"], other: Float[Tensor, "*#n a"]
) -> Bool[Tensor, "*n"]:
    """Whether doses are about the same, in the range of the usual `logged` ones."""
    return ((dose - other).abs() <= NEAR_DOSE * _dose_range(logged)).all(-1)


def _dose_range(doses: Float[Tensor, "n a"]) -> Float[Tensor, " a"]:
    """The range of the usual doses of each column; of all doses where the usual ones are all the same."""
    inner = doses.quantile(1 - TAIL, 0) - doses.quantile(TAIL, 0)
    whole = doses.amax(0) - doses.amin(0)
    return torch.where(inner > 0, inner, whole).clamp(min=1e-8)


def support(
    rows: Transitions, alternative: Float[Tensor, "n a"], logged: Transitions, neighbours: int = NEIGHBOURS
) -> SupportDistances:
    """Score one alternative action for each of `rows` against the `logged` rows, of which they may be a part.

    A treatment from a finite list must have been given to one of the similar states; a dose must be near one given.
    """
    similar = similar_rows(rows, logged, neighbours)
    scale = _scale(logged.action)
    doses = logged.action[similar] / scale
    taken = _nearest(rows.action / scale, doses)
    limit = 1e-4 if isinstance(logged.actions, Discrete) else float(taken.quantile(RARE))
    return SupportDistances(taken, _nearest(alternative / scale, doses), limit)


def similar_rows(rows: Transitions, logged: Transitions, neighbours: int) -> Tensor:
    """The row numbers of the most similar logged states, a row itself never among them."""
    from sklearn.neighbors import NearestNeighbors

    scale, count = _scale(logged.state), max(1, min(neighbours, len(logged) // 5))
    whole = [torch.cat([table.state, table.action, table.next_state], 1) for table in (logged, rows)]
    identity = torch.cat(whole).nan_to_num().unique(dim=0, return_inverse=True)[1]
    enough = min(len(logged), count + int(identity.bincount().max()))
    states, queries = ((table.state.double() / scale).cpu().numpy() for table in (logged, rows))
    places = NearestNeighbors(n_neighbors=enough).fit(states).kneighbors(queries, return_distance=False)
    nearest = torch.from_numpy(places).to(identity)
    itself = identity[nearest] == identity[len(logged) :, None]
    return nearest.gather(1, itself.int().argsort(stable=True)[:, :count])


def _nearest(action: Float[Tensor, "n a"], doses: Float[Tensor, "n k a"]) -> Float[Tensor, " n"]:
    return (action[:, None] - doses).norm(dim=-1).amin(1)


def _scale(values: Tensor) -> Tensor:
    deviation = near(values).std(0)
    return torch.where(deviation > 1e-8, deviation, 1.0)
