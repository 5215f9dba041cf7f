"""Fitted Q evaluation (FQE; Le et al., 2019) of many resampled logs at once, linear in random features.

    Q_0 = 0,    Q_j(s, a) = φ(s, a)·w_j,    V_j(s) = Σ_a π(a|s)·Q_j(s, a)
    w_j = argmin_w Σ_i c_i (φ(s_i, a_i)·w − r_i − γ·(1 − terminated_i)·V_{j−1}(s'_i))² + ridge·|w|²
    φ(s, a) = (1, s, 1[a = 1], …, 1[a = A], relu(s·Ω + β + B_a)),    Ω, β, B random (Rahimi and Recht, 2007)

Q_j is the value of j steps. The row at step t of an episode is valued by Q_{H−t}, with H the length of the longest
episode: the return of the logged steps, as in trajectory-wise estimators, so that a discount of 1 is possible. Values
are clipped to what the observed rewards allow,

    high_j = max(largest reward at an end, largest reward elsewhere + γ·high_{j−1}),    low_j likewise.

A member is a table in which subject k has weight c_k. All members share the features, which do not depend on rewards,
so a backup is one weighted least-squares problem for each member. It is solved exactly: no learning rate, no target
network.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.optim import Optimizer

from counterpoint.core.artifacts import device_of, recipe_hash, tensors_hash
from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.seeding import generator
from counterpoint.core.settings import Amount, Checked, Count, checked
from counterpoint.data.far_values import near
from counterpoint.data.jobs import spread_levels
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.learners.base import action_numbers
from counterpoint.nets.learner import StackTraining
from counterpoint.nets.training import Monitor, Schedule, train
from counterpoint.ope.problem import Episodes, OPEData

UNIT_COUNTS = torch.ones(1, 1)
"""Counts in which every subject has weight 1."""
MAX_DEVIATIONS = 5.0
"""Standard deviations at which columns are clipped, so that no outlier dominates a regression."""
BLOCK = 8192
"""Rows whose features are in memory at once."""
CONSTANT_RIDGE = 1e-6
"""Share of the ridge penalty on the constant feature."""
MAX_MOMENTS = 2**24
"""Numbers of the subjects' matrices Σ φφ' in memory at once."""


@dataclass(frozen=True, eq=False)
class Critic:
    """Values of every row in every member."""

    taken: Float[Tensor, "b n"]
    """Q(s_t, a_t) of the logged action."""
    state: Float[Tensor, "b n"]
    """V(s_t) of the policy."""
    after: Float[Tensor, "b n"]
    """V(s_{t+1}) of the policy; 0 if there is no next state."""
    counts: Float[Tensor, "b subjects"] = UNIT_COUNTS
    """Weights of the subjects in each member; a single row serves all members, a single column all subjects."""


def fitted_q_evaluation(data: OPEData, critic: Critic) -> Float[Tensor, " b"]:
    """FQE estimate: mean value of the episodes' first states in every member."""
    first = critic.state[:, data.episodes.places[:, 0]]
    return mean_in_members(data.episodes, first, critic.counts)


def mean_in_members(
    episodes: Episodes, value: Float[Tensor, "b e"], counts: Float[Tensor, "_ _"]
) -> Float[Tensor, " b"]:
    """Mean of every member's values of the episodes, weighted by its counts of their subjects."""
    weight = counts.expand(len(value), episodes.subjects)[:, episodes.subject].double()
    return (weight * value.double()).sum(1) / weight.sum(1)


class CriticValues(Protocol):
    """Value functions of several members."""

    def of(self, data: OPEData, rows: Int[Tensor, " r"], members: slice) -> Float[Tensor, "3 b r"]:
        """Return Q(s, a), V(s) and V(s') of these rows."""
        ...


@dataclass(frozen=True)
class CriticRecipe(Checked, ABC):
    """Base class of critics' recipes. A member is a table in which subject k has weight counts[k]."""

    @abstractmethod
    def values(
        self, data: OPEData, counts: Float[Tensor, "b subjects"], seed: int, monitor: Monitor, device: str
    ) -> CriticValues:
        """Fit the value functions of all members."""

    @checked
    def fit(
        self,
        data: OPEData,
        counts: Float[Tensor, "b subjects"],
        seed: int = 0,
        monitor: Monitor = Monitor(),
        device: str = "cpu",
    ) -> Critic:
        """Fit a critic whose members are resampled logs."""
        rows = torch.arange(len(data.rows))
        return Critic(*self.values(data, counts, seed, monitor, device).of(data, rows, slice(None)), counts=counts)

    def first_values(
        self, data: OPEData, counts: Float[Tensor, "b subjects"], seed: int = 0, monitor: Monitor = Monitor()
    ) -> Float[Tensor, "b e"]:
        """Fit, and return the values of the episodes' first states only, which need less memory."""
        first = data.episodes.places[:, 0]
        return self.values(data, counts, seed, monitor, "cpu").of(data, first, slice(None))[1].double()

    @checked
    def cross_fit(
        self,
        data: OPEData,
        folds: Int[Tensor, " subjects"],
        seed: int = 0,
        monitor: Monitor = Monitor(),
        device: str = "cpu",
    ) -> Critic:
        """Value every row by a fit on the subjects of the other folds."""
        require(int(folds.max()) > 0, "one fold leaves nobody to learn from; deal the subjects to 2 or more")
        numbers = torch.arange(int(folds.max()) + 1)
        values = self.values(data, (folds != numbers[:, None]).double(), seed, monitor, device)
        fold_of_row = folds[subjects_of(data.rows)]
        table = torch.zeros(3, 1, len(fold_of_row))
        for fold in numbers.tolist():
            rows = (fold_of_row == fold).nonzero()[:, 0]
            table[..., rows] = values.of(data, rows, slice(fold, fold + 1))
        return Critic(*table)


def subjects_of(rows: Transitions) -> Int[Tensor, " n"]:
    """Index of every row's subject, as in counts."""
    return rows.subject.unique(return_inverse=True)[1]


@dataclass(frozen=True)
class FQE(CriticRecipe):
    """Fitted Q evaluation, linear in random features of the state and a listed action, or of state and doses."""

    hidden: Count = 256
    """Random features in addition to state columns and action indicators."""
    ridge: Amount = 1.0
    """Penalty on squared coefficients, in units of one row."""
    horizon: Count = 0
    """Horizon H, no shorter than the longest episode; 0 for the longest episode."""

    def values(
        self, data: OPEData, counts: Float[Tensor, "b subjects"], seed: int, monitor: Monitor, device: str
    ) -> "LinearValues":
        _check_inputs(data, counts)
        longest = data.episodes.places.shape[1]
        horizon = self.horizon or longest
        require(horizon >= longest, f"horizon={horizon} is shorter than an episode of {longest} steps; give as many")
        kind = RandomFeatures if isinstance(data.rows.actions, Discrete) else DoseFeatures
        features = kind(data.rows, self.hidden, seed, device_of(device))
        learner = FittedQ(data, counts, features, self.ridge, horizon)
        inputs = tensors_hash({"counts": counts, "policy": data.policy, "policy_after": data.policy_after})
        run_hash = recipe_hash(self, data.rows.fingerprint, data.discount, seed, inputs)
        train(learner, Schedule(steps=horizon, log_every=1), [seed] * len(counts), run_hash, monitor)
        return LinearValues(features, learner.coefficients, learner.low, learner.high)


@dataclass(frozen=True, eq=False)
class LinearValues:
    """Linear value functions of every member and number of remaining steps."""

    features: "RandomFeatures | DoseFeatures"
    weights: Float[Tensor, "b h d"]
    low: Float[Tensor, "b h"]
    high: Float[Tensor, "b h"]

    def of(self, data: OPEData, rows: Int[Tensor, " r"], members: slice) -> Float[Tensor, "3 b r"]:
        """Return Q(s, a), V(s) and V(s') of these rows, each for its number of remaining steps."""
        home, log = data.rows.state.device, data.rows
        continues = log.has_next & ~log.terminated
        remaining = self.weights.shape[1] - _step(data)[rows]
        values = torch.zeros(3, len(self.weights[members]), len(rows), device=home)
        for steps in remaining.unique().tolist():
            place = (remaining == steps).nonzero()[:, 0]
            here = rows[place]
            next_place = place[continues[here] & (steps > 1)]
            taken = self.features.logged(log, here)
            state = self.features.expected(log.state[here], data.policy[here])
            after = self.features.expected(log.next_state[rows[next_place]], data.policy_after[rows[next_place]])
            values[0][:, place] = self._at(steps - 1, taken, members).to(home)
            values[1][:, place] = self._at(steps - 1, state, members).to(home)
            values[2][:, next_place] = self._at(steps - 2, after, members).to(home)
        return values

    def _at(self, step: int, features: Float[Tensor, "r d"], members: slice) -> Float[Tensor, "b r"]:
        low, high = self.low[members, step, None], self.high[members, step, None]
        return (self.weights[members, step] @ features.T).clamp(low, high)


class RandomFeatures:
    """The features φ of a log's states and actions, the same for all members."""

    def __init__(self, rows: Transitions, hidden: int, seed: int, device: torch.device) -> None:
        if not isinstance(rows.actions, Discrete):
            raise CounterpointError("continuous doses have no list of actions to value; cut them with actions=Bins()")
        self.categories, self.actions, self.device = rows.schema.categories, rows.actions.count, device
        numeric = len(rows.schema.states) - len(self.categories)
        columns = spread_levels(rows.state, self.categories)
        scale, mean = torch.std_mean(columns, 0, correction=0)
        scale[scale <= 1e-8] = 1.0
        scale[numeric:] = 1.0  # Indicators of levels stay 0 or 1.
        mean[numeric:] = 0.0
        random = generator(seed, "features")
        slopes = torch.randn(columns.shape[1], hidden, generator=random)
        slopes = slopes * max(numeric + len(self.categories), 1) ** -0.5
        offsets = torch.randn(1, hidden, generator=random) + torch.randn(self.actions, hidden, generator=random)
        self.mean, self.scale, self.slopes, self.offsets = (x.to(device) for x in (mean, scale, slopes, offsets))
        self.width = 1 + columns.shape[1] + self.actions + hidden

    def logged(self, log: Transitions, rows: Int[Tensor, " r"]) -> Float[Tensor, "r d"]:
        """φ(s, a) of the logged actions of some rows."""
        return self.taken(log.state[rows], action_numbers(log)[rows])

    def taken(self, state: Float[Tensor, "n s"], action: Int[Tensor, " n"]) -> Float[Tensor, "n d"]:
        """φ(s, a) of one action for every state."""
        return self._by_block(self._taken, state, action)

    def expected(self, state: Float[Tensor, "n s"], probability: Float[Tensor, "n a"]) -> Float[Tensor, "n d"]:
        """Σ_a π(a|s)·φ(s, a), of which the state's value is a linear function."""
        return self._by_block(self._expected, state, probability)

    def _by_block(self, function: Callable[[Tensor, Tensor], Tensor], state: Tensor, action: Tensor) -> Tensor:
        features = torch.empty(len(state), self.width, device=self.device)
        blocks = zip(features.split(BLOCK), state.split(BLOCK), action.split(BLOCK), strict=True)
        for output, states, actions in blocks:
            output.copy_(function(self._standardised(states.to(self.device)), actions.to(self.device)))
        return features

    def _standardised(self, state: Float[Tensor, "n s"]) -> Float[Tensor, "n w"]:
        z = (spread_levels(state, self.categories) - self.mean) / self.scale
        return z.clamp(-MAX_DEVIATIONS, MAX_DEVIATIONS)

    def _taken(self, z: Float[Tensor, "n w"], action: Int[Tensor, " n"]) -> Float[Tensor, "n d"]:
        hidden = (z @ self.slopes + self.offsets[action]).relu()
        indicators = torch.nn.functional.one_hot(action, self.actions).to(z)
        return torch.cat([torch.ones_like(z[:, :1]), z, indicators, hidden], 1)

    def _expected(self, z: Float[Tensor, "n w"], probability: Float[Tensor, "n a"]) -> Float[Tensor, "n d"]:
        projected = z @ self.slopes
        probability = probability.to(z)
        hidden = torch.zeros_like(projected)
        for action, offset in enumerate(self.offsets):
            likely = probability[:, action].nonzero()[:, 0]
            hidden.index_add_(0, likely, (projected[likely] + offset).relu() * probability[likely, action, None])
        mass = probability.sum(1, keepdim=True)
        return torch.cat([mass, z * mass, probability, hidden], 1)


class DoseFeatures:
    """The features φ of a log's states and doses, the same for all members.

    φ(s, a) = (1, z, u, u², 1[a = 0], relu((z, u)·Ω + β)),    z and u: standardised state and doses
    """

    def __init__(self, rows: Transitions, hidden: int, seed: int, device: torch.device) -> None:
        self.categories, self.doses, self.device = rows.schema.categories, rows.action.shape[1], device
        numeric = len(rows.schema.states) - len(self.categories)
        columns = torch.cat([rows.action, spread_levels(rows.state, self.categories)], 1)
        scale, mean = torch.std_mean(near(columns), 0, correction=0)
        scale[scale <= 1e-8] = 1.0
        scale[self.doses + numeric :] = 1.0  # Indicators of levels stay 0 or 1.
        mean[self.doses + numeric :] = 0.0
        random = generator(seed, "features")
        slopes = torch.randn(columns.shape[1], hidden, generator=random)
        slopes = slopes * max(numeric + len(self.categories) + self.doses, 1) ** -0.5
        offsets = torch.randn(1, hidden, generator=random)
        self.mean, self.scale, self.slopes, self.offsets = (x.to(device) for x in (mean, scale, slopes, offsets))
        self.width = 1 + columns.shape[1] + 2 * self.doses + hidden

    def logged(self, log: Transitions, rows: Int[Tensor, " r"]) -> Float[Tensor, "r d"]:
        """φ(s, a) of the logged doses of some rows."""
        return self.expected(log.state[rows], log.action[rows])

    def expected(self, state: Float[Tensor, "n s"], drawn: Float[Tensor, "n c"]) -> Float[Tensor, "n d"]:
        """Mean φ(s, a) over doses drawn in every state, side by side."""
        features = torch.empty(len(state), self.width, device=self.device)
        blocks = zip(features.split(BLOCK), state.split(BLOCK), drawn.split(BLOCK), strict=True)
        for output, states, doses in blocks:
            parts = doses.to(self.device).split(self.doses, 1)
            spread = spread_levels(states.to(self.device), self.categories)
            output.copy_(torch.stack([self._of(spread, part) for part in parts]).mean(0))
        return features

    def _of(self, spread: Float[Tensor, "n w"], dose: Float[Tensor, "n a"]) -> Float[Tensor, "n d"]:
        x = (torch.cat([dose, spread], 1) - self.mean) / self.scale
        x = x.clamp(-MAX_DEVIATIONS, MAX_DEVIATIONS)
        none = (dose == 0).to(x)
        hidden = (x @ self.slopes + self.offsets).relu()
        return torch.cat([torch.ones_like(x[:, :1]), x, x[:, : self.doses].square(), none, hidden], 1)


class FittedQ(StackTraining):
    """Backups of all members: update j computes w_j from w_{j−1}."""

    eager_updates = sys.maxsize
    done: Tensor

    def __init__(
        self,
        data: OPEData,
        counts: Float[Tensor, "b subjects"],
        features: "RandomFeatures | DoseFeatures",
        ridge: float,
        horizon: int,
    ) -> None:
        super().__init__()
        rows, device = data.rows, features.device
        usable = (rows.terminated | rows.has_next).nonzero()[:, 0]
        log = rows[usable]
        self.discount = data.discount
        following = torch.where(log.has_next[:, None], log.next_state, log.state)
        taken = features.logged(log, torch.arange(len(log)))
        after = features.expected(following, data.policy_after[usable])
        penalty = torch.full((features.width,), ridge, dtype=torch.double, device=device)
        penalty[0] *= CONSTANT_RIDGE
        self.whitening = _whitening(taken, penalty)
        self.taken = taken @ self.whitening.float()
        self.after = after @ self.whitening.float()
        self.continues = (~log.terminated).float().to(device)[:, None]
        self.reward = log.reward.to(device)[:, None]
        self.subject = subjects_of(rows)[usable].to(device)
        self.counts = counts.float().to(device)
        self.low, self.high = return_bounds(log, self.subject, self.counts, self.discount, horizon)
        whitened_penalty = self.whitening.T @ penalty.diag() @ self.whitening
        self.factor = _cholesky_factors(self.taken, self.subject, self.counts, whitened_penalty)
        self.function = nn.Module()
        self.function.weights = nn.Parameter(torch.zeros(len(counts), horizon, features.width, device=device), False)
        self.register_buffer("done", torch.zeros((), dtype=torch.long))

    @property
    def weights(self) -> Float[Tensor, "b h d"]:
        """Coefficients of the whitened features, which a checkpoint holds."""
        return self.function.weights.detach()  # pyright: ignore[reportReturnType, reportCallIssue]

    @property
    def coefficients(self) -> Float[Tensor, "b h d"]:
        """Coefficients of the original features."""
        return (self.weights.double() @ self.whitening.T).float()

    def draw(self, member: int, random: torch.Generator, steps: int) -> dict[str, Tensor]:
        """Return a placeholder, since backups are deterministic."""
        return {"none": torch.zeros(steps, 1)}

    @torch.no_grad()
    def update(self, draw: dict[str, Tensor]) -> dict[str, Tensor]:
        step = int(self.done)
        moment = torch.zeros(len(self.counts), self.taken.shape[1], device=self.taken.device, dtype=torch.double)
        for first in range(0, len(self.taken), BLOCK):
            block = slice(first, first + BLOCK)
            target = self._target(block, step) * self.counts[:, self.subject[block]].T
            moment += (target.T @ self.taken[block]).double()
        self.weights[:, step] = torch.cholesky_solve(moment[..., None], self.factor)[..., 0].float()
        self.done += 1
        return {"coefficients": self.weights[:, step].square().sum(1)}

    def _target(self, rows: slice, step: int) -> Float[Tensor, "r b"]:
        """r + γ·(1 − terminated)·V(s') of every member."""
        if step == 0:
            return self.reward[rows].expand(-1, len(self.counts))
        value = self.after[rows] @ self.weights[:, step - 1].T
        value = value.clamp(self.low[:, step - 1], self.high[:, step - 1])
        return self.reward[rows] + self.discount * self.continues[rows] * value

    def optimizers(self) -> Sequence[Optimizer]:
        return ()

    def network(self) -> nn.Module:
        return self.function


def return_bounds(
    rows: Transitions, subject: Int[Tensor, " n"], counts: Float[Tensor, "b subjects"], discount: float, horizon: int
) -> tuple[Float[Tensor, "b h"], Float[Tensor, "b h"]]:
    """Smallest and largest return of 1, 2, …, `horizon` steps that the rewards in a member allow."""
    reward, ends = rows.reward.to(counts), rows.terminated.to(counts.device)

    def largest(values: Tensor, mask: Tensor) -> Tensor:
        unseen = torch.full_like(counts[0], -torch.inf)
        by_subject = unseen.scatter_reduce(0, subject[mask], values[mask], "amax")
        return torch.where(counts > 0, by_subject, -torch.inf).amax(1)

    bounds = []
    for sign in (-1.0, 1.0):
        end, elsewhere = largest(sign * reward, ends), largest(sign * reward, ~ends)
        bound = [torch.maximum(end, elsewhere)]
        for _ in range(horizon - 1):
            bound.append(torch.maximum(end, elsewhere + discount * bound[-1]))
        bounds.append(sign * torch.stack(bound, 1))
    return bounds[0], bounds[1]


def _whitening(features: Float[Tensor, "n d"], ridge: Float[Tensor, " d"]) -> Float[Tensor, "d d"]:
    """M with M'(Σ φφ' + ridge)M = 1; with whitened features φM, single precision is sufficient."""
    total = ridge.diag()
    for block in features.split(BLOCK):
        total += block.double().T @ block.double()
    lower = torch.linalg.cholesky(total)
    return torch.linalg.solve_triangular(lower, torch.eye(len(ridge)).to(lower), upper=False).T


def _cholesky_factors(
    features: Float[Tensor, "n d"], subject: Int[Tensor, " n"], counts: Float[Tensor, "b subjects"], penalty: Tensor
) -> Float[Tensor, "b d d"]:
    """Cholesky factor of Σ_i c_i φφ' + penalty in every member, computed from the matrix Σ φφ' of each subject."""
    width = features.shape[1]
    total = penalty.repeat(len(counts), 1, 1)
    rows_per_subject = torch.bincount(subject, minlength=counts.shape[1]).tolist()
    rows_of = torch.argsort(subject, stable=True).split(rows_per_subject)
    for subjects in torch.arange(len(rows_of)).split(max(MAX_MOMENTS // width**2, 1)):
        moments = torch.stack([features[rows_of[k]].T @ features[rows_of[k]] for k in subjects.tolist()])
        total += (counts[:, subjects.to(counts.device)] @ moments.flatten(1)).view_as(total)
    return torch.linalg.cholesky(total)


def _step(data: OPEData) -> Int[Tensor, " n"]:
    """Number of earlier steps of its episode for each row."""
    places, present = data.episodes.places, data.episodes.present
    step = places.new_zeros(len(data.rows))
    step[places[present]] = torch.arange(places.shape[1], device=places.device).expand(places.shape)[present]
    return step


def _check_inputs(data: OPEData, counts: Float[Tensor, "b subjects"]) -> None:
    rows, subjects = data.rows, data.episodes.subjects
    require(
        counts.ndim == 2 and counts.shape[1] == subjects, f"counts are not of {subjects} subjects; give one column each"
    )
    require(
        bool((counts >= 0).all()) and bool(counts.sum(1).all()), "a member's counts are negative or all 0; draw some"
    )
    require(bool((rows.terminated | rows.has_next).any()), "no row ends or has a next state; keep what followed")
    for name in ("state", "reward"):
        invalid = (~getattr(rows, name).isfinite().view(len(rows), -1).all(1)).nonzero()
        row = int(invalid[0]) if len(invalid) else 0
        require(len(invalid) == 0, f"{name} is not finite at row {row}; fill or drop it")
    require(not bool(rows.next_state.isinf().any()), "a next state is infinite; fill it, or drop its row")
    for name in ("policy", "policy_after"):
        require(bool(getattr(data, name).isfinite().all()), f"{name} holds no finite probabilities; give some")
