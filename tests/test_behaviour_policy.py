"""Estimated behaviour: rows are valued by models that never saw their subject, and probabilities are what they say."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from counterpoint.data.spaces import Box, Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.ope.behaviour import Behaviour, BehaviourModel, BoostedTrees, Logistic, NearestNeighbours
from helpers.tables import load, refused

SPACE = Discrete.one_hot(3)


def log(state: Tensor, probabilities: Tensor, steps: int = 5, seed: int = 0) -> Transitions:
    """Rows whose actions were drawn with these probabilities, `steps` a subject."""
    count = len(state)
    action = torch.multinomial(probabilities, 1, generator=torch.Generator().manual_seed(seed))[:, 0]
    return Transitions.logged(
        state=state,
        action=SPACE.features(action),
        reward=torch.zeros(count),
        next_state=state,
        terminated=torch.arange(count) % steps == steps - 1,
        truncated=torch.zeros(count, dtype=torch.bool),
        subject=torch.arange(count) // steps,
        step=torch.arange(count) % steps,
        actions=SPACE,
    )


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


STATE = normal(3000, 2) * torch.tensor([1.0, 100.0]) + torch.tensor([0.0, 500.0])
SLOPES = torch.tensor([[2.0, 0.0, -2.0], [0.0, 0.015, 0.0]])
LINEAR = torch.softmax((STATE - torch.tensor([0.0, 500.0])) @ SLOPES, 1)
RECIPES = [Logistic(), NearestNeighbours(), BoostedTrees(trees=10)]
NAMES = [type(recipe).__name__ for recipe in RECIPES]


@pytest.mark.parametrize(("recipe", "error"), [*zip(RECIPES, (0.02, 0.08, 0.09), strict=True)], ids=NAMES)
def test_probabilities_are_found_row_by_row(recipe: BehaviourModel, error: float) -> None:
    found = recipe.cross_fit(log(STATE, LINEAR)).probabilities
    assert float((found - LINEAR).abs().mean()) < error
    shifted = (found.roll(1, 0) - LINEAR).abs().mean()
    assert float(shifted) > 0.2
    torch.testing.assert_close(found.sum(1), torch.ones(3000))


def test_trees_find_what_no_line_does() -> None:
    either = (STATE[:, 0] > 0) ^ (STATE[:, 1] > 500)
    crossed = torch.where(either[:, None], torch.tensor([0.8, 0.1, 0.1]), torch.tensor([0.1, 0.8, 0.1]))
    rows = log(STATE, crossed)
    line, trees = Logistic().cross_fit(rows), BoostedTrees(trees=20).cross_fit(rows)
    assert float((line.probabilities - crossed).abs().mean()) > 0.2
    assert float((trees.probabilities - crossed).abs().mean()) < 0.05
    assert trees.brier < line.brier - 0.1


@dataclass(frozen=True, kw_only=True)
class Witness(BehaviourModel):
    """Says with the first action's probability whether it saw the subject that it is asked about."""

    def predict(self, train: Transitions, test: Transitions, seed: int) -> Tensor:
        known = torch.isin(test.subject, train.subject).float()
        return torch.stack([known, 1 - known, 0 * known], 1)


def test_no_model_sees_the_subject_it_is_asked_about() -> None:
    rows = log(STATE, LINEAR)
    found = Witness().cross_fit(rows)
    assert float(found.probabilities[:, 0].max()) == pytest.approx(0.001)
    assert sorted(found.folds.bincount().tolist()) == [120] * 5
    assert len(found.folds) == 600


def test_the_subject_of_no_rows_has_no_fold() -> None:
    rows = log(STATE, LINEAR)
    assert len(Logistic().cross_fit(rows[rows.subject % 2 == 1]).folds) == 300


@pytest.mark.parametrize("recipe", RECIPES, ids=NAMES)
def test_an_action_that_nobody_took_has_the_least_probability(recipe: BehaviourModel) -> None:
    never = torch.tensor([0.6, 0.0, 0.4]).expand(300, 3)
    found = replace(recipe, least=0.01).cross_fit(log(STATE[:300], never)).probabilities
    assert found.shape == (300, 3)
    torch.testing.assert_close(found[:, 1], torch.full((300,), 0.01))
    torch.testing.assert_close(found.sum(1), torch.ones(300))
    assert float(found.min()) == pytest.approx(0.01)


@pytest.mark.parametrize("recipe", RECIPES, ids=NAMES)
def test_one_action_alone_is_almost_certain(recipe: BehaviourModel) -> None:
    always = torch.tensor([0.0, 0.0, 1.0]).expand(100, 3)
    found = recipe.cross_fit(log(STATE[:100], always)).probabilities
    torch.testing.assert_close(found, torch.tensor([0.001, 0.001, 0.998]).expand(100, 3))


def test_codes_of_categories_are_no_amounts() -> None:
    """The middle unit takes another action than the two around it, which no slope along the codes can say."""
    rows = load()
    column = rows.state_names.index("unit")
    middle = rows.state[:, column] == 1
    index = torch.where(middle, 2, 0)
    told = replace(rows, action_index=index, action=rows.actions.features(index))
    found = Logistic(penalty=0.1).cross_fit(told).probabilities
    assert float(found.gather(1, index[:, None]).min()) > 0.8


def test_neighbours_are_counted() -> None:
    state = torch.cat([torch.zeros(50, 1), torch.ones(50, 1)]) + 0.01 * normal(100, 1)
    rows = log(state, torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]]).repeat_interleave(50, 0))
    found = NearestNeighbours(neighbours=10, least=1e-6).cross_fit(rows).probabilities
    torch.testing.assert_close(found[:50, 0], torch.ones(50), atol=1e-5, rtol=0)
    tenths = 10 * found[50:, 1]
    torch.testing.assert_close(tenths, tenths.round(), atol=1e-4, rtol=0)


def test_more_rows_than_a_model_is_fitted_on_are_drawn() -> None:
    rows = log(STATE, LINEAR)
    few, all_of_them = Logistic(most=50).cross_fit(rows), Logistic().cross_fit(rows)
    assert all_of_them.brier < few.brier


HAND = torch.tensor([[0.5, 0.3, 0.2], [0.8, 0.1, 0.1], [0.25, 0.7, 0.05], [0.005, 0.495, 0.5]])


def by_hand() -> Behaviour:
    rows = log(STATE[:4], torch.tensor([0.0, 1.0, 0.0]).expand(4, 3), 2)
    taken = torch.tensor([0, 0, 2, 2])
    return Behaviour.of_probabilities(HAND, replace(rows, action_index=taken, action=SPACE.features(taken)))


def test_brier_score_by_hand() -> None:
    squares = [0.25 + 0.09 + 0.04, 0.04 + 0.01 + 0.01, 0.0625 + 0.49 + 0.9025, 0.000025 + 0.245025 + 0.25]
    assert by_hand().brier == pytest.approx(np.mean(squares))


def test_calibration_curve_by_hand() -> None:
    curve = by_hand().calibration()
    # Bins from 0, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7 and 0.8; an edge belongs to the bin above it.
    bins = [[0.005], [0.05], [0.1, 0.1], [0.2, 0.25], [0.3], [0.495], [0.5, 0.5], [0.7], [0.8]]
    taken = [0, 1, 0, 0, 0, 0, 1, 0, 1]
    np.testing.assert_allclose(curve.probability, [np.mean(each) for each in bins], rtol=1e-6)
    np.testing.assert_allclose(curve.taken, taken)
    assert curve.pairs.tolist() == [len(each) for each in bins]
    apart = [len(each) * abs(np.mean(each) - share) for each, share in zip(bins, taken, strict=True)]
    assert curve.error == pytest.approx(sum(apart) / 12)


def test_true_probabilities_are_calibrated_and_doubled_logits_are_not() -> None:
    rows = log(STATE, LINEAR)
    true = Behaviour.of_probabilities(LINEAR, rows)
    sure = Behaviour.of_probabilities(torch.softmax(2 * LINEAR.log(), 1), rows)
    assert true.calibration().error < 0.02
    assert sure.calibration().error > 0.04
    assert true.brier < sure.brier


def test_the_seed_decides_the_folds() -> None:
    rows = log(STATE[:200], LINEAR[:200])
    first, again, other = (Logistic().cross_fit(rows, seed=seed) for seed in (0, 0, 1))
    torch.testing.assert_close(first.probabilities, again.probabilities, rtol=0, atol=0)
    assert not torch.equal(first.folds, other.folds)


def test_imagined_rows_are_refused() -> None:
    imagined = replace(log(STATE[:20], LINEAR[:20]), imagined=torch.arange(20) == 3)
    assert "imagined rows" in refused(lambda: Logistic().cross_fit(imagined, folds=2))
    assert "imagined rows" in refused(lambda: Behaviour.of_probabilities(LINEAR[:20], imagined))


def test_mistakes_are_named_in_one_line() -> None:
    rows = log(STATE[:20], LINEAR[:20])
    doses = replace(rows, schema=replace(rows.schema, actions=Box((0.0,) * 3, (1.0,) * 3)))
    assert "doses are continuous" in refused(lambda: Logistic().cross_fit(doses))
    assert "folds=5 of 4 subjects" in refused(lambda: Logistic().cross_fit(rows))
    assert "folds=1 of 4" in refused(lambda: Logistic().cross_fit(rows, folds=1))
    assert "least=0.4 of 3 actions" in refused(lambda: Logistic(least=0.4).cross_fit(rows, folds=2))
    assert "least=0 of" in refused(lambda: Logistic(least=0))
    unknown = replace(rows, state=torch.full_like(rows.state, torch.nan))
    assert "not finite" in refused(lambda: Logistic().cross_fit(unknown, folds=2))
    assert "for 20 rows" in refused(lambda: Behaviour.of_probabilities(LINEAR[:19], rows))
    assert "sum to 1" in refused(lambda: Behaviour.of_probabilities(2 * LINEAR[:20], rows))
    assert "probability 0" in refused(
        lambda: Behaviour.of_probabilities(SPACE.features(rows.action_index.add(1) % 3), rows)
    )
