"""Values of logged rows under a policy, and the frame of all that fits them: many resampled logs at once.

What a linear value function sees of a state and an action: columns, actions, and a hidden layer that is not learned.

φ(s, a) = (1, s, 1[a = 1], …, 1[a = A], relu(s·Ω + β + B_a)),    Ω, β, B drawn once (Rahimi & Recht 2007)


The backups of fitted Q evaluation: one weighted least-squares problem a member, all solved in one update.

Fitted Q evaluation (Le et al. 2019) of many resampled logs at once.

    Q_0 = 0,    Q_j(s, a) = φ(s, a)·w_j,    V_j(s) = Σ_a π(a|s)·Q_j(s, a)
    w_j = argmin_w Σ_i c_i (φ(s_i, a_i)·w − r_i − γ·(1 − terminated_i)·V_{j−1}(s'_i))² + ridge·|w|²

Q_j is the value of j steps, and the row at step t of an episode is valued by Q_{H−t}, H the length of the longest one:
what the policy earns in the steps that the log watches, as trajectory-wise estimators count it. A discount of 1 is as
good as any other. Values are kept inside what the rewards seen allow,

    high_j = max(largest reward at an end, largest reward elsewhere + γ·high_{j−1}),    low_j alike.

A member is a table in which subject k stands c_k times. Members share features, which know nothing of rewards, so that
a backup of all of them is one weighted least-squares problem each, solved exactly: no learning rate, no target network.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.optim import Optimizer

from counterpoint.core.artifacts import device_of, recipe_hash, tensors_hash
from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.seeding import generator
from counterpoint.core.settings import Amount, Count, check_settings, checked
from counterpoint.data.jobs import spread_levels
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.nets.learner import Learner
from counterpoint.nets.training import Monitor, Schedule, train
from counterpoint.ope.problem import Episodes, Question
from counterpoint.policies.base import action_numbers

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


FAR = 5.0
"""Standard deviations beyond which a column says nothing more: one wild value must not decide a regression."""
BLOCK = 8192
"""Rows looked at at once."""


class Features:
    """Features of a log's states and actions, the same for all members: they know the states and nothing of rewards."""

    def __init__(self, rows: Transitions, hidden: int, seed: int, device: torch.device) -> None:
        if not isinstance(rows.actions, Discrete):
            raise CounterpointError("continuous doses have no list of actions to value; cut them with actions=Bins()")
        self.categories, self.actions, self.device = rows.schema.categories, rows.actions.count, device
        plain = len(rows.schema.states) - len(self.categories)
        spread = spread_levels(rows.state, self.categories)
        scale, mean = torch.std_mean(spread, 0, correction=0)
        scale[scale <= 1e-8], scale[plain:], mean[plain:] = 1.0, 1.0, 0.0  # A level stays 0 or 1.
        random = generator(seed, "features")
        slopes = torch.randn(spread.shape[1], hidden, generator=random) * max(plain + len(self.categories), 1) ** -0.5
        offsets = torch.randn(1, hidden, generator=random) + torch.randn(self.actions, hidden, generator=random)
        self.mean, self.scale, self.slopes, self.offsets = (x.to(device) for x in (mean, scale, slopes, offsets))
        self.width = 1 + spread.shape[1] + self.actions + hidden

    def taken(self, state: Float[Tensor, "n s"], action: Int[Tensor, " n"]) -> Float[Tensor, "n d"]:
        """φ(s, a) of one action for every state."""
        return self._by_block(self._taken, state, action)

    def expected(self, state: Float[Tensor, "n s"], chance: Float[Tensor, "n a"]) -> Float[Tensor, "n d"]:
        """Σ_a π(a|s)·φ(s, a): a linear function of it is the value of the state."""
        return self._by_block(self._expected, state, chance)

    def _by_block(self, function: Callable[[Tensor, Tensor], Tensor], state: Tensor, told: Tensor) -> Tensor:
        found = torch.empty(len(state), self.width, device=self.device)
        blocks = zip(found.split(BLOCK), state.split(BLOCK), told.split(BLOCK), strict=True)
        for out, own, also in blocks:
            out.copy_(function(self._standard(own.to(self.device)), also.to(self.device)))
        return found

    def _standard(self, state: Float[Tensor, "n s"]) -> Float[Tensor, "n w"]:
        return ((spread_levels(state, self.categories) - self.mean) / self.scale).clamp(-FAR, FAR)

    def _taken(self, z: Float[Tensor, "n w"], action: Int[Tensor, " n"]) -> Float[Tensor, "n d"]:
        hidden = (z @ self.slopes + self.offsets[action]).relu()
        chosen = torch.nn.functional.one_hot(action, self.actions).to(z)
        return torch.cat([torch.ones_like(z[:, :1]), z, chosen, hidden], 1)

    def _expected(self, z: Float[Tensor, "n w"], chance: Float[Tensor, "n a"]) -> Float[Tensor, "n d"]:
        before, chance = z @ self.slopes, chance.to(z)
        hidden = torch.zeros_like(before)
        for action, offset in enumerate(self.offsets):
            likely = chance[:, action].nonzero()[:, 0]
            hidden.index_add_(0, likely, (before[likely] + offset).relu() * chance[likely, action, None])
        return torch.cat([chance.sum(1, keepdim=True), z * chance.sum(1, keepdim=True), chance, hidden], 1)


FREE = 1e-6
"""Share of the ridge that the constant bears: nothing is known beforehand of the mean."""
MOMENTS = 2**24
"""Numbers of the subjects' matrices Σ φφ' held at once."""


class FittedQ(Learner):
    """All members' backups: update j makes w_j of w_{j−1}."""

    eager_updates = sys.maxsize
    done: Tensor

    def __init__(
        self, question: Question, counts: Float[Tensor, "b subjects"], features: Features, ridge: float, horizon: int
    ) -> None:
        super().__init__()
        rows, device = question.rows, features.device
        known = (rows.terminated | rows.has_next).nonzero()[:, 0]
        log, self.discount = rows[known], question.discount
        following = torch.where(log.has_next[:, None], log.next_state, log.state)
        told = features.taken(log.state, action_numbers(log))
        after = features.expected(following, question.policy_after[known])
        penalty = torch.full((features.width,), ridge, dtype=torch.double, device=device)
        penalty[0] *= FREE
        self.mix = _whitening(told, penalty)
        self.told, self.after = told @ self.mix.float(), after @ self.mix.float()
        self.goes_on = (~log.terminated).float().to(device)[:, None]
        self.reward, self.subject = log.reward.to(device)[:, None], subjects_of(rows)[known].to(device)
        self.counts = counts.float().to(device)
        self.low, self.high = feasible(log, self.subject, self.counts, self.discount, horizon)
        self.factor = _factor(self.told, self.subject, self.counts, self.mix.T @ penalty.diag() @ self.mix)
        self.function = nn.Module()
        self.function.weights = nn.Parameter(torch.zeros(len(counts), horizon, features.width, device=device), False)
        self.register_buffer("done", torch.zeros((), dtype=torch.long))

    @property
    def weights(self) -> Float[Tensor, "b h d"]:
        """The weights of mixed features, from which training goes on."""
        return self.function.weights.detach()  # pyright: ignore[reportReturnType, reportCallIssue]

    @property
    def coefficients(self) -> Float[Tensor, "b h d"]:
        """The weights of the features as they are."""
        return (self.weights.double() @ self.mix.T).float()

    def draw(self, member: int, random: torch.Generator, steps: int) -> dict[str, Tensor]:
        """Nothing is left to chance."""
        return {"none": torch.zeros(steps, 1)}

    @torch.no_grad()
    def update(self, draw: dict[str, Tensor]) -> dict[str, Tensor]:
        step = int(self.done)
        moment = torch.zeros(len(self.counts), self.told.shape[1], device=self.told.device, dtype=torch.double)
        for block in torch.arange(len(self.told)).split(BLOCK):
            here = slice(int(block[0]), int(block[-1]) + 1)
            target = self._target(here, step) * self.counts[:, self.subject[here]].T
            moment += (target.T @ self.told[here]).double()
        self.weights[:, step] = torch.cholesky_solve(moment[..., None], self.factor)[..., 0].float()
        self.done += 1
        return {"coefficients": self.weights[:, step].square().sum(1)}

    def _target(self, rows: slice, step: int) -> Float[Tensor, "r b"]:
        """r + γ·(1 − terminated)·V(s') of every member."""
        if step == 0:
            return self.reward[rows].expand(-1, len(self.counts))
        value = self.after[rows] @ self.weights[:, step - 1].T
        value = value.clamp(self.low[:, step - 1], self.high[:, step - 1])
        return self.reward[rows] + self.discount * self.goes_on[rows] * value

    def optimizers(self) -> Sequence[Optimizer]:
        return ()

    def network(self) -> nn.Module:
        return self.function


def feasible(
    rows: Transitions, subject: Int[Tensor, " n"], counts: Float[Tensor, "b subjects"], discount: float, horizon: int
) -> tuple[Float[Tensor, "b h"], Float[Tensor, "b h"]]:
    """The least and the largest return of 1, 2, … steps that rewards seen in a member allow."""
    reward, ends = rows.reward.to(counts), rows.terminated.to(counts.device)

    def largest(values: Tensor, which: Tensor) -> Tensor:
        unseen = torch.full_like(counts[0], -torch.inf)
        own = unseen.scatter_reduce(0, subject[which], values[which], "amax")
        return torch.where(counts > 0, own, -torch.inf).amax(1)

    bounds = []
    for sign in (-1.0, 1.0):
        end, elsewhere = largest(sign * reward, ends), largest(sign * reward, ~ends)
        bound = [torch.maximum(end, elsewhere)]
        for _ in range(horizon - 1):
            bound.append(torch.maximum(end, elsewhere + discount * bound[-1]))
        bounds.append(sign * torch.stack(bound, 1))
    return bounds[0], bounds[1]


def _whitening(told: Float[Tensor, "n d"], ridge: Float[Tensor, " d"]) -> Float[Tensor, "d d"]:
    """M with M'(Σ φφ' + ridge)M = 1: of mixed features φM single precision loses nothing that counts."""
    total = ridge.diag()
    for block in told.split(BLOCK):
        total += block.double().T @ block.double()
    lower = torch.linalg.cholesky(total)
    return torch.linalg.solve_triangular(lower, torch.eye(len(ridge)).to(lower), upper=False).T


def _factor(
    told: Float[Tensor, "n d"], subject: Int[Tensor, " n"], counts: Float[Tensor, "b subjects"], penalty: Tensor
) -> Float[Tensor, "b d d"]:
    """The Cholesky factor of Σ_i c_i φφ' + penalty in every member, from the matrix of each subject."""
    width = told.shape[1]
    total = penalty.repeat(len(counts), 1, 1)
    rows = torch.bincount(subject, minlength=counts.shape[1]).tolist()
    own = torch.argsort(subject, stable=True).split(rows)
    for some in torch.arange(len(own)).split(max(MOMENTS // width**2, 1)):
        moments = torch.stack([told[own[i]].T @ told[own[i]] for i in some.tolist()])
        total += (counts[:, some.to(counts.device)] @ moments.flatten(1)).view_as(total)
    return torch.linalg.cholesky(total)


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
