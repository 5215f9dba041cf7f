"""The data of an off-policy evaluation: logged episodes, and the action probabilities of both policies in them.

A deterministic policy gives weight zero to every episode after the first action that it would not take. Instead of it,
its ε-mixture with the behaviour policy (or with a uniform policy) is evaluated.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol, TypeGuard, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.seeding import generator
from counterpoint.core.settings import Checked, Share
from counterpoint.data.schema import Schema, agree
from counterpoint.data.shapes import State
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions, lexsort
from counterpoint.models.base import CHUNK, Model, SubjectFactors
from counterpoint.policies.base import Policy
from counterpoint.policies.personal import PersonalPolicy

DRAWS = 32
"""Sampled subject factors from which the action probabilities of a posterior-sampling policy are counted."""
SUM_TOLERANCE = 1e-4
"""Largest distance of a sum of probabilities from 1."""

Probabilities = Float[Tensor, "n a"]


@dataclass(frozen=True, eq=False)
class Episodes:
    """Complete episodes of real rows, in the order of their steps."""

    rows: Transitions
    places: Int[Tensor, "e t"]
    """Row numbers by episode and step; −1 after the end of an episode."""
    length: Int[Tensor, " e"]

    @classmethod
    def of(cls, rows: Transitions) -> "Episodes":
        """Group the rows of a table; refuse imagined rows and episodes with missing steps."""
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
        """Mask of the steps that an episode has."""
        return self.places >= 0

    @cached_property
    def subject(self) -> Int[Tensor, " e"]:
        """Index of each episode's subject among the subjects with rows in the table."""
        return self.rows.subject[self.places[:, 0]].unique(return_inverse=True)[1]

    @property
    def subjects(self) -> int:
        """Number of subjects with rows in the table."""
        return int(self.subject.max()) + 1

    def table(self, column: Float[Tensor, "n *w"]) -> Float[Tensor, "e t *w"]:
        """Arrange a column of the rows by episode and step, with 0 after the end."""
        values = column[self.places.clamp(min=0)]
        return values * self.present.view(*self.places.shape, *[1] * (column.ndim - 1))

    def returns(self, discount: float) -> Float[Tensor, " e"]:
        """Logged discounted returns."""
        reward = self.table(self.rows.reward)
        return (reward * discount ** torch.arange(reward.shape[1])).sum(1)


@dataclass(frozen=True, eq=False)
class OPEData:
    """Input of every estimator: logged episodes with the action probabilities of evaluated and behaviour policy."""

    episodes: Episodes
    policy: Float[Tensor, "n a"]
    """π(·|s): the evaluated policy in every row's state."""
    policy_after: Float[Tensor, "n a"]
    """π(·|s′): the same in the next state; 0 where there is none."""
    behaviour: Float[Tensor, "n _"]
    """μ(·|s): the behaviour policy in every row's state."""
    discount: float = 1.0
    ratios: Float[Tensor, " n"] | None = None
    """Density ratio of every logged dose, where doses are continuous: then `policy` and `policy_after` hold doses drawn
    from the evaluated policy, side by side, and `behaviour` has no columns."""
    drawn_ratio: float = 1.0
    """Mean density ratio of the policy's own doses, E_π ρ = E_μ ρ²; large where no logged dose is like them."""

    @property
    def rows(self) -> Transitions:
        return self.episodes.rows

    @cached_property
    def ratio(self) -> Float[Tensor, "e t"]:
        """Importance ratio π(a|s)/μ(a|s) of every logged action; 1 after the end of an episode."""
        if self.ratios is not None:
            ratio = self.ratios
        else:
            taken = self.rows.action_index[:, None]
            ratio = self.policy.gather(1, taken)[:, 0] / self.behaviour.gather(1, taken)[:, 0]
        return torch.where(self.episodes.present, self.episodes.table(ratio), 1.0)

    @cached_property
    def weight(self) -> Float[Tensor, "e t"]:
        """Cumulative product of the ratios up to each step."""
        return self.ratio.double().cumprod(1)


def resampled(subjects: int, draws: int, seed: int) -> Float[Tensor, "b subjects"]:
    """Bootstrap counts: how often each subject is drawn in `draws` samples with replacement."""
    drawn = torch.randint(subjects, (draws, subjects), generator=generator(seed, "subjects drawn again"))
    counts = torch.zeros(draws, subjects, dtype=torch.double)
    return counts.scatter_add_(1, drawn, torch.ones_like(counts))


@runtime_checkable
class StochasticPolicy(Protocol):
    """A policy with known action probabilities, for example a known behaviour policy."""

    @property
    def schema(self) -> Schema: ...

    def probabilities(self, state: State) -> Probabilities:
        """Return the probability of every action in each state."""
        ...


def draws_actions(policy: Policy | StochasticPolicy) -> TypeGuard[StochasticPolicy]:
    """Whether a policy acts by its probabilities; one that knows some and acts by the largest is deterministic."""
    return isinstance(policy, StochasticPolicy) and bool(getattr(policy, "stochastic", True))


@dataclass(frozen=True)
class EpsilonMixture(Checked):
    """ε-mixture (1 − ε)·π + ε·μ that is evaluated in place of a deterministic policy π."""

    share: Share = 0.01
    """ε; 0 evaluates the policy itself."""
    towards: Literal["behaviour", "uniform"] = "behaviour"
    """μ: the behaviour policy, or a uniform choice of all actions."""

    def __str__(self) -> str:
        if not self.share:
            return "no mixture"
        other = "the behaviour policy" if self.towards == "behaviour" else "a uniformly random policy"
        return f"{self.share:.0%} mixture with {other}"

    def __call__(self, policy: Probabilities, behaviour: Probabilities) -> Probabilities:
        other = behaviour.to(policy) if self.towards == "behaviour" else torch.full_like(policy, 1 / policy.shape[1])
        return (1 - self.share) * policy + self.share * other


@dataclass(frozen=True, eq=False)
class TargetPolicy:
    """Action probabilities of the evaluated policy in the rows of a log."""

    now: Probabilities
    """In each row's state."""
    after: Probabilities
    """In the next state; 0 where there is none."""
    deterministic: bool

    def mixed(self, mixture: EpsilonMixture, rows: Transitions, behaviour: Probabilities) -> "TargetPolicy":
        """Mix a deterministic policy with the behaviour policy; return a stochastic one unchanged.

        In a next state that no later row of the episode starts from, the behaviour probabilities of the row are used.
        """
        if not self.deterministic or not mixture.share:
            return self
        following, same_episode = following_rows(rows)
        behaviour_after = behaviour[torch.where(same_episode, following, torch.arange(len(rows)))]
        now = mixture(self.now, behaviour)
        after = mixture(self.after, behaviour_after) * rows.has_next[:, None]
        return TargetPolicy(now, after, self.deterministic)


def discrete_actions(rows: Transitions) -> Discrete:
    """Return the log's action space; refuse continuous doses, which have no weights or tabulated values."""
    if not isinstance(rows.actions, Discrete):
        raise CounterpointError(
            "the doses are continuous, so action probabilities cannot be counted; read the table with the doses cut"
            " (--bins 5), or evaluate the policy inside a model alone (an SCM and a task)"
        )
    require(bool((rows.action_index >= 0).all()), "the log has actions outside the action space; correct the rows")
    return rows.actions


@torch.no_grad()
def target(
    policy: Policy | StochasticPolicy, rows: Transitions, model: Model | None = None, seed: int = 0
) -> TargetPolicy:
    """Compute the policy's action probabilities in every row of complete episodes.

    A personal policy infers the subject's factor from the earlier rows only. `model` infers the factors for another
    policy that is conditioned on them.
    """
    agree(policy.schema, rows.schema, "policy", "table")
    actions = discrete_actions(rows)
    has_next = rows.has_next
    if draws_actions(policy):
        now = _checked_probabilities(policy, rows.state, actions)
        after = _checked_probabilities(policy, rows.next_state[has_next], actions)
        return TargetPolicy(now, _scatter(has_next, after), False)
    assert isinstance(policy, Policy)
    samples_posterior = isinstance(policy, PersonalPolicy) and policy.recipe.posterior_sampling
    draws = DRAWS if samples_posterior else 1
    act, act_after = _action_functions(policy, rows, model, seed)
    now = _action_frequencies(act, rows.state, draws, actions)
    after = _action_frequencies(act_after, rows.next_state[has_next], draws, actions)
    return TargetPolicy(now, _scatter(has_next, after), not samples_posterior)


@torch.no_grad()
def policy_actions(
    policy: Policy | StochasticPolicy, rows: Transitions, model: Model | None = None, seed: int = 0
) -> tuple[Float[Tensor, "n a"], Float[Tensor, "n a"]]:
    """Compute the policy's action in every row's state and in the next one; 0 where there is none.

    Subject factors are inferred as in `target`.
    """
    if not isinstance(policy, Policy):
        raise CounterpointError("a policy of probabilities has no doses; evaluate it on a list of actions")
    has_next = rows.has_next
    act, act_after = _action_functions(policy, rows, model, seed)
    now, after = (
        torch.cat([function(part, slice(first, first + len(part))) for first, part in _chunks(states)]).to(rows.state)
        for function, states in ((act, rows.state), (act_after, rows.next_state[has_next]))
    )
    return now, _scatter(has_next, after)


def _chunks(states: Float[Tensor, "m s"]) -> list[tuple[int, Float[Tensor, "c s"]]]:
    """States in chunks, each with the place of its first one; one empty chunk of no states."""
    return [(first, states[first : first + CHUNK]) for first in range(0, max(len(states), 1), CHUNK)]


def _action_functions(
    policy: Policy, rows: Transitions, model: Model | None, seed: int
) -> "tuple[ActionFunction, ActionFunction]":
    """The policy's actions in the states of the rows, and in the next states of those that have one."""
    random = generator(seed, "exploring")
    factors = factors_after = None
    if isinstance(policy, PersonalPolicy) or policy.factor_width > 0:
        factors, updated = factors_in_rows(_factor_model(policy, model), rows)
        factors_after = updated[rows.has_next]
    return _action_function(policy, factors, random), _action_function(policy, factors_after, random)


def following_rows(rows: Transitions) -> tuple[Int[Tensor, " n"], Bool[Tensor, " n"]]:
    """Return the subject's next row for every row (−1 if none), and whether it belongs to the same episode."""
    order = lexsort(rows.subject, rows.episode, rows.step)
    following = torch.full_like(order, -1)
    following[order[:-1]] = torch.where(rows.subject[order[1:]] == rows.subject[order[:-1]], order[1:], -1)
    return following, (following >= 0) & (rows.episode[following] == rows.episode)


def _checked_probabilities(policy: StochasticPolicy, state: Float[Tensor, "n s"], actions: Discrete) -> Probabilities:
    probabilities = policy.probabilities(state)
    valid = tuple(probabilities.shape) == (len(state), actions.count) and bool((probabilities >= 0).all())
    require(
        valid and bool(((probabilities.sum(1) - 1).abs() < SUM_TOLERANCE).all()),
        f"the policy's probabilities are not {actions.count} numbers from 0 on that sum to 1 for every state; correct"
        " them",
    )
    return probabilities.float()


@dataclass(frozen=True, eq=False)
class KnownFactors:
    """Inferred factors of n subjects."""

    factors: SubjectFactors
    informed: Bool[Tensor, " n"]
    """Whether they are based on at least one informative row of the subject."""

    def __getitem__(self, rows: slice | Tensor) -> "KnownFactors":
        return KnownFactors(self.factors[rows], self.informed[rows])


def _factor_model(policy: Policy, model: Model | None) -> Model:
    """Return the model that infers the subject factors for a policy."""
    if isinstance(policy, PersonalPolicy):
        return policy.model
    if model is None or model.theta_width != policy.factor_width:
        raise CounterpointError(
            "the policy is conditioned on every subject's factor, and no model that infers it is given; pass model=,"
            " the SCM that it was learned in"
        )
    return model


def factors_in_rows(model: Model, rows: Transitions) -> tuple[KnownFactors, KnownFactors]:
    """Infer the factor of every row's subject from the rows before it, and from these and the row itself."""
    before = model.factors_before(rows)
    complete = model.subject_factors(rows)[rows.subject.cpu()]
    following, _ = following_rows(rows)
    last = following < 0
    mean = torch.where(last[:, None], complete.mean, before.mean[following])
    covariance = torch.where(last[:, None, None], complete.covariance, before.covariance[following])
    informative = model.informative_rows(rows).cpu()
    count = _count_before(informative, rows)
    after = SubjectFactors(mean, covariance)
    return KnownFactors(before, count > 0), KnownFactors(after, count + informative.long() > 0)


def _count_before(flag: Bool[Tensor, " n"], rows: Transitions) -> Int[Tensor, " n"]:
    """Count the subject's earlier rows in which the flag is set."""
    order = lexsort(rows.subject, rows.episode, rows.step)
    before = flag[order].long().cumsum(0) - flag[order].long()
    first = torch.searchsorted(rows.subject[order], rows.subject[order])
    return torch.empty_like(before).scatter_(0, order, before - before[first])


ActionFunction = Callable[[Float[Tensor, "m s"], slice], Float[Tensor, "m a"]]
"""The policy's actions in some states, and the places of these states among all."""


def _action_function(policy: Policy, factors: KnownFactors | None, random: torch.Generator) -> ActionFunction:
    def act(state: Float[Tensor, "m s"], places: slice) -> Float[Tensor, "m a"]:
        if factors is None:
            return policy(state, random)
        subject = factors[places]
        if isinstance(policy, PersonalPolicy):
            return policy.act_with_posterior(state, subject.factors, subject.informed, random)
        return policy.actor()(state[None].to(policy.device), subject.factors.mean[None].to(policy.device))[0]

    return act


def _action_frequencies(
    act: ActionFunction, state: Float[Tensor, "m s"], draws: int, actions: Discrete
) -> Float[Tensor, "m a"]:
    """Share of the draws in which the policy takes each action."""
    total = torch.zeros(len(state), actions.count)
    for _ in range(draws):
        for first in range(0, len(state), CHUNK):
            places = slice(first, first + CHUNK)
            chosen = actions.index(act(state[places], places).to(state))
            total[places].scatter_add_(1, chosen[:, None], torch.full((len(chosen), 1), 1 / draws))
    return total


def _scatter(mask: Bool[Tensor, " n"], probabilities: Float[Tensor, "m a"]) -> Probabilities:
    """Put probabilities into the rows of a mask; the other rows are 0."""
    return probabilities.new_zeros(len(mask), probabilities.shape[1]).masked_scatter_(mask[:, None], probabilities)
