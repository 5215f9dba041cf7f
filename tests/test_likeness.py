"""Two cohorts side by side: statistics by hand, and nothing told of fewer than ten patients."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

from likeness import FEWEST, likeness


def cohort(patients: int, blocs: int = 3, **columns: Any) -> pd.DataFrame:
    """Everybody's HR is 60, 70, 90 …; the SOFA is 3, of the last third of the patients 7; every second one dies."""
    who, when = np.repeat(np.arange(patients), blocs), np.tile(np.arange(blocs), patients)
    last = when == blocs - 1
    plain = {
        "patient": who, "stay": who, "bloc": when + 1, "HR": np.array([60.0, 70.0, 90.0])[when % 3],
        "SOFA": np.where(who * 3 >= 2 * patients, 7.0, 3.0), "age": 50.0 + who, "gender": who % 2,
        "mechvent": (when == 1).astype(int), "fluid_bin": np.minimum(when, 1), "vaso_bin": np.where(who == 0, 2, 0),
        "terminated": last, "died": last & (who % 2 == 0),
    }  # fmt: skip
    rows = pd.DataFrame(plain | columns)
    return rows.assign(action=5 * rows["fluid_bin"] + rows["vaso_bin"])


def found(table: pd.DataFrame) -> dict[tuple[str, str], float | None]:
    return {(row["name"], row["statistic"]): row["it"] for row in likeness({"it": table}, ["HR", "mechvent"])}


def test_statistics_by_hand() -> None:
    say = found(cohort(30))
    assert say["", "patients"] == 30
    assert say["", "rows"] == 90
    assert say["", "share of stays that end in death"] == 0.5
    assert say["", "blocs a stay, mean"] == 3
    assert say["", "age, mean"] == 64.5
    assert say["HR", "median"] == 70
    assert say["HR", "SD of the change"] == 5  # Changes of 10 and of 20.
    assert say["HR", "autocorrelation"] == pytest.approx(1)  # Two pairs of values lie on a line.
    assert say["HR", "share unchanged"] == 0
    assert say["mechvent", "autocorrelation"] == pytest.approx(-1)
    assert say["HR", "correlation with SOFA"] == pytest.approx(0, abs=1e-12)
    assert say["", "share of rows with fluid"] == pytest.approx(2 / 3)
    assert say["SOFA 0 to 4", "share ventilated"] == pytest.approx(1 / 3)
    assert say["SOFA 5 to 9", "share of the stays that begin there that end in death"] == 0.5
    assert say["", "share of stays without an outcome"] == 0


def test_a_pair_of_blocs_is_of_one_stay() -> None:
    """Everybody's HR is a constant of his own, so that only pairs across stays would change."""
    table = cohort(30)
    assert found(table.assign(HR=table["patient"] + 50.0))["HR", "SD of the change"] == 0


def test_what_few_patients_stand_behind_is_left_out() -> None:
    say = found(cohort(30))
    assert say["fluid 1, vasopressor 0", "share of rows"] == pytest.approx(58 / 90)
    assert say["fluid 1, vasopressor 2", "share of rows"] is None  # One patient.
    assert say["SOFA 10 and more", "share ventilated"] is None
    few = found(cohort(FEWEST - 1))
    assert few["HR", "median"] is None
    assert few["", "age, mean"] is None
    assert few["", "patients"] == FEWEST - 1
    assert found(cohort(FEWEST))["HR", "median"] == 70
    ill = cohort(FEWEST, SOFA=np.repeat([7.0] * 9 + [3.0], 3))
    assert found(ill)["SOFA 5 to 9", "share ventilated"] is None


def test_rows_without_a_decision_do_not_count() -> None:
    table = cohort(30)
    table["action"] = table["action"].astype("Int64").mask(table["bloc"] == 3)
    table.loc[table["bloc"] == 3, ["terminated", "died"]] = False
    say = found(table)
    assert say["", "rows"] == 60
    assert say["", "share of stays without an outcome"] == 1
    assert say["HR", "upper quartile"] == 70
