"""`evaluate`: what a log says of a policy, by every estimator, with what each rests on and a verdict in words."""

from dataclasses import dataclass, replace

import torch

from counterpoint.core.seeding import derive
from counterpoint.core.settings import checked
from counterpoint.data.return_range import ReturnRange
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.models.base import Model
from counterpoint.nets.training import Monitor
from counterpoint.ope.confounding import bounds, lost_at
from counterpoint.ope.diagnostics import Partition, by_group, by_severity, check_severity, diagnose
from counterpoint.ope.episodes import Episodes, Question, resampled
from counterpoint.ope.intervals import bca, interval_of
from counterpoint.ope.model_based import Inside, inside_model
from counterpoint.ope.possible import held_notes, hold, hold_difference, hold_part, hold_sensitivity, possible_range
from counterpoint.ope.problem import RECOMMENDED, OPEProblem, OPESettings, chance, lay_beside, whole_log, within
from counterpoint.ope.result import BehaviourFound, Estimate, Evaluation, Part, Sensitivity
from counterpoint.ope.target import Stochastic, finite_actions
from counterpoint.ope.verdict import VerdictEvidence, impossible, not_to_go_by, verdict
from counterpoint.ope.weighting import logged_return
from counterpoint.policies.base import Policy, Verdict
from counterpoint.tasks.base import Task

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
    inside = inside_model(policy, Episodes.of(rows), model, task, how, seed, monitor, check)
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
