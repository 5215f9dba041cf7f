"""A policy laid beside a log: the question that estimators are asked, and what must be learned to answer it.

`evaluate`: what a log says of a policy, by every estimator, with what each rests on and a verdict in words."""

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from counterpoint.core.seeding import derive
from counterpoint.core.settings import Fraction, Positive, Share, check_settings, checked
from counterpoint.core.statistics import Interval
from counterpoint.data.returns import ReturnRange
from counterpoint.data.schema import Schema
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions, concatenate
from counterpoint.models.base import Model
from counterpoint.nets.training import Monitor
from counterpoint.ope.behaviour import Behaviour, BoostedTrees, Logistic, NearestNeighbours
from counterpoint.ope.confounding import Confounding, bounds, lost_at
from counterpoint.ope.diagnostics import Partition, by_group, by_severity, check_severity, diagnose
from counterpoint.ope.estimators import (
    doubly_robust,
    logged_return,
    magic,
    one_step_doubly_robust,
    per_decision_weighted_importance_sampling,
    weighted_doubly_robust,
    weighted_importance_sampling,
    widened,
)
from counterpoint.ope.fqe import FQE, Critic, mean_in_members
from counterpoint.ope.intervals import Counts, Estimator, bca, interval_of, paired_interval
from counterpoint.ope.model_based import Inside, inside_model
from counterpoint.ope.problem import (
    Episodes,
    EpsilonMixture,
    Probabilities,
    Question,
    Stochastic,
    finite_actions,
    resampled,
    subject_folds,
    target,
)
from counterpoint.ope.result import (
    BehaviourFound,
    Estimate,
    Evaluation,
    Part,
    Sensitivity,
    held_notes,
    hold,
    hold_difference,
    hold_part,
    hold_sensitivity,
    possible_range,
)
from counterpoint.ope.tabular import CellCounts, CellFQE, all_categories
from counterpoint.ope.verdict import Limits, VerdictEvidence, impossible, not_to_go_by, verdict
from counterpoint.policies.base import Policy, Verdict
from counterpoint.tasks.base import Task

RECOMMENDED = "one-step DR"
"""The estimate to go by."""
LEAST = 1e-12
"""A spread of critics that are all alike."""

BehaviourRecipe = Logistic | BoostedTrees | NearestNeighbours | CellCounts


@dataclass(frozen=True)
class OPESettings:
    """How policies are judged."""

    behaviour: BehaviourRecipe | None = None
    """How whoever logged is estimated; none for counts where all state columns are categories, else for the way, of
    logistic regression and `others`, that foresees other subjects best (the least Brier score)."""
    others: tuple[BehaviourRecipe, ...] | None = None
    """Other ways, to see how much the estimate depends on it; none for a choice of them."""
    critic: FQE | CellFQE | None = None
    """How values are fitted; none for counts where all state columns are categories, else linear in random features."""
    softened: EpsilonMixture = EpsilonMixture()
    """What is judged in place of a policy that always takes one action."""
    confounding: Confounding = Confounding()
    """Which strengths of unmeasured confounding are looked at."""
    limits: Limits = Limits()
    """Where trust ends."""
    severity: str = ""
    """State column whose first value says how ill a subject is; empty for the return foreseen from the first state."""
    discount: Share = 1.0
    """Of a reward one step later; 1 counts all steps of a record alike."""
    draws: Positive = 1000
    """Resamples of the subjects."""
    critic_draws: Positive = 200
    """Resamples on each of which a critic is fitted."""
    folds: Positive = 5
    """Parts of the subjects, each judged by behaviours and critics of the others."""
    confidence: Fraction = 0.95
    """Of the intervals."""

    def __post_init__(self) -> None:
        check_settings(self)

    def for_table(self, schema: Schema) -> "ChosenRecipes":
        """The recipes that a table decides."""
        counted = all_categories(schema)
        behaviour = self.behaviour or (CellCounts() if counted else Logistic())
        usual: tuple[BehaviourRecipe, ...] = Logistic(), NearestNeighbours(), BoostedTrees()
        usual = (CellCounts(prior=10.0),) if counted else tuple(each for each in usual if each != behaviour)
        others = usual if self.others is None else self.others
        return ChosenRecipes(behaviour, others, self.critic or (CellFQE() if counted else FQE()))


@dataclass(frozen=True)
class ChosenRecipes:
    """The recipes of one table."""

    behaviour: BehaviourRecipe
    others: tuple[BehaviourRecipe, ...]
    critic: FQE | CellFQE


def said(recipe: Any) -> str:
    """A recipe's name, and what in it is unusual."""
    own = [(field.name, getattr(recipe, field.name), field.default) for field in fields(recipe)]
    unusual = [f"{name}={value}" for name, value, usual in own if usual is not MISSING and value != usual]
    return type(recipe).__name__ + (f"({', '.join(unusual)})" if unusual else "")


Own = Bool[Tensor, " subjects"]


@dataclass(frozen=True, eq=False)
class OPEProblem:
    """A policy laid beside a log: the question, and what was learned to answer it."""

    question: Question
    policy: Probabilities
    """The policy before any softening."""
    certain: bool
    """Whether it always takes one action."""
    behaviours: dict[str, Behaviour]
    """Whoever logged, in all rows of `log`, by the name of the way: as estimated first, and in other ways."""
    critic: Critic
    """Of every row, by a member that has not seen its subject."""
    first: Float[Tensor, "b e"]
    """The value of every episode's first state in critics of resampled logs, the first of which is the log itself."""
    counts: Float[Tensor, "b subjects"]
    """Those resamples."""
    log: Transitions
    """The rows that are judged, and behind them those of other subjects."""

    @property
    def estimators(self) -> dict[str, Estimator]:
        """What a resampled log says with critic and behaviour held fixed; those of `corrected` rest on the critic."""
        weighted = {"WIS": weighted_importance_sampling, "per-decision WIS": per_decision_weighted_importance_sampling}
        return {**self.corrected, **weighted}

    @property
    def corrected(self) -> dict[str, Estimator]:
        rest = {"DR": doubly_robust, "WDR": weighted_doubly_robust, "MAGIC": magic}
        named: dict[str, Callable[..., Tensor]] = {RECOMMENDED: one_step_doubly_robust, **rest}
        return {name: partial(each, critic=self.critic) for name, each in named.items()}

    def fitted(self, own: Own | None = None) -> Float[Tensor, " b"]:
        """What every critic of a resampled log says of it, or of some of its subjects."""
        return mean_in_members(self.question.episodes, self.first, self.counts if own is None else self.counts * own)

    def interval(self, name: str, how: OPESettings, seed: int, own: Own | None = None) -> Interval:
        """An estimate, of some of the subjects or of all; a fixed critic's own spread is added to it."""
        found = interval_of(within(self.estimators[name], own), self.question, *chance(how, seed))
        return widened(found, spread(self.fitted(own)), how.confidence) if name in self.corrected else found

    def gain(self, how: OPESettings, seed: int) -> Interval:
        """The recommended estimate less what whoever logged earned, in the same subjects."""
        question, estimator = self.question, self.estimators[RECOMMENDED]
        found = paired_interval(estimator, question, question, logged_return, *chance(how, seed))
        apart = self.fitted() - logged_return(question, self.counts)
        return widened(found, spread(apart), how.confidence)

    def gain_over(self, other: "OPEProblem", how: OPESettings, seed: int) -> Interval:
        """The same less another policy's, whose critics have seen the same resampled logs."""
        estimators = self.estimators[RECOMMENDED], other.estimators[RECOMMENDED]
        found = paired_interval(estimators[0], self.question, other.question, estimators[1], *chance(how, seed))
        return widened(found, spread(self.fitted() - other.fitted()), how.confidence)

    def with_behaviour(self, behaviour: Behaviour) -> "OPEProblem":
        """The same case by another estimate of whoever logged."""
        acted = behaviour.probabilities[: len(self.question.rows)]
        return replace(self, question=replace(self.question, behaviour=acted))


def chance(how: OPESettings, seed: int) -> tuple[int, float, int]:
    """Draws, confidence and seed of an interval over subjects: the same subjects for all."""
    return how.draws, how.confidence, derive(seed, "subjects")


def spread(values: Float[Tensor, " b"]) -> float:
    """Standard deviation over the resampled logs."""
    return max(float(values[1:].std()), LEAST) if len(values) > 2 else LEAST


def within(estimator: Estimator, own: Own | None) -> Estimator:
    """The same estimator among some of the subjects."""

    def among(question: Question, counts: Counts) -> Float[Tensor, " b"]:
        return estimator(question, counts if own is None else counts * own)

    return among


def lay_beside(
    rows: Transitions,
    policy: Policy | Stochastic,
    how: OPESettings,
    others: Transitions | None = None,
    model: Model | None = None,
    seed: int = 0,
    monitor: Monitor = Monitor(),
    behaviours: dict[str, Behaviour] | None = None,
) -> OPEProblem:
    """Ask the policy, estimate who logged (unless that was done), fit the critics."""
    episodes, found = Episodes.of(rows), target(policy, rows, model, seed)
    log = whole_log(rows, others)
    behaviours = behaviours or estimate_behaviours(how, log, seed, monitor)
    acted = next(iter(behaviours.values())).probabilities[: len(rows)]
    judged = found.softened(how.softened, rows, acted)
    question = Question(episodes, judged.now, judged.after, acted, how.discount)
    recipe, own = how.for_table(rows.schema).critic, derive(seed, "critic")
    folds = subject_folds(episodes.subjects, min(how.folds, episodes.subjects), own)
    critic = recipe.cross_fit(question, folds, own, monitor.stage("critic"))
    drawn = resampled(episodes.subjects, how.critic_draws, derive(seed, "critics"))
    counts = torch.cat([torch.ones_like(drawn[:1]), drawn])
    first = recipe.first_values(question, counts, own, monitor.stage("resampled critics"))
    return OPEProblem(question, found.now, found.certain, behaviours, critic, first, counts, log)


def whole_log(rows: Transitions, others: Transitions | None) -> Transitions:
    """The rows that are judged, and behind them those of other subjects."""
    return concatenate([rows, others]) if others is not None and len(others) else rows


def estimate_behaviours(how: OPESettings, log: Transitions, seed: int, monitor: Monitor) -> dict[str, Behaviour]:
    """Whoever logged, in every way asked for; the best first, where none was asked for first."""
    chosen, found, folds = how.for_table(log.schema), {}, min(how.folds, len(log.subject.unique()))
    recipes = chosen.behaviour, *chosen.others
    for done, recipe in enumerate(recipes):
        monitor.report("who logged", done, len(recipes))
        found[said(recipe)] = recipe.cross_fit(log, folds, derive(seed, "behaviour"))
    monitor.report("who logged", len(recipes), len(recipes))
    if how.behaviour is not None or all_categories(log.schema):  # Counts have seen the rows that they are scored on.
        return found
    return dict(sorted(found.items(), key=lambda named: named[1].brier))


LOGGED = "whoever logged"
CONTINUOUS = (
    "The doses are continuous, so that no record can be weighed: a model alone speaks of the policy, and the log cannot"
    " tell whether it is right; read the table with the doses cut (--bins 5)."
)
FEWEST = 20
"""Pairs of a row and an action below which a point of the calibration curve is chance, and somebody's record."""


@checked
def evaluate(
    rows: Transitions,
    policy: Policy | Stochastic,
    how: OPESettings = OPESettings(),
    *,
    others: Transitions | None = None,
    held_out: bool = False,
    model: Model | None = None,
    task: Task | None = None,
    check: Verdict = Verdict(),
    name: str = "",
    seed: int = 0,
    monitor: Monitor = Monitor(),
) -> Evaluation:
    """What the log says of the policy.

    `rows` are whole records, best of subjects that the policy has not learned from (`held_out`); rows of `others` help
    to estimate who logged and to find similar states. A `model` and a `task` add what the policy earns inside them,
    and what `check` found of the model says whether that is to be gone by.

    Example:
        >>> import counterpoint as cp
        >>> ward = cp.Ward()
        >>> rows = cp.simulate(ward, cp.random_policy(ward), trials=200, steps=6, seed=0)
        >>> policy = cp.D3QN((8,), cp.Schedule(steps=20)).fit(rows, ward)
        >>> evaluate(rows, policy, OPESettings(draws=50, critic_draws=10)).verdict
        'with care'
    """
    check_severity(how.severity, rows.schema)
    asked = Asked(policy, how, held_out, name, seed, task)
    inside = inside_model(
        policy, Episodes.of(rows), model, task, how.discount, how.confidence, how.draws, seed, monitor, check
    )
    if not isinstance(rows.actions, Discrete):
        return by_model_alone(rows, asked, inside, others)
    return conclude(lay_beside(rows, policy, how, others, model, seed, monitor), asked, inside, monitor)


@dataclass(frozen=True, eq=False)
class Asked:
    """Which policy is judged, and how."""

    policy: Policy | Stochastic
    how: OPESettings
    held_out: bool
    name: str
    seed: int
    task: Task | None = None
    """What may declare the range of rewards."""

    @property
    def fresh(self) -> bool:
        """Whether the policy has learned nothing from the rows that it is judged on."""
        return self.held_out or isinstance(self.policy, Stochastic)

    def possible(self, rows: Transitions, log: Transitions) -> ReturnRange:
        """The returns that the episodes judged can have, by the rewards of the whole log."""
        return possible_range(rows, log, self.how.discount, self.task)


def conclude(case: OPEProblem, asked: Asked, inside: Inside, monitor: Monitor) -> Evaluation:
    """Every number of a case, those from inside a model beside them, and the verdict."""
    how, seed = asked.how, asked.seed
    possible = asked.possible(case.question.rows, case.log)
    whole = _unjudged(case.question, asked, inside, possible)
    estimates = tuple(hold(each, possible) for each in _estimates(case, how, seed, monitor))
    gain = Estimate.of(f"more than {LOGGED}", case.gain(how, seed))
    difference = hold_difference(gain, estimates[0], whole.logged, possible)
    told, behaviour = diagnose(case.question, case.policy, case.log, seed), _behaviour(case)
    sensitivity = hold_sensitivity(_sensitivity(case, how, seed, difference.excludes(0.0)), possible)
    groups, severity = by_group(asked.policy, case.question.episodes), by_severity(case.question, how.severity, seed)
    doubts = behaviour.error, sensitivity.lost_at, asked.fresh, inside.distrusted, possible, _outside(whole.estimates)
    judgement, reasons = verdict(
        VerdictEvidence(estimates[0], estimates[-1], sensitivity.behaviour, told, *doubts), how.limits
    )
    return replace(
        whole,
        verdict=judgement,
        reasons=reasons,
        recommended=RECOMMENDED,
        estimates=(*estimates, *whole.estimates),
        difference=difference,
        diagnostics=told,
        behaviour=behaviour,
        groups=tuple(hold_part(part, possible) for part in _parts(case, groups, how, seed)),
        severity_by=severity.by,
        severity=tuple(hold_part(part, possible) for part in _parts(case, severity, how, seed)),
        sensitivity=sensitivity,
        softened=how.softened if case.certain else None,
        notes=(*held_notes(estimates, possible), *whole.notes),
    )


def by_model_alone(rows: Transitions, asked: Asked, inside: Inside, others: Transitions | None = None) -> Evaluation:
    """Continuous doses have no probabilities: only a model says anything, and the log cannot check it."""
    if not inside.estimates:
        finite_actions(rows)
    nobody = torch.zeros(len(rows), 0)
    question = Question(Episodes.of(rows), nobody, nobody, nobody, asked.how.discount)
    possible = asked.possible(rows, whole_log(rows, others))
    whole = _unjudged(question, asked, inside, possible)
    reasons = CONTINUOUS, *not_to_go_by(inside.distrusted), *impossible(_outside(whole.estimates), possible)
    return replace(whole, reasons=reasons, recommended=inside.estimates[0].name)


def _outside(estimates: tuple[Estimate, ...]) -> tuple[str, ...]:
    """Estimates whose values no episode can have."""
    return tuple(each.name for each in estimates if each.outside)


def _unjudged(question: Question, asked: Asked, inside: Inside, possible: ReturnRange) -> Evaluation:
    """What can be said of a policy before any record is weighed: what was logged, and what a model says."""
    how = asked.how
    estimates = tuple(hold(each, possible) for each in inside.estimates)
    return Evaluation(
        policy=asked.name or "the policy",
        verdict="cannot be judged",
        reasons=(),
        recommended="",
        estimates=estimates,
        logged=Estimate.of(LOGGED, interval_of(logged_return, question, *chance(how, asked.seed))),
        difference=None,
        diagnostics=None,
        behaviour=None,
        groups=(),
        severity_by="",
        severity=(),
        sensitivity=None,
        softened=None,
        held_out=asked.fresh,
        discount=how.discount,
        confidence=how.confidence,
        draws=how.draws,
        seed=asked.seed,
        notes=(*held_notes(estimates, possible), *inside.notes),
        possible=possible,
    )


def _estimates(case: OPEProblem, how: OPESettings, seed: int, monitor: Monitor) -> tuple[Estimate, ...]:
    """Every estimator with its interval over subjects, the recommended one first and FQE last."""
    found, stage = [], monitor.stage("intervals").name
    for done, name in enumerate(case.estimators):
        monitor.report(stage, done, len(case.estimators))
        found.append(Estimate.of(name, case.interval(name, how, seed)))
    monitor.report(stage, len(found), len(found))
    values = case.fitted()
    return (*found, Estimate.of("FQE", bca(float(values[0]), values[1:], values[:0], how.confidence)))


def _behaviour(case: OPEProblem) -> BehaviourFound:
    name, behaviour = next(iter(case.behaviours.items()))
    curve = behaviour.calibration()
    told = zip(curve.probability.tolist(), curve.taken.tolist(), curve.pairs.tolist(), strict=True)
    pairs = tuple((foreseen, seen) for foreseen, seen, count in told if count >= FEWEST)
    return BehaviourFound(name, behaviour.brier, curve.error, pairs)


def _parts(case: OPEProblem, partition: Partition, how: OPESettings, seed: int) -> tuple[Part, ...]:
    """The policy and whoever logged in every part that has enough subjects to be judged apart."""
    found = []
    for name, own in partition.large():
        policy = Estimate.of("policy", case.interval(RECOMMENDED, how, seed, own))
        logged = interval_of(within(logged_return, own), case.question, *chance(how, seed))
        found.append(Part(name, int(own.sum()), policy, Estimate.of("logged", logged)))
    return tuple(found)


def _sensitivity(case: OPEProblem, how: OPESettings, seed: int, differs: bool) -> Sensitivity:
    """The same estimate by other models of whoever logged, and under unmeasured confounding.

    Where the recommended estimate does not tell the policy from whoever logged (`differs`), there is nothing to lose.
    """
    question, others = case.question, list(case.behaviours.items())[1:]
    found = tuple(
        Estimate.of(name, case.with_behaviour(behaviour).interval(RECOMMENDED, how, seed)) for name, behaviour in others
    )
    counts = resampled(question.episodes.subjects, how.draws, derive(seed, "confounding"))
    per, logged = how.confounding.per, logged_return(question, counts)
    lost = lost_at(question, counts, logged, per, how.confidence) if differs else None
    return Sensitivity(found, per, bounds(question, counts, how.confounding, how.confidence), lost)
