"""Read a published cohort (AI Clinician or mimic_sepsis) into the same table.

AI Clinician: `bloc`, `icustayid`, … in raw units; actions and rewards are computed as for `SepsisCohort`.
mimic_sepsis: `traj`, `step`, `o:…`, `a:action`, `r:reward`; actions and rewards are the file's.

Neither file identifies the patient of a stay, so every stay counts as a patient.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.settings import Count, Share, check_settings
from counterpoint.data.tables.clock import changes
from counterpoint.sources.mimic.cohort import write_parquet
from counterpoint.sources.mimic.columns import CTRL46, DOSES, FEATURES, FeatureSet
from counterpoint.sources.mimic.decisions import OUTCOME, RewardRule, decisions, training_patients

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

DAYS = 365.25


@dataclass(frozen=True)
class PublishedCohort:
    """Settings for a published cohort."""

    features: FeatureSet | None = None
    """Columns of the state: by default ctrl46 for the AI Clinician's file; a file of mimic_sepsis has its own."""
    reward: RewardRule | None = None
    """Reward: by default Raghu's for the AI Clinician's file; a file of mimic_sepsis has its own."""
    held_out: Share = 0.2
    """Share of the stays that cuts are learned without."""
    seed: Count = 0
    """Seed of that share."""
    scaled: bool = False
    """Whether each feature stands in the table once more as NAME_scaled; a file of mimic_sepsis is scaled already."""

    def __post_init__(self) -> None:
        check_settings(self)
        require(self.held_out < 1, "held_out=1 leaves nobody to learn cuts from; give a share below 1")

    def build(self, path: Path, out: Path) -> dict[str, Any]:
        """Write the table and return a summary of the file."""
        rows = _read(path)
        names = {name.lower() for name in rows}
        if {"bloc", "icustayid"} <= names:
            table, summary = self._ai_clinician(rows, path)
        elif {"traj", "step", "a:action", "r:reward"} <= set(rows):
            table, summary = self._mimic_sepsis(rows, path)
        else:
            raise CounterpointError(
                f"'{path}' has neither the AI Clinician's columns (bloc, icustayid) nor mimic_sepsis's (traj, step,"
                " a:action, r:reward); use counterpoint fit with the names of its columns"
            )
        write_parquet(table, out)
        return summary

    def _ai_clinician(self, rows: "pd.DataFrame", path: Path) -> "tuple[pa.Table, dict[str, Any]]":
        features, rule = FEATURES[self.features or "ctrl46"], self.reward or "raghu"
        spelled = {name.lower(): name for name in (*CTRL46, *features, *DOSES, OUTCOME[rule], "bloc")}
        rows = rows.rename(columns={name: spelled.get(name.lower(), name.lower()) for name in rows})
        needed = {*features, *CTRL46, *DOSES, OUTCOME[rule]}
        _check(rows, sorted(needed), ("icustayid", "bloc"), path)
        rows = rows.assign(stay=rows["icustayid"], subject_id=rows["icustayid"]).sort_values(["stay", "bloc"])
        if rows["age"].to_numpy().max() > 200:  # Days, as published.
            rows["age"] = rows["age"] / DAYS
        split = (self.held_out, self.seed)
        table, summary = decisions(rows.reset_index(drop=True), features, rule, split, self.scaled)
        return table, {"format": "AI Clinician", **summary}

    def _mimic_sepsis(self, rows: "pd.DataFrame", path: Path) -> "tuple[pa.Table, dict[str, Any]]":
        import pyarrow as pa

        require(
            self.features is None and self.reward is None and not self.scaled,
            f"'{path}' has features, rewards and a scale of its own; leave --features, --reward and --scaled away",
        )
        state = [name for name in rows if name.startswith("o:")]
        require(bool(state), f"'{path}' has no column o:…, so nothing is known of a state; it is not the whole file")
        _check(rows, [*state, "a:action", "r:reward"], ("traj", "step"), path)
        rows = rows.sort_values(["traj", "step"]).assign(subject_id=rows["traj"]).reset_index(drop=True)
        action = rows["a:action"].to_numpy(np.int64)
        valid = np.isin(rows["a:action"], np.arange(25)).all()
        require(bool(valid), f"'{path}' has actions that are not 0 to 24; check a:action")
        last = np.r_[changes(rows["traj"].to_numpy())[1:], True]
        died = rows["r:reward"].to_numpy() < 0
        training = training_patients(rows, self.held_out, self.seed)
        columns = {
            "patient": rows["traj"], "stay": rows["traj"], "bloc": rows["step"] + 1,
            **{name.removeprefix("o:"): rows[name].astype(np.float32) for name in state},
            "fluid_bin": action // 5, "vaso_bin": action % 5, "action": action,
            "reward": rows["r:reward"].astype(float), "terminated": last, "died": last & died, "survived": last & ~died,
            "split": np.where(training, "training", "held out"),
        }  # fmt: skip
        summary = {
            "format": "mimic_sepsis", "stays": int(last.sum()), "rows": len(rows), "died": int((last & died).sum()),
            "actions_used": len(np.unique(action)), "cuts": {},
            "state": [name.removeprefix("o:") for name in state],
        }  # fmt: skip
        return pa.table({name: pa.array(np.asarray(column)) for name, column in columns.items()}), summary


def _read(path: Path) -> "pd.DataFrame":
    import pandas as pd

    require(path.is_file(), f"'{path}' does not exist; name a CSV or Parquet file")
    try:
        return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except (ValueError, OSError):  # Their messages may quote a row.
        raise CounterpointError(f"'{path}' is no CSV or Parquet table; write it again") from None


def _check(rows: "pd.DataFrame", names: list[str], key: tuple[str, str], path: Path) -> None:
    """Refuse missing columns, missing values and duplicates; `key` are the columns that identify a row."""
    import pandas as pd

    absent = [name for name in (*key, *names) if name not in rows]
    require(not absent, f"'{path}' has no column {', '.join(absent)}; it is not the whole file")
    require(len(rows) > 0, f"'{path}' has no row; write it again")
    for name in (*key, *names):
        numbers: Any = pd.to_numeric(rows[name], errors="coerce")
        unknown = int((~np.isfinite(numbers.to_numpy(float, na_value=np.nan))).sum())
        require(unknown == 0, f"column '{name}' of '{path}' has {unknown} values that are no number; impute them")
    twice = int(rows.duplicated(list(key)).sum())
    require(twice == 0, f"'{path}' has {twice} rows with the {' and '.join(key)} of another; keep one of each")
