"""Roles of state columns: exogenous ones, recursions, signs and scales of doses."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import counterpoint as cp
from counterpoint.checks.assumptions import monotone, quantiles
from counterpoint.checks.findings import draw
from counterpoint.core.artifacts import decode, encode
from counterpoint.data.stored_format import SCHEMA_CLASSES
from counterpoint.simulation.models import ModelSimulator
from helpers.recipes import BRIEF

STATES = ["x", "meal", "eaten", "board", "weight"]
EATEN = cp.Recursion("eaten", (("eaten", 0.5), ("next meal", 1.0)))
BOARD = cp.Recursion("board", (("board", 0.8), ("dose", 0.8), ("meal", 0.1)), 0.25)
ROLES = cp.Knowledge(
    exogenous=("meal",), recursions=(EATEN, BOARD), signs=(("dose", "x", -1),), per=(("dose", "weight"),)
)


def schema_of(knowledge: cp.Knowledge = ROLES) -> cp.Schema:
    columns = tuple(cp.Column(name, static=name == "weight") for name in STATES)
    return cp.Schema(columns, cp.Box((0.0,), (1.0,)), ("dose",), knowledge=knowledge)


def logged(rows: int = 160, knowledge: cp.Knowledge = ROLES) -> cp.Transitions:
    """Rows of eight subjects that follow the declared recursions."""
    random = torch.Generator().manual_seed(0)
    schema = schema_of(knowledge)
    state = torch.zeros(rows // 20, len(STATES))
    state[:, 4] = 50 + 40 * torch.rand(len(state), generator=random)
    states, actions, after = [], [], []
    for _ in range(20):
        action = torch.rand(len(state), 1, generator=random)
        drawn = torch.randn(len(state), 5, generator=random)
        drawn[:, 0] = 0.8 * state[:, 0] - action[:, 0] + 0.3 * drawn[:, 0]
        drawn[:, 1] = drawn[:, 1].relu()
        drawn[:, 4] = state[:, 4]
        drawn[:, 2] = 0.5 * state[:, 2] + drawn[:, 1]
        drawn[:, 3] = 0.8 * state[:, 3] + 0.8 * action[:, 0] + 0.1 * state[:, 1] + 0.25
        states, actions, after = [*states, state], [*actions, action], [*after, drawn]
        state = drawn
    flags = torch.zeros(rows, dtype=torch.bool)
    return cp.Transitions.logged(
        state=torch.cat(states), action=torch.cat(actions), reward=torch.zeros(rows), next_state=torch.cat(after),
        terminated=flags, truncated=flags, subject=torch.arange(rows) % (rows // 20),
        step=torch.arange(rows) // (rows // 20), schema=schema,
    )  # fmt: skip


def test_recursions_are_computed_from_the_state_the_action_and_the_next_exogenous_values() -> None:
    schema = schema_of()
    state, action = torch.tensor([[1.0, 3.0, 4.0, 2.0, 70.0]]), torch.tensor([[0.5]])
    after = torch.tensor([[9.0, 5.0, 99.0, 99.0, 70.0]])
    expected = torch.tensor([[9.0, 5.0, 0.5 * 4 + 5, 0.8 * 2 + 0.8 * 0.5 + 0.1 * 3 + 0.25, 70.0]])
    torch.testing.assert_close(schema.held(after, state, action), expected)
    assert after[0, 2] == 99, "the argument is left as it was"
    wide = schema.held(after.expand(2, 3, -1), state.expand(2, 3, -1), action.expand(2, 3, -1))
    torch.testing.assert_close(wide, expected.expand(2, 3, -1))
    with_lag = replace(ROLES, carried=(("x", "board"),), signs=())
    torch.testing.assert_close(schema_of(with_lag).held(after, state, action)[0, 0], torch.tensor(2.0))
    bounded = replace(ROLES, bounds=(("meal", 0.0, 4.0),))
    torch.testing.assert_close(schema_of(bounded).held(after, state, action)[0, 2], torch.tensor(6.0))


def test_roles_of_columns_as_indices() -> None:
    schema = schema_of()
    assert schema.exogenous == (1,)
    assert schema.unpredicted == (1, 2, 3, 4)
    assert schema.autonomous == (1, 2, 4), "an action reaches the column on board, and none the eaten one"
    columns = (cp.Column("x"), cp.Column("meal", static=True))
    assert replace(schema, states=columns, knowledge=cp.Knowledge(exogenous=("meal",))).exogenous == ()


def test_roles_are_stored_with_the_schema() -> None:
    schema = schema_of()
    assert decode(encode(schema), SCHEMA_CLASSES) == schema


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"exogenous": ("meal", "eaten")}, "'eaten' is both exogenous and a recursion"),
        ({"exogenous": ("meal", "bread")}, "'bread' is declared as exogenous and is not a state column"),
        ({"exogenous": ("meal", "x"), "computed": ("x",)}, "'x' is both exogenous and computed"),
        ({"exogenous": ()}, "reads the next value of 'meal', which is not exogenous"),
        ({"recursions": (EATEN, EATEN)}, "'eaten' has two recursions"),
        ({"recursions": (cp.Recursion("z", ()),)}, "'z' is declared as a recursion and is not a state column"),
        ({"recursions": (cp.Recursion("x", (("z", 1.0),)),)}, "the recursion of 'x' reads 'z', which is not a column"),
        ({"recursions": (EATEN,), "carried": (("eaten", "x"),)}, "'eaten' is both a recursion and carried"),
        ({"signs": (("x", "x", 1),)}, "a sign is declared of 'x', which is not an action column"),
        ({"signs": (("dose", "z", 1),)}, "a sign is declared for 'z', which is not a state column"),
        ({"signs": (("dose", "meal", 1),)}, "a sign is declared for 'meal', which is exogenous"),
        ({"signs": (("dose", "x", 1), ("dose", "x", -1))}, "'dose' has two signs for 'x'"),
        ({"signs": (("dose", "x", 2),)}, "the sign of 'dose' on 'x' is 2; give"),
        ({"per": (("dose", "x"),)}, "'x' scales an action and is not constant within subjects"),
        ({"per": (("dose", "height"),)}, "'dose' is per 'height', which is not a state column"),
        ({"per": (("x", "weight"),)}, "per names 'x', which is not an action column"),
        ({"signs": (("dose", "weight", 1),)}, "'weight' is constant within subjects"),
    ],
)
def test_contradictory_roles_are_refused(change: dict, message: str) -> None:
    with pytest.raises(cp.CounterpointError, match=message):
        schema_of(replace(ROLES, **change))


def test_a_recursion_names_each_source_once() -> None:
    with pytest.raises(cp.CounterpointError, match="the recursion of 'a' names 'b' twice"):
        cp.Recursion("a", (("b", 1.0), ("b", 1.0)))


def test_rows_that_contradict_a_recursion_or_a_scale_are_refused() -> None:
    rows = logged()
    rows.schema.check_rows(rows.state, rows.action, rows.next_state)
    rounded = rows.next_state.round(decimals=2)
    missing = torch.where(torch.arange(len(rows))[:, None] % 7 == 0, torch.nan, rounded)
    rows.schema.check_rows(rows.state, rows.action, missing)
    wrong = rows.next_state.clone()
    wrong[3, 3] += 0.5
    with pytest.raises(cp.CounterpointError, match="'board' does not follow its recursion in 1 of 160 rows"):
        rows.schema.check_rows(rows.state, rows.action, wrong)
    current = cp.Recursion("eaten", (("eaten", 0.5), ("meal", 1.0)))
    other = schema_of(replace(ROLES, recursions=(current,)))
    with pytest.raises(cp.CounterpointError, match="'eaten' does not follow its recursion in"):
        other.check_rows(rows.state, rows.action, rows.next_state)
    weightless = rows.state.clone()
    weightless[:, 4] = 0
    with pytest.raises(cp.CounterpointError, match="per 'weight', which is not positive in 160 rows"):
        rows.schema.check_rows(weightless, rows.action, rows.next_state)


RECIPES = [
    cp.DensitySCM(ensemble=2, hidden=(8,), likelihood=BRIEF),
    cp.RandomEffects(factors=1, ensemble=2, changes=("difference",) * 5, schedule=cp.Schedule(steps=10, check_every=5)),
]


@pytest.fixture(scope="module", params=RECIPES, ids=["density", "random effects"])
def model(request: pytest.FixtureRequest) -> cp.models.StructuralCausalModel:
    return request.param.fit(logged(knowledge=replace(ROLES, signs=())))


def test_no_action_moves_an_exogenous_column_and_recursions_are_computed(
    model: cp.models.StructuralCausalModel,
) -> None:
    """In draws, in rollouts and in counterfactuals, whatever the model has learned."""
    rows = logged()
    low, high = torch.zeros(len(rows), 1), torch.ones(len(rows), 1)
    noise = model.prior(len(rows), torch.Generator().manual_seed(1))
    theta = model.subjects(rows)
    after_low, after_high = (model.predict(rows.state, action, noise, theta) for action in (low, high))
    assert torch.equal(after_low[:, [1, 2, 4]], after_high[:, [1, 2, 4]])
    assert (after_low[:, 0] - after_high[:, 0]).abs().min() > 0.1, "the other columns react"
    simulator = ModelSimulator([model])
    drawn = simulator.fresh(len(rows), 0)(0)
    imagined = simulator.step(rows.state[None], high[None], drawn, theta[None])[0]
    for after, action in ((after_low, low), (after_high, high), (imagined, high)):
        expected = 0.5 * rows.state[:, 2] + after[:, 1]
        torch.testing.assert_close(after[:, 2], expected)
        expected = 0.8 * rows.state[:, 3] + 0.8 * action[:, 0] + 0.1 * rows.state[:, 1] + 0.25
        torch.testing.assert_close(after[:, 3], expected)
    counterfactual = model.counterfactual(rows, high)
    assert torch.equal(counterfactual[:, [1, 4]], rows.next_state[:, [1, 4]])
    torch.testing.assert_close(counterfactual[:, 2], rows.next_state[:, 2])


def test_an_exogenous_column_is_drawn_as_it_was_logged(model: cp.models.StructuralCausalModel) -> None:
    """Half of the meals are exactly 0, and the model's draws as well; each member's noise explains the logged value."""
    rows = logged()
    simulator = ModelSimulator([model])
    after = simulator.step(rows.state[None], rows.action[None], simulator.fresh(160, 0)(0), model.subjects(rows)[None])
    meals, seen = after[0, :, 1], rows.next_state[:, 1]
    assert abs(float((meals == 0).float().mean()) - float((seen == 0).float().mean())) < 0.15
    assert abs(float(meals[meals != 0].mean()) - float(seen[seen != 0].mean())) < 0.25
    noise = model.abduct(rows)
    again = model.predict(rows.state, rows.action, noise, model.subjects(rows))
    torch.testing.assert_close(again, rows.next_state, atol=1e-3, rtol=1e-3)


def test_a_model_with_exogenous_columns_is_saved_and_loaded(
    model: cp.models.StructuralCausalModel, tmp_path: Path
) -> None:
    model.save(tmp_path / "model")
    rows = logged()
    noise = model.prior(len(rows), torch.Generator().manual_seed(1))
    theta = model.subjects(rows)
    loaded = cp.load(tmp_path / "model")
    assert isinstance(loaded, cp.models.StructuralCausalModel)
    torch.testing.assert_close(
        loaded.predict(rows.state, rows.action, noise, theta), model.predict(rows.state, rows.action, noise, theta)
    )


@pytest.mark.parametrize("recipe", RECIPES, ids=["density", "random effects"])
def test_effects_act_through_the_dose_per_scale(recipe: cp.DensitySCM | cp.RandomEffects) -> None:
    """Twice the dose in twice the weight is the same input, but for the weight itself; other recipes read the dose."""
    rows = logged(knowledge=cp.Knowledge(per=(("dose", "weight"),)))
    plain = replace(rows, schema=replace(rows.schema, knowledge=cp.Knowledge()))
    inputs = torch.tensor([[1.0, 2.0, 3.0, 4.0, 60.0, 0.5], [1.0, 2.0, 3.0, 4.0, 120.0, 1.0]])
    for data, alike in ((rows, True), (plain, False)):
        mechanism = recipe.fit(data).mechanism
        seen = mechanism.layout.seen(inputs) if hasattr(mechanism, "layout") else mechanism.law.layout.features(inputs)  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
        assert bool(seen[0, 5] == seen[1, 5]) == alike
        assert not alike or seen[0, 5].item() == pytest.approx(0.5 / 60)
    assert rows.schema.scales == ((0, 4),)


def test_a_model_that_violates_a_declared_sign_says_so() -> None:
    """The dose lowers x by 1: declared so, nothing is said; declared to raise it, every row contradicts."""
    RECIPES[1].fit(logged(knowledge=cp.Knowledge(signs=(("dose", "x", -1),))))
    other = logged(knowledge=cp.Knowledge(signs=(("dose", "x", 1),)))
    with pytest.warns(cp.CounterpointWarning, match=r"in 100% of the rows more 'dose' lowers 'x', against the decl"):
        RECIPES[1].fit(other)


def test_a_model_that_would_let_actions_move_an_exogenous_column_is_refused() -> None:
    with pytest.raises(cp.CounterpointError, match="'meal' is declared exogenous, and this model would let actions"):
        cp.models.GaussianDynamics(2, (8,), likelihood=BRIEF).fit(logged())


def test_checks_look_at_the_noise_of_columns_that_actions_change(model: cp.models.StructuralCausalModel) -> None:
    """A meal of exactly 0 says nothing of its normal noise; that is no flaw of a counterfactual."""
    sample = draw(model, logged(), 0)
    assert sample.noise.shape[-1] == model.mechanism.equation_noise == 1
    assert [model.state_names[column] for column in model.mechanism.noise_columns] == ["x", *["meal"] * 3]
    assert monotone(sample).passed
    assert quantiles(sample).shape[-1] == 1
