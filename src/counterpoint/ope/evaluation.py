"""Off-policy evaluation (OPE) of a policy, or of several, from logged data: intervals, diagnostics and a verdict."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from functools import partial
from itertools import combinations
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.seeding import derive
from counterpoint.core.settings import Checked, Fraction, Positive, Share, checked
from counterpoint.core.statistics import Interval
from counterpoint.data.returns import ReturnRange
from counterpoint.data.schema import Schema
from counterpoint.data.spaces import Discrete
from counterpoint.data.tables.record_checks import shifted_records
from counterpoint.data.transitions import Transitions, concatenate, subject_folds
from counterpoint.learners.practice import baseline_policies
from counterpoint.models.base import Model
from counterpoint.nets.training import Monitor
from counterpoint.ope.behaviour import Behaviour, BoostedTrees, Logistic, NearestNeighbours
from counterpoint.ope.continuous import DoseIntervention, DoseSpread, EvaluatedDoses, dose_target
from counterpoint.ope.diagnostics import (
    SubjectPartition,
    VerdictEvidence,
    VerdictLimits,
    against_practice,
    by_group,
    by_severity,
    check_severity,
    diagnose,
    is_supported,
    verdict,
    worst_return,
)
from counterpoint.ope.estimators import (
    doubly_robust,
    logged_return,
    magic,
    one_step_doubly_robust,
    per_decision_weighted_importance_sampling,
    weighted_doubly_robust,
    weighted_importance_sampling,
)
from counterpoint.ope.fqe import FQE, Critic, mean_in_members
from counterpoint.ope.intervals import (
    Confounding,
    Counts,
    Estimator,
    bca,
    bounds,
    breakdown_strength,
    interval_of,
    paired_interval,
    widened,
)
from counterpoint.ope.model_based import ModelEstimates, estimate_in_model
from counterpoint.ope.problem import (
    Episodes,
    EpsilonMixture,
    OPEData,
    Probabilities,
    StochasticPolicy,
    resampled,
    target,
)
from counterpoint.ope.result import (
    BehaviourSummary,
    Estimate,
    Evaluation,
    PairedDifference,
    PolicyComparison,
    Sensitivity,
    SubgroupEstimate,
    clip,
    clip_difference,
    clip_sensitivity,
    clip_subgroup,
    clipping_notes,
    possible_return_range,
)
from counterpoint.ope.tabular import TabularBehaviour, TabularFQE, all_categories
from counterpoint.policies.base import Policy, Verdict
from counterpoint.tasks.base import Task

RECOMMENDED = "one-step DR"
"""Name of the recommended estimator."""
LOGGED = "behaviour policy"
MIN_SPREAD = 1e-12
"""Standard deviation used where all resampled critics agree."""
MIN_PAIRS = 20
"""Pairs of a row and an action that a point of the calibration curve needs; fewer are noise, and could identify a
subject."""

EvaluatedPolicy = Policy | StochasticPolicy | DoseIntervention
BehaviourRecipe = Logistic | BoostedTrees | NearestNeighbours | TabularBehaviour
SubjectMask = Bool[Tensor, " subjects"]


@dataclass(frozen=True)
class OPESettings(Checked):
    """Settings of an off-policy evaluation."""

    behaviour: BehaviourRecipe | None = None
    """Model of the behaviour policy. None: counts where all state columns are categories, else the one of logistic
    regression and `alternative_behaviours` with the smallest Brier score on held-out subjects."""
    alternative_behaviours: tuple[BehaviourRecipe, ...] | None = None
    """Further behaviour models, for sensitivity analysis; None for the default ones."""
    critic: FQE | TabularFQE | None = None
    """Fitted Q evaluation. None: counts where all state columns are categories, else linear in random features."""
    mixture: EpsilonMixture = EpsilonMixture()
    """Mixture with the behaviour policy that is evaluated in place of a deterministic policy of listed actions."""
    dose_spread: DoseSpread = DoseSpread()
    """The spread around a deterministic policy's continuous doses with which it is evaluated."""
    confounding: Confounding = Confounding()
    """Strengths of unmeasured confounding for the sensitivity analysis."""
    limits: VerdictLimits = VerdictLimits()
    """Thresholds of the verdict."""
    severity: str = ""
    """State column whose first value measures severity; empty for the return predicted from the first state."""
    discount: Share = 1.0
    """Discount factor γ; 1 for the total reward of an episode."""
    draws: Positive = 1000
    """Bootstrap resamples of the subjects."""
    critic_draws: Positive = 200
    """Bootstrap resamples on which a critic is refitted."""
    folds: Positive = 5
    """Folds of subjects for cross-fitting behaviour models and critics."""
    confidence: Fraction = 0.95
    """Confidence level of the intervals."""
    baselines: bool = True
    """Whether practice and naive policies are evaluated beside the policy: nothing, and the commonest action."""

    def for_table(self, schema: Schema) -> "TableRecipes":
        """Fill in the recipes that depend on the table's columns."""
        tabular = all_categories(schema)
        behaviour = self.behaviour or (TabularBehaviour() if tabular else Logistic())
        defaults: tuple[BehaviourRecipe, ...] = (Logistic(), NearestNeighbours(), BoostedTrees())
        if tabular:
            alternatives: tuple[BehaviourRecipe, ...] = (TabularBehaviour(prior=10.0),)
        else:
            alternatives = tuple(recipe for recipe in defaults if recipe != behaviour)
        if self.alternative_behaviours is not None:
            alternatives = self.alternative_behaviours
        return TableRecipes(behaviour, alternatives, self.critic or (TabularFQE() if tabular else FQE()))


@dataclass(frozen=True)
class TableRecipes:
    """Recipes of the nuisance models for one table."""

    behaviour: BehaviourRecipe
    alternative_behaviours: tuple[BehaviourRecipe, ...]
    critic: FQE | TabularFQE


@dataclass(frozen=True, eq=False)
class OPEProblem:
    """A policy and a log, with the nuisance models (behaviour policy and critic) that the estimators need."""

    data: OPEData
    policy: Probabilities
    """Action probabilities of the policy in the evaluated rows, before mixing with the behaviour policy; its doses
    where they are continuous."""
    deterministic: bool
    """Whether the policy always takes one action."""
    alternatives: dict[str, OPEData]
    """The data with other estimates of the behaviour policy, or of the density ratios, for sensitivity analysis."""
    behaviour: BehaviourSummary | None
    """Quality of the estimated behaviour policy; None for continuous doses."""
    calibration_error: float
    """Calibration error of the behaviour policy's probabilities, or of the classifier behind the density ratios."""
    critic: Critic
    """Cross-fitted: each row's values come from a fit without its subject."""
    first_values: Float[Tensor, "b e"]
    """Value of every episode's first state in critics of resampled logs; the first of these is the log itself."""
    counts: Float[Tensor, "b subjects"]
    """Counts of the subjects in those resampled logs."""
    log: Transitions
    """The evaluated rows, followed by rows of other subjects."""
    notes: tuple[str, ...] = ()
    """What was evaluated in place of a dose, and how its density ratios were estimated."""

    @property
    def estimators(self) -> dict[str, Estimator]:
        """Estimators by name, with behaviour and critic held fixed."""
        weighted = {"WIS": weighted_importance_sampling, "per-decision WIS": per_decision_weighted_importance_sampling}
        return {**self.critic_estimators, **weighted}

    @property
    def critic_estimators(self) -> dict[str, Estimator]:
        """The estimators that correct the critic by the log."""
        functions: dict[str, Callable[..., Tensor]] = {
            RECOMMENDED: one_step_doubly_robust,
            "DR": doubly_robust,
            "WDR": weighted_doubly_robust,
            "MAGIC": magic,
        }
        return {name: partial(function, critic=self.critic) for name, function in functions.items()}

    def fqe(self, mask: SubjectMask | None = None) -> Float[Tensor, " b"]:
        """FQE estimate of every resampled critic, for all subjects or those in `mask`."""
        counts = self.counts if mask is None else self.counts * mask
        return mean_in_members(self.data.episodes, self.first_values, counts)

    def interval(self, name: str, settings: OPESettings, seed: int, mask: SubjectMask | None = None) -> Interval:
        """Estimate with interval, for all subjects or those in `mask`; includes the critic's own variance."""
        interval = interval_of(among(self.estimators[name], mask), self.data, *bootstrap_of(settings, seed))
        if name not in self.critic_estimators:
            return interval
        return widened(interval, critic_spread(self.fqe(mask)), settings.confidence)

    def gain(self, settings: OPESettings, seed: int) -> Interval:
        """The recommended estimate minus the logged return, paired by subject."""
        estimator = self.estimators[RECOMMENDED]
        interval = paired_interval(estimator, self.data, self.data, logged_return, *bootstrap_of(settings, seed))
        differences = self.fqe() - logged_return(self.data, self.counts)
        return widened(interval, critic_spread(differences), settings.confidence)

    def gain_over(self, other: "OPEProblem", settings: OPESettings, seed: int) -> Interval:
        """The recommended estimate minus that of another policy, paired by subject."""
        estimator = self.estimators[RECOMMENDED]
        baseline = other.estimators[RECOMMENDED]
        interval = paired_interval(estimator, self.data, other.data, baseline, *bootstrap_of(settings, seed))
        return widened(interval, critic_spread(self.fqe() - other.fqe()), settings.confidence)

    def with_data(self, name: str) -> "OPEProblem":
        """The same problem with another estimate of the behaviour policy."""
        return replace(self, data=self.alternatives[name])

    @property
    def continuous(self) -> bool:
        """Whether doses are continuous."""
        return self.data.ratios is not None


def bootstrap_of(settings: OPESettings, seed: int) -> tuple[int, float, int]:
    """Draws, confidence and seed of the bootstrap; all estimators resample the same subjects."""
    return settings.draws, settings.confidence, derive(seed, "subjects")


def critic_spread(values: Float[Tensor, " b"]) -> float:
    """Standard deviation over the resampled logs."""
    return max(float(values[1:].std()), MIN_SPREAD) if len(values) > 2 else MIN_SPREAD


def among(estimator: Estimator, mask: SubjectMask | None) -> Estimator:
    """Restrict an estimator to the subjects in `mask`."""

    def restricted(data: OPEData, counts: Counts) -> Float[Tensor, " b"]:
        return estimator(data, counts if mask is None else counts * mask)

    return restricted


def fit_problem(
    rows: Transitions,
    policy: Policy | StochasticPolicy,
    settings: OPESettings,
    others: Transitions | None = None,
    model: Model | None = None,
    seed: int = 0,
    monitor: Monitor = Monitor(),
    behaviours: dict[str, Behaviour] | None = None,
) -> OPEProblem:
    """Compute the policy's action probabilities and fit behaviour models (unless given) and critics."""
    episodes = Episodes.of(rows)
    policy_in_log = target(policy, rows, model, seed)
    log = whole_log(rows, others)
    behaviours = behaviours or estimate_behaviours(settings, log, seed, monitor)
    behaviour = next(iter(behaviours.values())).probabilities[: len(rows)]
    evaluated = policy_in_log.mixed(settings.mixture, rows, behaviour)
    data = OPEData(episodes, evaluated.now, evaluated.after, behaviour, settings.discount)
    alternatives = {
        name: replace(data, behaviour=other.probabilities[: len(rows)]) for name, other in list(behaviours.items())[1:]
    }
    summary = _behaviour_summary(behaviours)
    nuisances = alternatives, summary, summary.error
    recipe = settings.for_table(rows.schema).critic
    fitted = _fitted_critics(recipe, data, settings, seed, monitor)
    return OPEProblem(data, policy_in_log.now, policy_in_log.deterministic, *nuisances, *fitted, log)


def fit_dose_problem(
    rows: Transitions,
    policy: EvaluatedDoses,
    settings: OPESettings,
    others: Transitions | None = None,
    model: Model | None = None,
    seed: int = 0,
    monitor: Monitor = Monitor(),
) -> OPEProblem:
    """Compute the policy's doses, estimate their density ratios and fit critics."""
    episodes = Episodes.of(rows)
    log = whole_log(rows, others)
    monitor.report("density ratios", 0, 1)
    doses = dose_target(policy, log, settings.dose_spread, settings.folds, model, seed)
    monitor.report("density ratios", 1, 1)
    evaluated = slice(len(rows))
    now, after = doses.now[evaluated].flatten(1), doses.after[evaluated].flatten(1)
    first, *rest = ((name, ratio[evaluated]) for name, ratio in doses.ratios.items())
    data = OPEData(episodes, now, after, torch.zeros(len(rows), 0), settings.discount, first[1], doses.drawn_ratio)
    alternatives = {name: replace(data, ratios=ratio) for name, ratio in rest}
    intervention = isinstance(policy, DoseIntervention)
    what = f"the policy's doses with a spread of {settings.dose_spread}"
    what = "the intervention on the logged doses" if intervention else what
    notes = (f"evaluated: {what}; density ratios by {first[0]}, {doses.calibration_error:.1%} off on average",)
    recipe = settings.critic if isinstance(settings.critic, FQE) else FQE()
    fitted = _fitted_critics(recipe, data, settings, seed, monitor)
    nuisances = alternatives, None, doses.calibration_error
    return OPEProblem(data, doses.centre[evaluated], not intervention, *nuisances, *fitted, log, notes)


def _fitted_critics(
    recipe: FQE | TabularFQE, data: OPEData, settings: OPESettings, seed: int, monitor: Monitor
) -> tuple[Critic, Float[Tensor, "b e"], Float[Tensor, "b subjects"]]:
    """A critic cross-fitted by subject, and first values in critics of resampled logs with their counts."""
    episodes = data.episodes
    critic_seed = derive(seed, "critic")
    folds = subject_folds(episodes.subjects, min(settings.folds, episodes.subjects), critic_seed)
    critic = recipe.cross_fit(data, folds, critic_seed, monitor.stage("critic"))
    drawn = resampled(episodes.subjects, settings.critic_draws, derive(seed, "critics"))
    counts = torch.cat([torch.ones_like(drawn[:1]), drawn])
    first_values = recipe.first_values(data, counts, critic_seed, monitor.stage("resampled critics"))
    return critic, first_values, counts


def fit_any_problem(
    rows: Transitions,
    policy: EvaluatedPolicy,
    settings: OPESettings,
    others: Transitions | None = None,
    model: Model | None = None,
    seed: int = 0,
    monitor: Monitor = Monitor(),
    behaviours: dict[str, Behaviour] | None = None,
) -> OPEProblem:
    """The problem of listed actions or that of continuous doses, whichever the log has."""
    if not isinstance(rows.actions, Discrete):
        return fit_dose_problem(rows, policy, settings, others, model, seed, monitor)
    if isinstance(policy, DoseIntervention):
        raise CounterpointError("an intervention shifts continuous doses, and the log's actions are a list of them")
    return fit_problem(rows, policy, settings, others, model, seed, monitor, behaviours)


def whole_log(rows: Transitions, others: Transitions | None) -> Transitions:
    """The evaluated rows, followed by rows of other subjects."""
    return concatenate([rows, others]) if others is not None and len(others) else rows


def estimate_behaviours(settings: OPESettings, log: Transitions, seed: int, monitor: Monitor) -> dict[str, Behaviour]:
    """Fit every behaviour model. Unless one is configured, the one with the smallest Brier score comes first."""
    recipes = settings.for_table(log.schema)
    folds = min(settings.folds, len(log.subject.unique()))
    behaviours: dict[str, Behaviour] = {}
    all_recipes = (recipes.behaviour, *recipes.alternative_behaviours)
    for done, recipe in enumerate(all_recipes):
        monitor.report("behaviour policy", done, len(all_recipes))
        behaviours[describe_recipe(recipe)] = recipe.cross_fit(log, folds, derive(seed, "behaviour"))
    monitor.report("behaviour policy", len(all_recipes), len(all_recipes))
    # The Brier score of counts is in-sample, so it cannot choose between them.
    if settings.behaviour is not None or all_categories(log.schema):
        return behaviours
    return dict(sorted(behaviours.items(), key=lambda item: item[1].brier))


def describe_recipe(recipe: Any) -> str:
    """Name of a recipe and its settings that differ from the defaults."""
    changed = [
        f"{field.name}={getattr(recipe, field.name)}"
        for field in fields(recipe)
        if field.default is not MISSING and getattr(recipe, field.name) != field.default
    ]
    return type(recipe).__name__ + (f"({', '.join(changed)})" if changed else "")


@dataclass(frozen=True, eq=False)
class EvaluationRequest:
    """The policy to evaluate, and how."""

    policy: EvaluatedPolicy
    settings: OPESettings
    held_out: bool
    name: str
    seed: int
    task: Task | None = None
    """May declare the range of rewards."""

    @property
    def independent(self) -> bool:
        """Whether the policy was not learned from the evaluated rows."""
        return self.held_out or not isinstance(self.policy, Policy)

    def possible(self, rows: Transitions, log: Transitions) -> ReturnRange:
        """Range of returns of the evaluated episodes, from the rewards of the whole log."""
        return possible_return_range(rows, log, self.settings.discount, self.task)


@checked
def evaluate(
    rows: Transitions,
    policy: EvaluatedPolicy,
    settings: OPESettings = OPESettings(),
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
    """Estimate the mean return of a policy from logged episodes of other policies.

    Arguments:
        rows: whole episodes to evaluate on, preferably of subjects that the policy was not learned from.
        policy: the policy to evaluate, or an intervention on continuous doses.
        settings: estimators' settings.
        others: rows of other subjects; used to fit the behaviour policy and to find similar states.
        held_out: whether `rows` are of subjects that the policy was not learned from.
        model, task: add the policy's simulated and counterfactual return inside this fitted model.
        check: result of the model's checks; decides whether those two are relied on.
        name: name of the policy in the result.
        seed: seed of all randomness.
        monitor: receives the progress.

    Example:
        >>> import counterpoint as cp
        >>> ward = cp.Ward()
        >>> rows = cp.simulate(ward, cp.random_policy(ward), trials=200, steps=6, seed=0)
        >>> policy = cp.D3QN((8,), cp.Schedule(steps=20)).fit(rows, ward)
        >>> evaluate(rows, policy, OPESettings(draws=50, critic_draws=10)).verdict
        'with care'
    """
    check_severity(settings.severity, rows.schema)
    request = EvaluationRequest(policy, settings, held_out, name, seed, task)
    discount, confidence, draws = settings.discount, settings.confidence, settings.draws
    in_model = estimate_in_model(
        policy, Episodes.of(rows), model, task, discount, confidence, draws, seed, monitor, check
    )
    listed = isinstance(rows.actions, Discrete)
    behaviours = estimate_behaviours(settings, whole_log(rows, others), seed, monitor) if listed else None
    problem = fit_any_problem(rows, policy, settings, others, model, seed, monitor, behaviours)
    evaluation = evaluate_problem(problem, request, in_model, monitor)
    return replace(evaluation, baselines=evaluate_baselines(rows, others, request, behaviours, monitor))


BASELINE_CRITICS = 50
"""Resampled critics of a baseline, at most."""


def evaluate_baselines(
    rows: Transitions,
    others: Transitions | None,
    request: EvaluationRequest,
    behaviours: dict[str, Behaviour] | None,
    monitor: Monitor,
) -> tuple[Estimate, ...]:
    """The recommended estimate of practice and of naive policies, learned from `others` where they are given."""
    settings = request.settings
    if not settings.baselines:
        return ()
    learned_from = others if others is not None and len(others.subject.unique()) > 1 else rows
    quick = replace(settings, critic_draws=min(settings.critic_draws, BASELINE_CRITICS))
    possible = request.possible(rows, whole_log(rows, others))
    estimates = []
    for name, policy in baseline_policies(learned_from, derive(request.seed, "baselines")).items():
        problem = fit_any_problem(rows, policy, quick, others, None, request.seed, monitor.stage(name), behaviours)
        overlap = diagnose(problem.data, problem.policy, problem.log, request.seed)
        label = name if is_supported(overlap, settings.limits) else f"{name}, cannot be judged"
        interval = problem.interval(RECOMMENDED, settings, request.seed)
        estimates.append(clip(Estimate.of(label, interval), possible))
    return tuple(estimates)


def evaluate_problem(
    problem: OPEProblem, request: EvaluationRequest, in_model: ModelEstimates, monitor: Monitor
) -> Evaluation:
    """Compute all estimates, diagnostics and sensitivity analyses of a problem, and the verdict."""
    settings, seed = request.settings, request.seed
    data = problem.data
    possible = request.possible(data.rows, problem.log)
    base = _evaluation_without_weights(data, request, in_model, possible)
    estimates = tuple(clip(estimate, possible) for estimate in _estimates(problem, settings, seed, monitor))
    gain = Estimate.of(f"difference from the {LOGGED}", problem.gain(settings, seed))
    difference = clip_difference(gain, estimates[0], base.logged, possible)
    diagnostics = diagnose(data, problem.policy, problem.log, seed)
    sensitivity = clip_sensitivity(_sensitivity(problem, settings, seed, difference.excludes(0.0)), possible)
    severity = by_severity(data, settings.severity, seed)
    evidence = VerdictEvidence(
        value=estimates[0],
        fitted=estimates[-1],
        others=sensitivity.behaviour,
        diagnostics=diagnostics,
        calibration_error=problem.calibration_error,
        breakdown_strength=sensitivity.breakdown_strength,
        held_out=request.independent,
        distrusted=in_model.distrusted,
        possible=possible,
        impossible=_names_outside(base.estimates),
        shifted=tuple(shifted_records(problem.log, suspected=False)),
    )
    label, reasons = verdict(evidence, settings.limits)
    worst = worst_return(data, settings.limits.worst)
    practice, shown = against_practice(evidence, difference, base.logged, base.estimates, worst, settings.limits)
    return replace(
        base,
        verdict=label,
        against_practice=practice,
        against_practice_reason=shown,
        reasons=reasons,
        recommended=RECOMMENDED,
        estimates=(*estimates, *base.estimates),
        difference=difference,
        diagnostics=diagnostics,
        behaviour=problem.behaviour,
        groups=_subgroups(problem, by_group(request.policy, data.episodes), request, possible),
        severity_by=severity.by,
        severity=_subgroups(problem, severity, request, possible),
        sensitivity=sensitivity,
        mixture=settings.mixture if problem.deterministic and not problem.continuous else None,
        notes=(*problem.notes, *clipping_notes(estimates, possible), *base.notes),
    )


def _names_outside(estimates: tuple[Estimate, ...]) -> tuple[str, ...]:
    return tuple(estimate.name for estimate in estimates if estimate.outside)


def _evaluation_without_weights(
    data: OPEData, request: EvaluationRequest, in_model: ModelEstimates, possible: ReturnRange
) -> Evaluation:
    """The part of an evaluation that needs no importance weights: logged return and model-based estimates."""
    settings = request.settings
    estimates = tuple(clip(estimate, possible) for estimate in in_model.estimates)
    return Evaluation(
        policy=request.name or "the policy",
        verdict="cannot be judged",
        reasons=(),
        recommended="",
        estimates=estimates,
        logged=Estimate.of(LOGGED, interval_of(logged_return, data, *bootstrap_of(settings, request.seed))),
        difference=None,
        diagnostics=None,
        behaviour=None,
        groups=(),
        severity_by="",
        severity=(),
        sensitivity=None,
        mixture=None,
        held_out=request.independent,
        discount=settings.discount,
        confidence=settings.confidence,
        draws=settings.draws,
        seed=request.seed,
        notes=(*clipping_notes(estimates, possible), *in_model.notes),
        possible=possible,
    )


def _estimates(problem: OPEProblem, settings: OPESettings, seed: int, monitor: Monitor) -> tuple[Estimate, ...]:
    """Every estimator with its interval, the recommended one first and FQE last."""
    estimates = []
    names = list(problem.estimators)
    stage = monitor.stage("intervals").name
    for done, name in enumerate(names):
        monitor.report(stage, done, len(names))
        estimates.append(Estimate.of(name, problem.interval(name, settings, seed)))
    monitor.report(stage, len(names), len(names))
    values = problem.fqe()
    fqe = bca(float(values[0]), values[1:], values[:0], settings.confidence)
    return (*estimates, Estimate.of("FQE", fqe))


def _behaviour_summary(behaviours: dict[str, Behaviour]) -> BehaviourSummary:
    name, behaviour = next(iter(behaviours.items()))
    curve = behaviour.calibration()
    points = zip(curve.probability.tolist(), curve.taken.tolist(), curve.pairs.tolist(), strict=True)
    shown = tuple((predicted, observed) for predicted, observed, pairs in points if pairs >= MIN_PAIRS)
    return BehaviourSummary(name, behaviour.brier, curve.error, shown)


def _subgroups(
    problem: OPEProblem, partition: SubjectPartition, request: EvaluationRequest, possible: ReturnRange
) -> tuple[SubgroupEstimate, ...]:
    """Clipped estimates and logged returns of every subgroup with enough subjects."""
    settings, seed = request.settings, request.seed
    subgroups = []
    for name, mask in partition.large():
        policy = Estimate.of("policy", problem.interval(RECOMMENDED, settings, seed, mask))
        logged = interval_of(among(logged_return, mask), problem.data, *bootstrap_of(settings, seed))
        subgroup = SubgroupEstimate(name, int(mask.sum()), policy, Estimate.of("logged", logged))
        subgroups.append(clip_subgroup(subgroup, possible))
    return tuple(subgroups)


def _sensitivity(problem: OPEProblem, settings: OPESettings, seed: int, significant: bool) -> Sensitivity:
    """The recommended estimate with other behaviour models, and bounds under unmeasured confounding.

    The breakdown strength is only searched for if the difference from the logged return is `significant`.
    """
    data = problem.data
    estimates = tuple(
        Estimate.of(name, problem.with_data(name).interval(RECOMMENDED, settings, seed))
        for name in problem.alternatives
    )
    counts = resampled(data.episodes.subjects, settings.draws, derive(seed, "confounding"))
    # The odds of a single dose have no bound that a probability would give.
    confounding = replace(settings.confounding, per="record") if problem.continuous else settings.confounding
    per = confounding.per
    strength = None
    if significant:
        strength = breakdown_strength(data, counts, logged_return(data, counts), per, settings.confidence)
    return Sensitivity(estimates, per, bounds(data, counts, confounding, settings.confidence), strength)


@checked
def compare(
    rows: Transitions,
    policies: Mapping[str, EvaluatedPolicy],
    settings: OPESettings = OPESettings(),
    *,
    others: Transitions | None = None,
    held_out: bool = False,
    models: Mapping[str, Model] | None = None,
    seed: int = 0,
    monitor: Monitor = Monitor(),
) -> PolicyComparison:
    """Evaluate several policies, keyed by name, on the same rows.

    The arguments are those of `evaluate`; `models` infer subject factors for the policies that need them.
    """
    require(len(policies) > 0, "there is no policy to compare; give at least one")
    listed = isinstance(rows.actions, Discrete)
    behaviours = estimate_behaviours(settings, whole_log(rows, others), seed, monitor) if listed else None
    problems: dict[str, OPEProblem] = {}
    evaluations: dict[str, Evaluation] = {}
    for name, policy in policies.items():
        stage = monitor.stage(name)
        model = (models or {}).get(name)
        problem = fit_any_problem(rows, policy, settings, others, model, seed, stage, behaviours)
        request = EvaluationRequest(policy, settings, held_out, name, seed)
        evaluation = evaluate_problem(problem, request, ModelEstimates(), stage)
        problems[name] = problem
        evaluations[evaluation.policy] = evaluation
    first_name = next(iter(policies))
    asked = EvaluationRequest(policies[first_name], settings, held_out, "", seed)
    baselines = evaluate_baselines(rows, others, asked, behaviours, monitor)
    pairs = [_paired(problems, evaluations, one, other, settings, seed) for one, other in combinations(problems, 2)]
    return PolicyComparison(tuple(evaluations.values()), tuple(pairs), baselines)


def _paired(
    problems: Mapping[str, OPEProblem],
    evaluations: Mapping[str, Evaluation],
    one: str,
    other: str,
    settings: OPESettings,
    seed: int,
) -> PairedDifference:
    difference = Estimate.of(f"{one} less {other}", problems[one].gain_over(problems[other], settings, seed))
    possible = evaluations[one].possible
    if possible is not None:
        difference = clip_difference(difference, evaluations[one].value, evaluations[other].value, possible)
    return PairedDifference(one, other, difference)
