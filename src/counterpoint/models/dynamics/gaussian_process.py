"""Gaussian-process dynamics, the model of PILCO (Deisenroth & Rasmussen 2011), for tables of a few thousand rows.

    s'_j = s_j + w_j·x + g_j(x) + σ_j e,    g_j ~ GP(0, τ_j² exp(−½ Σ_i (x_i − x'_i)² / ℓ_ji²)),    x = (s, a, θ)

A ridge regression on x is taken out first, and the process describes what it leaves. So a column that moves linearly is
predicted as well as by a regression, far from the data the mean goes back to that regression and not to "no change",
and every column's residual has the same unit, hence one start and one range of the hyperparameters. These maximise the
exact marginal likelihood. A simulated step draws from the whole predictive law: what is not known about g counts like
noise.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import log, pi
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad as padded
from torch.optim import Optimizer

from counterpoint.core.artifacts import device_of
from counterpoint.core.errors import require
from counterpoint.core.settings import Positive, Rate, check_settings
from counterpoint.data.jobs import Job, Padded, change_table, identity, pad
from counterpoint.models.base import Mechanism, MechanismRecipe
from counterpoint.models.dynamics.base import DynamicsModel, normal
from counterpoint.nets.learner import StackTraining
from counterpoint.nets.optimizers import adam
from counterpoint.nets.stacked import Standardizer, Weights, with_weights
from counterpoint.nets.training import Monitor, Schedule, train

RIDGE = 1e-6
"""Price of the regression's squared slopes, a row: only enough for columns that repeat each other."""
LENGTHS, SIGNALS, NOISES = (0.05, 100.0), (1e-2, 1e2), (1e-2, 1e2)
"""Ranges of length scales (in standard deviations), of τ (in those of the residual) and of σ/τ.

With less noise than a hundredth of the signal, single precision does not resolve the predictive deviation.
"""
START_NOISE = 0.3
"""The first σ/τ."""
AT_ONCE = 2**22
"""Correlations with training rows that a processor computes at once."""

TRIANGLE = 256
"""Rows of a triangular matrix that are multiplied at once."""


def correlation(a: Float[Tensor, "k n c"], b: Float[Tensor, "k r c"]) -> Float[Tensor, "k n r"]:
    """exp(−½ |a − b|²) of every row with every other, by one matrix product."""
    a_half, b_half = (0.5 * x.square().sum(-1, keepdim=True) for x in (a, b))
    return torch.baddbmm(-b_half.mT, a, b.mT).sub_(a_half).clamp_(max=0.0).exp_()


def known_part(near: Float[Tensor, "k n r"], whitening: Float[Tensor, "k r r"]) -> Float[Tensor, "k n"]:
    """|L⁻¹ near|², block by block of the triangle L⁻¹, most of whose zeros are thereby left out."""
    total = torch.zeros_like(near[..., :1]).sum(-1)
    for end in range(TRIANGLE, near.shape[-1] + TRIANGLE, TRIANGLE):
        total += (near[..., :end] @ whitening[:, end - TRIANGLE : end, :end].mT).square().sum(-1)
    return total


class Kernels(nn.Module):
    """One kernel for every state column of K members; noise is kept in units of the signal."""

    def __init__(self, members: int, inputs: int, size: int) -> None:
        super().__init__()
        self.log_length = nn.Parameter(torch.full((members, size, inputs), 0.5 * log(inputs)))
        self.log_signal = nn.Parameter(torch.zeros(members, size))
        self.log_noise = nn.Parameter(torch.full((members, size), log(START_NOISE)))

    def scaled(self, x: Float[Tensor, "k n c"], column: int) -> Float[Tensor, "k n c"]:
        """Inputs in units of a column's length scales."""
        return x * torch.exp(-self.log_length[:, column, None])

    def covariance(self, x: Float[Tensor, "k r c"], mask: Float[Tensor, "k r"], column: int) -> Float[Tensor, "k r r"]:
        """That of noisy outputs, in units of the signal's variance; rows of padding are white and alone."""
        scaled, noise = self.scaled(x, column), torch.exp(2 * self.log_noise[:, column, None])
        both = mask[:, :, None] * mask[:, None]
        return correlation(scaled, scaled) * both + torch.diag_embed(noise * mask + (1 - mask))

    def loss(
        self, x: Float[Tensor, "k r c"], z: Float[Tensor, "k r"], mask: Float[Tensor, "k r"], column: int
    ) -> Float[Tensor, " k"]:
        """Minus the log marginal likelihood of a column, with the gradient ½ tr((C⁻¹ − αα'/τ²) dC) written out."""
        covariance, log_signal = self.covariance(x, mask, column), self.log_signal[:, column]
        with torch.no_grad():
            factor = torch.linalg.cholesky_ex(covariance)[0]
            inverse = torch.cholesky_inverse(factor)
            alpha = inverse @ z[..., None]
            slope = 0.5 * (inverse - alpha @ alpha.mT * torch.exp(-2 * log_signal)[:, None, None])
        half_distance = 0.5 * (z * alpha[..., 0]).sum(-1) * torch.exp(-2 * log_signal)
        half_volume = factor.diagonal(0, 1, 2).log().sum(-1) + mask.sum(-1) * (log_signal + 0.5 * log(2 * pi))
        return half_distance + half_volume + (slope * (covariance - covariance.detach())).sum((1, 2))

    @torch.no_grad()
    def bound(self) -> None:
        """Bring every hyperparameter back into its range."""
        for parameter, (low, high) in zip(self.parameters(), (LENGTHS, SIGNALS, NOISES), strict=True):
            parameter.clamp_(log(low), log(high))


class MarginalLikelihood(StackTraining):
    """The hyperparameters of K members in training, on all rows at every step."""

    eager_updates = sys.maxsize
    x: Tensor
    z: Tensor
    mask: Tensor

    def __init__(self, kernels: Kernels, x: Tensor, z: Tensor, mask: Tensor, learning_rate: float) -> None:
        super().__init__()
        self.kernels = kernels
        for name, tensor in (("x", x), ("z", z), ("mask", mask)):
            self.register_buffer(name, tensor, persistent=False)
        self.optimizer = adam(kernels.parameters(), learning_rate)

    def draw(self, member: int, random: torch.Generator, steps: int) -> dict[str, Tensor]:
        """Nothing is left to chance."""
        return {"none": torch.zeros(steps, 1)}

    def update(self, draw: dict[str, Tensor]) -> dict[str, Tensor]:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._loss(learn=True)
        self.optimizer.step()
        self.kernels.bound()
        return {"negative_log_likelihood": loss}

    def _loss(self, learn: bool) -> Float[Tensor, " k"]:
        """Minus the log marginal likelihood a row; one column after another, so that one's matrices are in memory."""
        total = torch.zeros_like(self.z[:, 0, 0])
        for column in range(self.z.shape[-1]):
            loss = self.kernels.loss(self.x, self.z[..., column], self.mask, column) / self.mask.sum(-1)
            if learn:
                loss.sum().backward()
            total += loss.detach()
        return total

    def optimizers(self) -> Sequence[Optimizer]:
        return (self.optimizer,)

    def network(self) -> nn.Module:
        return self.kernels

    @torch.no_grad()
    def score(self) -> Float[Tensor, " k"]:
        return self._loss(learn=False)


class ProcessMechanism(Mechanism):
    """s' = s + mean(x) + deviation(x)·u for K members, each with its training rows; rows of zeros count for nothing."""

    level: Tensor
    slope: Tensor
    unit: Tensor
    inputs: Tensor
    alpha: Tensor
    whitening: Tensor

    def __init__(self, members: int, context: int, size: int) -> None:
        super().__init__()
        self.members, self.context_width, self.size = members, context, size
        self.kernels, self.context = Kernels(members, context, size), Standardizer(members, context)
        self.register_buffer("level", torch.zeros(members, 1, size))
        self.register_buffer("slope", torch.zeros(members, context, size))
        self.register_buffer("unit", torch.ones(members, 1, size))
        self.register_buffer("inputs", torch.zeros(members, 0, context))
        self.register_buffer("alpha", torch.zeros(members, size, 0))
        self.register_buffer("whitening", torch.zeros(members, size, 0, 0))

    @property
    def block(self) -> int:
        return max(AT_ONCE // (self.members * max(self.inputs.shape[1], 1)), 1)

    def make_room(self, rows: int) -> None:
        """Hold so many training rows, to be filled in."""
        self.inputs = self.inputs.new_zeros(self.members, rows, self.context_width)
        self.alpha = self.alpha.new_zeros(self.members, self.size, rows)
        self.whitening = self.whitening.new_zeros(self.members, self.size, rows, rows)

    def _load_from_state_dict(self, state_dict: Weights, prefix: str, *rest: Any) -> None:
        if f"{prefix}inputs" in state_dict:
            self.make_room(state_dict[f"{prefix}inputs"].shape[1])
        super()._load_from_state_dict(state_dict, prefix, *rest)

    @torch.no_grad()
    def regress(self, rows: Padded) -> tuple[Float[Tensor, "k r c"], Float[Tensor, "k r d"], Float[Tensor, "k r"]]:
        """Standardised inputs, what a ridge regression leaves of the changes in its own unit, and which rows count."""
        inputs_of_rows, y, mask = (
            tensor.to(self.level) for tensor in (rows.columns["context"], rows.columns["y"], rows.mask())
        )
        self.context.take(*rows.moments("context"))
        self.level.copy_(rows.mean_and_spread("y")[0])
        count, held = mask.sum(-1)[:, None, None], mask[..., None]
        x, y = self.context(inputs_of_rows) * held, (y - self.level) * held
        price = RIDGE * count * torch.eye(x.shape[-1]).to(x)
        self.slope.copy_(torch.linalg.solve(x.mT @ x + price, x.mT @ y))
        left, spread = y - x @ self.slope, (y.square().sum(1, keepdim=True) / count).sqrt()
        self.unit.copy_((left.square().sum(1, keepdim=True) / count).sqrt().maximum(1e-6 * spread).clamp(min=1e-12))
        return x, left / self.unit, mask

    @torch.no_grad()
    def condition(self, x: Float[Tensor, "k r c"], z: Float[Tensor, "k r d"], mask: Float[Tensor, "k r"]) -> None:
        """Take in the training rows, under the hyperparameters as they are."""
        self.make_room(x.shape[1])
        self.inputs.copy_(x)
        whole = torch.eye(x.shape[1]).to(x)
        for column in range(self.size):
            factor = torch.linalg.cholesky(self.kernels.covariance(x, mask, column))
            whitening = torch.linalg.solve_triangular(factor, whole.expand_as(factor), upper=False)
            self.whitening[:, column] = whitening * mask[:, None]
            self.alpha[:, column] = torch.cholesky_solve(z[..., column, None], factor)[..., 0]

    def moments(self, context: Float[Tensor, "k n c"]) -> tuple[Float[Tensor, "k n d"], Float[Tensor, "k n d"]]:
        """Mean and standard deviation of the change, noise included."""
        x = self.context(context)
        columns = zip(*(self._column(x, column) for column in range(self.size)), strict=True)
        mean, deviation = (torch.stack(column, -1) for column in columns)
        return self.level + x @ self.slope + self.unit * mean, self.unit * deviation

    def _column(self, x: Float[Tensor, "k n c"], column: int) -> tuple[Float[Tensor, "k n"], Float[Tensor, "k n"]]:
        kernels = self.kernels
        near = correlation(kernels.scaled(x, column), kernels.scaled(self.inputs, column))
        explained = known_part(near, self.whitening[:, column])
        noise, signal = (torch.exp(p[:, column, None]) for p in (kernels.log_noise, kernels.log_signal))
        deviation = signal * (noise.square() + (1 - explained).clamp(min=0.0)).sqrt()
        return (near @ self.alpha[:, column, :, None])[..., 0], deviation

    def predict(self, context: Tensor, state: Tensor, noise: Tensor) -> Tensor:
        mean, deviation = self.moments(context)
        return state + mean + deviation * noise.to(state)

    def prior(self, count: int, random: torch.Generator) -> Float[Tensor, "n u"]:
        return normal((count,), self.size, random)


@final
@dataclass(frozen=True)
class GaussianProcess(MechanismRecipe[DynamicsModel]):
    """An exact Gaussian process a state column, for tables of few rows; the seed changes nothing."""

    schedule: Schedule = Schedule(steps=100, check_every=20, rate="linear", log_every=20)
    """Steps that maximise the marginal likelihood, and how often the best so far is kept."""
    learning_rate: Rate = 0.2
    """First learning rate of Adam, on logarithms of the hyperparameters."""
    most: Positive = 2000
    """Rows beyond which a table is refused: time grows with their cube, memory and prediction with their square."""

    fitted: ClassVar[type] = DynamicsModel

    def __post_init__(self) -> None:
        check_settings(self)

    def fit_many(self, jobs: Sequence[Job], monitor: Monitor = Monitor(), device: str = "cpu") -> list[DynamicsModel]:
        tables = [self._table(job) for job in jobs]
        state, context = tables[0]["y"].shape[1], tables[0]["context"].shape[1]
        mechanism = self.build(state, context, len(jobs)).to(device_of(device)).double()
        rows = mechanism.regress(pad(tables))
        learner = MarginalLikelihood(mechanism.kernels, *rows, self.learning_rate)
        monitor.report(monitor.name, 0, self.schedule.steps)
        train(learner, self.schedule, [job.seed for job in jobs], identity(self, jobs), monitor)
        mechanism.condition(*rows)
        return self.cut(mechanism.to(torch.get_default_dtype()), jobs)

    def cut(self, stack: Mechanism, jobs: Sequence[Job]) -> list[DynamicsModel]:
        """A fitted model for every job, which holds the job's own rows alone."""
        models = super().cut(stack, jobs)
        for model in models:
            with_weights(model.mechanism, _with_rows(model.mechanism.state_dict(), len(model.fitted_rows)))
        return models

    def _table(self, job: Job) -> dict[str, Tensor]:
        """A job's inputs and changes in double precision, if they are not too many."""
        table = change_table(job)
        count = len(table["y"])
        require(
            count <= self.most,
            f"{count} rows are more than the {self.most} of a Gaussian process; take a subset or use DensitySCM",
        )
        return {name: table[name].double() for name in ("context", "y")}

    def build(self, state: int, context: int, members: int) -> ProcessMechanism:
        return ProcessMechanism(members, context, state)

    def joined(self, parts: Sequence[Weights]) -> Weights:
        """The members of several mechanisms as those of one that holds the most rows of any."""
        rows = max(part["inputs"].shape[1] for part in parts)
        return super().joined([_with_rows(part, rows) for part in parts])


def _with_rows(weights: Weights, rows: int) -> Weights:
    """Weights cut, or filled up with zeros, to so many training rows."""
    more = rows - weights["inputs"].shape[1]
    sides = {"inputs": (0, 0, 0, more), "alpha": (0, more), "whitening": (0, more, 0, more)}
    return weights | {name: padded(weights[name], side).contiguous() for name, side in sides.items()}
