"""What a policy recommends to new subjects, how each action is valued and supported, and why none is named.

An action that too few of the similar logged rows had is never recommended: the best supported one is, and the reason
is said. A subject unlike everybody in the log, or with a level that no training subject had, gets no recommendation.
Values outside the returns that an episode can have are moved to the nearer end of their range. The verdict on the model
behind the policy is part of every answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.checks.support import (
    SimilarRows,
    Threshold,
    near_doses,
)
from counterpoint.core.settings import Share, checked
from counterpoint.data.returns import ReturnRange
from counterpoint.data.schema import agree
from counterpoint.data.spaces import Discrete
from counterpoint.data.tables.new_subjects import CurrentStates, read_patients
from counterpoint.data.transitions import Transitions
from counterpoint.models.base import Model
from counterpoint.policies.base import Policy, Verdict
from counterpoint.policies.personal import (
    SubjectPolicy,
    policy_for_subject,
)
from counterpoint.policies.q import QPolicy
from counterpoint.policies.reservations import UNLIKE, impossible, is_placeholder, out_of_range, returns_of, unseen
from counterpoint.policies.values import action_values, subject_values
from counterpoint.tasks.base import Task

WITHHELD = "no recommendation"
"""The label where nothing is recommended; a treatment may be called "none"."""
DIGITS = 3
"""Decimals of a support."""


@dataclass(frozen=True)
class Advice:
    """What one subject is recommended."""

    subject: str
    action: dict[str, Any] | None
    """A value for each action column of the table; none where nothing can be recommended."""
    label: str
    value: float | None
    """Q of the recommended action, in the units of the reward; none where the policy has no values."""
    support: float
    """Share of the similar logged states in which the recommended action was taken."""
    values: dict[str, float]
    """Q of every action."""
    supports: dict[str, float]
    """Share of the similar logged states in which each action was taken."""
    why: str
    """What must be known before the recommendation is followed; empty where there is nothing."""


@dataclass(frozen=True)
class Recommendations:
    """One advice a subject, and the verdict on the model behind all of them."""

    verdict: Verdict
    advice: tuple[Advice, ...]
    notes: tuple[str, ...] = ()
    """What was done in reading the table, and what was said of all values."""

    def to_json(self) -> dict[str, Any]:
        return {
            "trust": self.verdict.trust,
            "reasons": list(self.verdict.reasons),
            "notes": list(self.notes),
            "recommendations": [vars(each) for each in self.advice],
        }

    def rows(self) -> list[dict[str, Any]]:
        """A flat row a subject, for a CSV file."""
        return [self._row(each) for each in self.advice]

    def _row(self, each: Advice) -> dict[str, Any]:
        told = {"subject": each.subject, "recommended": each.label, **(each.action or {})}
        known = {"value": each.value, "support": each.support, "why": each.why, "trust": self.verdict.trust}
        values = {f"value of {label}": value for label, value in each.values.items()}
        return {**told, **known, **values, **{f"support of {label}": s for label, s in each.supports.items()}}


@checked
def recommend(
    policy: Policy,
    table: Any,
    logged: Transitions,
    seed: int = 0,
    model: Model | None = None,
    task: Task | None = None,
    min_support: Share | None = None,
) -> Recommendations:
    """Advice for each subject of a table with the training table's columns, by its last row.

    `logged` are the rows that the policy was learned from, where similar states are looked for. A policy that has no
    values of its own gets them by rollouts in `model`, rewarded and ended by `task`, where both are given. A subject's
    factor counts as unknown, and a personal policy answers as it does to anybody; see `recommend_to`. An action counts
    as supported where at least 5% and three of the similar rows had it, or the share `min_support` where one is given.
    """
    agree(policy.schema, logged.schema, "policy", "log")
    patients = read_patients(table, policy.schema, logged.layout)
    met = policy_for_subject(policy, logged[logged.subject < 0], model)
    values = _values(met, patients.state, model, task, seed)
    possible = returns_of(logged, task, isinstance(met.inner, QPolicy))
    threshold = Threshold.stated(min_support)
    advice = advise(met.policy, patients, logged, values, seed, threshold, possible)
    notes = [*patients.notes, "" if values is None else impossible(values, possible), stated(min_support)]
    return Recommendations(policy.verdict, advice, tuple(note for note in notes if note))


def stated(min_support: float | None) -> str:
    """What is said where a user chose the threshold of support."""
    return "" if min_support is None else f"an action counts as supported from {Threshold.stated(min_support)} on"


def advise(
    policy: Policy,
    patients: CurrentStates,
    logged: Transitions,
    values: Float[Tensor, "n actions"] | None,
    seed: int,
    threshold: Threshold,
    possible: ReturnRange,
) -> tuple[Advice, ...]:
    """What a policy advises each subject, given the values of all actions where they are known."""
    strange, beyond = unseen(patients, logged), out_of_range(patients, logged)
    notes = [_joined(_not_measured(patients, i), beyond[i], _gaps(patients, i)) for i in range(len(patients.names))]
    if not isinstance(policy.actions, Discrete):
        return _doses(policy, patients, logged, seed, threshold, strange, notes)
    labels = policy.schema.labels()
    similar = SimilarRows(logged, seed=seed)
    taken, known = similar.taken(patients.state, len(labels))
    wanted = policy.actions.index(policy.act(patients.state))
    advice = []
    for i, name in enumerate(patients.names):
        supported = threshold.met(taken[i], similar.count)
        own = _ByLabel(labels, taken[i].double() / similar.count, None if values is None else values[i], possible)
        why = strange[i] or ("" if bool(known[i]) else UNLIKE)
        place, said = (None, why) if why else _supported(int(wanted[i]), own, supported)
        choice = None if place is None else policy.schema.choices()[place]
        advice.append(own.advice(name, place, choice, _joined(said, notes[i])))
    return tuple(advice)


@dataclass(frozen=True)
class _ByLabel:
    """What is known of every action for one subject."""

    labels: Sequence[str]
    share: Float[Tensor, " actions"]
    values: Float[Tensor, " actions"] | None
    possible: ReturnRange

    def advice(self, subject: str, place: int | None, choice: dict[str, Any] | None, why: str) -> Advice:
        shares = [round(share, DIGITS) for share in self.share.tolist()]
        supports = dict(zip(self.labels, shares, strict=True))
        clipped = [] if self.values is None else self.possible.clip(self.values).tolist()
        values = dict(zip(self.labels, clipped, strict=True)) if clipped else {}
        if place is None:
            return Advice(subject, None, WITHHELD, None, 0.0, values, supports, why)
        label = self.labels[place]
        return Advice(subject, choice, label, values.get(label), shares[place], values, supports, why)


def _doses(
    policy: Policy,
    patients: CurrentStates,
    logged: Transitions,
    seed: int,
    threshold: Threshold,
    strange: Sequence[str],
    notes: Sequence[str],
) -> tuple[Advice, ...]:
    """Continuous doses: none is recommended that too few alike were given about as much of."""
    wanted = policy.act(patients.state)
    similar = SimilarRows(logged, seed=seed)
    share, known = near_doses(similar, patients.state, wanted)
    supported = threshold.met((share * similar.count).round(), similar.count)
    advice = []
    for i, name in enumerate(patients.names):
        dose = dict(zip(policy.schema.action_names, map(float, wanted[i]), strict=True))
        label = ", ".join(f"{n} {v:.3g}" for n, v in dose.items())
        why = strange[i] or ("" if known[i] else UNLIKE)
        why = why or ("" if supported[i] else f"'{label}', or about as much, {_rarely(float(share[i]))}")
        told = (None, WITHHELD, None, 0.0) if why else (dose, label, None, round(float(share[i]), DIGITS))
        advice.append(Advice(name, *told, {}, {}, _joined(why, notes[i])))
    return tuple(advice)


def _not_measured(patients: CurrentStates, i: int) -> str:
    return f"{', '.join(patients.filled[i])} not measured now" if patients.filled[i] else ""


def _gaps(patients: CurrentStates, i: int) -> str:
    gaps = patients.gaps[i]
    return f"{gaps} gap{'s' if gaps > 1 else ''} among its rows" if gaps else ""


def _values(
    met: SubjectPolicy, state: Float[Tensor, "n s"], model: Model | None, task: Task | None, seed: int
) -> Float[Tensor, "n actions"] | None:
    """The value of every action for every subject; none where nothing can say so."""
    if not isinstance(met.policy.actions, Discrete):
        return None
    if isinstance(met.inner, QPolicy):
        return met.inner.values(state, met.theta)
    if model is None or task is None:
        return None
    if model.theta_width:
        return subject_values(met.policy, model, task, state, met.factors, episodes=4, seed=seed).mean
    return action_values(met.policy, model, task, state, seed=seed).mean


def _supported(wanted: int, own: _ByLabel, supported: Tensor) -> tuple[int | None, str]:
    """The action to recommend among those that enough similar subjects were given, and what must be said of it."""
    named = torch.tensor([not is_placeholder(label) for label in own.labels])
    allowed = supported.cpu() & named
    if own.values is not None:
        allowed = allowed & own.values.isfinite().cpu()
    if bool(allowed[wanted]):
        return wanted, ""
    what = f"'{own.labels[wanted]}'"
    if not named[wanted]:
        refused = f"the policy's choice {what} is no treatment"
    elif not bool(supported[wanted]):
        refused = f"the policy's choice {what} {_rarely(float(own.share[wanted]))}"
    else:
        refused = f"the policy's choice {what} has no finite value"
    if own.values is None:
        return None, f"{refused}, and the policy values no other"
    if not bool(allowed.any()):
        return None, f"{refused}, and no other action is supported either"
    best = own.values.cpu().masked_fill(~allowed, -torch.inf)
    return int(best.argmax()), f"{refused}; this is the best of those that are supported"


def _rarely(share: float) -> str:
    """How seldom an action that is not supported was given."""
    return "was given to nobody like this subject" if share <= 0 else f"was given in only {share:.0%} of similar rows"


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
