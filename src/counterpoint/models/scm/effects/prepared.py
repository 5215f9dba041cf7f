"""A table made ready for the linear model: standardised, and weighed by its noise where that is affordable."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.models.scm.effects.changes import EquationForm
from counterpoint.models.scm.effects.linear import LinearEffects, Sums, fit
from counterpoint.models.scm.effects.noise import NUGGET, CombinedNoise

MOST_WEIGHED = 64
"""Coefficients (features × columns) up to which every row is weighed by its own noise; beyond, all rows count alike."""
PASSES = 2
"""How often the noise is estimated anew from what the model leaves."""
NOISE_SUBJECTS = 1000
"""Subjects, the first ones, that the noise is estimated from."""


@dataclass(frozen=True)
class EffectsTable:
    """Rows that a model is fitted on: state and action side by side, state, next state, subject 0 … n − 1."""

    inputs: Float[Tensor, "m c"]
    state: Float[Tensor, "m s"]
    after: Float[Tensor, "m s"]
    subject: Int[Tensor, " m"]

    @property
    def subjects(self) -> int:
        return int(self.subject.max()) + 1

    def positive(self, column: int) -> bool:
        """Whether a state column is above zero in every row, before and after."""
        return bool((self.state[:, column] > 0).all() & (self.after[:, column] > 0).all())

    def of(self, subjects: Int[Tensor, " a"]) -> "EffectsTable":
        """The rows of some subjects, numbered anew."""
        place = torch.full((self.subjects,), -1)
        place[subjects] = torch.arange(len(subjects))
        kept = place[self.subject] >= 0
        return EffectsTable(self.inputs[kept], self.state[kept], self.after[kept], place[self.subject[kept]])


@dataclass(frozen=True)
class Units:
    """What standardised numbers are in."""

    x: tuple[Float[Tensor, " f"], Float[Tensor, " f"]]
    """Mean and spread of the features."""
    change: Float[Tensor, " d"]
    """Root mean square of the changes."""
    amount: Float[Tensor, " d"]
    """What an amount is multiplied by."""


@dataclass(frozen=True)
class Standardised:
    """A table's rows in standardised units under a layout."""

    line: Float[Tensor, "m p"]
    """Features behind a 1."""
    y: Float[Tensor, "m d"]
    amount: Float[Tensor, "m d"]
    """Next values in units of their root mean square; 0 where changes are ratios, whose noise is so anyway."""
    subject: Int[Tensor, " m"]
    log_slope: Float[Tensor, " m"]
    """What a row's log density in these units lacks to be one in the units of the columns."""
    units: Units

    @classmethod
    def of(cls, table: EffectsTable, layout: EquationForm) -> "Standardised":
        x, y = layout.features(table.inputs).double(), layout.change(table.state, table.after).double()
        mean, spread = x.mean(0), x.std(0, correction=0)
        spread = torch.where(spread > 1e-8, spread, 1.0)
        unit = y.square().mean(0).sqrt().clamp(min=1e-12)
        line = torch.cat([torch.ones_like(x[:, :1]), (x - mean) / spread], 1)
        after = layout.of_moving(table.after).double()
        amount = torch.tensor(layout.additive).double() / after.square().mean(0).sqrt().clamp(min=1e-12)
        slope = layout.log_slope(table.state, table.after).double().sum(1) - unit.log().sum()
        units = Units((mean.float(), spread.float()), unit.float(), amount.float())
        return cls(line, y / unit, after * amount, table.subject, slope, units)

    @property
    def affordable(self) -> bool:
        """Whether every row can be weighed by its own noise."""
        return self.line.shape[1] * self.y.shape[1] <= MOST_WEIGHED

    def first(self, subjects: int) -> "Standardised":
        """The rows of the first subjects."""
        first = self.subject < subjects
        return Standardised(
            self.line[first], self.y[first], self.amount[first], self.subject[first], self.log_slope[first], self.units
        )

    def weighed(self, noise: CombinedNoise) -> "Prepared":
        """The sums under a noise: every column of every row becomes a row of its own, in units of its own noise."""
        (m, p), d, subjects = self.line.shape, self.y.shape[1], int(self.subject.max()) + 1
        x, y, subject, slope = self.line, self.y, self.subject, self.log_slope
        nugget = (NUGGET * torch.eye(d).to(y)).expand(m, d, d)
        if self.affordable:
            roots = noise.roots(self.amount)
            white = torch.linalg.inv(roots)
            x = (white[:, :, None] * x[:, None, :, None]).reshape(m * d, p * d)
            y = (white @ y[..., None]).reshape(m * d, 1)
            subject = subject.repeat_interleave(d)
            nugget = NUGGET * white.square().sum((1, 2), keepdim=True)
            slope = slope - roots.diagonal(0, 1, 2).log().sum(1)
        log_slope = torch.zeros(subjects, dtype=torch.double).index_add_(0, self.subject, slope)
        sums = Sums.of(x, y, subject, subjects)
        sums.yy.index_add_(0, self.subject, nugget)
        return Prepared(self, noise, sums, log_slope)


@dataclass(frozen=True)
class Prepared:
    """Rows, their noise, and the sums that the linear model is fitted on."""

    rows: Standardised
    noise: CombinedNoise
    sums: Sums
    log_slope: Float[Tensor, " n"]
    """What a subject's log density under the sums lacks to be one in the units of the columns."""

    def effects(self, linear: LinearEffects) -> LinearEffects:
        """A model of the sums as one of the columns."""
        if not self.rows.affordable:
            return linear
        p, d = self.rows.line.shape[1], self.rows.y.shape[1]
        size = linear.covariance[0, 0]
        return LinearEffects(linear.mean.view(p, d), linear.effect.view(p, d, -1), self.noise.constant * size)

    def share(self, linear: LinearEffects) -> Float[Tensor, " d"]:
        """The proportional part of the noise beside a model of the sums, which may leave more or less than expected."""
        return self.noise.share * linear.covariance[0, 0].sqrt()

    def rest(self, factors: int) -> Float[Tensor, "m d"]:
        """What a model with so many factors leaves of y, each subject at the mean of its posterior."""
        linear = fit(self.sums, factors)
        theta, _ = linear.posterior(self.sums)
        effects = self.effects(linear)
        coefficients = effects.mean + (effects.effect @ theta[:, None, :, None])[..., 0]
        return self.rows.y - (self.rows.line[:, None] @ coefficients[self.rows.subject])[:, 0]


def prepare(table: EffectsTable, layout: EquationForm, factors: int) -> Prepared:
    """Standardise a table, and learn its noise from what a model with so many factors leaves."""
    rows = Standardised.of(table, layout)
    width = rows.y.shape[1]
    noise = CombinedNoise(torch.eye(width, dtype=torch.double), torch.zeros(width, dtype=torch.double))
    if rows.affordable:
        few = rows.first(NOISE_SUBJECTS)
        for _ in range(PASSES):
            noise = CombinedNoise.of(few.weighed(noise).rest(factors), few.amount, layout.combined)
    return rows.weighed(noise)
