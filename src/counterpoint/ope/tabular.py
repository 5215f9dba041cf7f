"""Behaviour policy and critic for states that are categories only: counts for each state, shrunk towards the mean.

    μ(a|s) = (n_sa + κ·n_a/n) / (n_s + κ)
    Q(s, a) = (Σ_{s,a} y + κ_a·M(s)) / (n_sa + κ_a),  M(s) = (Σ_s y + κ_s·mean y) / (n_s + κ_s),  y = r + γ·V(s')

An action that was never taken in a state has the mean value of the others there; a state seen once has about the
overall mean. V(s) = Σ_a π(a|s)·Q(s, a) is the fixed point, computed by sweeps over all resampled logs at once.
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
from counterpoint.learners.base import action_numbers
from counterpoint.nets.training import Monitor
from counterpoint.ope.behaviour import Behaviour, BehaviourModel
from counterpoint.ope.fqe import CriticRecipe, subjects_of
from counterpoint.ope.problem import OPEData

TOLERANCE = 1e-4
"""Sweeps stop when no value changes by more than this share of the largest reward."""


def all_categories(schema: Schema) -> bool:
    """Whether all state columns are categories, so that equal states can be counted."""
    return len(schema.categories) == len(schema.states)


@dataclass(frozen=True, kw_only=True)
class TabularBehaviour(BehaviourModel):
    """Shares of actions among all logged rows with the same state."""

    prior: Amount = 1.0
    """κ: weight, in rows, of the action shares of the whole log in every state."""

    def predict(self, train: Transitions, test: Transitions, seed: int) -> Float[Tensor, "n a"]:
        cells = _number_states(train.schema, train.state, test.state)
        train_cells, test_cells = cells[: len(train)], cells[len(train) :]
        if not isinstance(train.actions, Discrete):
            raise CounterpointError("doses are continuous, and only equal actions can be counted; cut them with Bins()")
        counts = torch.zeros(int(cells.max()) + 1, train.actions.count).index_put_(
            (train_cells, action_numbers(train)), torch.ones(()), accumulate=True
        )
        added = self.prior * counts.sum(0) / counts.sum()
        return ((counts + added) / (counts.sum(1, keepdim=True) + self.prior))[test_cells]

    @checked
    def cross_fit(self, rows: Transitions, folds: Positive = 5, seed: int = 0) -> Behaviour:
        """Estimate every row's probabilities from all rows, including its own; `folds` are not used.

        Ratios to shares counted in the same log have a smaller variance than ratios to the true probabilities (Hanna
        et al., 2019). Shares of other subjects would give unbounded ratios for actions that one subject received.
        """
        return Behaviour.of_probabilities(self.predict(rows, rows, seed), rows)


@dataclass(frozen=True)
class TabularFQE(CriticRecipe):
    """Fitted Q evaluation by counting. Assumes that the policy acts on the state alone."""

    action_prior: Amount = 1.0
    """κ_a: weight, in rows, of the state's mean in every action."""
    state_prior: Amount = 0.3
    """κ_s: weight, in rows, of the log's mean in every state."""
    sweeps: Positive = 1000
    """Largest number of sweeps, which is the horizon."""

    def values(
        self, data: OPEData, counts: Float[Tensor, "b subjects"], seed: int, monitor: Monitor, device: str
    ) -> "TabularValues":
        """Compute the values on the CPU; the result does not depend on `seed`."""
        return TabularValues(self._values(data, counts))

    def _values(self, data: OPEData, counts: Float[Tensor, "b subjects"]) -> Float[Tensor, "3 b n"]:
        """Q(s, a), V(s) and V(s') of every row in every member."""
        log = _CountedLog(data)
        weight = counts.float().numpy().T[log.subject]
        pair_weight = log.by_pair @ weight + self.action_prior
        state_weight = log.by_state @ weight + self.state_prior
        policy = log.policy_of_pair[:, None]
        rest = log.mass[:, None] - log.pair_to_state @ (policy * (1 - self.action_prior / pair_weight))
        share = weight * ((policy / pair_weight)[log.pair] + (rest / state_weight)[log.state])
        value = np.zeros_like(rest)
        for _ in range(self.sweeps):
            target = log.target(value)
            mean = (weight * target).sum(0) / weight.sum(0)
            previous = value
            value = log.by_state @ (share * target) + rest * self.state_prior / state_weight * mean
            if np.abs(value - previous).max(initial=0.0) <= TOLERANCE * log.largest_reward:
                break
        target = weight * log.target(value)
        shrunk = (log.by_state @ target + self.state_prior * target.sum(0) / weight.sum(0)) / state_weight
        taken = (log.by_pair @ target)[log.pair] + self.action_prior * shrunk[log.state]
        taken = taken / pair_weight[log.pair]
        after = log.continues * value[log.next_state]
        return torch.from_numpy(np.stack([taken, value[log.state], after]).transpose(0, 2, 1).copy())


@dataclass(frozen=True, eq=False)
class TabularValues:
    """Q(s, a), V(s) and V(s') of every row in every member."""

    table: Float[Tensor, "3 b n"]

    def of(self, data: OPEData, rows: Int[Tensor, " r"], members: slice) -> Float[Tensor, "3 b r"]:
        return self.table[:, members, rows]


class _CountedLog:
    """Rows numbered by state and by state-action pair, and the matrices that sum over these."""

    def __init__(self, data: OPEData) -> None:
        rows = data.rows
        require(bool(rows.state.isfinite().all()), "the log has states that are not finite; fill them")
        continues = rows.has_next & ~rows.terminated
        after = torch.where(continues[:, None], rows.next_state, rows.state)
        cells = _number_states(rows.schema, rows.state, after)
        state, next_state = cells.view(2, -1)
        actions = data.policy.shape[1]
        pairs, pair = (state * actions + action_numbers(rows)).unique(return_inverse=True)
        policy = _policy_in_cells(cells, torch.cat([data.policy, data.policy_after]), continues)
        self.discount = data.discount
        self.state, self.next_state, self.pair = state.numpy(), next_state.numpy(), pair.numpy()
        self.subject = subjects_of(rows).numpy()
        self.reward = rows.reward.numpy()[:, None]
        self.continues = continues.float().numpy()[:, None]
        self.policy_of_pair = policy.flatten()[pairs].numpy()
        self.mass = policy.sum(1).numpy()
        self.state_of_pair = (pairs // actions).numpy()
        self.cells = len(policy)

    @cached_property
    def by_state(self) -> Any:
        return _summing_matrix(self.state, self.cells)

    @cached_property
    def by_pair(self) -> Any:
        return _summing_matrix(self.pair, len(self.state_of_pair))

    @cached_property
    def pair_to_state(self) -> Any:
        return _summing_matrix(self.state_of_pair, self.cells)

    @property
    def largest_reward(self) -> float:
        return float(np.abs(self.reward).max())

    def target(self, value: Float[np.ndarray, "s b"]) -> Float[np.ndarray, "n b"]:
        """r + γ·V(s')."""
        return self.reward + self.discount * self.continues * value[self.next_state]


def _number_states(schema: Schema, *states: Float[Tensor, "_ s"]) -> Int[Tensor, " n"]:
    """Number all states; equal states have the same number."""
    require(all_categories(schema), "a state column is no category, and only equal states can be counted; bin it")
    return torch.cat(states).unique(dim=0, return_inverse=True)[1]


def _policy_in_cells(cells: Int[Tensor, " m"], policy: Float[Tensor, "m a"], continues: Tensor) -> Float[Tensor, "s a"]:
    """Mean action probabilities of the policy over the rows that start or end in each state."""
    there = torch.cat([torch.ones_like(continues), continues]).float()
    total = torch.zeros(int(cells.max()) + 1, policy.shape[1]).index_add_(0, cells, policy.float() * there[:, None])
    return total / torch.zeros(len(total)).index_add_(0, cells, there)[:, None]


def _summing_matrix(group: Int[np.ndarray, " n"], groups: int) -> Any:
    """Sparse matrix that sums rows by group."""
    from scipy.sparse import csr_array

    ones = np.ones(len(group), np.float32)
    return csr_array((ones, (group, np.arange(len(group)))), shape=(groups, len(group)))
