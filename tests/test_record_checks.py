"""Doses and rewards that stand in another row than their own are named, and columns that know what comes later."""

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from counterpoint.core.errors import CounterpointWarning
from counterpoint.data.tables.dataframe import from_dataframe
from counterpoint.data.tables.record_checks import duplicated_records, leaking_columns, shifted_records
from counterpoint.data.transitions import Transitions
from counterpoint.ope.diagnostics import verdict
from reproduction.sepsis_cohort import SyntheticPatients
from test_judge import GOOD

ROLES = {"subject": "id", "time": "hour", "action": "dose", "reward": "reward", "done": "died"}


def ward(subjects: int = 80, effect: float = 0.6, choice: float = 1.0, seed: int = 0) -> pd.DataFrame:
    """Severity that a dose lowers; the sicker get more; the reward is the severity after the step, less at a death."""
    rng, rows = np.random.default_rng(seed), list[dict[str, Any]]()
    for who in range(subjects):
        severity, age, hours = rng.normal(), rng.integers(30, 90), int(rng.integers(7, 14))
        dies = rng.random() < 0.4
        for hour in range(hours):
            dose = float(np.digitize(choice * severity + rng.normal(), [-0.5, 0.7]))
            row = {"id": who, "hour": hour, "lactate": severity, "age": age, "pulse": rng.normal(80, 9), "dose": dose}
            severity = 0.8 * severity - effect * (dose - 1) + 0.4 * rng.normal()
            last = hour == hours - 1
            rows.append(row | {"reward": -severity if not last else -9.0 if dies else 5.0, "died": int(dies and last)})
    return pd.DataFrame(rows)


def moved(frame: pd.DataFrame, name: str, by: int) -> pd.DataFrame:
    """Every subject's cells some rows later."""
    return frame.assign(**{name: frame.groupby("id")[name].shift(by).fillna(0)})


def read(frame: pd.DataFrame, *more: str) -> Transitions:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return from_dataframe(frame, state=["lactate", "age", "pulse", *more], last="truncate", **ROLES)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("effect", "choice"), [(0.6, 1.0), (0.6, 0.0), (0.0, 1.0), (0.0, 0.0), (0.2, 2.0)])
def test_a_log_in_order_has_no_note(seed: int, effect: float, choice: float) -> None:
    rows = read(ward(seed=seed, effect=effect, choice=choice))
    assert [*shifted_records(rows), *leaking_columns(rows), *duplicated_records(rows)] == []


@pytest.mark.parametrize(("effect", "choice"), [(0.6, 1.0), (0.6, 0.0), (0.0, 1.0)])
@pytest.mark.parametrize(("by", "where"), [(-1, "early"), (1, "late")])
def test_doses_one_row_off_are_named(effect: float, choice: float, by: int, where: str) -> None:
    (note,) = shifted_records(read(moved(ward(200, effect, choice), "dose", by)))
    assert "the actions in 'dose'" in note
    assert f"one row too {where}" in note


def test_rewards_one_row_early_are_named() -> None:
    (note,) = shifted_records(read(moved(ward(), "reward", -1)))
    assert "the rewards in 'reward' follow from the row after theirs" in note


def test_rewards_of_ends_that_stand_one_row_early_are_named() -> None:
    frame = ward()
    frame["reward"] = np.where(frame["died"] == 1, -9.0, 0.0)
    assert shifted_records(read(frame)) == []
    (note,) = shifted_records(read(moved(frame, "reward", -1)))
    assert "stand on the row before the one that ends the record" in note


def test_rewards_of_the_own_state_alone_are_suspected_but_no_reason_against_a_verdict() -> None:
    rows = read(moved(ward(), "reward", 1))
    (note,) = shifted_records(rows)
    assert "recorded one row too late?" in note
    assert shifted_records(rows, suspected=False) == []


def total(frame: pd.DataFrame, name: str) -> pd.Series:
    return frame.groupby("id")[name].transform("sum")


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (lambda f: f.groupby("id")["hour"].transform("max") * 1.5, "the length of the record"),
        (lambda f: f.groupby("id")["died"].transform("max").map({0: "home", 1: "dead"}), "the outcome"),
        (lambda f: total(f, "dose"), "the total of 'dose'"),
        (lambda f: 10 + 2 * f["reward"], "the reward 'reward' of its own row"),
        (lambda f: f.groupby("id")["pulse"].shift(-1).fillna(f["pulse"]), "equals 'pulse' of the next row"),
    ],
)
def test_columns_that_know_the_end_the_reward_or_the_next_row_are_named(column: Any, said: str) -> None:
    frame = ward()
    note = leaking_columns(read(frame.assign(told=column(frame)), "told"))["told"]
    assert "state column 'told'" in note
    assert said in note


def test_a_value_of_the_row_before_is_no_leak() -> None:
    frame = ward()
    assert (
        leaking_columns(read(frame.assign(last_pulse=frame.groupby("id")["pulse"].shift(1).fillna(80)), "last_pulse"))
        == {}
    )


def test_records_under_two_ids_are_counted() -> None:
    frame = ward()
    copies = frame[frame["id"] < 30].assign(id=lambda f: f["id"] + 1000)
    (note,) = duplicated_records(read(pd.concat([frame, copies])))
    assert "the records of 30 subjects are another's" in note


def test_the_loader_says_so() -> None:
    with pytest.warns(CounterpointWarning, match="one row too early"):
        from_dataframe(moved(ward(), "dose", -1), state=["lactate", "age", "pulse"], last="truncate", **ROLES)


def test_the_verdict_falls_where_doses_stand_in_another_row() -> None:
    assert verdict(GOOD)[0] == "supported"
    found = verdict(replace(GOOD, shifted=("the actions in 'dose' stand too early",)))
    assert found == ("cannot be judged", ("The actions in 'dose' stand too early.",))


@pytest.mark.parametrize("seed", [0, 1])
def test_doses_that_act_over_several_rows_are_not_taken_for_shifted(seed: int) -> None:
    """In the synthetic septic ward the next state goes with the dose more than the own one, which still adds to it."""
    assert shifted_records(SyntheticPatients(300).read(seed)) == []
