"""A policy beside practice: its return in the same model, and its recommendations."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import counterpoint as cp
from counterpoint.cli.trained import trained_lines
from counterpoint.learners.practice import baseline_practice
from counterpoint.policies.near_practice import NearPracticePolicy
from counterpoint.policies.practice import ConstantPolicy
from counterpoint.policies.recommendation import recommend, recommend_to
from helpers.cli import command
from helpers.near_practice import dosed_rows, near_practice, ward
from helpers.recipes import Pays
from helpers.search import DRIFT, LOG, MODEL_RECIPE


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


@pytest.fixture(scope="module")
def dosed() -> cp.Transitions:
    return dosed_rows()


@pytest.fixture(scope="module")
def tilted(dosed: cp.Transitions) -> NearPracticePolicy:
    """Half of practice's dose, about."""
    policy = near_practice(dosed, 1.0, 0.0, Pays(dosed.actions))
    policy.numbers[-1] = -0.5
    return policy


def test_practice_stands_beside_what_is_recommended_and_withheld(
    dosed: cp.Transitions, tilted: NearPracticePolicy
) -> None:
    new = pd.DataFrame({"id": ["a", "b"], "t": [0, 0], "lactate": [3.0, 90.0]})
    usual, unlike = recommend(tilted, new, dosed).advice
    assert usual.practice is not None
    expected = float(tilted.practice.act(torch.tensor([[3.0]])))
    assert usual.practice["dose"] == pytest.approx(expected)
    assert usual.practice_label == f"dose {expected:.3g}"
    assert usual.action is not None
    assert usual.action["dose"] == pytest.approx(expected * np.exp(-0.5))
    assert (unlike.action, unlike.practice, unlike.practice_label) == (None, None, "")
    always = ConstantPolicy(cp.learners.Constant(), torch.tensor([60.0]), dosed.schema, tilted.origin)
    (alone,) = recommend(always, new[:1], dosed).advice
    assert alone.practice is None
    (withheld,) = recommend(always, new[:1], dosed, practice=tilted.practice).advice
    assert withheld.action is None
    assert withheld.practice == usual.practice


def test_by_a_record_practice_and_the_tilt_follow_the_subject(
    dosed: cp.Transitions, tilted: NearPracticePolicy
) -> None:
    """At a lactate of 3 practice is a dose of 3, and 1 or 9 for those who were given a third or three times as much."""
    table = ward()
    for subject, usual in ((0, 1.0), (1, 3.0), (2, 9.0)):
        record = table[table["id"] == subject].drop(columns="reward")
        record.loc[record.index[-1], ["lactate", "dose"]] = [3.0, np.nan]
        found = recommend_to(tilted, record, dosed)
        assert found.advice.practice is not None
        assert found.advice.practice["dose"] == pytest.approx(usual, rel=0.3)
        assert found.advice.action is not None
        assert found.advice.action["dose"] == pytest.approx(found.advice.practice["dose"] * np.exp(-0.5), rel=1e-4)
        assert "practice is moved to how this subject was treated in 11 steps" in found.subject.why


def test_the_command_learns_practice_for_any_policy(dosed: cp.Transitions, tmp_path: Path) -> None:
    run = cp.Run(tmp_path / "run")
    run.start(dosed, 0.0, 0)
    constant = cp.learners.Constant("commonest").fit(dosed, Pays(dosed.actions))
    run.keep("policy", constant.save, ["data", "split"])
    pd.DataFrame({"id": ["a"], "t": [0], "lactate": [3.0]}).to_csv(tmp_path / "new.csv", index=False)
    command("recommend", "--run", run.folder, "--data", tmp_path / "new.csv", "--out", tmp_path / "out.json")
    command("recommend", "--run", run.folder, "--data", tmp_path / "new.csv", "--out", tmp_path / "out.csv")
    (advice,) = json.loads((tmp_path / "out.json").read_text())["recommendations"]
    assert 2.5 < advice["practice"]["dose"] < 10
    assert pd.read_csv(tmp_path / "out.csv")["practice"].tolist() == [advice["practice_label"]]
