"""Fitted Q evaluation (Le et al. 2019) of many resampled logs at once.

    Q_0 = 0,    Q_j(s, a) = φ(s, a)·w_j,    V_j(s) = Σ_a π(a|s)·Q_j(s, a)
    w_j = argmin_w Σ_i c_i (φ(s_i, a_i)·w − r_i − γ·(1 − terminated_i)·V_{j−1}(s'_i))² + ridge·|w|²

Q_j is the value of j steps, and the row at step t of an episode is valued by Q_{H−t}, H the length of the longest one:
what the policy earns in the steps that the log watches, as trajectory-wise estimators count it. A discount of 1 is as
good as any other. Values are kept inside what the rewards seen allow,

    high_j = max(largest reward at an end, largest reward elsewhere + γ·high_{j−1}),    low_j alike.

A member is a table in which subject k stands c_k times. Members share features, which know nothing of rewards, so that
a backup of all of them is one weighted least-squares problem each, solved exactly: no learning rate, no target network.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from counterpoint.core.artifacts import device_of, recipe_hash, tensors_hash
from counterpoint.core.errors import require
from counterpoint.core.settings import Amount, Count
from counterpoint.data.transitions import Transitions
from counterpoint.nets.training import Monitor, Schedule, train
from counterpoint.ope.backups import FittedQ
from counterpoint.ope.critic import CriticRecipe
from counterpoint.ope.episodes import Question
from counterpoint.ope.features import Features


@dataclass(frozen=True)
class FQE(CriticRecipe):
    """Fitted Q evaluation, linear in random features. Assumes a discrete action space."""

    hidden: Count = 256
    """Random features beside the columns and the actions themselves."""
    ridge: Amount = 1.0
    """Penalty on squared coefficients, in units of one row; it shrinks towards 0 what few rows say."""
    horizon: Count = 0
    """Steps that count, no fewer than the longest episode has; 0 for as many."""

    def values(
        self, question: Question, counts: Float[Tensor, "b subjects"], seed: int, monitor: Monitor, device: str
    ) -> "LinearValues":
        _check(question, counts)
        longest = question.episodes.places.shape[1]
        horizon = self.horizon or longest
        require(horizon >= longest, f"horizon={horizon} is shorter than an episode of {longest} steps; give as many")
        features = Features(question.rows, self.hidden, seed, device_of(device))
        learner = FittedQ(question, counts, features, self.ridge, horizon)
        known = recipe_hash(self, question.rows.fingerprint, question.discount, seed, _hash(question, counts))
        train(learner, Schedule(steps=horizon, log_every=1), [seed] * len(counts), known, monitor)
        return LinearValues(features, learner.coefficients, learner.low, learner.high)


@dataclass(frozen=True, eq=False)
class LinearValues:
    """Linear value functions of every member for every number of steps to come; member, steps − 1, feature."""

    features: Features
    weights: Float[Tensor, "b h d"]
    low: Float[Tensor, "b h"]
    high: Float[Tensor, "b h"]

    def of(self, question: Question, rows: Int[Tensor, " r"], members: slice) -> Float[Tensor, "3 b r"]:
        """Q(s, a), V(s) and V(s') of these rows, each for as many steps as are left to it."""
        home, log = question.rows.state.device, question.rows
        left = self.weights.shape[1] - _step(question)[rows]
        found = torch.zeros(3, len(self.weights[members]), len(rows), device=home)
        for steps in left.unique().tolist():
            place = (left == steps).nonzero()[:, 0]
            own, then = rows[place], place[_follows(log)[rows[place]] & (steps > 1)]
            taken = self.features.taken(log.state[own], log.action_index[own])
            state = self.features.expected(log.state[own], question.policy[own])
            after = self.features.expected(log.next_state[rows[then]], question.policy_after[rows[then]])
            found[0][:, place] = self._at(steps - 1, taken, members).to(home)
            found[1][:, place] = self._at(steps - 1, state, members).to(home)
            found[2][:, then] = self._at(steps - 2, after, members).to(home)
        return found

    def _at(self, step: int, told: Float[Tensor, "r d"], members: slice) -> Float[Tensor, "b r"]:
        low, high = self.low[members, step, None], self.high[members, step, None]
        return (self.weights[members, step] @ told.T).clamp(low, high)


def _follows(rows: Transitions) -> Bool[Tensor, " n"]:
    """Where a state is known in which the policy goes on."""
    return rows.has_next & ~rows.terminated


def _step(question: Question) -> Int[Tensor, " n"]:
    """Steps of its episode before each row."""
    places, present = question.episodes.places, question.episodes.present
    found = places.new_zeros(len(question.rows))
    found[places[present]] = torch.arange(places.shape[1], device=places.device).expand(places.shape)[present]
    return found


def _hash(question: Question, counts: Tensor) -> str:
    return tensors_hash({"counts": counts, "policy": question.policy, "policy_after": question.policy_after})


def _check(question: Question, counts: Float[Tensor, "b subjects"]) -> None:
    rows, subjects = question.rows, question.episodes.subjects
    require(
        counts.ndim == 2 and counts.shape[1] == subjects, f"counts are not of {subjects} subjects; give one column each"
    )
    require(
        bool((counts >= 0).all()) and bool(counts.sum(1).all()), "a member's counts are negative or all 0; draw some"
    )
    require(bool((rows.terminated | rows.has_next).any()), "no row ends or has a next state; keep what followed")
    for name in ("state", "reward"):
        wrong = (~getattr(rows, name).isfinite().view(len(rows), -1).all(1)).nonzero()
        require(len(wrong) == 0, f"{name} is not finite at row {int(wrong[0]) if len(wrong) else 0}; fill or drop it")
    require(not bool(rows.next_state.isinf().any()), "a next state is infinite; fill it, or drop its row")
    for name in ("policy", "policy_after"):
        require(bool(getattr(question, name).isfinite().all()), f"{name} holds no finite probabilities; give some")
