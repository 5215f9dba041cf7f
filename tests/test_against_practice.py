"""Comparison with practice: given where the log speaks plainly, and withheld where anything contradicts it."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from counterpoint.ope.diagnostics import VerdictEvidence, against_practice, worst_return
from counterpoint.ope.evaluation import evaluate
from counterpoint.ope.problem import Episodes, OPEData
from counterpoint.ope.result import Estimate, Evaluation
from helpers.judge import GENTLE, GOOD, LOGGED, QUICK

LOGGED_RETURN = Estimate("behaviour policy", 0.0, -0.2, 0.2)
ABOVE, BELOW = Estimate("difference", 1.0, 0.4, 1.6), Estimate("difference", -1.0, -1.6, -0.4)
WORST = -0.5


def evidence(sign: float, **changes: Any) -> VerdictEvidence:
    """Evidence of a log that supports the policy, whose mean return is `sign`."""
    value = Estimate("one-step DR", sign, sign - 0.5, sign + 0.5)
    fitted = replace(value, name="FQE")
    others = (replace(value, name="another"),)
    return replace(GOOD, **{"value": value, "fitted": fitted, "others": others, **changes})


def label(
    found: VerdictEvidence, difference: Estimate, simulated: tuple[Estimate, ...] = (), worst: float = WORST
) -> str:
    return against_practice(found, difference, LOGGED_RETURN, simulated, worst)[0]


def few(effective: float, subjects: int = 500, **changes: Any) -> VerdictEvidence:
    diagnostics = replace(GOOD.diagnostics, effective=effective, subjects=subjects, **changes)
    return evidence(1.0, diagnostics=diagnostics)


def test_a_plain_difference_is_said_with_its_interval() -> None:
    assert label(evidence(1.0), ABOVE) == "better than practice"
    assert label(evidence(-1.0), BELOW, worst=-2.0) == "worse than practice"
    assert label(evidence(0.1), replace(ABOVE, low=-0.1)) == ""
    _, reason = against_practice(evidence(1.0), ABOVE, LOGGED_RETURN, (), WORST)
    assert "1 [0.4, 1.6]" in reason


@pytest.mark.parametrize(
    "contradicted",
    [
        evidence(1.0, fitted=Estimate("FQE", -0.1, -0.6, 1.4)),
        evidence(1.0, others=(Estimate("another", -0.1, -0.6, 1.4),)),
        evidence(1.0, shifted=("actions seem to be a row late",)),
        evidence(1.0, value=Estimate("one-step DR", 1.0, 0.5, 1.0, (3.0, 2.0, 4.0))),
        few(100.0, unsupported=0.3),
        few(100.0, off_support=0.6),
        few(9.0),
        few(100.0, subjects=9),
    ],
)
def test_it_is_withheld_where_anything_contradicts_it(contradicted: VerdictEvidence) -> None:
    assert label(contradicted, ABOVE) == ""


def test_few_subjects_need_a_clearer_difference() -> None:
    narrow = Estimate("difference", 1.0, 0.2, 1.8)
    assert label(few(60.0), narrow) == "better than practice"
    assert label(few(20.0, 30), narrow) == "", "half of the interval is 0.8, by Student's t for 99% 1.17"
    assert label(few(20.0, 30), Estimate("difference", 1.0, 0.5, 1.5)) == "better than practice"


def test_worse_than_nine_in_ten_of_the_clinicians_subjects_is_dangerous() -> None:
    assert label(evidence(-1.0), BELOW) == "dangerous"
    deadly, mild = Estimate("SCM rollouts", -9.0, -12.0, -7.0), Estimate("SCM rollouts", -0.4, -0.6, -0.3)
    critic = {"fitted": Estimate("FQE", -3.0, -4.0, -2.0)}
    unsupported = few(1.0, unsupported=0.9)
    assert label(replace(unsupported, **critic), ABOVE, (deadly,)) == "dangerous", "the log cannot tell, the model can"
    assert label(replace(unsupported, **critic), ABOVE, (mild,)) == ""
    assert label(unsupported, ABOVE, (deadly,)) == "", "the critic of the log does not agree"
    assert label(replace(unsupported, **critic, distrusted=("SCM rollouts",)), ABOVE, (deadly,)) == ""


def test_the_worst_return_is_a_quantile_of_the_subjects_mean_returns() -> None:
    nothing = torch.zeros(len(LOGGED), 0)
    data = OPEData(Episodes.of(LOGGED), nothing, nothing, nothing)
    totals = torch.zeros(int(LOGGED.subject.max()) + 1, dtype=torch.double)
    totals.index_add_(0, LOGGED.subject, LOGGED.reward.double())
    assert worst_return(data, 0.1) == pytest.approx(float(totals.quantile(0.1)))


def test_an_evaluation_says_it_before_the_verdict() -> None:
    found = evaluate(LOGGED, GENTLE, QUICK)
    assert found.against_practice == "better than practice"
    assert found.words().splitlines()[0] == found.practice_words
    assert f"Verdict: better than practice; {found.verdict}" in found.brief
    assert Evaluation.from_json(found.to_json()) == found
