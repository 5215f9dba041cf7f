"""Evaluation section of the page: verdict, estimates with intervals, subgroups, diagnostics and sensitivity."""

from dataclasses import dataclass, replace

from counterpoint.core.wording import discounted
from counterpoint.ope.result import CLIPPED, Estimate, Evaluation, SubgroupEstimate
from counterpoint.page.cells import SMALLEST, PageTable, between, counted, number, over_steps, share


@dataclass(frozen=True)
class EvaluationSection:
    """Texts and tables of an evaluation."""

    verdict: str
    reasons: tuple[str, ...]
    estimates: PageTable
    facts: tuple[tuple[str, str], ...]
    subgroups: tuple[PageTable, ...]
    """By group and by severity."""
    sensitivity: tuple[PageTable, ...]
    note: str
    logged_of: str
    """The subjects, steps and discount of the logged return, in words."""


def evaluation_section(evaluation: Evaluation) -> EvaluationSection:
    """Format an evaluation."""
    tables = []
    if evaluation.groups:
        tables.append(_subgroup_table("By group", evaluation.groups, evaluation))
    if evaluation.severity:
        tables.append(_subgroup_table(f"By {evaluation.severity_by}", evaluation.severity, evaluation))
    return EvaluationSection(
        evaluation.verdict,
        evaluation.reasons,
        _estimates_table(evaluation),
        _facts(evaluation),
        tuple(tables),
        _sensitivity_tables(evaluation),
        _note(evaluation),
        logged_of(evaluation),
    )


def logged_of(evaluation: Evaluation) -> str:
    """The subjects, steps and discount of the evaluation's logged return, in words."""
    diagnostics = evaluation.diagnostics
    count = f"{counted(diagnostics.subjects)} " if diagnostics else ""
    who = f"the {count}held-out subjects" if evaluation.held_out else f"all {count}logged subjects"
    steps = "over all logged steps of an episode"
    if diagnostics and diagnostics.episodes:
        steps = over_steps(diagnostics.rows, diagnostics.episodes)
    return f"{who}, {steps}, {discounted(evaluation.discount)}"


def interval_text(estimate: Estimate | None) -> str:
    """A value with its interval."""
    if estimate is None or estimate.value is None:
        return "not known"
    clipped = f", {CLIPPED}" if estimate.clipped else ""
    if estimate.low is None or estimate.high is None:
        return f"{number(estimate.value)} (interval not known){clipped}"
    return f"{between(estimate.value, estimate.low, estimate.high)}{clipped}"


def comparison_text(evaluation: Evaluation) -> str:
    """A sentence on whether the policy is better than the behaviour policy."""
    if evaluation.against_practice:
        return evaluation.practice_words
    if evaluation.verdict == "cannot be judged":
        return "The log does not show whether the policy is better than the clinicians."
    difference = evaluation.difference
    if difference is None or difference.low is None or difference.high is None:
        return "The policy was not compared with the clinicians on the same subjects."
    if difference.low > 0:
        return "The policy is estimated to be better than the clinicians: the interval of the difference is above zero."
    if difference.high < 0:
        return "The policy is estimated to be worse than the clinicians: the interval of the difference is below zero."
    return "There is no significant difference from the clinicians: the interval of the difference contains zero."


def _estimates_table(evaluation: Evaluation) -> PageTable:
    lines = []
    for estimate in evaluation.estimates:
        label = ""
        if estimate.name == evaluation.recommended:
            label = f", {evaluation.label(replace(estimate, unclipped=None))}"
        lines.append((f"{estimate.name}{label}", interval_text(estimate)))
    lines.append(
        (f"clinicians (behaviour policy), logged return of {logged_of(evaluation)}", interval_text(evaluation.logged))
    )
    lines += [(f"baseline: {estimate.name}", interval_text(estimate)) for estimate in evaluation.baselines]
    if evaluation.difference:
        lines.append(("policy minus clinicians, paired by subject", interval_text(evaluation.difference)))
    head = ("Estimate", f"Value ({evaluation.confidence:.0%} interval)")
    return PageTable("Mean return of an episode, by every estimator", head, tuple(lines))


def _facts(evaluation: Evaluation) -> tuple[tuple[str, str], ...]:
    diagnostics, behaviour = evaluation.diagnostics, evaluation.behaviour
    facts: list[tuple[str, str]] = []
    if diagnostics:
        facts += [
            ("Subjects in the evaluation", counted(diagnostics.subjects)),
            ("Effective number of subjects, by single decisions", number(diagnostics.effective)),
            ("Effective number of subjects, by whole records", number(diagnostics.effective_records)),
            ("Largest share of the weight on one subject", share(diagnostics.largest)),
            ("Recommended actions never given in similar states", share(diagnostics.unsupported)),
            ("Steps at or after such an action", share(diagnostics.off_support)),
            ("Decisions in which policy and log agree", share(diagnostics.agreement)),
        ]
    if behaviour:
        facts += [
            ("Model of the clinicians’ decisions", behaviour.recipe),
            ("Its Brier score (0 is best, 2 worst)", number(behaviour.brier)),
        ]
    return tuple(facts)


def _subgroup_table(caption: str, subgroups: tuple[SubgroupEstimate, ...], evaluation: Evaluation) -> PageTable:
    lines = tuple(
        (
            subgroup.name,
            counted(subgroup.subjects),
            interval_text(subgroup.policy),
            interval_text(subgroup.logged),
        )
        for subgroup in subgroups
        if subgroup.subjects >= SMALLEST
    )
    note = f"Clinicians: logged return of each subgroup among {logged_of(evaluation)}."
    return PageTable(caption, ("Subgroup", "Subjects", "Policy", "Clinicians"), lines, note=note)


def _sensitivity_tables(evaluation: Evaluation) -> tuple[PageTable, ...]:
    sensitivity = evaluation.sensitivity
    if sensitivity is None:
        return ()
    models = tuple((estimate.name, interval_text(estimate)) for estimate in sensitivity.behaviour)
    bounds = tuple((number(bound.strength), number(bound.low), number(bound.high)) for bound in sensitivity.confounding)
    caption = f"WIS if unmeasured confounders changed the odds of treatment, per {sensitivity.per}"
    note = f"A strength of 2 means odds up to twice as high, or half. {_breakdown_text(evaluation)}"
    tables = (
        PageTable("With other models of the clinicians’ decisions", ("Behaviour model", "Value (interval)"), models),
        PageTable(caption, ("Strength", "Lowest", "Highest"), bounds, note=note),
    )
    return tuple(table for table in tables if table.rows)


def _breakdown_text(evaluation: Evaluation) -> str:
    """The confounding that would explain the difference, and how many records the bounds rest on."""
    weights = ""
    if evaluation.diagnostics is not None:
        effective = number(evaluation.diagnostics.effective_records)
        weights = f" WIS weights whole records, here an effective number of {effective} subjects."
    strength = evaluation.sensitivity.breakdown_strength if evaluation.sensitivity else None
    if strength is None or evaluation.difference is None or not evaluation.difference.excludes(0.0):
        return f"The recommended estimate shows no significant difference that confounding could explain.{weights}"
    return f"By WIS, confounding of strength {number(strength)} could explain the difference.{weights}"


def _note(evaluation: Evaluation) -> str:
    learned = "never learned from" if evaluation.held_out else "may have learned from"
    text = (
        f"Evaluated on subjects that the policy {learned}, with a discount of {evaluation.discount:g} and"
        f" {evaluation.draws:,} resamples of the subjects."
    )
    text += f" The clinicians’ return is the logged return of {logged_of(evaluation)}."
    if evaluation.held_out or evaluation.discount != 1:
        text += (
            " It differs from the logged total reward in the section on the data, which is of all logged subjects and"
            f" {discounted(1.0)}."
        )
    mixture = evaluation.mixture
    if mixture:
        text += f" The policy always takes one action; evaluated was its {mixture}." if mixture.share else ""
    return " ".join([text, *evaluation.notes])
