"""Results of an off-policy evaluation: aggregate numbers and texts that are saved as one JSON file.

No value of a single subject is stored. All estimates are clipped to the range of returns that an episode can have.
"""

import json
import math
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from counterpoint.core.artifacts import decode, encode
from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.settings import Checked, Share
from counterpoint.core.statistics import Interval
from counterpoint.core.wording import counted, discounted
from counterpoint.data.returns import ReturnRange, possible_returns
from counterpoint.data.transitions import Transitions
from counterpoint.ope.intervals import ConfoundingBound
from counterpoint.ope.problem import Episodes, EpsilonMixture
from counterpoint.tasks.base import Task

FORMAT = "counterpoint-evaluation/2"
COMPARISON_FORMAT = "counterpoint-comparison/2"
EvaluationVerdict = Literal["supported", "with care", "cannot be judged"]
AgainstPractice = Literal["", "better than practice", "worse than practice", "dangerous"]
CLIPPED = "clipped to the possible range"


@dataclass(frozen=True)
class Estimate(Checked):
    """An estimate of a mean return and its confidence interval; a number is None where it cannot be computed."""

    name: str
    value: float | None
    low: float | None
    high: float | None
    unclipped: tuple[float | None, float | None, float | None] | None = None
    """Value and interval ends before they were clipped to the possible returns; None if all three were inside."""

    @classmethod
    def of(cls, name: str, interval: Interval) -> "Estimate":
        """Convert an interval; infinite and undefined numbers become None."""
        numbers = (interval.estimate, interval.low, interval.high)
        value, low, high = (number if math.isfinite(number) else None for number in numbers)
        return cls(name, value, low, high)

    def __str__(self) -> str:
        return f"{_interval_text(self.value, self.low, self.high)}{f', {CLIPPED}' if self.clipped else ''}"

    @property
    def clipped(self) -> bool:
        """Whether the value or an end of the interval was moved into the range of possible returns."""
        return self.unclipped is not None

    @property
    def outside(self) -> bool:
        """Whether the value itself was outside the range of possible returns."""
        return self.unclipped is not None and self.unclipped[0] != self.value

    @property
    def unclipped_text(self) -> str:
        """Value and interval before clipping."""
        return _interval_text(*(self.unclipped or (self.value, self.low, self.high)))

    @property
    def complete(self) -> bool:
        """Whether the value and both ends of the interval could be computed."""
        return None not in (self.value, self.low, self.high)

    @property
    def width(self) -> float:
        """Width of the interval; infinite where an end is missing."""
        return math.inf if self.low is None or self.high is None else self.high - self.low

    def excludes(self, value: float) -> bool:
        """Whether a value lies outside the interval."""
        return (self.low is not None and value < self.low) or (self.high is not None and value > self.high)

    def disjoint_from(self, other: "Estimate") -> bool:
        """Whether the two intervals do not overlap."""
        below = self.high is not None and other.low is not None and self.high < other.low
        above = other.high is not None and self.low is not None and other.high < self.low
        return below or above


def _interval_text(value: float | None, low: float | None, high: float | None) -> str:
    middle, *ends = ("?" if number is None else f"{number:.3g}" for number in (value, low, high))
    return f"{middle} [{', '.join(ends)}]"


@dataclass(frozen=True)
class SubgroupEstimate(Checked):
    """Estimated return of the policy, and logged return, among a subgroup of the subjects."""

    name: str
    subjects: int
    policy: Estimate
    logged: Estimate


@dataclass(frozen=True)
class Diagnostics(Checked):
    """Overlap between the log and the evaluated policy."""

    subjects: int
    episodes: int
    rows: int
    effective: float
    """Effective number of subjects (Kish) by importance ratios of single decisions, as in the recommended estimate."""
    effective_records: float
    """Effective number of subjects by importance weights of whole episodes, as in weighted importance sampling."""
    largest: Share
    """Share of all single-decision weight on the subject with the largest weight."""
    unsupported: Share
    """Share of the policy's actions that no other subject received in a similar state."""
    off_support: Share
    """Share of steps at or after the policy's first unsupported action, relative to that of the logged actions."""
    agreement: Share
    """Mean probability under the policy of the logged actions."""


@dataclass(frozen=True)
class BehaviourSummary(Checked):
    """Quality of the estimated behaviour policy."""

    recipe: str
    brier: float
    """Brier score: mean squared error of the probabilities, 0 to 2."""
    error: Share
    """Expected calibration error: mean distance between predicted and observed action frequencies."""
    calibration: tuple[tuple[float, float], ...]
    """Points of the calibration curve: predicted probability and observed frequency."""


@dataclass(frozen=True)
class Sensitivity(Checked):
    """Sensitivity of the evaluation to the behaviour model and to unmeasured confounding."""

    behaviour: tuple[Estimate, ...]
    """The recommended estimate with alternative models of the behaviour policy."""
    per: Literal["record", "step"]
    """What the confounding strength bounds: the odds of all decisions of an episode together, or of each decision."""
    confounding: tuple[ConfoundingBound, ...]
    """Bounds of weighted importance sampling for each strength of unmeasured confounding."""
    breakdown_strength: float | None
    """Smallest strength at which the difference from the logged return is no longer significant; None if it is not
    significant without confounding."""


@dataclass(frozen=True)
class Evaluation(Checked):
    """Off-policy evaluation of one policy: estimates, diagnostics, sensitivity analyses and a verdict."""

    policy: str
    verdict: EvaluationVerdict
    reasons: tuple[str, ...]
    """Reasons for a verdict other than "supported", the most serious first."""
    recommended: str
    """Name of the recommended estimate."""
    estimates: tuple[Estimate, ...]
    logged: Estimate
    """Mean logged return: the value of the behaviour policy."""
    difference: Estimate | None
    """Recommended estimate minus the logged return, paired by subject; None for an evaluation by a model alone."""
    diagnostics: Diagnostics | None
    """None for continuous doses, which have no action probabilities."""
    behaviour: BehaviourSummary | None
    groups: tuple[SubgroupEstimate, ...]
    """Estimates by the policy's groups of subjects; empty for a policy without groups."""
    severity_by: str
    """What the severity subgroups are formed by."""
    severity: tuple[SubgroupEstimate, ...]
    sensitivity: Sensitivity | None
    mixture: EpsilonMixture | None
    """Mixture with the behaviour policy that was evaluated in place of a deterministic policy."""
    held_out: bool
    """Whether the policy was learned from other subjects."""
    discount: Share
    confidence: Share
    draws: int
    """Bootstrap resamples of the subjects."""
    seed: int
    notes: tuple[str, ...] = ()
    """Estimates that are missing or clipped, and why."""
    possible: ReturnRange | None = None
    """Range of returns that an episode can have."""
    against_practice: AgainstPractice = ""
    """How the policy compares with what the clinicians did; empty where the log does not show it plainly."""
    against_practice_reason: str = ""
    """What shows it, in one sentence."""
    baselines: tuple[Estimate, ...] = ()
    """The recommended estimate of practice and of naive policies, which any policy should be compared with."""

    def __getitem__(self, name: str) -> Estimate:
        for estimate in self.estimates:
            if estimate.name == name:
                return estimate
        names = ", ".join(estimate.name for estimate in self.estimates)
        raise CounterpointError(f"there is no estimate '{name}'; there are {names}")

    @property
    def value(self) -> Estimate:
        """The recommended estimate."""
        return self[self.recommended]

    @property
    def population(self) -> str:
        """Subjects and discounting that the returns refer to, for captions."""
        who = "held-out subjects" if self.held_out else "all logged subjects"
        return f"{who}, {discounted(self.discount)}"

    def label(self, estimate: Estimate) -> str:
        """Annotation of an estimate in tables: recommended or not, and clipped or not.

        An estimate that is incomplete, or that the verdict rejects, is not marked as recommended.
        """
        labels = [CLIPPED] if estimate.clipped else []
        if estimate.name == self.recommended:
            standing = "recommended" if self.verdict != "cannot be judged" else self.verdict
            labels = [standing if estimate.complete else "not known", *labels]
        return ", ".join(labels)

    def words(self) -> str:
        """The verdict and all reasons, one a line."""
        lines = "".join(f"\n- {reason}" for reason in self.reasons)
        reliability = f"Verdict: {self.verdict}{', because:' if lines else '.'}{lines}"
        return f"{self.practice_words}\n{reliability}" if self.against_practice else reliability

    @property
    def practice_words(self) -> str:
        """The comparison with practice and what shows it, in one line."""
        return f"{self.against_practice.capitalize()}: {self.against_practice_reason}"

    @property
    def brief(self) -> str:
        """One line: the comparison with practice, the verdict, its most serious reason, and how many more there are."""
        label = f"{self.against_practice}; {self.verdict}" if self.against_practice else self.verdict
        if not self.reasons:
            return f"Verdict: {label}."
        first, *more = self.reasons
        rest = f" ({counted(len(more), 'more reason')})" if more else ""
        return f"Verdict: {label}. {first}{rest}"

    def to_json(self) -> dict[str, Any]:
        """Encode as a JSON object."""
        return {"format": FORMAT, **encode(self)}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Evaluation":
        """Decode the object of `to_json`; refuse anything else in one line, without executing anything."""
        return decode_result(content, cls, FORMAT, JSON_CLASSES)

    def text(self) -> str:
        """The content of the JSON file."""
        return json.dumps(self.to_json(), indent=2, allow_nan=False) + "\n"

    def rows(self) -> list[dict[str, Any]]:
        """All estimates as rows of a table."""
        rows = [_row("estimate", estimate) for estimate in self.estimates]
        rows.append(_row("log", self.logged))
        rows += [_row("baseline", estimate) for estimate in self.baselines]
        if self.difference:
            rows.append(_row("difference from the log", self.difference))
        for kind, subgroups in (("group", self.groups), (f"severity by {self.severity_by}", self.severity)):
            for subgroup in subgroups:
                for estimate in (subgroup.policy, subgroup.logged):
                    rows.append(_row(kind, estimate, f"{subgroup.name}, {estimate.name}", subgroup.subjects))
        if self.sensitivity:
            rows += [_row("behaviour model", estimate) for estimate in self.sensitivity.behaviour]
            for bound in self.sensitivity.confounding:
                name = f"strength {bound.strength:g} per {self.sensitivity.per}"
                rows.append(_row("unmeasured confounding", Estimate(name, None, bound.low, bound.high)))
        return rows


def _row(kind: str, estimate: Estimate, name: str = "", subjects: int | None = None) -> dict[str, Any]:
    return {
        "kind": kind,
        "name": name or estimate.name,
        "value": estimate.value,
        "low": estimate.low,
        "high": estimate.high,
        "subjects": subjects,
        "held": estimate.clipped,
    }


JSON_CLASSES: dict[str, type] = {
    cls.__name__: cls
    for cls in (
        Evaluation,
        Estimate,
        SubgroupEstimate,
        Diagnostics,
        BehaviourSummary,
        Sensitivity,
        ConfoundingBound,
        EpsilonMixture,
        ReturnRange,
    )
}
"""Classes that the JSON file of an evaluation may name."""

Result = TypeVar("Result")


def decode_result(content: dict[str, Any], kind: type[Result], form: str, classes: dict[str, type]) -> Result:
    """Decode a result from JSON, using the listed classes only; each of them checks its fields."""
    require(content.get("format") == form, f"this is not a {form}; run evaluate or compare again")
    try:
        result = decode({name: value for name, value in content.items() if name != "format"}, classes)
    except (CounterpointError, AttributeError, RecursionError, ValueError) as error:
        raise CounterpointError(f"the {form} is damaged ({error}); run evaluate or compare again") from None
    if not isinstance(result, kind):
        raise CounterpointError(f"this is not a {form}; run evaluate or compare again")
    return result


@dataclass(frozen=True)
class PairedDifference(Checked):
    """Difference of the mean returns of two policies, `one` minus `other`, on the same subjects."""

    one: str
    other: str
    difference: Estimate


@dataclass(frozen=True)
class PolicyComparison(Checked):
    """Evaluations of several policies on one log, and the difference of every two of them."""

    evaluations: tuple[Evaluation, ...]
    pairs: tuple[PairedDifference, ...]
    baselines: tuple[Estimate, ...] = ()
    """The recommended estimate of practice and of naive policies."""

    def to_json(self) -> dict[str, Any]:
        """Encode as a JSON object."""
        return {"format": COMPARISON_FORMAT, **encode(self)}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "PolicyComparison":
        """Decode the object of `to_json`; refuse anything else in one line, without executing anything."""
        classes = {**JSON_CLASSES, "PolicyComparison": PolicyComparison, "PairedDifference": PairedDifference}
        return decode_result(content, cls, COMPARISON_FORMAT, classes)

    def rows(self) -> list[dict[str, Any]]:
        """Table of the policies, each with its difference from the behaviour policy; that one and baselines first."""
        logged = self.evaluations[0].logged
        first = {"policy": logged.name, "value": logged.value, "low": logged.low, "high": logged.high}
        blank = {**_difference_columns(None), "effective": None, "verdict": None, "against_practice": ""}
        baselines = (
            {"policy": each.name, "value": each.value, "low": each.low, "high": each.high, **blank}
            for each in self.baselines
        )
        return [first | blank, *baselines, *(_policy_row(evaluation) for evaluation in self.evaluations)]

    def pair_rows(self) -> list[dict[str, Any]]:
        """Table of the differences between every two policies."""
        return [{"policy": pair.one, "less": pair.other, **_difference_columns(pair.difference)} for pair in self.pairs]


def _policy_row(evaluation: Evaluation) -> dict[str, Any]:
    value, diagnostics = evaluation.value, evaluation.diagnostics
    return {
        "policy": evaluation.policy,
        "value": value.value,
        "low": value.low,
        "high": value.high,
        **_difference_columns(evaluation.difference),
        "effective": diagnostics and diagnostics.effective,
        "verdict": evaluation.verdict,
        "against_practice": evaluation.against_practice,
    }


def _difference_columns(difference: Estimate | None) -> dict[str, float | None]:
    if difference is None:
        return {"difference": None, "difference_low": None, "difference_high": None}
    return {"difference": difference.value, "difference_low": difference.low, "difference_high": difference.high}


def possible_return_range(
    rows: Transitions, log: Transitions, discount: float = 1.0, task: Task | None = None
) -> ReturnRange:
    """Range of returns of the episodes in `rows`, from the rewards in the whole log.

    A reward range that the task or the table's schema declares replaces that of the logged rewards.
    """
    declared = getattr(task, "reward_range", None) or rows.schema.knowledge.reward_range
    return possible_returns(log, discount, declared, Episodes.of(rows).places.shape[1])


def clip(estimate: Estimate, possible: ReturnRange) -> Estimate:
    """Clip the value and the interval of an estimated return to the possible returns."""
    value = _clamp(estimate.value, possible.low, possible.high)
    low = _clamp(estimate.low, possible.low, possible.high)
    high = _clamp(estimate.high, possible.low, possible.high)
    return _with_numbers(estimate, value, low, high)


def clip_difference(difference: Estimate, one: Estimate, other: Estimate, possible: ReturnRange) -> Estimate:
    """Clip the difference of two estimates that have been clipped.

    If one of their values was clipped, the difference is that of the clipped values. The first return is at most
    `possible.high`, so the upper end is at most that minus the lower end of the other; the lower end likewise.
    """
    value = difference.value
    if one.outside or other.outside:
        value = None if one.value is None or other.value is None else one.value - other.value
    smallest = possible.low - (possible.high if other.high is None else other.high)
    largest = possible.high - (possible.low if other.low is None else other.low)
    low = _clamp(difference.low, smallest, largest)
    high = _clamp(difference.high, smallest, largest)
    if value is not None:
        low = None if low is None else min(low, value)
        high = None if high is None else max(high, value)
    return _with_numbers(difference, value, low, high)


def clip_subgroup(subgroup: SubgroupEstimate, possible: ReturnRange) -> SubgroupEstimate:
    """Clip the policy's estimate in a subgroup."""
    return replace(subgroup, policy=clip(subgroup.policy, possible))


def clip_sensitivity(sensitivity: Sensitivity, possible: ReturnRange) -> Sensitivity:
    """Clip the estimates with alternative behaviour models."""
    return replace(sensitivity, behaviour=tuple(clip(estimate, possible) for estimate in sensitivity.behaviour))


def clipping_notes(estimates: tuple[Estimate, ...], possible: ReturnRange) -> tuple[str, ...]:
    """A note for every estimate that was clipped."""
    return tuple(
        f"{estimate.name} was {estimate.unclipped_text}; it is {CLIPPED} {possible}"
        for estimate in estimates
        if estimate.clipped
    )


def _clamp(value: float | None, low: float, high: float) -> float | None:
    return None if value is None else min(max(value, low), high)


def _with_numbers(estimate: Estimate, value: float | None, low: float | None, high: float | None) -> Estimate:
    unclipped = estimate.value, estimate.low, estimate.high
    if (value, low, high) == unclipped:
        return estimate
    return replace(estimate, value=value, low=low, high=high, unclipped=unclipped)
