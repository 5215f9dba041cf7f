"""Verdict of an evaluation: supported, with care, or cannot be judged from this log.

"supported" means that the recommended interval can be relied on, not that the policy is better: the interval of the
difference shows that. "cannot be judged" means that the log does not contain the data for a reliable estimate.
"""

from dataclasses import dataclass

from counterpoint.core.settings import Amount, Checked, Share
from counterpoint.core.wording import amount, counted
from counterpoint.data.returns import ReturnRange
from counterpoint.ope.result import Diagnostics, Estimate, EvaluationVerdict


@dataclass(frozen=True)
class VerdictLimits(Checked):
    """Thresholds of the verdict. A value beyond `x` gives "cannot be judged", one beyond `x_care` "with care"."""

    effective: Amount = 50.0
    """Least effective number of subjects by single decisions; intervals of fewer have too low coverage."""
    effective_care: Amount = 100.0
    unsupported: Share = 0.25
    """Largest share of the policy's actions that were never observed in similar states."""
    unsupported_care: Share = 0.05
    off_support: Share = 0.5
    """Largest share of steps at or after such an action."""
    off_support_care: Share = 0.2
    records_care: Amount = 10.0
    """Least effective number of subjects by whole episodes; below it, effects on later states rest on the critic."""
    largest_care: Share = 0.1
    """Largest share of the weight on one subject."""
    calibration_care: Share = 0.05
    """Largest calibration error of the behaviour model."""
    strength_care: Amount = 1.25
    """Strength of unmeasured confounding that a significant difference must withstand."""


@dataclass(frozen=True)
class VerdictEvidence:
    """Numbers that the verdict depends on."""

    value: Estimate
    """The recommended estimate."""
    fitted: Estimate
    """The estimate by the critic alone (FQE), which the recommended estimate corrects."""
    others: tuple[Estimate, ...]
    """The recommended estimate with alternative behaviour models."""
    diagnostics: Diagnostics
    calibration_error: float
    breakdown_strength: float | None
    held_out: bool
    distrusted: tuple[str, ...]
    """Model-based estimates whose model failed its checks."""
    possible: ReturnRange | None = None
    """Range of returns that an episode can have."""
    impossible: tuple[str, ...] = ()
    """Model-based estimates whose values were outside that range."""
    shifted: tuple[str, ...] = ()
    """Notes on actions and rewards of the log that seem to be recorded a row too early or too late."""


def verdict(
    evidence: VerdictEvidence, limits: VerdictLimits = VerdictLimits()
) -> tuple[EvaluationVerdict, tuple[str, ...]]:
    """Return the verdict and its reasons, the most serious first."""
    serious = _reasons_against_judging(evidence, limits)
    minor = [*_little_overlap(evidence, limits), *_disagreement(evidence), *_assumptions(evidence, limits)]
    label: EvaluationVerdict = "cannot be judged" if serious else "with care" if minor else "supported"
    return label, (*serious, *minor)


def _reasons_against_judging(evidence: VerdictEvidence, limits: VerdictLimits) -> list[str]:
    diagnostics = evidence.diagnostics
    reasons = [as_sentence(note) for note in evidence.shifted]
    if evidence.value.outside:
        reasons.append(
            f"{evidence.value.name} was {evidence.value.unclipped_text}, outside the possible returns"
            f"{_range_text(evidence.possible)}: the values behind it are wrong."
        )
    if evidence.value.width == float("inf"):
        reasons.append("Too few logged decisions agree with the policy: some resampled logs contain none.")
    if diagnostics.subjects < limits.effective:
        reasons.append(
            f"The policy is evaluated on {counted(diagnostics.subjects, 'subject')}, and an interval needs at least"
            f" {limits.effective:g}."
        )
    elif diagnostics.effective < limits.effective:
        reasons.append(f"{_effective_text(diagnostics)}, fewer than the {limits.effective:g} that an interval needs.")
    if diagnostics.unsupported > limits.unsupported:
        reasons.append(f"{_unsupported_text(diagnostics)}, so the log does not show what follows them.")
    if diagnostics.off_support > limits.off_support:
        reasons.append(f"{_off_support_text(diagnostics)}, so the log does not show most of what it leads to.")
    if evidence.value.disjoint_from(evidence.fitted):
        reasons.append(
            f"The intervals of {evidence.fitted.name} and {evidence.value.name} do not overlap. At least one of them is"
            " wrong, and the log does not show which."
        )
    return reasons


def _little_overlap(evidence: VerdictEvidence, limits: VerdictLimits) -> list[str]:
    """Reasons for care: few logged decisions agree with the policy."""
    diagnostics, reasons = evidence.diagnostics, []
    if limits.effective <= diagnostics.effective < limits.effective_care:
        reasons.append(f"{_effective_text(diagnostics)}.")
    if diagnostics.effective_records < limits.records_care:
        reasons.append(
            "Few whole records agree with the policy: their weights amount to"
            f" {amount(diagnostics.effective_records)} of the {counted(diagnostics.subjects, 'subject')}."
            " The policy's effect on later states is estimated by the critic alone."
        )
    if limits.unsupported_care < diagnostics.unsupported <= limits.unsupported:
        reasons.append(f"{_unsupported_text(diagnostics)}.")
    if limits.off_support_care < diagnostics.off_support <= limits.off_support:
        reasons.append(f"{_off_support_text(diagnostics)}.")
    if diagnostics.largest > limits.largest_care:
        reasons.append(
            f"One subject has {diagnostics.largest:.0%} of all weight; the estimate would change without it."
        )
    return reasons


def _effective_text(diagnostics: Diagnostics) -> str:
    return (
        "The logged decisions that agree with the policy have the weight of"
        f" {amount(diagnostics.effective)} of the {counted(diagnostics.subjects, 'subject')}"
    )


def _unsupported_text(diagnostics: Diagnostics) -> str:
    return (
        f"{diagnostics.unsupported:.0%} of the recommended actions were never given to another subject in a similar"
        " state"
    )


def _off_support_text(diagnostics: Diagnostics) -> str:
    return (
        f"At {diagnostics.off_support:.0%} of the steps the policy would already have taken an action that no other"
        " subject was given in a similar state"
    )


def _disagreement(evidence: VerdictEvidence) -> list[str]:
    """Reason for care: alternative behaviour models give other results."""
    names = [estimate.name for estimate in evidence.others if evidence.value.disjoint_from(estimate)]
    if not names:
        return []
    return [
        f"With {', '.join(names)} as behaviour model the interval does not overlap with that of {evidence.value.name}."
    ]


def _assumptions(evidence: VerdictEvidence, limits: VerdictLimits) -> list[str]:
    """Reasons for care: assumptions of the estimate that are doubtful."""
    reasons = []
    if evidence.calibration_error > limits.calibration_care:
        reasons.append(
            f"The estimated probabilities of the behaviour policy are {evidence.calibration_error:.0%} off on average;"
            " importance weights divide by them."
        )
    if evidence.breakdown_strength is not None and evidence.breakdown_strength < limits.strength_care:
        reasons.append(
            "The difference from the behaviour policy would no longer be significant if unmeasured confounders changed"
            f" the odds of treatment by a factor of {evidence.breakdown_strength:.2f}."
        )
    if not evidence.held_out:
        reasons.append(
            "The policy may have learned from the subjects that it is evaluated on, which biases the estimate upwards;"
            " hold some out (--held-out)."
        )
    return [
        *reasons,
        *distrusted_reasons(evidence.distrusted),
        *outside_range_reasons(evidence.impossible, evidence.possible),
    ]


def outside_range_reasons(names: tuple[str, ...], possible: ReturnRange | None) -> list[str]:
    """Reason for care: model-based estimates outside the possible returns."""
    if not names:
        return []
    return [
        f"Estimates by the model were outside the possible returns{_range_text(possible)}: {', '.join(names)}. The"
        " model is wrong in the states that the policy reaches."
    ]


def distrusted_reasons(names: tuple[str, ...]) -> list[str]:
    """Reason for care: model-based estimates whose model failed its checks."""
    if not names:
        return []
    return [f"Estimates by the model cannot be relied on, because the model failed its checks: {', '.join(names)}."]


def as_sentence(note: str) -> str:
    """Return a note on the log as a sentence."""
    return f"{note[:1].upper()}{note[1:]}."


def _range_text(possible: ReturnRange | None) -> str:
    return f" ({possible})" if possible else ""
