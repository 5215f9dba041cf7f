"""Intervals beside counterfactuals: their level, what has none, and what widens them."""

from dataclasses import replace

import pandas as pd
import pytest
import torch
from torch import Tensor

import counterpoint as cp
from counterpoint.core.errors import CounterpointError
from counterpoint.data.knowledge import Knowledge
from counterpoint.data.schema import Schema
from counterpoint.models.scm.base import StructuralCausalModel
from counterpoint.models.scm.intervals import half_width
from counterpoint.nets.laws import Gaussian
from helpers.dosing import log_of
from helpers.effects import RECIPE, linear_rows
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
    half = half_width(predictions, members, level, factor=1.0)
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


def test_predictions_have_intervals_too(rows: cp.Transitions, model: StructuralCausalModel) -> None:
    noise = model.abduct(rows)
    interval = model.predict(rows.state, -rows.action, noise, level=0.9)
    torch.testing.assert_close(interval.value, model.predict(rows.state, -rows.action, noise), atol=0, rtol=0)
    beside = model.counterfactual(rows, -rows.action, level=0.9)
    torch.testing.assert_close(interval.high[:, 0], beside.high[:, 0])


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
