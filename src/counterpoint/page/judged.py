"""What a log says of a policy, laid out: the verdict, estimates with intervals, for whom, and what it rests on."""

from dataclasses import dataclass, replace

from counterpoint.ope.result import (
    CLIPPED,
    Estimate,
    Evaluation,
    SubgroupEstimate,
)
from counterpoint.page.cells import SMALLEST, PageTable, between, counted, number, share


@dataclass(frozen=True)
class Judged:
    """All that is shown of an evaluation."""

    verdict: str
    reasons: tuple[str, ...]
    estimates: PageTable
    facts: tuple[tuple[str, str], ...]
    parts: tuple[PageTable, ...]
    """By group and by severity."""
    sensitivity: tuple[PageTable, ...]
    note: str


def judged(found: Evaluation) -> Judged:
    """An evaluation as text and numbers."""
    parts = ("By group", found.groups), (f"By {found.severity_by}", found.severity)
    return Judged(
        found.verdict,
        found.reasons,
        _estimates(found),
        _facts(found),
        tuple(_parts(*each) for each in parts if each[1]),
        _sensitivity(found),
        _note(found),
    )


def interval(estimate: Estimate | None) -> str:
    """A value with its interval in words."""
    if estimate is None or estimate.value is None:
        return "not known"
    held = f", {CLIPPED}" if estimate.clipped else ""
    if estimate.low is None or estimate.high is None:
        return f"{number(estimate.value)} (interval not known){held}"
    return f"{between(estimate.value, estimate.low, estimate.high)}{held}"


def comparison(found: Evaluation) -> str:
    """Whether the policy is better than whoever logged, in a sentence."""
    if found.verdict == "cannot be judged":
        return "Whether the policy is better than whoever logged cannot be said from this log."
    apart = found.difference
    if apart is None or apart.low is None or apart.high is None:
        return "The policy was not compared with whoever logged on the same subjects."
    if apart.low > 0:
        return "The policy is estimated to do better than whoever logged: the interval of the difference is above zero."
    if apart.high < 0:
        return "The policy is estimated to do worse than whoever logged: the interval of the difference is below zero."
    return "No difference from whoever logged is shown: the interval of the difference holds zero."


def _estimates(found: Evaluation) -> PageTable:
    lines = [(f"{each.name}{_standing(found, each)}", interval(each)) for each in found.estimates]
    lines += [("whoever logged", interval(found.logged))]
    lines += [("policy less whoever logged, paired by subject", interval(found.difference))] if found.difference else []
    head = ("Estimate", f"Value ({found.confidence:.0%} interval)")
    return PageTable("Value of an episode, by every estimator", head, tuple(lines))


def _standing(found: Evaluation, each: Estimate) -> str:
    """What is said beside the name of the recommended estimate; that it was held stands beside its value."""
    return f", {found.label(replace(each, unclipped=None))}" if each.name == found.recommended else ""


def _facts(found: Evaluation) -> tuple[tuple[str, str], ...]:
    told, who = found.diagnostics, found.behaviour
    facts: list[tuple[str, str]] = []
    if told:
        facts += [
            ("Subjects judged on", counted(told.subjects)),
            ("Subjects that it amounts to, by weighted decisions", number(told.effective)),
            ("The same by whole records", number(told.effective_records)),
            ("Largest share of the weight on one subject", share(told.largest)),
            ("Recommended actions never given in similar states", share(told.unsupported)),
            ("Steps at which it would have given such an action by then", share(told.off_support)),
            ("Decisions in which policy and log agree", share(told.agreement)),
        ]
    if who:
        facts += [
            ("Whoever logged, estimated by", who.recipe),
            ("Brier score of that (0 is best, 2 worst)", number(who.brier)),
        ]
    return tuple(facts)


def _parts(caption: str, parts: tuple[SubgroupEstimate, ...]) -> PageTable:
    lines = tuple(
        (part.name, counted(part.subjects), interval(part.policy), interval(part.logged))
        for part in parts
        if part.subjects >= SMALLEST
    )
    return PageTable(caption, ("Who", "Subjects", "Policy", "Whoever logged"), lines)


def _sensitivity(found: Evaluation) -> tuple[PageTable, ...]:
    told = found.sensitivity
    if told is None:
        return ()
    behaviour = tuple((each.name, interval(each)) for each in told.behaviour)
    bounds = tuple((number(each.strength), number(each.low), number(each.high)) for each in told.confounding)
    caption = f"If something unmeasured changed the odds of treatment, per {told.per}: what WIS could be"
    note = f"A strength of 2 means odds up to twice as high, or half. {_lost(found, told.breakdown_strength)}"
    tables = (
        PageTable("If whoever logged is estimated otherwise", ("Behaviour model", "Value (interval)"), behaviour),
        PageTable(caption, ("Strength", "Lowest", "Highest"), bounds, note=note),
    )
    return tuple(table for table in tables if table.rows)


def _lost(found: Evaluation, strength: float | None) -> str:
    """How strong something unmeasured must be, where there is a difference to lose; and what the bounds rest on."""
    rests = ""
    if found.diagnostics is not None:
        weigh = number(found.diagnostics.effective_records)
        rests = f" WIS goes by whole records, which weigh as much as {weigh} subjects here."
    if strength is None or found.difference is None or not found.difference.excludes(0.0):
        return f"The estimate to go by shows no difference from whoever logged that could be lost.{rests}"
    return f"By WIS the difference from whoever logged is lost from a strength of {number(strength)} on.{rests}"


def _note(found: Evaluation) -> str:
    learned = "never learned from" if found.held_out else "may have learned from"
    how = f"with a discount of {found.discount:g} and {found.draws:,} resamples of the subjects."
    soft = f" It always takes one action and was softened to be judged: {found.mixture}." if found.mixture else ""
    return " ".join([f"Judged on subjects that the policy {learned}, {how}{soft}", *found.notes])
