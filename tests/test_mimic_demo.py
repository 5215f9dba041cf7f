"""The open demo of MIMIC-III against queries of our own in pandas; COUNTERPOINT_MIMIC_DEMO names its folder."""

import os
import re
import shutil
from collections.abc import Callable
from functools import cache
from itertools import chain, pairwise, product
from pathlib import Path
from time import process_time

import duckdb
import numpy as np
import pandas as pd
import pytest

from counterpoint.cli.main import main
from counterpoint.sources.mimic.cohort import SepsisCohort
from counterpoint.sources.mimic.source import TABLES

SHAPES = False
DEMO = os.environ.get("COUNTERPOINT_MIMIC_DEMO", "")
pytestmark = pytest.mark.skipif(not DEMO, reason="COUNTERPOINT_MIMIC_DEMO does not name the folder of the open demo")
HOUR = 3600
TONICITY = {30176: 0.25, 30315: 0.25, 30161: 0.3, 30143: 3, 225161: 3, 30009: 5, 220862: 5, 30030: 6.66, 220995: 6.66,
            227533: 6.66, 228341: 8, 227531: 2.75, 30020: 0.5, 30015: 0.5, 225823: 0.5, 30321: 0.5, 30186: 0.5,
            30211: 0.5, 30353: 0.5, 42742: 0.5, 42244: 0.5, 225159: 0.5}  # fmt: skip
CHOICES = list(product(("ai-clinician", "mimic-code"), ("faithful", "corrected")))


def seconds(column: pd.Series) -> pd.Series:
    moments = pd.to_datetime(column)
    return (moments - pd.Timestamp(0)).dt.total_seconds()


@pytest.fixture(scope="module")
def raw() -> dict[str, pd.DataFrame]:
    names = ("ADMISSIONS", "ICUSTAYS", "PATIENTS", "PRESCRIPTIONS", "MICROBIOLOGYEVENTS", "CHARTEVENTS", "LABEVENTS",
             "INPUTEVENTS_CV", "INPUTEVENTS_MV", "OUTPUTEVENTS")  # fmt: skip
    wanted = {*chain(*TABLES.values())}
    read = lambda name: pd.read_csv(
        Path(DEMO) / f"{name}.csv.gz", dtype={"gsn": str, "value": str}, usecols=lambda column: column.lower() in wanted
    )
    tables = {name: read(name).rename(columns=str.lower) for name in names}
    return tables | {"OUTPUTEVENTS": tables["OUTPUTEVENTS"].astype({"value": float})}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """The cohort of a definition and a mode, made when it is asked for."""
    folder = tmp_path_factory.mktemp("demo")

    @cache
    def cohort(antibiotics: str, mode: str) -> Path:
        out = folder / f"{antibiotics}-{mode}.parquet"
        for other in folder.glob(f"*-{mode}.duckdb"):  # What does not depend on the definition is there already.
            shutil.copy(other, out.with_suffix(".duckdb"))
        SepsisCohort(antibiotics=antibiotics, mode=mode).build(Path(DEMO), out, lambda *_: None, "2GB", 1)
        return out

    return cohort


@pytest.fixture(scope="module")
def stays(raw: dict[str, pd.DataFrame]) -> pd.DataFrame:
    stays = raw["ICUSTAYS"].merge(raw["ADMISSIONS"][["hadm_id", "dischtime"]], on="hadm_id")
    stays = stays.merge(raw["PATIENTS"][["subject_id", "dob", "dod"]], on="subject_id")
    for name in ("intime", "outtime", "dischtime", "dob", "dod"):
        stays[name] = seconds(stays[name])
    stays["adult"] = (stays["intime"] - stays["dob"]) / 86400 > 6574
    return stays.sort_values(["intime", "icustay_id"]).set_index("icustay_id")


def tables(path: Path) -> duckdb.DuckDBPyConnection:
    return duckdb.connect(str(path.with_suffix(".duckdb")), read_only=True)


def near(stays: pd.DataFrame, time: float) -> pd.DataFrame:
    return stays[(stays["intime"] - 48 * HOUR <= time) & (time <= stays["outtime"] + 48 * HOUR)]


def only(stays: pd.DataFrame) -> float:
    return stays.index[0] if len(stays) == 1 else np.nan


def by_codes(
    raw: dict[str, pd.DataFrame], stays: pd.DataFrame, codes: set[str], cultures: set[int], nearest: bool
) -> dict[int, float]:
    """Onsets, stay by stay and drug by drug, as the words of the definition say them."""
    given: dict[int, list[float]] = {}
    drugs = raw["PRESCRIPTIONS"]
    drugs = drugs[drugs["gsn"].isin(codes) & drugs["startdate"].notna()]
    orders = pd.DataFrame({"hadm": drugs["hadm_id"], "stay": drugs["icustay_id"], "time": seconds(drugs["startdate"])})
    for hadm, stay, time in orders.drop_duplicates().itertuples(index=False):
        own = stays[stays["hadm_id"] == hadm]
        found = stay if stay == stay else (near(own, time).index[-1] if len(near(own, time)) else only(own))
        if found == found:
            given.setdefault(int(found), []).append(time)
    sampled: dict[int, list[float]] = {}
    chart = raw["CHARTEVENTS"]
    chart = chart[chart["itemid"].isin(cultures) & chart["icustay_id"].notna()]
    for stay, time in zip(chart["icustay_id"], seconds(chart["charttime"]), strict=True):
        sampled.setdefault(int(stay), []).append(time)
    micro = raw["MICROBIOLOGYEVENTS"]
    moments = seconds(micro["charttime"].fillna(micro["chartdate"]))
    for subject, hadm, time in set(zip(micro["subject_id"], micro["hadm_id"], moments, strict=True)):
        own = stays[stays["subject_id"] == subject]
        found = near(own, time).index[-1] if len(near(own, time)) else only(own)
        found = found if found == found else only(own[own["hadm_id"] == hadm])
        if found == found:
            sampled.setdefault(int(found), []).append(time)
    onsets = {}
    for stay in given.keys() & sampled.keys():
        hits = []
        for drug in sorted(set(given[stay])):
            tries = sorted(set(sampled[stay]), key=lambda time, drug=drug: (abs(time - drug), time))
            for sample in tries[:1] if nearest else tries:
                if 0 <= sample - drug <= 24 * HOUR or 0 <= drug - sample <= 72 * HOUR:
                    hits.append(min(drug, sample))
        if hits:
            onsets[stay] = hits[0] if nearest else min(hits)
    return onsets


def by_names(raw: dict[str, pd.DataFrame], stays: pd.DataFrame, names: set[str], earlier: bool) -> dict[int, float]:
    drugs, micro = raw["PRESCRIPTIONS"], raw["MICROBIOLOGYEVENTS"]
    drugs = drugs[drugs["drug"].isin(names) & drugs["startdate"].notna()].assign(
        given=lambda x: seconds(x["startdate"])
    )
    micro = micro.assign(
        sampled=seconds(micro["charttime"].fillna(micro["chartdate"])), dated=micro["charttime"].isna()
    )
    pairs = drugs[["hadm_id", "given"]].merge(micro[["hadm_id", "sampled", "dated"]], on="hadm_id").drop_duplicates()
    after, before = pairs["sampled"] - pairs["given"], pairs["given"] - pairs["sampled"]
    pairs = pairs[after.between(0, 24 * HOUR) | before.between(0, np.where(pairs["dated"], 96, 72) * HOUR)]
    pairs["onset"] = pairs[["given", "sampled"]].min(axis=1) if earlier else pairs["sampled"]
    joined = stays.reset_index().merge(pairs, on="hadm_id")
    joined = joined[joined["onset"].between(joined["intime"] - 48 * HOUR, joined["outtime"] + 48 * HOUR)]
    return joined.groupby("icustay_id")["onset"].min().to_dict()


def seen_at(
    raw: dict[str, pd.DataFrame], stays: pd.DataFrame, items: set[int], drop_errors: bool
) -> dict[int, np.ndarray]:
    """The times at which each stay's patient was looked at."""
    chart = raw["CHARTEVENTS"]
    chart = chart[chart["itemid"].isin(items) & chart["icustay_id"].notna() & chart["value"].notna()]
    chart = chart[chart["error"] != 1] if drop_errors else chart
    times = pd.DataFrame({"icustay_id": chart["icustay_id"].astype(int), "time": seconds(chart["charttime"])})
    labs = raw["LABEVENTS"]
    labs = labs[labs["itemid"].isin(items) & labs["valuenum"].notna()].assign(time=lambda x: seconds(x["charttime"]))
    labs = labs.merge(stays.reset_index()[["icustay_id", "hadm_id", "intime", "outtime"]], on="hadm_id")
    labs = labs[labs["time"].between(labs["intime"] - 86400, labs["outtime"] + 86400)]
    every = pd.concat([times, labs[["icustay_id", "time"]]]).drop_duplicates().sort_values("time")
    return {int(stay): own.to_numpy() for stay, own in every.groupby("icustay_id")["time"]}


@pytest.mark.parametrize("choice", CHOICES, ids="-".join)
def test_every_count_is_what_pandas_counts(
    raw: dict[str, pd.DataFrame], stays: pd.DataFrame, made: Callable[[str, str], Path], choice: tuple[str, str]
) -> None:
    antibiotics, faithful = choice[0], choice[1] == "faithful"
    base = tables(made(*choice))
    items = base.execute("SELECT * FROM items").df()
    measured = set(items.loc[items["variable"] != "culture", "itemid"])
    if antibiotics == "ai-clinician":
        codes = {
            code
            for code in raw["PRESCRIPTIONS"]["gsn"].dropna().unique()
            if f"'{code}'" in sql("06_antibiotics_ai_clinician")
        }
        cultures = set(items.loc[items["variable"] == "culture", "itemid"])
        onsets = by_codes(raw, stays, codes, cultures, nearest=faithful)
    else:
        onsets = by_names(raw, stays, antibiotic_names(raw["PRESCRIPTIONS"]), earlier=not faithful)
    onsets = {stay: onset for stay, onset in onsets.items() if stays.loc[stay, "adult"]}
    assert dict(base.execute("SELECT stay, onset FROM suspected").fetchall()) == onsets
    times = seen_at(raw, stays, measured, drop_errors=not faithful)

    def window(stay: int, before: int, after: int) -> np.ndarray:
        own = times.get(stay, np.zeros(0))
        return own[(own >= onsets[stay] - before * HOUR) & (own <= onsets[stay] + after * HOUR)]

    defined = {stay: window(stay, 53, 29) for stay in onsets}
    defined = {stay: own for stay, own in defined.items() if len(own)}
    definition = base.execute("SELECT * FROM definition").df().set_index("stay")
    assert set(definition.index) == set(defined)
    dying = {
        stay for stay, own in defined.items()
        if abs(stays.loc[stay, "dod"] - stays.loc[stay, "outtime"]) < 48 * HOUR
        and stays.loc[stay, "dischtime"] - own[-1] < 24 * HOUR
    }  # fmt: skip
    assert set(definition.index[definition["reason"] == "dying"]) <= dying
    assert not dying & set(definition.index[definition["reason"].isna()])
    septic = sorted(definition.index[definition["reason"].isna()])
    rows = {stay: blocs_of(window(stay, 29, 53), faithful) for stay in septic if len(window(stay, 29, 53))}
    found = (
        base.execute("SELECT stay, bloc FROM decision_blocs ORDER BY 1, 2")
        .df()
        .groupby("stay")["bloc"]
        .agg(list)
        .to_dict()
    )
    assert found == rows


def blocs_of(times: np.ndarray, faithful: bool) -> list[int]:
    edges = times[0] + 4 * HOUR * np.arange(21)
    ends = [(times <= high) if faithful else (times < high) for high in edges[1:]]
    return [k + 1 for k, (low, _) in enumerate(pairwise(edges)) if ((times >= low) & ends[k]).any()]


def sql(name: str) -> str:
    import counterpoint.sources.mimic

    return (Path(counterpoint.sources.mimic.__file__).parent / "sql" / f"{name}.sql").read_text()


def antibiotic_names(drugs: pd.DataFrame) -> set[str]:
    listed = re.findall(r"'([^']+)'", sql("06_antibiotics_mimic_code").split("concat_ws('|',")[1].split("))")[0])
    route, drug = drugs["route"].fillna("TP"), drugs["drug"].fillna("").str.lower()
    inside = ~route.isin(["OU", "OS", "OD", "AU", "AS", "AD", "TP"]) & ~route.str.lower().str.contains("ear|eye")
    plain = ~drug.str.contains("cream|desensitization|ophth oint|gel")
    named = drug.map(lambda text: any(word in text for word in listed))
    return set(drugs.loc[inside & plain & named & drugs["drug_type"].isin(["MAIN", "ADDITIVE"]), "drug"])


def test_doses_and_urine_of_every_bloc_are_what_pandas_sums(
    raw: dict[str, pd.DataFrame], made: Callable[[str, str], Path]
) -> None:
    rows = tables(made("ai-clinician", "corrected")).execute("SELECT * FROM decision_blocs ORDER BY stay, bloc").df()
    urine_items = {int(number) for number in re.findall(r"\b\d{5,6}\b", sql("13_urine"))}
    urine = raw["OUTPUTEVENTS"].assign(time=seconds(raw["OUTPUTEVENTS"]["charttime"]))
    urine = urine[urine["itemid"].isin(urine_items)]
    saline = {int(number): 1.0 for number in re.findall(r"\b\d{5,6}\b", sql("10_fluids").split("VALUES")[1])} | TONICITY
    poured = raw["INPUTEVENTS_CV"].assign(time=seconds(raw["INPUTEVENTS_CV"]["charttime"]))
    pumped = raw["INPUTEVENTS_MV"].query("statusdescription != 'Rewritten'")
    pumped = pumped.assign(time=seconds(pumped["starttime"]), stop=seconds(pumped["endtime"]))
    norepinephrine = pumped[pumped["itemid"] == 221906]
    poured, pumped = (table[table["itemid"].isin(saline)] for table in (poured, pumped))
    poured = pd.concat([poured, pumped[pumped["rate"].isna()]])
    pumped = pumped[pumped["rate"].notna()]
    mine = lambda table, stay: table[table["icustay_id"] == stay]
    whole, stay = (urine, poured, pumped, norepinephrine), None
    for row in rows[::3].itertuples():
        if row.stay != stay:
            stay = row.stay
            urine, poured, pumped, norepinephrine = (mine(table, stay) for table in whole)
        low, high = row.start, row.start + 4 * HOUR
        within = lambda table, low=low, high=high: table[(table["time"] >= low) & (table["time"] < high)]
        touching = lambda table, low=low, high=high: table[(table["time"] < high) & (table["stop"] > low)]
        assert row.output_4hourly == pytest.approx(within(urine)["value"].sum())
        single, flows = within(poured), touching(pumped)
        volume = (single["amount"].round(3) * single["itemid"].map(saline)).sum()
        hours = (flows["stop"].clip(upper=high) - flows["time"].clip(lower=low)) / HOUR
        volume += (flows["rate"].round(3) * flows["itemid"].map(saline) * hours).sum()
        assert row.input_4hourly == pytest.approx(max(volume, 0), abs=0.01)
        assert (
            row.max_dose_vaso >= touching(norepinephrine)["rate"].round(3).max() - 1e-9
            or touching(norepinephrine).empty
        )


def test_sofa_is_what_its_table_says(made: Callable[[str, str], Path]) -> None:
    rows = tables(made("mimic-code", "corrected")).execute("SELECT * FROM cohort ORDER BY stay, bloc").df()

    def points(row: pd.Series) -> int:
        low = lambda value, cuts: sum(value < np.float32(cut) for cut in cuts)
        lung = low(row["PaO2_FiO2"], (400, 300, 200, 100))
        kidney = sum(np.float32(row["Creatinine"]) >= np.float32(cut) for cut in (1.2, 2, 3.5, 5))
        urine = 4 if row["output_4hourly"] * 6 < 200 else 3 if row["output_4hourly"] * 6 < 500 else 0
        liver = sum(np.float32(row["Total_bili"]) >= np.float32(cut) for cut in (1.2, 2, 6, 12))
        brain = low(row["GCS"], (14.5, 12.5, 9.5, 5.5))
        blood = low(row["Platelets_count"], (150, 100, 50, 20))
        return (
            (lung if row["mechvent"] else min(lung, 2))
            + max(kidney, urine)
            + liver
            + brain
            + blood
            + (row["MeanBP"] < 70)
        )

    assert rows["SOFA"].tolist() == [points(row) for _, row in rows.iterrows()]


def test_the_whole_command_in_a_minute_gives_the_same_bytes_as_another_run_and_a_model(
    made: Callable[[str, str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    started = process_time()
    main(["mimic", DEMO, "--out", str(tmp_path / "cohort.parquet"), "--threads", "2"])
    assert process_time() - started < 60
    assert (tmp_path / "cohort.parquet").read_bytes() == made("ai-clinician", "corrected").read_bytes()
    words = capsys.readouterr().out.rpartition("next: counterpoint ")[2].split()
    main([*words[:1], "--run", str(tmp_path / "run"), *words[3:], "scm:density", "--scm.ensemble", "1",
          "--scm.hidden", "8", "--scm.likelihood.schedule.steps", "5"])  # fmt: skip
    assert (tmp_path / "run" / "scm").exists()
