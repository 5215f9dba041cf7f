"""Diagnostics of an evaluation: overlap and support of the policy in the log, subgroups of the subjects, the verdict.

The verdict "supported" means that the recommended interval can be relied on, not that the policy is better: the
interval of the difference shows that. "cannot be judged" means that the log does not contain the data for a reliable
estimate.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from counterpoint.checks.support import SimilarRows, about_as_much
from counterpoint.core.errors import require
from counterpoint.core.seeding import derive, generator
from counterpoint.core.settings import Amount, Checked, Share
from counterpoint.core.wording import amount, counted
from counterpoint.data.jobs import spread_levels
from counterpoint.data.returns import ReturnRange
from counterpoint.data.schema import Schema
from counterpoint.data.transitions import Transitions, subject_folds
from counterpoint.ope.estimators import (
    by_subject,
    effective_sample_size,
    one_step_effective_sample_size,
    one_step_largest_share,
    rewards,
)
from counterpoint.ope.problem import Episodes, OPEData, Probabilities
from counterpoint.ope.result import AgainstPractice, Diagnostics, Estimate, EvaluationVerdict
from counterpoint.ope.tabular import all_categories
from counterpoint.policies.personal import PersonalPolicy

MAX_ROWS = 5000
"""Rows whose similar states are searched, at most."""
MIN_SUBJECTS = 20
"""Subjects that a subgroup needs for an estimate of its own."""
THIRDS = ("lowest third", "middle third", "highest third")
FOLDS = 5
RIDGE = 10.0
"""Ridge penalty, in rows, of the regression that predicts returns from first states."""


def diagnose(data: OPEData, policy: Probabilities, log: Transitions, seed: int = 0) -> Diagnostics:
    """Compute overlap and support. `policy` are its probabilities before mixing with the behaviour policy, or doses."""
    rows, episodes = data.rows, data.episodes
    sample = _sample_episodes(episodes, seed)
    asked = Episodes.of(rows[sample])
    if data.ratios is not None:
        agreement = about_as_much(log.action, rows.action, policy).double().mean()
        by_policy = untried_doses(asked.rows, policy[sample], log, seed)
        by_log = untried_doses(asked.rows, rows.action[sample], log, seed)
    else:
        agreement = policy.gather(1, rows.action_index[:, None]).mean()
        untried = untried_actions(asked.rows, log, policy.shape[1], seed)
        by_policy = (policy[sample] * untried).sum(1)
        by_log = untried.gather(1, asked.rows.action_index[:, None])[:, 0]
    return Diagnostics(
        subjects=episodes.subjects,
        episodes=len(episodes),
        rows=len(rows),
        # Ratios that are all near 0 look alike; those of the policy's own doses show that nobody was given them.
        effective=min(one_step_effective_sample_size(data), episodes.subjects / max(data.drawn_ratio, 1e-12)),
        effective_records=effective_sample_size(data),
        largest=one_step_largest_share(data),
        unsupported=min(float(by_policy.double().mean()), 1.0),
        off_support=off_support_share(asked, by_policy.double(), by_log.double(), data.discount),
        agreement=min(float(agreement), 1.0),
    )


def _sample_episodes(episodes: Episodes, seed: int) -> Int[Tensor, " n"]:
    """Rows of randomly chosen whole episodes, `MAX_ROWS` at most but one episode at least."""
    order = torch.randperm(len(episodes), generator=generator(seed, "asked"))
    fits = episodes.length[order].cumsum(0) <= MAX_ROWS
    fits[0] = True
    places = episodes.places[order[fits]]
    return places[places >= 0]


def off_support_share(
    episodes: Episodes, by_policy: Float[Tensor, " n"], by_log: Float[Tensor, " n"], discount: float = 1.0
) -> float:
    """Share of the supported steps of the logged actions that the policy's actions would leave unsupported.

    A step is supported if neither its action nor an earlier one of the episode was untried: what follows such an action
    is not in the log. With u the probability of such an action under the policy (`by_policy`), or whether the logged
    action is one (`by_log`), the share of supported steps is
    Σ γ^t·Π_{k ≤ t}(1 − u_k) / Σ γ^t. It is divided by that of the logged actions, the most that a log of this size can
    support.
    """
    weight = discount ** torch.arange(episodes.places.shape[1]) * episodes.present

    def supported(unsupported: Tensor) -> float:
        survival = (1 - episodes.table(unsupported.double())).cumprod(1)
        return float((survival * weight).sum() / weight.sum())

    most = supported(by_log)
    return 1 - min(supported(by_policy) / most, 1.0) if most > 0 else 1.0


def untried_doses(rows: Transitions, dose: Float[Tensor, "n a"], log: Transitions, seed: int = 0) -> Bool[Tensor, " n"]:
    """Mark the rows in whose similar states no other subject of the log was given about that dose."""
    similar = SimilarRows(log, seed=seed)
    neighbours, _ = similar.nearest(rows.state)
    other_subject = similar.logged.subject[neighbours] != rows.subject[:, None]
    alike = about_as_much(log.action, similar.logged.action[neighbours], dose[:, None])
    return ~(other_subject & alike).any(1)


def untried_actions(rows: Transitions, log: Transitions, actions: int, seed: int = 0) -> Bool[Tensor, "n a"]:
    """Mark the actions that no other subject of the log was given in a state similar to each row's.

    If all state columns are categories, only equal states are similar.
    """
    tried = _tried_in_equal_states if all_categories(rows.schema) else _tried_in_similar_states
    return ~tried(rows, log, actions, seed)


def _tried_in_similar_states(rows: Transitions, log: Transitions, actions: int, seed: int) -> Bool[Tensor, "n a"]:
    similar = SimilarRows(log, seed=seed)
    neighbours, _ = similar.nearest(rows.state)
    other_subject = similar.logged.subject[neighbours] != rows.subject[:, None]
    action = torch.where(other_subject, similar.logged.action_index[neighbours], actions)
    return torch.zeros(len(rows), actions + 1, dtype=torch.bool).scatter_(1, action, True)[:, :-1]


def _tried_in_equal_states(rows: Transitions, log: Transitions, actions: int, seed: int) -> Bool[Tensor, "n a"]:
    """A pair of state and action was tried by others unless its lowest and highest subject number are the row's."""
    cells = torch.cat([rows.state, log.state]).unique(dim=0, return_inverse=True)[1]
    row_cells, log_cells = cells[: len(rows)], cells[len(rows) :]
    logged_pairs = log_cells * actions + log.action_index
    empty = torch.full(((int(cells.max()) + 1) * actions,), -1)
    lowest = empty.scatter_reduce(0, logged_pairs, log.subject, "amin", include_self=False)
    highest = empty.scatter_reduce(0, logged_pairs, log.subject, "amax", include_self=False)
    pairs = row_cells[:, None] * actions + torch.arange(actions)
    subject = rows.subject[:, None]
    return (highest[pairs] >= 0) & ((lowest[pairs] != subject) | (highest[pairs] != subject))


@dataclass(frozen=True, eq=False)
class SubjectPartition:
    """Subgroups of the subjects of a table."""

    by: str
    names: tuple[str, ...]
    part: Int[Tensor, " subjects"]
    """Number of each subject's subgroup; −1 for none."""

    def large(self) -> Iterator[tuple[str, Bool[Tensor, " subjects"]]]:
        """Yield name and members of every subgroup with enough subjects for an estimate."""
        for number, name in enumerate(self.names):
            members = self.part == number
            if int(members.sum()) >= MIN_SUBJECTS:
                yield name, members


def by_group(policy: object, episodes: Episodes) -> SubjectPartition:
    """Partition by the most likely group of a personal policy, from complete records; empty for other policies."""
    if not isinstance(policy, PersonalPolicy) or policy.groups is None:
        return SubjectPartition("group", (), torch.full((episodes.subjects,), -1))
    present = episodes.rows.subject.unique()
    names = tuple(f"group {g + 1}" for g in range(policy.groups.count))
    return SubjectPartition("group", names, policy.likeliest(episodes.rows)[present])


def check_severity(column: str, schema: Schema) -> None:
    """Refuse a severity column that is no state column; an empty name is valid."""
    require(not column or column in schema.state_names, f"severity='{column}' is no state column; name one of them")


def by_severity(data: OPEData, column: str = "", seed: int = 0) -> SubjectPartition:
    """Partition into thirds by a column of the first state, or into its levels if it is categorical.

    Without a column, by the return under the behaviour policy that a cross-fitted ridge regression predicts from the
    first state: the lowest third are the most severe.
    """
    first = _first_states(data.episodes)
    schema = data.rows.schema
    if not column:
        return SubjectPartition("return predicted from the first state", THIRDS, _thirds(_predicted(data, first, seed)))
    check_severity(column, schema)
    place = schema.state_names.index(column)
    levels = schema.states[place].levels
    if levels:
        return SubjectPartition(column, levels, first[:, place].long())
    return SubjectPartition(column, THIRDS, _thirds(first[:, place]))


def _first_states(episodes: Episodes) -> Float[Tensor, "subjects s"]:
    """First state of every subject's first episode."""
    numbers = torch.arange(len(episodes))
    first = torch.full((episodes.subjects,), len(episodes)).scatter_reduce_(0, episodes.subject, numbers, "amin")
    return episodes.rows.state[episodes.places[:, 0][first]]


def _predicted(data: OPEData, first: Float[Tensor, "subjects s"], seed: int) -> Float[Tensor, " subjects"]:
    """Cross-fitted ridge prediction of each subject's mean return from its first state."""
    returns = rewards(data).sum(1)
    mean_return = by_subject(data.episodes, returns) / by_subject(data.episodes, torch.ones_like(returns))
    columns = spread_levels(first, data.rows.schema.categories).double()
    scaled = (columns - columns.mean(0)) / columns.std(0).clamp(min=1e-8)
    inputs = torch.cat([torch.ones_like(scaled[:, :1]), scaled], 1)
    folds = subject_folds(len(inputs), min(FOLDS, len(inputs)), derive(seed, "severity"))
    penalty = RIDGE * torch.eye(inputs.shape[1], dtype=torch.double)
    penalty[0, 0] = 0.0
    predicted = torch.zeros(len(inputs), dtype=torch.double)
    for fold in folds.unique():
        test = folds == fold
        train = inputs[~test]
        coefficients = torch.linalg.lstsq(train.T @ train + penalty, train.T @ mean_return[~test]).solution
        predicted[test] = inputs[test] @ coefficients
    return predicted


def _thirds(values: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Third of the values in which each lies; equal values are in the same third."""
    cuts = values.double().quantile(torch.tensor([1 / 3, 2 / 3], dtype=torch.double))
    return torch.searchsorted(cuts, values.double().contiguous())


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
    effective_practice: Amount = 10.0
    """Least effective number of subjects for "better than practice" and "worse than practice". Below `effective` the
    interval of the difference is widened to 99% by Student's t of so many subjects."""
    worst: Share = 0.1
    """Share of the clinicians' subjects, those with the lowest returns; a mean return below theirs is "dangerous"."""


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


def against_practice(
    evidence: VerdictEvidence,
    difference: Estimate,
    logged: Estimate,
    simulated: tuple[Estimate, ...],
    worst_return: float,
    limits: VerdictLimits = VerdictLimits(),
) -> tuple[AgainstPractice, str]:
    """Compare the policy with practice where the log speaks plainly, and say what shows it.

    "better than practice": the interval of the paired difference is above 0, widened where subjects are few; the
    critic alone and every alternative estimate agree on the sign; and the log has the policy's actions. "worse than
    practice" likewise. "dangerous": worse, and with a mean return below that of the worst tenth of the clinicians'
    subjects; or, where the log lacks the policy's actions, so far below in a model that passed its checks.

    Args:
        evidence: What the verdict rests on.
        difference: The recommended estimate minus the logged return, paired by subject.
        logged: The logged return.
        simulated: Estimates by simulation in a model.
        worst_return: The logged return that the share `limits.worst` of the subjects stay below.
        limits: Thresholds.
    """
    trusted = [
        each for each in simulated if each.name not in (*evidence.distrusted, *evidence.impossible) and each.complete
    ]
    deadly = next((each for each in trusted if each.high is not None and each.high < worst_return), None)
    sign = _plain_sign(evidence, difference, logged, limits)
    tenth = f"the {limits.worst:.0%} of the clinicians' subjects with the lowest returns (below {worst_return:.3g})"
    if sign > 0:
        return "better than practice", f"the difference from the logged return is {difference}, paired by subject."
    if sign < 0:
        value = evidence.value.value
        if value is not None and value < worst_return:
            return "dangerous", f"the estimated mean return is {evidence.value}, that of {tenth}."
        return "worse than practice", f"the difference from the logged return is {difference}, paired by subject."
    critic, clinicians = evidence.fitted.high, logged.low
    if deadly is not None and critic is not None and clinicians is not None and critic < clinicians:
        shown = f"inside the model the mean return is {deadly}, that of {tenth}; the critic of the log agrees."
        return "dangerous", shown
    return "", ""


def _plain_sign(evidence: VerdictEvidence, difference: Estimate, logged: Estimate, limits: VerdictLimits) -> int:
    """Sign of a difference that the log shows plainly; 0 where it does not."""
    diagnostics, value = evidence.diagnostics, evidence.value
    # Reasons against judging other than few subjects, which the interval is widened for.
    enough = replace(diagnostics, subjects=int(limits.effective) + 1, effective=limits.effective)
    if _reasons_against_judging(replace(evidence, diagnostics=enough), limits):
        return 0
    effective = min(diagnostics.effective, float(diagnostics.subjects))
    if effective < limits.effective_practice or not difference.complete or logged.value is None:
        return 0
    low, high = _widened_ends(difference, effective, few=effective < limits.effective)
    sign = 1 if low > 0 else -1 if high < 0 else 0
    values = [each.value for each in (value, evidence.fitted, *evidence.others)]
    agree = all(each is not None and (each - logged.value) * sign > 0 for each in values)
    return sign if agree else 0


def _widened_ends(difference: Estimate, effective: float, few: bool) -> tuple[float, float]:
    """Ends of the interval; of few subjects by Student's t and for 99%, because their bootstrap is too narrow."""
    from scipy.special import ndtri, stdtrit

    assert difference.value is not None
    assert difference.low is not None
    assert difference.high is not None
    factor = float(stdtrit(max(effective - 1, 1), 0.995) / ndtri(0.975)) if few else 1.0
    low = difference.value - factor * (difference.value - difference.low)
    return low, difference.value + factor * (difference.high - difference.value)


def is_supported(diagnostics: Diagnostics, limits: VerdictLimits) -> bool:
    """Whether the log has the actions of a policy often enough for any estimate of it."""
    few = diagnostics.effective < limits.effective_practice
    return not few and diagnostics.unsupported <= limits.unsupported and diagnostics.off_support <= limits.off_support


def worst_return(data: OPEData, share: float) -> float:
    """The mean logged return that a share of the subjects stay below."""
    returns = rewards(data).sum(1)
    means = by_subject(data.episodes, returns) / by_subject(data.episodes, torch.ones_like(returns))
    return float(means.quantile(share))


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
