"""MIMIC-III's septic patients: hand-made stays with known numbers, scores at their limits, kills, what is refused."""

import gzip
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Timer
from time import monotonic

import duckdb
import numpy as np
import pandas as pd
import pytest

from counterpoint.cli.fit import Fit
from counterpoint.cli.main import main, parse
from counterpoint.cli.mirror import build
from counterpoint.core.errors import CounterpointError
from counterpoint.sources.mimic import reading
from counterpoint.sources.mimic.cohort import SepsisCohort
from counterpoint.sources.mimic.columns import CTRL46, FEATURES
from counterpoint.sources.mimic.decisions import rewards, scaled
from counterpoint.sources.mimic.imputation import imputed
from counterpoint.sources.mimic.scores import published_sirs, published_sofa, scores
from counterpoint.sources.mimic.steps import CohortStep, Workspace, workspace
from helpers.mimic_raw import RawMimic, at, ward

SHAPES = False


def built(raw: Path, out: Path, **options: object) -> pd.DataFrame:
    """The cohort of some options; the manifest's part stands in its attrs."""
    found = SepsisCohort(**{"held_out": 0.0, **options}).build(raw, out, lambda *_: None, "1GB", 1)
    table = pd.read_parquet(out)
    table.attrs |= found
    return table


def made(raw: RawMimic, tmp_path: Path, **options: object) -> pd.DataFrame:
    return built(raw.write(tmp_path / "raw"), tmp_path / "cohort.parquet", **options)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the ward's files in raw/, its cohort with a third held out, and the database of its steps."""
    folder = tmp_path_factory.mktemp("plain")
    built(ward().write(folder / "raw"), folder / "cohort.parquet", held_out=0.34)
    return folder


def with_steps(plain: Path, out: Path) -> Path:
    """The same files, whose steps are made already where the cohort `out` will look for them."""
    shutil.copy(plain / "cohort.duckdb", out.with_suffix(".duckdb"))
    return plain / "raw"


def stay(table: pd.DataFrame, number: int) -> pd.DataFrame:
    return table[table["stay"] == RawMimic().who(number)["icustay_id"]].set_index("bloc")


def bloc(**values: float) -> dict[str, np.ndarray]:
    """A healthy bloc but for some values."""
    healthy = {"PaO2_FiO2": 450, "Platelets_count": 200, "Total_bili": 1, "MeanBP": 80, "max_dose_vaso": 0, "GCS": 15,
               "Creatinine": 1, "output_4hourly": 400, "Temp_C": 37, "HR": 80, "RR": 16, "paCO2": 40, "WBC_count": 10,
               "mechvent": 1}  # fmt: skip
    return {name: np.array([float(value)]) for name, value in {**dict.fromkeys(CTRL46, 0), **healthy, **values}.items()}


@pytest.mark.parametrize(
    ("values", "published", "corrected"),
    [
        ({}, 0, 0),
        ({"PaO2_FiO2": 400}, 0, 0),
        ({"PaO2_FiO2": 399}, 1, 1),
        ({"PaO2_FiO2": 100}, 3, 3),
        ({"PaO2_FiO2": 99, "mechvent": 0}, 4, 2),
        ({"Platelets_count": 150}, 0, 0),
        ({"Platelets_count": 150, "GCS": 10}, 0, 2),  # A gap makes the whole row 0.
        ({"Platelets_count": 19}, 4, 4),
        ({"Total_bili": 1.2}, 1, 1),
        ({"Total_bili": 12}, 0, 4),
        ({"Total_bili": 11.9}, 3, 3),
        ({"Creatinine": 5}, 0, 4),
        ({"Creatinine": 5, "output_4hourly": 80}, 3, 4),
        ({"Creatinine": 4.9}, 3, 3),
        ({"output_4hourly": 33}, 4, 4),
        ({"MeanBP": 64}, 2, 1),
        ({"MeanBP": 69}, 1, 1),
        ({"GCS": 5}, 4, 4),
        ({"GCS": 14}, 1, 1),
    ],
)
def test_sofa_at_the_limits_of_its_classes(values: dict[str, float], published: float, corrected: float) -> None:
    columns = bloc(**values)
    assert published_sofa(columns)[0] == published
    assert scores(columns, faithful=False)["SOFA"][0] == corrected


def test_the_dose_given_now_is_in_the_published_sofa_and_in_the_definition_but_not_in_the_corrected_state() -> None:
    for dose, points in ((0.1, 3), (0.11, 4)):
        columns = bloc(MeanBP=60, max_dose_vaso=dose)
        corrected = scores(columns, faithful=False)
        assert scores(columns, faithful=True)["SOFA"][0] == points
        assert (corrected["SOFA"][0], corrected["SOFA_with_dose"][0]) == (1, points)


def test_sirs_counts_its_limits_as_published_and_not_as_defined() -> None:
    columns = bloc(Temp_C=38, HR=91, RR=20, WBC_count=12)
    assert published_sirs(columns)[0] == 4
    assert scores(columns, faithful=False)["SIRS"][0] == 1


def test_rewards_by_hand() -> None:
    rows = pd.DataFrame({name: [0.0] * 5 for name in CTRL46})
    rows["SOFA"], rows["Arterial_lactate"] = [4.0, 4.0, 6.0, 0.0, 0.0], [2.0, 1.0, 1.0, 1.0, 3.0]
    last = np.array([False, False, True, False, True])
    died = np.array([True, True, True, False, False])
    same = -0.025 - 2 * np.tanh(-1.0)
    expected = [same, -0.125 * 2, -15.0, -2 * np.tanh(2.0), 15.0]
    np.testing.assert_allclose(rewards(rows, last, died, "raghu"), expected, rtol=1e-6)
    np.testing.assert_allclose(rewards(rows, last, died, "komorowski"), [0, 0, -100, 0, 100])


def test_lines_and_similar_rows_fill_in_what_is_missing() -> None:
    known = np.arange(60.0)
    values = np.column_stack([known, known % 7, known])
    values[[5, 30], 0] = np.nan  # Less than 5%: filled along a line.
    values[[10, 11, 12, 40], 2] = np.nan  # More: filled from the most similar row.
    stays, giving = np.repeat([1, 2], 30), np.ones(60, bool)
    filled = lambda giving, faithful: imputed(values, ("a", "b", "c"), stays, giving, faithful, lambda *_: None)
    published, corrected = filled(giving, faithful=True), filled(giving, faithful=False)
    assert published[5, 0] == corrected[5, 0] == 5
    assert published[30, 0] == 30  # Between the last row of one stay and the first of the next.
    assert corrected[30, 0] != 30
    assert published[40, 2] in (33, 39, 41, 47)
    assert filled(stays == 1, faithful=False)[40, 2] in values[:30, 2]


def test_a_stay_becomes_blocs_of_means_and_sums(tmp_path: Path) -> None:
    raw = ward()
    raw.chart(1, 1, 211, 110.0)
    raw.chart(1, 3, 211, 300.0)  # Above the limit.
    table = made(raw, tmp_path)
    assert table.attrs["stays"] == 6
    assert table.groupby("stay").size().tolist() == [10] * 6
    first = stay(table, 1).loc[1]
    # Times 0, 1, 2 and 3: 80, 110, 80, and 80 held.
    assert first["HR"] == pytest.approx((80 + 110 + 80 + 80) / 4)
    assert first["output_4hourly"] == 200
    assert stay(table, 1)["output_total"].tolist() == [200.0 * k for k in range(1, 11)]
    assert stay(table, 1)["input_4hourly"].tolist() == [0, 200] + [0] * 8
    assert stay(table, 1)["input_total"].tolist() == [0] + [200] * 9
    assert stay(table, 1)["max_dose_vaso"].tolist() == pytest.approx([0, 0, 0.1] + [0] * 7)
    assert first["elixhauser"] == 1
    assert first["age"] == pytest.approx(60, abs=0.02)
    assert stay(table, 0)["input_4hourly"].max() == 0
    assert stay(table, 5)["died"].tolist() == [False] * 9 + [True]
    assert stay(table, 4)["survived"].tolist() == [False] * 9 + [True]
    assert stay(table, 5)["reward"].iloc[-1] == -15
    # SOFA: P/F 500, creatinine 2.5.
    assert set(table["SOFA"]) == {2.0}


def test_doses_of_pumps_and_drugs(tmp_path: Path) -> None:
    raw = ward()
    raw.infusion(0, 2, 6, 220862, amount=100, rate=25, rateuom="mL/hour")  # Albumin 25%: five times its volume.
    raw.infusion(0, 2, 6, 220862, "Rewritten", amount=100, rate=25, rateuom="mL/hour")
    raw.infusion(1, 14, 15, 222315, rate=2.4, rateuom="units/hour")
    raw.infusion(2, 14, 15, 221749, rate=80, rateuom="mcg/min")
    raw.infusion(3, 14, 15, 221662, rate=10, rateuom="mcg/kg/min")
    raw.fluid(3, 17, 30061, 70.0)
    table = made(raw, tmp_path)
    assert stay(table, 0)["input_4hourly"].tolist()[:3] == [250, 250, 0]
    assert stay(table, 1).loc[4, "max_dose_vaso"] == pytest.approx(2.4 * 5 / 60)
    assert stay(table, 2).loc[4, "max_dose_vaso"] == pytest.approx(0.45)
    assert stay(table, 3).loc[4, "max_dose_vaso"] == pytest.approx(0.1)
    assert stay(table, 3).loc[5, "input_4hourly"] == 70
    faithful = built(tmp_path / "raw", tmp_path / "faithful.parquet", mode="faithful")
    assert stay(faithful, 0)["input_4hourly"].tolist()[:3] == [500, 500, 0]
    assert stay(faithful, 3).loc[5, "input_4hourly"] == 0


def test_what_falls_on_the_border_of_two_blocs_is_counted_twice_only_as_published(tmp_path: Path) -> None:
    raw = ward()
    raw.fluid(2, 8, 225158, 40.0)
    raw.infusion(4, 8, 10, 225158, amount=20, rate=10, rateuom="mL/hour")
    raw.infusion(5, 20, 24, 221906, rate=0.2, rateuom="mcg/kg/min")
    corrected = made(raw, tmp_path)
    assert stay(corrected, 2)["input_4hourly"].tolist()[1:3] == [300, 40]
    assert stay(corrected, 4)["input_4hourly"].tolist()[1:3] == [500, 20]
    assert (stay(corrected, 5)["max_dose_vaso"] > 0).tolist()[3:8] == [False, False, True, False, False]
    faithful = built(tmp_path / "raw", tmp_path / "faithful.parquet", mode="faithful")
    assert stay(faithful, 2)["input_4hourly"].tolist()[1:3] == [340, 40]
    assert stay(faithful, 4)["input_4hourly"].tolist()[1:3] == [500, 40]
    assert (stay(faithful, 5)["max_dose_vaso"] > 0).tolist()[3:8] == [False, True, True, True, False]


def test_pressures_consciousness_and_oxygen_come_from_what_there_is(tmp_path: Path) -> None:
    raw = ward()
    skipped = dict.fromkeys((8368, 198, 190), (211, 80.0))
    for row in raw.rows["chartevents"]:
        if row["icustay_id"] == raw.who(0)["icustay_id"] and row["itemid"] in skipped:
            row["itemid"], row["value"], row["valuenum"] = 211, 80.0, 80.0
    for hour in range(0, 40, 2):
        for item, value in ((220180, 55.0), (220739, 3.0), (223900, 4.0), (223901, 5.0)):
            raw.chart(0, hour, item, value)
        raw.chart(0, hour, 467, "Nasal Cannula")
        raw.chart(0, hour, 470, 4.0)
        raw.chart(0, hour, 211, 200.0, error=1)
    corrected = stay(made(raw, tmp_path), 0)
    assert set(corrected["DiaBP"]) == {55.0}
    assert set(corrected["GCS"]) == {12.0}
    assert set(corrected["FiO2_1"]) == {np.float32(0.36)}
    assert set(corrected["HR"]) == {80.0}
    faithful = stay(built(tmp_path / "raw", tmp_path / "faithful.parquet", mode="faithful"), 0)
    assert set(faithful["DiaBP"]) == {60.0}  # (3·80 − 120) / 2
    assert set(faithful["GCS"]) == {15.0}  # From other patients.
    assert set(faithful["HR"]) == {200.0}


def test_two_definitions_of_an_antibiotic(tmp_path: Path) -> None:
    raw = ward()
    by_code, by_name = raw.who(0)["hadm_id"], raw.who(1)["hadm_id"]
    kept = []
    for row in raw.rows["prescriptions"]:
        if row["hadm_id"] == by_code:
            row["drug"] = "Something new"
        if row["hadm_id"] != by_name or row["gsn"] != "024095":
            kept.append(row)
    raw.rows["prescriptions"] = kept
    stays = {name: set(made(raw, tmp_path, antibiotics=name)["stay"]) for name in ("ai-clinician", "mimic-code")}
    everyone = {raw.who(number)["icustay_id"] for number in range(6)}
    assert stays["ai-clinician"] == everyone - {raw.who(1)["icustay_id"]}
    assert stays["mimic-code"] == everyone - {raw.who(0)["icustay_id"]}


@pytest.mark.parametrize("definition", ["ai-clinician", "mimic-code"])
def test_infection_is_suspected_within_24_hours_after_and_72_before(tmp_path: Path, definition: str) -> None:
    raw, given, apart = ward(7), 96.0, (24, 25, -72, -73, 0, 6, -90)
    for row in raw.rows["prescriptions"]:
        row["startdate"] = at(given)
    for own, hours in zip(raw.rows["microbiologyevents"], apart, strict=True):
        own["charttime"] = at(given + hours) if hours > -90 else ""
        own["chartdate"] = at(given + hours)
    expected = {
        raw.who(number)["icustay_id"]: pd.Timestamp(at(given + min(hours, 0))).timestamp()
        for number, hours in enumerate(apart)
        # A culture without a time of day may come 96 hours before, in one definition.
        if hours not in (25, -73) and (hours > -90 or definition == "mimic-code")
    }
    steps, settings = SepsisCohort(antibiotics=definition).steps()[:7], {"mode": "corrected"}
    with workspace(raw.write(tmp_path / "raw"), tmp_path / "x.duckdb", settings, "1GB", 1, lambda *_: None) as space:
        space.run(steps)
        assert dict(space.connection.execute("SELECT stay, onset FROM onset").fetchall()) == expected


def test_exclusions_are_counted_one_after_the_other(tmp_path: Path) -> None:
    raw = ward(9)
    raw.add("outputevents", icustay_id=raw.who(0)["icustay_id"], charttime=at(5), itemid=40055, value=12_001)
    raw.lab(1, 6.5, Total_bili=100_000.0)
    raw.fluid(2, 6, 225158, 10_001.0)
    for hour in range(40):
        raw.lab(3, hour + 0.25, Creatinine=1.0)
    raw.rows["labevents"] = [
        row for row in raw.rows["labevents"]
        if row["hadm_id"] != raw.who(3)["hadm_id"] or row["itemid"] != 50912 or row["valuenum"] == 1.0
    ]  # fmt: skip
    raw.rows["inputevents_cv"] = [
        row for row in raw.rows["inputevents_cv"]
        if row["icustay_id"] != raw.who(3)["icustay_id"] or row["itemid"] != 30120
    ]  # fmt: skip
    dying = raw.who(8)["subject_id"]
    next(row for row in raw.rows["patients"] if row["subject_id"] == dying)["dod"] = at(241)
    next(row for row in raw.rows["admissions"] if row["subject_id"] == dying)["dischtime"] = at(50)
    table = made(raw, tmp_path)
    left = [step["stays"] for step in table.attrs["attrition"]]
    assert left == [9, 9, 9, 9, 8, 7, 6, 6, 5, 4, 4, 4]
    assert set(table["stay"]) == {raw.who(number)["icustay_id"] for number in (4, 5, 6, 7)}


def test_a_stopped_vasopressor_before_death_is_a_withdrawal(tmp_path: Path) -> None:
    raw = ward()
    raw.infusion(5, 9, 10, 221906, rate=0.4, rateuom="mcg/kg/min")
    next(row for row in raw.rows["patients"] if row["subject_id"] == raw.who(5)["subject_id"])["dod"] = at(200)
    for row in raw.rows["labevents"]:
        if row["hadm_id"] == raw.who(5)["hadm_id"] and row["itemid"] == 50912:
            row["valuenum"] = 6.0
    left = {step["step"]: step["stays"] for step in made(raw, tmp_path).attrs["attrition"]}
    assert left["without more than 10 L of fluid in 4 hours"] == 6
    assert left["whose treatment was not withdrawn"] == 5


def test_cuts_are_quartiles_of_the_training_patients_doses_and_ties_make_fewer_bins(tmp_path: Path) -> None:
    raw = ward(8)
    table = made(raw, tmp_path, held_out=0.25)
    training = table[table["split"] == "training"]
    assert table.groupby("patient")["split"].nunique().max() == 1
    assert table.loc[table["split"] == "held out", "patient"].nunique() == 2
    for name, column in (("input_4hourly", "fluid_bin"), ("max_dose_vaso", "vaso_bin")):
        given = training.loc[training[name] > 0, name].astype(float)
        cuts = np.quantile(given, [0.25, 0.5, 0.75])
        np.testing.assert_allclose(table.attrs["cuts"][name], cuts)
        by_hand = np.where(table[name] == 0, 0, 1 + (table[name].to_numpy()[:, None] >= cuts).sum(1))
        assert table[column].tolist() == by_hand.tolist()
    assert (table["action"] == 5 * table["fluid_bin"] + table["vaso_bin"]).all()
    for row in raw.rows["inputevents_cv"]:
        row["amount"] = 250 if row["itemid"] == 225158 else ""
    for number in range(1, 5):
        raw.fluid(number, 13, 225158, 500.0)
    tied = made(raw, tmp_path)
    assert tied.attrs["cuts"]["input_4hourly"] == [500.0]
    assert set(tied["fluid_bin"]) == {0, 1, 2}


def test_scaled_columns_by_hand() -> None:
    columns = {"gender": np.array([0, 1, 1]), "HR": np.array([80.0, 100.0, 500.0]), "BUN": np.array([0.0, 9.9, -5.0]),
               "GCS": np.array([15.0, 15.0, 3.0])}  # fmt: skip
    made, how = scaled(columns, list(columns), training=np.array([True, True, False]))
    assert made["gender_scaled"].tolist() == [-0.5, 0.5, 0.5]
    assert made["HR_scaled"].tolist() == [-1, 1, 41]  # Mean 90, deviation 10.
    np.testing.assert_allclose(made["BUN_scaled"], [-1, 1, -1], rtol=1e-6)  # log 0.1 and log 10; no amount below 0.
    assert made["GCS_scaled"].tolist() == [0, 0, 0]  # It does not vary in training.
    assert how["gender"] == {"scale": "flag"}
    assert how["HR"] == {"scale": "linear", "mean": 90, "sd": 10}
    assert (how["BUN"]["scale"], how["BUN"]["sd"]) == ("log", pytest.approx(np.log(10)))


def test_held_out_patients_do_not_move_the_scale(tmp_path: Path) -> None:
    raw = ward()
    for number in range(6):
        raw.chart(number, 1, 211, 90.0 + number)
    first = made(raw, tmp_path, held_out=0.34, scaled=True, features="raghu48")
    aside = set(first.loc[first["split"] == "held out", "stay"])
    for row in raw.rows["chartevents"]:
        if row["icustay_id"] in aside and row["itemid"] == 211:
            row["value"] = row["valuenum"] = 150.0
    second = made(raw, tmp_path, held_out=0.34, scaled=True, features="raghu48")
    assert first.attrs["scaling"] == second.attrs["scaling"]
    names = [f"{name}_scaled" for name in FEATURES["raghu48"]]
    training = first["split"] == "training"
    pd.testing.assert_frame_equal(first.loc[training, names], second.loc[training, names])
    assert second.loc[~training, "HR_scaled"].min() > first.loc[training, "HR_scaled"].max()
    assert first.loc[training, "HR_scaled"].mean() == pytest.approx(0, abs=1e-6)


def test_held_out_patients_give_no_value_to_others_unless_as_published(plain: Path, tmp_path: Path) -> None:
    raw = ward()
    held_out = set(pd.read_parquet(plain / "cohort.parquet").query("split == 'held out'")["stay"])
    needy = next(number for number in range(6) if raw.who(number)["icustay_id"] not in held_out)
    raw.rows["chartevents"] = [
        row for row in raw.rows["chartevents"]
        if row["itemid"] != 581 or row["icustay_id"] != raw.who(needy)["icustay_id"]
    ]  # fmt: skip
    for row in raw.rows["chartevents"]:
        if row["icustay_id"] in held_out and row["itemid"] == 581:
            row["value"] = row["valuenum"] = 250.0
        elif row["itemid"] == 211 and (
            row["icustay_id"] in held_out or row["icustay_id"] == raw.who(needy)["icustay_id"]
        ):
            row["value"] = row["valuenum"] = 100.0  # The needy patient is like those who are held out.
    assert set(stay(made(raw, tmp_path, held_out=0.34), needy)["Weight_kg"]) == {80.0}
    published = built(tmp_path / "raw", tmp_path / "published.parquet", held_out=0.34, mode="faithful")
    assert set(stay(published, needy)["Weight_kg"]) == {250.0}


def test_letter_case_packing_and_a_database_give_the_same_bytes(plain: Path, tmp_path: Path) -> None:
    packed = ward().write(tmp_path / "packed", upper=True, packed=True)
    with duckdb.connect(str(tmp_path / "mimic.db")) as base:
        base.execute(
            "CREATE SCHEMA mimiciii; CREATE SCHEMA mimiciii_derived; CREATE TABLE mimiciii_derived.icustays (x INT)"
        )
        for file in sorted((plain / "raw").glob("*.csv")):
            base.execute(f"CREATE TABLE mimiciii.{file.stem} AS SELECT * FROM read_csv('{file}', all_varchar=true)")
    for raw in (packed, tmp_path / "mimic.db"):
        out = tmp_path / f"{raw.stem}.parquet"
        built(raw, out, held_out=0.34)
        assert out.read_bytes() == (plain / "cohort.parquet").read_bytes()


@pytest.mark.parametrize("features", FEATURES)
def test_the_loader_reads_the_table_with_the_command_that_is_printed(
    plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], features: str
) -> None:
    out = tmp_path / "cohort.parquet"
    raw = with_steps(plain, out)
    main(["mimic", str(raw), "--out", str(out), "--features", features, "--held-out", "0.34"])
    said = capsys.readouterr()
    words = shlex.split(said.out.rpartition("next: counterpoint ")[2])
    fit = build(parse(list(words)))
    assert isinstance(fit, Fit)
    rows, table = fit.columns.read(out, 0.34, fit.seed), pd.read_parquet(out)
    assert len(rows) == len(table)
    assert rows.state_names == FEATURES[features]
    assert rows.schema.knowledge.computed == ("PaO2_FiO2", "Shock_Index", "SOFA", "SIRS")
    assert rows.schema.knowledge.whole == ("SOFA", "SIRS")
    assert rows.action_index.tolist() == table["action"].tolist()
    assert (int(rows.terminated.sum()), rows.outcome_names) == (6, ("died", "survived"))
    aside = rows.split(fit.held_out, fit.seed)[1].subject.unique()
    assert {rows.subject_names[i] for i in aside} == set(table.loc[table["split"] == "held out", "patient"].astype(str))
    ids = [str(value) for number in range(6) for value in RawMimic().who(number).values()]
    manifest = out.with_suffix(".json").read_text()
    assert not any(each in text for each in ids for text in (said.out, said.err, manifest))


def test_two_runs_and_any_number_of_threads_give_the_same_bytes(plain: Path, tmp_path: Path) -> None:
    SepsisCohort(held_out=0.34).build(plain / "raw", tmp_path / "two.parquet", lambda *_: None, "1GB", 2)
    assert (tmp_path / "two.parquet").read_bytes() == (plain / "cohort.parquet").read_bytes()


KILLED = """
import os, signal, sys
from pathlib import Path
from counterpoint.sources.mimic.cohort import SepsisCohort
def report(stage, done, total):
    if stage == "blocs of suspected":
        os.kill(os.getpid(), signal.SIGKILL)
SepsisCohort(held_out=0.34).build(Path(sys.argv[1]), Path(sys.argv[2]), report, "1GB", 1)
"""


def test_a_killed_run_goes_on_where_it_was(plain: Path, tmp_path: Path) -> None:
    raw, out = plain / "raw", tmp_path / "cohort.parquet"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(raw), str(out)], check=False, timeout=200)
    assert killed.returncode == -9
    assert not out.exists()
    with workspace(raw, out.with_suffix(".duckdb"), {"mode": "corrected"}, "1GB", 1, lambda *_: None) as space:
        tables = {name for (name,) in space.connection.execute("SHOW TABLES").fetchall()}
        assert "suspected" in tables
        assert "definition_blocs" not in tables
        space.run(SepsisCohort(held_out=0.34).steps())
        assert space.built == ["definition_blocs", "definition", "septic", "decision_blocs", "cohort"]
    built(raw, out, held_out=0.34)
    assert out.read_bytes() == (plain / "cohort.parquet").read_bytes()


def test_a_change_makes_again_what_follows_it(tmp_path: Path) -> None:
    raw = ward().write(tmp_path / "raw")

    def steps(text: str) -> list[CohortStep]:
        one = lambda space: iter([pd.DataFrame({"x": [1]})])
        return [
            CohortStep("a", make=one, text="a"),
            CohortStep("b", make=one, text=text),
            CohortStep("c", make=one, text="c getvariable('mode')"),
        ]

    def ran(mode: str, text: str) -> list[str]:
        with workspace(raw, tmp_path / "steps.duckdb", {"mode": mode}, "1GB", 1, lambda *_: None) as space:
            space.run(steps(text))
            return space.built

    assert ran("faithful", "b") == ["a", "b", "c"]
    assert ran("faithful", "b") == []
    assert ran("corrected", "b") == ["c"]
    assert ran("corrected", "changed") == ["b", "c"]


def test_a_failed_step_leaves_no_table(tmp_path: Path) -> None:
    raw = ward().write(tmp_path / "raw")

    def broken(space: object):
        yield pd.DataFrame({"x": [1]})
        raise RuntimeError

    with workspace(raw, tmp_path / "steps.duckdb", {}, "1GB", 1, lambda *_: None) as space:
        with pytest.raises(RuntimeError):
            space.run([CohortStep("a", make=broken)])
        assert ("a",) not in space.connection.execute("SHOW TABLES").fetchall()


def test_ctrl_c_stops_a_query_at_once_and_the_next_run_goes_on(tmp_path: Path) -> None:
    raw = ward(1).write(tmp_path / "raw")
    one = lambda space: iter([pd.DataFrame({"x": [1]})])
    press = Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))

    def endless(space: Workspace):
        press.start()
        yield space.rows("SELECT count(*) AS n FROM range(1000000000000) AS r(i) WHERE i % 7 = 3")

    def ran(second: Callable[[Workspace], Iterator[pd.DataFrame]]) -> list[str]:
        with workspace(raw, tmp_path / "steps.duckdb", {}, "1GB", 1, lambda *_: None) as space:
            space.run([CohortStep("a", make=one), CohortStep("b", make=second)])
            return space.built

    before, started = signal.signal(signal.SIGINT, signal.default_int_handler), monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            ran(endless)
    finally:
        signal.signal(signal.SIGINT, before)
    assert monotonic() - started < 10
    assert ran(one) == ["b"]


@pytest.mark.skipif(not reading.OPEN.is_dir(), reason="this system does not say how far a file was read")
def test_progress_is_how_far_the_files_were_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SECONDS", 0.01)
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(bytes(100))
    second.write_bytes(bytes(300))
    seen, half = [], Event()

    def report(done: int, total: int) -> None:
        seen.append((done, total))
        if done >= 50:
            half.set()

    with first.open("rb", 0) as one, second.open("rb", 0) as other, reading.watched([first, second], report):
        one.read(50)
        other.read(150)
        assert half.wait(20)
    assert (50, 100) in seen
    assert seen[-1] == (100, 100)


def refused(folder: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["mimic", str(folder), "--out", str(folder.parent / "cohort.parquet"), *flags])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def test_missing_tables_and_columns_and_wrong_values_are_one_line_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = ward()
    folder = raw.write(tmp_path / "raw")
    file = folder / "chartevents.csv"
    text = file.read_text()
    file.write_text(text.replace("valuenum", "other", 1))
    assert "no column VALUENUM" in refused(folder, capsys)
    secret = "a31c secret"
    file.write_text(text.replace(",80.0,80.0,", f",80.0,{secret},", 1))
    said = refused(folder, capsys)
    assert "VALUENUM of CHARTEVENTS has 1 values that are no DOUBLE" in said
    assert secret not in said
    file.write_text(text + '71001,"broken\n')
    said = refused(folder, capsys)
    assert "chartevents" in said.lower()
    assert "71001" not in said
    file.unlink()
    packed = gzip.compress(text.encode(), mtime=0)
    (folder / "chartevents.csv.gz").write_bytes(packed[: len(packed) // 2])
    assert "chartevents" in refused(folder, capsys).lower()
    (folder / "chartevents.csv.gz").unlink()
    assert "no CHARTEVENTS.csv" in refused(folder, capsys)
    file.write_text(text.partition("\n")[0] + "\n")
    assert "chartevents.csv' has no row" in refused(folder, capsys)
    file.write_text(text)
    assert "--memory" in refused(folder, capsys, "--memory", "1MB")
    stays = folder / "icustays.csv"
    lines = stays.read_text().splitlines(keepends=True)
    stays.write_text("".join([*lines, lines[1]]))
    assert "holds a row twice" in refused(folder, capsys)
    stays.write_bytes(gzip.compress(b"") + b"\xff\xfe")
    assert "no table in UTF-8" in refused(folder, capsys)
    assert "does not exist" in refused(tmp_path / "nowhere", capsys)
    assert ".parquet" in refused(folder, capsys, "--out", "table.csv")


def test_without_duckdb_one_line_names_the_extra(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    assert "counterpoint[mimic]" in refused(ward(1).write(tmp_path / "raw"), capsys)


def test_a_database_without_anyone_septic_says_so(tmp_path: Path) -> None:
    raw = ward()
    raw.rows["prescriptions"] = [row | {"gsn": "000000"} for row in raw.rows["prescriptions"]]
    with pytest.raises(CounterpointError, match="no stay is left"):
        made(raw, tmp_path)


@pytest.mark.parametrize("features", FEATURES)
def test_a_finished_cohort_with_the_ai_clinicians_columns_gives_the_same_decisions(
    plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], features: str
) -> None:
    out = tmp_path / "cohort.parquet"
    own = built(with_steps(plain, out), out, held_out=0.34, features=features)
    with duckdb.connect(str(tmp_path / "cohort.duckdb")) as base:
        rows = base.execute("SELECT * EXCLUDE (subject_id, hadm_id, start) FROM cohort").df()
    rows = rows.rename(columns={"stay": "icustayid"}).assign(age=rows["age"] * 365.25, charttime=0)
    rows.sample(frac=1, random_state=0).to_csv(tmp_path / "MIMICtable.csv", index=False)
    out = tmp_path / "read.parquet"
    main(["cohort", str(tmp_path / "MIMICtable.csv"), "--out", str(out), "--features", features, "--held-out", "0.34"])
    read = pd.read_parquet(out)
    pd.testing.assert_frame_equal(
        read.drop(columns="patient"), own.drop(columns="patient"), check_dtype=False, rtol=1e-5
    )
    assert "counterpoint fit" in capsys.readouterr().out


def test_a_finished_cohort_with_mimic_sepsis_columns_keeps_its_actions_and_rewards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = pd.DataFrame({"traj": [1, 1, 2, 2, 2], "step": [0, 1, 0, 1, 2], "m:icustayid": 0,
                          "o:HR": [0.1, 0.2, 0.3, 0.4, 0.5], "o:SOFA": [1.0, 2, 3, 4, 5],
                          "a:action": [0, 24, 7, 7, 1], "r:reward": [0, -1, 0, 0, 1]})  # fmt: skip
    table.to_csv(tmp_path / "data.csv", index=False)
    main(["cohort", str(tmp_path / "data.csv"), "--out", str(tmp_path / "read.parquet")])
    read = pd.read_parquet(tmp_path / "read.parquet")
    assert read["action"].tolist() == [0, 24, 7, 7, 1]
    assert read["fluid_bin"].tolist() == [0, 4, 1, 1, 0]
    assert read["died"].tolist() == [False, True, False, False, False]
    assert read["survived"].tolist() == [False] * 4 + [True]
    fit = build(parse(shlex.split(capsys.readouterr().out.rpartition("next: counterpoint ")[2])))
    assert isinstance(fit, Fit)
    assert len(fit.columns.read(tmp_path / "read.parquet", 0.0, 0)) == 5
    assert not fit.columns.computed, "what is scaled is no sum of points any more"
    broken = {
        "neither": table.drop(columns="traj"), "no row": table[:0], "no column o:": table.filter(regex="^[^o]"),
        "not 0 to 24": table.assign(**{"a:action": [0, 24, 7, 7.5, 1]}),
        "1 rows with": table.assign(step=[0, 1, 0, 1, 1]),
        "'o:HR' of": table.assign(**{"o:HR": [0, 1, 2, 3, np.inf]}), "'traj' of": table.assign(traj=[1, 1, 2, 2, None]),
        "--reward": table,
    }  # fmt: skip
    for said, wrong in broken.items():
        wrong.to_csv(tmp_path / "data.csv", index=False)
        flags = ["--reward", "raghu"] if said == "--reward" else []
        with pytest.raises(SystemExit):
            main(["cohort", str(tmp_path / "data.csv"), "--out", str(tmp_path / "x.parquet"), *flags])
        assert said in capsys.readouterr().err
