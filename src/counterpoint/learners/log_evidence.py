"""What a log says of a small change of practice, without a model of the dynamics: first-order gains.

By the performance difference lemma (Kakade and Langford 2002), the value of a policy π' near the behaviour policy π is

    V(π') − V(π)  ≈  E_log[ Σ_t Σ_a (π'(a|s_t) − π(a|s_t))·Q(s_t, a) ]

with states as they are in the log. For listed actions the estimate is doubly robust: a ridge regression Q̂ of the
logged reward to go, cross-fitted by subject, corrected by (π'(a_t) − π(a_t)) / π(a_t)·(G_t − Q̂(s_t, a_t)). For doses
the question is the sign: whether the reward to go rises where more was given than expected in the direction d' − d,

    γ = Σ_t w_t·G̃_t / Σ_t w_t²,     w_t = Σ_j (d'_j − d_j)(s_t)·ã_tj / var ã_j,

ã and G̃ being what cross-fitted regressions on the state leave of the logged doses and of the reward to go. Intervals
are over subjects. Both need that the state holds every common cause of actions and rewards.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.core.seeding import derive
from counterpoint.data.far_values import near
from counterpoint.data.jobs import spread_levels
from counterpoint.data.returns import logged_returns, possible_returns
from counterpoint.data.transitions import Transitions, subject_folds

STEPS = 24
"""Steps over which the reward to go is summed."""
FOLDS = 5
RIDGE = 1e-2
"""Ridge penalty a row, for standardised columns."""
LEAST = 0.02
"""Least probability that a correction divides by."""
LARGEST = 5.0
"""Standard deviations at which columns are clipped."""


@dataclass(frozen=True)
class Gain:
    """An estimated gain over practice and its standard error over subjects."""

    value: float
    error: float

    @property
    def deviations(self) -> float:
        """The value in standard errors; 0 where there is no error to count in."""
        return self.value / self.error if self.error > 0 else 0.0


class LogEvidence:
    """A log prepared for first-order gains; regressions on the state are fitted once."""

    def __init__(self, rows: Transitions, seed: int) -> None:
        rows = rows.real.to("cpu")
        self.rows = rows[rows.in_order()]
        subjects, self.subject = self.rows.subject.unique(return_inverse=True)
        self.subjects = len(subjects)
        folds = min(FOLDS, self.subjects)
        self.fold = subject_folds(self.subjects, folds, derive(seed, "log evidence"))[self.subject]
        columns = near(spread_levels(self.rows.state, self.rows.schema.categories))
        spread = columns.std(0, correction=0)
        z = ((columns - columns.mean(0)) / torch.where(spread > 1e-8, spread, 1.0)).clamp(-LARGEST, LARGEST)
        self.columns = z
        self.features = torch.cat([torch.ones_like(z[:, :1]), z, z.square()], 1).double()
        self.reward_to_go = _reward_to_go(self.rows).double()
        returns = logged_returns(self.rows)
        self.largest_gain = possible_returns(self.rows).high - float(returns.mean())
        """What the mean logged return is below the largest possible one."""

    def action_gain(
        self, policy: Float[Tensor, "n a"], practice: Float[Tensor, "n a"], features: Float[Tensor, "a f"]
    ) -> Float[Tensor, " subjects"]:
        """Gain of every subject if listed actions are taken with other probabilities than practice's.

        Args:
            policy: Probabilities of the policy in the states of `rows`.
            practice: Those of practice.
            features: Features of the actions.
        """
        by_action = [self._with_action(chosen.expand(len(self.rows), -1)) for chosen in features]
        taken = self.rows.action_index
        logged = self._with_action(features[taken])
        values = torch.zeros(len(self.rows), len(features), dtype=torch.double)
        for held_out in range(int(self.fold.max()) + 1):
            test = self.fold == held_out
            weights = _ridge(logged[~test], self.reward_to_go[~test])
            values[test] = torch.stack([own[test] @ weights for own in by_action], 1)
        difference = (policy - practice).double()
        residual = self.reward_to_go - values.gather(1, taken[:, None])[:, 0]
        own = practice.gather(1, taken[:, None])[:, 0].double().clamp(min=LEAST)
        ratio = difference.gather(1, taken[:, None])[:, 0] / own
        return self._by_subject((difference * values).sum(1) + ratio * residual)

    def dose_direction(self, change: Float[Tensor, "n a"]) -> Gain:
        """γ: whether rewards rise where doses exceed the expected ones in the direction of `change`."""
        residual = self.rows.action.double() - self._cross_fitted(self.rows.action.double())
        rest = self.reward_to_go - self._cross_fitted(self.reward_to_go[:, None])[:, 0]
        variance = residual.square().mean(0).clamp(min=1e-12)
        direction = (change.double() * residual / variance).sum(1)
        total = direction.square().sum().clamp(min=1e-12)
        value = (direction * rest).sum() / total
        moments = torch.zeros(self.subjects, dtype=torch.double)
        moments.index_add_(0, self.subject, direction * (rest - value * direction))
        return Gain(float(value), float(moments.square().sum().sqrt() / total))

    def _with_action(self, features: Float[Tensor, "n f"]) -> Float[Tensor, "n w"]:
        """Regressors of Q̂: the state, the action, and their products."""
        products = features[:, :, None] * self.columns[:, None]
        return torch.cat([self.features, features.double(), products.flatten(1).double()], 1)

    def _cross_fitted(self, targets: Float[Tensor, "n t"]) -> Float[Tensor, "n t"]:
        predicted = torch.zeros_like(targets)
        for held_out in range(int(self.fold.max()) + 1):
            test = self.fold == held_out
            predicted[test] = self.features[test] @ _ridge(self.features[~test], targets[~test])
        return predicted

    def _by_subject(self, values: Float[Tensor, " n"]) -> Float[Tensor, " subjects"]:
        return torch.zeros(self.subjects, dtype=values.dtype).index_add_(0, self.subject, values)


def mean_gain(gains: Float[Tensor, " subjects"]) -> Gain:
    """The mean over subjects with its standard error."""
    return Gain(float(gains.mean()), float(gains.std() / len(gains) ** 0.5) if len(gains) > 1 else 0.0)


def _ridge(x: Float[Tensor, "n w"], y: Tensor) -> Tensor:
    gram = x.T @ x
    penalty = RIDGE * len(x) * torch.eye(x.shape[1]).to(gram)
    penalty[0, 0] = 0.0
    return torch.linalg.solve(gram + penalty, x.T @ y)


def _reward_to_go(rows: Transitions) -> Float[Tensor, " n"]:
    """Sum of the rewards of a row and of the next ones of its episode, at most `STEPS` in all."""
    episode = torch.stack([rows.subject, rows.episode])
    opens = torch.ones(len(rows), dtype=torch.bool)
    opens[1:] = (episode[:, 1:] != episode[:, :-1]).any(0)
    number = opens.long().cumsum(0) - 1
    ends = torch.searchsorted(number, number, right=True)
    total = torch.cat([torch.zeros(1, dtype=torch.double), rows.reward.double().cumsum(0)])
    row: Int[Tensor, " n"] = torch.arange(len(rows))
    return (total[torch.minimum(row + STEPS, ends)] - total[row]).float()
