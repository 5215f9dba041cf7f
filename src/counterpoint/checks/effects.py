"""Are the model's effects those that the log shows? Curves over several steps beside orthogonal estimates.

The model's effect after k steps: logged rows are replayed with their own abducted noise and with the later doses as
they were given, once with and once without a contrast in the dose at t. The log's effect: `EffectMoments`, whose
estimate weighs rows by the part of the dose that the history does not explain; rows are replayed with that weight.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.checks.comparisons import EffectComparison
from counterpoint.checks.findings import Finding
from counterpoint.core.errors import CounterpointError
from counterpoint.core.seeding import derive, generator
from counterpoint.data.jobs import NO_THETA
from counterpoint.data.schema import Schema, quoted
from counterpoint.data.shapes import Theta
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.models.effects.estimates import EffectEstimate, EffectEstimates
from counterpoint.models.effects.orthogonal import STEPS, EffectMoments
from counterpoint.models.scm.base import StructuralCausalModel

REPLAYED = 400
"""Rows from which a contrast is replayed, drawn with the weights of the estimate."""
MOST_ROWS = 20_000
"""Rows of the log that effects are estimated on, at most: whole subjects."""
OUTCOMES = 3
"""State columns that are compared where none is named."""
LEVEL = 0.95
"""Level of the intervals that are shown."""
STRICT = 0.99
"""Level of the intervals that a model is failed by; a check compares many effects."""
FACTOR = 2.0
"""Ratio of the two effects from which on a model with the right sign fails for good."""
SMALL = 0.05
"""Effects below this share of the outcome's noise do not fail a model."""
PLACEBO = 0.999
"""Level of the interval of an effect that must be none."""
REACTION = 1e-3
"""Change of an exogenous column, in standard deviations, that counts as none."""
FIT_AGAIN = "fit again with scm:auto or scm:random-effects, and check again"


@dataclass(frozen=True)
class EffectCheck:
    """What the comparison of effects found."""

    comparisons: tuple[EffectComparison, ...]
    findings: tuple[Finding, ...]


def check_effects(
    model: StructuralCausalModel,
    rows: Transitions,
    outcomes: Sequence[str] = (),
    seed: int = 0,
    theta: Theta = NO_THETA,
) -> EffectCheck:
    """Compare the model's effects with orthogonal estimates from `rows`, and try two placebos.

    Args:
        model: the fitted model.
        rows: the whole log, of training and held-out subjects: the estimates do not depend on the model.
        outcomes: state columns; by default the three with the clearest effects.
        theta: subject factors of the rows; inferred where they are left out.
    """
    log, factors = _some_subjects(rows, theta, seed)
    try:
        moments = EffectMoments(log, tuple(outcomes), seed)
        estimates = moments.estimates(STEPS)
    except CounterpointError as error:
        sentence = f"The model's effects were not compared with the log: {error}."
        return EffectCheck((), (Finding("effects", 0.0, 0.0, False, sentence, grave=False),))
    replay = _Replay(model, log, factors, seed)
    named = tuple(outcomes) or estimates.clearest(OUTCOMES)
    curves = {dose: replay.curve(dose, moments, estimates) for dose in estimates.doses}
    comparisons = tuple(
        _compared(estimates, dose, outcome, model.state_names.index(outcome), curves[dose])
        for dose in estimates.doses
        for outcome in named
    )
    findings = [_finding(dose, comparisons) for dose in estimates.doses]
    findings += [_past(moments.placebo()), *_exogenous(model.schema, log, replay, seed)]
    return EffectCheck(comparisons, tuple(findings))


class _Replay:
    """Replays logged rows in a model, with their own noise and another dose at the start."""

    def __init__(self, model: StructuralCausalModel, log: Transitions, theta: Theta, seed: int) -> None:
        rows = log.with_next()
        order = rows.in_order()
        self.model, self.rows, self.seed = model, rows[order].to(model.device), seed
        factors = theta if theta.shape[1] else model.subjects(log)
        kept = factors[log.has_next] if len(factors) == len(log) else factors
        self.theta = kept.expand(len(rows), -1)[order.to(kept.device)].to(model.device)

    @cached_property
    def noise(self) -> Float[Tensor, "n mu"]:
        return self.model.abduct(self.rows, self.theta)

    def curve(self, dose: str, moments: EffectMoments, estimates: EffectEstimates) -> dict[int, tuple[Tensor, Tensor]]:
        """For each step, the mean change of every column for one unit of the dose, and its standard error."""
        number = estimates.doses.index(dose)
        starts = self._starts(moments.dose_residual[:, number] ** 2, dose)
        treatment = moments.history.treatments[number]
        one, other, unit = self._actions(starts, dose, treatment.reference, treatment.per, moments.contrasts[number])
        ahead = torch.as_tensor(moments.history.ahead).to(starts.device)[starts]
        curve: dict[int, tuple[Tensor, Tensor]] = {}
        first = second = self.rows.state[starts]
        for step in range(max(estimates.steps)):
            place = (starts + step).clamp(max=len(self.rows) - 1)
            known = ahead > step
            logged = self.rows.action[place]
            noise, theta = self.noise[place], self.theta[place]
            first = self.model.predict(first, one if step == 0 else logged, noise, theta)
            second = self.model.predict(second, other if step == 0 else logged, noise, theta)
            if bool(known.sum() > 1):
                curve[step + 1] = _slope((first - second)[known], unit[known])
        return curve

    def _starts(self, weight: Float[np.ndarray, " n"], dose: str) -> Int[Tensor, " m"]:
        """Rows to start from, drawn by weight."""
        random = np.random.default_rng(derive(self.seed, "replayed", dose))
        share = weight / weight.sum() if weight.sum() > 0 else np.full(len(weight), 1 / len(weight))
        return torch.as_tensor(random.choice(len(weight), REPLAYED, p=share)).to(self.rows.state.device)

    def _actions(
        self, starts: Int[Tensor, " m"], dose: str, reference: str, per: str, contrast: float
    ) -> tuple[Tensor, Tensor, Float[Tensor, " m"]]:
        """Two actions for each start, and by how many units of the dose they differ."""
        schema, given = self.model.schema, self.rows.action[starts]
        column = schema.action_names.index(dose)
        one, other = given.clone(), given.clone()
        if reference:
            group = _one_hot_group(schema, dose)
            against = next(i for i in group if schema.action_names[i].rpartition("=")[2] == reference)
            one[:, group], other[:, group] = 0.0, 0.0
            one[:, column], other[:, against] = 1.0, 1.0
            return one, other, torch.ones_like(given[:, 0])
        scale = self.rows.state[starts, schema.state_names.index(per)] if per else torch.ones_like(given[:, 0])
        one[:, column] = _moved(schema, column, given[:, column], contrast * scale)
        return one, other, (one - other)[:, column] / scale


def _moved(
    schema: Schema, column: int, dose: Float[Tensor, " m"], contrast: Float[Tensor, " m"]
) -> Float[Tensor, " m"]:
    """The dose plus the contrast, or minus it where that leaves the action space; the nearest level of a list."""
    low, high = schema.actions.low[column], schema.actions.high[column]
    if not isinstance(schema.actions, Discrete):
        up = dose + contrast
        return torch.where(up <= high, up, dose - contrast).clamp(low, high)
    levels = torch.tensor(sorted({values[column] for values in schema.actions.values})).to(dose)
    wanted = torch.where(dose + contrast <= high + 1e-6, dose + contrast, dose - contrast)
    distance = (levels - wanted[:, None]).abs()
    return levels[distance.masked_fill((levels - dose[:, None]).abs() < 1e-6, torch.inf).argmin(1)]


def _one_hot_group(schema: Schema, dose: str) -> list[int]:
    """The action columns of the treatment's choice."""
    if not schema.doses:
        return list(range(len(schema.action_names)))
    prefix = dose.rpartition("=")[0] + "="
    return [i for i, name in enumerate(schema.action_names) if name.startswith(prefix)]


def _slope(change: Float[Tensor, "m s"], unit: Float[Tensor, " m"]) -> tuple[Tensor, Tensor]:
    """Change for one unit by least squares through 0, with its standard error."""
    square = unit.square().sum().clamp(min=1e-30)
    slope = (unit[:, None] * change).sum(0) / square
    rest = unit[:, None] * (change - unit[:, None] * slope)
    return slope, rest.square().sum(0).sqrt() / square


@dataclass(frozen=True)
class _Step:
    """One step of a comparison, for the contrast."""

    model: float
    log: float
    low: float
    high: float
    distance: float
    """Distance in standard errors of both, relative to the quantile of the strict interval."""
    verdict: str

    @property
    def rank(self) -> tuple[int, float]:
        return ("unknown", "agrees", "differs", "wrong").index(self.verdict), self.distance

    @classmethod
    def of(cls, one: EffectEstimate, slope: float, error: float) -> "_Step":
        from scipy.stats import t

        model, log = slope * one.contrast, one.value * one.contrast
        if not one.supported:
            return cls(model, log, -float("inf"), float("inf"), 0.0, "unknown")
        low, high = (end * one.contrast for end in one.interval(LEVEL))
        both = max((one.standard_error**2 + error**2) ** 0.5 * abs(one.contrast), 1e-12)
        distance = abs(model - log) / both / float(t.ppf((1 + STRICT) / 2, one.freedom))
        small = max(abs(model), abs(log)) < SMALL * one.noise
        return cls(model, log, low, high, distance, "agrees" if distance <= 1 or small else _kind(model, log))


def _kind(model: float, log: float) -> str:
    """How grave it is that a model's effect lies outside the interval."""
    return "differs" if model * log > 0 and 1 / FACTOR <= model / log <= FACTOR else "wrong"


def _compared(
    estimates: EffectEstimates, dose: str, outcome: str, column: int, curve: dict[int, tuple[Tensor, Tensor]]
) -> EffectComparison:
    known = [one for one in estimates.curve(dose, outcome) if one.step in curve]
    steps = [_Step.of(one, *(float(part[column]) for part in curve[one.step])) for one in known]
    worst = max(range(len(steps)), key=lambda i: steps[i].rank)
    return EffectComparison(
        dose=dose,
        outcome=outcome,
        contrast=known[0].contrast,
        reference=known[0].reference,
        steps=tuple(one.step for one in known),
        model=tuple(step.model for step in steps),
        log=tuple(step.log for step in steps),
        low=tuple(step.low for step in steps),
        high=tuple(step.high for step in steps),
        noise=tuple(one.noise for one in known),
        worst=worst,
        distance=steps[worst].distance,
        verdict=steps[worst].verdict,
    )


def _finding(dose: str, comparisons: Sequence[EffectComparison]) -> Finding:
    """The finding on one dose: its worst comparison."""
    own = [one for one in comparisons if one.dose == dose]
    rank = {"agrees": 0, "unknown": 1, "differs": 2, "wrong": 3}
    worst = max(own, key=lambda one: (rank[one.verdict], one.distance))
    remedy = {
        "agrees": "",
        "unknown": " Ask about doses that were given in like states, or give a log in which they differ.",
        "differs": f" To do: {FIT_AGAIN}.",
        "wrong": f" To do: {FIT_AGAIN}; look at other columns with --outcome.",
    }[worst.verdict]
    sentence = worst.sentence + remedy
    return Finding(
        f"effect of {dose}", worst.distance, 1.0, worst.verdict == "agrees", sentence, None, worst.verdict == "wrong"
    )


def _past(placebo: EffectEstimates) -> Finding:
    """A dose must not 'act' on what was before the history's lags."""
    tried = [one for one in placebo if one.supported and one.standard_error > 0]
    seen = [one for one in tried if one.excludes_none(PLACEBO)]
    if not seen:
        why = "no later dose is related to an earlier state" if tried else "no episode is long enough to look"
        return Finding("future dose", 0.0, 1.0, True, f"Given the history that the estimates use, {why}.")
    worst = max(seen, key=lambda one: abs(one.value) / one.standard_error)
    sentence = (
        f"Doses of {worst.dose} follow {worst.outcome} of {-worst.step} steps before, which the rows do not hold: a"
        f" common cause is missing in the model and in the log's effects. To do: fit again"
        f" with a running sum of it in the state (--running-sum {worst.outcome}:TIME)."
    )
    return Finding("future dose", abs(worst.value) / worst.standard_error, 3.29, False, sentence, None, False)


def _exogenous(schema: Schema, log: Transitions, replay: _Replay, seed: int) -> list[Finding]:
    """Columns declared exogenous react neither in the model nor in the log."""
    if not schema.exogenous:
        return []
    names = [schema.state_names[i] for i in schema.exogenous]
    column = list(schema.exogenous)
    unit = replay.rows.state[:, column].std(0).clamp(min=1e-12)
    other = replay.rows.action[torch.randperm(len(replay.rows), generator=generator(seed, "exogenous")).to(unit.device)]
    answered = replay.model.predict(replay.rows.state, other, replay.noise, replay.theta)
    moved = ((answered - replay.rows.next_state)[:, column] / unit).abs().amax(0)
    findings = []
    if float(moved.max()) > REACTION:
        name = names[int(moved.argmax())]
        sentence = (
            f"'{name}' is declared exogenous and reacts to the action in the model: do not use it. To do: fit again."
        )
        findings.append(Finding("exogenous columns", float(moved.max()), REACTION, False, sentence))
    effects = EffectMoments(log, tuple(names), seed).estimates((1,))
    seen = [one for one in effects if one.supported and one.excludes_none(PLACEBO)]
    if seen:
        worst = max(seen, key=lambda one: abs(one.value) / one.standard_error)
        sentence = (
            f"'{worst.outcome}' is declared exogenous, and in the log it moves with {worst.dose}"
            f" ({worst.value * worst.contrast:+.2g} for {worst.contrast:.3g} more). To do: leave --exogenous"
            f" {worst.outcome} away, or add what causes both."
        )
        value = abs(worst.value) / worst.standard_error
        findings.append(Finding("exogenous in the log", value, 3.29, False, sentence, None, False))
    if not findings:
        sentence = f"No action moves the exogenous {quoted(names)}, in the model or in the log."
        findings.append(Finding("exogenous columns", float(moved.max()), REACTION, True, sentence))
    return findings


def _some_subjects(rows: Transitions, theta: Theta, seed: int) -> tuple[Transitions, Theta]:
    """The real rows of all subjects, or of so many that there are about `MOST_ROWS`."""
    kept = ~rows.imagined
    if int(kept.sum()) > MOST_ROWS:
        subjects = rows.subject[kept].unique()
        order = torch.randperm(len(subjects), generator=generator(seed, "subjects"))
        count = max(round(len(subjects) * MOST_ROWS / int(kept.sum())), 2)
        kept &= torch.isin(rows.subject, subjects[order[:count].to(subjects.device)])
    return rows[kept], theta[kept.to(theta.device)] if len(theta) == len(rows) else theta
