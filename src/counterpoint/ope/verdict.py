"""What all the numbers together mean to the reader: supported, with care, or cannot be judged from this log.

"supported" says that the recommended interval can be gone by, not that the policy is better: that is what the interval
of the difference says. "cannot be judged" says that any number from this log would be a guess.
"""

from dataclasses import dataclass

from counterpoint.core.settings import Amount, Share, check_settings
from counterpoint.core.wording import amount, counted
from counterpoint.data.returns import ReturnRange
from counterpoint.ope.result import Diagnostics, Estimate, Judgement


@dataclass(frozen=True)
class Limits:
    """Where trust ends."""

    effective: Amount = 50.0
    """Subjects' worth of decisions below which nothing is judged: an interval over fewer does not hold what it
    promises."""
    effective_care: Amount = 100.0
    """The same, below which care is needed."""
    unsupported: Share = 0.25
    """Share of recommended actions never given in similar states above which nothing is judged: there the log is
    silent."""
    unsupported_care: Share = 0.05
    """The same, above which care is needed."""
    strayed: Share = 0.5
    """Share of the steps behind such an action above which nothing is judged: most of what the policy leads to is then
    not in the log."""
    strayed_care: Share = 0.2
    """The same, above which care is needed."""
    records_care: Amount = 10.0
    """Whole records that go the policy's way below which care is needed: what it does to later states is then read off
    the critic alone."""
    largest_care: Share = 0.1
    """Share of all weight on one subject above which care is needed: leaving it out would change the estimate."""
    calibration_care: Share = 0.05
    """Mean distance of foreseen to seen probabilities of whoever logged above which care is needed."""
    strength_care: Amount = 1.25
    """Strength of unmeasured confounding that a conclusion must withstand, or care is needed."""

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class VerdictEvidence:
    """What a verdict is made of."""

    value: Estimate
    """The recommended estimate."""
    fitted: Estimate
    """The fitted values alone, which the recommended estimate corrects (FQE)."""
    others: tuple[Estimate, ...]
    """The recommended estimate by other models of whoever logged."""
    diagnostics: Diagnostics
    calibration_error: float
    lost_at: float | None
    held_out: bool
    distrusted: tuple[str, ...]
    """Estimates inside a model that its checks distrust."""
    possible: ReturnRange | None = None
    """The returns that an episode can have."""
    impossible: tuple[str, ...] = ()
    """Estimates inside a model whose values lay outside."""


def verdict(found: VerdictEvidence, limits: Limits = Limits()) -> tuple[Judgement, tuple[str, ...]]:
    """The verdict and its reasons, the gravest first."""
    grave, slight = _grave(found, limits), _slight(found, limits)
    judgement: Judgement = "cannot be judged" if grave else "with care" if slight else "supported"
    return judgement, (*grave, *slight)


def _grave(found: VerdictEvidence, limits: Limits) -> list[str]:
    told, reasons = found.diagnostics, []
    if found.value.outside:
        reasons.append(
            f"{found.value.name} was {found.value.before}, outside the possible returns{_range(found.possible)}: the"
            " values behind it are wrong."
        )
    if found.value.width == float("inf"):
        reasons.append("Too few decisions are the policy's: drawn again, some logs would say nothing of it at all.")
    if told.subjects < limits.effective:
        reasons.append(
            f"The policy is evaluated on {counted(told.subjects, 'subject')}, and an interval needs at least"
            f" {limits.effective:g}."
        )
    elif told.effective < limits.effective:
        reasons.append(f"{_worth(told)}, fewer than the {limits.effective:g} that an interval needs.")
    if told.unsupported > limits.unsupported:
        reasons.append(
            f"{told.unsupported:.0%} of the recommended actions were never given to anybody in a similar state, so what"
            " would follow them is not in the log."
        )
    if told.strayed > limits.strayed:
        reasons.append(f"{_behind(told.strayed)}, so most of what it leads to is not in the log.")
    if found.value.apart(found.fitted):
        reasons.append(
            f"{found.fitted.name} says otherwise: its interval lies apart from {found.value.name}'s. One of them is"
            " wrong, or both, and the log does not say which."
        )
    return reasons


def _slight(found: VerdictEvidence, limits: Limits) -> list[str]:
    return [*_thin(found, limits), *_disagreeing(found), *_assuming(found, limits)]


def _thin(found: VerdictEvidence, limits: Limits) -> list[str]:
    """Little of the log speaks of the policy."""
    told, reasons = found.diagnostics, []
    if limits.effective <= told.effective < limits.effective_care:
        reasons.append(f"{_worth(told)}.")
    if told.effective_records < limits.records_care:
        reasons.append(
            "Few whole records go the policy's way: they weigh as much as those of"
            f" {amount(told.effective_records)} of the {counted(told.subjects, 'subject')}."
            " What it does to later states rests on fitted values alone."
        )
    if limits.unsupported_care < told.unsupported <= limits.unsupported:
        reasons.append(
            f"{told.unsupported:.0%} of the recommended actions were never given to anybody in a similar state."
        )
    if limits.strayed_care < told.strayed <= limits.strayed:
        reasons.append(f"{_behind(told.strayed)}.")
    if told.largest > limits.largest_care:
        reasons.append(f"One subject has {told.largest:.0%} of all weight; without it the estimate would be another.")
    return reasons


def _worth(told: Diagnostics) -> str:
    """How many subjects the decisions on which log and policy agree amount to."""
    return (
        "The logged decisions that the policy would take too weigh as much as those of"
        f" {amount(told.effective)} of the {counted(told.subjects, 'subject')}"
    )


def _behind(share: float) -> str:
    return (
        f"Step by step along the records, the policy would at {share:.0%} of the steps have done something by then that"
        " nobody was given in a similar state"
    )


def _disagreeing(found: VerdictEvidence) -> list[str]:
    """Estimates whose intervals do not even touch."""
    apart = [each.name for each in found.others if found.value.apart(each)]
    return [f"{', '.join(apart)} say otherwise: their intervals lie apart from {found.value.name}'s."] if apart else []


def _assuming(found: VerdictEvidence, limits: Limits) -> list[str]:
    """What the estimate takes for granted."""
    reasons = []
    if found.calibration_error > limits.calibration_care:
        reasons.append(
            f"The probabilities of whoever logged are {found.calibration_error:.0%} off on average; weights are one"
            " over them."
        )
    if found.lost_at is not None and found.lost_at < limits.strength_care:
        reasons.append(
            "That the policy differs from whoever logged would be lost to unmeasured findings that change the odds of"
            f" treatment by a factor of {found.lost_at:.2f}."
        )
    if not found.held_out:
        reasons.append(
            "The policy may have learned from the very subjects it is judged on, which flatters it; hold some out"
            " (--held-out)."
        )
    return [*reasons, *not_to_go_by(found.distrusted), *impossible(found.impossible, found.possible)]


def _range(possible: ReturnRange | None) -> str:
    return f" ({possible})" if possible else ""


def impossible(names: tuple[str, ...], possible: ReturnRange | None) -> list[str]:
    """A word on estimates inside a model that no episode can have, where there are some."""
    if not names:
        return []
    said = f"What the model itself says of the policy lay outside the possible returns{_range(possible)}"
    return [f"{said}: {', '.join(names)}. The model is wrong where the policy leads."]


def not_to_go_by(names: tuple[str, ...]) -> list[str]:
    """A word on estimates inside a model that its checks distrust, where there are some."""
    said = "What the model itself says of the policy is not to be gone by: its checks distrust it"
    return [f"{said} ({', '.join(names)})."] if names else []
