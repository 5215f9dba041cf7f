"""Counterfactual rows: what every SCM promises, and what the augmenter makes of a model that is the truth."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from jaxtyping import Bool, Float
from scipy import stats
from torch import Tensor, nn

from counterpoint.core.errors import CounterpointError
from counterpoint.core.seeding import generator
from counterpoint.data.jobs import Job, Origin, fitting_table
from counterpoint.data.schema import Schema
from counterpoint.data.spaces import Box, Discrete
from counterpoint.data.transitions import Transitions, concatenate, first_outcome
from counterpoint.models.scm.base import StructuralCausalModel, StructuralMechanism
from counterpoint.models.scm.density import DensitySCM
from counterpoint.nets.likelihood import Likelihood
from counterpoint.nets.training import Schedule
from counterpoint.simulation.augmentation import Augmenter, Imaginer
from counterpoint.tasks.base import Task
from helpers.recipes import BRIEF, DENSITY, MODELS, ROWS, SCMS
from reproduction.tasks.structural_problems import (
    Additive,
    Heteroscedastic,
    sample,
)

EXACT = [name for name in SCMS if name not in ("bicogan", "conditional bicogan's encoder")]
"""SCMs whose abduction is the inverse of their prediction."""


def refuse(call: Callable[[], object]) -> str:
    with pytest.raises(CounterpointError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture(scope="module")
def fitted() -> Callable[[str], tuple[StructuralCausalModel, Transitions]]:
    """Every SCM fitted once."""
    kept: dict[str, Any] = {}

    def get(name: str) -> tuple[StructuralCausalModel, Transitions]:
        recipe, rows = SCMS[name]
        if name not in kept:
            kept[name] = recipe.fit(rows, seed=0)
        return kept[name], rows

    return get


@pytest.mark.parametrize("name", EXACT)
def test_the_factual_action_gives_the_factual_next_state(name: str, fitted) -> None:
    model, rows = fitted(name)
    torch.testing.assert_close(model.counterfactual(rows, rows.action), rows.next_state, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", SCMS)
def test_a_counterfactual_is_abduction_then_prediction(name: str, fitted) -> None:
    model, rows = fitted(name)
    other = rows.actions.sample(len(rows), generator(0))
    noise = model.abduct(rows)
    answer = model.counterfactual(rows, other)
    assert noise.shape == (len(rows), model.mechanism.members * model.mechanism.noise_width)
    assert answer.shape == rows.state.shape
    torch.testing.assert_close(answer, model.predict(rows.state, other, noise), rtol=0, atol=1e-5)
    assert torch.equal(model.imagine(rows, other[:, None], generator(1))[:, 0], answer)
    another = rows.actions.sample(len(rows), generator(7))
    imagined = model.imagine(rows, torch.stack([other, another], 1), generator(1))
    torch.testing.assert_close(imagined[:, 0], answer, rtol=0, atol=1e-5)
    torch.testing.assert_close(imagined[:, 1], model.counterfactual(rows, another), rtol=0, atol=1e-5)
    assert (answer != rows.next_state).any(1).float().mean() > 0.5


@pytest.mark.parametrize("name", SCMS)
def test_an_answer_is_a_function_of_the_row(name: str, fitted) -> None:
    model, rows = fitted(name)
    assert torch.equal(model.abduct(rows), model.abduct(rows))
    drawn = [model.sample(rows.state, rows.action, generator(seed)) for seed in (3, 3, 4)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


@pytest.mark.parametrize("name", SCMS)
def test_fresh_noise_is_the_same_for_every_member(name: str, fitted) -> None:
    """Members with luck of their own would average it away: a sample would vary too little."""
    model, _ = fitted(name)
    noise = model.prior(5, generator(0)).view(5, model.mechanism.members, -1)
    assert torch.equal(noise, noise[:, :1].expand_as(noise))
    assert not torch.equal(noise[0], noise[1])


@pytest.mark.parametrize("name", SCMS)
def test_what_cannot_be_answered_is_refused(name: str, fitted) -> None:
    model, rows = fitted(name)
    next_state = rows.next_state.clone()
    next_state[7] = torch.nan
    assert "row 7 has no next state" in refuse(lambda: model.abduct(replace(rows, next_state=next_state)))
    action = rows.action.clone()
    action[5] = 3.0
    assert "at row 5 is outside the action space" in refuse(lambda: model.counterfactual(rows, action))
    assert "at row 5 is outside the action space" in refuse(lambda: model.abduct(replace(rows, action=action)))
    wide = torch.zeros(len(rows), 2)
    assert "has 2 columns but the action space has 1" in refuse(lambda: model.counterfactual(rows, wide))


@pytest.mark.parametrize("name", ["skewed spline", "triangular mixture", "conditional bicogan"])
def test_jobs_fitted_together_are_fitted_as_alone(name: str) -> None:
    recipe, rows = SCMS[name]
    jobs = [Job(rows, 0), Job(rows[:100], 1)]
    for job, model in zip(jobs, recipe.fit_many(jobs), strict=True):
        alone = recipe.fit(job.data, job.seed)
        torch.testing.assert_close(model.abduct(rows), alone.abduct(rows), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["skewed spline", "bicogan", "mixed"])
def test_the_seed_decides_the_fit(name: str) -> None:
    recipe, rows = SCMS[name]
    one, same, other = (recipe.fit(rows, seed).abduct(rows) for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_the_fitting_table_leads_from_state_to_next_state() -> None:
    """The context holds (s, a) and never s'; imagined rows and rows without a next state stay out."""
    next_state = ROWS.next_state.clone()
    next_state[3] = torch.nan
    imagined = torch.zeros(len(ROWS), dtype=torch.bool)
    imagined[10:20] = True
    table = fitting_table(Job(replace(ROWS, next_state=next_state, imagined=imagined)))
    keep = torch.ones(len(ROWS), dtype=torch.bool)
    keep[3], keep[10:20] = False, False
    assert torch.equal(table["context"], torch.cat([ROWS.state, ROWS.action], 1)[keep])
    assert torch.equal(table["state"], ROWS.state[keep])
    assert torch.equal(table["next_state"], ROWS.next_state[keep])


def test_a_fitted_scm_answers_as_the_truth_does() -> None:
    """Swapping s and s' in the fit would learn the way back, whose counterfactuals are others."""
    rows, test = (sample(Heteroscedastic(), count, seed) for count, seed in ((1500, 0), (500, 1)))
    how = Likelihood(Schedule(steps=400, check_every=50, rate="one-cycle"), batch=128, learning_rate=1e-2)
    model = DensitySCM(ensemble=2, hidden=(32,), likelihood=how).fit(rows)
    other = test.actions.sample(500, generator(2))
    truth = Heteroscedastic().counterfactual(test, other)
    error = (model.counterfactual(test, other) - truth).square().mean().sqrt()
    persistence = (test.next_state - truth).square().mean().sqrt()
    assert error < 0.15 * persistence


class Truth(StructuralMechanism):
    """The additive problem read as a mechanism: f(s, a, u) = m(s, a) + .3u, and its inverse."""

    members, context_width, noise_width = 1, 2, 1

    def __init__(self) -> None:
        super().__init__()
        self.anchor = nn.Parameter(torch.zeros(1))

    def predict(self, context: Tensor, state: Tensor, noise: Tensor) -> Tensor:
        return Additive().transition(state, context[..., 1:], noise)

    def abduct(self, context: Tensor, state: Tensor, next_state: Tensor) -> Tensor:
        return (next_state - self.predict(context, state, torch.zeros_like(next_state))) / 0.3


class Reach(Task):
    """Pays the next state plus ten times the action, and ends above 1."""

    discount = 0.9

    def __init__(self, actions: Discrete | Box) -> None:
        self.actions = actions

    def reward(
        self, state: Float[Tensor, "*n s"], action: Float[Tensor, "*n a"], next_state: Float[Tensor, "*n s"]
    ) -> Float[Tensor, "*n"]:
        return next_state[..., 0] + 10 * action[..., 0] - 100 * state[..., 0]

    def terminated(self, next_state: Float[Tensor, "*n s"]) -> Bool[Tensor, "*n"]:
        return next_state[..., 0] > 1


DOSES = Discrete.of([-1.0, -0.5, 0.0, 0.5, 1.0])
REACH = Reach(DOSES)
NO_ROWS = torch.zeros(0, dtype=torch.long)


def truth(space: Discrete | Box = DOSES, mechanism: Truth | None = None) -> StructuralCausalModel:
    return StructuralCausalModel(None, mechanism or Truth(), Schema.of(("s",), space), Origin(0, "", ""), NO_ROWS)


def trials(count: int, seed: int = 0, space: Discrete | Box = DOSES) -> Transitions:
    """Rows of the additive problem with known noise and with reward and end from `Reach`."""
    rows = sample(Additive(), count, seed)
    action = space.sample(count, generator(seed, "dose"))
    next_state = Additive().transition(rows.state, action, rows.noise)
    return replace(
        rows,
        action=action,
        action_index=space.index(action),
        next_state=next_state,
        reward=REACH.reward(rows.state, action, next_state),
        outcome=first_outcome(REACH.terminated(next_state)),
        truncated=~REACH.terminated(next_state),
        schema=Schema.of(rows.state_names, space),
    )


def test_the_true_model_imagines_the_true_counterfactuals() -> None:
    data = trials(200)
    rows = Augmenter().imagine(data, truth(), REACH)
    expected = Additive().counterfactual(data[rows.source], rows.action)
    torch.testing.assert_close(rows.next_state, expected, rtol=0, atol=1e-5)


def test_all_other_actions_come_once_and_the_taken_one_never() -> None:
    data = trials(50)
    rows = Augmenter().imagine(data, truth(), REACH)
    assert len(rows) == 50 * 4
    assert torch.equal(DOSES.features(rows.action_index), rows.action)
    for row in range(50):
        taken = int(data.action_index[row])
        assert sorted(rows.action_index[rows.source == row].tolist()) == [a for a in range(5) if a != taken]


@pytest.mark.parametrize("alternatives", [1, 2, 4, 9])
def test_n_alternatives_are_different_actions(alternatives: int) -> None:
    data = trials(60)
    rows = Augmenter(alternatives).imagine(data, truth(), REACH)
    each = min(alternatives, 4)
    assert torch.equal(rows.source, torch.arange(60).repeat_interleave(each))
    chosen = rows.action_index.view(60, each)
    assert all(len(set(row)) == each for row in chosen.tolist())
    assert (chosen != data.action_index[:, None]).all()


def test_alternatives_are_uniform_over_the_other_actions() -> None:
    data = trials(5000)
    rows = Augmenter(2).imagine(data, truth(), REACH, seed=3)
    shift = (rows.action_index - data.action_index[rows.source]) % 5
    assert stats.chisquare(shift.bincount(minlength=5)[1:]).pvalue > 0.01
    low, high = shift.view(-1, 2).sort(1).values.unbind(1)
    pairs = (5 * low + high).bincount()
    assert len(pairs[pairs > 0]) == 6
    assert stats.chisquare(pairs[pairs > 0]).pvalue > 0.01


def test_the_seed_decides_the_alternatives() -> None:
    data = trials(50)
    one, same, other = (Augmenter(1).imagine(data, truth(), REACH, seed).action for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_doses_fill_the_box() -> None:
    box = Box((-1.0,), (0.5,))
    data = trials(400, space=box)
    rows = Augmenter(3).imagine(data, truth(box), Reach(box))
    assert torch.equal(rows.source, torch.arange(400).repeat_interleave(3))
    assert (rows.action_index == -1).all()
    assert rows.action.min() >= -1
    assert rows.action.max() <= 0.5
    assert stats.kstest(rows.action[:, 0].numpy(), stats.uniform(-1, 1.5).cdf).pvalue > 0.01
    torch.testing.assert_close(
        rows.next_state, Additive().counterfactual(data[rows.source], rows.action), rtol=0, atol=1e-5
    )


def test_a_box_has_no_list_of_all_actions() -> None:
    box = Box((-1.0,), (1.0,))
    data = trials(20, space=box)
    assert "set alternatives to 1 or more" in refuse(lambda: Augmenter().imagine(data, truth(box), Reach(box)))


def test_reward_and_end_are_those_of_the_imagined_next_state() -> None:
    data = trials(200)
    rows = Augmenter().imagine(data, truth(), REACH)
    torch.testing.assert_close(rows.reward, REACH.reward(rows.state, rows.action, rows.next_state))
    assert torch.equal(rows.terminated, REACH.terminated(rows.next_state))
    factual = data[rows.source]
    assert (rows.terminated != factual.terminated).any()
    assert (rows.reward != factual.reward).all()
    assert not rows.truncated.any()


def test_imagined_rows_remember_where_they_came_from() -> None:
    data = trials(80)
    model = truth()
    rows = Augmenter(2).imagine(data, model, REACH)
    factual = data[rows.source]
    assert rows.imagined.all()
    for column in ("state", "subject", "episode", "step"):
        assert torch.equal(getattr(rows, column), getattr(factual, column))


@pytest.mark.parametrize("name", ["skewed spline", "bicogan"])
def test_the_noise_behind_imagined_rows_is_that_of_their_source(name: str, fitted) -> None:
    """It is not stored, which would take a column for every member of the ensemble, but found again."""
    model, rows = fitted(name)
    imagined = Augmenter(2).imagine(rows, model, Reach(Box((-1.0,), (1.0,))))
    assert imagined.noise.shape == (len(imagined), 0)
    again = model.predict(imagined.state, imagined.action, model.abduct(rows[imagined.source]))
    torch.testing.assert_close(again, imagined.next_state, rtol=0, atol=1e-5)


def test_augmenting_keeps_the_real_rows_in_front() -> None:
    data = trials(30)
    both = Augmenter().augment(data, truth(), REACH)
    assert len(both) == 150
    assert both.imagined.tolist() == [False] * 30 + [True] * 120
    for column in ("state", "action", "reward", "next_state", "terminated", "truncated", "source"):
        assert torch.equal(getattr(both, column)[:30], getattr(data, column))
    alone = Augmenter().imagine(data, truth(), REACH)
    assert torch.equal(both.next_state[30:], alone.next_state)
    assert both.noise.shape == (150, 0)


@pytest.mark.parametrize("alternatives", [None, 2])
def test_a_piece_depends_on_the_seed_and_its_place_alone(
    alternatives: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("counterpoint.simulation.augmentation.PIECE", 20)
    data, augmenter = trials(50), Augmenter(alternatives)
    whole = augmenter.imagine(data, truth(), REACH, seed=3)
    pieces = [augmenter.piece(data[20 * i : 20 * i + 20], i, truth(), REACH, seed=3) for i in (2, 0, 1)]
    parts = dict(zip((2, 0, 1), pieces, strict=True))
    for column in ("state", "action", "action_index", "reward", "next_state", "outcome", "source"):
        assert torch.equal(getattr(whole, column), torch.cat([getattr(parts[i], column) for i in range(3)]))
    repeated = augmenter.piece(data[:20], 1, truth(), REACH, seed=3)
    assert torch.equal(repeated.source, parts[0].source + 20)
    assert torch.equal(repeated.action, parts[0].action) == (alternatives is None), (
        "every piece has its own random stream"
    )


def test_rows_without_next_state_and_imagined_rows_are_not_imagined_again() -> None:
    data = trials(30)
    next_state = data.next_state.clone()
    next_state[4] = torch.nan
    data = replace(data, next_state=next_state, outcome=first_outcome(data.terminated | next_state.isnan()[:, 0]))
    whole = concatenate([Augmenter(1).imagine(trials(10, 1), truth(), REACH), replace(data, noise=data.noise[:, :0])])
    rows = Augmenter(1).imagine(whole, truth(), REACH)
    assert rows.source.tolist() == [10 + row for row in range(30) if row != 4]
    assert rows.next_state.isfinite().all()


class Counted(Truth):
    """Counts the rows that it abducts and predicts."""

    def __init__(self) -> None:
        super().__init__()
        self.abducted, self.predicted = 0, 0

    def abduct(self, context: Tensor, state: Tensor, next_state: Tensor) -> Tensor:
        self.abducted += context.shape[1]
        return (next_state - super().predict(context, state, torch.zeros_like(next_state))) / 0.3

    def predict(self, context: Tensor, state: Tensor, noise: Tensor) -> Tensor:
        self.predicted += context.shape[1]
        return super().predict(context, state, noise)


@pytest.mark.parametrize(("alternatives", "each"), [(None, 4), (1, 1), (3, 3)])
def test_a_real_row_is_abducted_once_however_many_alternatives(alternatives: int | None, each: int) -> None:
    data = trials(60)
    data.next_state[7] = torch.nan
    data = replace(data, outcome=first_outcome(data.terminated | ~data.has_next))
    data = replace(data, imagined=torch.arange(60) >= 50)
    counted = Counted()
    rows = Augmenter(alternatives).imagine(data, truth(mechanism=counted), REACH)
    assert len(rows) == 49 * each
    assert counted.abducted == 49
    assert counted.predicted == 49 * each
    expected = Augmenter(alternatives).imagine(data, truth(), REACH)
    assert torch.equal(rows.next_state, expected.next_state)


def test_fresh_noise_abducts_nothing() -> None:
    counted = Counted()
    Augmenter(2, fresh_noise=True).imagine(trials(60), truth(mechanism=counted), REACH)
    assert (counted.abducted, counted.predicted) == (0, 120)


def test_fresh_noise_forgets_what_happened() -> None:
    """Kept noise moves with the factual noise; fresh noise does not, and is not stored."""
    data = trials(2000)
    kept, fresh = (Augmenter(1, fresh).imagine(data, truth(), REACH) for fresh in (False, True))
    assert torch.equal(kept.action, fresh.action)
    assert fresh.noise.shape == (2000, 0)
    mean = Additive().transition(kept.state, kept.action, torch.zeros(2000, 1))
    luck = torch.cat([data.noise, (kept.next_state - mean) / 0.3, (fresh.next_state - mean) / 0.3], 1)
    correlation = torch.corrcoef(luck.T)
    assert correlation[0, 1] > 0.999
    assert correlation[0, 2].abs() < 0.1
    assert luck[:, 2].std().item() == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("name", MODELS)
def test_models_that_cannot_abduct_imagine_without_noise(name: str) -> None:
    model = MODELS[name].fit(ROWS)
    assert isinstance(model, Imaginer)
    rows = Augmenter(2).imagine(ROWS, model, Reach(Box((-1.0,), (1.0,))))
    assert rows.noise.shape == (240, 0)
    torch.testing.assert_close(rows.reward, Reach(DOSES).reward(rows.state, rows.action, rows.next_state))


def test_codes_stay_codes_in_imagined_rows(fitted) -> None:
    model, rows = fitted("mixed")
    imagined = Augmenter(2).imagine(rows, model, Reach(Box((-1.0,), (1.0,))))
    assert set(imagined.next_state[:, 3].tolist()) == {0.0, 1.0}


def test_theta_reaches_the_mechanism() -> None:
    """Two groups whose drift differs by θ alone: told θ, the model separates them."""
    theta = torch.where(torch.arange(len(ROWS)) % 2 == 0, -1.0, 1.0)[:, None]
    rows = replace(ROWS, next_state=ROWS.next_state + 2 * theta)
    model = replace(DENSITY, likelihood=replace(BRIEF, schedule=Schedule(steps=200))).fit(rows, 0, theta=theta)
    apart = model.predict(rows.state, rows.action, torch.zeros(len(rows), 8), theta) - model.predict(
        rows.state, rows.action, torch.zeros(len(rows), 8), -theta
    )
    assert ((apart * theta) > 0).float().mean() > 0.9
    torch.testing.assert_close(model.counterfactual(rows, rows.action, theta), rows.next_state, rtol=0, atol=1e-5)
