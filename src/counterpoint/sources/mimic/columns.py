"""Columns of the cohort: measurements, and the published sets of features.

The CTRL paper counts 46 columns without listing them; `ctrl46` is Raghu's 48 without bloc and re-admission.
"""

from typing import Literal

FeatureSet = Literal["raghu48", "komorowski47", "ctrl46"]
CTRL46 = (
    "Albumin", "Arterial_BE", "Arterial_lactate", "Arterial_pH", "BUN", "CO2_mEqL", "Calcium", "Chloride", "Creatinine",
    "DiaBP", "FiO2_1", "GCS", "Glucose", "HCO3", "HR", "Hb", "INR", "Ionised_Ca", "Magnesium", "MeanBP", "PT", "PTT",
    "PaO2_FiO2", "Platelets_count", "Potassium", "RR", "SGOT", "SGPT", "SIRS", "SOFA", "Shock_Index", "Sodium", "SpO2",
    "SysBP", "Temp_C", "Total_bili", "WBC_count", "Weight_kg", "age", "elixhauser", "gender", "mechvent",
    "output_4hourly", "output_total", "paCO2", "paO2",
)  # fmt: skip
PLACE = {name: i for i, name in enumerate(CTRL46)}
"""Position of each column in a state of these 46 columns."""
MEASURED = (
    "Weight_kg", "GCS", "HR", "SysBP", "MeanBP", "DiaBP", "RR", "SpO2", "Temp_C", "FiO2_1", "Potassium", "Sodium",
    "Chloride", "Glucose", "BUN", "Creatinine", "Magnesium", "Calcium", "Ionised_Ca", "CO2_mEqL", "SGOT", "SGPT",
    "Total_bili", "Albumin", "Hb", "WBC_count", "Platelets_count", "PTT", "PT", "INR", "Arterial_pH", "paO2", "paCO2",
    "Arterial_BE", "HCO3", "Arterial_lactate",
)  # fmt: skip
"""Measurements, which are held and imputed; other columns are known of the stay, counted or computed."""
HELPERS = ("RASS", "Temp_F", "FiO2_100", "O2flow", "Interface", "Direct_bili", "Ht")
"""Measurements that only replace missing ones of `MEASURED`."""
DOSES = ("max_dose_vaso", "median_dose_vaso", "input_total", "input_4hourly", "output_total", "output_4hourly",
         "cumulated_balance")  # fmt: skip
RAGHU48 = (*CTRL46, "re_admission", "bloc")
KOMOROWSKI47 = (
    *(name for name in RAGHU48 if name not in ("Albumin", "CO2_mEqL", "Ionised_Ca", "elixhauser", "bloc")),
    "max_dose_vaso", "input_total", "input_4hourly", "cumulated_balance",
)  # fmt: skip
COMPUTED, WHOLE = ("PaO2_FiO2", "Shock_Index", "SOFA", "SIRS"), ("SOFA", "SIRS")
"""Columns that are computed from others of the same bloc, and those of them that are whole numbers."""
FEATURES: dict[FeatureSet, tuple[str, ...]] = {"raghu48": RAGHU48, "komorowski47": KOMOROWSKI47, "ctrl46": CTRL46}
