"""`judge`: what a log says of a policy, by every estimator, with what each of them rests on and a verdict in words."""

import torch

from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.evaluation.off_policy.case import RECOMMENDED, Case, Judging, chance, lay_beside, within
from counterpoint.evaluation.off_policy.confounding import bounds, lost_at
from counterpoint.evaluation.off_policy.diagnostics import Partition, by_group, by_severity, check_severity, diagnose
from counterpoint.evaluation.off_policy.episodes import Episodes, Question, resampled
from counterpoint.evaluation.off_policy.inside import Inside, inside_model
from counterpoint.evaluation.off_policy.intervals import bca, interval_of
from counterpoint.evaluation.off_policy.result import BehaviourFound, Estimate, Evaluation, Part, Sensitivity
from counterpoint.evaluation.off_policy.target import Stochastic, finite_actions
from counterpoint.evaluation.off_policy.verdict import Evidence, verdict
from counterpoint.evaluation.off_policy.weighting import logged_return
from counterpoint.model import Model
from counterpoint.nets.training import Monitor
from counterpoint.policies.base import Policy
from counterpoint.seeding import derive
from counterpoint.settings import checked
from counterpoint.tasks.base import Task

LOGGED = "whoever logged"
CONTINUOUS = (
    "The doses are continuous, so that no record can be weighed: a model alone speaks of the policy, and the log cannot"
    " tell whether it is right; read the table with the doses cut (--bins 5)."
)
FEWEST = 20
"""Pairs of a row and an action below which a point of the calibration curve is chance, and somebody's record."""


@checked
def judge(
    rows: Transitions,
    policy: Policy | Stochastic,
    how: Judging = Judging(),
    *,
    others: Transitions | None = None,
    held_out: bool = False,
    model: Model | None = None,
    task: Task | None = None,
    name: str = "",
    seed: int = 0,
    monitor: Monitor = Monitor(),
) -> Evaluation:
    """What the log says of the policy.

    `rows` are whole records, best of subjects that the policy has not learned from (`held_out`); rows of `others` help
    to estimate who logged and to find similar states. A `model` and a `task` add what the policy earns inside them.

    Example:
        >>> import counterpoint as cp
        >>> ward = cp.Ward()
        >>> rows = cp.simulate(ward, cp.random_policy(ward), trials=200, steps=6, seed=0)
        >>> policy = cp.D3QN((8,), cp.Schedule(steps=20)).fit(rows, ward)
        >>> judge(rows, policy, Judging(draws=50, critic_draws=10)).verdict
        'with care'
    """
    check_severity(how.severity, rows.schema)
    inside = inside_model(policy, Episodes.of(rows), model, task, how, seed, monitor)
    if not isinstance(rows.actions, Discrete):
        return by_model_alone(rows, policy, how, inside, held_out, name, seed)
    case = lay_beside(rows, policy, how, others, model, seed, monitor)
    return conclude(case, policy, how, inside, held_out, name, seed, monitor)


def conclude(
    case: Case,
    policy: Policy | Stochastic,
    how: Judging,
    inside: Inside,
    held_out: bool,
    name: str,
    seed: int,
    monitor: Monitor,
) -> Evaluation:
    """Every number of a case, those from inside a model beside them, and the verdict."""
    estimates = _estimates(case, how, seed, monitor)
    told, behaviour = diagnose(case.question, case.policy, case.log, seed), _behaviour(case)
    gain = case.gain(how, seed)
    sensitivity = _sensitivity(case, how, seed, gain.excludes(0.0))
    severity = by_severity(case.question, how.severity, seed)
    groups, levels = (_parts(case, each, how, seed) for each in (by_group(policy, case.question.episodes), severity))
    fresh = held_out or isinstance(policy, Stochastic)
    fitted, others = estimates[-1], sensitivity.behaviour
    evidence = Evidence(estimates[0], fitted, others, told, behaviour.error, sensitivity.lost_at, fresh)
    judgement, reasons = verdict(evidence, how.limits)
    return Evaluation(
        policy=name or type(policy.recipe if isinstance(policy, Policy) else policy).__name__,
        verdict=judgement,
        reasons=reasons,
        recommended=RECOMMENDED,
        estimates=(*estimates, *inside.estimates),
        logged=Estimate.of(LOGGED, interval_of(logged_return, case.question, *chance(how, seed))),
        difference=Estimate.of(f"more than {LOGGED}", gain),
        diagnostics=told,
        behaviour=behaviour,
        groups=groups,
        severity_by=severity.by,
        severity=levels,
        sensitivity=sensitivity,
        softened=how.softened if case.certain else None,
        held_out=fresh,
        discount=how.discount,
        confidence=how.confidence,
        draws=how.draws,
        seed=seed,
        notes=inside.notes,
    )


def by_model_alone(
    rows: Transitions, policy: Policy | Stochastic, how: Judging, inside: Inside, held_out: bool, name: str, seed: int
) -> Evaluation:
    """Continuous doses have no probabilities: only a model says anything, and the log cannot check it."""
    if not inside.estimates:
        finite_actions(rows)
    nobody = torch.zeros(len(rows), 0)
    asked = Question(Episodes.of(rows), nobody, nobody, nobody, how.discount)
    return Evaluation(
        policy=name or type(policy).__name__,
        verdict="cannot be judged",
        reasons=(CONTINUOUS,),
        recommended=inside.estimates[0].name,
        estimates=inside.estimates,
        logged=Estimate.of(LOGGED, interval_of(logged_return, asked, *chance(how, seed))),
        difference=None,
        diagnostics=None,
        behaviour=None,
        groups=(),
        severity_by="",
        severity=(),
        sensitivity=None,
        softened=None,
        held_out=held_out,
        discount=how.discount,
        confidence=how.confidence,
        draws=how.draws,
        seed=seed,
        notes=inside.notes,
    )


def _estimates(case: Case, how: Judging, seed: int, monitor: Monitor) -> tuple[Estimate, ...]:
    """Every estimator with its interval over subjects, the recommended one first and FQE last."""
    found, stage = [], monitor.stage("intervals").name
    for done, name in enumerate(case.estimators):
        monitor.report(stage, done, len(case.estimators))
        found.append(Estimate.of(name, case.interval(name, how, seed)))
    monitor.report(stage, len(found), len(found))
    values = case.fitted()
    return (*found, Estimate.of("FQE", bca(float(values[0]), values[1:], values[:0], how.confidence)))


def _behaviour(case: Case) -> BehaviourFound:
    name, behaviour = next(iter(case.behaviours.items()))
    curve = behaviour.calibration()
    told = zip(curve.probability.tolist(), curve.taken.tolist(), curve.pairs.tolist(), strict=True)
    pairs = tuple((foreseen, seen) for foreseen, seen, count in told if count >= FEWEST)
    return BehaviourFound(name, behaviour.brier, curve.error, pairs)


def _parts(case: Case, partition: Partition, how: Judging, seed: int) -> tuple[Part, ...]:
    """The policy and whoever logged in every part that has enough subjects to be judged apart."""
    found = []
    for name, own in partition.large():
        policy = Estimate.of("policy", case.interval(RECOMMENDED, how, seed, own))
        logged = interval_of(within(logged_return, own), case.question, *chance(how, seed))
        found.append(Part(name, int(own.sum()), policy, Estimate.of("logged", logged)))
    return tuple(found)


def _sensitivity(case: Case, how: Judging, seed: int, differs: bool) -> Sensitivity:
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
