"""The moving and static columns of the synthetic sepsis ward: scale, coefficients and limits of each.

    z = (link(x) − link(centre)) / spread,    link = identity, logarithm, or logit between the limits
    z' = z + rate·(Σ_j pull_j·driver_j − z) + treatment + noise·u,    u ~ N(0, 1)

A driver is the z of another column, or one of `DRIVERS`. Centres and spreads are set by hand so that the median and the
quartiles of the physician's patients lie near those of septic ones (reproduction/docs/sepsis.md); rates, pulls and
noises have the right sign and order of size and are fitted to nobody. The columns are those of Raghu et al. 2017 less
the number of the step and re-admission.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.data.shapes import State
from counterpoint.sources.mimic.columns import PLACE

DRIVERS = ("inflammation", "hypotension", "ventilated")


@dataclass(frozen=True)
class Moving:
    """A measured column that changes in time: its scale, and the coefficients of its equation."""

    name: str
    unit: str
    centre: float
    spread: float
    """What one z is on the scale of the link."""
    limits: tuple[float, float]
    rate: float
    """Share of the way to its target in four hours."""
    noise: float
    why: str
    """Reason for the pulls."""
    pulls: dict[str, float] = field(default_factory=dict)
    link: Literal["identity", "log", "logit"] = "identity"


TABLE = (
    Moving("WBC_count", "10³/µL", 8, 0.5, (0.1, 200), 0.10, 0.27, "falls as the infection is treated", {}, "log"),
    Moving("Temp_C", "°C", 36.2, 0.9, (30, 43), 0.15, 0.41, "fever follows the infection", {"WBC_count": 0.5}),
    Moving("MeanBP", "mmHg", 78, 13.5, (20, 180), 0.45, 0.54, "inflamed vessels give way; stiff lungs hinder the heart",
           {"inflammation": -1.1, "PaO2_FiO2": 0.2}),
    Moving("SysBP", "mmHg", 120, 21, (35, 260), 0.8, 0.34, "moves with the mean", {"MeanBP": 0.95}),
    Moving("DiaBP", "mmHg", 61, 13.5, (10, 140), 0.8, 0.34, "moves with the mean", {"MeanBP": 0.9}),
    Moving("HR", "/min", 77, 20, (25, 220), 0.35, 0.61, "rises with fever and low pressure",
           {"inflammation": 0.5, "hypotension": 0.4}),
    Moving("RR", "/min", 18.7, 6.2, (4, 60), 0.4, 0.68, "rises with acid and bad lungs; a ventilator calms it",
           {"Arterial_pH": -0.3, "PaO2_FiO2": -0.3, "ventilated": -0.3}),
    Moving("SpO2", "%", 98.2, 1.0, (50, 100), 0.5, 0.61, "follows the lung", {"PaO2_FiO2": 0.6}, "logit"),
    Moving("PaO2_FiO2", "mmHg", 400, 0.55, (40, 800), 0.08, 0.22, "an inflamed lung leaks and heals slowly",
           {"inflammation": -0.4}, "log"),
    Moving("FiO2_1", "", 0.34, 0.8, (0.2, 1.0), 0.5, 0.47, "set to what the lung needs",
           {"PaO2_FiO2": -0.8, "ventilated": 0.4}, "logit"),
    Moving("paCO2", "mmHg", 38, 0.32, (12, 130), 0.3, 0.54, "blown off where breathing is fast",
           {"RR": -0.3, "PaO2_FiO2": -0.2}, "log"),
    Moving("Arterial_lactate", "mmol/L", 1.45, 0.7, (0.2, 30), 0.22, 0.27, "tissue without blood makes lactate",
           {"hypotension": 0.9, "inflammation": 0.25, "Hb": -0.1}, "log"),
    Moving("Arterial_pH", "", 7.4, 0.1, (6.8, 7.75), 0.4, 0.47, "lactate, CO2 and bicarbonate make it",
           {"Arterial_lactate": -0.4, "paCO2": -0.35, "HCO3": 0.3}),
    Moving("Arterial_BE", "mmol/L", 1, 6.2, (-35, 30), 0.35, 0.41, "lactate and kidneys make it",
           {"Arterial_lactate": -0.5, "Creatinine": -0.2, "HCO3": 0.3}),
    Moving("HCO3", "mmol/L", 25, 6.5, (5, 50), 0.2, 0.41, "used up by lactate, diluted by chloride",
           {"Arterial_lactate": -0.5, "Chloride": -0.2}),
    Moving("CO2_mEqL", "mEq/L", 25, 5.6, (5, 52), 0.5, 0.41, "the laboratory's bicarbonate", {"HCO3": 0.9}),
    Moving("GCS", "", 14.1, 1.7, (3, 15), 0.2, 0.47, "a brain without blood is dull, a ventilated one sedated",
           {"hypotension": -0.4, "Arterial_lactate": -0.2, "ventilated": -0.9}, "logit"),
    Moving("Creatinine", "mg/dL", 0.95, 0.85, (0.2, 20), 0.07, 0.14, "kidneys fail where pressure is low or flow small",
           {"hypotension": 0.6, "output_4hourly": -0.3}, "log"),
    Moving("BUN", "mg/dL", 24, 0.8, (2, 200), 0.08, 0.14, "follows the kidneys", {"Creatinine": 0.8}, "log"),
    Moving("Potassium", "mEq/L", 3.95, 0.62, (1.8, 9), 0.2, 0.54, "kept back by failing kidneys",
           {"Creatinine": 0.3, "Arterial_pH": -0.2}),
    Moving("output_4hourly", "mL", 160, 1.1, (1, 4000), 0.6, 0.68, "no pressure, no urine",
           {"hypotension": -0.7, "Creatinine": -0.4}, "log"),
    Moving("Sodium", "mEq/L", 139, 7, (110, 175), 0.1, 0.27, "drifts"),
    Moving("Chloride", "mEq/L", 103, 9, (75, 145), 0.12, 0.27, "follows sodium", {"Sodium": 0.5}),
    Moving("Magnesium", "mg/dL", 2.0, 0.35, (0.6, 6), 0.15, 0.54, "kept back by failing kidneys", {"Creatinine": 0.2}),
    Moving("Calcium", "mg/dL", 8.4, 0.77, (4.5, 14), 0.12, 0.41, "carried by albumin", {"Albumin": 0.5}),
    Moving("Ionised_Ca", "mmol/L", 1.11, 0.09, (0.5, 2), 0.2, 0.54, "follows calcium", {"Calcium": 0.5}),
    Moving("Albumin", "g/dL", 3.3, 0.9, (1, 6), 0.05, 0.16, "leaks where inflamed", {"inflammation": -0.4}),
    Moving("Hb", "g/dL", 10.5, 1.65, (4, 20), 0.06, 0.24, "drifts; diluted by fluid"),
    Moving("Glucose", "mg/dL", 126, 0.33, (25, 900), 0.3, 0.68, "stress raises it", {"inflammation": 0.3}, "log"),
    Moving("Platelets_count", "10³/µL", 235, 0.6, (5, 1500), 0.06, 0.14, "used up by inflammation",
           {"inflammation": -0.4, "Arterial_lactate": -0.2}, "log"),
    Moving("INR", "", 1.33, 0.45, (0.6, 15), 0.1, 0.2, "a failing liver",
           {"Total_bili": 0.5, "Platelets_count": -0.2}, "log"),
    Moving("PT", "s", 14.8, 0.33, (8, 120), 0.5, 0.27, "measures the same as INR", {"INR": 0.95}, "log"),
    Moving("PTT", "s", 34, 0.38, (15, 150), 0.2, 0.41, "follows INR", {"INR": 0.5}, "log"),
    Moving("Total_bili", "mg/dL", 0.6, 1.05, (0.1, 50), 0.06, 0.16, "a failing liver",
           {"inflammation": 0.3, "hypotension": 0.3}, "log"),
    Moving("SGOT", "U/L", 40, 1.0, (5, 10000), 0.1, 0.27, "liver cells without blood die",
           {"hypotension": 0.5, "Total_bili": 0.2}, "log"),
    Moving("SGPT", "U/L", 26, 0.8, (4, 8000), 0.12, 0.2, "follows SGOT", {"SGOT": 0.85}, "log"),
)  # fmt: skip
MOVING = {column.name: i for i, column in enumerate(TABLE)}


class Static(NamedTuple):
    """A number that is constant within a stay, drawn from a normal distribution and clipped to its limits."""

    unit: str
    centre: float
    spread: float
    limits: tuple[float, float]


STATIC = {
    "Weight_kg": Static("kg", 82, 21, (35, 200)),
    "age": Static("years", 65, 16, (18, 91)),
    "elixhauser": Static("", 4, 2.5, (0, 15)),
}


class Constants(NamedTuple):
    """The columns of `TABLE` as tensors on a device."""

    places: Tensor
    low: Tensor
    high: Tensor
    centre: Tensor
    spread: Tensor
    log: Tensor
    logit: Tensor
    rate: Tensor
    noise: Tensor
    pulls: Float[Tensor, "drivers moving"]


@lru_cache(maxsize=8)
def constants(device: torch.device) -> Constants:
    """Return `TABLE` as tensors on the device of the states."""
    drivers = [*MOVING, *DRIVERS]
    numbers = lambda values: torch.tensor(values, device=device)
    low, high, centre = (
        numbers([float(x) for x in column])
        for column in zip(*((*row.limits, row.centre) for row in TABLE), strict=True)
    )
    log, logit = (numbers([row.link == link for row in TABLE]) for link in ("log", "logit"))
    return Constants(
        numbers([PLACE[name] for name in MOVING]),
        low,
        high,
        _link(centre, low, high, log, logit),
        numbers([row.spread for row in TABLE]),
        log,
        logit,
        numbers([row.rate for row in TABLE]),
        numbers([row.noise for row in TABLE]),
        numbers([[row.pulls.get(name, 0.0) for row in TABLE] for name in drivers]),
    )


def _link(x: Tensor, low: Tensor, high: Tensor, log: Tensor, logit: Tensor) -> Tensor:
    """Apply the link function of each column; logit columns are clipped a thousandth inside their limits."""
    share = ((x - low) / (high - low)).clamp(1e-3, 1 - 1e-3)
    return torch.where(log, x.clamp(min=1e-6).log(), torch.where(logit, share.logit(), x))


def standardised(state: State) -> Float[Tensor, "*n moving"]:
    """Return every moving column in standard deviations from its centre."""
    c = constants(state.device)
    x = state[..., c.places].clamp(c.low, c.high)
    return (_link(x, c.low, c.high, c.log, c.logit) - c.centre) / c.spread


def measured(z: Float[Tensor, "*n moving"]) -> Float[Tensor, "*n moving"]:
    """Return the moving columns in their units, clipped to their limits."""
    c = constants(z.device)
    y = c.centre + c.spread * z
    x = torch.where(c.log, y.clamp(max=20).exp(), torch.where(c.logit, c.low + (c.high - c.low) * y.sigmoid(), y))
    return x.clamp(c.low, c.high)
