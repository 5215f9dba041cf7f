"""What columns mean goes with tables, models, tasks and policies, and where two of them meet it is compared."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import counterpoint as cp
from counterpoint.core.seeding import generator
from counterpoint.data.schema import Column, Fill, Schema, agree
from counterpoint.data.spaces import Box, Discrete
from counterpoint.models.scm.base import StructuralCausalModel
from counterpoint.policies.recommendation import recommend
from helpers.recipes import BRIEF, CONDITIONAL, DENSITY, MODELS, PAPER, POLICY, Pays
from helpers.tables import ROLES, load, refused, ward

OUTCOME = cp.Outcome(hidden=(8,), likelihood=BRIEF)
NUMBERS: dict[str, Any] = {"state": ["lactate", "dose"], "units": {"lactate": "mmol/L"}}
PLAIN = Schema.of(["a", "b"], Discrete.of([0, 1]), ["dose"])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Column(""), "name"),
        (lambda: Column(3), "name=3"),
        (lambda: Column("x", ("a", "b", "a")), "'x' names a level twice"),
        (lambda: Schema.of(["a", "a"], PLAIN.actions), "two state columns are named 'a'"),
        (lambda: Schema.of(["a"], Discrete.one_hot(2), ["d", "d"]), "two action columns are named 'd'"),
        (lambda: Schema.of(["a"], Discrete.one_hot(2), ["d"]), "1 action names for an action space of 2 columns"),
    ],
)
def test_a_schema_that_is_none(make: Callable[[], object], words: str) -> None:
    assert words in refused(make)


def with_first(**changes: Any) -> Schema:
    first, *others = PLAIN.states
    return replace(PLAIN, states=(replace(first, **changes), *others))


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (PLAIN, replace(PLAIN, states=PLAIN.states[::-1]), "are a, b, those of the table in another order"),
        (PLAIN, with_first(name="c"), "are a, b, those of the table c, b"),
        (PLAIN, replace(PLAIN, states=PLAIN.states[:1]), "are a, b, those of the table a"),
        (PLAIN, with_first(levels=("0", "1")), "column 'a' has numbers in the model and 2 levels in the table"),
        (
            with_first(levels=("x", "y")),
            with_first(levels=("y", "x")),
            "has 2 levels in the model and 2 levels in the table, others or in another order",
        ),
        (with_first(unit="mg"), with_first(unit="g"), "column 'a' is in mg in the model and in g in the table"),
        (PLAIN, replace(PLAIN, actions=Discrete.of([1, 0])), "actions of the model are {0.0, 1.0} and those of the"),
        (PLAIN, replace(PLAIN, actions=Box((0.0,), (1.0,))), "those of the table [0.0]…[1.0]"),
        (PLAIN, replace(PLAIN, action_names=("volume",)), "are dose and those of the table volume"),
    ],
)
def test_schemas_that_differ_do_not_agree(one: Schema, other: Schema, words: str) -> None:
    assert words in refused(lambda: agree(one, other))
    refused(lambda: agree(other, one))


@pytest.mark.parametrize(
    "other",
    [
        with_first(unit="mg"),
        with_first(static=True),
        with_first(fill=Fill(3.0)),
        replace(PLAIN, action_names=("action_0",)),
        replace(PLAIN, actions=Discrete.of([0, 1 + 1e-7])),
    ],
)
def test_what_is_not_said_contradicts_nothing(other: Schema) -> None:
    agree(PLAIN, other)
    agree(other, PLAIN)


@pytest.fixture(scope="module")
def fitted() -> StructuralCausalModel:
    return DENSITY.fit(load(**NUMBERS))


OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "permuted": ({"state": ["dose", "lactate"]}, "in another order"),
    "another column": ({"state": ["lactate", "fluid"]}, "those of the table lactate, fluid"),
    "units": ({"units": {"lactate": "mg/dL"}}, "'lactate' is in mmol/L in the model and in mg/dL in the table"),
    "levels": ({"state": ["lactate", "vent"]}, "those of the table lactate, vent"),
    "labels": (
        {"labels": ["salt", "none", "iron"]},
        "drug=none, drug=salt and those of the table drug=salt",
    ),
    "actions": ({"labels": ["iron", "none", "salt", "zinc"]}, "those of the table {(1.0, 0.0, 0.0, 0.0)"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_model_answers_for_tables_of_its_own_columns_only(name: str, fitted: StructuralCausalModel) -> None:
    changes, words = OTHERS[name]
    rows, task = load(**{**NUMBERS, **changes}).with_next(), Pays(load(**{**NUMBERS, **changes}).actions)
    assert words in refused(lambda: fitted.abduct(rows))
    assert words in refused(lambda: fitted.counterfactual(rows, rows.action))
    assert words in refused(lambda: cp.Augmenter().augment(rows, fitted, task))
    assert words in refused(lambda: cp.check_scm(fitted, rows))


def test_a_category_is_no_number_and_its_levels_have_an_order() -> None:
    model = DENSITY.fit(load(state=["lactate", "unit"]))
    other = load(state=["lactate", "unit"], categorical={"unit": ["icu", "home", "er"]}).with_next()
    words = "3 levels in the model and 3 levels in the table, others or in another order"
    assert words in refused(lambda: model.counterfactual(other, other.action))
    table = ward().assign(unit=ward()["unit"].map({"er": 0, "home": 1, "icu": 2}))
    numbers = load(table, state=["lactate", "unit"]).with_next()
    assert "and numbers in the table" in refused(lambda: model.counterfactual(numbers, numbers.action))


def test_a_model_of_the_dynamics_imagines_for_its_own_columns_only() -> None:
    rows, other = load(**NUMBERS).with_next(), load(**{**NUMBERS, "state": ["dose", "lactate"]}).with_next()
    model = MODELS["deterministic"].fit(rows)
    assert "in another order" in refused(lambda: cp.Augmenter().augment(other, model, Pays(rows.actions)))
    assert len(cp.Augmenter(1).augment(rows, model, Pays(rows.actions))) == 2 * len(rows)


LEARNERS: dict[str, Any] = {
    "D3QN": POLICY,
    "BCQ": cp.learners.BCQ(learner=POLICY),
    "PETS": cp.learners.PETS(MODELS["gaussian dynamics"], particles=2, planner=cp.learners.Planner(3, 10, 2, 1)),
    "STEVE": cp.learners.STEVE(
        horizon=1, learner=POLICY, rewards=2, q_functions=2, model=replace(MODELS["deterministic"], ensemble=2)
    ),
    "General": cp.CTRLg(DENSITY, cp.Augmenter(1), POLICY),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_patients_are_no_cartpole(name: str) -> None:
    learner, task = LEARNERS[name], cp.CartPole()
    assert "the state columns of the task are" in refused(lambda: learner.fit(load(**NUMBERS), task))
    rows = cp.simulate(task, cp.random_policy(task), 2, 20, 0)
    named = replace(rows, schema=Schema.of(("w", "x", "y", "z"), task.actions))
    assert "those of the table w, x, y, z" in refused(lambda: learner.fit(named, task))
    actions = Schema.of(rows.state_names, Discrete.of(list(range(11))))
    assert "the actions of the task are" in refused(lambda: learner.fit(replace(rows, schema=actions), task))


def test_a_task_without_names_is_for_its_own_actions_only() -> None:
    rows, other = load(**NUMBERS).with_next(), Pays(Discrete.one_hot(2))
    assert "the actions of the task are {(1.0, 0.0), (0.0, 1.0)}" in refused(lambda: POLICY.fit(rows, other))
    assert "the actions of the task are" in refused(lambda: cp.Augmenter(1).augment(rows, DENSITY.fit(rows), other))


@pytest.mark.parametrize("name", ["permuted", "units", "actions"])
def test_a_learned_task_is_for_tables_of_its_own_columns_only(name: str) -> None:
    changes, words = OTHERS[name]
    rows, task = load(**{**NUMBERS, **changes}), OUTCOME.fit(load(**NUMBERS))
    words = words.replace("in the model", "in the task")
    assert words in refused(lambda: POLICY.fit(rows, task))
    assert words in refused(lambda: cp.Augmenter(1).augment(rows, DENSITY.fit(rows), task))


@pytest.mark.parametrize("name", ["permuted", "units", "actions"])
def test_a_policy_advises_by_a_log_of_its_own_columns_only(name: str) -> None:
    changes, words = OTHERS[name]
    rows, other = load(**NUMBERS), load(**{**NUMBERS, **changes})
    policy = POLICY.fit(rows, Pays(rows.actions))
    words = words.replace("in the model", "in the policy").replace("of the table", "of the log")
    assert words.replace("in the table", "in the log") in refused(lambda: recommend(policy, ward(), other))


def test_tables_of_other_units_are_not_one_table() -> None:
    rows, other = load(**NUMBERS), load(**{**NUMBERS, "units": {"lactate": "mg/dL"}})
    assert "'lactate' is in mmol/L" in refused(lambda: cp.data.concatenate([rows, other]))
    assert len(cp.data.concatenate([rows, load(**{**NUMBERS, "units": {}})])) == 2 * len(rows)


def test_units_of_an_action_are_compared_or_refused() -> None:
    """Never taken and forgotten."""

    def dosed(unit: str) -> cp.Transitions:
        return load(state="lactate", action="dose", actions=cp.Bins(), units={"dose": unit})

    assert "'dose'" in refused(lambda: cp.data.concatenate([dosed("mg"), dosed("g")]))


RICH: dict[str, Any] = {
    "units": {"lactate": "mmol/L"},
    "action": ["drug", "dose"],
    "actions": cp.Bins(count=3),
    "missing": "linear",
    "carry_forward": 1,
    "masks": ["lactate"],
    "held_out": 0.25,
    "seed": 2,
}


def rich() -> pd.DataFrame:
    table = ward()
    return table.assign(lactate=table["lactate"].mask(table.index % 7 == 3))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_table_keeps_its_schema(suffix: str, tmp_path: Path) -> None:
    rows = load(rich(), **RICH)
    assert [column.name for column in rows.schema.states] == [*ROLES["state"], "lactate_missing"]
    assert rows.schema.states[0].unit == "mmol/L"
    assert rows.schema.states[0].fill.weights
    assert rows.schema.learned_with == (0.25, 2)
    cp.write(rows, tmp_path / f"t.{suffix}")
    back = cp.read(tmp_path / f"t.{suffix}")
    assert back.schema == rows.schema
    assert back.fingerprint == rows.fingerprint
    again = cp.from_dataframe(rich(), like=back)
    assert again.fingerprint == rows.fingerprint


MADE: dict[str, Callable[[cp.Transitions], Any]] = {
    "model": lambda rows: DENSITY.fit(rows),
    "task": lambda rows: OUTCOME.fit(rows),
    "policy": lambda rows: POLICY.fit(rows, Pays(rows.actions)),
    "behaviour": lambda rows: cp.learners.BCQ(learner=POLICY).fit(rows, Pays(rows.actions)),
    "auto": lambda rows: cp.AutoSCM((DENSITY,)).fit(rows),
}


@pytest.mark.parametrize("name", MADE)
def test_what_is_made_of_a_table_keeps_its_schema(name: str, tmp_path: Path) -> None:
    rows = load(rich(), **RICH)
    made = MADE[name](rows)
    made.save(tmp_path)
    back = cp.load(tmp_path)
    assert made.schema == back.schema == rows.schema
    assert (back.state_names, back.actions) == (rows.state_names, rows.actions)


def test_a_loaded_policy_and_model_read_a_frame_as_before(tmp_path: Path) -> None:
    rows, asked = load(rich(), **RICH), rich()[["sex", "lactate", "unit", "vent", "age"]].iloc[:12]
    policy, model = MADE["policy"](rows), MADE["model"](rows)
    policy.save(tmp_path / "policy")
    model.save(tmp_path / "model")
    pd.testing.assert_frame_equal(cp.load(tmp_path / "policy").act(asked), policy.act(asked))
    given = {"drug": "salt", "dose": 2.0}
    drawn = [m.sample(asked, given, generator(0)) for m in (cp.load(tmp_path / "model"), model)]
    pd.testing.assert_frame_equal(*drawn)


@pytest.mark.parametrize("recipe", [PAPER, CONDITIONAL, *MODELS.values()], ids=lambda recipe: type(recipe).__name__)
def test_a_model_of_numbers_takes_no_category_for_an_amount(recipe: Any) -> None:
    message = refused(lambda: recipe.fit(load(state=["lactate", "dose", "vent"])))
    assert "state column 'vent' is a category, which this model would take for a number" in message
    assert "numeric=['vent']" in message
    recipe.fit(load(state=["lactate", "dose", "vent"], numeric=["vent"]))


@pytest.fixture(scope="module")
def mixed() -> tuple[StructuralCausalModel, cp.Transitions]:
    rows = load().with_next()
    return DENSITY.fit(rows), rows


def test_a_density_of_a_table_with_categories_is_a_mixed_model(
    mixed: tuple[StructuralCausalModel, cp.Transitions],
) -> None:
    model, rows = mixed
    assert isinstance(model.structure, cp.models.MixedSCM)
    assert model.recipe == DENSITY
    assert model.structure.categories == ((2, 2), (3, 2), (4, 3))
    assert model.structure.static == (1, 3)
    wanted = (DENSITY.law, DENSITY.ensemble, DENSITY.hidden, DENSITY.likelihood, DENSITY.variation_penalty)
    made = model.structure
    assert (made.law, made.ensemble, made.hidden, made.likelihood, made.variation_penalty) == wanted
    assert "an order is for states of numbers" in refused(lambda: replace(DENSITY, order=(0, 1, 2, 3, 4)).fit(rows))


@pytest.mark.parametrize("action", [0, 1, 2])
def test_imagined_categories_are_codes_and_static_columns_stay(
    action: int, mixed: tuple[StructuralCausalModel, cp.Transitions]
) -> None:
    model, rows = mixed
    other = rows.actions.features(torch.full((len(rows),), action))
    fresh = model.sample(rows.state, other, generator(0))
    for answer in (model.counterfactual(rows, other), fresh):
        assert torch.equal(answer[:, [1, 3]], rows.state[:, [1, 3]])
        assert set(answer[:, 2].unique().tolist()) <= {0.0, 1.0}
        assert set(answer[:, 4].unique().tolist()) <= {0.0, 1.0, 2.0}
        assert not torch.equal(answer[:, 0], rows.state[:, 0])
    assert (fresh[:, 2] != rows.state[:, 2]).any(), "codes do move"


def test_a_static_number_beside_others_never_changes() -> None:
    rows = load(state=["lactate", "age"]).with_next()
    assert rows.schema.static == (1,)
    model = DENSITY.fit(rows)
    assert model.structure.static == (1,)
    assert torch.equal(model.sample(rows.state, rows.action, generator(0))[:, 1], rows.state[:, 1])
    answer = model.counterfactual(rows, rows.action.flip(0))
    assert torch.equal(answer[:, 1], rows.state[:, 1])
    assert not torch.equal(answer[:, 0], rows.next_state[:, 0])
    torch.testing.assert_close(model.counterfactual(rows, rows.action), rows.next_state, rtol=0, atol=1e-5)


def test_a_network_sees_every_level_of_a_category() -> None:
    """Codes 0, 1, 2 as one number could not be valued high, low, high by a network without hidden layers."""
    rows = load(state=["lactate", "unit"])
    policy = replace(POLICY, hidden=()).fit(rows, Pays(rows.actions))
    assert policy.network.states.mean.shape[-1] == 4
    codes = torch.tensor([[2.0, 0.0], [2.0, 1.0], [2.0, 2.0]])
    values = policy.values(codes)
    assert not torch.allclose(values[1] - values[0], values[2] - values[1], atol=1e-6)
