"""Off-policy evaluation of continuous doses: density ratios by classification, cross-fitted by subject.

A deterministic dose has density ratio 0 in every logged row. Evaluated is the dose with a spread around it,

    d = g⁻¹(g(π(s)) + width·σ·ε),    ε ~ N(0, 1),    σ: standard deviation of g(a) given the state in the log,

with g the logarithm of doses that are never negative, else the dose itself; a policy that gives none gives none. An
intervention on the logged dose, d = d(s, a) (a modified treatment policy; Díaz et al., 2023), is evaluated as it is.

    density ratio  ρ(s, a) = π(a|s)/μ(a|s) = P(class 1 | s, a) / P(class 0 | s, a)

of a classifier that tells rows (s, d), class 1, from rows (s, a), class 0 (Díaz et al., 2021). Logistic regression on
distances from the policy's and from the clinicians' doses is exact for normal doses; boosted trees are tried beside it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from counterpoint.core.errors import require
from counterpoint.core.seeding import derive, generator
from counterpoint.core.settings import Amount, Checked, Positive
from counterpoint.data.far_values import near
from counterpoint.data.jobs import spread_levels
from counterpoint.data.schema import Schema, agree
from counterpoint.data.shapes import Action, State
from counterpoint.data.spaces import Box
from counterpoint.data.transitions import Transitions, subject_folds
from counterpoint.models.base import Model
from counterpoint.ope.problem import StochasticPolicy, following_rows, policy_actions
from counterpoint.policies.base import Policy

MAX_DISTANCE = 8.0
"""Distances between doses, in standard deviations, are clipped here."""
MAX_RATIO = 100.0
LEAST_GIVEN = 0.5
"""Share of the smallest logged dose above 0 below which a dose counts as none."""
TREES, LEAVES, RATE = 50, 8, 0.15
LEAST_ROWS = 500
"""Rows from which boosted trees are tried for the clinicians' mean dose."""
CALIBRATION_BINS = 10

Array = np.ndarray


@dataclass(frozen=True)
class DoseSpread(Checked):
    """The spread around a deterministic policy's doses with which it is evaluated."""

    width: Amount = 0.5
    """Its standard deviation, in those of the clinicians' doses given the state. Less is nearer to the policy itself,
    and fewer logged doses count."""
    draws: Positive = 8
    """Doses drawn in every state; in pairs around the policy's own."""

    def __str__(self) -> str:
        return f"{self.width:g} standard deviations of the clinicians’ doses in the same state"


@runtime_checkable
class DoseIntervention(Protocol):
    """An intervention on the logged dose, as 10% more than was given."""

    @property
    def schema(self) -> Schema: ...

    def shifted(self, state: State, action: Action) -> Action:
        """The doses under the intervention, from the states and the doses that the clinicians gave."""
        ...


@dataclass(frozen=True)
class ShiftedDoses:
    """An intervention on the logged dose, d(s, a), within the action space."""

    schema: Schema
    change: Callable[[State, Action], Action]
    """From states and logged doses to other doses."""

    def shifted(self, state: State, action: Action) -> Action:
        assert isinstance(self.schema.actions, Box)
        low, high = (torch.tensor(ends) for ends in (self.schema.actions.low, self.schema.actions.high))
        return self.change(state, action).clamp(low, high)


EvaluatedDoses = Policy | StochasticPolicy | DoseIntervention


@dataclass(frozen=True, eq=False)
class DoseScale:
    """The scale on which doses are compared: logarithms of doses that are never negative, else the doses."""

    logarithmic: Bool[Tensor, " a"]
    least: Float[Tensor, " a"]
    """A smaller dose counts as none, where scales are logarithmic."""
    middle: Float[Tensor, " a"]
    """What stands for no dose on a logarithmic scale, beside an indicator."""

    @classmethod
    def of(cls, doses: Float[Tensor, "n a"]) -> "DoseScale":
        logarithmic = (doses >= 0).all(0) & (doses > 0).any(0)
        positive = torch.where(doses > 0, doses, torch.inf)
        least = torch.where(logarithmic, LEAST_GIVEN * positive.amin(0), 0.0)
        logs = torch.where(doses > 0, doses, torch.nan).log()
        middle = torch.where(logarithmic, logs.nanmean(0), 0.0)
        return cls(logarithmic, least, middle)

    def none(self, doses: Float[Tensor, "*n a"]) -> Bool[Tensor, "*n a"]:
        """Doses that count as none."""
        return self.logarithmic & (doses < self.least)

    def __call__(self, doses: Float[Tensor, "*n a"]) -> Float[Tensor, "*n a"]:
        logs = torch.where(self.none(doses), self.middle, doses.clamp(min=1e-30).log())
        return torch.where(self.logarithmic, logs, doses)

    def doses(self, values: Float[Tensor, "*n a"], none: Bool[Tensor, "*n a"]) -> Float[Tensor, "*n a"]:
        """The doses at these values; 0 where there is none."""
        return torch.where(none, 0.0, torch.where(self.logarithmic, values.exp(), values))


@dataclass(frozen=True, eq=False)
class DoseTarget:
    """The evaluated doses in the rows of a log."""

    centre: Float[Tensor, "n a"]
    """Doses of the policy itself, or of the intervention on the logged ones."""
    now: Float[Tensor, "n d a"]
    """Draws in each row's state."""
    after: Float[Tensor, "n d a"]
    """Draws in the next state."""
    ratios: dict[str, Float[Tensor, " n"]]
    """Density ratio of every logged dose by each classifier, that of the smallest loss on held-out subjects first."""
    drawn_ratio: float
    """Mean density ratio of the drawn doses by the first classifier."""
    calibration_error: float
    """Mean distance of the first classifier's probabilities from the observed shares."""


@torch.no_grad()
def dose_target(
    policy: EvaluatedDoses,
    log: Transitions,
    spread: DoseSpread,
    folds: int,
    model: Model | None = None,
    seed: int = 0,
) -> DoseTarget:
    """Draw the evaluated doses in every row of `log`, and estimate their density ratios cross-fitted by subject."""
    agree(policy.schema, log.schema, "policy", "table")
    require(bool(log.action.isfinite().all()), "the log has doses that are not finite; fill or drop such rows")
    subject = log.subject.unique(return_inverse=True)[1]
    subjects = int(subject.max()) + 1
    require(subjects > 1, "the table has one subject, and density ratios come from others; pass more")
    fold = subject_folds(subjects, min(folds, subjects), derive(seed, "density ratios"))[subject]
    scale = DoseScale.of(log.action)
    columns = _standardised(log)
    usual = _usual(columns.numpy(), scale(log.action), scale.none(log.action), fold.numpy(), seed)
    deviation = _deviation(scale(log.action) - usual, scale.none(log.action))
    if isinstance(policy, DoseIntervention):
        inputs = _shift_inputs(policy, log, scale, usual, deviation)
        now = policy.shifted(log.state, log.action)[:, None]
        after = policy.shifted(log.next_state.nan_to_num(), following_doses(log))[:, None]
        centre = now[:, 0]
    else:
        centre, centre_after = policy_actions(policy, log, model, seed)
        width = spread.width * deviation
        now = _drawn(centre, scale, width, spread.draws, log.actions, derive(seed, "doses"))
        after = _drawn(centre_after, scale, width, spread.draws, log.actions, derive(seed, "doses after"))
        inputs = _rule_inputs(centre, scale, usual, deviation, width)
    ratios, drawn_ratio, error = _ratios(columns, inputs, log.action, now, fold, derive(seed, "classifiers"))
    after = after.masked_fill(~log.has_next[:, None, None], 0.0)
    return DoseTarget(centre, now, after, ratios, drawn_ratio, error)


def following_doses(log: Transitions) -> Float[Tensor, "n a"]:
    """The dose of every row's next row; its own where no row of the episode follows."""
    following, same_episode = following_rows(log)
    return log.action[torch.where(same_episode, following, torch.arange(len(log)))]


def _standardised(log: Transitions) -> Float[Tensor, "n w"]:
    spread = near(spread_levels(log.state, log.schema.categories))
    deviation, mean = torch.std_mean(spread, 0, correction=0)
    return (spread - mean) / torch.where(deviation > 1e-8, deviation, 1.0)


def _usual(z: Array, value: Float[Tensor, "n a"], none: Bool[Tensor, "n a"], fold: Array, seed: int) -> Tensor:
    """Mean dose of the clinicians given the state, on the scale, cross-fitted: a line, or boosted trees if better."""
    columns = []
    for column in range(value.shape[1]):
        y, given = value[:, column].double().numpy(), ~none[:, column].numpy()
        by_kind = [_cross_fitted(fit, z, y, given, fold) for fit in _regressions(len(y), seed)]
        errors = [np.square(predicted - y)[given].mean() for predicted in by_kind]
        columns.append(torch.from_numpy(by_kind[int(np.argmin(errors))]).float())
    return torch.stack(columns, 1)


def _regressions(rows: int, seed: int) -> list[Callable[[], Any]]:
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import Ridge

    def trees() -> Any:
        return HistGradientBoostingRegressor(**_trees(seed))

    return [Ridge, trees] if rows >= LEAST_ROWS else [Ridge]


def _cross_fitted(make: Callable[[], Any], z: Array, y: Array, given: Array, fold: Array) -> Array:
    predicted = np.zeros(len(y))
    for number in np.unique(fold):
        test = fold == number
        train = ~test & given
        if train.sum() < 2:
            predicted[test] = y[given].mean() if given.any() else 0.0
        else:
            predicted[test] = make().fit(z[train], y[train]).predict(z[test])
    return predicted


def _deviation(residual: Float[Tensor, "n a"], none: Bool[Tensor, "n a"]) -> Float[Tensor, " a"]:
    """Standard deviation of the doses that are given, around those of the state."""
    counted = (~none).sum(0).clamp(min=1)
    square = (near(residual).square() * ~none).sum(0) / counted
    return square.sqrt().clamp(min=1e-6)


def _drawn(
    centre: Float[Tensor, "n a"], scale: DoseScale, width: Float[Tensor, " a"], draws: int, actions: Any, seed: int
) -> Float[Tensor, "n d a"]:
    """Doses around a centre, in pairs on either side of it, within the action space."""
    half = torch.randn(len(centre), (draws + 1) // 2, centre.shape[1], generator=generator(seed, "spread"))
    normal = torch.cat([half, -half], 1)[:, :draws]
    doses = scale.doses(scale(centre)[:, None] + width * normal, scale.none(centre)[:, None].expand(normal.shape))
    return doses.clamp(torch.tensor(actions.low), torch.tensor(actions.high))


Inputs = Callable[[Float[Tensor, "m a"], Int[Tensor, " m"]], Float[Tensor, "m c"]]
"""From doses and their rows to inputs of the classifiers, beside the columns of the state."""


def _rule_inputs(
    centre: Float[Tensor, "n a"],
    scale: DoseScale,
    usual: Float[Tensor, "n a"],
    deviation: Float[Tensor, " a"],
    width: Float[Tensor, " a"],
) -> Inputs:
    """Inputs for doses around a policy's: distances from the policy's and from the clinicians' dose."""
    none = scale.none(centre)
    middle = scale(centre)
    apart = _clipped((middle - usual) / deviation)

    def inputs(dose: Float[Tensor, "m a"], rows: Int[Tensor, " m"]) -> Float[Tensor, "m c"]:
        given = scale.none(dose).logical_not().float()
        never = none[rows].float()
        value = scale(dose)
        both = given * (1 - never)
        from_rule = _clipped((value - middle[rows]) / width) * both
        from_usual = _clipped((value - usual[rows]) / deviation) * given
        gap = apart[rows] * (1 - never)
        parts = [given, never, given * never, from_rule, from_rule.square(), from_usual, from_usual.square()]
        parts += [gap, gap.square(), gap * from_usual, gap * from_rule]
        return torch.cat(parts, 1)

    return inputs


def _shift_inputs(
    policy: DoseIntervention,
    log: Transitions,
    scale: DoseScale,
    usual: Float[Tensor, "n a"],
    deviation: Float[Tensor, " a"],
) -> Inputs:
    """Inputs for an intervention: distance from the clinicians' dose, and how far the dose would be shifted."""

    def inputs(dose: Float[Tensor, "m a"], rows: Int[Tensor, " m"]) -> Float[Tensor, "m c"]:
        given = scale.none(dose).logical_not().float()
        from_usual = _clipped((scale(dose) - usual[rows]) / deviation) * given
        moved = policy.shifted(log.state[rows], dose)
        shift = _clipped((scale(moved) - scale(dose)) / deviation)
        return torch.cat([given, from_usual, from_usual.square(), shift, shift.square(), shift * from_usual], 1)

    return inputs


def _clipped(distance: Tensor) -> Tensor:
    return distance.clamp(-MAX_DISTANCE, MAX_DISTANCE)


def _ratios(
    columns: Float[Tensor, "n w"],
    inputs: Inputs,
    logged: Float[Tensor, "n a"],
    drawn: Float[Tensor, "n d a"],
    fold: Int[Tensor, " n"],
    seed: int,
) -> tuple[dict[str, Tensor], float, float]:
    """Density ratio of every logged dose by each classifier, ordered by their loss on held-out subjects.

    The numbers behind them are the mean ratio of the drawn doses and the calibration error, both of the first one.
    """
    count, draws = drawn.shape[:2]
    rows = torch.cat([torch.arange(count), torch.arange(count).repeat_interleave(draws)])
    dose = torch.cat([logged, drawn.flatten(0, 1)])
    label = torch.cat([torch.zeros(count), torch.ones(count * draws)]).numpy()
    weight = torch.cat([torch.ones(count), torch.full((count * draws,), 1 / draws)]).numpy()
    features = inputs(dose, rows)
    # The line may differ with the state in whether a dose is given at all.
    given = features[:, : logged.shape[1]]
    by_state = [given[:, column, None] * columns[rows] for column in range(given.shape[1])]
    lines = torch.cat([columns[rows], features, *by_state], 1).numpy()
    trees = torch.cat([columns[rows], features, dose], 1).numpy()
    fold_of = fold[rows].numpy()
    odds = {
        "logistic regression": _cross_fitted_odds(_logistic, lines, label, weight, fold_of),
        "boosted trees": _cross_fitted_odds(lambda: _boosted(seed), trees, label, weight, fold_of),
    }
    losses = {name: _log_loss(value, label, weight) for name, value in odds.items()}
    ratios = {}
    for name in sorted(losses, key=lambda name: losses[name]):
        ratio = np.exp(odds[name][:count]).clip(0.0, MAX_RATIO)
        ratios[name] = torch.from_numpy(ratio / max(ratio.mean(), 1e-12)).float()
    best = min(losses, key=lambda name: losses[name])
    drawn_ratio = float(np.exp(odds[best][count:]).clip(0.0, MAX_RATIO).mean())
    return ratios, drawn_ratio, _calibration_error(odds[best], label, weight)


def _logistic() -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(C=10.0, max_iter=300, tol=1e-4))


def _boosted(seed: int) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(**_trees(seed))


def _trees(seed: int) -> dict[str, Any]:
    trees = {"max_iter": TREES, "max_leaf_nodes": LEAVES, "learning_rate": RATE}
    return {**trees, "early_stopping": False, "random_state": seed % 2**32}


def _cross_fitted_odds(make: Callable[[], Any], x: Array, label: Array, weight: Array, fold: Array) -> Array:
    """Log odds of class 1 by a classifier fitted on the subjects of the other folds."""
    odds = np.zeros(len(x))
    for number in np.unique(fold):
        test = fold == number
        model = make()
        last = model.steps[-1][0] if hasattr(model, "steps") else ""
        name = f"{last}__sample_weight" if last else "sample_weight"
        model.fit(x[~test], label[~test], **{name: weight[~test]})
        odds[test] = model.decision_function(x[test])
    return odds.clip(-30.0, 30.0)


def _log_loss(odds: Array, label: Array, weight: Array) -> float:
    return float(np.average(np.logaddexp(0.0, np.where(label > 0, -odds, odds)), weights=weight))


def _calibration_error(odds: Array, label: Array, weight: Array) -> float:
    probability = 1 / (1 + np.exp(-odds))
    bins = np.minimum((probability * CALIBRATION_BINS).astype(int), CALIBRATION_BINS - 1)
    gaps = [abs(((probability - label) * weight)[bins == number].sum()) for number in range(CALIBRATION_BINS)]
    return float(sum(gaps) / weight.sum())
