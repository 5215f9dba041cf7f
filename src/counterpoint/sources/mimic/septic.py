"""Select septic stays, and exclude records with impossible values: one reason per stay, in the order of `REASONS`."""

from typing import TYPE_CHECKING, Any

import numpy as np

from counterpoint.sources.mimic.blocs import MOST

if TYPE_CHECKING:
    import pandas as pd

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
