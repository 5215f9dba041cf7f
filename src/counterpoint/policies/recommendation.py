"""Recommend actions to new subjects: to each subject of a table by its last row, or to one subject by its record.

An action that too few similar logged rows have is never recommended: the best supported action is recommended instead,
and the advice gives the reason. A subject unlike all logged ones, or with a level that no training subject had, gets no
recommendation. Values outside the returns that an episode can have are clipped to their range. Every answer includes
the verdict of the checks on the policy's model, and what the clinicians do in the subject's state (practice).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.checks.support import SimilarRows, Threshold, near_doses
from counterpoint.core.settings import Share, checked
from counterpoint.data.returns import ReturnRange
from counterpoint.data.schema import Schema, agree
from counterpoint.data.spaces import Discrete
from counterpoint.data.tables.new_subjects import CurrentStates, read_history, read_patients
from counterpoint.data.transitions import Transitions
from counterpoint.models.base import Model
from counterpoint.policies.base import Policy, Verdict
from counterpoint.policies.near_practice import NearPracticePolicy
from counterpoint.policies.personal import PersonalPolicy, SubjectPolicy, policy_for_subject
from counterpoint.policies.practice import PracticePolicy
from counterpoint.policies.q import QPolicy
from counterpoint.policies.reservations import UNLIKE, impossible, is_placeholder, out_of_range, returns_of, unseen
from counterpoint.policies.values import ActionValues, rollout_values, subject_values
from counterpoint.tasks.base import Task

WITHHELD = "no recommendation"
"""The label where no action is recommended; a treatment may be called "none"."""
EVERYBODY = "the policy for all subjects"
NO_INFORMATION = "the record has too few consecutive rows to infer anything about the subject"
DIGITS = 3
"""Decimals of a support."""


@dataclass(frozen=True)
class Advice:
    """The recommendation to one subject."""

    subject: str
    action: dict[str, Any] | None
    """A value for each action column of the table; None where no action can be recommended."""
    label: str
    value: float | None
    """Q of the recommended action, in the units of the reward; None where the policy has no values."""
    support: float
    """Share of the similar logged states in which the recommended action was taken."""
    values: dict[str, float]
    """Q of every action."""
    supports: dict[str, float]
    """Share of the similar logged states in which each action was taken."""
    why: str
    """Reservations about the recommendation; empty where there are none."""
    practice: dict[str, Any] | None = None
    """What the clinicians do in this state, a value for each action column; None where it is not known."""
    practice_label: str = ""
    """The same in words; empty where it is not known."""


@dataclass(frozen=True)
class Recommendations:
    """The advice to each subject of a table, and the verdict on the model behind it."""

    verdict: Verdict
    advice: tuple[Advice, ...]
    notes: tuple[str, ...] = ()
    """How the table was read, and reservations about all values."""

    def to_json(self) -> dict[str, Any]:
        return {
            "trust": self.verdict.trust,
            "reasons": list(self.verdict.reasons),
            "notes": list(self.notes),
            "recommendations": [vars(advice) for advice in self.advice],
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return a flat row for each subject, for a CSV file."""
        return [self._row(advice) for advice in self.advice]

    def _row(self, advice: Advice) -> dict[str, Any]:
        return {
            "subject": advice.subject,
            "recommended": advice.label,
            "practice": advice.practice_label,
            **(advice.action or {}),
            "value": advice.value,
            "support": advice.support,
            "why": advice.why,
            "trust": self.verdict.trust,
            **{f"value of {label}": value for label, value in advice.values.items()},
            **{f"support of {label}": support for label, support in advice.supports.items()},
        }


@dataclass(frozen=True)
class InferredSubject:
    """The subject's factor and group as inferred from its record, and the policy used for it."""

    rows: int
    """Steps of the record that are informative about the factor."""
    factor: tuple[float, ...]
    """Posterior mean of the factor, in standard deviations of the population."""
    deviation: tuple[float, ...]
    """Posterior standard deviation of each number of the factor; 1 without information."""
    group: int | None
    """The group whose policy is used, counted from 1; None where the policy is no group's."""
    chances: tuple[float, ...]
    """Posterior probability of each group; empty without groups."""
    policy: str
    """The policy that is used, in words."""
    why: str
    """The reason why this policy is used."""


@dataclass(frozen=True)
class PersonalAdvice:
    """The advice to one subject by its record."""

    verdict: Verdict
    advice: Advice
    intervals: dict[str, tuple[float, float]]
    """Interval that holds nine in ten values of each action, over the model's members and draws of the factor."""
    subject: InferredSubject
    notes: tuple[str, ...]
    """How the record was read, and reservations about the advice."""

    def to_json(self) -> dict[str, Any]:
        intervals = {label: list(ends) for label, ends in self.intervals.items()}
        record = {name: list(v) if isinstance(v, tuple) else v for name, v in vars(self.subject).items()}
        return {
            "trust": self.verdict.trust,
            "reasons": list(self.verdict.reasons),
            "recommendation": {**vars(self.advice), "intervals": intervals},
            "record": {**record, "notes": list(self.notes)},
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return a flat row for each action, for a CSV file or a terminal."""
        return [self._row(label) for label in self.advice.supports or self.intervals]

    def _row(self, label: str) -> dict[str, Any]:
        low, high = self.intervals.get(label, (None, None))
        return {
            "action": label,
            "value": self.advice.values.get(label, self.advice.value),
            "low": low,
            "high": high,
            "support": self.advice.supports.get(label, self.advice.support),
            "recommended": self.advice.action is not None and label == self.advice.label,
            "practice": self.advice.practice_label,
        }


@checked
def recommend(
    policy: Policy,
    table: Any,
    logged: Transitions,
    seed: int = 0,
    model: Model | None = None,
    task: Task | None = None,
    min_support: Share | None = None,
    practice: PracticePolicy | None = None,
) -> Recommendations:
    """Recommend an action to each subject of a table, by its last row.

    A subject's factor counts as unknown, so a personal policy acts as for any subject; see `recommend_to`.

    Args:
        policy: The policy that chooses the actions.
        table: New subjects, with the columns of the training table.
        logged: The rows that the policy was learned from, in which similar states are looked up.
        seed: Seed of the rollouts, and of the sample of `logged` rows.
        model: A fitted model; where the policy has no Q function, values are estimated by rollouts in this model.
        task: Reward and end of the rollouts.
        min_support: Share of the similar rows that must have had an action for it to count as supported; by default
            5%, and at least three rows.
        practice: What the clinicians do, shown beside every recommendation; by default that of a policy near practice.
    """
    agree(policy.schema, logged.schema, "policy", "log")
    patients = read_patients(table, policy.schema, logged.layout)
    subject = policy_for_subject(policy, logged[logged.subject < 0], model)
    values = _values(subject, patients.state, model, task, seed)
    possible = returns_of(logged, task, isinstance(subject.inner, QPolicy))
    similar = SimilarRows(logged, seed=seed)
    advice = _advise(subject.policy, patients, logged, similar, values, Threshold.stated(min_support), possible)
    advice = _beside_practice(advice, practice or practice_of(policy), patients, logged, similar)
    notes = [*patients.notes, "" if values is None else impossible(values, possible), _stated(min_support)]
    return Recommendations(policy.verdict, advice, tuple(note for note in notes if note))


@checked
def recommend_to(
    policy: Policy,
    table: Any,
    logged: Transitions,
    seed: int = 0,
    model: Model | None = None,
    task: Task | None = None,
    min_support: Share | None = None,
    practice: PracticePolicy | None = None,
) -> PersonalAdvice:
    """Recommend an action to the one subject of a table: the last row is its current state, the rows before its record.

    A personal policy, a policy conditioned on factors that `model` infers, and one of or near personal practice use the
    record; any other policy uses the last row only. With `model` and `task`, values come from rollouts in the model.
    Arguments as in `recommend`.
    """
    agree(policy.schema, logged.schema, "policy", "log")
    history = read_history(table, policy.schema, logged.layout)
    rows = history.rows if len(history.rows) else logged[logged.subject < 0]
    if isinstance(policy, PracticePolicy | NearPracticePolicy):
        policy = policy.with_history(rows)
    practice = practice_of(policy) if practice is None else practice.with_history(rows)
    model = policy.model if model is None and isinstance(policy, PersonalPolicy) else model
    subject = policy_for_subject(policy, rows, model)
    state = history.now.state
    rollouts = None
    if model is not None and task is not None:
        rollouts = subject_values(subject.policy, model, task, state, subject.factors, seed=seed)
    means = rollouts.mean if rollouts is not None else _q_values(subject, state)
    by_action = means if isinstance(subject.policy.actions, Discrete) else None
    possible = returns_of(logged, task, rollouts is None and isinstance(subject.inner, QPolicy))
    similar = SimilarRows(logged, seed=seed)
    threshold = Threshold.stated(min_support)
    all_advice = _advise(subject.policy, history.now, logged, similar, by_action, threshold, possible)
    (advice,) = _beside_practice(all_advice, practice, history.now, logged, similar)
    notes = [*history.notes, "" if means is None else impossible(means, possible), _stated(min_support)]
    if rollouts is not None:
        rollouts = replace(rollouts, members=possible.clip(rollouts.members))
        if by_action is None and advice.action is not None:
            advice = replace(advice, value=float(rollouts.mean))
    notes.append(_better_supported(advice, threshold, similar.count))
    informative = 0 if model is None or not len(history.rows) else int(model.informative_rows(rows).sum())
    inferred = _inferred(subject, informative, len(history.rows))
    intervals = _intervals(advice, rollouts)
    return PersonalAdvice(policy.verdict, advice, intervals, inferred, tuple(note for note in notes if note))


def _values(
    subject: SubjectPolicy, state: Float[Tensor, "n s"], model: Model | None, task: Task | None, seed: int
) -> Float[Tensor, "n actions"] | None:
    """Return the value of every action for every subject; None without a Q function and without a model."""
    if not isinstance(subject.policy.actions, Discrete):
        return None
    if isinstance(subject.inner, QPolicy) or model is None or task is None:
        return _q_values(subject, state)
    if model.theta_width:
        return subject_values(subject.policy, model, task, state, subject.factors, episodes=4, seed=seed).mean
    return rollout_values(subject.policy, model, task, state, seed=seed).mean


def _q_values(subject: SubjectPolicy, state: Float[Tensor, "n s"]) -> Float[Tensor, "n actions"] | None:
    """Return the Q function's values of every action; None for a policy without one."""
    return subject.inner.values(state, subject.theta) if isinstance(subject.inner, QPolicy) else None


def _advise(
    policy: Policy,
    patients: CurrentStates,
    logged: Transitions,
    similar: SimilarRows,
    values: Float[Tensor, "n actions"] | None,
    threshold: Threshold,
    possible: ReturnRange,
) -> tuple[Advice, ...]:
    """Return the advice to every subject, given the values of all actions where they are known."""
    refusals = unseen(patients, logged)
    beyond = out_of_range(patients, logged)
    notes = [_joined(_not_measured(patients, i), beyond[i], _gaps(patients, i)) for i in range(len(patients.names))]
    if not isinstance(policy.actions, Discrete):
        return _advise_doses(policy, patients, similar, threshold, refusals, notes)
    labels = policy.schema.labels()
    counts, has_similar = similar.taken(patients.state, len(labels))
    choices = policy.actions.index(policy.act(patients.state))
    advice = []
    for i, name in enumerate(patients.names):
        shares = counts[i].double() / similar.count
        table = _ActionTable(labels, shares, None if values is None else values[i], possible)
        reason = refusals[i] or ("" if bool(has_similar[i]) else UNLIKE)
        index = None
        if not reason:
            index, reason = _supported(int(choices[i]), table, threshold.met(counts[i], similar.count))
        action = None if index is None else policy.schema.choices()[index]
        advice.append(table.advice(name, index, action, _joined(reason, notes[i])))
    return tuple(advice)


def practice_of(policy: Policy) -> PracticePolicy | None:
    """Return the practice that a policy is, or is near to; None for any other policy."""
    if isinstance(policy, NearPracticePolicy):
        return policy.practice
    return policy if isinstance(policy, PracticePolicy) else None


def _beside_practice(
    advice: Sequence[Advice],
    practice: PracticePolicy | None,
    patients: CurrentStates,
    logged: Transitions,
    similar: SimilarRows,
) -> tuple[Advice, ...]:
    """Add what the clinicians do, except for subjects unlike all logged ones, where nobody knows."""
    if practice is None:
        return tuple(advice)
    agree(practice.schema, logged.schema, "practice", "log")
    known = similar.rows(patients.state)[1]
    refused = unseen(patients, logged)
    actions = practice.usual(patients.state)
    beside = []
    for i, one in enumerate(advice):
        if refused[i] or not bool(known[i]):
            beside.append(one)
            continue
        action, label = _in_words(practice.schema, actions[i])
        beside.append(replace(one, practice=action, practice_label=label))
    return tuple(beside)


def _in_words(schema: Schema, action: Float[Tensor, " a"]) -> tuple[dict[str, Any], str]:
    """Return an action as a value for each column, and as its label."""
    if isinstance(schema.actions, Discrete):
        index = int(schema.actions.index(action[None])[0])
        return schema.choices()[index], schema.labels()[index]
    doses = dict(zip(schema.action_names, map(float, action), strict=True))
    return doses, ", ".join(f"{column} {dose:.3g}" for column, dose in doses.items())


@dataclass(frozen=True)
class _ActionTable:
    """Support and value of every action for one subject."""

    labels: Sequence[str]
    share: Float[Tensor, " actions"]
    values: Float[Tensor, " actions"] | None
    possible: ReturnRange

    def advice(self, subject: str, index: int | None, action: dict[str, Any] | None, why: str) -> Advice:
        """Return the advice to take the action at `index`, or to take none."""
        shares = [round(share, DIGITS) for share in self.share.tolist()]
        supports = dict(zip(self.labels, shares, strict=True))
        clipped = [] if self.values is None else self.possible.clip(self.values).tolist()
        values = dict(zip(self.labels, clipped, strict=True)) if clipped else {}
        if index is None:
            return Advice(subject, None, WITHHELD, None, 0.0, values, supports, why)
        label = self.labels[index]
        return Advice(subject, action, label, values.get(label), shares[index], values, supports, why)


def _advise_doses(
    policy: Policy,
    patients: CurrentStates,
    similar: SimilarRows,
    threshold: Threshold,
    refusals: Sequence[str],
    notes: Sequence[str],
) -> tuple[Advice, ...]:
    """Recommend continuous doses, but none whose neighbourhood has too little support in similar rows."""
    doses = policy.act(patients.state)
    shares, has_similar = near_doses(similar, patients.state, doses)
    supported = threshold.met((shares * similar.count).round(), similar.count)
    advice = []
    for i, name in enumerate(patients.names):
        action, label = _in_words(policy.schema, doses[i])
        share = float(shares[i])
        reason = refusals[i] or ("" if has_similar[i] else UNLIKE)
        reason = reason or ("" if supported[i] else f"'{label}', or about as much, {_rarely(share)}")
        why = _joined(reason, notes[i])
        if reason:
            advice.append(Advice(name, None, WITHHELD, None, 0.0, {}, {}, why))
        else:
            advice.append(Advice(name, action, label, None, round(share, DIGITS), {}, {}, why))
    return tuple(advice)


def _supported(choice: int, table: _ActionTable, supported: Tensor) -> tuple[int | None, str]:
    """Return the index of the policy's choice or of the best supported action, and the reason for a change."""
    named = torch.tensor([not is_placeholder(label) for label in table.labels])
    allowed = supported.cpu() & named
    if table.values is not None:
        allowed = allowed & table.values.isfinite().cpu()
    if bool(allowed[choice]):
        return choice, ""
    refused = f"the policy's choice '{table.labels[choice]}' "
    if not named[choice]:
        refused += "is no treatment"
    elif not bool(supported[choice]):
        refused += _rarely(float(table.share[choice]))
    else:
        refused += "has no finite value"
    if table.values is None:
        return None, f"{refused}, and the policy has no values of other actions"
    if not bool(allowed.any()):
        return None, f"{refused}, and no other action is supported either"
    best = table.values.cpu().masked_fill(~allowed, -torch.inf)
    return int(best.argmax()), f"{refused}; the recommended action has the highest value of those that are supported"


def _better_supported(advice: Advice, threshold: Threshold, similar: int) -> str:
    """Return a note where another supported action has a higher value than the recommended one."""
    values = {}
    for label, share in advice.supports.items():
        count = torch.tensor(round(share * similar))
        if label in advice.values and threshold.met(count, similar) and not is_placeholder(label):
            values[label] = advice.values[label]
    if advice.action is None or not values or max(values.values()) <= values[advice.label]:
        return ""
    return f"by these values '{max(values, key=lambda label: values[label])}' is better; compare the intervals"


def _intervals(advice: Advice, values: ActionValues | None) -> dict[str, tuple[float, float]]:
    """Return the interval of each action's value; where doses are continuous, of the recommended dose only."""
    if values is None or not (advice.supports or advice.action):
        return {}
    ends = zip(values.low[0].tolist(), values.high[0].tolist(), strict=True)
    return dict(zip(advice.supports or [advice.label], ends, strict=True))


def _inferred(subject: SubjectPolicy, rows: int, recorded: int) -> InferredSubject:
    """Return what `rows` informative steps of the `recorded` ones say about the subject, and which policy is used."""
    deviation = subject.factors.covariance[0].diagonal().clamp(min=0).sqrt()
    adaptation = subject.adaptation
    group = None if adaptation is None or adaptation.group is None else adaptation.group + 1
    chances = () if adaptation is None else tuple(adaptation.chances.tolist())
    practice = practice_of(subject.inner)
    if practice is not None and practice.personal and recorded:
        policy, why = "the run's policy", f"practice is moved to how this subject was treated in {_steps(recorded)}"
    else:
        policy, why = _policy_in_words(subject, rows)
    factor = tuple(subject.factors.mean[0].tolist())
    return InferredSubject(rows, factor, tuple(deviation.tolist()), group, chances, policy, why)


def _policy_in_words(subject: SubjectPolicy, rows: int) -> tuple[str, str]:
    """Return which policy is used, and why."""
    adaptation = subject.adaptation
    if adaptation is None and not subject.inner.factor_width:
        values = "; the values are this subject's" if rows and subject.factors.mean.shape[1] else ""
        return "the run's policy", f"it is the same for all subjects: of the record, only the last row counts{values}"
    if adaptation is None or adaptation.policy is not subject.inner:
        policy = "the run's policy" if adaptation is None else "one policy that is conditioned on the factor"
        informed = f"it is conditioned on the subject's factor, inferred from {_steps(rows)}"
        return policy, informed if rows else f"{NO_INFORMATION}; the policy is conditioned on the average factor"
    probability = f"{adaptation.group_probability:.0%}"
    if adaptation.group is not None:
        group = adaptation.group + 1
        groups = len(adaptation.chances)
        why = f"the subject is of group {group} of {groups} with probability {probability}, from {_steps(rows)}"
        return f"the policy of group {group}", why
    unsure = f"after {_steps(rows)} no group is probable enough (the likeliest has probability {probability})"
    return EVERYBODY, unsure if rows else NO_INFORMATION


def _stated(min_support: float | None) -> str:
    """Return a note on the threshold of support where a user chose it."""
    return "" if min_support is None else f"an action counts as supported from {Threshold.stated(min_support)} on"


def _not_measured(patients: CurrentStates, i: int) -> str:
    return f"{', '.join(patients.filled[i])} not measured now" if patients.filled[i] else ""


def _gaps(patients: CurrentStates, i: int) -> str:
    gaps = patients.gaps[i]
    return f"{gaps} gap{'s' if gaps > 1 else ''} among its rows" if gaps else ""


def _rarely(share: float) -> str:
    """Return how rarely an unsupported action was given."""
    return "was given to nobody like this subject" if share <= 0 else f"was given in only {share:.0%} of similar rows"


def _steps(rows: int) -> str:
    return f"{rows} step{'s' if rows > 1 else ''}"


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
