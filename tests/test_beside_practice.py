"""A policy beside practice: its return in the same model."""

import re
from typing import Any

import pytest
import torch

import counterpoint as cp
from counterpoint.cli.trained import trained_lines
from counterpoint.data.jobs import Origin
from counterpoint.learners.near_practice import NearPractice
from counterpoint.learners.practice import Practice, baseline_practice
from counterpoint.policies.near_practice import NearPracticePolicy
from counterpoint.policies.practice import ConstantPolicy
from helpers.search import DRIFT, LOG, MODEL_RECIPE

RECIPE = NearPractice(model=MODEL_RECIPE, practice=Practice(trees=5))


def near_practice(rows: cp.Transitions, share: float, number: float) -> NearPracticePolicy:
    """A tilt by one number in every column."""
    practice = RECIPE.practice.fit(rows, DRIFT)
    weights: dict[str, Any] = {"mean": rows.state.mean(0), "spread": rows.state.std(0), "share": torch.tensor(share)}
    width = rows.action.shape[1]
    weights |= {"numbers": torch.full((3 * width,), number), "offset": torch.zeros(width)}
    return NearPracticePolicy(RECIPE, practice, weights, rows.schema, Origin(0, "", ""), ("by hand",))


@pytest.fixture(scope="module")
def model() -> Any:
    return MODEL_RECIPE.fit(LOG)


def in_model(policy: cp.Policy, model: Any) -> tuple[float, ...]:
    """The policy's and practice's returns of the line about the model."""
    lines = trained_lines(policy, LOG, None, 0, model, DRIFT)
    (line,) = [line for line in lines if line.startswith("mean return inside the model")]
    assert "8 steps from the first states of 30 records, same noise" in line
    return tuple(map(float, re.findall(r"model (-?[\d.e+]+), practice \(median dose\) there (-?[\d.e+]+)", line)[0]))


def test_practice_has_the_return_of_practice_in_the_same_model(model: Any) -> None:
    own, practice = in_model(near_practice(LOG, 0.0, 0.5), model)
    assert own == practice
    own, practice = in_model(near_practice(LOG, 1.0, 0.5), model)
    assert own != practice


def test_a_policy_that_does_harm_in_the_model_stands_below_practice_and_is_warned_of(model: Any) -> None:
    """Practice is random around 0 here; a large dose always leads away from 0, where every step costs."""
    practice = baseline_practice(LOG)
    assert practice is not None
    always = ConstantPolicy(cp.learners.Constant(), torch.tensor([9.0, 9.0]), LOG.schema, practice.origin)
    own, of_practice = in_model(always, model)
    assert own < of_practice
    assert trained_lines(always, LOG, None, 0)[-1].endswith("the log has no evidence, so do not act by it")
    assert not any("inside the model" in line for line in trained_lines(always, LOG, None, 0))
