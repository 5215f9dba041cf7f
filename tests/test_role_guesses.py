"""`check` guesses the roles that rows show, and asks about those that only the user knows."""

import tomllib
from typing import Any

import numpy as np
import pandas as pd
import pytest

import counterpoint as cp
from counterpoint.cli.column_flags import Columns
from counterpoint.data.tables.reading import read_table
from helpers.tables import ward

ROLES: dict[str, Any] = {"subject": "id", "time": "t", "action": "dose", "reward": "reward"}


def clinic(subjects: int = 24, rows: int = 30) -> pd.DataFrame:
    random = np.random.default_rng(0)
    records = []
    for subject in range(subjects):
        marker, iob, weight, start = 100.0, 0.0, round(50 + 40 * random.random(), 1), random.integers(24)
        for t in range(rows):
            meal = float(random.random() < 0.3) * random.integers(10, 60)
            dose = float(random.integers(0, 4))
            seen = float(np.clip(marker, 85, 110))
            records.append((subject, t, seen, meal, weight, (start + t) % 24, iob, 30 + t, dose, -abs(marker - 100)))
            iob = 0.8 * iob + dose
            marker = 100 + 0.8 * (marker - 100) + 0.2 * meal - 3 * dose + 8 * random.standard_normal()
    names = ["id", "t", "marker", "meal", "weight", "phase", "iob", "age", "dose", "reward"]
    return pd.DataFrame(records, columns=names)


TABLE = clinic()
STATE = ["marker", "meal", "weight", "phase", "iob", "age"]


def test_roles_that_the_rows_show_are_suggested_with_reasons() -> None:
    found = cp.check(TABLE, **ROLES, state=STATE)
    assert {name: found.choices[name] for name in ("cyclic", "recursion", "bounds")} == {
        "cyclic": ["phase=24"],
        "recursion": ["iob", "age"],
        "bounds": ["marker=85,110"],
    }
    assert found.trial.error == ""
    assert found.trial.states == len(STATE) + 1
    page = found.page()
    assert "- 'phase' advances by 1 in every row and begins again after 24: --cyclic phase=24" in page
    assert "- in every row next iob = 0.8·iob + 1·dose: --recursion iob" in page
    assert "values of 'marker' pile up at 85 and 110" in page
    assert "cyclic={'phase': 24.0}, knowledge=cp.Knowledge(bounds=(('marker', 85.0, 110.0),))" in found.call()
    table = tomllib.loads(found.study())["table"]
    assert table == found.choices
    flags: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in table.items()}
    rows = read_table(TABLE, Columns(**flags).layout()).rows
    assert rows.schema.knowledge.recursion_columns == ("phase_cos", "phase_sin", "iob", "age")
    assert len(read_table(TABLE, Columns(**flags).layout(), like=rows.schema).rows) == len(rows)


def test_what_only_the_user_knows_is_a_question() -> None:
    found = cp.check(TABLE, **ROLES, state=STATE)
    assert [(question.setting, question.word) for question in found.questions] == [
        ("exogenous", "meal"),
        ("per", "dose:weight"),
    ]
    assert not {"exogenous", "per"} & {*found.choices}
    assert "A question: no action seems to change 'meal'; declare it if none can: --exogenous meal" in found.page()
    assert '# exogenous = ["meal"]' in found.study()
    caused = TABLE.assign(meal=TABLE["meal"] + TABLE.groupby("id")["dose"].shift(fill_value=0))
    assert "exogenous" not in [question.setting for question in cp.check(caused, **ROLES, state=STATE).questions]


@pytest.mark.parametrize(
    "change",
    [
        {"phase": lambda table: np.random.default_rng(1).integers(0, 24, len(table))},
        {"phase": lambda table: table["phase"].where(table.index % 50 > 0, 3)},  # Some rows jump.
        {"phase": lambda table: table["t"] % 2},
        {"iob": lambda table: table["iob"] + np.random.default_rng(1).normal(0, 0.1, len(table))},
        {"iob": lambda table: table["iob"] * (1 + table["id"] % 2)},  # Another recursion in half of the subjects.
        {"age": lambda table: np.random.default_rng(1).normal(size=len(table))},
        {"marker": lambda table: np.random.default_rng(1).normal(100, 10, len(table)).round()},
        {"marker": lambda table: np.random.default_rng(1).exponential(10, len(table)).round(1).clip(3)},  # No ceiling.
    ],
)
def test_no_role_is_guessed_that_the_rows_do_not_show(change: dict[str, Any]) -> None:
    name = next(iter(change))
    table = TABLE.assign(**change)
    found = cp.check(table, **ROLES, state=STATE)
    assert name not in [guess.column for guess in found.guesses]
    assert found.trial.error == ""


def test_bins_hide_the_doses_that_a_recursion_is_made_of() -> None:
    continuous = TABLE.assign(dose=TABLE["dose"] + np.random.default_rng(2).uniform(0, 0.5, len(TABLE)).round(3))
    continuous["iob"] = 0.0
    for rows in continuous.groupby("id").groups.values():
        board = 0.0
        for row in rows:
            continuous.loc[row, "iob"] = board
            board = 0.8 * board + continuous.loc[row, "dose"]  # pyright: ignore[reportOperatorIssue]
    found = cp.check(continuous, **ROLES, state=STATE)
    assert "bins" in found.choices
    assert "iob" not in found.choices["recursion"]


def test_a_sensor_with_a_floor_alone_is_a_question() -> None:
    table = TABLE.assign(marker=np.random.default_rng(1).normal(100, 10, len(TABLE)).round(1).clip(90))
    found = cp.check(table, **ROLES, state=STATE)
    assert "bounds" not in found.choices
    assert ("bounds", "marker=90,HIGHEST") in [(question.setting, question.word) for question in found.questions]


def test_a_plain_table_has_no_roles_to_declare() -> None:
    found = cp.check(ward())
    assert found.guesses == found.questions == ()
    assert "Roles of columns" not in found.page()
