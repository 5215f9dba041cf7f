"""Amounts by their logarithm, doses by their level, and columns that follow from others."""

from dataclasses import replace

import pytest
import torch

import counterpoint as cp
from counterpoint.core.errors import CounterpointError
from counterpoint.data.doses import ActionColumn, product_space
from counterpoint.data.schema import Column, Schema
from counterpoint.models.scm.base import StructuralCausalModel
from counterpoint.models.scm.mixed import ContextEncoding, MixedSCM, amounts_in
from counterpoint.nets.laws import Gaussian
from counterpoint.nets.likelihood import Likelihood
from counterpoint.nets.training import Schedule

NAMES = ("lactate", "pressure", "alarm", "score", "age")
DOSE = ActionColumn("dose", cuts=(1.0, 10.0, 100.0), zero=True, doses=(0.0, 0.5, 5.0, 50.0, 500.0))
EFFECT = torch.tensor([0.0, 1.0, -1.0, 1.0, -1.0])
"""Of the levels on the pressure: no line through the doses comes near it."""
BRIEF = Likelihood(Schedule(steps=300, check_every=50, rate="one-cycle"), learning_rate=5e-3)
RECIPE = cp.DensitySCM(Gaussian(), ensemble=2, hidden=(32,), likelihood=BRIEF)
SCHEMA = Schema(
    tuple(Column(name, static=name == "age") for name in NAMES),
    product_space([DOSE]),
    ("dose",),
    doses=(DOSE,),
    knowledge=cp.Knowledge(whole=("score",), computed=("alarm", "score")),
)


def alarm(lactate: torch.Tensor, pressure: torch.Tensor) -> torch.Tensor:
    return torch.relu(lactate - 2) - pressure


def score(lactate: torch.Tensor, pressure: torch.Tensor) -> torch.Tensor:
    return (lactate > 2).float() + (lactate > 4) + 2 * (pressure < -0.5)


def whole(lactate: torch.Tensor, pressure: torch.Tensor, age: torch.Tensor) -> torch.Tensor:
    """The state with what follows from lactate and pressure."""
    return torch.stack([lactate, pressure, alarm(lactate, pressure), score(lactate, pressure), age], -1)


def after(state: torch.Tensor, level: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    lactate = state[..., 0] * (0.2 * noise[..., 0] - 0.1 * (level > 0)).exp()
    return whole(lactate, 0.8 * state[..., 1] + EFFECT[level] + 0.3 * noise[..., 1], state[..., 4])


def ward(rows: int = 3000, seed: int = 0) -> tuple[cp.Transitions, torch.Tensor, torch.Tensor]:
    """Rows of one step each, the level of every dose, and the noise."""
    random = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=random)
    state = whole((0.6 * normal(rows)).exp() * 2, normal(rows), 60 + 9 * normal(rows))
    level, noise = torch.randint(5, (rows,), generator=random), normal(rows, 2)
    table = cp.Transitions.logged(
        state=state,
        action=SCHEMA.actions.features(level),  # pyright: ignore[reportAttributeAccessIssue]
        reward=torch.zeros(rows),
        next_state=after(state, level, noise),
        terminated=torch.zeros(rows, dtype=torch.bool),
        truncated=torch.ones(rows, dtype=torch.bool),
        subject=torch.arange(rows),
        step=torch.zeros(rows, dtype=torch.long),
        actions=SCHEMA.actions,
    )
    return replace(table, schema=SCHEMA), level, noise


@pytest.fixture(scope="module")
def fitted() -> tuple[StructuralCausalModel, cp.Transitions, torch.Tensor, torch.Tensor]:
    rows, level, noise = ward()
    return RECIPE.fit(rows), rows, level, noise


def test_the_rows_say_which_columns_are_amounts(fitted) -> None:
    recipe = fitted[0].structure
    assert isinstance(recipe, MixedSCM)
    assert [column for column, _ in recipe.amounts or ()] == [0]
    assert recipe.computed == (2, 3)
    assert recipe.scores == (3,)
    assert recipe.static == (4,)
    assert recipe.doses == ((0, (0.0, 0.5, 5.0, 50.0, 500.0)),)


def test_a_positive_column_that_moves_by_differences_is_no_amount() -> None:
    random = torch.Generator().manual_seed(0)
    state = 50 + 10 * torch.randn(2000, 2, generator=random)
    change = torch.randn(2000, 2, generator=random)
    grown = torch.stack([state[:, 0] + 5 * change[:, 0], state[:, 1] * (0.2 * change[:, 1]).exp()], 1)
    table = {"state": state, "next_state": grown, "context": state}
    assert [column for column, _ in amounts_in([table], [0, 1])] == [1]
    assert amounts_in([{**table, "next_state": -grown}], [0, 1]) == ()


def test_an_imagined_score_fits_the_imagined_values(fitted) -> None:
    model, rows, level, noise = fitted
    other = (level + 1) % 5
    answer = model.counterfactual(rows, SCHEMA.actions.features(other))
    truth = after(rows.state, other, noise)
    spread = (truth - rows.next_state).std(0)
    error = (answer - truth).square().mean(0).sqrt() / spread
    assert bool((error[:4] < torch.tensor([0.4, 0.03, 0.12, 0.35])).all()), error
    assert (answer[:, 2] - alarm(answer[:, 0], answer[:, 1])).abs().mean() < 0.1 * spread[2]
    assert (answer[:, 3] == score(answer[:, 0], answer[:, 1])).float().mean() > 0.9
    assert torch.equal(answer[:, 4], rows.state[:, 4])


def test_what_was_done_gives_back_what_happened(fitted) -> None:
    model, rows, *_ = fitted
    torch.testing.assert_close(model.counterfactual(rows, rows.action), rows.next_state, rtol=1e-3, atol=1e-3)
    again = model.predict(rows.state, rows.action, model.abduct(rows))
    torch.testing.assert_close(again, rows.next_state, rtol=1e-3, atol=1e-3)


def test_a_saved_model_sees_as_it_did(fitted, tmp_path) -> None:
    model, rows, *_ = fitted
    model.save(tmp_path / "scm")
    loaded = cp.load(tmp_path / "scm")
    other = rows.action.flip(0)
    assert torch.equal(loaded.counterfactual(rows, other), model.counterfactual(rows, other))


def test_a_context_is_read_amounts_first_then_levels() -> None:
    seen = ContextEncoding((), ((0, 0.5),), ((1, (0.0, 2.0, 9.0)),))
    told = seen(torch.tensor([[1.0, 2.0], [0.1, 9.0], [4.0, 0.0]]))
    half = torch.tensor(0.5).log()
    wanted = torch.tensor([[0.0, 2.0, 1.0], [float(half), 9.0, 0.0], [1.3863, 0.0, 0.0]])
    torch.testing.assert_close(told, wanted, rtol=1e-4, atol=1e-4)
    assert seen.width(2) == 3
    states = torch.tensor([[2.0, -1.0]])
    torch.testing.assert_close(seen.unlink(seen.link(states)), states)


def test_a_computed_column_must_be_one_of_the_state() -> None:
    knowledge = cp.Knowledge(computed=("grade",))
    with pytest.raises(CounterpointError, match="'grade' is declared as computed"):
        knowledge.check_names(NAMES, ("dose",))
    with pytest.raises(CounterpointError, match="both carried and computed"):
        replace(knowledge, computed=("age",), carried=(("age", "dose"),)).check_names(NAMES, ("dose",))
