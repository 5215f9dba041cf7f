"""Roles of columns in a user's table: cyclic columns, recursions, doses on board, running sums, signs and scales."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import counterpoint as cp
from counterpoint.cli.column_flags import Columns
from counterpoint.data.tables.made_columns import Rows, fit_recursion
from counterpoint.data.tables.new_subjects import read_history, read_patients
from counterpoint.data.tables.reading import read_table

STEP = 0.5
HALF_LIFE = 1.5
KEPT = 0.5 ** (STEP / HALF_LIFE)
ROLES: dict[str, Any] = {
    "subject": "id", "time": "t", "state": ["marker", "meal", "weight", "hour", "iob"], "action": "dose",
    "reward": "gain", "last": "truncate",
}  # fmt: skip


def clinic(subjects: int = 6, rows: int = 24) -> pd.DataFrame:
    """Subjects with meals, an hour of the day, and insulin on board that decays by a fifth each step."""
    random = np.random.default_rng(0)
    records = []
    for subject in range(subjects):
        marker, iob, weight, start = 100.0, 0.0, round(50 + 40 * random.random(), 1), random.integers(24)
        for t in range(rows):
            meal = float(random.random() < 0.3) * random.integers(10, 60)
            dose = round(random.uniform(0, 2), 2)
            hour = (start + STEP * t) % 24
            records.append((f"p{subject}", STEP * t, marker, meal, weight, hour, iob, dose, -abs(marker - 100)))
            iob = 0.8 * (iob + dose) + 0.01 * meal
            marker += 0.2 * meal - 3 * dose + random.standard_normal()
    return pd.DataFrame(records, columns=["id", "t", "marker", "meal", "weight", "hour", "iob", "dose", "gain"])


TABLE: Any = clinic()


def read(table: Any = TABLE, **roles: Any) -> cp.Transitions:
    choices: dict[str, Any] = {**ROLES, **roles}
    with pytest.warns(cp.CounterpointWarning):
        return cp.from_dataframe(table, **choices)


def board_of(table: Any, kept: float = KEPT, column: str = "dose") -> np.ndarray:
    """The amount on board in every row but the last of each subject, row by row."""
    amounts = []
    for _, record in table.groupby("id"):
        board = 0.0
        for dose in record[column].to_numpy()[:-1]:
            amounts.append(board)
            board = kept * (board + dose)
    return np.array(amounts)


def column(rows: cp.Transitions, name: str) -> torch.Tensor:
    return rows.state[:, rows.state_names.index(name)]


def test_a_clock_becomes_a_cosine_and_a_sine_that_turn_by_one_angle() -> None:
    rows = read(cyclic={"hour": 24}, exogenous=["meal", "hour"])
    assert rows.state_names == ("marker", "meal", "weight", "hour_cos", "hour_sin", "iob")
    known = rows.schema.knowledge
    assert known.circles == (("hour_cos", "hour_sin"),)
    assert known.recursion_columns == ("hour_cos", "hour_sin")
    assert known.exogenous == ("meal",), "a clock is computed and needs no law"
    hours = torch.tensor(TABLE.groupby("id")["hour"].apply(lambda hour: hour.iloc[:-1]).to_numpy())
    torch.testing.assert_close(column(rows, "hour_cos").double(), (2 * torch.pi * hours / 24).cos(), atol=1e-6, rtol=0)
    torch.testing.assert_close(column(rows, "hour_sin").double(), (2 * torch.pi * hours / 24).sin(), atol=1e-6, rtol=0)
    six = torch.tensor([[100.0, 0.0, 70.0, 0.0, 1.0, 0.0]])
    later = rows.schema.held(torch.zeros(1, 6), six, torch.ones(1, 1))[0, 3:5]
    angle = torch.tensor(2 * torch.pi * 6.5 / 24)
    torch.testing.assert_close(later, torch.stack([angle.cos(), angle.sin()]), msg="half an hour after six")
    assert rows.schema.autonomous == (1, 2, 3, 4)


def test_an_angle_that_does_not_advance_evenly_is_learned_on_its_circle() -> None:
    table = TABLE.assign(hour=np.random.default_rng(1).uniform(0, 24, len(TABLE)))
    with pytest.warns(cp.CounterpointWarning) as notes:
        rows = cp.from_dataframe(table, **ROLES, cyclic={"hour": 24}, exogenous=["hour"])
    assert any("'hour' does not advance by the same amount in every row" in str(note.message) for note in notes)
    assert rows.schema.knowledge.recursions == ()
    assert rows.schema.knowledge.circles == (("hour_cos", "hour_sin"),)
    assert rows.schema.knowledge.exogenous == ("hour_cos", "hour_sin")


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        ({"cyclic": {"hour": 12}}, "'hour' is declared cyclic with period 12 and lies outside 0 to 12 in"),
        ({"cyclic": {"month": 12}}, "cyclic names 'month', which is not a state column"),
        ({"cyclic": {"hour": 24}, "categorical": ["hour"]}, "'hour' is cyclic and becomes its cosine and sine"),
        ({"cyclic": {"hour": 24}, "recursion": "hour"}, "'hour' is cyclic and becomes its cosine and sine"),
        ({"recursion": "marker"}, r"'marker' is no linear recursion of its own value.* leave \d+% of its change"),
        ({"recursion": "iob"}, "'iob' is no linear recursion"),  # It depends on meals, which are not declared.
        ({"recursion": "weight"}, "'weight' never changes, so it follows no recursion"),
        ({"recursion": "dose"}, "recursion names 'dose', which is not a state column"),
        ({"on_board": {"dose": "6h"}}, "the half-life of 'dose', 6h is not a length of time here; give a number"),
        ({"on_board": {"dose": 0}}, "the half-life of 'dose', 0 is not a length of time here"),
        ({"on_board": {"drug": 3}}, "on_board names 'drug', which is neither a dose nor a number of the state"),
        ({"running_sum": {"dose": 0.75}}, "the running sum of 'dose' over 0.75 is one of 1.5 steps"),
        ({"running_sum": {"dose": 30}}, "is one of 60 steps, and 1 to 24 whole steps can be exact"),
        ({"exogenous": "iob", "recursion": "iob"}, "'iob' is both exogenous and a recursion"),
        ({"per": {"dose": "marker"}}, "'marker' scales an action and is not constant within subjects"),
        ({"per": {"dose": "meal"}}, "'meal' scales an action and is not constant within subjects"),
        ({"sign": {("dose", "meal"): 1}, "exogenous": "meal"}, "a sign is declared for 'meal', which is exogenous"),
        ({"sign": {("drug", "marker"): 1}}, "a sign is declared of 'drug', which is not an action column"),
    ],
)
def test_roles_that_contradict_the_data_are_refused(roles: dict[str, Any], message: str) -> None:
    with pytest.raises(cp.CounterpointError, match=message):
        cp.from_dataframe(TABLE, **ROLES, **roles)


def test_the_weights_of_a_recursion_are_learned_from_training_rows() -> None:
    rows = read(recursion="iob", exogenous="meal")
    (recursion,) = rows.schema.knowledge.recursions
    weights = dict(recursion.weights)
    assert weights == {name: pytest.approx(value, abs=1e-4) for name, value in
                       {"iob": 0.8, "dose": 0.8, "meal": 0.01}.items()}  # fmt: skip
    assert recursion.constant == 0
    held = rows.schema.held(torch.full_like(rows.next_state, 7.0), rows.state, rows.action)
    place = rows.state_names.index("iob")
    torch.testing.assert_close(held[:, place], rows.next_state[:, place], atol=1e-3, rtol=0)
    table = TABLE.copy()
    table["eaten"] = table.groupby("id")["meal"].transform(lambda meal: meal.ewm(alpha=0.5, adjust=False).mean())
    later = read(table, state=["marker", "meal", "eaten"], recursion="eaten", exogenous="meal")
    weights = dict(later.schema.knowledge.recursions[0].weights)
    assert weights == {"eaten": pytest.approx(0.5, abs=1e-4), "next meal": pytest.approx(0.5, abs=1e-4)}


def test_held_out_subjects_teach_no_recursion() -> None:
    x = np.random.default_rng(0).normal(size=(40, 1))
    training = np.arange(40) < 20
    after = np.where(training[:, None], 0.5 * x, 2 * x)
    learned = fit_recursion("x", Rows(("x",), (), x, np.zeros((40, 0)), after, training), ())
    assert dict(learned.weights) == {"x": pytest.approx(0.5)}
    rows, notes = read_table(TABLE, read(recursion="iob", exogenous="meal").layout, 0.3, 1)  # pyright: ignore[reportArgumentType]
    assert rows.schema.learned_with == (0.3, 1)
    assert any("column 'iob' is computed: next iob = 0.8·iob + 0.8·dose + 0.01·meal" in note for note in notes)


def test_doses_on_board_are_computed_row_by_row() -> None:
    rows = read(on_board={"dose": HALF_LIFE, "meal": STEP})
    assert rows.state_names[-2:] == ("dose_on_board", "meal_on_board")
    np.testing.assert_allclose(column(rows, "dose_on_board"), board_of(TABLE), rtol=1e-5)
    np.testing.assert_allclose(column(rows, "meal_on_board"), board_of(TABLE, 0.5, "meal"), rtol=1e-5)
    assert not column(rows, "dose_on_board")[rows.step == 0].any()
    held = rows.schema.held(torch.full_like(rows.next_state, 7.0), rows.state, rows.action)
    torch.testing.assert_close(held[:, -2:], rows.next_state[:, -2:])
    twice = rows.schema.held(torch.full_like(rows.next_state, 7.0), rows.state, 2 * rows.action)
    torch.testing.assert_close(twice[:, -2] - held[:, -2], KEPT * rows.action[:, 0])


def test_half_lives_have_a_unit_where_the_clock_holds_dates() -> None:
    dates = TABLE.assign(t=pd.Timestamp("2024-03-01") + pd.to_timedelta(TABLE["t"], unit="h"))
    rows = read(dates, on_board={"dose": "90min"}, running_sum={"dose": "1h"})
    np.testing.assert_allclose(column(rows, "dose_on_board"), board_of(TABLE), rtol=1e-5)
    with pytest.raises(cp.CounterpointError, match="of 'dose', 6 is not a length of time here; give a duration"):
        cp.from_dataframe(dates, **ROLES, on_board={"dose": 6})


def test_doses_decay_through_a_gap_and_leave_a_new_record_empty() -> None:
    """The dose of the last row before the gap counts, although that row is no transition."""
    table = TABLE[~((TABLE["t"] > 3) & (TABLE["t"] < 5))].reset_index(drop=True)
    rows = read(table, on_board={"dose": HALF_LIFE}, running_sum={"dose": 1}, gaps="cut")
    record = table[table["id"] == "p0"].reset_index(drop=True)
    before = record[record["t"] == 3].index[0]
    board = 0.0
    for dose in record["dose"].to_numpy()[:before]:
        board = KEPT * (board + dose)
    steps = 2 / STEP
    expected = KEPT**steps * (board + record["dose"][before])
    first = (rows.subject == 0) & (rows.episode == 1) & (rows.step == 0)
    assert column(rows, "dose_on_board")[first].item() == pytest.approx(expected, rel=1e-5)
    assert column(rows, "dose_sum")[first].item() == 0
    bridged = read(table, on_board={"dose": HALF_LIFE}, gaps="bridge")
    np.testing.assert_allclose(column(bridged, "dose_on_board"), board_of(table), rtol=1e-5)


def test_running_sums_keep_the_doses_of_their_window() -> None:
    rows = read(running_sum={"dose": 3 * STEP, "meal": STEP})
    assert rows.state_names[-4:] == ("dose_sum", "dose_1_ago", "dose_2_ago", "meal_sum")
    before = TABLE.groupby("id")["dose"].transform(
        lambda dose: dose.rolling(3, min_periods=1).sum().shift(fill_value=0)
    )
    kept = TABLE["t"] < TABLE["t"].max()
    np.testing.assert_allclose(column(rows, "dose_sum"), before[kept], atol=1e-5)
    held = rows.schema.held(torch.full_like(rows.next_state, 7.0), rows.state, rows.action)
    torch.testing.assert_close(held[:, -4:], rows.next_state[:, -4:])
    with pytest.raises(cp.CounterpointError, match="keeps its earlier doses, as lags=2 does"):
        Columns(**FLAGS, running_sum=("dose:1.5",), lags=2).layout()


def test_bins_have_their_own_dose_on_board() -> None:
    """What is on board is made of the doses that a policy can choose, so that imagined steps are exact."""
    rows = cp.from_dataframe(TABLE, **ROLES, actions=cp.Bins(count=3), on_board={"dose": HALF_LIFE})
    inner = rows.step > 0
    before = torch.nonzero(inner)[:, 0] - 1
    expected = KEPT * (column(rows, "dose_on_board")[before] + rows.action[before, 0])
    torch.testing.assert_close(column(rows, "dose_on_board")[inner], expected)


def test_next_states_of_the_table_get_made_columns_too() -> None:
    table = TABLE.copy()
    for name in ("marker", "hour"):
        table[f"{name}_next"] = table.groupby("id")[name].shift(-1)
    table = table.dropna()
    rows = read(
        table, state=["marker", "hour"], next_state=["marker_next", "hour_next"], cyclic={"hour": 24},
        on_board={"dose": HALF_LIFE},
    )  # fmt: skip
    assert rows.state_names == ("marker", "hour_cos", "hour_sin", "dose_on_board")
    expected = KEPT * (rows.state[:, 3] + rows.action[:, 0])
    torch.testing.assert_close(rows.next_state[:, 3], expected)
    whole = read(state=["marker", "hour"], cyclic={"hour": 24}, on_board={"dose": HALF_LIFE})
    torch.testing.assert_close(rows.next_state[:, 1:3], whole.next_state[:, 1:3])


MADE: dict[str, Any] = {
    "cyclic": {"hour": 24}, "on_board": {"dose": HALF_LIFE}, "running_sum": {"dose": 1}, "recursion": "iob",
    "exogenous": "meal",
}  # fmt: skip


def test_new_subjects_give_the_original_columns() -> None:
    rows = read(**MADE)
    assert rows.layout is not None
    record = TABLE[TABLE["id"] == "p1"].iloc[:10]
    logged = rows[rows.subject == 1]
    history = read_history(record.assign(dose=record["dose"].where(record["t"] < 4.5)), rows.schema, rows.layout)
    torch.testing.assert_close(history.rows.state, logged.state[:9])
    torch.testing.assert_close(history.now.state[0], logged.state[9])
    torch.testing.assert_close(read_patients(record, rows.schema, rows.layout).state[0], logged.state[9])
    alike = read_table(TABLE, rows.layout, like=rows.schema).rows
    torch.testing.assert_close(alike.state, rows.state)
    with pytest.raises(cp.CounterpointError, match="column 'dose' is not in the table"):
        read_patients(record.drop(columns="dose"), rows.schema, rows.layout)


def test_a_table_with_made_columns_is_written_and_read(tmp_path: Path) -> None:
    rows = read(**MADE, sign={("dose", "marker"): -1}, per={"dose": "weight"})
    cp.write(rows, tmp_path / "rows.parquet")
    back = cp.read(tmp_path / "rows.parquet")
    assert back.schema == rows.schema
    assert back.layout == rows.layout


FLAGS: dict[str, Any] = {
    "subject": "id", "time": "t", "state": ("marker", "meal", "weight", "hour", "iob"), "action": ("dose",),
    "reward": "gain", "last": "truncate",
}  # fmt: skip


def test_the_command_line_declares_the_same_roles() -> None:
    flags = Columns(
        **FLAGS, exogenous=("meal",), cyclic=("hour=24",), recursion=("iob",), on_board=("dose:1.5",),
        running_sum=("dose:1",), sign=("dose:marker=-",), per=("dose:weight",),
    )  # fmt: skip
    rows = read(**MADE, sign={("dose", "marker"): -1}, per={"dose": "weight"})
    assert rows.layout is not None
    assert flags.layout() == replace(rows.layout, step="", dates=None)
    assert rows.schema.knowledge.signs == (("dose", "marker", -1),)
    assert rows.schema.knowledge.per == (("dose", "weight"),)


@pytest.mark.parametrize(
    "flags",
    [
        {"cyclic": ("hour",)}, {"cyclic": ("=24",)}, {"on_board": ("dose",)}, {"running_sum": ("dose:",)},
        {"sign": ("dose:marker",)}, {"sign": ("dose=+",)}, {"sign": ("dose:marker=1",)}, {"per": ("dose",)},
    ],
)  # fmt: skip
def test_flags_that_are_not_understood_are_refused(flags: dict[str, Any]) -> None:
    with pytest.raises(cp.CounterpointError, match=r"is not understood; give|names no column"):
        Columns(**FLAGS, **flags).layout()


def test_roles_of_a_table_that_counterpoint_wrote(tmp_path: Path) -> None:
    cp.write(read(), tmp_path / "rows.parquet")
    stated = Columns(exogenous=("meal",), per=("dose:weight",)).read(tmp_path / "rows.parquet", 0.0, 0)
    assert stated.schema.exogenous == (1,)
    assert stated.schema.knowledge.per == (("dose", "weight"),)
    with pytest.raises(cp.CounterpointError, match="--cyclic makes columns while a table is read"):
        Columns(cyclic=("hour=24",)).read(tmp_path / "rows.parquet", 0.0, 0)
