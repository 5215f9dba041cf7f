"""Logged episodes side by side, and the question that every off-policy estimator is asked about them.

How likely a policy takes each action in logged states, as far as it could have known the subject there.

A policy that always takes one action gives a record no weight once the record departs from it. It is therefore judged
softened, which is another policy: with probability `share` it does as whoever logged, or anything at all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.seeding import generator
from counterpoint.core.settings import Share, check_settings
from counterpoint.data.schema import Schema, agree
from counterpoint.data.shapes import State
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions, lexsort
from counterpoint.models.base import CHUNK, Model, SubjectFactors
from counterpoint.policies.base import Policy
from counterpoint.policies.personal import PersonalPolicy


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


DRAWS = 32
"""Draws of a subject's factor by which the probabilities of a policy that explores are counted."""

SUM = 1e-4
"""How far probabilities may sum from 1."""

Probabilities = Float[Tensor, "n a"]


@runtime_checkable
class Stochastic(Protocol):
    """A policy that says itself how likely it takes each action: a known behaviour, a rule with chance in it."""

    @property
    def schema(self) -> Schema: ...

    def probabilities(self, state: State) -> Probabilities:
        """The probability of every action of the space in each state."""
        ...


@dataclass(frozen=True)
class EpsilonMixture:
    """How a policy that always takes one action is judged."""

    share: Share = 0.01
    """Probability of doing something else; 0 judges the policy as it is."""
    towards: Literal["behaviour", "uniform"] = "behaviour"
    """What else: as whoever logged, or any action alike."""

    def __post_init__(self) -> None:
        check_settings(self)

    def __str__(self) -> str:
        other = "as whoever logged" if self.towards == "behaviour" else "any action alike"
        return f"in {self.share:.0%} of the steps {other}" if self.share else "not softened"

    def __call__(self, policy: Probabilities, behaviour: Probabilities) -> Probabilities:
        other = behaviour.to(policy) if self.towards == "behaviour" else torch.full_like(policy, 1 / policy.shape[1])
        return (1 - self.share) * policy + self.share * other


@dataclass(frozen=True, eq=False)
class TargetPolicy:
    """A policy in the rows of a log."""

    now: Probabilities
    """Its probability of every action in each row's state."""
    after: Probabilities
    """The same in the next state; 0 where none follows."""
    certain: bool
    """Whether it always takes one action."""

    def softened(self, how: EpsilonMixture, rows: Transitions, behaviour: Probabilities) -> "TargetPolicy":
        """The policy that is judged in its place; one with chances of its own is judged as it is.

        Where a record stops, nobody was seen to act in the next state: there the behaviour is taken to be as before.
        """
        if not self.certain or not how.share:
            return self
        following, goes_on = following_rows(rows)
        then = behaviour[torch.where(goes_on, following, torch.arange(len(rows)))]
        return TargetPolicy(how(self.now, behaviour), how(self.after, then) * rows.has_next[:, None], self.certain)


def finite_actions(rows: Transitions) -> Discrete:
    """The actions of the log; weights and critics need a list of them."""
    if not isinstance(rows.actions, Discrete):
        raise CounterpointError(
            "the doses are continuous, and how likely one is taken cannot be counted; read the table with the doses cut"
            " (--bins 5), or judge the policy inside a model alone (an SCM and a task)"
        )
    require(bool((rows.action_index >= 0).all()), "the log has actions outside the action space; correct the rows")
    return rows.actions


@torch.no_grad()
def target(policy: "Policy | Stochastic", rows: Transitions, model: Model | None = None, seed: int = 0) -> TargetPolicy:
    """The policy in every row of whole records; one that knows its subject knows it by the rows before.

    `model` finds the factors for a policy that is to be told them.
    """
    agree(policy.schema, rows.schema, "policy", "table")
    actions, there = finite_actions(rows), rows.has_next
    if isinstance(policy, Stochastic):
        now, after = (_chances(policy, state, actions) for state in (rows.state, rows.next_state[there]))
        return TargetPolicy(now, _where(there, after), False)
    explores = isinstance(policy, PersonalPolicy) and policy.recipe.explores
    draws, random = DRAWS if explores else 1, generator(seed, "exploring")
    known = known_in_rows(_finder(policy, model), rows) if _knows_subjects(policy) else None
    now = _counted(_asking(policy, known and known[0], random), rows.state, draws, actions)
    then = known and known[1][there]
    after = _counted(_asking(policy, then, random), rows.next_state[there], draws, actions)
    return TargetPolicy(now, _where(there, after), not explores)


def following_rows(rows: Transitions) -> tuple[Int[Tensor, " n"], Bool[Tensor, " n"]]:
    """For every row the next row of its subject (−1 where it has none), and whether that is of the same episode."""
    order = lexsort(rows.subject, rows.episode, rows.step)
    following = torch.full_like(order, -1)
    following[order[:-1]] = torch.where(rows.subject[order[1:]] == rows.subject[order[:-1]], order[1:], -1)
    return following, (following >= 0) & (rows.episode[following] == rows.episode)


def _chances(policy: Stochastic, state: Float[Tensor, "n s"], actions: Discrete) -> Probabilities:
    """What the policy says, if it is probabilities."""
    said = policy.probabilities(state)
    right = tuple(said.shape) == (len(state), actions.count) and bool((said >= 0).all())
    require(
        right and bool(((said.sum(1) - 1).abs() < SUM).all()),
        f"the policy's probabilities are not {actions.count} numbers from 0 on that sum to 1 for every state; correct"
        " them",
    )
    return said.float()


@dataclass(frozen=True, eq=False)
class Known:
    """What is known of n subjects."""

    factors: SubjectFactors
    anything: Bool[Tensor, " n"]
    """Whether any row of the subject told something by then."""

    def __getitem__(self, rows: slice | Tensor) -> "Known":
        return Known(self.factors[rows], self.anything[rows])


def _knows_subjects(policy: Policy) -> bool:
    return isinstance(policy, PersonalPolicy) or policy.factor_width > 0


def _finder(policy: Policy, model: Model | None) -> Model:
    """Who finds the factors of subjects."""
    if isinstance(policy, PersonalPolicy):
        return policy.model
    if model is None or model.theta_width != policy.factor_width:
        raise CounterpointError(
            "the policy must be told every subject's factor, and no model that finds it is given; pass model=, the SCM"
            " that it was learned in"
        )
    return model


def known_in_rows(finder: Model, rows: Transitions) -> tuple[Known, Known]:
    """What is known of every row's subject before the row, and with it."""
    before, whole = finder.factors_before(rows), finder.subject_factors(rows)[rows.subject.cpu()]
    following, _ = following_rows(rows)
    last = following < 0
    mean = torch.where(last[:, None], whole.mean, before.mean[following])
    covariance = torch.where(last[:, None, None], whole.covariance, before.covariance[following])
    told = finder.mechanism.telling(rows).cpu()
    seen = _counted_before(told, rows)
    return Known(before, seen > 0), Known(SubjectFactors(mean, covariance), seen + told.long() > 0)


def _counted_before(flag: Bool[Tensor, " n"], rows: Transitions) -> Int[Tensor, " n"]:
    """In how many earlier rows of the subject the flag is up."""
    order = lexsort(rows.subject, rows.episode, rows.step)
    before = flag[order].long().cumsum(0) - flag[order].long()
    opens = torch.searchsorted(rows.subject[order], rows.subject[order])
    return torch.empty_like(before).scatter_(0, order, before - before[opens])


Ask = Callable[[Float[Tensor, "m s"], slice], Float[Tensor, "m a"]]
"""What the policy does in some of the states, which stand at these places."""


def _asking(policy: Policy, known: Known | None, random: torch.Generator) -> Ask:
    def ask(state: Float[Tensor, "m s"], places: slice) -> Float[Tensor, "m a"]:
        if known is None:
            return policy(state, random)
        own = known[places]
        if isinstance(policy, PersonalPolicy):
            return policy.act_knowing(state, own.factors, own.anything, random)
        return policy.actor()(state[None].to(policy.device), own.factors.mean[None].to(policy.device))[0]

    return ask


def _counted(ask: Ask, state: Float[Tensor, "m s"], draws: int, actions: Discrete) -> Float[Tensor, "m a"]:
    """How often each action is taken, of so many times asked."""
    total = torch.zeros(len(state), actions.count)
    for _ in range(draws):
        for first in range(0, len(state), CHUNK):
            places = slice(first, first + CHUNK)
            chosen = actions.index(ask(state[places], places).to(state))
            total[places].scatter_add_(1, chosen[:, None], torch.full((len(chosen), 1), 1 / draws))
    return total


def _where(there: Bool[Tensor, " n"], chances: Float[Tensor, "m a"]) -> Probabilities:
    """Probabilities of the rows that have a next state, among zeros."""
    return chances.new_zeros(len(there), chances.shape[1]).masked_scatter_(there[:, None], chances)
