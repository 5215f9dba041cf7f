"""What a policy recommends to new subjects, how each action is valued and supported, and why none is named.

An action that nobody like the subject was given is never recommended: the best supported one is, and the reason is
said. A subject unlike everybody in the log gets no recommendation. The verdict on the model behind the policy is part
of every answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.data.patients import Patients, read_patients
from counterpoint.data.schema import agree
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.model import Model
from counterpoint.policies.base import Policy, Verdict
from counterpoint.policies.personal import Met, meet
from counterpoint.policies.qnetwork import QPolicy
from counterpoint.policies.values import action_values, subject_values
from counterpoint.scm.support import Similar, near_doses
from counterpoint.settings import checked
from counterpoint.tasks.base import Task

UNLIKE = "unlike every subject of the log, so nothing can be said"


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

    def to_json(self) -> dict[str, Any]:
        return {
            "trust": self.verdict.trust,
            "reasons": list(self.verdict.reasons),
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
) -> Recommendations:
    """Advice for each subject of a table with the training table's columns, by its last row.

    `logged` are the rows that the policy was learned from, where similar states are looked for. A policy that has no
    values of its own gets them by rollouts in `model`, rewarded and ended by `task`, where both are given. A subject's
    factor counts as unknown, and a personal policy answers as it does to anybody; see `recommend_to`.
    """
    agree(policy.schema, logged.schema, "policy", "log")
    patients = read_patients(table, policy.schema)
    met = meet(policy, logged[logged.subject < 0], model)
    values = _values(met, patients.state, model, task, seed)
    return Recommendations(policy.verdict, advise(met.policy, patients, logged, values, seed))


def advise(
    policy: Policy, patients: Patients, logged: Transitions, values: Float[Tensor, "n actions"] | None, seed: int
) -> tuple[Advice, ...]:
    """What a policy advises each subject, given what every action is worth where that is known."""
    if not isinstance(policy.actions, Discrete):
        return _doses(policy, patients, logged, seed)
    labels = policy.schema.labels()
    taken, known = Similar(logged, seed=seed).taken(patients.state, len(labels))
    share = taken.double() / taken.sum(1, keepdim=True).clamp(min=1)
    wanted = policy.actions.index(policy.act(patients.state))
    return tuple(_advice(i, patients, policy, labels, wanted, values, share, known) for i in range(len(patients.names)))


def _doses(policy: Policy, patients: Patients, logged: Transitions, seed: int) -> tuple[Advice, ...]:
    """Continuous doses: none is recommended that nobody alike was given about as much of."""
    wanted = policy.act(patients.state)
    share, known = near_doses(Similar(logged, seed=seed), patients.state, wanted)
    advice = []
    for i, name in enumerate(patients.names):
        dose = dict(zip(policy.schema.action_names, map(float, wanted[i]), strict=True))
        label, filled = ", ".join(f"{n} {v:.3g}" for n, v in dose.items()), _not_measured(patients, i)
        why = "" if known[i] else UNLIKE
        why = why or ("" if share[i] > 0 else f"'{label}' was given to nobody like this subject, nor about as much")
        told = (None, "none", None, 0.0) if why else (dose, label, None, float(share[i]))
        advice.append(Advice(name, *told, {}, {}, _joined(why, filled)))
    return tuple(advice)


def _not_measured(patients: Patients, i: int) -> str:
    return f"{', '.join(patients.filled[i])} not measured now" if patients.filled[i] else ""


def _values(
    met: Met, state: Float[Tensor, "n s"], model: Model | None, task: Task | None, seed: int
) -> Float[Tensor, "n actions"] | None:
    """What every action is worth to every subject; none where nothing can say so."""
    if not isinstance(met.policy.actions, Discrete):
        return None
    if isinstance(met.decides, QPolicy):
        return met.decides.values(state, met.told)
    if model is None or task is None:
        return None
    if model.theta_width:
        return subject_values(met.policy, model, task, state, met.factors, episodes=4, seed=seed).mean
    return action_values(met.policy, model, task, state, seed=seed).mean


def _advice(
    i: int,
    patients: Patients,
    policy: Policy,
    labels: Sequence[str],
    wanted: Tensor,
    values: Float[Tensor, "n actions"] | None,
    share: Float[Tensor, "n actions"],
    known: Tensor,
) -> Advice:
    supports = dict(zip(labels, share[i].tolist(), strict=True))
    own = {} if values is None else dict(zip(labels, values[i].tolist(), strict=True))
    filled = _not_measured(patients, i)
    if not bool(known[i]):
        return Advice(patients.names[i], None, "none", None, 0.0, own, supports, _joined(UNLIKE, filled))
    place, why = _supported(int(wanted[i]), None if values is None else values[i], share[i], labels)
    if place is None:
        return Advice(patients.names[i], None, "none", None, 0.0, own, supports, _joined(why, filled))
    value = own.get(labels[place])
    choice = policy.schema.choices()[place]
    return Advice(
        patients.names[i], choice, labels[place], value, float(share[i, place]), own, supports, _joined(why, filled)
    )


def _supported(
    wanted: int, values: Float[Tensor, " actions"] | None, share: Float[Tensor, " actions"], labels: Sequence[str]
) -> tuple[int | None, str]:
    """The action to recommend among those that similar subjects were given, and what must be said of it."""
    if share[wanted] > 0:
        return wanted, ""
    never = f"'{labels[wanted]}' is valued highest but was given to nobody like this subject"
    if values is None:
        return None, f"{never}, and the policy values no other"
    allowed = values.masked_fill(share <= 0, -torch.inf)
    if not bool(allowed.isfinite().any()):
        return None, never
    return int(allowed.argmax()), f"{never}; this is the best of those that were"


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
