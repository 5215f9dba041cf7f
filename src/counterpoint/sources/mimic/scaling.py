"""Scale features as the published policies do, by the training patients' statistics.

flags                                   x − ½
doses, amounts and skewed tests         (log(0.1 + x) − mean) / sd
all others                              (x − mean) / sd
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

FLAGS = ("gender", "mechvent", "re_admission")
LOGARITHMIC = ("SpO2", "BUN", "Creatinine", "SGOT", "SGPT", "Total_bili", "INR", "max_dose_vaso", "median_dose_vaso",
               "input_total", "input_4hourly", "output_total", "output_4hourly", "bloc")  # fmt: skip


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
