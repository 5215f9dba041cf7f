"""Estimates are held to the returns that an episode can have, and one that lay outside is not recommended."""

import json
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import counterpoint as cp
from counterpoint.data.returns import ReturnRange
from counterpoint.ope.continuous import ShiftedDoses
from counterpoint.ope.diagnostics import verdict
from counterpoint.ope.evaluation import compare, evaluate
from counterpoint.ope.model_based import ModelEstimates
from counterpoint.ope.problem import (
    Episodes,
    OPEData,
)
from counterpoint.ope.result import Estimate, Evaluation, clip, clip_difference, possible_return_range
from counterpoint.page.evaluation_tables import evaluation_section, interval_text
from helpers.judge import GENTLE, GOOD, LOGGED, QUICK, STEPS

SHAPES = False
RANGE = ReturnRange(-303.0, 0.0)
CASE = "counterpoint.ope.evaluation"
PATIENTS = LOGGED[LOGGED.subject < 80]


def shifted(by: float) -> object:
    """An estimator of the recommended name that is the logged return and so much more."""

    def estimate(question: OPEData, counts: Tensor, *, critic: object) -> Tensor:
        value = Episodes.of(question.rows).returns(1.0)
        return (counts * value).sum(1) / counts.sum(1) + by

    return estimate


def test_value_and_ends_are_moved_to_the_nearest_possible_return() -> None:
    found = clip(Estimate("DR", 74.0, -310.0, 427.0), RANGE)
    assert (found.value, found.low, found.high) == (0.0, -303.0, 0.0)
    assert found.unclipped == (74.0, -310.0, 427.0)
    assert found.outside
    assert str(found) == "0 [-303, 0], clipped to the possible range"
    wide = clip(Estimate("DR", -50.0, -60.0, 12.0), RANGE)
    assert (wide.value, wide.high, wide.clipped, wide.outside) == (-50.0, 0.0, True, False)
    inside, unknown = Estimate("DR", -50.0, -60.0, -40.0), Estimate("DR", None, None, None)
    assert clip(inside, RANGE) is inside
    assert clip(unknown, RANGE) is unknown


def test_a_difference_is_that_of_the_values_held() -> None:
    logged = Estimate("logged", -50.0, -60.0, -40.0)
    policy = clip(Estimate("DR", 74.0, -90.0, 427.0), RANGE)
    found = clip_difference(Estimate("more", 124.0, -40.0, 477.0), policy, logged, RANGE)
    assert (found.value, found.low, found.high) == (50.0, -40.0, 60.0)
    fine = Estimate("more", 5.0, 1.0, 9.0)
    assert clip_difference(fine, Estimate("DR", -45.0, -50.0, -41.0), logged, RANGE) is fine


def test_an_estimate_that_lay_outside_or_is_unknown_is_not_recommended() -> None:
    found = evaluate(PATIENTS, GENTLE, QUICK)
    name = found.recommended
    rated = lambda verdict, each: replace(found, verdict=verdict).label(each)
    assert rated("supported", Estimate(name, -5.0, -6.0, -4.0)) == "recommended"
    assert rated("supported", Estimate("WIS", -5.0, -6.0, -4.0)) == ""
    assert rated("supported", Estimate(name, -5.0, None, None)) == "not known"
    assert rated("cannot be judged", Estimate(name, -5.0, -6.0, -4.0)) == "cannot be judged"
    assert (
        rated("with care", clip(Estimate(name, -5.0, -6.0, 4.0), RANGE)) == "recommended, clipped to the possible range"
    )
    assert rated("with care", clip(Estimate("DR", -5.0, -6.0, 4.0), RANGE)) == "clipped to the possible range"


def test_the_verdict_falls_where_the_value_lay_outside() -> None:
    found, reasons = verdict(replace(GOOD, value=clip(Estimate("one-step DR", 2.0, 0.9, 2.1), ReturnRange(0.0, 1.5))))
    assert found == "cannot be judged"
    assert "one-step DR was 2 [0.9, 2.1], outside the possible returns" in reasons[0]
    assert verdict(replace(GOOD, value=clip(GOOD.value, ReturnRange(0.0, 1.05))))[0] == "supported"
    model = replace(GOOD, impossible=("SCM rollouts",), possible=RANGE)
    judgement, why = verdict(model)
    assert judgement == "with care"
    assert why == (
        "Estimates by the model were outside the possible returns (-303 to 0 by the log's rewards): SCM rollouts. The"
        " model is wrong in the states that the policy reaches.",
    )


def test_judge_holds_what_the_log_cannot_have_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{CASE}.one_step_doubly_robust", shifted(1000.0))
    found = evaluate(PATIENTS, GENTLE, QUICK)
    possible = found.possible
    assert possible is not None
    assert possible == possible_return_range(PATIENTS, PATIENTS)
    assert float(PATIENTS.reward.max()) <= possible.high < 100
    assert (found.value.value, found.value.high) == (possible.high, possible.high)
    assert found.value.outside
    assert found.verdict == "cannot be judged"
    assert "outside the possible returns" in found.reasons[0]
    assert f"it is clipped to the possible range {possible}" in found.notes[0]
    assert str(possible).endswith("by the log's rewards")
    assert found.logged.value is not None
    assert found.difference is not None
    assert found.difference.value == pytest.approx(possible.high - found.logged.value)
    assert all(part.policy.outside for part in found.severity)
    assert Evaluation.from_json(json.loads(found.text())) == found
    assert found.rows()[0]["held"]


def test_two_policies_that_are_both_held_do_not_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{CASE}.one_step_doubly_robust", shifted(1000.0))
    found = compare(PATIENTS, {"one": GENTLE, "two": GENTLE}, QUICK)
    assert found.pairs[0].difference.value == 0.0


def test_a_declared_range_stands_for_that_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{CASE}.one_step_doubly_robust", shifted(1000.0))
    schema = replace(PATIENTS.schema, knowledge=cp.Knowledge(reward_range=(-500.0, 500.0)))
    rows, policy = replace(PATIENTS, schema=schema), replace(GENTLE, schema=schema)
    found = evaluate(rows, policy, QUICK)
    assert found.possible == ReturnRange(-500.0 * STEPS, 500.0 * STEPS, declared=True)
    assert not found.value.clipped
    narrow = replace(schema, knowledge=cp.Knowledge(reward_range=(-0.001, 0.0)))
    with pytest.raises(cp.CounterpointError, match="outside the declared range"):
        evaluate(replace(PATIENTS, schema=narrow), replace(GENTLE, schema=narrow), QUICK)


def test_what_a_model_says_of_continuous_doses_is_held_too(monkeypatch: pytest.MonkeyPatch) -> None:
    said = ModelEstimates((Estimate("SCM rollouts", 31_400.0, 2e4, 4e4),))
    monkeypatch.setattr("counterpoint.ope.evaluation.estimate_in_model", lambda *_: said)
    box = replace(PATIENTS.schema, actions=cp.Box((0.0,), (1.0,)))
    rows = replace(PATIENTS, schema=box, action_index=torch.full_like(PATIENTS.step, -1))
    found = evaluate(rows, ShiftedDoses(box, lambda state, dose: dose), QUICK)
    assert found.possible is not None
    simulated = found["SCM rollouts"]
    assert simulated.value == found.possible.high
    assert found.label(simulated) == "clipped to the possible range"
    assert any("were outside the possible returns" in reason for reason in found.reasons)


def test_the_page_says_which_values_were_held() -> None:
    found = replace(
        evaluate(PATIENTS, GENTLE, QUICK), estimates=(clip(Estimate("one-step DR", -5.0, -9.0, 4.0), RANGE),)
    )
    assert interval_text(found.value) == "−5 (−9 to 0), clipped to the possible range"
    assert evaluation_section(found).estimates.rows[0] == ("one-step DR, recommended", interval_text(found.value))
    refused = replace(found, verdict="cannot be judged")
    assert evaluation_section(refused).estimates.rows[0][0] == "one-step DR, cannot be judged"
