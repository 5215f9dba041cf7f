"""Derive measurements from others of the same time, and hold values for a number of hours.

    mean = (systolic + 2·diastolic) / 3          haematocrit = 2.862·haemoglobin + 1.216
    °C = (°F − 32) / 1.8                         direct bilirubin = 0.6934·total − 0.1752

The rules and numbers are those of matthieukomorowski/AI_Clinician; consciousness by sedation follows Ely et al., JAMA
289, 2003.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from counterpoint.data.tables.clock import changes
from counterpoint.data.tables.missing import carried
from counterpoint.sources.mimic.columns import HELPERS, MEASURED

VARIABLES = (*MEASURED, *HELPERS, "mechvent")
GCS_OF_RASS = {-1: 14, -2: 12, -3: 11, -4: 6, -5: 3}
CANNULA = ((15, 70), (12, 62), (10, 55), (8, 50), (6, 44), (5, 40), (4, 36), (3, 32), (2, 28), (1, 24))
"""Litres of oxygen a minute, at most, and the percentage of oxygen that is breathed through a nasal cannula."""
MASK = ((15, 75), (12, 69), (10, 66), (8, 58), (6, 40), (4, 36))
DEVICES = {"cannula": (0, 2), "mask": (1, 3, 4, 5, 6, 9, 10), "rebreather": (7,)}
"""Codes of 09_events.sql."""


class Measurements(NamedTuple):
    """Measurements sorted by stay and time; NaN where a variable was not measured."""

    stay: np.ndarray
    time: np.ndarray
    values: dict[str, np.ndarray]


def record(stay: np.ndarray, time: np.ndarray, variable: np.ndarray, value: np.ndarray) -> Measurements:
    """Return one row per time from one row per measurement; both are sorted by stay and time."""
    new = (changes(stay) | changes(time))[: len(stay)]
    row = np.cumsum(new) - 1
    values = {}
    for name in VARIABLES:
        rows = variable == name
        values[name] = np.full(int(new.sum()), np.nan)
        values[name][row[rows]] = value[rows]
    return Measurements(stay[new], time[new], values)


def completed(seen: Measurements, hours: Mapping[str, float]) -> Measurements:
    """Fill measurements from others of the same time, and hold every value for its hours."""
    values = dict(seen.values)
    values["GCS"] = _where_missing(values["GCS"], _gcs(values["RASS"]))
    values["Temp_C"] = _celsius(values["Temp_C"], values["Temp_F"])
    values["Hb"] = _where_missing(values["Hb"], (values["Ht"] - 1.216) / 2.862)
    values["Total_bili"] = _where_missing(values["Total_bili"], (values["Direct_bili"] + 0.1752) / 0.6934)
    values |= _pressures(values["SysBP"], values["MeanBP"], values["DiaBP"])
    values["FiO2_100"] = _where_missing(values["FiO2_100"], 100 * values["FiO2_1"])
    before = held(
        Measurements(seen.stay, seen.time, {n: values[n] for n in ("FiO2_100", "O2flow", "Interface")}), hours
    )
    guess = _fio2(before.values["O2flow"], before.values["Interface"])
    values["FiO2_100"] = np.where(np.isnan(before.values["FiO2_100"]), guess, values["FiO2_100"])
    values["FiO2_1"] = _where_missing(values["FiO2_1"], values["FiO2_100"] / 100)
    return held(Measurements(seen.stay, seen.time, {name: values[name] for name in (*MEASURED, "mechvent")}), hours)


def held(seen: Measurements, hours: Mapping[str, float]) -> Measurements:
    """Carry every variable forward for its hours within a stay."""
    elapsed = np.where(changes(seen.stay), np.inf, np.diff(seen.time, prepend=0) / 3600)
    values = {
        name: carried(column[:, None], seen.stay, elapsed, hours[name])[:, 0] for name, column in seen.values.items()
    }
    return Measurements(seen.stay, seen.time, values)


def _where_missing(value: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(value), other, value)


def _gcs(rass: np.ndarray) -> np.ndarray:
    """Convert the Richmond agitation and sedation scale to the Glasgow coma scale."""
    gcs = np.where(rass >= 0, 15.0, np.nan)
    for level, score in GCS_OF_RASS.items():
        gcs[rass == level] = score
    return gcs


def _celsius(celsius: np.ndarray, fahrenheit: np.ndarray) -> np.ndarray:
    """Return temperatures in °C; 25 to 45 °F and more than 70 °C are in the wrong column."""
    swapped = (fahrenheit > 25) & (fahrenheit < 45)
    celsius = np.where(swapped, fahrenheit, celsius)
    fahrenheit = np.where(swapped, np.nan, fahrenheit)
    hot = celsius > 70
    fahrenheit = np.where(hot, celsius, fahrenheit)
    return _where_missing(np.where(hot, np.nan, celsius), (fahrenheit - 32) / 1.8)


def _pressures(systolic: np.ndarray, mean: np.ndarray, diastolic: np.ndarray) -> dict[str, np.ndarray]:
    """Compute the third pressure from two others, in this order."""
    diastolic = _where_missing(diastolic, (3 * mean - systolic) / 2)
    mean = _where_missing(mean, (systolic + 2 * diastolic) / 3)
    return {"SysBP": _where_missing(systolic, 3 * mean - 2 * diastolic), "MeanBP": mean, "DiaBP": diastolic}


def _fio2(flow: np.ndarray, device: np.ndarray) -> np.ndarray:
    """Return the percentage of oxygen from the device and its litres a minute; room air without oxygen."""
    at = {name: np.isin(device, codes) for name, codes in DEVICES.items()}
    share = np.full(len(flow), np.nan)
    share[at["cannula"] & np.isnan(flow)] = 21
    for name, table in (("cannula", CANNULA), ("mask", MASK)):
        for litres, percent in table:
            share[at[name] & (flow <= litres)] = percent
    for litres, percent in ((10, 90), (15, 100)):
        share[at["rebreather"] & (flow >= litres)] = percent
    for holds, percent in ((flow < 10, 80), (flow <= 8, 70), (flow <= 6, 60)):
        share[at["rebreather"] & holds] = percent
    return share
