"""Convert the cohort's rows to decisions: actions by quantiles of the doses, rewards, ends, and held-out patients.

action = 5·fluid + vasopressor      bin 0 is no dose, the other four are quarters of the training patients' doses

Scaled features are those of the published policies, by the training patients' statistics:

flags                                   x − ½
doses, amounts and skewed tests         (log(0.1 + x) − mean) / sd
all others                              (x − mean) / sd
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from counterpoint.data.doses import Bins
from counterpoint.data.tables.clock import changes
from counterpoint.data.transitions import held_out_subjects
from counterpoint.sources.mimic.columns import COMPUTED, CTRL46, DOSES, WHOLE
from counterpoint.sources.mimic.scores import raghu_reward

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

RewardRule = Literal["raghu", "komorowski"]
ACTIONS = ("input_4hourly", "max_dose_vaso")
OUTCOME = {"raghu": "died_in_hosp", "komorowski": "mortality_90d"}
RAGHU = 15.0
"""Reward of a survivor's last row; `raghu_reward` before it."""
KOMOROWSKI = 100.0
"""Reward of a survivor's last row; 0 before it."""
FLAGS = ("gender", "mechvent", "re_admission")
LOGARITHMIC = ("SpO2", "BUN", "Creatinine", "SGOT", "SGPT", "Total_bili", "INR", "max_dose_vaso", "median_dose_vaso",
               "input_total", "input_4hourly", "output_total", "output_4hourly", "bloc")  # fmt: skip


def training_patients(rows: "pd.DataFrame", held_out: float, seed: int) -> np.ndarray:
    """Return the rows of patients who are not held out; `counterpoint fit` holds out the same ones."""
    code = torch.tensor(np.unique(rows["subject_id"].to_numpy(), return_inverse=True)[1])
    return ~torch.isin(code, held_out_subjects(code, held_out, seed)).numpy()


def decisions(
    rows: "pd.DataFrame", features: Sequence[str], rule: RewardRule, split: tuple[float, int], with_scaled: bool = False
) -> "tuple[pa.Table, dict[str, Any]]":
    """Return the Arrow table of decisions, sorted by stay and bloc, and a summary for the manifest."""
    import pyarrow as pa

    rows = _single(rows)
    training = training_patients(rows, *split)
    doses = {name: rows[name].to_numpy(float) for name in ACTIONS}
    fitted = {name: Bins(name).fit(name, dose[training]) for name, dose in doses.items()}
    fluid, vasopressor = (fitted[name].codes(doses[name]) for name in ACTIONS)
    columns = {
        "patient": rows["subject_id"], "stay": rows["stay"], "bloc": rows["bloc"].astype(np.int64),
        **{name: _plain(rows[name]) for name in features if name != "bloc"},
        **{name: rows[name] for name in DOSES if name not in features},
        "fluid_bin": fluid, "vaso_bin": vasopressor, "action": 5 * fluid + vasopressor,
        **_ends(rows, rule),
        "split": np.where(training, "training", "held out"),
    }  # fmt: skip
    patient = rows["subject_id"].to_numpy()
    summary = {
        "stays": int(columns["terminated"].sum()), "rows": len(rows), "patients": len(np.unique(patient)),
        "training_patients": len(np.unique(patient[training])), "died": int(columns["died"].sum()),
        "actions_used": len(np.unique(columns["action"])),
        "cuts": {name: list(column.cuts) for name, column in fitted.items()}, "state": list(features),
        "computed": list(COMPUTED), "whole": list(WHOLE),
    }  # fmt: skip
    if with_scaled:
        extra, summary["scaling"] = scaled(columns, features, training)
        columns |= extra
    return pa.table({name: pa.array(np.asarray(column)) for name, column in columns.items()}), summary


def _ends(rows: "pd.DataFrame", rule: RewardRule) -> dict[str, np.ndarray]:
    """Return rewards, and the end of each stay on its last row."""
    last = np.r_[changes(rows["stay"].to_numpy())[1:], True]
    died = rows[OUTCOME[rule]].to_numpy() == 1
    reward = rewards(rows, last, died, rule)
    return {"reward": reward, "terminated": last, "died": last & died, "survived": last & ~died}


def rewards(rows: "pd.DataFrame", last: np.ndarray, died: np.ndarray, rule: RewardRule) -> np.ndarray:
    """Return the reward of each row; that of a stay's last row is the reward of its end only."""
    if rule == "komorowski":
        return np.where(last, np.where(died, -KOMOROWSKI, KOMOROWSKI), 0.0)
    state = torch.tensor(rows[list(CTRL46)].to_numpy(float), dtype=torch.float32)
    shaped = raghu_reward(state, state.roll(-1, 0)).double().numpy()
    return np.where(last, np.where(died, -RAGHU, RAGHU), shaped)


def _single(rows: "pd.DataFrame") -> "pd.DataFrame":
    """Convert numbers to single precision before cutting, as `read_table` does, so that a dose on a cut stays there."""
    return rows.astype({name: np.float32 for name in rows if rows[name].dtype == np.float64})


def _plain(column: Any) -> Any:
    """Convert flags to whole numbers, so that they are read as categories."""
    return column.astype(np.int64) if column.name in FLAGS else column


def scaled(
    columns: Mapping[str, np.ndarray], names: Sequence[str], training: np.ndarray
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the columns NAME_scaled in single precision, and the scale of each; a constant column is 0."""
    columns_scaled, scales = {}, {}
    for name in names:
        columns_scaled[f"{name}_scaled"], scales[name] = _scaled(name, np.asarray(columns[name], float), training)
    return columns_scaled, scales


def _scaled(name: str, column: np.ndarray, training: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
    if name in FLAGS:
        return (column - 0.5).astype(np.float32), {"scale": "flag"}
    logarithmic = name in LOGARITHMIC
    # Negative amounts are recording errors.
    value = np.log(0.1 + np.clip(column, 0, None)) if logarithmic else column
    mean, sd = float(value[training].mean()), float(value[training].std())
    how = {"scale": "log" if logarithmic else "linear", "mean": mean, "sd": sd}
    return ((value - mean) / (sd if sd > 1e-9 * max(abs(mean), 1.0) else np.inf)).astype(np.float32), how
