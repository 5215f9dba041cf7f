"""Questions in whatever form users have them: one answer, given in kind, and nonsense refused in one line."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from torch import Tensor

import counterpoint as cp
from counterpoint.core.seeding import generator
from counterpoint.models.scm.base import StructuralCausalModel
from counterpoint.policies.q import QPolicy
from helpers.recipes import DENSITY, POLICY, Pays
from helpers.tables import ROLES, load, refused, ward

NAMES: list[str] = ROLES["state"]
ROWS = load(action=["drug", "dose"], actions=cp.Bins(count=3)).with_next()
TABLE = ward().iloc[6:11]
"""Five rows as a user has them, whose index does not start at 0."""
STATE = ROWS.state[5:10]
"""The same as the model sees them."""


@pytest.fixture(scope="module")
def policy() -> QPolicy:
    learned = POLICY.fit(ROWS, Pays(ROWS.actions))
    assert isinstance(learned, QPolicy)
    for weights in learned.network.net.parameters():
        weights.data.mul_(10)
    assert len(learned.index(STATE).unique()) > 1, "else any answer is the right one"
    return learned


@pytest.fixture(scope="module")
def model() -> StructuralCausalModel:
    return DENSITY.fit(ROWS)


def numbers(answer: Any) -> Tensor:
    """Whatever holds numbers, as a tensor."""
    return (answer if isinstance(answer, Tensor) else torch.tensor(answer)).float()


def shuffled(table: pd.DataFrame) -> pd.DataFrame:
    """Columns in another order, with others among them."""
    return table[["unit", "r", "sex", "lactate", "drug", "vent", "age"]]


def rows_of(table: pd.DataFrame) -> list[dict[str, Any]]:
    return table[NAMES].to_dict("records")


MANY: dict[str, Any] = {
    "tensor": STATE,
    "double": STATE.double(),
    "array": STATE.numpy(),
    "double array": STATE.double().numpy(),
    "lists": STATE.tolist(),
    "tuples": tuple(map(tuple, STATE.tolist())),
    "columns": TABLE[NAMES].to_dict("list"),
    "pandas": TABLE[NAMES],
    "pandas shuffled": shuffled(TABLE),
    "polars": pl.DataFrame(shuffled(TABLE).to_dict("list")),
}
ONE: dict[str, Any] = {
    "tensor": STATE[0],
    "double": STATE[0].double(),
    "array": STATE[0].numpy(),
    "list": STATE[0].tolist(),
    "dict": rows_of(TABLE)[0],
    "series": TABLE[NAMES].iloc[0],
}


def test_the_table_and_the_tensor_are_the_same_rows() -> None:
    assert STATE[:, 0].tolist() == TABLE["lactate"].astype(np.float32).tolist()
    assert STATE[:, 4].tolist() == TABLE["unit"].map({"er": 0, "home": 1, "icu": 2}).tolist()


@pytest.mark.parametrize("form", MANY)
def test_every_form_asks_the_same(form: str, policy: QPolicy) -> None:
    expected = policy.network(torch_context(STATE))[0]
    torch.testing.assert_close(policy.values(MANY[form]).float(), expected)


@pytest.mark.parametrize("form", ONE)
def test_every_form_of_one_row_asks_the_same(form: str, policy: QPolicy) -> None:
    torch.testing.assert_close(policy.values(ONE[form]).float(), policy.values(STATE)[:1])


def torch_context(state: Tensor) -> Tensor:
    """Numbers first, then every level of vent, sex and unit."""
    levels = [torch.nn.functional.one_hot(state[:, i].long(), count) for i, count in ((2, 2), (3, 2), (4, 3))]
    return torch.cat([state[:, :2], *levels], 1)[None]


def in_kind(answer: Any, question: Any, expected: Tensor, said: pd.DataFrame) -> None:
    """The answer is what the question was: its type and precision, or its names, index and words."""
    if isinstance(question, Tensor):
        assert answer.dtype == question.dtype
        torch.testing.assert_close(answer.float(), expected)
    elif isinstance(question, np.ndarray):
        assert answer.dtype == question.dtype
        np.testing.assert_allclose(answer, expected.numpy(), rtol=1e-6)
    elif isinstance(question, pd.DataFrame):
        pd.testing.assert_frame_equal(answer, said.set_index(question.index), rtol=1e-6)
    elif isinstance(question, pl.DataFrame):
        assert isinstance(answer, pl.DataFrame)
        pd.testing.assert_frame_equal(pd.DataFrame(answer.to_dict(as_series=False)), said, rtol=1e-6)
    elif isinstance(question, dict):
        pd.testing.assert_frame_equal(pd.DataFrame(answer), said, rtol=1e-6)
    else:
        assert isinstance(answer, list)
        assert torch.tensor(answer).shape == expected.shape
        torch.testing.assert_close(torch.tensor(answer), expected)


@pytest.mark.parametrize("form", MANY)
def test_act_answers_in_kind_and_in_the_users_words(form: str, policy: QPolicy) -> None:
    index = policy.index(STATE)
    said = pd.DataFrame([policy.schema.choices()[i] for i in index.tolist()])
    assert set(said.columns) == {"drug", "dose"}
    assert set(said["drug"]) <= {"iron", "none", "salt"}
    in_kind(policy.act(MANY[form]), MANY[form], ROWS.actions.features(index), said)


@pytest.mark.parametrize("form", ONE)
def test_act_answers_one_row_with_one(form: str, policy: QPolicy) -> None:
    answer, index = policy.act(ONE[form]), int(policy.index(STATE)[0])
    if form in ("dict", "series"):
        assert isinstance(answer, type(ONE[form]))
        assert dict(answer) == policy.schema.choices()[index]
    else:
        assert isinstance(answer, type(ONE[form]))
        torch.testing.assert_close(numbers(answer), ROWS.actions.table()[index])


def spoken(after: Tensor) -> pd.DataFrame:
    """States in the user's words."""
    numbers = {name: after[:, i].double().tolist() for i, name in enumerate(NAMES)}
    words = {"sex": ["f", "m"], "unit": ["er", "home", "icu"]}
    return pd.DataFrame(numbers | {name: [levels[int(x)] for x in numbers[name]] for name, levels in words.items()})


@pytest.mark.parametrize("form", MANY)
def test_sample_and_predict_answer_in_kind(form: str, model: StructuralCausalModel) -> None:
    rows = ROWS[5:10]
    noise, action = model.abduct(rows), rows.action.flip(0)
    drawn, after = model.sample(STATE, action, generator(3)), model.predict(STATE, action, noise)
    in_kind(model.sample(MANY[form], action, generator(3)), MANY[form], drawn, spoken(drawn))
    in_kind(model.predict(MANY[form], action, noise), MANY[form], after, spoken(after))
    in_kind(model.predict(MANY[form], action.tolist(), noise.numpy()), MANY[form], after, spoken(after))
    assert (drawn[:, 0] != STATE[:, 0]).all()


@pytest.mark.parametrize("form", ["tensor", "array", "list", "dict"])
def test_sample_answers_one_row_with_one(form: str, model: StructuralCausalModel) -> None:
    action = ROWS.action[5]
    drawn = model.sample(STATE[:1], action, generator(3))
    answer = model.sample(ONE[form], action, generator(3))
    assert isinstance(answer, type(ONE[form]))
    if form == "dict":
        pd.testing.assert_frame_equal(pd.DataFrame([answer]), spoken(drawn), rtol=1e-6)
    else:
        torch.testing.assert_close(numbers(answer), drawn[0])


OTHER = ROWS[5:10].action.flip(0)
WORDS = pd.DataFrame([ROWS.schema.choices()[i] for i in ROWS[5:10].action_index.flip(0).tolist()])
LABELS = [ROWS.schema.labels()[i] for i in ROWS[5:10].action_index.flip(0).tolist()]
ACTIONS: dict[str, Any] = {
    "tensor": OTHER,
    "double": OTHER.double(),
    "array": OTHER.numpy(),
    "lists": OTHER.tolist(),
    "pandas": WORDS.assign(more=1)[["dose", "more", "drug"]].set_index(pd.Index(list("abcde"))),
    "polars": pl.DataFrame(WORDS.to_dict("list")),
    "columns": WORDS.to_dict("list"),
    "labels": LABELS,
}


@pytest.mark.parametrize("form", ACTIONS)
def test_a_counterfactual_takes_actions_in_every_form_and_answers_in_kind(
    form: str, model: StructuralCausalModel
) -> None:
    rows = ROWS[5:10]
    expected = model.counterfactual(rows, OTHER)
    torch.testing.assert_close(expected, model.predict(rows.state, OTHER, model.abduct(rows)), rtol=0, atol=1e-5)
    in_kind(model.counterfactual(rows, ACTIONS[form]), ACTIONS[form], expected, spoken(expected))


CHOICE = ROWS.schema.choices()[4]
FOR_ALL: dict[str, Any] = {
    "label": ROWS.schema.labels()[4],
    "tensor": ROWS.actions.table()[4],
    "row": ROWS.actions.table()[4:5],
    "array": ROWS.actions.table()[4].numpy(),
    "list": ROWS.actions.table()[4].tolist(),
    "dict": CHOICE,
    "series": pd.Series(CHOICE),
    "frame": pd.DataFrame([CHOICE]),
}


@pytest.mark.parametrize("form", FOR_ALL)
def test_one_action_for_all_rows_answers_for_all_rows(form: str, model: StructuralCausalModel) -> None:
    rows = ROWS[5:10]
    expected = model.counterfactual(rows, ROWS.actions.table()[4].expand(5, -1))
    answer = model.counterfactual(rows, FOR_ALL[form])
    if isinstance(answer, pd.DataFrame | dict):
        pd.testing.assert_frame_equal(pd.DataFrame(answer), spoken(expected), rtol=1e-6)
    else:
        torch.testing.assert_close(numbers(answer), expected)
    drawn = model.sample(STATE, FOR_ALL[form], generator(1))
    assert torch.equal(drawn, model.sample(STATE, ROWS.actions.table()[4].expand(5, -1), generator(1)))


def test_doses_are_read_by_their_bins(model: StructuralCausalModel) -> None:
    """A dose that nobody was given exactly is one of its bin."""
    bins = ROWS.schema.doses[1]
    near = WORDS.assign(dose=[dose + 1e-3 if dose else 0.0 for dose in WORDS["dose"]])
    assert bins.codes(near["dose"].to_numpy()).tolist() == bins.codes(WORDS["dose"].to_numpy()).tolist()
    pd.testing.assert_frame_equal(model.counterfactual(ROWS[5:10], near), model.counterfactual(ROWS[5:10], WORDS))


@pytest.fixture(scope="module")
def dosed() -> StructuralCausalModel:
    return DENSITY.fit(load(state=["lactate", "fluid"], action="dose", actions=cp.Bins()).with_next())


@pytest.mark.parametrize("form", ["flat list", "flat array", "flat tensor", "number for all", "0-d array"])
def test_doses_of_one_column_need_no_brackets(form: str, dosed: StructuralCausalModel) -> None:
    rows = load(state=["lactate", "fluid"], action="dose", actions=cp.Bins()).with_next()[:4]
    other = rows.action.flip(0)
    one = float(rows.actions.table()[2])
    questions: dict[str, tuple[Any, Tensor]] = {
        "flat list": (other[:, 0].tolist(), other),
        "flat array": (other[:, 0].numpy(), other),
        "flat tensor": (other[:, 0], other),
        "number for all": (one, torch.full((4, 1), one)),
        "0-d array": (np.array(one), torch.full((4, 1), one)),
    }
    question, features = questions[form]
    torch.testing.assert_close(numbers(dosed.counterfactual(rows, question)), dosed.counterfactual(rows, features))


def spoilt(**columns: Any) -> pd.DataFrame:
    return TABLE.assign(**columns)


def at(row: int, column: int, value: float) -> Tensor:
    state = STATE.clone()
    state[row, column] = value
    return state


NONSENSE: dict[str, tuple[Any, str]] = {
    "nan": (at(3, 0, torch.nan), "no 'lactate' at row 3"),
    "nan array": (at(3, 1, torch.nan).numpy(), "no 'age' at row 3"),
    "nan list": (at(3, 1, torch.nan).tolist(), "no 'age' at row 3"),
    "none in a list": ([[2.0, None, 0, 0, 0]], "no 'age' at row 0"),
    "nan frame": (spoilt(age=[1, 2, 3, np.nan, 5]), "no 'age' at row 3"),
    "missing word": (spoilt(unit=["er", None, "er", "er", "er"]), "no 'unit' at row 1"),
    "inf": (at(2, 0, torch.inf), "infinite at row 2"),
    "inf array": (at(2, 0, -torch.inf).numpy(), "infinite at row 2"),
    "inf frame": (
        spoilt(lactate=[1, 2, np.inf, 4, 5]),
        "'lactate' has 1 infinite",
    ),
    "too large": ([[1e39, 60.0, 0, 0, 0]], "infinite"),
    "too wide": (torch.zeros(3, 6), "has 6 columns and 5 are needed"),
    "too narrow": ([1.0, 2.0], "has 2 columns and 5 are needed; pass one value each for lactate, age, vent, sex, unit"),
    "ragged": ([[1.0, 2.0], [1.0]], "not rows of numbers"),
    "three axes": (STATE[None], "3 axes"),
    "missing column": (TABLE.drop(columns="age"), "column 'age' is not in the table"),
    "misspelt column": (TABLE.rename(columns={"age": "Age"}), "did you mean 'Age'?"),
    "missing key": ({"lactate": 2.0}, "is not in the table"),
    "twice": (pd.concat([TABLE, TABLE[["age"]]], axis=1), "two columns of one name"),
    "unknown level": (spoilt(unit="moon"), "column 'unit' at row 0 is none of the 3 known labels (5 such rows)"),
    "unknown code": (at(4, 4, 3.0), "'unit' is no code 0 to 2 at row 4"),
    "half a code": (at(1, 2, 0.5), "'vent' is no code 0 to 1 at row 1"),
    "negative code": (at(1, 2, -1.0), "'vent' is no code 0 to 1 at row 1"),
    "no code": (spoilt(vent=2), "column 'vent' at row 0 is none of the 2 known labels"),
    "text for a number": (spoilt(age="old"), "column 'age' is not a number at row 0"),
    "text": ([["a", "b", "c", "d", "e"]], "not rows of numbers"),
    "complex": (STATE.to(torch.complex64), "rows of real numbers"),
    "complex array": (STATE.numpy().astype(complex), "not rows of numbers"),
    "complex frame": (spoilt(age=1j), "column 'age' holds"),
    "bool": (STATE.bool(), "rows of real numbers"),
    "bool array": (STATE.bool().numpy(), "not rows of numbers"),
    "bool list": ([[True] * 5], "not rows of numbers"),
    "lengths": ({"lactate": [1.0], "age": [1.0, 2.0], "vent": 0, "sex": "f", "unit": "er"}, "different lengths"),
    "nothing": (None, "cannot read a table from NoneType"),
    "no rows": (TABLE.iloc[:0], "no rows"),
    "a set": ({1.0, 2.0}, "cannot read a table from set"),
    "lazy": (pl.DataFrame(shuffled(TABLE).to_dict("list")).lazy(), "not lazy"),
}


@pytest.mark.parametrize("case", NONSENSE)
def test_nonsense_is_one_line(case: str, policy: QPolicy, model: StructuralCausalModel) -> None:
    question, words = NONSENSE[case]
    assert words in refused(lambda: policy.act(question))
    refused(lambda: policy.values(question))
    refused(lambda: model.sample(question, ROWS.schema.labels()[0], generator(0)))
    refused(lambda: model.predict(question, ROWS.schema.labels()[0], torch.zeros(5, 12)))


WRONG_ACTIONS: dict[str, tuple[Any, str]] = {
    "rows": (OTHER[:3], "3 actions for 5 rows"),
    "labels": (LABELS[:3], "3 actions for 5 rows"),
    "frame": (WORDS.iloc[:2], "2 actions for 5 rows"),
    "nothing in a list": ([], "0 col"),
    "nan": (OTHER * torch.nan, "not finite at row 0"),
    "inf": (OTHER.numpy() + np.inf, "not finite at row 0"),
    "outside": (OTHER + 0.5, "at row 0 is outside the action space"),
    "wide": (torch.zeros(5, 2), "has 2 columns but the action space has 4"),
    "complex": (OTHER.to(torch.complex64), "rows of real numbers"),
    "bool": (OTHER.bool(), "rows of real numbers"),
    "unknown label": ("zinc", "'zinc' is none of the actions"),
    "unknown word": (WORDS.assign(drug="zinc"), "column 'drug' at row 0 is none of the 3 known labels"),
    "missing dose": (WORDS.assign(dose=np.nan), "'dose' has 5 missing values"),
    "missing column": (WORDS[["drug"]], "column 'dose' is not in the table"),
    "text dose": (WORDS.assign(dose="much"), "'dose' is not a number at row 0"),
    "nothing": (None, "cannot read a table from NoneType"),
}


@pytest.mark.parametrize("case", WRONG_ACTIONS)
def test_actions_that_are_none_are_one_line(case: str, model: StructuralCausalModel) -> None:
    question, words = WRONG_ACTIONS[case]
    assert words in refused(lambda: model.counterfactual(ROWS[5:10], question))
    assert words in refused(lambda: model.sample(STATE, question, generator(0)))


@pytest.mark.parametrize(
    ("noise", "words"),
    [
        (lambda u: u[:3], "3 rows of noise for 5 states"),
        (lambda u: u[:, 1:], "the noise has 11 columns and 12 are needed"),
        (lambda u: u * torch.nan, "the noise has no 'noise_0' at row 0"),
        (lambda u: u + torch.inf, "the noise is infinite at row 0"),
        (lambda u: u.bool(), "the noise is a torch.bool"),
    ],
)
def test_noise_that_is_none_is_one_line(
    noise: Callable[[Tensor], Tensor], words: str, model: StructuralCausalModel
) -> None:
    given = noise(model.abduct(ROWS[5:10]))
    assert words in refused(lambda: model.predict(STATE, OTHER, given))


def test_a_counterfactual_is_of_loaded_rows(model: StructuralCausalModel) -> None:
    assert "rows are a DataFrame; load them with from_dataframe" in refused(lambda: model.counterfactual(TABLE, OTHER))


def test_no_rows_have_no_answers(policy: QPolicy, model: StructuralCausalModel) -> None:
    assert model.counterfactual(ROWS[:0], OTHER[:0]).shape == (0, 5)
    assert model.sample(STATE[:0], OTHER[:0], generator(0)).shape == (0, 5)
    assert policy.act(STATE[:0]).shape == (0, 4)


def torn() -> pd.DataFrame:
    """The ward with every seventh lactate gone, and every fifth unit."""
    table = ward()
    unit = table["unit"].where(table.index % 5 != 2, None)
    return table.assign(lactate=table["lactate"].mask(table.index % 7 == 3), unit=unit)


def known(rows: cp.Transitions, table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the table that were kept."""
    kept = table[table["died"] | (table["hour"] < 20)]
    assert len(kept) == len(rows)
    return kept


@pytest.mark.parametrize("method", ["median", "mean", "linear"])
def test_act_fills_what_is_missing_as_the_training_table_did(method: str) -> None:
    table, names = torn(), ["lactate", "dose", "unit"]
    rows = load(table, state=names, missing=method)
    policy = POLICY.fit(rows, Pays(rows.actions))
    kept = known(rows, table)
    commonest = kept["unit"].value_counts().idxmax()
    asked = pd.DataFrame({"lactate": [np.nan, 1.0], "dose": [2.0, 3.0], "unit": ["icu", None]})
    lactate = kept["lactate"].mean() if method == "mean" else kept["lactate"].median()
    if method == "linear":
        fill = rows.schema.states[0].fill
        assert fill is not None
        lactate = fill.value + fill.weights[1] * (2.0 - rows.schema.states[1].fill.value)
        lactate += fill.weights[2] * (2.0 - rows.schema.states[2].fill.value)
        assert abs(lactate - fill.value) > 1e-3
    whole = asked.assign(lactate=[lactate, 1.0], unit=["icu", commonest])
    torch.testing.assert_close(policy.values(asked), policy.values(whole))
    codes = torch.tensor([[torch.nan, 2.0, 2.0], [1.0, 3.0, torch.nan]])
    torch.testing.assert_close(policy.values(codes), policy.values(whole))
    pd.testing.assert_frame_equal(policy.act(asked), policy.act(whole))
    assert not torch.allclose(policy.values(asked), policy.values(asked.fillna({"lactate": 0.0, "unit": "er"})))


@pytest.mark.parametrize("method", ["median", "linear"])
def test_a_mask_says_what_a_frame_does_not_have(method: str) -> None:
    rows = load(torn(), state=["lactate", "dose"], missing=method, masks=["lactate"])
    policy = POLICY.fit(rows, Pays(rows.actions))
    asked = pd.DataFrame({"lactate": [np.nan, 1.0], "dose": [2.0, 3.0]})
    fill, dose = (column.fill for column in rows.schema.states[:2])
    assert fill is not None
    assert dose is not None
    value = fill.value + (fill.weights[1] * (2.0 - dose.value) if fill.weights else 0.0)
    whole = torch.tensor([[value, 2.0, 1.0], [1.0, 3.0, 0.0]])
    torch.testing.assert_close(policy.values(asked), policy.values(whole))
    assert not torch.allclose(policy.values(whole), policy.values(whole * torch.tensor([1.0, 1.0, 0.0])))


def test_answers_of_a_given_space_speak_in_the_tables_words_too() -> None:
    rows = load(state=["lactate", "dose"], labels=["salt", "none", "iron"], actions=cp.Discrete.of([0.0, 1.0, 5.0]))
    policy = POLICY.fit(rows, Pays(rows.actions))
    answer = policy.act(TABLE)
    assert list(answer.columns) == ["drug"]
    assert answer["drug"].tolist() == [["salt", "none", "iron"][i] for i in policy.index(TABLE).tolist()]
