"""Doses and treatments as actions: cuts against numpy, products in order, and spaces that are none refused."""

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import counterpoint as cp
from counterpoint.data.conversion import _by_label
from counterpoint.data.doses import ActionColumn, Bins
from counterpoint.data.spaces import Box, Discrete
from helpers.recipes import Pays
from helpers.tables import load, noted, refused, ward

GIVEN = np.random.default_rng(0).gamma(2.0, 1.0, 400)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 10])
def test_cuts_are_the_quantiles_and_a_dose_is_the_median_of_its_bin(count: int) -> None:
    column = Bins(count=count, zero=False).fit("dose", GIVEN)
    cuts = np.quantile(GIVEN, [k / count for k in range(1, count)])
    assert column.cuts == tuple(cuts)
    edges = [-np.inf, *cuts, np.inf]
    inside = [GIVEN[(edges[k] <= GIVEN) & (edges[k + 1] > GIVEN)] for k in range(count)]
    assert column.doses == tuple(float(np.median(part)) for part in inside)
    assert np.bincount(column.codes(GIVEN)).tolist() == [len(part) for part in inside]
    assert (column.count, column.zero) == (count, False)


def test_no_dose_is_a_bin_of_its_own_below_the_quantiles_of_what_was_given() -> None:
    amounts = np.concatenate([np.zeros(300), GIVEN])
    column = Bins(count=5).fit("dose", amounts)
    assert column.zero
    assert column.cuts == tuple(np.quantile(GIVEN, [0.25, 0.5, 0.75])), "four quartiles of what was given"
    assert column.doses[0] == 0
    assert np.bincount(column.codes(amounts)).tolist() == [300, 100, 100, 100, 100]
    assert column.codes(np.array([0.0, 1e-9, 1e9])).tolist() == [0, 1, 4]
    assert not Bins(count=5).fit("dose", GIVEN).zero, "nobody had none"
    mixed = Bins(count=5, zero=False).fit("dose", amounts)
    assert mixed.codes(np.array([0.0, 1e-9])).tolist() == [0, 0]


def test_ties_make_fewer_bins_and_none_is_empty() -> None:
    amounts = np.array([0.0] * 5 + [1.0] * 12 + [2.0, 3.0])
    column = Bins(count=5).fit("dose", amounts)
    codes = column.codes(amounts)
    assert column.count < 5
    assert sorted(set(codes.tolist())) == list(range(column.count))
    assert len({*codes[5:17]}) == 1
    assert (np.diff(column.doses) > 0).all()


def test_given_cuts_belong_to_the_bin_above_and_an_empty_bin_is_left_out() -> None:
    amounts = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 9.0])
    column = Bins(cuts=(1.0, 2.0, 4.0, 5.0)).fit("dose", amounts)
    assert column.codes(amounts).tolist() == [0, 1, 2, 2, 3, 3, 4]
    assert column.doses == (0.0, 0.5, 1.25, 2.5, 9.0)
    assert column.cuts == (1.0, 2.0, 5.0), "nobody was given 4 to 5"
    plain = Bins(cuts=(1.0,), zero=False).fit("dose", amounts)
    assert plain.codes(amounts).tolist() == [0, 0, 1, 1, 1, 1, 1]


def test_negative_doses_have_no_lowest_bin_of_none() -> None:
    amounts = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
    assert "negative doses" in refused(lambda: Bins().fit("dose", amounts))
    column = Bins(count=2, zero=False).fit("dose", amounts)
    assert column.codes(amounts).tolist() == [0, 0, 1, 1, 1]


def test_a_negative_dose_is_not_taken_for_the_lowest_one() -> None:
    """Cuts are learned from training subjects; the negative dose of another one is an error, not a small dose."""
    table = ward()
    rows = load(table, action="dose", actions=Bins())
    table.loc[7, "dose"] = -1.0
    message = refused(lambda: cp.from_dataframe(table, like=rows))
    assert "'dose'" in message
    assert "row 7" in message


@pytest.mark.parametrize("amounts", [[2.0, 2.0, 2.0], [0.0, 0.0]])
def test_one_dose_is_no_choice(amounts: list[float]) -> None:
    assert "'dose' has one dose only" in refused(lambda: Bins().fit("dose", np.array(amounts)))


def test_none_and_one_dose_are_two_bins() -> None:
    column = Bins().fit("dose", np.array([0.0, 2.0, 2.0]))
    assert column.doses == (0.0, 2.0)
    assert column.codes(np.array([2.0, 0.0])).tolist() == [1, 0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"count": 1},
        {"count": 1001},
        {"count": 2.5},
        {"cuts": (2.0, 1.0)},
        {"cuts": (1.0, 1.0)},
        {"cuts": (float("nan"),)},
        {"cuts": (float("inf"),)},
        {"cuts": ("a",)},
    ],
    ids=str,
)
def test_bins_that_are_none(wrong: dict[str, Any]) -> None:
    refused(lambda: Bins(**wrong))


def test_two_columns_make_a_product_in_the_order_of_the_columns() -> None:
    table = ward()
    rows = load(table, action=["dose", "fluid"], actions=Bins(count=5))
    first, second = rows.schema.doses
    assert rows.actions.count == 25
    assert rows.action_names == ("dose", "fluid")
    assert rows.actions.values == tuple((a, b) for a in first.doses for b in second.doses)
    given = table[table["died"] | (table["hour"] < 20)]  # Other last rows are dropped.
    codes = 5 * first.codes(given["dose"].to_numpy()) + second.codes(given["fluid"].to_numpy())
    assert rows.action_index.tolist() == codes.tolist()
    assert len(set(codes.tolist())) > 20
    assert rows.schema.choices()[7] == {"dose": first.doses[1], "fluid": second.doses[2]}
    assert rows.schema.plain_labels()[7] == f"dose {first.doses[1]:g}, fluid {second.doses[2]:g}"


def test_each_column_has_the_bins_that_name_it() -> None:
    rows = load(action=["dose", "fluid"], actions=[Bins("fluid", cuts=(1.0,)), Bins(count=3)])
    assert [column.count for column in rows.schema.doses] == [3, 3]
    assert rows.schema.doses[1].cuts == (1.0,)
    assert "'volume', which is not an action column" in refused(lambda: load(actions=Bins("volume")))


@pytest.mark.filterwarnings("ignore:column .* times those of the others")
def test_held_out_subjects_do_not_move_the_cuts() -> None:
    table, how = ward(), {"action": ["dose", "fluid"], "actions": Bins(), "held_out": 0.25, "seed": 3}
    rows = load(table, **how)
    kept, aside = rows.split(0.25, 3)
    whose = {rows.subject_names[i] for i in aside.subject.unique().tolist()}
    assert len(whose) == 6
    for subjects, same in ((whose, True), ({rows.subject_names[int(kept.subject[0])]}, False)):
        changed = table.copy()
        changed.loc[changed["id"].isin(subjects), ["dose", "fluid"]] *= 100
        assert (load(changed, **how).schema.doses == rows.schema.doses) == same


def test_words_and_amounts_make_a_product() -> None:
    table = ward()
    table["dose"] = np.where(table["dose"] > 1, 2.5, 0.5)
    rows = load(table, action=["drug", "dose"])
    assert rows.action_names == ("drug=iron", "drug=none", "drug=salt", "dose")
    assert rows.actions.count == 6
    assert rows.actions.values[3] == (0.0, 1.0, 0.0, 2.5)
    assert rows.schema.choices()[3] == {"drug": "none", "dose": 2.5}
    given = table[table["died"] | (table["hour"] < 20)]
    expected = 2 * given["drug"].map({"iron": 0, "none": 1, "salt": 2}) + (given["dose"] == 2.5)
    assert rows.action_index.tolist() == expected.tolist()
    many = refused(lambda: load(action=["drug", "dose"]))
    assert "different doses beside a column of labels or bins; cut it into bins" in many
    assert load(action=["drug", "dose"], actions=Bins(count=3)).actions.count == 9


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_ordered_categories_keep_their_order(kind: str) -> None:
    levels, table = ["none", "salt", "iron"], ward()
    if kind == "pandas":
        table["drug"] = pd.Categorical(table["drug"], levels, ordered=True)
    else:
        table = pl.DataFrame(table.to_dict("list")).with_columns(pl.col("drug").cast(pl.Enum(levels)))
    rows = load(table)
    assert rows.schema.labels() == levels
    assert rows.actions == Discrete.of([0, 1, 2]), "an order is one number, not one column a level"
    assert rows.action_names == ("drug",)
    first = [levels.index(drug) for drug in list(table["drug"])[:3]]
    assert rows.action[:3, 0].tolist() == first


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"action": ["drug", "dose"], "labels": ["iron", "none", "salt"]}, "labels name the actions of one column"),
        ({"action": "dose", "actions": [Bins(), 3]}, "actions"),
        ({"action": ["drug", "dose"], "actions": Discrete.of([0, 1])}, "holds labels"),
        ({"labels": ["iron", "none", "none"]}, "one is named twice"),
        ({"action": ["dose", "fluid"], "actions": Bins(count=40)}, "are too many to learn from; use fewer Bins"),
    ],
)
def test_actions_that_contradict_themselves(how: dict[str, Any], words: str) -> None:
    assert words in refused(lambda: load(ward(200), **how))


def test_many_doses_warn_and_are_refused_before_a_model_is_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, notes = noted(state="lactate", action="dose")
    assert isinstance(rows.actions, Box)
    assert any("D3QN and its kin choose from a list; cut the doses into bins" in note for note in notes)
    assert "no list of actions; cut the doses into Bins" in refused(rows.schema.choices)

    def fit_many(*given: object) -> None:
        raise AssertionError("a model was fitted for nothing")

    monkeypatch.setattr(cp.DensitySCM, "fit_many", fit_many)
    assert "the doses are continuous; cut them" in refused(lambda: cp.CTRLg().fit(rows, Pays(rows.actions)))
    binned = load(state="lactate", action="dose", actions=Bins())
    with pytest.raises(AssertionError, match="for nothing"):
        cp.CTRLg().fit(binned, Pays(binned.actions))


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "make",
    [
        lambda: Discrete.of([0, 1, 0]),
        lambda: Discrete.of([0, 1e-7]),
        lambda: Discrete(((0.0, 5.0), (1e-6, 0.0), (2e-6, 5.0))),
        lambda: Discrete.of([0, NAN]),
        lambda: Discrete.of([0, INF]),
        lambda: Discrete.of([0, 1e39]),
        lambda: Discrete.of([]),
        lambda: Discrete(()),
        lambda: Discrete(((),)),
        lambda: Discrete(((0.0, 1.0), (2.0,))),
        lambda: Discrete.of(["low", "high"]),
        lambda: Discrete.of([None]),
        lambda: Discrete.one_hot(0),
        lambda: Discrete.one_hot(2.5),
        lambda: Box((1.0,), (0.0,)),
        lambda: Box((0.0, 1.0), (1.0, 0.0)),
        lambda: Box((0.0,), (1.0, 2.0)),
        lambda: Box((), ()),
        lambda: Box((NAN,), (1.0,)),
        lambda: Box((0.0,), (INF,)),
        lambda: Box(("a",), (1.0,)),
    ],
)
def test_spaces_that_are_none(make: Any) -> None:
    refused(make)


def test_a_space_is_one_but_for_rounding() -> None:
    from counterpoint.data.spaces import same_space

    one = Discrete.of([0, 0.1])
    assert same_space(one, Discrete.of([0, float(np.float32(0.1))]))
    for other in (Discrete.of([0.1, 0]), Discrete.of([0, 0.2]), Discrete.of([0, 0.1, 0.2]), Box((0.0,), (0.1,))):
        assert not same_space(one, other)
    assert not same_space(Box((0.0,), (1.0,)), Box((0.0,), (2.0,)))
    assert same_space(Box((0.0,), (1.0,)), Box((0.0,), (1.0 + 1e-7,)))


def test_a_column_knows_the_few_doses_it_was_given_and_no_other() -> None:
    column = ActionColumn("dose", doses=(0.0, 0.1, 5.0))
    assert column.codes(np.array([5.0, float(np.float32(0.1)), 0.2])).tolist() == [2, 1, -1]
    table = ward()
    table["dose"] = np.where(table["dose"] > 1, 2.5, 0.5)
    rows = load(table, action=["drug", "dose"])
    table.loc[3, "dose"] = 1.0
    message = refused(lambda: cp.from_dataframe(table, like=rows))
    assert "column 'dose' has a dose at row 3 that is none of the known ones (1 such rows)" in message


def test_a_dose_of_a_bin_is_shown_with_its_range() -> None:
    given = np.concatenate([np.zeros(30), np.linspace(0.1, 0.69, 90), np.geomspace(0.7, 25, 30)])
    column = Bins(count=5).fit("dose", given)
    assert column.spans[0] == (0.0, 0.0)
    assert column.spans[-1] == (pytest.approx(0.7), pytest.approx(25.0))
    assert column.in_words(0) == "0"
    assert column.in_words(4).endswith(" (0.7–25)")
    assert ActionColumn("dose", doses=(0.0, 0.1, 5.0)).in_words(1) == "0.1"


def test_a_bin_of_doses_that_differ_more_than_threefold_is_noted_with_better_cuts() -> None:
    given = np.concatenate([np.zeros(30), np.linspace(0.1, 0.69, 90), np.geomspace(0.7, 25, 30)])
    column = Bins(count=5).fit("dose", given)
    (note,) = column.wide()
    assert note.startswith("1 bin stands for doses of 'dose' that differ more than 3-fold")
    cuts = tuple(map(float, note.rpartition("=")[2].split(",")))
    finer = Bins("dose", cuts=cuts).fit("dose", given)
    assert finer.wide() == []
    assert finer.count > column.count


def test_the_lowest_bin_of_given_doses_is_noted_too_unless_it_begins_at_zero() -> None:
    low, high = [0.1, 0.2, 0.4], [1.0, 1.5, 2.0]
    (note,) = Bins("dose", cuts=(1.0,)).fit("dose", np.array([0.0, *low, *high])).wide()
    assert note.startswith("1 bin stands for doses of 'dose'")
    assert note.endswith("--bins dose=0.2,1")
    assert Bins("dose", cuts=(1.0,)).fit("dose", np.array([0.2, 0.4, *high])).wide() == []
    assert Bins("dose", cuts=(1.0,), zero=False).fit("dose", np.array([0.0, *low, *high])).wide() == []


def test_labels_have_ranges_and_a_question_may_leave_them_away() -> None:
    rows = load(ward(), action="dose", actions=Bins())
    plain, ranged = rows.schema.plain_labels(), rows.schema.labels()
    assert ranged[1].startswith(f"{plain[1]} (")
    assert "–" in ranged[1]
    for labels in (plain, ranged):
        assert _by_label([labels[1]], rows.schema).tolist() == [pytest.approx(rows.actions.values[1])]
