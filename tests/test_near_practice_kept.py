"""A saved policy near practice, its evaluation as what it is, and its rule in words."""

import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import counterpoint as cp
from counterpoint.ope.problem import draws_actions, target
from counterpoint.policies.near_practice import NearPracticePolicy
from counterpoint.registry import load
from helpers.near_practice import ROLES, dosed_rows, near_practice, ward
from helpers.recipes import Pays

SHAPES = False
DRUGS = tuple("abcdef")


@pytest.fixture(scope="module")
def listed() -> cp.Transitions:
    """Six drugs, of which later ones are given where lactate is high, and five more columns."""
    random, table = np.random.default_rng(0), ward()
    drug = (table["lactate"] + random.normal(size=len(table))).clip(0, 5.9).astype(int)
    table["dose"] = [DRUGS[i] for i in drug]
    extra = [f"column_{i}" for i in range(5)]
    table[extra] = random.normal(size=(len(table), 5))
    with warnings.catch_warnings(action="ignore"):
        return cp.from_dataframe(table, **{**ROLES, "state": ["lactate", *extra]}, last="truncate")


@pytest.fixture(scope="module")
def choosing(listed: cp.Transitions) -> NearPracticePolicy:
    policy = near_practice(listed, 0.5, 0.0, Pays(listed.actions))
    policy.numbers[:] = 0.01 * torch.arange(len(policy.numbers))
    return policy


def drawing(policy: NearPracticePolicy, listed: cp.Transitions) -> NearPracticePolicy:
    weights = {name: tensor for name, tensor in policy.weights().items() if not name.startswith("practice.")}
    weights["drawn"] = torch.tensor(1.0)
    return NearPracticePolicy(policy.recipe, policy.practice, weights, listed.schema, policy.origin, policy.notes)


def test_a_saved_policy_comes_back_as_it_was(
    listed: cp.Transitions, choosing: NearPracticePolicy, tmp_path: Path
) -> None:
    dosed = dosed_rows()
    doses = near_practice(dosed, 0.5, -0.4, Pays(dosed.actions))
    for name, policy, rows in (
        ("listed", choosing, listed),
        ("drawn", drawing(choosing, listed), listed),
        ("doses", doses, dosed),
    ):
        policy.save(tmp_path / name)
        again = load(tmp_path / name, NearPracticePolicy)
        assert torch.equal(again.act(rows.state), policy.act(rows.state))
        assert again.notes == ("by hand",)
        assert again.practice.notes == policy.practice.notes
        assert again.explain() == policy.explain()
        assert again.stochastic == (name == "drawn")
    record = dosed[dosed.subject == 2]
    own = load(tmp_path / "doses", NearPracticePolicy).with_history(record)
    assert torch.equal(own.act(dosed.state), doses.with_history(record).act(dosed.state))
    assert not torch.equal(own.act(dosed.state), doses.act(dosed.state))


def test_probabilities_are_evaluated_where_actions_are_drawn_and_the_one_action_elsewhere(
    listed: cp.Transitions, choosing: NearPracticePolicy
) -> None:
    assert not draws_actions(choosing)
    alone = target(choosing, listed)
    assert alone.deterministic
    assert torch.equal(alone.now.argmax(1), listed.actions.index(choosing.act(listed.state)))  # pyright: ignore[reportAttributeAccessIssue]
    assert torch.equal(alone.now.amax(1), torch.ones(len(listed)))
    drawn = drawing(choosing, listed)
    assert draws_actions(drawn)
    many = target(drawn, listed)
    assert not many.deterministic
    assert torch.allclose(many.now, drawn.probabilities(listed.state))
    assert float(many.now.amax(1).mean()) < 0.9
    assert torch.equal(many.now.argmax(1), alone.now.argmax(1))


def test_many_actions_are_explained_by_the_columns_that_matter_most(choosing: NearPracticePolicy) -> None:
    first, *lines, note = choosing.explain().splitlines()
    assert "of 6 columns the 3 with the largest weights are shown" in first
    assert note == "by hand"
    assert len(lines) == 6
    for j, line in enumerate(lines):
        named = re.findall(r"per [\d.e-]+ of (column_\d|lactate)", line)
        assert named == ["column_4", "column_3", "column_2"]
        weight = 0.5 * 0.01 * (6 * 5 + j)
        assert f"{np.exp(weight) - 1:.0%} more per" in line
