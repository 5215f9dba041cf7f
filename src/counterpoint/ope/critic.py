"""Values of logged rows under a policy, and the frame of all that fits them: many resampled logs at once."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.core.errors import require
from counterpoint.core.settings import check_settings, checked
from counterpoint.data.transitions import Transitions
from counterpoint.nets.training import Monitor
from counterpoint.ope.episodes import Episodes, Question

ALL_ONCE = torch.ones(1, 1)
"""Every subject counts once."""


@dataclass(frozen=True, eq=False)
class Critic:
    """Values of every row in every member: of what was done, and of what the policy would do."""

    taken: Float[Tensor, "b n"]
    """Q(s_t, a_t)."""
    state: Float[Tensor, "b n"]
    """V(s_t) of the policy."""
    after: Float[Tensor, "b n"]
    """V(s_{t+1}) of the policy, which stands for what a record that stops does not show; 0 where nothing follows."""
    counts: Float[Tensor, "b subjects"] = ALL_ONCE
    """How often every subject stands in the member's table; one row may serve all members, one column all subjects."""


def fitted_q_evaluation(question: Question, critic: Critic) -> Float[Tensor, " b"]:
    """The mean value of the episodes' first states in every member, by how often it counts their subjects."""
    first = critic.state[:, question.episodes.places[:, 0]]
    return mean_in_members(question.episodes, first, critic.counts)


def mean_in_members(
    episodes: Episodes, value: Float[Tensor, "b e"], counts: Float[Tensor, "_ _"]
) -> Float[Tensor, " b"]:
    """The mean of every member's own values of the episodes, by how often it counts their subjects."""
    weight = counts.expand(len(value), episodes.subjects)[:, episodes.subject].double()
    return (weight * value.double()).sum(1) / weight.sum(1)


class CriticValues(Protocol):
    """Value functions of several members."""

    def of(self, question: Question, rows: Int[Tensor, " r"], members: slice) -> Float[Tensor, "3 b r"]:
        """Q(s, a), V(s) and V(s') of these rows."""
        ...


@dataclass(frozen=True)
class CriticRecipe(ABC):
    """How to fit values. A member is a table in which subject k stands counts[k] times."""

    def __post_init__(self) -> None:
        check_settings(self)

    @abstractmethod
    def values(
        self, question: Question, counts: Float[Tensor, "b subjects"], seed: int, monitor: Monitor, device: str
    ) -> CriticValues:
        """The value functions of all members."""

    @checked
    def fit(
        self,
        question: Question,
        counts: Float[Tensor, "b subjects"],
        seed: int = 0,
        monitor: Monitor = Monitor(),
        device: str = "cpu",
    ) -> Critic:
        """A critic whose members are resampled logs."""
        every = torch.arange(len(question.rows))
        return Critic(
            *self.values(question, counts, seed, monitor, device).of(question, every, slice(None)), counts=counts
        )

    def first_values(
        self, question: Question, counts: Float[Tensor, "b subjects"], seed: int = 0, monitor: Monitor = Monitor()
    ) -> Float[Tensor, "b e"]:
        """The values of the episodes' first states alone, where those of all rows would fill the memory."""
        first = question.episodes.places[:, 0]
        return self.values(question, counts, seed, monitor, "cpu").of(question, first, slice(None))[1].double()

    @checked
    def cross_fit(
        self,
        question: Question,
        folds: Int[Tensor, " subjects"],
        seed: int = 0,
        monitor: Monitor = Monitor(),
        device: str = "cpu",
    ) -> Critic:
        """One critic that values every row by a member that has seen no row of its subject; subjects come in folds."""
        require(int(folds.max()) > 0, "one fold leaves nobody to learn from; deal the subjects to 2 or more")
        apart = torch.arange(int(folds.max()) + 1)
        values = self.values(question, (folds != apart[:, None]).double(), seed, monitor, device)
        own = folds[subjects_of(question.rows)]
        found = torch.zeros(3, 1, len(own))
        for fold in apart.tolist():
            rows = (own == fold).nonzero()[:, 0]
            found[..., rows] = values.of(question, rows, slice(fold, fold + 1))
        return Critic(*found)


def subjects_of(rows: Transitions) -> Int[Tensor, " n"]:
    """Whose row it is, as counts number subjects."""
    return rows.subject.unique(return_inverse=True)[1]
