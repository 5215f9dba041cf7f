"""States of categories alone: whoever logged and what followed are counted, cell by cell, and shrunk where few tell.

    μ(a|s) = (n_sa + κ·n_a/n) / (n_s + κ)
    Q(s, a) = (Σ_{s,a} y + κ_a·M(s)) / (n_sa + κ_a),  M(s) = (Σ_s y + κ_s·mean y) / (n_s + κ_s),  y = r + γ·V(s')

An action that was never taken in a state is thus worth what others led to there, and a state seen once little else than
the mean. V(s) = Σ_a π(a|s)·Q(s, a) is the fixed point, found by sweeps over all resampled logs at once.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.settings import Amount, Positive, checked
from counterpoint.data.schema import Schema
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.nets.training import Monitor
from counterpoint.ope.behaviour import Behaviour, BehaviourModel
from counterpoint.ope.fqe import CriticRecipe, subjects_of
from counterpoint.ope.problem import Question
from counterpoint.policies.base import action_numbers

CLOSE = 1e-4
"""Sweeps end where no value changes by more than this share of the largest reward."""


def all_categories(schema: Schema) -> bool:
    """Whether states are categories alone, so that equal states can be counted."""
    return len(schema.categories) == len(schema.states)


@dataclass(frozen=True, kw_only=True)
class CellCounts(BehaviourModel):
    """Shares of actions among all logged rows of the same state."""

    prior: Amount = 1.0
    """κ: so many rows, with actions as in the whole log, are added to every state."""

    def estimated(self, seen: Transitions, asked: Transitions, seed: int) -> Float[Tensor, "n a"]:
        cells = _numbered(seen.schema, seen.state, asked.state)
        own, others = cells[: len(seen)], cells[len(seen) :]
        if not isinstance(seen.actions, Discrete):
            raise CounterpointError("doses are continuous, and only equal actions can be counted; cut them with Bins()")
        counts = torch.zeros(int(cells.max()) + 1, seen.actions.count).index_put_(
            (own, action_numbers(seen)), torch.ones(()), accumulate=True
        )
        added = self.prior * counts.sum(0) / counts.sum()
        return ((counts + added) / (counts.sum(1, keepdim=True) + self.prior))[others]

    @checked
    def cross_fit(self, rows: Transitions, folds: Positive = 5, seed: int = 0) -> Behaviour:
        """Every row by all rows, its own among them, whatever the folds.

        Ratios to shares counted in the very log vary less than ratios to the true probabilities (Hanna et al., 2019);
        to the shares of other subjects they vary without bounds, since what was done once nobody else did.
        """
        return Behaviour.known(self.estimated(rows, rows, seed), rows)


@dataclass(frozen=True)
class CellFQE(CriticRecipe):
    """Fitted Q evaluation by counting. Assumes that the policy acts on the state alone."""

    action_prior: Amount = 1.0
    """κ_a: so many rows of the state, whatever was done in them, are added to every action."""
    state_prior: Amount = 0.3
    """κ_s: so many rows of the whole log are added to every state."""
    sweeps: Positive = 1000
    """Most steps ahead that count."""

    def values(
        self, question: Question, counts: Float[Tensor, "b subjects"], seed: int, monitor: Monitor, device: str
    ) -> "CellValues":
        """Nothing is left to chance, and all is done on the CPU."""
        return CellValues(self._values(question, counts))

    def _values(self, question: Question, counts: Float[Tensor, "b subjects"]) -> Float[Tensor, "3 b n"]:
        """Q(s, a), V(s) and V(s') of every row in every member."""
        log = _Log(question)
        weight = counts.float().numpy().T[log.subject]
        pair, state = log.by_pair @ weight + self.action_prior, log.by_state @ weight + self.state_prior
        known = log.policy_of_pair[:, None]
        rest = log.mass[:, None] - log.pair_to_state @ (known * (1 - self.action_prior / pair))
        share = weight * ((known / pair)[log.pair] + (rest / state)[log.state])
        value = np.zeros_like(rest)
        for _ in range(self.sweeps):
            target = log.target(value)
            mean = (weight * target).sum(0) / weight.sum(0)
            before, value = value, log.by_state @ (share * target) + rest * self.state_prior / state * mean
            if np.abs(value - before).max(initial=0.0) <= CLOSE * log.scale:
                break
        target = weight * log.target(value)
        shrunk = (log.by_state @ target + self.state_prior * target.sum(0) / weight.sum(0)) / state
        taken = ((log.by_pair @ target)[log.pair] + self.action_prior * shrunk[log.state]) / pair[log.pair]
        after = log.goes_on * value[log.next]
        return torch.from_numpy(np.stack([taken, value[log.state], after]).transpose(0, 2, 1).copy())


@dataclass(frozen=True, eq=False)
class CellValues:
    """Q(s, a), V(s) and V(s') of every row in every member."""

    found: Float[Tensor, "3 b n"]

    def of(self, question: Question, rows: Int[Tensor, " r"], members: slice) -> Float[Tensor, "3 b r"]:
        return self.found[:, members, rows]


class _Log:
    """Rows as cells, and the sums over them."""

    def __init__(self, question: Question) -> None:
        rows, self.discount = question.rows, question.discount
        require(bool(rows.state.isfinite().all()), "the log has states that are not finite; fill them")
        following = rows.has_next & ~rows.terminated
        after = torch.where(following[:, None], rows.next_state, rows.state)
        cells = _numbered(rows.schema, rows.state, after)
        state, following_state = cells.view(2, -1)
        actions = question.policy.shape[1]
        pairs, pair = (state * actions + action_numbers(rows)).unique(return_inverse=True)
        self.state, self.next, self.pair = state.numpy(), following_state.numpy(), pair.numpy()
        self.subject = subjects_of(rows).numpy()
        self.reward, self.goes_on = rows.reward.numpy()[:, None], following.float().numpy()[:, None]
        policy = _of_cells(cells, torch.cat([question.policy, question.policy_after]), following)
        self.policy_of_pair, self.mass = policy.flatten()[pairs].numpy(), policy.sum(1).numpy()
        self.pair_state, self.cells = (pairs // actions).numpy(), len(policy)

    @cached_property
    def by_state(self) -> Any:
        return _summing(self.state, self.cells)

    @cached_property
    def by_pair(self) -> Any:
        return _summing(self.pair, len(self.pair_state))

    @cached_property
    def pair_to_state(self) -> Any:
        return _summing(self.pair_state, self.cells)

    @property
    def scale(self) -> float:
        return float(np.abs(self.reward).max())

    def target(self, value: Float[np.ndarray, "s b"]) -> Float[np.ndarray, "n b"]:
        """r + γ·V(s')."""
        return self.reward + self.discount * self.goes_on * value[self.next]


def _numbered(schema: Schema, *states: Float[Tensor, "_ s"]) -> Int[Tensor, " n"]:
    """A number for every state, the same for equal ones."""
    require(all_categories(schema), "a state column is no category, and only equal states can be counted; bin it")
    return torch.cat(states).unique(dim=0, return_inverse=True)[1]


def _of_cells(cells: Int[Tensor, " m"], policy: Float[Tensor, "m a"], following: Tensor) -> Float[Tensor, "s a"]:
    """The policy in every cell: its mean over the rows that are, or lead, there."""
    there = torch.cat([torch.ones_like(following), following]).float()
    total = torch.zeros(int(cells.max()) + 1, policy.shape[1]).index_add_(0, cells, policy.float() * there[:, None])
    return total / torch.zeros(len(total)).index_add_(0, cells, there)[:, None]


def _summing(group: Int[np.ndarray, " n"], groups: int) -> Any:
    """The matrix that sums rows by group."""
    from scipy.sparse import csr_array

    ones = np.ones(len(group), np.float32)
    return csr_array((ones, (group, np.arange(len(group)))), shape=(groups, len(group)))
