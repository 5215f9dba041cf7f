"""A table made ready for the linear model: standardised, and weighed by its noise where that is affordable."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.scm.effects.changes import Layout
from counterpoint.scm.effects.linear import LinearEffects, Sums, fit
from counterpoint.scm.effects.noise import Noise

MOST_WEIGHED = 64
"""Coefficients (features × columns) up to which every row is weighed by its own noise; beyond, all rows count alike."""
PASSES = 2
"""How often the noise is estimated anew from what the model leaves."""


@dataclass(frozen=True)
class Table:
    """Rows that a model is fitted on: state and action side by side, state, next state, subject 0 … n − 1."""

    told: Float[Tensor, "m c"]
    state: Float[Tensor, "m s"]
    after: Float[Tensor, "m s"]
    subject: Int[Tensor, " m"]

    @property
    def subjects(self) -> int:
        return int(self.subject.max()) + 1

    def of(self, subjects: Int[Tensor, " a"]) -> "Table":
        """The rows of some subjects, numbered anew."""
        place = torch.full((self.subjects,), -1)
        place[subjects] = torch.arange(len(subjects))
        kept = place[self.subject] >= 0
        return Table(self.told[kept], self.state[kept], self.after[kept], place[self.subject[kept]])


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
class Prepared:
    """A table in standardised units under a layout, with the sums that the linear model is fitted on."""

    line: Float[Tensor, "m p"]
    """Standardised features behind a 1."""
    y: Float[Tensor, "m d"]
    amount: Float[Tensor, "m d"]
    """Next values in units of their root mean square; 0 where changes are ratios, whose noise is so anyway."""
    subject: Int[Tensor, " m"]
    noise: Noise
    sums: Sums
    units: Units
    log_slope: Float[Tensor, " n"]
    """What a subject's log density in these units lacks to be one in the units of the columns."""

    @property
    def weighed(self) -> bool:
        return self.line.shape[1] * self.y.shape[1] <= MOST_WEIGHED

    def effects(self, found: LinearEffects) -> LinearEffects:
        """A model of the sums as one of the columns."""
        if not self.weighed:
            return found
        p, d = self.line.shape[1], self.y.shape[1]
        size = found.covariance[0, 0]
        return LinearEffects(found.mean.view(p, d), found.effect.view(p, d, -1), self.noise.constant * size)


def prepare(table: Table, layout: Layout, factors: int) -> Prepared:
    """Standardise a table, and learn its noise from what a model with so many factors leaves."""
    x, y = layout.features(table.told).double(), layout.change(table.state, table.after).double()
    mean, spread = x.mean(0), x.std(0, correction=0)
    spread = torch.where(spread > 1e-8, spread, 1.0)
    unit = y.square().mean(0).sqrt().clamp(min=1e-12)
    line, y = torch.cat([torch.ones_like(x[:, :1]), (x - mean) / spread], 1), y / unit
    after = table.after[:, layout.moving].double()
    amount_unit = torch.tensor(layout.additive).double() / after.square().mean(0).sqrt().clamp(min=1e-12)
    slope = layout.log_slope(table.state, table.after).double().sum(1) - unit.log().sum()
    noise = Noise(torch.eye(len(unit)).to(unit), torch.zeros_like(unit))
    units = Units((mean.float(), spread.float()), unit.float(), amount_unit.float())
    ready = _weighed(line, y, after * amount_unit, table, noise, slope, units)
    if not ready.weighed:
        return ready
    for _ in range(PASSES):
        noise = Noise.of(_rest(ready, factors), ready.amount, layout.combined)
        ready = _weighed(line, y, ready.amount, table, noise, slope, units)
    return ready


def _weighed(
    line: Tensor, y: Tensor, amount: Tensor, table: Table, noise: Noise, slope: Float[Tensor, " m"], units: Units
) -> Prepared:
    """The sums under a noise: every column of every row becomes a row of its own, in units of its own noise."""
    (m, p), d, subject = line.shape, y.shape[1], table.subject
    x, seen, own = line, y, subject
    if p * d <= MOST_WEIGHED:
        roots = noise.roots(amount)
        white = torch.linalg.inv(roots)
        x = (white[:, :, None] * line[:, None, :, None]).reshape(m * d, p * d)
        seen, own = (white @ y[..., None]).reshape(m * d, 1), subject.repeat_interleave(d)
        slope = slope - roots.diagonal(0, 1, 2).log().sum(1)
    each = torch.zeros(table.subjects, dtype=torch.double).index_add_(0, subject, slope)
    return Prepared(line, y, amount, subject, noise, Sums.of(x, seen, own, table.subjects), units, each)


def _rest(ready: Prepared, factors: int) -> Float[Tensor, "m d"]:
    """What a model of the sums leaves of y, each subject at the mean of its posterior."""
    found = fit(ready.sums, factors)
    theta, _ = found.posterior(ready.sums)
    own = ready.effects(found)
    coefficients = own.mean + (own.effect @ theta[:, None, :, None])[..., 0]
    return ready.y - (ready.line[:, None] @ coefficients[ready.subject])[:, 0]
