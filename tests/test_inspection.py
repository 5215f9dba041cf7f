"""A table is understood before it is loaded: roles, gaps, missing values, doses, outcomes; and no patient is shown."""

import json
import tomllib
from collections.abc import Callable
from datetime import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import tyro

from counterpoint.cli.check import Check
from counterpoint.cli.column_flags import Columns
from counterpoint.core.errors import CounterpointError
from counterpoint.data.storage import write
from counterpoint.data.tables.clock import changes
from counterpoint.data.tables.dataframe import from_dataframe
from counterpoint.data.tables.inspection import ColumnFacts, Inspection, TableProblem, check, markdown
from counterpoint.data.tables.missing import carried
from counterpoint.data.tables.reading import read_table


def ward(patients: int = 30, hours: int = 6, seed: int = 0, **changes: Any) -> pd.DataFrame:
    """Patients by the hour; every third dies on the last row, the others are discharged."""
    rng, rows = np.random.default_rng(seed), patients * hours
    who, hour = np.repeat(np.arange(patients), hours), np.tile(np.arange(hours), patients)
    columns = {
        "patient_id": [f"p{i:02d}" for i in who],
        "hour": hour,
        "heart_rate": rng.normal(80, 10, rows),
        "lactate": rng.gamma(2, 1, rows),
        "sex": np.array(["F", "M"])[who % 2],
        "dose": rng.integers(0, 3, rows) / 2,
        "reward": rng.normal(size=rows),
        "died": (hour == hours - 1) & (who % 3 == 0),
        "discharged": (hour == hours - 1) & (who % 3 != 0),
    }
    return pd.DataFrame(columns | changes)


def fact(found: Inspection, name: str) -> ColumnFacts:
    return next(each for each in found.columns if each.name == name)


def problem(found: Inspection, words: str) -> TableProblem:
    """The one problem that says so."""
    (one,) = [each for each in found.problems if words in each.what]
    return one


def calm(found: Inspection, words: str) -> bool:
    return not any(words in each.what for each in found.problems)


# Roles


@pytest.mark.parametrize(("patients", "said"), [(240, True), (250, False)])
def test_too_few_subjects_for_a_verdict_are_said_before_the_work(patients: int, said: bool) -> None:
    page = check(ward(patients)).page()
    assert ("A verdict needs 50 held-out subjects; 20% of 240 are 48." in page) == said
    assert ("Too few subjects for a verdict" in page) == said


def test_what_fewer_than_fifty_subjects_allow_is_said_before_the_work() -> None:
    page = check(ward(49)).page()
    assert "the table has 49: no policy can be judged" in page
    assert "train --method practice" in page
    assert "--held-out sets more" not in page, "no split makes 50 of 49"
    assert "the table has 50" not in check(ward(50)).page()


def test_a_plain_table_has_no_problem_and_loads_as_suggested() -> None:
    found = check(ward())
    assert found.choices == {
        "subject": "patient_id",
        "time": "hour",
        "state": ["heart_rate", "lactate", "sex"],
        "action": ["dose"],
        "reward": "reward",
        "done": ["died", "discharged"],
    }
    assert found.problems == ()
    assert (found.trial.error, found.trial.rows, found.trial.episodes, found.trial.subjects) == ("", 180, 30, 30)
    assert found.trial.ends == {"died": 10, "discharged": 20}
    assert (found.trial.states, found.trial.actions, found.trial.stopped) == (3, 3, 0)


@pytest.mark.parametrize("kind", ["pandas", "polars", "csv", "tsv", "gz", "parquet"])
def test_every_kind_of_table_is_understood_alike(kind: str, tmp_path: Path) -> None:
    frame, path = ward(), tmp_path / f"t.{'csv.gz' if kind == 'gz' else kind}"
    makers: dict[str, Callable[[], Any]] = {
        "pandas": lambda: frame,
        "polars": lambda: pl.from_pandas(frame),
        "parquet": lambda: frame.to_parquet(path),
    }
    table = makers.get(kind, lambda: frame.to_csv(path, index=False, sep="\t" if kind == "tsv" else ","))()
    found, plain = check(path if table is None else table), check(frame)
    assert found.choices == plain.choices
    assert found.records == plain.records
    assert found.columns == plain.columns
    assert found.trial == plain.trial
    assert found.source == ("" if kind in ("pandas", "polars") else str(path))


def test_what_is_given_is_not_guessed() -> None:
    found = check(ward(), subject="patient_id", state=["lactate"], action="dose")
    assert found.guessed == ("time", "reward", "done")
    assert (fact(found, "lactate").role, fact(found, "lactate").guessed) == ("state", False)
    assert (fact(found, "hour").role, fact(found, "hour").guessed) == ("time", True)
    assert (fact(found, "heart_rate").role, fact(found, "heart_rate").note) == ("", "not named")
    assert found.choices["state"] == ["lactate"]


@pytest.mark.parametrize(
    ("role", "old", "name"),
    [
        *(
            ("subject", "patient_id", name)
            for name in ("id", "Patient", "subject_id", "icustayid", "stay", "PatientID", "caseno", "hadm_id")
        ),
        *(("time", "hour", name) for name in ("time", "step", "charttime", "bloc", "Date", "m:timestep")),
        *(
            ("action", "dose", name)
            for name in ("a:action", "max_dose_vaso", "IV", "drug", "treatment", "input_4hourly")
        ),
        *(("reward", "reward", name) for name in ("r", "r:reward", "Reward")),
        *(("done", "died", name) for name in ("death", "mortality", "hospital_expire_flag", "terminal", "deadFlag")),
    ],
)
def test_roles_are_guessed_by_name(role: str, old: str, name: str) -> None:
    found = check(ward().rename(columns={old: name}))
    assert name in found.choices[role]
    assert role in found.guessed


@pytest.mark.parametrize(
    "name", ["ejection_fraction", "glucose", "HR", "patient_age", "lipid", "output_total", "mechvent", "input_total"]
)
def test_states_are_not_taken_for_something_else(name: str) -> None:
    found = check(ward().rename(columns={"heart_rate": name}))
    assert found.choices["state"] == [name, "lactate", "sex"]


def test_an_id_that_never_recurs_is_nobodys() -> None:
    frame = ward(row_id=np.arange(180), id=np.arange(180) + 1000)
    found = check(frame)
    assert found.choices["subject"] == "patient_id"
    assert fact(found, "row_id").note == "numbers the rows"
    assert "platelets" in check(ward(platelets=np.arange(180) % 60)).choices["state"]
    assert fact(found, "id").note == "an id"


def test_several_stays_of_a_patient_are_episodes() -> None:
    frame = ward(subject_id=np.repeat(np.arange(15), 12), icustay_id=np.repeat(np.arange(30) + 7, 6))
    found = check(frame.drop(columns="patient_id"))
    assert (found.choices["subject"], found.choices["episode"]) == ("subject_id", "icustay_id")
    assert (found.records.subjects, found.records.episodes, found.records.duplicates) == (15, 30, 0)
    assert (found.trial.error, found.trial.episodes) == ("", 30)
    alike = check(frame.assign(subject_id=frame.icustay_id).drop(columns="patient_id"))
    assert "episode" not in alike.choices


def test_the_time_is_what_tells_rows_apart() -> None:
    admitted = np.repeat(pd.date_range("2150-01-01", periods=30).to_numpy(), 6)
    found = check(ward(admittime=admitted, hour_of_day=np.tile([0, 1, 0, 1, 0, 1], 30)))
    assert found.choices["time"] == "hour"
    assert fact(found, "admittime").note == "a date"
    clocks = check(ward(charttime=np.arange(180) * 7.5, day_of_birth=admitted), time="hour")
    assert [fact(clocks, name).note for name in ("charttime", "day_of_birth")] == ["a date", "a date"]
    unnamed = check(ward().rename(columns={"hour": "q"}))
    assert unnamed.choices["time"] == "q"


def test_the_future_is_no_state() -> None:
    late = np.repeat(np.arange(30) % 3 == 0, 6)
    found = check(ward(mortality_90d=late, discharge_delay=np.arange(180) / 7, alive=~late, next_lactate=np.ones(180)))
    assert found.choices["state"] == ["heart_rate", "lactate", "sex"]
    assert "tells how it ends" in problem(found, "'discharge_delay'").what
    assert "overlaps" in problem(found, "'mortality_90d'").what


def test_sums_that_may_hold_the_dose() -> None:
    found = check(ward(input_total=np.arange(180) / 7))
    assert found.choices["action"] == ["dose"]
    assert "know the action" in problem(found, "'input_total' may count the dose").why


@pytest.mark.parametrize("name", ["re_admission", "length_of_stay", "case", "unit", "admission", "NO"])
def test_what_only_looks_like_an_id(name: str) -> None:
    found = check(ward(patients=40).rename(columns={"patient_id": "icustayid"}).assign(**{name: np.arange(240) % 3}))
    assert found.choices["subject"] == "icustayid"
    assert name in found.choices["state"]


def test_a_general_end_beside_a_special_one() -> None:
    frame = ward(done=np.tile(np.arange(6) == 5, 30)).drop(columns="discharged")
    found = check(frame)
    assert (found.choices["done"], found.choices["last"]) == (["died"], "terminal")
    assert found.trial.ends == {"died": 10, "ended": 20}


def test_next_states_and_stops_are_found() -> None:
    frame = ward().drop(columns=["sex", "discharged"])
    frame = frame.assign(
        next_heart_rate=frame.heart_rate.shift(-1).fillna(0),
        next_lactate=frame.lactate.shift(-1).fillna(0),
        truncated=(frame.hour == 5) & ~frame.died,
    )
    found = check(frame)
    assert found.choices["next_state"] == ["next_heart_rate", "next_lactate"]
    assert found.choices["truncated"] == "truncated"
    assert (found.open_ends, found.trial.error, found.trial.rows, found.trial.stopped) == (0, "", 180, 20)


@pytest.mark.parametrize("role", ["subject", "time", "state", "action", "reward"])
def test_a_missing_role_is_named_with_its_flag(role: str) -> None:
    gone = {"subject": ["patient_id"], "time": ["hour"], "state": ["heart_rate", "lactate", "sex"], "action": ["dose"]}
    found = check(ward().drop(columns=gone.get(role, [role])).assign(note="x"))
    assert role not in found.choices
    assert problem(found, "no column").flag == f"--{role} NAME"
    assert found.trial.error
    assert f"--{role} NAME" in found.command()
    assert (found.actions.possible > 0) == (role != "action")


def test_a_wrong_name_is_one_line() -> None:
    with pytest.raises(CounterpointError, match="did you mean 'lactate'"):
        check(ward(), state=["lactat"])
    with pytest.raises(CounterpointError, match="does not name a column"):
        check(ward(), state=3)  # pyright: ignore[reportArgumentType]
    assert check(ward(), state=pd.Index(["sex"]), done=None).choices["state"] == ["sex"]  # pyright: ignore[reportArgumentType]


# Columns


def test_kinds() -> None:
    n = 180
    frame = ward(
        count=np.arange(n) % 7,
        flag=np.arange(n) % 2,
        said=np.array(["yes", "no"])[np.arange(n) % 2],
        unit=np.array(["icu", "ccu", "er"])[np.arange(n) % 3],
        when=pd.date_range("2150-01-01", periods=n, freq="h"),
        written=[f"2150-01-{1 + i % 28:02d}" for i in range(n)],
        words=[f"w{i % 60}" for i in range(n)],
        nothing=np.full(n, np.nan),
        lists=[[1]] * n,
        stray=["1.5", "2.5", "n/a"] * 60,
        huge=np.where(np.arange(n) == 3, np.inf, 1.0),
        mixed=[1, "a"] * 90,
        larger=[2**70] * n,
    )
    found = check(frame, time="hour")
    kinds = {each.name: each.kind for each in found.columns}
    wanted = {
        "heart_rate": "number", "count": "whole number", "flag": "yes/no", "said": "yes/no", "unit": "category",
        "when": "date", "written": "date", "words": "text or id", "nothing": "empty", "lists": "unreadable",
        "stray": "category", "huge": "unreadable", "mixed": "unreadable", "larger": "unreadable", "died": "yes/no",
    }  # fmt: skip
    assert {name: kinds[name] for name in wanted} == wanted
    distinct = {"heart_rate": 180, "count": 7, "flag": 2, "said": 2, "unit": 3, "when": 180, "written": 28, "words": 60}
    assert {name: fact(found, name).distinct for name in distinct} == distinct
    assert (fact(found, "nothing").missing, fact(found, "lists").missing) == (1.0, 0.0)


def test_odd_columns_are_left_out_and_said() -> None:
    found = check(ward(site="A", lists=[[1]] * 180, stray=["1.5", "2.5", "?"] * 60, thin=[1.0, *[np.nan] * 178, 2.0]))
    assert found.choices["state"] == ["heart_rate", "lactate", "sex"]
    assert (fact(found, "site").constant, fact(found, "site").note) == (True, "always the same")
    assert fact(found, "thin").note == "nearly always missing"
    assert "not a number" in problem(found, "'lists'").what
    listed = check(ward(lists=[[1]] * 180), state=["lactate", "lists"])
    assert (listed.missing.rows, "not a number" in listed.trial.error) == (0, True)
    assert "numbers as text" in problem(found, "'stray'").what
    named = check(ward(site=1.0), state=["lactate", "site"])
    assert problem(named, "'site' always the same").flag == "leave it out of --state"


def test_columns_that_say_the_same() -> None:
    frame = ward()
    frame["lactate_mg"] = frame.lactate * 9.01 + 0.2
    frame["female"] = (frame.sex == "F").astype(int)
    frame["nearly"] = frame.lactate + np.random.default_rng(1).normal(0, 0.1, 180)
    frame.loc[::4, "lactate_mg"] = np.nan
    found = check(frame)
    assert found.choices["state"] == ["heart_rate", "lactate", "sex", "nearly"]
    assert fact(found, "lactate_mg").like == "lactate"
    assert fact(found, "lactate").like == "lactate_mg"
    assert fact(found, "female").like == "sex"
    assert fact(found, "nearly").like == ""
    assert "'lactate_mg' says the same as 'lactate'" in problem(found, "'lactate_mg'").what
    both = check(frame, state=["lactate", "lactate_mg"])
    assert sum("says the same" in each.what for each in both.problems) == 2


def test_what_never_changes_within_subjects() -> None:
    frame = ward(weight=np.repeat(np.arange(30) + 0.5, 6), dull=1.0)
    frame.loc[::5, "weight"] = np.nan
    found = check(frame)
    static = {each.name for each in found.columns if each.static}
    assert static == {"patient_id", "sex", "weight"}
    assert fact(found, "weight").note == "fixed within subjects"
    assert [fact(found, name).note for name in ("heart_rate", "dose", "patient_id")] == ["", "", ""]


def test_two_coded_levels_are_a_category() -> None:
    found = check(ward(gender=np.repeat(np.arange(30) // 4 % 2 + 1, 6)))
    assert found.choices["categorical"] == ["gender"]
    assert found.trial.error == ""


def test_means_need_twenty_subjects() -> None:
    many, few = check(ward(patients=20)), check(ward(patients=19))
    values = ward(patients=20).lactate
    assert (fact(many, "lactate").mean, fact(many, "lactate").sd) == (
        float(f"{values.mean():.3g}"),
        float(f"{values.std(ddof=0):.3g}"),
    )
    assert (fact(few, "lactate").mean, fact(few, "lactate").sd) == (None, None)
    frame = ward(patients=30)
    frame.loc[frame.patient_id >= "p19", "lactate"] = np.nan
    assert fact(check(frame), "lactate").mean is None
    assert fact(check(frame), "heart_rate").mean is not None
    assert fact(check(frame), "reward").mean is None
    assert fact(check(ward(same=771.25), state=["lactate", "same"]), "same").mean is None  # It would be their value.


def test_no_patient_is_shown() -> None:
    frame = ward(patients=30)
    frame["patient_id"] = "secret" + frame.patient_id
    frame["hour"] = pd.Timestamp("1987-03-04 05:00") + pd.to_timedelta(frame.hour, unit="h")
    frame["drug"] = np.where(frame.index == 7, "secretdrug", np.where(frame.dose > 0, "some", "none"))
    frame["dose"] = np.where(frame.index == 7, 771.25, frame.dose)
    frame.loc[3, "lactate"] = 771.25
    frame["sex"] = np.where(frame.index == 11, "secretsex", frame.sex)
    frame["level"] = "secretconstant"
    frame["weight"] = 771.25
    for table in (frame, frame[frame.patient_id == "secretp01"], frame.head(1)):
        found = check(table)
        text = found.page() + json.dumps(found.to_json()) + found.study() + found.command() + found.call()
        for word in ("secret", "771.2", "1987"):
            assert word not in text.replace("secret_", ""), word


@pytest.mark.parametrize("error", [CounterpointError("the action [0.77] is outside {0.77, 1}"), KeyError("0.77")])
def test_a_refusal_shows_no_dose(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise error

    monkeypatch.setattr("counterpoint.data.tables.inspection.inspecting.read_table", refuse)
    said = check(ward()).trial.error
    assert said in ("the action […] is outside […]", "the loader failed with KeyError; please report it")


def test_continuous_cuts_of_few_subjects_are_not_shown() -> None:
    frame = ward(patients=10, hours=20)
    frame["dose"] = np.random.default_rng(0).gamma(2, 1, 200)
    found = check(frame)
    assert list(found.actions.doses[0].support) == [f"bin {i}" for i in range(5)]
    assert "cut into 5 bins" in found.page()
    assert sum(found.actions.doses[0].support.values()) == 200


# Rows and time


def test_rows_subjects_and_duplicates() -> None:
    frame = ward().drop(index=[1, 2, 3, 4, 5, 6])
    found = check(pd.concat([frame, frame.iloc[[20, 21]]]))
    records = found.records
    assert (records.rows, records.subjects, records.single, records.duplicates) == (176, 30, 1, 2)
    assert (records.rows_least, records.rows_median, records.rows_most) == (1, 6.0, 8)
    assert "have the same" in found.trial.error
    assert "loader refuses" in problem(found, "same subject and time").why
    assert problem(found, "one row only").what.startswith("1 of 30 subjects")
    assert "2 rows repeat" in found.page()


def test_a_list_of_measurements_is_recognised() -> None:
    frame = ward(hours=12, charttime=np.tile(np.arange(12) // 4, 30)).drop(columns="hour")
    assert "list of measurements" in problem(check(frame), "same subject and time").why
    assert "list of measurements" not in str(check(pd.concat([ward(), ward().head(3)])).problems)


def test_rows_of_nobody() -> None:
    frame = ward()
    frame.loc[[3, 4], "patient_id"] = None
    found = check(frame)
    assert found.records.nobody == 2
    assert problem(found, "2 rows without a value in 'patient_id'").flag == "drop them"
    assert "missing" in found.trial.error


def test_leading_zeros(tmp_path: Path) -> None:
    frame = ward(patients=4)
    frame["patient_id"] = np.repeat(["7", "007", "P07", "P7"], 6)
    frame.to_csv(tmp_path / "t.csv", index=False)
    found = check(tmp_path / "t.csv")
    assert (found.records.subjects, found.records.alike) == (4, 2)
    assert problem(found, "2 ids in 'patient_id' like another").flag == "write the ids alike"
    frame["patient_id"] = np.repeat(["7", "007", "70", "8"], 6)  # All numbers: a reader of numbers would merge two.
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert check(tmp_path / "t.csv").records.subjects == 4
    assert calm(check(ward()), "like another")


def test_gaps_and_the_step_of_dates() -> None:
    frame = ward()
    later = np.where(frame.hour >= 3, 8, 0) * (frame.patient_id < "p10")
    frame["hour"] = pd.Timestamp("2150-01-01") + pd.to_timedelta(4 * (frame.hour + later), unit="h")
    found = check(frame)
    clock = found.clock
    assert clock is not None
    assert (clock.step, clock.pairs, clock.gaps, clock.longest) == ("4h", 150, 10, 9.0)
    assert clock.irregular == pytest.approx(10 / 150)
    assert (found.choices["step"], found.choices["gaps"]) == ("4h", "cut")
    assert problem(found, "10 of 150 pairs").flag == "--gaps cut --step 4h"
    assert (found.trial.error, found.trial.episodes) == ("", 40)


@pytest.mark.parametrize(("minutes", "said"), [(1, "1min"), (90, "90min"), (60 * 24, "1D"), (0.5, "30s")])
def test_steps_as_the_loader_takes_them(minutes: float, said: str) -> None:
    frame = ward(hours=8)
    frame["hour"] = pd.Timestamp("2150-01-01") + pd.to_timedelta((frame.hour + 3 * (frame.hour > 4)) * minutes, "min")
    found = check(frame)
    assert found.choices["step"] == said
    assert found.trial.error == ""


def test_irregular_times_are_bridged_with_a_warning() -> None:
    frame = ward(hours=20)
    frame["hour"] = np.random.default_rng(0).exponential(1, len(frame)).cumsum()
    found = check(frame)
    assert found.clock is not None
    assert found.clock.irregular > 0.9
    assert found.choices["gaps"] == "bridge"
    assert "grid" in problem(found, "pairs of rows are not one step").why
    assert calm(check(ward()), "not one step")


def test_unreadable_times_are_said() -> None:
    frame = ward(hour=["soon", "later"] * 90)
    found = check(frame, time="hour")
    assert found.clock is None
    assert "no date" in problem(found, "the times in 'hour' cannot be read").why
    assert "no date" in found.trial.error


# Missing values


def test_missing_values_by_hand() -> None:
    frame = ward(patients=2, hours=6)
    frame["lactate"] = [1, np.nan, np.nan, np.nan, 2, np.nan, np.nan, np.nan, 3, np.nan, 4, 5]
    frame["heart_rate"] = [np.nan, *range(11)]
    found = check(frame)
    lactate = fact(found, "lactate")
    assert (lactate.missing, lactate.longest_run) == (7 / 12, 3)
    assert lactate.left == {"1": 4 / 12, "4": 2 / 12, "8": 2 / 12}
    assert found.missing.rows == 8 / 12
    assert found.missing.cells == pytest.approx((7 + 1) / 36)
    assert found.missing.left["1"] == pytest.approx((4 + 1) / 36)


def test_without_a_clock_rows_are_steps() -> None:
    frame = ward(patients=2, hours=6).drop(columns="hour")
    frame["lactate"] = [1, np.nan, np.nan, np.nan, 2, np.nan, np.nan, np.nan, 3, np.nan, 4, 5]
    found = check(frame)
    assert found.clock is None
    assert fact(found, "lactate").left == {"1": 4 / 12, "4": 2 / 12, "8": 2 / 12}


@pytest.mark.parametrize("seed", range(4))
def test_what_carrying_leaves_is_what_the_loader_leaves(seed: int) -> None:
    rng = np.random.default_rng(seed)
    frame = ward(patients=25, hours=12, seed=seed)
    frame["hour"] += np.cumsum(rng.random(len(frame)) < 0.2)
    frame.loc[rng.random(len(frame)) < 0.6, "lactate"] = np.nan
    found = check(frame.sample(frac=1, random_state=seed))
    subject = frame.patient_id.astype("category").cat.codes.to_numpy()
    elapsed = np.where(changes(subject), 0.0, np.diff(frame.hour, prepend=0).astype(float))
    for limit in (1, 4, 8):
        left = np.isnan(carried(frame[["lactate"]].to_numpy(), subject, elapsed, limit)).mean()
        assert fact(found, "lactate").left[str(limit)] == pytest.approx(left)


def test_missing_values_are_settled_by_flags() -> None:
    frame = ward(hours=10)
    frame.loc[np.random.default_rng(0).random(300) < 0.3, "lactate"] = np.nan
    found = check(frame)
    assert (found.choices["missing"], found.choices["carry_forward"]) == ("median", 1)
    assert problem(found, "of the rows lack a value").flag == "--missing median --carry-forward 1"
    assert problem(found, "more than a fifth").flag == "--masks lactate"
    assert found.trial.error == ""
    frame["lactate"] = np.where(
        frame.index % 10 < 5, np.nan, frame.lactate
    )  # Before the first value nothing is carried.
    assert check(frame.assign(heart_rate=np.nan, x=1.0), state=["lactate"]).choices["missing"] == "median"
    assert "missing" not in check(ward()).choices


# Actions


def test_support_of_a_few_doses() -> None:
    frame = ward()
    found = check(frame)
    (dose,) = found.actions.doses
    assert (dose.distinct, dose.bins) == (3, 0)
    assert dose.support == {f"{value:g}": int((frame.dose == value).sum()) for value in (0, 0.5, 1)}
    assert "bins" not in found.choices


def test_support_of_treatments_by_name() -> None:
    drug = np.array(["none", "a", "b"], dtype=object)[np.arange(180) % 3]
    drug[:3] = ["rare", "rarer", "rarer"]
    found = check(ward(drug=drug).drop(columns="dose"))
    (dose,) = found.actions.doses
    assert dose.support == {"fewer than 5 subjects": 3, "none": 59, "a": 59, "b": 59}
    assert (found.actions.possible, found.actions.taken, found.actions.rare) == (5, 5, 2)
    assert problem(found, "2 actions taken on fewer than 10 rows").why == "what follows them is uncertain"
    assert found.trial.actions == 5


def test_continuous_doses_are_cut() -> None:
    frame = ward(hours=20)
    frame["dose"] = np.where(frame.index % 2, 0, np.random.default_rng(0).gamma(2, 1, 600))
    found = check(frame)
    assert found.choices["bins"] == ["dose=5"]
    (dose,) = found.actions.doses
    assert dose.support["0"] == 300
    assert list(dose.support.values()) == [300, 75, 75, 75, 75]
    assert problem(found, "301 different doses in 'dose'").flag == "--bins dose=5"
    assert found.trial.actions == 5


def test_two_dose_columns_are_a_product() -> None:
    frame = ward(hours=20)
    rng = np.random.default_rng(0)
    frame["vaso_dose"] = np.where(rng.random(600) < 0.5, 0, rng.gamma(2, 1, 600))
    found = check(frame.rename(columns={"dose": "iv_dose"}))
    assert found.choices["action"] == ["iv_dose", "vaso_dose"]
    assert found.choices["bins"] == ["vaso_dose=5"]
    assert (found.actions.possible, found.actions.taken, found.trial.actions) == (15, 15, 15)
    assert sum(rows for _, rows in found.actions.support) == 600
    none = ((frame.dose == 0.5) & (frame.vaso_dose == 0)).sum()
    assert dict(found.actions.support)["0.5", "0"] == none
    assert f"{none}" in found.page()
    copy = check(frame.assign(vaso_copy_dose=frame.vaso_dose * 1000))
    assert copy.choices["action"] == ["dose", "vaso_dose"]


def test_at_most_three_treatments_are_guessed() -> None:
    rng = np.random.default_rng(0)
    found = check(ward(hours=20, **{f"drug_{i}": rng.gamma(2, 1, 600) for i in range(4)}))
    assert found.choices["action"] == ["dose", "drug_0", "drug_1"]
    assert found.choices["bins"] == ["drug_0=3", "drug_1=3"]
    assert problem(found, "'drug_2', 'drug_3' left out").flag == "--action NAME"
    assert "drug_3" not in found.choices["state"]


def test_doses_whose_combinations_are_too_many_are_cut() -> None:
    frame = ward(hours=40)
    frame["vaso"], frame["dose"] = np.arange(1200) % 11, np.arange(1200) // 11 % 7
    found = check(frame)
    assert found.choices["bins"] == ["dose=5", "vaso=5"]
    assert 0 < found.trial.actions <= 25


def test_doses_with_a_defect() -> None:
    frame = ward()
    frame.loc[[0, 1], "dose"] = np.nan
    frame.loc[7, "dose"] = -1
    found = check(frame.assign(drug="x"), action=["dose", "drug"])
    assert found.actions.doses[0].missing == 2
    assert problem(found, "2 rows without a value in 'dose'").flag == "write 0 where none was given"
    assert problem(found, "1 negative dose in 'dose'").flag == "correct them"
    assert problem(found, "'drug' is always the same").flag == "--action NAME"
    fixed = check(ward(dose=np.repeat(np.arange(30) % 2, 6)))
    assert problem(fixed, "'dose' never changes within a subject").flag == "--action NAME"


def test_cuts_are_read_easily() -> None:
    frame = ward(hours=20)
    frame["dose"] = 1000 + np.random.default_rng(0).random(600) * 8000
    support = check(frame).actions.doses[0].support
    assert len(support) == 5
    assert all("e+" not in name for name in support)
    frame["dose"] = 1000 + np.random.default_rng(0).random(600) / 100
    assert list(check(frame).actions.doses[0].support) == [f"bin {i}" for i in range(5)]


def test_actions_never_taken() -> None:
    frame = ward(vaso=np.tile([0, 1, 0, 0, 1, 0], 30), dose=np.tile([0, 0, 1, 1, 0, 0], 30))
    found = check(frame)
    assert (found.actions.possible, found.actions.taken) == (4, 3)
    assert "1 of 4 combinations" in problem(found, "never taken").what


# Outcomes and rewards


def test_an_outcome_on_every_row_of_a_subject() -> None:
    frame = ward().drop(columns="discharged")
    frame["died"] = np.repeat(np.arange(30) % 3 == 0, 6).astype(int)
    found = check(frame)
    (end,) = found.outcomes
    assert (end.rows, end.subjects, end.repeated, end.several, end.early) == (60, 10, 10, 0, 0)
    assert found.choices["outcome"] == "last row of the subject"
    assert problem(found, "on every row of 10 subjects").flag == "--outcome 'last row of the subject'"
    assert (found.open_ends, found.choices["last"]) == (20, "truncate")
    assert problem(found, "20 of 30 episodes end without").flag == "--last truncate"
    assert (found.trial.error, found.trial.ends["died"]) == ("", 10)
    assert "outcome" not in check(ward()).choices
    both = check(ward(died=frame.died))
    assert (both.choices["done"], both.choices["outcome"]) == (["died", "discharged"], "last row of the subject")
    assert calm(both, "'discharged'")


def test_outcomes_marked_wrongly() -> None:
    frame = ward()
    frame.loc[(frame.patient_id == "p00") & (frame.hour == 4), "died"] = True
    assert problem(check(frame), "true on several rows of 1 subject")
    frame["died"] = np.repeat(np.arange(30) % 3 == 0, 6).astype(float)
    frame.loc[5, "died"] = 0.0
    frame.loc[8, "died"] = np.nan
    found = check(frame.drop(columns="discharged"))
    assert problem(found, "true of 1 subject, but not on the last row").flag == "mark the last row too"
    assert problem(found, "1 row without a value in 'died'")
    assert problem(check(ward(died=0), done=["died"]), "'died' is never true")
    named = check(ward(), done=["sex"])
    assert (named.outcomes[0].rows, problem(named, "'sex' is never true").flag) == (0, "--done NAME")


def test_no_outcome_at_all() -> None:
    found = check(ward().drop(columns=["died", "discharged"]))
    assert problem(found, "no outcome column").flag == "--done NAME"
    assert (found.open_ends, found.choices["last"], found.trial.stopped) == (30, "truncate", 30)


def test_rewards_on_last_rows_only() -> None:
    frame = ward().drop(columns="discharged")
    frame["reward"] = np.where(frame.hour == 5, np.where(frame.died, -15.0, 15.0), 0.0)
    found = check(frame)
    assert found.rewards.last_only
    assert found.rewards.unlike
    assert problem(found, "stand on last rows only").flag == "mark these rows in --done"
    assert found.choices["last"] == "terminal"
    assert "unlike all others" in problem(found, "end without an outcome").why
    assert (found.trial.error, found.trial.ends) == ("", {"died": 10, "ended": 20})
    assert not check(ward()).rewards.last_only


def test_rewards_with_a_defect() -> None:
    frame = ward()
    frame.loc[[2, 5, 11], "reward"] = np.nan  # Rows 5 and 11 are last ones.
    assert check(frame).rewards.missing == 1
    assert problem(check(frame), "before an episode's last").what.startswith("1 row ")
    assert problem(check(ward(reward=1.0)), "is always the same").flag == "--reward NAME"


def test_one_row_each() -> None:
    found = check(ward(hours=1).drop(columns=["died", "discharged"]), time="hour")
    assert (found.records.single, found.choices["last"]) == (30, "terminal")
    assert (found.trial.error, found.trial.rows) == ("", 30)


# What comes of it


def test_flags_and_study_say_the_same_and_load(tmp_path: Path) -> None:
    frame = ward(hours=10)
    frame["hour"] = pd.Timestamp("2150-01-01") + pd.to_timedelta(frame.hour + 5 * (frame.hour > 6), unit="h")
    frame["dose"] = np.random.default_rng(0).gamma(2, 1, 300)
    frame["gender"] = np.repeat(np.arange(30) // 4 % 2 + 1, 10)
    frame.loc[::3, "lactate"] = np.nan
    frame["died"] = np.repeat(np.arange(30) % 3 == 0, 10)
    frame = frame.drop(columns="discharged").rename(columns={"lactate": 'the "lactate" [mmol|l]'})
    path = tmp_path / "the table.csv"
    frame.to_csv(path, index=False, encoding="utf-8")
    found = check(path)
    assert set(found.choices) == {
        "subject", "time", "state", "action", "reward", "done", "outcome", "last", "step", "gaps", "categorical",
        "missing", "carry_forward", "bins",
    }  # fmt: skip
    rows = read_table(path, tyro.cli(Columns, args=found.flags()).layout()).rows
    assert (len(rows), found.trial.error) == (found.trial.rows, "")
    assert tomllib.loads(found.study()) == {"table": found.choices}
    assert "# guessed" in found.study()
    assert f"--data '{path}'" in found.command()
    assert "actions=[cp.Bins('dose', 5)]" in found.call()
    assert "cp.from_dataframe(table, subject='patient_id'" in check(frame).page()
    assert len(from_dataframe(ward(), **check(ward()).choices)) == 180


def test_what_the_flags_settle_stands_apart() -> None:
    frame = ward(hours=20, site="A")
    frame["dose"] = np.random.default_rng(0).gamma(2, 1, 600)
    frame["drug"] = np.repeat(np.arange(30) % 2, 20)
    page = check(frame, action=["dose", "drug"]).page()
    mend, settled = page.index("To correct or to decide"), page.index("Settled by the flags")
    assert mend < page.index("'drug' never changes") < settled < page.index("--bins dose=5")


def test_a_guessed_state_that_determines_what_comes_later_is_left_out_with_its_reason() -> None:
    frame = ward(patients=60)
    frame["score"] = frame.groupby("patient_id")["heart_rate"].shift(-1).fillna(80.0)
    chosen: dict[str, Any] = {"state": ["heart_rate", "lactate", "score"]}
    for declared in ({}, chosen):
        found = check(frame, **declared)
        assert ("score" in found.choices["state"]) == bool(declared)
    found = check(frame)
    assert "score" not in found.flags()
    assert "score" not in found.study()
    assert fact(found, "score").role == ""
    assert fact(found, "score").note.startswith("known only later: equals 'heart_rate' of the next row")
    assert problem(found, "column 'score' left out").flag == "it is left out"
    assert not any("score" in note for note in found.trial.notes)
    assert found.trial.states == 3


def test_quantiles_need_ten_subjects_beyond_each_and_isolated_values_are_counted() -> None:
    """Values 1 to 201, a subject each: 11 are up to the 5% quantile, which is 11, and 11 from 191 on; of 101, six."""
    for patients, shown in ((201, True), (101, False)):
        frame = ward(patients=patients, hours=2)
        frame["lactate"] = np.repeat(np.arange(patients), 2) + 1.0
        found = check(frame, subject="patient_id", state=["heart_rate", "lactate"])
        column = fact(found, "lactate")
        assert (column.low is not None) == (column.high is not None) == shown
        if shown:
            assert (column.low, column.high) == (11.0, 191.0)
            assert "11 to 191" in found.page()
    assert fact(found, "patient_id").low is None
    frame = ward(patients=40)
    frame["lactate"] = 1 + frame["lactate"] % 1
    frame.loc[[3, 50], "lactate"] = 9999.0, 90.0
    found = check(frame)
    assert fact(found, "lactate").isolated == 2
    assert fact(found, "heart_rate").isolated == 0
    plain = next(column for column in found.to_json()["columns"] if column["name"] == "lactate")
    assert (plain["isolated"], plain["low"] is None) == (2, False)


def test_tables_are_aligned() -> None:
    rows = [{"name": "a|b", "share": "<0.1%"}, {"name": "c", "share": "12.5%"}]
    assert markdown(rows).splitlines() == [
        "| name | share |",
        "| ---- | ----: |",
        "| a\\|b | <0.1% |",
        "| c    | 12.5% |",
    ]


def test_the_numbers_are_plain() -> None:
    frame = ward(nothing=np.nan, lists=[[1]] * 180)
    frame.loc[::2, "lactate"] = np.nan
    found = check(frame)
    plain = found.to_json()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["records"]["subjects"] == 30
    assert plain["flags"] == found.flags()
    assert plain["columns"][0]["name"] == "patient_id"


def test_a_long_table_is_tried_on_some_subjects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterpoint.data.tables.inspection.inspecting.TRIED", 70)
    found = check(ward())
    assert (found.records.rows, found.trial.sample, found.trial.rows) == (180, 60, 60)
    assert found.trial.subjects == 10
    assert "Tried on 60 rows" in found.page()


def test_the_loaders_warnings_and_refusals_are_passed_on() -> None:
    frame = ward()
    frame["hour"] += 5 * (frame.hour > 2)
    assert "were cut" in check(frame).trial.notes[0]
    assert "It warns" in check(frame).page()
    bad = check(ward(), done=["heart_rate"])
    assert "not true/false" in bad.trial.error
    assert "Once this is corrected" in bad.page()


@pytest.mark.parametrize(("encoding", "found"), [("cp1252", "cp1252"), ("utf-16", "utf-16"), ("utf-8-sig", "utf-8")])
def test_encodings(encoding: str, found: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    ward().rename(columns={"lactate": "Größe"}).to_csv(path, index=False, encoding=encoding)
    seen = check(path)
    assert seen.encoding == found
    assert "Größe" in seen.choices["state"]
    assert seen.choices["subject"] == "patient_id"
    if found == "utf-8":
        assert "encoding" not in seen.choices
        assert calm(seen, "the file is not")
    else:
        assert problem(seen, "the file is not utf-8").flag == f"--encoding {found}"
        assert len(read_table(path, tyro.cli(Columns, args=seen.flags()).layout()).rows) == 180


def test_our_own_tables_need_no_check(tmp_path: Path) -> None:
    rows = from_dataframe(ward(), **check(ward()).choices)
    for name in ("t.csv", "t.parquet"):
        write(rows, tmp_path / name)
        with pytest.raises(CounterpointError, match="written by counterpoint"):
            check(tmp_path / name)


# Odd tables


def one_line(table: Any, **roles: Any) -> Inspection | str:
    """What is found, all of it said; or the one line."""
    try:
        found = check(table, **roles)
    except CounterpointError as error:
        return " AND ".join(str(error).splitlines())
    assert found.page()
    assert tomllib.loads(found.study())["table"] == found.choices
    json.dumps(found.to_json(), allow_nan=False)
    assert "please report" not in found.trial.error
    return found


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (pd.DataFrame(), "no rows"),
        (pd.DataFrame({"a": []}), "no rows"),
        (pd.DataFrame(index=range(3)), "no columns"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "two columns of one name"),
        (pd.DataFrame([[1, 2]]), "name in text"),
        (pl.DataFrame({"a": [1]}).lazy(), "collected"),
        ("nowhere.csv", "no file"),
        (3, "cannot read a table"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_tables_that_are_none(table: Any, said: str) -> None:
    line = one_line(table)
    assert isinstance(line, str)
    assert said in line


def test_a_file_of_another_format_is_refused_with_the_formats_that_are_read(tmp_path: Path) -> None:
    (tmp_path / "table.xls").write_text("a,b\n1,2\n")
    line = one_line(str(tmp_path / "table.xls"))
    assert isinstance(line, str)
    assert "ends in '.xls'" in line
    assert "name it" in line
    assert ".csv" in line
    assert " AND " not in line


@pytest.mark.parametrize(
    "column",
    [
        [1],
        ["a"],
        [None],
        [[1, 2]],
        [{"a": 1}],
        [1, "a"],
        [b"x"],
        [time(1)],
        [Decimal("1.5")],
        [np.nan],
        [True],
        [1 + 2j],
    ],
    ids=str,
)
def test_one_column_of_anything(column: list[Any]) -> None:
    assert isinstance(one_line(pd.DataFrame({"x": column * 20})), Inspection)
    assert isinstance(one_line(pd.DataFrame({"id": column * 20, "hour": range(len(column) * 20)})), Inspection)
    one_line(
        pd.DataFrame({"id": column * 20, "x": 1.0}), subject="id", time="id", state=["id"], action=["id"], done="id"
    )


def odd_column(rng: np.random.Generator, rows: int) -> Any:
    few = rng.integers(0, rows // 3 + 1, rows)
    anything: list[Callable[[], Any]] = [
        lambda: few, lambda: rng.normal(size=rows), lambda: np.where(few % 2, np.nan, few), lambda: few % 2 == 0,
        lambda: [None] * rows, lambda: [[1]] * rows, lambda: [f"p{i:03d}" for i in few], lambda: np.arange(rows),
        lambda: [["007", "7", ""][i % 3] for i in range(rows)], lambda: [[1, "a", None][i % 3] for i in range(rows)],
        lambda: pd.Timestamp("2150-01-01") + pd.to_timedelta(few, unit="h"), lambda: pd.to_timedelta(few, unit="h"),
        lambda: [f"2150-01-0{1 + i % 9}" for i in few], lambda: np.full(rows, np.inf), lambda: few + 2**62,
        lambda: [["yes", "no", None][i % 3] for i in few], lambda: pd.Categorical(np.array(["b", "a"])[few % 2]),
        lambda: np.where(few % 2, 0.0, rng.gamma(1, 1, rows)), lambda: -few.astype(float), lambda: np.arange(rows) % 5,
    ]  # fmt: skip
    return anything[rng.integers(len(anything))]()


NAMES = ("id", "hour", "dose", "vaso", "reward", "died", "done", "x", "HR", "next_x", "[/b]", "a|b", "stay_id",
         "truncated", "Größe", "mortality_90d", "outcome", "-x", "date", "row_id")  # fmt: skip


@pytest.mark.parametrize("part", range(10))
def test_random_odd_tables(part: int, tmp_path: Path) -> None:
    found = 0
    for seed in range(20 * part, 20 * part + 20):
        rng = np.random.default_rng(seed)
        rows, names = int(rng.choice([1, 2, 7, 60])), rng.permutation(NAMES)[: rng.integers(1, 10)]
        frame = pd.DataFrame({name: odd_column(rng, rows) for name in names})
        if seed % 2:
            frame = ward(patients=10).head(rows).assign(**{str(name): frame[name] for name in names[:2]})
        said = one_line(frame)
        assert not isinstance(said, str) or " AND " not in said
        found += isinstance(said, Inspection)
        if seed % 4 == 0:
            frame.to_csv(tmp_path / "t.csv", index=False, encoding="cp1252")
            found += isinstance(one_line(tmp_path / "t.csv"), Inspection)
    assert found >= 20


# The command


def run(*words: object) -> None:
    tyro.cli(Check, args=[str(word) for word in words]).execute()


def test_the_command_says_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = ward(hours=20).rename(columns={"lactate": "[/b] lactate"})
    frame["dose"] = np.random.default_rng(0).gamma(2, 1, 600)
    frame.to_csv(tmp_path / "t.csv", index=False)
    run(tmp_path / "t.csv", "--out", tmp_path / "out", "--write-study", tmp_path / "study.toml", "--reward", "reward")
    said = " ".join(capsys.readouterr().out.split())
    for words in (
        "600 rows",
        "subject ?",
        "[/b] lactate",
        "--bins dose=5",
        "What the loader would do",
        "it reads 600 rows",
    ):
        assert words in said, words
    assert said.index("What the loader would do") < said.index("counterpoint fit --run runs/first --data")
    assert "reward ?" not in said
    page = (tmp_path / "out" / "check-table.md").read_text(encoding="utf-8")
    assert page.startswith(f"# {tmp_path / 't.csv'}")
    assert json.loads((tmp_path / "out" / "check-table.json").read_text())["records"]["rows"] == 600
    assert tomllib.loads((tmp_path / "study.toml").read_text())["table"]["bins"] == ["dose=5"]


def test_the_command_writes_nothing_unasked(tmp_path: Path) -> None:
    ward().to_csv(tmp_path / "t.csv", index=False)
    run(
        tmp_path / "t.csv",
        "--state",
        "lactate",
        "heart_rate",
        "--subject",
        "patient_id",
        "--done",
        "died",
        "discharged",
    )
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]
    with pytest.raises(CounterpointError, match="no file"):
        run(tmp_path / "none.csv")
