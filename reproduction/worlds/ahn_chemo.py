r"""AhnChemo of DTR-Bench: chemotherapy against a tumour, with normal cells that are not observed.

Ahn and Park, "Drug scheduling of cancer chemotherapy based on natural actor-critic approach", BioSystems 2011; in the
form of Luo et al., "DTR-Bench", 2024 (github.com/GilesLuo/DTRGym), with its parameters, drawn anew for every patient
within 5%. With normal cells N, tumour T, immune cells I, drug B and dose u, a day is the unit of time:

    Ṅ = r₂N(1 − b₂N) − c₄TN − a₃(1 − e^−B)N      Ṫ = r₁T(1 − b₁T) − c₂IT − c₃TN − a₂(1 − e^−B)T
    İ = s + ρIT/(α + T) − c₁IT − d₁I − a₁(1 − e^−B)I      Ḃ = −d₂B + u

A step is six hours; its reward is N/N₀ − T/T₀ − u, and −100 with death, where N falls below 0.7·N₀. Every rate is
multiplied by noise, and T, I and B are observed with 10% of error either way (their setting 3). The solver's noise is
theirs at every evaluation; here it is drawn for each half of a step. DTR-Bench has no behaviour policy: here, doses
follow the observed tumour with a habit of the patient's and log-normal noise, and are halved at few immune cells.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float

from counterpoint.data.knowledge import Knowledge
from counterpoint.data.spaces import ActionSpace, Box
from reproduction.worlds.base import Actions, Change, Columns, Hidden, Numbers, World

MEANS = {
    "r2": 1.0, "b2": 1.0, "c4": 1.0, "a3": 0.1, "r1": 1.5, "b1": 1.0, "c2": 0.5, "c3": 1.0, "a2": 0.3, "s": 0.33,
    "rho": 0.01, "alpha": 0.3, "c1": 1.0, "d1": 0.2, "a1": 0.2, "d2": 1.0,
}  # fmt: skip
START = (0.9, 0.2, 0.005)
"""First counts of normal, tumour and immune cells."""
DAYS = 0.25
"""Length of a step."""
DEATH, DEATH_REWARD = 0.7, -100.0
CELLS = 4
HALVES = 2


@dataclass(frozen=True)
class AhnChemo(World):
    """Six-hour decisions about one continuous dose between 0 and 1."""

    steps: int = 120
    """Steps of an episode; DTR-Bench has 600."""
    parameter_noise: float = 0.1
    """Width of the parameters' distribution around their means, as a share of them."""
    state_noise: float = 0.1
    """Standard deviation of the factor of every rate, and width of the first counts' distribution."""
    observation_noise: float = 0.2
    """Width of the observations' error, as a share of them."""
    spread: float = 0.3
    """Standard deviation of the logarithm of the behaviour policy's noise: more is more overlap."""

    name: ClassVar[str] = "ahn-chemo"
    state: ClassVar[tuple[str, ...]] = ("tumour", "immune", "drug")
    action: ClassVar[tuple[str, ...]] = ("dose",)
    marker: ClassVar[str] = "tumour"
    noise_size: ClassVar[float] = 0.01

    def begin(self, subjects: int, random: np.random.Generator) -> Hidden:
        def about(mean: float, width: float) -> Numbers:
            return mean * (1 + 0.5 * width * random.uniform(-1, 1, subjects))

        hidden: Hidden = {name: about(mean, self.parameter_noise) for name, mean in MEANS.items()}
        counts = [*(about(mean, self.state_noise) for mean in START), np.zeros(subjects)]
        hidden["cells"] = np.stack(counts, 1)
        hidden["first"] = hidden["cells"].copy()
        hidden["error"] = random.uniform(-0.5, 0.5, (subjects, 3))
        hidden["habit"] = np.exp(0.4 * random.standard_normal(subjects))
        return hidden

    def observe(self, hidden: Hidden) -> Columns:
        seen = hidden["cells"][:, 1:] * (1 + self.observation_noise * hidden["error"])
        seen = seen.clip(0.0, [2.0, 2.0, 1.0])
        return {name: seen[:, i] for i, name in enumerate(self.state)}

    def noise(self, subjects: int, random: np.random.Generator) -> Float[np.ndarray, "n u"]:
        rates = random.standard_normal((subjects, HALVES * CELLS))
        return np.concatenate([rates, random.uniform(-0.5, 0.5, (subjects, 3))], 1)

    def step(self, hidden: Hidden, action: Actions, noise: Float[np.ndarray, "n u"]) -> Change:
        dose = action[:, 0].clip(0.0, 1.0)
        before, first, cells = hidden["cells"], hidden["first"], hidden["cells"]
        factors = 1 + self.state_noise * noise[:, : HALVES * CELLS].reshape(-1, HALVES, CELLS)
        length = DAYS / HALVES
        for half in range(HALVES):
            factor = factors[:, half]
            one = factor * rates(hidden, cells, dose)
            two = factor * rates(hidden, cells + 0.5 * length * one, dose)
            three = factor * rates(hidden, cells + 0.5 * length * two, dose)
            four = factor * rates(hidden, cells + length * three, dose)
            cells = np.maximum(cells + length / 6 * (one + 2 * two + 2 * three + four), 0.0)
        died = cells[:, 0] < DEATH * first[:, 0]
        reward = before[:, 0] / first[:, 0] - before[:, 1] / first[:, 1] - dose
        after = {**hidden, "cells": cells, "error": noise[:, HALVES * CELLS :]}
        return Change(after, np.where(died, DEATH_REWARD, reward), died, died)

    def behave(self, hidden: Hidden, columns: Columns, random: np.random.Generator) -> Actions:
        wanted = hidden["habit"] * (columns["tumour"] - 0.08).clip(0) * 6.0
        wanted = wanted * np.where(columns["immune"] < 0.15, 0.5, 1.0)
        dose = wanted * np.exp(self.spread * random.standard_normal(len(wanted)))
        return np.round(dose, 3).clip(0, 1)[:, None]

    def textbook(self, columns: Columns) -> Actions:
        """Return a dose in proportion to the tumour."""
        return (3.0 * (columns["tumour"] - 0.08)).clip(0, 1)[:, None]

    @property
    def space(self) -> ActionSpace:
        return Box((0.0,), (1.0,))

    @property
    def knowledge(self) -> Knowledge:
        # Normal cells never exceed twice their first count, so that a step's best reward is below 2.
        return Knowledge(signs=(("dose", "tumour", -1),), reward_range=(DEATH_REWARD, 2.0))


def rates(hidden: Hidden, cells: Float[np.ndarray, "n 4"], dose: Numbers) -> Float[np.ndarray, "n 4"]:
    """Return the derivatives of the cell counts and of the drug."""
    normal, tumour, immune, drug = cells.T
    p, killing = hidden, 1 - np.exp(-drug)
    return np.stack(
        [
            p["r2"] * normal * (1 - p["b2"] * normal) - p["c4"] * tumour * normal - p["a3"] * killing * normal,
            p["r1"] * tumour * (1 - p["b1"] * tumour)
            - p["c2"] * immune * tumour
            - p["c3"] * tumour * normal
            - p["a2"] * killing * tumour,
            p["s"]
            + p["rho"] * immune * tumour / (p["alpha"] + tumour)
            - p["c1"] * immune * tumour
            - p["d1"] * immune
            - p["a1"] * killing * immune,
            -p["d2"] * drug + dose,
        ],
        1,
    )
