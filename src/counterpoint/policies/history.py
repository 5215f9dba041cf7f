"""What one subject is recommended by its own record: what the record says of the subject, and what follows from it."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.checks.support import (
    SimilarRows,
    Threshold,
)
from counterpoint.core.settings import Share, checked
from counterpoint.data.schema import agree
from counterpoint.data.spaces import Discrete
from counterpoint.data.tables.new_subjects import History, read_history
from counterpoint.data.transitions import Transitions
from counterpoint.models.base import Model
from counterpoint.policies.base import Policy, Verdict
from counterpoint.policies.personal import (
    PersonalPolicy,
    SubjectPolicy,
    policy_for_subject,
)
from counterpoint.policies.q import QPolicy
from counterpoint.policies.recommendation import Advice, advise, stated
from counterpoint.policies.reservations import impossible, is_placeholder, returns_of
from counterpoint.policies.values import ActionValues, subject_values
from counterpoint.tasks.base import Task

EVERYBODY = "the policy for everybody"
NOTHING = "the record has too few rows that follow each other to tell anything of the subject"


@dataclass(frozen=True)
class Recognised:
    """What a record says of its subject."""

    rows: int
    """Steps of the record that tell something of the subject."""
    factor: tuple[float, ...]
    """By how much the subject is unlike the average one, in standard deviations of the population."""
    deviation: tuple[float, ...]
    """How unsure each number of the factor is: 1 where nothing is known, 0 where all is."""
    group: int | None
    """The group whose policy answers, counted from 1."""
    chances: tuple[float, ...]
    """How likely the subject is of each group; empty where there are none, or nothing is known."""
    policy: str
    """Which policy answers."""
    why: str
    """Why that one."""


@dataclass(frozen=True)
class PersonalAdvice:
    """The advice to one subject, and what it rests on."""

    verdict: Verdict
    advice: Advice
    intervals: dict[str, tuple[float, float]]
    """Between what nine in ten members of the model, and factors the subject may have, put the value of each action."""
    subject: Recognised
    notes: tuple[str, ...]
    """What was done in reading the record, and what speaks against the advice."""

    def to_json(self) -> dict[str, Any]:
        own = {**vars(self.advice), "intervals": {label: list(ends) for label, ends in self.intervals.items()}}
        known = {name: list(v) if isinstance(v, tuple) else v for name, v in vars(self.subject).items()}
        trust = {"trust": self.verdict.trust, "reasons": list(self.verdict.reasons)}
        return {**trust, "recommendation": own, "record": {**known, "notes": list(self.notes)}}

    def rows(self) -> list[dict[str, Any]]:
        """A flat row an action, for a CSV file or a terminal."""
        return [self._row(label) for label in self.advice.supports or self.intervals]

    def _row(self, label: str) -> dict[str, Any]:
        low, high = self.intervals.get(label, (None, None))
        value = self.advice.values.get(label, self.advice.value)
        ends = {"value": value, "low": low, "high": high}
        support = self.advice.supports.get(label, self.advice.support)
        recommended = self.advice.action is not None and label == self.advice.label
        return {"action": label, **ends, "support": support, "recommended": recommended}


@checked
def recommend_to(
    policy: Policy,
    table: Any,
    logged: Transitions,
    seed: int = 0,
    model: Model | None = None,
    task: Task | None = None,
    min_support: Share | None = None,
) -> PersonalAdvice:
    """Advice to the one subject of a table with the training table's columns: the last row is where it stands now.

    The rows before it say who it is to a personal policy, and to one that is told factors, which `model` finds; any
    other sees the last row alone. Values come from rollouts in the model, rewarded and ended by `task`; those outside
    the returns that an episode can have are moved to the nearer end of their range. `min_support` as in `recommend`.
    """
    agree(policy.schema, logged.schema, "policy", "log")
    history = read_history(table, policy.schema, logged.layout)
    rows = history.rows if len(history.rows) else logged[logged.subject < 0]
    model = policy.model if model is None and isinstance(policy, PersonalPolicy) else model
    met = policy_for_subject(policy, rows, model)
    found = None
    if model is not None and task is not None:
        found = subject_values(met.policy, model, task, history.now.state, met.factors, seed=seed)
    threshold = Threshold.stated(min_support)
    means = _means(met, history, found)
    possible = returns_of(logged, task, found is None and isinstance(met.inner, QPolicy))
    (advice,) = advise(met.policy, history.now, logged, means, seed, threshold, possible)
    known = means if means is not None else None if found is None else found.mean
    notes = [*history.notes, "" if known is None else impossible(known, possible), stated(min_support)]
    if found is not None:
        found = replace(found, members=possible.clip(found.members))
        if not isinstance(policy.actions, Discrete) and advice.action is not None:
            advice = replace(advice, value=float(found.mean))
    telling = 0 if model is None or not len(history.rows) else int(model.informative_rows(rows).sum())
    notes += _contradicted(advice, threshold, SimilarRows(logged, seed=seed).count)
    record = _recognised(met, telling)
    return PersonalAdvice(policy.verdict, advice, _intervals(advice, found), record, tuple(n for n in notes if n))


def _contradicted(advice: Advice, threshold: Threshold, similar: int) -> list[str]:
    """Whether the rollouts value another supported action more than the policy does."""
    counts = {label: round(share * similar) for label, share in advice.supports.items()}
    given = {
        label: value
        for label, value in advice.values.items()
        if threshold.met(torch.tensor(counts[label]), similar) and not is_placeholder(label)
    }
    if advice.action is None or not given or max(given.values()) <= given[advice.label]:
        return []
    return [f"by these values '{max(given, key=lambda label: given[label])}' is better; compare the intervals"]


def _means(met: SubjectPolicy, history: History, found: ActionValues | None) -> Float[Tensor, "1 actions"] | None:
    if not isinstance(met.policy.actions, Discrete):
        return None
    if found is not None:
        return found.mean
    return met.inner.values(history.now.state, met.theta) if isinstance(met.inner, QPolicy) else None


def _intervals(advice: Advice, found: ActionValues | None) -> dict[str, tuple[float, float]]:
    """By action; of the recommended dose alone where doses are continuous."""
    if found is None or not (advice.supports or advice.action):
        return {}
    ends = zip(found.low[0].tolist(), found.high[0].tolist(), strict=True)
    return dict(zip(advice.supports or [advice.label], ends, strict=True))


def _recognised(met: SubjectPolicy, rows: int) -> Recognised:
    factor, covariance = met.factors.mean[0], met.factors.covariance[0]
    known = (rows, tuple(factor.tolist()), tuple(covariance.diagonal().clamp(min=0).sqrt().tolist()))
    if met.adaptation is None:
        return Recognised(*known, None, (), "the run's policy", _not_personal(met, rows))
    chances, group = tuple(met.adaptation.chances.tolist()), met.adaptation.group
    if met.adaptation.policy is not met.inner:
        why = (
            f"it is told the subject's factor, from {_steps(rows)}"
            if rows
            else f"{NOTHING}, so the average factor is told"
        )
        return Recognised(*known, None, chances, "one policy that is told the factor", why)
    if group is not None:
        sure = f"with a chance of {met.adaptation.group_probability:.0%}, by {_steps(rows)}"
        why = f"the subject is of group {group + 1} of {len(chances)} {sure}"
        return Recognised(*known, group + 1, chances, f"the policy of group {group + 1}", why)
    likeliest = f"{met.adaptation.group_probability:.0%}"
    unsure = f"after {_steps(rows)} no group is likely enough (the likeliest has a chance of {likeliest})"
    return Recognised(*known, None, chances, EVERYBODY, unsure if rows else NOTHING)


def _not_personal(met: SubjectPolicy, rows: int) -> str:
    if not met.inner.factor_width:
        known = "; the values are this subject's" if rows and met.factors.mean.shape[1] else ""
        return f"it is the same for everybody, so that of the record only the last row counts{known}"
    return f"it is told the subject's factor, from {_steps(rows)}" if rows else f"{NOTHING}; the average factor is told"


def _steps(rows: int) -> str:
    return f"{rows} step{'s' if rows > 1 else ''}"
