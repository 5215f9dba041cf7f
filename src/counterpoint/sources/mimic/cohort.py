"""Build a table of decisions for MIMIC-III's septic patients, from the raw files to Parquet.

    suspected infection → measurements → blocs of 4 hours, imputed, scored → sepsis, exclusions      (−48…+24 h)
                                       → blocs of 4 hours, imputed, scored → actions, rewards        (−24…+48 h)

The SQL of every step is in sql/; each step builds a table in a database file beside the cohort.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from counterpoint.core.artifacts import digest, replacing
from counterpoint.core.errors import require
from counterpoint.core.settings import Count, Positive, Share, check_settings
from counterpoint.sources.mimic.blocs import DECISIONS, DEFINITION, MOST, blocs
from counterpoint.sources.mimic.columns import DOSES, FEATURES, MEASURED, FeatureSet
from counterpoint.sources.mimic.decisions import RewardRule, decisions, training_patients
from counterpoint.sources.mimic.imputation import imputed
from counterpoint.sources.mimic.scores import ratios, scores
from counterpoint.sources.mimic.steps import CohortStep, Report, Workspace, workspace

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Antibiotics = Literal["ai-clinician", "mimic-code"]
Mode = Literal["faithful", "corrected"]
MOST_MISSING = 0.7
"""A column with more missing values around the onset is not used for the definition, as published, unless scored."""
SCORED = ("paO2", "FiO2_1", "Platelets_count", "Total_bili", "MeanBP", "GCS", "Creatinine", "Temp_C", "HR", "RR",
          "paCO2", "WBC_count", "SysBP")  # fmt: skip
STATIC = ("age", "gender", "elixhauser", "re_admission")
SCORES = ("PaO2_FiO2", "Shock_Index", "SOFA", "SIRS", "SOFA_with_dose")
ENDINGS = ("died_in_hosp", "mortality_90d", "died_within_48h_of_out_time")

ROW = (*MEASURED, "mechvent", *STATIC, *ENDINGS, *DOSES, *SCORES)
REASONS = {
    "urine": "without more than 12 L of urine in 4 hours",
    "bilirubin": "without a bilirubin above 10,000",
    "intake": "without more than 10 L of fluid in 4 hours",
    "withdrawn": "whose treatment was not withdrawn",
    "dying": "who did not die within two days of leaving intensive care while the record ended",
    "sofa": "with a SOFA of 2 or more",
}
"""Why a stay is excluded, and the description of those that remain."""

LIMITS = {"urine": ("output_4hourly", 12_000), "bilirubin": ("Total_bili", 10_000), "intake": ("input_4hourly", 10_000)}
"""Amounts above which a record is wrong."""


@dataclass(frozen=True)
class SepsisCohort:
    """Settings of the cohort."""

    antibiotics: Antibiotics = "ai-clinician"
    """Definition of suspected infection from antibiotics and cultures: by the AI Clinician's drug codes, or by
    mimic-code's names."""
    mode: Mode = "corrected"
    """faithful: with the defects of the published code, to compare with its numbers; corrected: without them."""
    features: FeatureSet = "ctrl46"
    """Columns of the state: Raghu's 48, Komorowski's 47, or Raghu's without bloc and re-admission."""
    reward: RewardRule = "raghu"
    """Raghu's (±15 at the end by death in hospital, SOFA and lactate before it) or Komorowski's (±100, by 90 days)."""
    held_out: Share = 0.2
    """Share of the patients that cuts, and in mode corrected imputations, are learned without."""
    seed: Count = 0
    """Seed of that share."""
    scaled: bool = False
    """Whether each feature stands in the table once more as NAME_scaled, by the training patients' statistics; to fit
    a model it need not, which scales for itself."""

    def __post_init__(self) -> None:
        check_settings(self)
        require(self.held_out < 1, "held_out=1 leaves nobody to learn cuts from; give a share below 1")

    def build(
        self, raw: Path | str, out: Path, report: Report, memory: str = "4GB", threads: Positive = 2
    ) -> dict[str, Any]:
        """Write the cohort and return a summary with the stays that each step left."""
        with workspace(raw, out.with_suffix(".duckdb"), {"mode": self.mode}, memory, threads, report) as space:
            space.run(self.steps())
            rows = space.rows("SELECT * FROM cohort ORDER BY stay, bloc")
            missing = {name: round(float(rows[f"{name}_missing"].mean()), 4) for name in MEASURED}
            table, summary = decisions(
                rows, FEATURES[self.features], self.reward, (self.held_out, self.seed), self.scaled
            )
            write_parquet(table, out)
            return {"attrition": attrition(space), **summary, "missing_before_imputation": missing}

    def steps(self) -> list[CohortStep]:
        """Return the steps in their order."""
        definition = self.antibiotics.replace("-", "_")
        queries = ["01_items", "02_chart", "03_comorbidities", "04_stays", "05_cultures",
                   f"06_antibiotics_{definition}", f"07_onset_{definition}", "08_labs", "09_events", "10_fluids",
                   "11_before_admission", "12_vasopressors", "13_urine"]  # fmt: skip
        query_steps = [CohortStep(_table_of(name, definition), f"{name}.sql") for name in queries]
        text = digest([self.mode, _code()])
        return [
            *query_steps,
            CohortStep("suspected", make=_suspected, text=text),
            CohortStep("definition_blocs", make=lambda space: blocs(space, DEFINITION, "suspected"), text=text),
            CohortStep("definition", make=lambda space: self._definition(space), text=text),
            CohortStep("septic", make=_septic, text=text),
            CohortStep("decision_blocs", make=lambda space: blocs(space, DECISIONS, "septic"), text=text),
            CohortStep("cohort", make=lambda space: self._cohort(space), text=digest([self.held_out, self.seed])),
        ]

    def _definition(self, space: Workspace) -> "Iterator[pd.DataFrame]":
        """Yield the highest scores of each suspected stay, and the reason for its exclusion.

        Held-out patients are not chosen yet, so values are imputed from all patients.
        """
        rows = _blocs(space, "definition_blocs")
        yield exclusions(self._whole(space, rows, np.ones(len(rows), dtype=bool), MOST_MISSING))

    def _cohort(self, space: Workspace) -> "Iterator[pd.DataFrame]":
        """Yield the rows of decisions. As published, faithful mode checks amounts around the definition only."""
        rows = _blocs(space, "decision_blocs")
        if self.mode == "faithful":
            yield self._whole(space, rows, np.ones(len(rows), dtype=bool), 1.0)
        else:
            rows = rows[~rows["stay"].isin(impossible(rows))].reset_index(drop=True)
            yield self._whole(space, rows, training_patients(rows, self.held_out, self.seed), 1.0)

    def _whole(self, space: Workspace, rows: "pd.DataFrame", donor: np.ndarray, most_missing: float) -> "pd.DataFrame":
        """Return the blocs without missing values, with scores and columns of the stay."""
        import pandas as pd

        faithful, values = self.mode == "faithful", rows[list(MEASURED)].to_numpy(float)
        used = (np.isnan(values).mean(0) <= most_missing) | np.isin(MEASURED, SCORED)
        names = [name for name, use in zip(MEASURED, used, strict=True) if use]
        report = partial(space.report, f"imputed values of {len(rows)} rows")
        whole = imputed(values[:, used], names, rows["stay"].to_numpy(), donor, faithful, report)
        missing = {f"{name}_missing": np.isnan(values[:, i]) for i, name in enumerate(MEASURED)}
        columns = {name: rows[name].to_numpy(float) for name in rows} | dict(zip(names, whole.T, strict=True))
        columns |= ratios(columns, donor)
        columns |= scores(columns, faithful)
        delay = {"delay_end_of_record_and_discharge_or_death": (columns["dischtime"] - columns["last_time"]) / 3600}
        kept = {name: rows[name] for name in ("subject_id", "hadm_id", "stay", "bloc", "start")}
        return pd.DataFrame(kept | {name: columns[name] for name in ROW} | delay | missing)


def _blocs(space: Workspace, table: str) -> Any:
    """Return the rows of a table of blocs joined with their stays."""
    query = f"SELECT b.*, s.* EXCLUDE (stay) FROM {table} AS b JOIN stays AS s USING (stay) ORDER BY stay, bloc"
    rows = space.rows(query)
    require(len(rows) > 0, f"no stay is left at step '{table}'; this is no MIMIC-III, or a very small part of it")
    return rows


def attrition(space: Workspace) -> list[dict[str, Any]]:
    """Return how many stays each step left."""
    left = [
        ("stays in intensive care", "SELECT count(*) FROM stays"),
        ("of adults", "SELECT count(*) FROM stays WHERE adult"),
        ("with suspected infection", "SELECT count(*) FROM suspected"),
        ("with a record around the onset", "SELECT count(DISTINCT stay) FROM definition_blocs"),
    ]
    excluded: list[str] = []
    for reason, description in REASONS.items():
        excluded.append(f"'{reason}'")
        reasons = ", ".join(excluded)
        left.append((description, f"SELECT count(*) FROM definition WHERE reason IS NULL OR reason NOT IN ({reasons})"))
    left.append(("with a record of decisions", "SELECT count(DISTINCT stay) FROM decision_blocs"))
    left.append(("with possible amounts in it", "SELECT count(DISTINCT stay) FROM cohort"))
    return [{"step": description, "stays": int(space.value(query))} for description, query in left]


def write_parquet(table: "pa.Table", out: Path) -> None:
    """Write a table atomically; equal tables give equal bytes."""
    import pyarrow.parquet as pq

    with replacing(out) as draft:
        pq.write_table(table, draft, compression="zstd", row_group_size=1 << 16, version="2.6")


def _suspected(space: Workspace) -> "Iterator[pd.DataFrame]":
    twice = space.value("SELECT count(*) - count(DISTINCT stay) FROM stays")
    require(twice == 0, "ICUSTAYS, ADMISSIONS or PATIENTS holds a row twice; download them again")
    yield space.rows("SELECT stay, onset FROM onset JOIN stays USING (stay) WHERE adult ORDER BY stay")


def _septic(space: Workspace) -> "Iterator[pd.DataFrame]":
    yield space.rows("SELECT stay FROM definition WHERE reason IS NULL ORDER BY stay")


def _table_of(name: str, definition: str) -> str:
    return name.split("_", 1)[1].removesuffix(f"_{definition}")


def _code() -> list[str]:
    """Return the source text of the steps in Python; a change rebuilds the tables."""
    names = ("blocs", "columns", "cohort", "imputation", "physiology", "scores")
    return [files("counterpoint.sources.mimic").joinpath(f"{name}.py").read_text("utf-8") for name in names]


def impossible(rows: "pd.DataFrame") -> np.ndarray:
    """Return the stays with an amount above its limit."""
    above = [rows[column] > limit for column, limit in LIMITS.values()]
    return rows.loc[np.any(above, 0), "stay"].unique()


def exclusions(rows: "pd.DataFrame") -> "pd.DataFrame":
    """Return one row per stay: its highest scores, and the reason for its exclusion or None."""
    import pandas as pd

    stays: Any = rows.groupby("stay", sort=True)  # pandas cannot tell its types.
    most = stays[["SOFA_with_dose", "SIRS", "max_dose_vaso", "output_4hourly", "input_4hourly", "Total_bili"]].max()
    last, blocs = stays.last(), stays.size()
    holds = {
        **{name: most[column] > limit for name, (column, limit) in LIMITS.items()},
        "withdrawn": _withdrawn(most, last, blocs),
        "dying": (last["died_within_48h_of_out_time"] == 1) & (last["delay_end_of_record_and_discharge_or_death"] < 24),
        "sofa": most["SOFA_with_dose"] < 2,
    }
    reason = np.full(len(most), None, dtype=object)
    for name in reversed(REASONS):
        reason[holds[name].to_numpy()] = name
    columns = {"stay": most.index, "max_sofa": most["SOFA_with_dose"], "max_sirs": most["SIRS"]}
    return pd.DataFrame({name: np.asarray(column) for name, column in columns.items()} | {"reason": reason})


def _withdrawn(most: "pd.DataFrame", last: "pd.DataFrame", blocs: "pd.Series") -> Any:
    """Return the stays that ended in death after a high dose of vasopressor was stopped without improvement.

    As published, only where no bloc lacks a row and the record is not the longest possible.
    """
    stopped = (last["max_dose_vaso"] == 0) & (most["max_dose_vaso"] > 0.3)
    ill = last["SOFA_with_dose"] >= most["SOFA_with_dose"] / 2
    return stopped & ill & (last["mortality_90d"] == 1) & (last["bloc"] == blocs) & (blocs < MOST)
