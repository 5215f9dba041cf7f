"""Calibration of a fitted law's dose effects to the effects that a log shows over several steps.

A law fitted to single steps has the effect of a dose after k steps as a product of its equations. The orthogonal
estimate of that effect (`models.effects`) does not depend on the equations of the other columns. The coefficients β of
a dose, and of columns that remember it (dose on board, lags), move to the least of

    Σ_k ((ψ_k(β) − ψ̂_k) / se_k)²  +  Σ_j ((β_j − β̂_j) / p_j)²,      p_j² = se(β̂_j)² + c²·max(β̂_j², b_j²)

with ψ_k(β) the mean effect that the law has after k steps, b_j the coefficient that alone would have the effects that
the log shows, and c the share by which a coefficient of the one-step fit may be wrong beyond chance. Confounding can
take a coefficient to 0 or beyond, so c is raised while the law's effects still contradict the estimates. Where the log
does not show the effect (se_k is large), the one-step fit stays. Declared signs are bounds of β: they hold exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.seeding import derive, generator
from counterpoint.data.jobs import context
from counterpoint.data.schema import Schema
from counterpoint.data.transitions import Transitions
from counterpoint.models.effects.estimates import EffectEstimate, EffectEstimates
from counterpoint.models.scm.base import StructuralCausalModel
from counterpoint.models.scm.effects.doses import DoseColumns, dose_columns
from counterpoint.models.scm.effects.law import EffectsLaw
from counterpoint.models.scm.effects.mechanism import EffectsMechanism
from counterpoint.models.scm.effects.paths import EffectPaths
from counterpoint.nets.stacked import with_weights

DOUBTS = (0.2, 0.4, 0.8, 1.6)
"""c: share of a coefficient by which the one-step fit may be wrong beyond chance: the first that lets effects agree."""
AGREEMENT = 1.0
"""Mean squared distance from the estimates, in standard errors, at which effects agree."""
ROUNDS = 2
"""Steps of the calibration: the effect after several steps is nearly linear in the coefficients."""
LEAST_DOUBT = 1e-3
"""Least p, in standardised units."""
RIDGE = 1e-6
"""Ridge of the projection, for columns that repeat each other."""
SUBJECTS = 3.0
"""Standard deviations of the subjects' factors within which a declared sign holds."""
STEP = 0.05
"""Change of a coefficient in a numerical derivative, in standardised units of the column's change."""


def calibrate(
    model: StructuralCausalModel, rows: Transitions, estimates: EffectEstimates | None, seed: int
) -> StructuralCausalModel:
    """Return the model with dose effects that agree with the estimates, and that have the declared signs.

    Every member is calibrated to its own draw of the estimates, so that members differ as much as the log leaves open.

    Args:
        model: A model whose mechanism is an `EffectsMechanism`.
        rows: The rows that it was fitted on.
        estimates: Orthogonal estimates of the effects on its columns; None to hold the declared signs only.
        seed: Seed of the draws and of the rows that effects are computed along.
    """
    mechanism = model.mechanism
    assert isinstance(mechanism, EffectsMechanism)
    weights = {name: tensor.clone() for name, tensor in mechanism.state_dict().items()}
    calibrated = model.structure.build(len(model.state_names), mechanism.context_width, mechanism.members)
    assert isinstance(calibrated, EffectsMechanism)
    calibrated = with_weights(calibrated, weights)
    law = calibrated.law
    steps = max(estimates.steps) if estimates is not None else 1
    paths = EffectPaths.of(model, rows, steps, seed)
    for dose in dose_columns(model.schema):
        features = DoseFeatures.of(law, dose, rows)
        _shrink(law, features)
        for place, column in enumerate(law.layout.moving):
            outcome = model.schema.state_names[column]
            sign = _sign(model.schema, dose.name, outcome)
            curve = [] if estimates is None else [e for e in estimates.curve(dose.name, outcome) if e.supported]
            if curve and len(paths.rows):
                _CurveFit(model, paths, dose, column, place, features, curve).move(calibrated, sign, seed)
            if sign:
                _hold_sign(law, features, place, sign)
    return model.with_mechanism(calibrated.eval())


@dataclass(frozen=True, eq=False)
class DoseFeatures:
    """The features of a law that belong to a dose, and how the other features go with them in the log."""

    own: list[int]
    """Rows of the law's coefficients that are effects of the dose; the first row is the constant."""
    others: list[int]
    projection: Float[Tensor, "o q"]
    """Regression of the dose's features on the others."""

    @classmethod
    def of(cls, law: EffectsLaw, dose: DoseColumns, rows: Transitions) -> "DoseFeatures":
        """The features of a dose in the rows that the law was fitted on; all members have the same."""
        coded = {column for column, _ in law.layout.categories}
        own = [1 + column - sum(other < column for other in coded) for column in dose.inputs]
        x = law.x(law.layout.features(context(rows.state, rows.action)).expand(law.members, -1, -1))[0].double()
        line = torch.cat([torch.ones_like(x[:, :1]), x], 1)
        others = [column for column in range(line.shape[1]) if column not in own]
        rest = line[:, others]
        gram = rest.T @ rest
        gram += RIDGE * len(line) * torch.eye(len(others)).to(gram)
        return cls(own, others, torch.linalg.solve(gram, rest.T @ line[:, own]))

    @torch.no_grad()
    def set(self, law: EffectsLaw, place: int, values: Float[Tensor, "m q"]) -> None:
        """Set the dose's coefficients in one column's equation; the other coefficients take up what the log's doses
        have in common with them, so that predictions for the logged doses stay as right as they can."""
        moved = values.double() - law.mean[:, self.own, place].double()
        law.mean[:, self.own, place] = values.to(law.mean)
        law.mean[:, self.others, place] -= (moved @ self.projection.T).to(law.mean)


@dataclass(frozen=True, eq=False)
class _CurveFit:
    """The effect of one dose on one column, as a law has it and as the log shows it."""

    model: StructuralCausalModel
    paths: EffectPaths
    dose: DoseColumns
    column: int
    place: int
    """Place of the column among those that have an equation."""
    features: DoseFeatures
    curve: Sequence[EffectEstimate]

    @torch.no_grad()
    def move(self, mechanism: EffectsMechanism, sign: int, seed: int) -> None:
        """Move every member's coefficients toward the estimates, with as much doubt of the one-step fit as it takes."""
        values, errors = self._column("value"), self._column("standard_error")
        draws = _normal_scores(mechanism.members, derive(seed, "effects", self.dose.name, str(self.column)))
        targets = values + errors * draws.double().numpy()[:, None]
        fitted = mechanism.law.mean[:, self.features.own, self.place].double().numpy()
        for doubt in DOUBTS:
            self.features.set(mechanism.law, self.place, torch.from_numpy(fitted))
            for _ in range(ROUNDS):
                self._step(mechanism, fitted, targets, doubt, sign)
            distance = (self._effects(mechanism).mean(0) - values) / errors
            if float((distance**2).mean()) <= AGREEMENT:
                return

    def _step(
        self,
        mechanism: EffectsMechanism,
        fitted: Float[np.ndarray, "m q"],
        targets: Float[np.ndarray, "m k"],
        doubt: float,
        sign: int,
    ) -> None:
        """One step of Gauss and Newton from the coefficients as they are; `fitted` are those of the one-step fit."""
        from scipy.optimize import lsq_linear

        errors = self._column("standard_error")
        slope = self._derivative(mechanism) / errors[:, None]
        size = np.maximum(np.abs(fitted.mean(0)), np.abs(_alone(slope, self._column("shrunk") / errors)))
        deviation = np.sqrt(fitted.var(0) + (doubt * size) ** 2 + LEAST_DOUBT**2)
        start = mechanism.law.mean[:, self.features.own, self.place].double().numpy()
        rest = (targets - self._effects(mechanism)) / errors
        moved = np.empty_like(start)
        for member in range(mechanism.members):
            left = np.concatenate([slope, np.diag(1 / deviation)])
            right = np.concatenate([rest[member], (fitted[member] - start[member]) / deviation])
            moved[member] = start[member] + lsq_linear(left, right, _bounds(start[member], sign)).x
        self.features.set(mechanism.law, self.place, torch.from_numpy(moved))

    def _column(self, name: str) -> Float[np.ndarray, " k"]:
        """One number of every estimate."""
        return np.array([getattr(estimate, name) for estimate in self.curve])

    def _effects(self, mechanism: EffectsMechanism) -> Float[np.ndarray, "m k"]:
        """Every member's mean effect of one unit at the estimated steps."""
        estimate = self.curve[0]
        first = self.paths.state[self.paths.rows[:, 0]]
        unit = first[:, self.model.schema.state_names.index(estimate.per)] if estimate.per else torch.ones(len(first))
        effects = self.paths.effects(mechanism, self.dose.action, estimate.contrast * unit)[..., self.column]
        steps = [estimate.step - 1 for estimate in self.curve]
        return (effects.mean(2)[:, steps] / estimate.contrast).double().numpy()

    def _derivative(self, mechanism: EffectsMechanism) -> Float[np.ndarray, "k q"]:
        """Change of the first member's mean effects with each coefficient."""
        count = 1 + len(self.features.own)
        weights = {name: tensor[:1].repeat_interleave(count, 0) for name, tensor in mechanism.state_dict().items()}
        model = self.model
        varied = model.structure.build(len(model.state_names), mechanism.context_width, count)
        assert isinstance(varied, EffectsMechanism)
        varied = with_weights(varied, weights)
        varied_values = varied.law.mean[:, self.features.own, self.place].clone()
        varied_values[1:] += STEP * torch.eye(count - 1)
        self.features.set(varied.law, self.place, varied_values)
        effects = self._effects(varied)
        return (effects[1:] - effects[:1]).T / STEP


@torch.no_grad()
def _shrink(law: EffectsLaw, features: DoseFeatures) -> None:
    """Shrink mean coefficients by their standard errors over the members: b·max(0, 1 − (se/b)²)."""
    if law.members == 1:
        return
    for place in range(law.size):
        values = law.mean[:, features.own, place]
        mean, variance = values.mean(0), values.var(0)
        kept = (1 - variance / mean.square().clamp(min=1e-12)).clamp(min=0)
        features.set(law, place, values + mean * (kept - 1))


def _alone(slope: Float[np.ndarray, "k q"], effects: Float[np.ndarray, " k"]) -> Float[np.ndarray, " q"]:
    """The size at which every coefficient alone would have the effects, by least squares."""
    return slope.T @ effects / np.maximum((slope**2).sum(0), 1e-12)


def _normal_scores(count: int, seed: int) -> Float[Tensor, " n"]:
    """Standard normal draws, one of each stratum in a random order: their mean is 0, however few they are."""
    order = torch.randperm(count, generator=generator(seed, "strata"))
    return torch.special.ndtri((order + 0.5) / count)


def _sign(schema: Schema, dose: str, outcome: str) -> int:
    """The declared sign of a dose's effect on a column; 0 where none is declared."""
    return next((sign for action, column, sign in schema.knowledge.signs if (action, column) == (dose, outcome)), 0)


def _bounds(start: Float[np.ndarray, " q"], sign: int) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of the moves that keep every coefficient on the side of its sign."""
    low, high = np.full(len(start), -np.inf), np.full(len(start), np.inf)
    if sign > 0:
        low = -start
    if sign < 0:
        high = -start
    return low, high


@torch.no_grad()
def _hold_sign(law: EffectsLaw, features: DoseFeatures, place: int, sign: int) -> None:
    """Set coefficients of the wrong sign to 0, and let subjects within `SUBJECTS` deviations keep the sign."""
    held = (law.mean[:, features.own, place] * sign).clamp(min=0) * sign
    features.set(law, place, held)
    if not law.factors:
        return
    effect = law.effect.view(law.members, -1, law.size, law.factors)
    own = effect[:, features.own, place]
    share = (held.abs() / (SUBJECTS * own.norm(dim=-1)).clamp(min=1e-12)).clamp(max=1)
    effect[:, features.own, place] = own * share[..., None]
