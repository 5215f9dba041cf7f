"""Numbers that mean something else than they say are named: units, codes, values apart, pile-ups."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from counterpoint.core.errors import CounterpointWarning
from counterpoint.data.tables.dataframe import from_dataframe
from counterpoint.data.tables.inspection import check
from counterpoint.data.tables.odd_values import odd_rewards, odd_values

SUBJECTS, HOURS = 40, 8
WHOSE = np.repeat(np.arange(SUBJECTS), HOURS)
RNG = np.random.default_rng(0)
CREATININE = np.exp(0.3 * RNG.normal(size=len(WHOSE)) + 0.3 * RNG.normal(size=SUBJECTS)[WHOSE])
DOSE = np.where(RNG.random(len(WHOSE)) < 0.25, 0.0, 9 * np.exp(0.6 * RNG.normal(size=len(WHOSE))))


def one(name: str, values: np.ndarray, dose: bool = False) -> str:
    """The one note."""
    (note,) = odd_values(name, values, WHOSE, dose)
    return note


@pytest.mark.parametrize("factor", [1000.0, 0.001, 88.42])
def test_a_third_of_the_subjects_in_another_unit(factor: float) -> None:
    third = WHOSE % 3 == 0
    for name, values in (("dose_mg", DOSE), ("creatinine", CREATININE)):
        note = one(name, np.where(third, values * factor, values), dose=name == "dose_mg")
        assert note.startswith(f"column '{name}': the values of 14 of 40 subjects are about ")
        assert "as between two units" in note


def test_celsius_and_fahrenheit() -> None:
    warm = 37 + 0.5 * RNG.normal(size=len(WHOSE))
    assert "as between two units" in one("temp", np.where(WHOSE % 4 == 0, warm * 1.8 + 32, warm))


def test_rows_in_another_unit_within_subjects() -> None:
    rows = np.arange(len(WHOSE)) % 5 == 0
    assert f"{rows.sum()} of {len(WHOSE)} rows" in one("creatinine", np.where(rows, CREATININE * 100, CREATININE))


@pytest.mark.parametrize("code", [-999.0, 999.0, 9999.0, -1.0, -9.0])
def test_a_code_for_missing_values(code: float) -> None:
    values = CREATININE.copy()
    values[[3, 50, 51]] = code
    assert one("creatinine", values) == (
        f"column 'creatinine' has 3 rows with {code:g}, far from all other values, as codes for missing ones are; leave"
        " such cells empty"
    )


def test_zeros_that_stand_for_missing_values_but_not_those_of_doses() -> None:
    values = np.where(RNG.random(len(WHOSE)) < 0.1, 0.0, CREATININE)
    assert "with 0 while no other value comes near it" in one("creatinine", values)
    assert odd_values("creatinine", values, WHOSE, dose=True) == []


def test_one_value_that_is_many_times_all_others() -> None:
    values = CREATININE.copy()
    values[7] = 4000.0
    assert "has 1 row with more than 5 times the largest of all others" in one("creatinine", values)


def test_one_reward_that_is_many_times_all_others_but_not_those_of_ends() -> None:
    reward, ends = -CREATININE, np.arange(len(WHOSE)) % HOURS == HOURS - 1
    reward[ends] = np.where(RNG.random(SUBJECTS) < 0.5, -100.0, 100.0)
    assert odd_rewards("reward", reward, ends, WHOSE) == []
    reward[3] = 1e9
    (note,) = odd_rewards("reward", reward, ends, WHOSE)
    assert "column 'reward' has 1 row with more than 10 times" in note


def test_rewards_of_another_scale_in_some_subjects() -> None:
    reward = np.where(WHOSE % 3 == 0, -100 * CREATININE, -CREATININE)
    (note,) = odd_rewards("reward", reward, np.zeros(len(WHOSE), dtype=bool), WHOSE)
    assert "14 of 40 subjects" in note


def test_values_at_a_ceiling() -> None:
    values = np.minimum(CREATININE, np.quantile(CREATININE, 0.8))
    assert "20% of its rows at its highest value" in one("creatinine", values)


def test_clean_columns_of_many_shapes_have_no_note() -> None:
    rng = np.random.default_rng(1)
    whose = np.repeat(np.arange(150), 10)
    count = len(whose)
    columns = {
        "lognormal": np.exp(0.8 * rng.normal(size=count) + 0.6 * rng.normal(size=150)[whose]),
        "gamma": rng.gamma(2, 1, count),
        "around 0": rng.normal(size=count),
        "pulse": rng.normal(80, 10, count).round(),
        "temperature": rng.normal(37, 0.6, count).round(1),
        "age": rng.integers(18, 90, 150)[whose].astype(float),
        "counts": rng.poisson(3, count).astype(float),
        "hour": np.tile(np.arange(10.0), 150),
        "two levels": rng.integers(0, 2, count) * 50.0,
        "three doses": rng.choice([0.0, 5.0, 10.0], count),
        "treatment": np.where(rng.random(count) < 0.5, 0.0, rng.lognormal(0, 1, count)),
        "mostly missing": np.where(rng.random(count) < 0.995, np.nan, 1.0),
    }
    assert {name: odd_values(name, values, whose) for name, values in columns.items()} == {name: [] for name in columns}


def table() -> pd.DataFrame:
    hour = np.tile(np.arange(HOURS), SUBJECTS)
    frame = pd.DataFrame({"id": WHOSE, "hour": hour, "creatinine": CREATININE, "dose": DOSE.round() // 8})
    return frame.assign(reward=-CREATININE * (1 + RNG.random(len(WHOSE))), died=(hour == HOURS - 1).astype(int))


def test_fit_and_check_name_the_column(tmp_path: Path) -> None:
    frame = table()
    frame.loc[WHOSE % 3 == 0, "creatinine"] *= 88.42
    roles = {"subject": "id", "time": "hour", "state": ["creatinine"], "action": "dose", "reward": "reward"}
    with pytest.warns(CounterpointWarning, match=r"column 'creatinine': the values of 14 of 40 subjects"):
        from_dataframe(frame, **roles, done="died")
    found = check(frame, **roles, done="died")
    assert any("column 'creatinine': the values of 14 of 40" in note for note in found.trial.notes)
