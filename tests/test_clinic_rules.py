"""Rules of the clinical cohort, each worked by hand: conversions, scales of the training patients, limits of scores."""

import numpy as np
import pytest

from counterpoint.sources.mimic.columns import CTRL46
from counterpoint.sources.mimic.imputation import imputed
from counterpoint.sources.mimic.physiology import VARIABLES, completed, record
from counterpoint.sources.mimic.scores import scores

HOURS = dict.fromkeys(VARIABLES, 1.0)


@pytest.mark.parametrize(
    ("measured", "value", "follows", "expected"),
    [
        ("Ht", 29.836, "Hb", 10.0),  # 2.862·10 + 1.216 = 29.836
        ("Direct_bili", 1.2116, "Total_bili", 2.0),  # 0.6934·2 − 0.1752 = 1.2116
        ("Temp_F", 98.6, "Temp_C", 37.0),  # (98.6 − 32) / 1.8
        ("Temp_F", 36.5, "Temp_C", 36.5),  # 25 to 45 °F are °C in the wrong column.
        ("RASS", -3.0, "GCS", 11.0),
        ("FiO2_100", 40.0, "FiO2_1", 0.4),
    ],
)
def test_a_value_follows_from_another(measured: str, value: float, follows: str, expected: float) -> None:
    seen = record(np.array([1]), np.array([0.0]), np.array([measured]), np.array([value]))
    assert completed(seen, HOURS).values[follows][0] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("missing", ["SysBP", "MeanBP", "DiaBP"])
def test_each_pressure_follows_from_the_other_two(missing: str) -> None:
    pressures = {"SysBP": 120.0, "MeanBP": 80.0, "DiaBP": 60.0}  # 80 = (120 + 2·60) / 3
    given = {name: value for name, value in pressures.items() if name != missing}
    seen = record(np.array([1, 1]), np.zeros(2), np.array(list(given)), np.array(list(given.values())))
    assert completed(seen, HOURS).values[missing][0] == pytest.approx(pressures[missing])


def test_held_out_rows_do_not_set_the_scale_in_which_rows_are_similar() -> None:
    """By the training rows' deviations, √8 and 1.5, row 1 is 1.41 away from row 0 and row 2 is 2 away. The held-out
    row would stretch the second scale, and row 2 would be nearest."""
    missing = np.nan
    values = np.array([[0, 0, missing], [4, 0, 1], [0, 3, 2], [-4, 3, 9], [0, 1000, 7]], float)
    giving = np.array([True, True, True, True, False])
    filled = imputed(values, ("a", "b", "c"), np.arange(5), giving, False, lambda *_: None)
    assert filled[0, 2] == 1


@pytest.mark.parametrize(("pressure", "points"), [(69.0, 1.0), (70.0, 0.0)])
def test_only_a_mean_pressure_below_70_has_a_point_that_the_dose_replaces(pressure: float, points: float) -> None:
    healthy = {"PaO2_FiO2": 450, "Platelets_count": 200, "Total_bili": 1, "GCS": 15, "Creatinine": 1, "HR": 70,
               "output_4hourly": 400, "Temp_C": 37, "RR": 16, "paCO2": 40, "WBC_count": 10, "mechvent": 1}  # fmt: skip
    row = {**dict.fromkeys(CTRL46, 0), **healthy, "MeanBP": pressure, "max_dose_vaso": 0.05}
    found = scores({name: np.array([float(value)]) for name, value in row.items()}, faithful=False)
    assert found["SOFA"][0] == points
    assert found["SOFA_with_dose"][0] == 3  # 3 for any vasopressor, in place of the point and not beside it.
