"""Intervals beside counterfactuals: their level, what has none, and what widens them."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import Tensor

import counterpoint as cp
from counterpoint.core.errors import CounterpointError
from counterpoint.data.knowledge import Knowledge, Recursion
from counterpoint.data.schema import Schema
from counterpoint.models.logged_doses import LoggedDoses
from counterpoint.models.scm.base import StructuralCausalModel
from counterpoint.models.scm.intervals import DISCREPANCY, half_width
from counterpoint.models.scm.path_intervals import counterfactual_paths
from counterpoint.nets.laws import Gaussian
from counterpoint.nets.stacked import with_weights
from helpers.dosing import log_of
from helpers.effects import RECIPE, by_hand, linear_rows, responders
from helpers.recipes import BRIEF

MODEL = cp.DensitySCM(Gaussian(), ensemble=3, hidden=(8,), likelihood=BRIEF)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def meals(knowledge: Knowledge) -> cp.Transitions:
    """s' = s + a + .5·meal' + noise; the meal comes from outside."""
    state, action = normal(0, 300, 2), normal(1, 300, 1).clamp(-2, 2)
    after = normal(2, 300, 2)
    after[:, 0] = state[:, 0] + action[:, 0] + 0.5 * after[:, 1] + 0.3 * normal(3, 300)
    schema = Schema.of(("s", "meal"), cp.Box((-2.0,), (2.0,)), ("dose",), knowledge)
    return log_of(state, action, after, torch.arange(300), schema=schema)


@pytest.fixture(scope="module")
def rows() -> cp.Transitions:
    return meals(Knowledge(exogenous=("meal",)))


@pytest.fixture(scope="module")
def model(rows: cp.Transitions) -> StructuralCausalModel:
    return MODEL.fit(rows)


@pytest.mark.parametrize(("members", "level"), [(5, 0.9), (3, 0.8), (10, 0.95)])
def test_intervals_hold_what_is_drawn_like_the_members(members: int, level: float) -> None:
    """Members and truth from one normal distribution: the t-interval around the members' mean has the level."""
    predictions, truth = normal(0, members, 20_000, 1), normal(1, 20_000, 1)
    nothing = torch.zeros(20_000, 1)
    half = half_width(predictions, nothing, nothing[:, 0], level)
    held = ((predictions.mean(0) - truth).abs() <= half).float().mean()
    assert float(held) == pytest.approx(level, abs=0.01)


def test_values_are_the_counterfactuals_and_keep_their_type(rows: cp.Transitions, model: StructuralCausalModel) -> None:
    other = -rows.action
    interval = model.counterfactual(rows, other, level=0.9)
    torch.testing.assert_close(interval.value, model.counterfactual(rows, other), atol=0, rtol=0)
    frame = model.counterfactual(rows, pd.DataFrame({"dose": other[:, 0].numpy()}), level=0.9)
    assert list(frame.low.columns) == ["s", "meal"]
    torch.testing.assert_close(torch.tensor(frame.high.to_numpy()).float(), interval.high)
    one = model.counterfactual(rows, 0.5, level=0.9)
    assert bool((one.low <= one.value).all() & (one.value <= one.high).all())


def test_the_action_that_was_taken_leaves_nothing_open(rows: cp.Transitions, model: StructuralCausalModel) -> None:
    interval = model.counterfactual(rows, rows.action, level=0.9)
    assert float((interval.high - interval.low).max()) < 1e-4
    other = model.counterfactual(rows, -rows.action, level=0.9)
    assert float((other.high - other.low)[:, 0].median()) > 0.01


def test_exogenous_columns_are_known_and_bounds_hold(rows: cp.Transitions, model: StructuralCausalModel) -> None:
    interval = model.counterfactual(rows, -rows.action, level=0.9)
    torch.testing.assert_close(interval.low[:, 1], rows.next_state[:, 1], atol=0, rtol=0)
    torch.testing.assert_close(interval.high[:, 1], rows.next_state[:, 1], atol=0, rtol=0)
    top = float(max(rows.state[:, 0].max(), rows.next_state[:, 0].max()))
    bounded = meals(Knowledge(bounds=(("s", -9.0, top + 0.01),)))
    limited = MODEL.fit(bounded).counterfactual(bounded, 2.0, level=0.999)
    assert float(limited.high[:, 0].max()) == pytest.approx(top + 0.01)


def test_higher_levels_have_wider_intervals(rows: cp.Transitions, model: StructuralCausalModel) -> None:
    narrow, wide = (model.counterfactual(rows, -rows.action, level=level) for level in (0.5, 0.95))
    assert bool(((wide.high - wide.low)[:, 0] > (narrow.high - narrow.low)[:, 0]).all())


def test_an_effect_may_be_wrong_by_its_share_and_a_distant_dose_by_more() -> None:
    """1.645·.2·|effect| where members agree, twice as much after four steps; (1 + ln(1 + d)) times at a distance d."""
    alike = torch.ones(3, 4, 1)
    distance = torch.tensor([0.0, 1.0, 2.0, 9.0])
    half = half_width(alike, torch.full((4, 1), -2.0), distance, 0.9)
    torch.testing.assert_close(half[:, 0], 1.645 * 0.4 * (1 + distance.log1p()), atol=1e-3, rtol=0)
    torch.testing.assert_close(half_width(alike, torch.full((4, 1), 2.0), distance, 0.9, steps=4), 2 * half)


def test_predictions_have_intervals_too(rows: cp.Transitions, model: StructuralCausalModel) -> None:
    """The members' part is that of the counterfactual; the effect is measured against the usual dose."""
    noise = model.abduct(rows)
    interval = model.predict(rows.state, -rows.action, noise, level=0.9)
    torch.testing.assert_close(interval.value, model.predict(rows.state, -rows.action, noise), atol=0, rtol=0)
    assert model.logged_doses is not None
    usual = model.logged_doses.usual(rows.state, rows.actions, ())
    near, far = (model.predict(rows.state, usual + more, noise, level=0.9) for more in (0.1, 1.0))
    assert float((far.high - far.low)[:, 0].mean()) > 1.5 * float((near.high - near.low)[:, 0].mean())


def test_intervals_widen_with_the_distance_from_the_logged_doses() -> None:
    """Doses near 1 + s with a residual of .2: the range holds 95%, and beyond it a dose is counted in residuals."""
    state = normal(0, 2000, 1)
    action = 1 + state + 0.2 * normal(1, 2000, 1)
    doses = LoggedDoses.of(log_of(state, action, state, torch.arange(2000)))
    assert float((doses.distance(state, action, ()) == 0).float().mean()) == pytest.approx(0.95, abs=0.01)
    distances = doses.distance(torch.zeros(4, 1), torch.tensor([[1.1], [1.8], [0.2], [3.0]]), ())
    expected = [0.0, 4 - 1.96, 4 - 1.96, 10 - 1.96]
    torch.testing.assert_close(distances, torch.tensor(expected), atol=0.3, rtol=0)
    torch.testing.assert_close(doses.mean_dose(state, ()), 1 + state, atol=0.05, rtol=0)


def test_a_saved_model_has_the_same_intervals(
    rows: cp.Transitions, model: StructuralCausalModel, tmp_path: Path
) -> None:
    model.save(tmp_path / "model")
    loaded = cp.load(tmp_path / "model")
    assert isinstance(loaded, StructuralCausalModel)
    before, after = (m.counterfactual(rows, -rows.action, level=0.9) for m in (model, loaded))
    torch.testing.assert_close(after.high, before.high, atol=0, rtol=0)


def test_coverage_where_the_form_is_a_little_wrong() -> None:
    """s' = s + r·a·(1 + .2·s) + noise, r of the subject: 90% intervals of a linear law hold 80 to 98% of the truth."""
    held = []
    for seed in range(3):
        response = 1 + 0.3 * normal(10 * seed, 30, 1).repeat_interleave(12, 0)
        state = normal(10 * seed + 1, 360, 1)
        action, other = ((0.5 * state + normal(10 * seed + k, 360, 1)).clamp(-2, 2) for k in (2, 3))
        slope = response * (1 + 0.2 * state)
        after = state + slope * action + 0.5 * normal(10 * seed + 4, 360, 1)
        rows = log_of(state, action, after, torch.arange(30).repeat_interleave(12))
        interval = cp.RandomEffects(factors=1, hidden=()).fit(rows).counterfactual(rows, other, level=0.9)
        truth = after + slope * (other - action)
        held.append(((interval.low <= truth) & (truth <= interval.high)).float().mean())
    assert 0.8 <= float(torch.stack(held).mean()) <= 0.98


def test_members_answer_with_their_own_factors() -> None:
    """One member's effect of θ is twice the other's: each infers its own θ, and both answer alike."""
    rows = responders(normal(0, 8), 60, seed=1, deviation=0.1)
    one = by_hand([[0.0, 0.0, 1.0]], 0.1, rows)
    weights = {name: torch.cat([tensor, tensor]) for name, tensor in one.mechanism.state_dict().items()}
    weights["law.effect"][1] *= 2
    both = with_weights(one.structure.build(1, 3, 2), weights)
    model = one.with_mechanism(both)
    model.logged_doses = LoggedDoses.of(rows)
    interval = model.counterfactual(rows, rows.action.neg(), level=0.9)
    agreed = 1.645 * DISCREPANCY * (interval.value - rows.next_state).abs()
    agreed *= (1 + model.dose_distance(rows.state, -rows.action).log1p())[:, None]
    assert float((interval.high - interval.value).sum()) < 1.5 * float(agreed.sum())


def test_paths_of_one_step_are_counterfactuals(rows: cp.Transitions, model: StructuralCausalModel) -> None:
    window = torch.arange(len(rows))[:, None]
    path = counterfactual_paths(model, rows, window, -rows.action[:, None], 0.9)
    interval = model.counterfactual(rows, -rows.action, level=0.9)
    for name in ("value", "low", "high"):
        torch.testing.assert_close(getattr(path, name)[:, 0], getattr(interval, name), atol=1e-4, rtol=1e-4)


def test_paths_know_what_is_computed_and_widen_from_step_to_step() -> None:
    """s' = .9·s + dose + noise: the sum of the doses on board is exact, and the effect of the first dose lives on."""
    random, on_board = normal(4, 40, 8, 1), Recursion("on_board", (("on_board", 0.5), ("dose", 0.5)))
    state, dose, board = normal(5, 40, 1), normal(6, 40, 8, 1).clamp(-2, 2), torch.zeros(40, 1)
    before, after = [], []
    for k in range(8):
        before.append(torch.cat([state, board], 1))
        state, board = 0.9 * state + dose[:, k] + 0.3 * random[:, k], 0.5 * (board + dose[:, k])
        after.append(torch.cat([state, board], 1))
    schema = Schema.of(("s", "on_board"), cp.Box((-2.0,), (2.0,)), ("dose",), Knowledge(recursions=(on_board,)))
    states, doses, following = (torch.stack(part, 1).flatten(0, 1) for part in (before, dose.unbind(1), after))
    rows = log_of(states, doses, following, torch.arange(40).repeat_interleave(8), schema=schema)
    model = cp.RandomEffects(factors=0, ensemble=3, hidden=()).fit(rows)
    windows = rows.windows(4).rows
    plan = rows.action[windows].clone()
    plan[:, 0] = 0.0
    path = counterfactual_paths(model, rows, windows, plan, 0.9)
    width = path.high - path.low
    assert float(width[..., 1].max()) == 0
    assert float(width[:, 3, 0].mean()) > 1.2 * float(width[:, 0, 0].mean())
    expected = rows.next_state[windows[:, 3], 0] - 0.9**3 * rows.action[windows[:, 0], 0]
    assert float((path.value[:, 3, 0] - expected).abs().mean()) < 0.15


def test_what_is_not_known_of_a_subject_widens_its_intervals() -> None:
    """Six subjects by 40 rows, six by their first two: fewer rows leave their answer to a dose open."""
    theta = normal(0, 60, 1)
    rows = linear_rows(theta, 40, seed=0)
    model = RECIPE.fit(rows)
    few, many = rows[(rows.subject < 6) & (rows.step < 2)], rows[rows.subject < 6]
    widths = []
    for known in (few, many):
        interval = model.counterfactual(known, -known.action, level=0.9)
        first = known.step < 2
        widths.append((interval.high - interval.low)[first, 0])
    assert bool((widths[0].mean() > 1.5 * widths[1].mean()).all())
    given = model.counterfactual(few, -few.action, model.subjects(few), level=0.9)
    assert float((given.high - given.low)[:, 0].mean()) < float(widths[0].mean())


def test_refusals(rows: cp.Transitions, model: StructuralCausalModel) -> None:
    with pytest.raises(CounterpointError, match="level=90 is no share"):
        model.counterfactual(rows, rows.action, level=90)
    alone = replace(MODEL, ensemble=1).fit(rows)
    with pytest.raises(CounterpointError, match="the model has one member"):
        alone.counterfactual(rows, rows.action, level=0.9)
