"""Logged episodes side by side, and the question that every off-policy estimator is asked about them."""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from counterpoint.core.errors import require
from counterpoint.core.seeding import generator
from counterpoint.data.transitions import Transitions


@dataclass(frozen=True, eq=False)
class Episodes:
    """Whole episodes of real rows, step after step."""

    rows: Transitions
    places: Int[Tensor, "e t"]
    """Row numbers of every episode; −1 behind its end."""
    length: Int[Tensor, " e"]

    @classmethod
    def of(cls, rows: Transitions) -> "Episodes":
        """The episodes of a table; imagined rows and records with a hole are refused."""
        require(
            not bool(rows.imagined.any()), "imagined rows are no record of anybody; pass the real rows alone (.real)"
        )
        require(len(rows) > 0, "the table has no rows; pass the logged ones")
        order = rows.in_order()
        key = torch.stack([rows.subject[order], rows.episode[order]], 1)
        length = key.unique_consecutive(dim=0, return_counts=True)[1]
        same = (key[1:] == key[:-1]).all(1)
        require(
            bool((rows.step[order].diff()[same] == 1).all()),
            "an episode lacks rows in the middle, and what happened there with them; pass whole episodes",
        )
        return cls(rows, pad_sequence(list(order.split(length.tolist())), True, -1), length)

    def __len__(self) -> int:
        return len(self.places)

    @cached_property
    def present(self) -> Bool[Tensor, "e t"]:
        """Where an episode has a row."""
        return self.places >= 0

    @cached_property
    def subject(self) -> Int[Tensor, " e"]:
        """Whose episode it is: a place among the subjects that the table has rows of."""
        return self.rows.subject[self.places[:, 0]].unique(return_inverse=True)[1]

    @property
    def subjects(self) -> int:
        """Subjects that the table has rows of."""
        return int(self.subject.max()) + 1

    def table(self, column: Float[Tensor, "n *w"]) -> Float[Tensor, "e t *w"]:
        """A column of the rows, episode by episode, 0 behind the end."""
        found = column[self.places.clamp(min=0)]
        return found * self.present.view(*self.places.shape, *[1] * (column.ndim - 1))

    def returns(self, discount: float) -> Float[Tensor, " e"]:
        """What was really earned."""
        reward = self.table(self.rows.reward)
        return (reward * discount ** torch.arange(reward.shape[1])).sum(1)


@dataclass(frozen=True, eq=False)
class Question:
    """What a policy is worth: logged episodes, and how likely it and whoever logged them take each action."""

    episodes: Episodes
    policy: Float[Tensor, "n a"]
    """The policy's probability of every action in every row's state."""
    policy_after: Float[Tensor, "n a"]
    """The same in the next state; 0 where none follows."""
    behaviour: Float[Tensor, "n a"]
    """The probability that whoever logged takes it."""
    discount: float = 1.0

    @property
    def rows(self) -> Transitions:
        return self.episodes.rows

    @cached_property
    def ratio(self) -> Float[Tensor, "e t"]:
        """π(a|s)/μ(a|s) of every logged action; 1 behind the end of an episode."""
        taken = self.rows.action_index[:, None]
        ratio = self.policy.gather(1, taken)[:, 0] / self.behaviour.gather(1, taken)[:, 0]
        return torch.where(self.episodes.present, self.episodes.table(ratio), 1.0)

    @cached_property
    def weight(self) -> Float[Tensor, "e t"]:
        """The product of all ratios up to each step."""
        return self.ratio.double().cumprod(1)


def resampled(subjects: int, draws: int, seed: int) -> Float[Tensor, "b subjects"]:
    """How often every subject stands in each of `draws` tables of as many subjects, drawn with replacement."""
    drawn = torch.randint(subjects, (draws, subjects), generator=generator(seed, "subjects drawn again"))
    counts = torch.zeros(draws, subjects, dtype=torch.double)
    return counts.scatter_add_(1, drawn, torch.ones_like(counts))


def subject_folds(subjects: int, folds: int, seed: int) -> Int[Tensor, " subjects"]:
    """The fold of every subject: as many in each as in any other, but for one."""
    order = torch.randperm(subjects, generator=generator(seed, "folds of subjects"))
    return torch.empty_like(order).index_copy_(0, order, torch.arange(subjects) % folds)
