"""Scores of a bloc: SOFA, SIRS, shock index and PaO2/FiO2, as published and as defined.

As published (matthieukomorowski/AI_Clinician), SOFA has gaps: a PaO2/FiO2 of exactly 400, platelets of 150, bilirubin
of 12 or creatinine of 5 fall into no class, and the score of such a row is 0. It counts 2 for a mean pressure below 65
and does not distinguish ventilated patients. The score in the state includes the dose of vasopressor of the same bloc,
so the action is part of the state in which it is chosen.

`sofa` and `sirs` are the scores of Vincent et al. 1996 and Bone et al. 1992 on tensors, without the
dose: pressure counts 1 at most. The definition of sepsis still uses the score with the dose.
"""

from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.data.shapes import Reward, State
from counterpoint.data.spaces import constant
from counterpoint.sources.mimic.columns import CTRL46, PLACE

Columns = Mapping[str, np.ndarray]
MISSED = -1
"""Points of a value that falls into no class."""


def ratios(columns: Columns, donor: np.ndarray) -> dict[str, np.ndarray]:
    """Return PaO2/FiO2, and the shock index, clipped at the donor rows' 0.999 quantile."""
    with np.errstate(divide="ignore", invalid="ignore"):
        shock = np.where(columns["SysBP"] != 0, columns["HR"] / columns["SysBP"], np.nan)
    shock = np.where(np.isnan(shock), np.nanmean(shock[donor]), shock)
    return {
        "PaO2_FiO2": columns["paO2"] / columns["FiO2_1"],
        "Shock_Index": np.minimum(shock, np.quantile(shock[donor], 0.999)),
    }


def scores(columns: Columns, faithful: bool) -> dict[str, np.ndarray]:
    """Return SOFA and SIRS of the state, and the SOFA that defines sepsis."""
    if faithful:
        points = published_sofa(columns)
        return {"SOFA": points, "SIRS": published_sirs(columns), "SOFA_with_dose": points}
    # Single precision, as the classes' limits are: a creatinine of 1.2 is one of at least 1.2.
    state = torch.from_numpy(np.column_stack([columns.get(n, np.zeros(len(columns["HR"]))) for n in CTRL46])).float()
    points = sofa(state).double().numpy()
    pressure = (columns["MeanBP"] < 70).astype(float)
    return {
        "SOFA": points,
        "SIRS": sirs(state).double().numpy(),
        "SOFA_with_dose": points - pressure + np.maximum(pressure, dose_points(columns["max_dose_vaso"])),
    }


def dose_points(dose: np.ndarray) -> np.ndarray:
    """Return 3 for any vasopressor, 4 above 0.1 µg/kg/min."""
    return np.where(dose > 0.1, 4.0, np.where(dose > 0, 3.0, 0.0))


def published_sofa(columns: Columns) -> np.ndarray:
    """Return the published score, which is 0 for values between its classes."""
    lung, blood, liver = columns["PaO2_FiO2"], columns["Platelets_count"], columns["Total_bili"]
    brain, kidney, urine = columns["GCS"], columns["Creatinine"], columns["output_4hourly"]
    pressure = columns["MeanBP"]
    parts = [
        _highest(lung > 400, _from(lung, 300, 400), _from(lung, 200, 300), _from(lung, 100, 200), lung < 100),
        _highest(blood > 150, _from(blood, 100, 150), _from(blood, 50, 100), _from(blood, 20, 50), blood < 20),
        _highest(liver < 1.2, _from(liver, 1.2, 2), _from(liver, 2, 6), _from(liver, 6, 12), liver > 12),
        np.maximum(_highest(pressure >= 70, _from(pressure, 65, 70), pressure < 65),
                   dose_points(columns["max_dose_vaso"])),
        _highest(brain > 14, _to(brain, 12, 14), _to(brain, 9, 12), _to(brain, 5, 9), brain <= 5),
        _highest(kidney < 1.2, _from(kidney, 1.2, 2), _from(kidney, 2, 3.5), _from(kidney, 3.5, 5) | (urine < 84),
                 (kidney > 5) | (urine < 34)),
    ]  # fmt: skip
    return np.where(np.min(parts, 0) == MISSED, 0.0, np.sum(parts, 0))


def published_sirs(columns: Columns) -> np.ndarray:
    """Return the published number of SIRS criteria, whose limits are inclusive."""
    warmth, white = columns["Temp_C"], columns["WBC_count"]
    criteria = (
        (warmth >= 38) | (warmth <= 36),
        columns["HR"] > 90,
        (columns["RR"] >= 20) | (columns["paCO2"] <= 32),
        (white >= 12) | (white < 4),
    )
    return np.sum(criteria, 0).astype(float)


def _from(value: np.ndarray, low: float, high: float) -> np.ndarray:
    return (value >= low) & (value < high)


def _to(value: np.ndarray, low: float, high: float) -> np.ndarray:
    return (value > low) & (value <= high)


def _highest(*classes: np.ndarray) -> np.ndarray:
    """Return the points of the highest class that holds, `MISSED` where none does."""
    points = np.full(len(classes[0]), float(MISSED))
    for number, holds in enumerate(classes):
        points[holds] = number
    return points


def sofa(state: State) -> Float[Tensor, "*n"]:
    """Return the organ failure score SOFA of states with the columns `CTRL46`, 0 to 21, without the dose.

    Low pressure counts 1 at most, so that the dose of the same step is not part of the score.

    Vincent et al., Intensive Care Medicine 22, 1996.
    """
    at = lambda name: state[..., PLACE[name]]
    lung = _cuts_above(at("PaO2_FiO2"), (400, 300, 200, 100))
    lung = torch.where(at("mechvent") > 0.5, lung, lung.clamp(max=2))
    brain = _cuts_above(at("GCS"), (14.5, 12.5, 9.5, 5.5))
    blood = _cuts_above(at("Platelets_count"), (150, 100, 50, 20))
    liver = _cuts_reached(at("Total_bili"), (1.2, 2, 6, 12))
    kidney = _cuts_reached(at("Creatinine"), (1.2, 2, 3.5, 5)).maximum(_urine_points(at("output_4hourly")))
    return lung + brain + blood + liver + kidney + (at("MeanBP") < 70).to(state)


def _urine_points(output: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """Return 3 points below 500 mL a day, 4 below 200."""
    return 3 * (6 * output < 500).to(output) + (6 * output < 200).to(output)


def sirs(state: State) -> Float[Tensor, "*n"]:
    """Return the number of criteria of the systemic inflammatory response, 0 to 4 (Bone et al., Chest 101, 1992)."""
    at = lambda name: state[..., PLACE[name]]
    criteria = (
        (at("Temp_C") > 38) | (at("Temp_C") < 36),
        at("HR") > 90,
        (at("RR") > 20) | (at("paCO2") < 32),
        (at("WBC_count") > 12) | (at("WBC_count") < 4),
    )
    return torch.stack(criteria, -1).to(state).sum(-1)


def _cuts_reached(value: Float[Tensor, "*n"], cuts: tuple[float, ...]) -> Float[Tensor, "*n"]:
    """Count the cuts that a value reaches."""
    return (value[..., None] >= constant(cuts, value.device)).to(value).sum(-1)


def _cuts_above(value: Float[Tensor, "*n"], cuts: tuple[float, ...]) -> Float[Tensor, "*n"]:
    """Count the cuts that lie above a value."""
    return (value[..., None] < constant(cuts, value.device)).to(value).sum(-1)


def raghu_reward(
    state: State,
    next_state: State,
    same_sofa: float = -0.025,
    sofa_change: float = -0.125,
    lactate_change: float = -2.0,
) -> Reward:
    """Return the intermediate reward of Raghu et al. 2017: a falling SOFA score and a falling lactate are rewarded.

    r = same_sofa·1[SOFA' = SOFA > 0] + sofa_change·(SOFA' − SOFA) + lactate_change·tanh(lactate' − lactate)
    """
    before, after = state[..., PLACE["SOFA"]], next_state[..., PLACE["SOFA"]]
    same = (before == after) & (after != 0)
    lactate = next_state[..., PLACE["Arterial_lactate"]] - state[..., PLACE["Arterial_lactate"]]
    return same_sofa * same + sofa_change * (after - before) + lactate_change * lactate.tanh()
