"""A policy judged from the log alone: the truth is inside, what the log cannot say is said, and nobody is named."""

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import counterpoint as cp
from counterpoint.data.schema import Schema
from counterpoint.ope.diagnostics import (
    SubjectPartition,
    VerdictEvidence,
    VerdictLimits,
    by_group,
    by_severity,
    off_support_share,
    untried_actions,
    verdict,
)
from counterpoint.ope.evaluation import RECOMMENDED, compare, evaluate
from counterpoint.ope.problem import (
    Episodes,
    OPEData,
)
from counterpoint.ope.result import Estimate, Evaluation, PolicyComparison
from counterpoint.policies.base import Verdict
from helpers.judge import CHANCES, DOSES, GENTLE, GOOD, LOGGED, QUICK, STEPS, WARD, Lottery, drawn

SHAPES = False


def numbers(found: Estimate | None) -> tuple[float, float, float]:
    """Value and ends, all of which are known."""
    assert found is not None
    assert found.value is not None
    assert found.low is not None
    assert found.high is not None
    return found.value, found.low, found.high


@pytest.fixture(scope="module")
def gentle() -> Evaluation:
    return evaluate(LOGGED, GENTLE, QUICK)


def test_the_truth_is_in_the_intervals_of_a_policy_near_the_log(gentle: Evaluation) -> None:
    truth = GENTLE.worth()
    for estimate in gentle.estimates:
        assert not estimate.excludes(truth), estimate.name
        assert estimate.width < 5
    assert gentle.value.name == gentle.recommended == RECOMMENDED
    assert gentle.logged.value == pytest.approx(float(Episodes.of(LOGGED).returns(1.0).mean()))
    more, low, high = numbers(gentle.difference)
    assert more == pytest.approx(numbers(gentle.value)[0] - numbers(gentle.logged)[0])
    assert 0 < low < more < high
    assert high - low < gentle.value.width
    assert gentle.verdict == "supported"
    assert gentle.reasons == ()
    assert gentle.mixture is None


def test_whoever_logged_is_worth_what_was_logged() -> None:
    found = evaluate(LOGGED, Lottery(tuple(CHANCES.tolist())), QUICK)
    assert found.difference is not None
    assert not found.difference.excludes(0.0)
    told = found.diagnostics
    assert told is not None
    assert told.effective > 480
    assert told.agreement == pytest.approx(float((CHANCES[LOGGED.action_index]).mean()), abs=1e-5)


def test_discounts_and_rows_count(gentle: Evaluation) -> None:
    found = evaluate(LOGGED, GENTLE, replace(QUICK, discount=0.5))
    assert found.logged.value == pytest.approx(float(Episodes.of(LOGGED).returns(0.5).mean()))
    assert found.value.excludes(numbers(gentle.value)[0])
    with pytest.raises(cp.CounterpointError, match="imagined rows"):
        evaluate(replace(LOGGED, imagined=torch.ones(len(LOGGED), dtype=torch.bool)), GENTLE, QUICK)


def test_an_evaluation_comes_back_from_its_json_and_names_nobody(gentle: Evaluation) -> None:
    names = tuple(f"patient-{i}" for i in range(500))
    found = evaluate(replace(LOGGED, subject_names=names), GENTLE, QUICK)
    assert found == gentle, "the same seed gives the same numbers"
    assert "patient-" not in found.text()
    assert Evaluation.from_json(json.loads(found.text())) == found
    for damage in ({"format": "other"}, {"verdict": "splendid"}, {"type": "Softened"}, {"estimates": 3}, {"seed": "x"}):
        with pytest.raises(cp.CounterpointError):
            Evaluation.from_json({**json.loads(found.text()), **damage})
    rows = found.rows()
    assert [row["name"] for row in rows if row["kind"] == "estimate"] == [each.name for each in found.estimates]
    assert {row["kind"] for row in rows} >= {"log", "difference from the log", "unmeasured confounding"}


def test_learning_from_the_very_rows_is_a_reason_for_care() -> None:
    policy = cp.D3QN((8,), cp.Schedule(steps=30)).fit(LOGGED, WARD)
    own, fresh = (evaluate(LOGGED, policy, QUICK, held_out=held_out) for held_out in (False, True))
    assert any("subjects that it is evaluated on" in reason for reason in own.reasons)
    assert not any("subjects that it is evaluated on" in reason for reason in fresh.reasons)
    assert own.mixture == QUICK.mixture


def test_treating_where_nobody_was_treated_cannot_be_judged() -> None:
    """Whoever logged never gave the largest dose to severe patients; a policy that does is not in the log."""

    def cautious(state: Tensor, random: torch.Generator) -> Tensor:
        dose = drawn(CHANCES)(state, random)
        return torch.where((state[:, :1] > 1.0) & (dose == 1.0), 0.0, dose)

    @dataclass(frozen=True)
    class Bold:
        schema: Schema = LOGGED.schema

        def probabilities(self, state: Tensor) -> Tensor:
            ill = state[:, :1] > 1.0
            return torch.where(ill, torch.tensor([0.0, 0.0, 1.0]), CHANCES)

    rows = cp.simulate(WARD, cautious, trials=500, steps=STEPS, seed=0)
    found = evaluate(rows, Bold(), QUICK)
    share = float((rows.state[:, 0] > 1.0).float().mean())
    assert found.diagnostics is not None
    assert found.diagnostics.unsupported == pytest.approx(share, abs=0.1)
    assert found.verdict == "cannot be judged"
    assert "never given to another subject in a similar state" in found.reasons[0]
    assert evaluate(LOGGED, Bold(), QUICK).diagnostics.unsupported < 0.02  # pyright: ignore[reportOptionalMemberAccess]


def test_what_follows_an_action_never_given_is_not_in_the_log_either() -> None:
    """Decisions without support add up along a record; what the log itself does without support is not held against."""
    subject, step, index = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0, 1, 2, 0, 1]), torch.zeros(5).long()
    rows = replace(LOGGED[:5], subject=subject, episode=subject, step=step, action_index=index)
    never = torch.zeros(len(rows), 3, dtype=torch.bool)
    never[1, 2] = True
    half = torch.tensor([0.5, 0.0, 0.5]).expand(len(rows), -1)
    untried = lambda table: never.gather(1, table.action_index[:, None])[:, 0]
    by_half = (half * never).sum(1)
    assert off_support_share(Episodes.of(rows), by_half, untried(rows)) == pytest.approx(2 * 0.5 / 5)
    late = (0.5 * 0.5 + 0.25 * 0.5) / (1.75 + 1.5)
    assert off_support_share(Episodes.of(rows), by_half, untried(rows), 0.5) == pytest.approx(late), (
        "later steps count less"
    )
    same = replace(rows, action_index=torch.where(never[:, 2], 2, index))
    always = torch.nn.functional.one_hot(same.action_index, 3).float()
    assert off_support_share(Episodes.of(same), (always * never).sum(1), untried(same)) == 0.0, (
        "nobody else was given it, but who logged gave it as well"
    )
    assert off_support_share(Episodes.of(same), torch.ones(len(same)), torch.ones(len(same))) == 1.0


def test_few_decisions_without_support_can_be_in_most_records() -> None:
    """One decision of six is never the policy's, wherever it falls in a record of ten."""
    count = 10 * (len(LOGGED) // 10)
    order, random = torch.arange(count), torch.Generator().manual_seed(3)
    ill = torch.rand(count, generator=random) < 1 / 6
    state = torch.randn(count, 2, generator=random) + 9 * ill[:, None]
    index = torch.where(ill, 0, CHANCES.multinomial(count, True, generator=random))
    rows = replace(LOGGED[:count], subject=order // 10, episode=order // 10, step=order % 10, state=state,
                   action_index=index, action=DOSES.features(index), outcome=torch.full_like(index, -1))  # fmt: skip

    @dataclass(frozen=True)
    class Bold:
        schema: Schema = LOGGED.schema

        def probabilities(self, state: Tensor) -> Tensor:
            return torch.where(state[:, :1] > 4.5, torch.tensor([0.0, 0.0, 1.0]), CHANCES)

    found = evaluate(rows, Bold(), QUICK)
    assert found.diagnostics is not None
    assert found.diagnostics.unsupported == pytest.approx(1 / 6, abs=0.03)
    assert found.diagnostics.off_support == pytest.approx(1 - sum((5 / 6) ** t for t in range(1, 11)) / 10, abs=0.06)
    assert found.verdict == "cannot be judged"
    assert "does not show most of what it leads to" in found.reasons[0]


def test_what_only_the_subject_itself_was_given_is_not_support() -> None:
    """Subject 0 alone was given the second dose, all its steps."""
    rows = LOGGED[LOGGED.subject < 60]
    index = torch.where(rows.subject == 0, 1, 0)
    rows = replace(rows, action_index=index, action=DOSES.features(index))
    own = rows[rows.subject == 0]
    assert untried_actions(own, rows, 3)[:, 1].all()
    others = replace(rows, action_index=torch.where(rows.subject % 2 == 0, 1, 0))
    assert not untried_actions(own, others, 3)[:, 1].any()


def test_only_equal_states_are_similar_where_all_columns_are_categories() -> None:
    levels = ("a", "b")
    schema = replace(LOGGED.schema, states=(cp.Column("severity", levels), cp.Column("drug", levels)))
    rows = LOGGED[LOGGED.has_next][:12]
    state = torch.tensor([[0.0, 0.0]] * 6 + [[1.0, 0.0]] * 6)
    index = torch.tensor([0, 0, 1, 1, 1, 2] * 2)
    subject = torch.tensor([0, 1, 0, 0, 0, 1, 0, 1, 2, 2, 2, 2])
    rows = replace(rows, state=state, schema=schema, action_index=index, subject=subject)
    share = lambda action: float(untried_actions(rows, rows, 3)[:, action].float().mean())
    assert share(0) == 0.0, "given to subjects 0 and 1 in both states"
    assert share(1) == pytest.approx(8 / 12), "in state 0 to subject 0 alone, four of whose rows are there; in 1 to 2"


def test_severity_sorts_subjects_by_a_column_or_by_what_they_should_earn() -> None:
    chances = CHANCES.expand(len(LOGGED), -1)
    question = OPEData(Episodes.of(LOGGED), chances, chances, chances)
    first = LOGGED.state[LOGGED.step == 0]
    by_column = by_severity(question, "severity")
    assert by_column.by == "severity"
    means = [float(first[by_column.part == part, 0].mean()) for part in range(3)]
    assert means == sorted(means)
    assert torch.bincount(by_column.part).tolist() == pytest.approx([167, 166, 167], abs=2)
    foreseen = by_severity(question)
    illness = [float(first[foreseen.part == part, 0].mean()) for part in range(3)]
    assert illness == sorted(illness, reverse=True), "the lowest return is foreseen for the most severe"
    with pytest.raises(cp.CounterpointError, match="is no state column"):
        by_severity(question, "height")
    small = SubjectPartition("", ("few", "many"), torch.tensor([0] * 5 + [1] * 30))
    assert [name for name, _ in small.large()] == ["many"]
    assert by_group(GENTLE, question.episodes).names == ()


def test_parts_are_judged_apart(gentle: Evaluation) -> None:
    assert [part.name for part in gentle.severity] == ["lowest third", "middle third", "highest third"]
    assert sum(part.subjects for part in gentle.severity) == 500
    logged = [numbers(part.logged)[0] for part in gentle.severity]
    policy = [numbers(part.policy)[0] for part in gentle.severity]
    assert logged[0] < logged[1] < logged[2], "as foreseen"
    assert policy[0] < policy[2]
    whole = sum(part.subjects * value for part, value in zip(gentle.severity, logged, strict=True)) / 500
    assert whole == pytest.approx(gentle.logged.value)


def test_policies_side_by_side(gentle: Evaluation) -> None:
    other = Lottery((0.2, 0.4, 0.4))
    found = compare(LOGGED, {"gentle": GENTLE, "again": GENTLE, "rough": other}, QUICK)
    assert [each.policy for each in found.evaluations] == ["gentle", "again", "rough"]
    assert found.evaluations[0].estimates == gentle.estimates
    same, _, apart = found.pairs
    assert (same.one, same.other) == ("gentle", "again")
    assert numbers(same.difference) == pytest.approx((0, 0, 0), abs=1e-9)
    values = [numbers(each.value)[0] for each in found.evaluations]
    assert apart.difference.value == pytest.approx(values[1] - values[2])
    assert not apart.difference.excludes(GENTLE.worth() - other.worth())
    assert numbers(apart.difference)[1] > 0
    assert found.rows()[0]["policy"] == "behaviour policy"
    assert PolicyComparison.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_probabilities_of_continuous_doses_are_refused() -> None:
    box = cp.Box((0.0,), (1.0,))
    rows = replace(LOGGED, schema=replace(LOGGED.schema, actions=box), action_index=torch.full_like(LOGGED.step, -1))
    with pytest.raises(cp.CounterpointError, match="has no doses"):
        evaluate(rows, Lottery((1.0,), rows.schema), QUICK)


def test_a_policy_that_no_record_follows_cannot_be_judged_and_breaks_nothing() -> None:
    never = LOGGED.action_index == 2
    seen = torch.ones(500, dtype=torch.bool)
    seen[LOGGED.subject[never]] = False
    rows = LOGGED[seen[LOGGED.subject]]  # Nobody left has ever been given the third dose.
    found = evaluate(rows, Lottery((0.0, 0.0, 1.0)), QUICK)
    assert found.verdict == "cannot be judged"
    assert found.sensitivity is not None
    returns = Episodes.of(rows).returns(1.0)
    ends = [(each.lowest, each.highest) for each in found.sensitivity.confounding]
    assert ends == [(pytest.approx(float(returns.min())), pytest.approx(float(returns.max())))] * 2


def test_whoever_logged_is_estimated_in_the_way_that_foresees_others_best() -> None:
    state = LOGGED.state[:, 0]
    middle = (state > state.quantile(0.3)) & (state < state.quantile(0.7))  # No line tells the middle from both ends.
    index = torch.where(middle, 2, 0)
    rows = replace(LOGGED, action=DOSES.table()[index], action_index=index)
    ways = cp.ope.NearestNeighbours(neighbours=15), cp.ope.BoostedTrees()
    how = replace(QUICK, alternative_behaviours=ways, critic_draws=2, draws=10)
    found = evaluate(rows, GENTLE, how).behaviour
    assert found is not None
    assert found.recipe.startswith("BoostedTrees")
    asked = evaluate(rows, GENTLE, replace(how, behaviour=cp.ope.Logistic())).behaviour
    assert asked is not None
    assert asked.recipe == "Logistic"
    assert asked.brier > found.brier


def test_a_column_that_is_not_there_is_refused_before_anything_is_fitted() -> None:
    with pytest.raises(cp.CounterpointError, match=r"^severity='height' is no state column[^\n]*$"):
        evaluate(LOGGED, GENTLE, replace(QUICK, severity="height"), monitor=cp.models.Monitor(report=_refuse))


def _refuse(*said: object) -> None:
    raise AssertionError(said)


# --- the verdict ------------------------------------------------------------------------------------------------------


def told(**changes: Any) -> VerdictEvidence:
    return replace(GOOD, diagnostics=replace(GOOD.diagnostics, **changes))


@pytest.mark.parametrize(
    ("evidence", "label", "word"),
    [
        (GOOD, "supported", ""),
        (replace(GOOD, breakdown_strength=None), "supported", ""),
        (
            replace(GOOD, value=Estimate("one-step DR", 1.0, None, None)),
            "cannot be judged",
            "resampled logs contain none",
        ),
        (told(effective=49.0), "cannot be judged", "49 of the 500 subjects"),
        (told(unsupported=0.26), "cannot be judged", "26%"),
        (
            told(subjects=6, effective=0.3),
            "cannot be judged",
            "on 6 subjects, and an interval needs at least 50",
        ),
        (told(subjects=1, effective=1.0), "cannot be judged", "evaluated on 1 subject, and"),
        (told(effective=0.003), "cannot be judged", "the weight of under 0.1 of the 500 subjects"),
        (told(effective=99.0), "with care", "99 of the 500 subjects"),
        (told(effective_records=9.0), "with care", "later states"),
        (told(unsupported=0.06), "with care", "6%"),
        (told(off_support=0.51), "cannot be judged", "51% of the steps"),
        (told(off_support=0.21), "with care", "21% of the steps"),
        (told(largest=0.11), "with care", "One subject"),
        (replace(GOOD, fitted=Estimate("FQE", 2.0, 1.2, 3.0)), "cannot be judged", "FQE and one-step DR do not"),
        (replace(GOOD, others=(Estimate("Logistic", 2.0, 1.2, 3.0),)), "with care", "Logistic"),
        (replace(GOOD, calibration_error=0.06), "with care", "6% off"),
        (replace(GOOD, breakdown_strength=1.2), "with care", "1.20"),
        (replace(GOOD, held_out=False), "with care", "--held-out"),
        (replace(GOOD, distrusted=("SCM rollouts", "CF-PE")), "with care", "failed its checks: SCM rollouts, CF-PE"),
    ],
)
def test_a_verdict_has_its_reason(evidence: VerdictEvidence, label: str, word: str) -> None:
    found, reasons = verdict(evidence)
    assert found == label
    assert len(reasons) == (label != "supported")
    assert not word or word in reasons[0]


def test_a_brief_verdict_is_one_line_with_the_gravest_reason_and_a_count_of_the_others() -> None:
    reasons = "It depends on the action.", "The spread is wrong.", "Rows were the fit's own."
    behind = "Trust in the model behind this policy"
    assert Verdict("yes").brief == f"{behind}: yes."
    assert Verdict("no", reasons[:1]).brief == f"{behind}: no. {reasons[0]}"
    assert Verdict("no", reasons[:2]).brief == f"{behind}: no. {reasons[0]} (1 more reason: check-scm or report)"
    assert Verdict("no", reasons).brief == f"{behind}: no. {reasons[0]} (2 more reasons: check-scm or report)"


def test_limits_are_the_users_and_the_gravest_reason_comes_first() -> None:
    assert verdict(told(effective=20.0), VerdictLimits(effective=10.0, effective_care=15.0))[0] == "supported"
    found, reasons = verdict(replace(told(effective=20.0), held_out=False))
    assert found == "cannot be judged"
    assert "20 of the 500 subjects" in reasons[0]
    assert len(reasons) == 2
