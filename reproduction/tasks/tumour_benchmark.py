"""The tumour benchmark of Melnychuk et al., "Causal Transformer for estimating counterfactual outcomes", ICML 2022.

    V' = V·(1 + ρ ln(K/V) − β_c C − (α d + β d²) + e),    C = C₋₁/2 + 5·chemo,    d = 2·radio,    e ~ N(0, 0.01²)

Every patient has his own α, ρ and β_c; a forecaster sees only his type. Chemotherapy and radiotherapy are
each given with probability sigmoid(γ/13·(D̄ − 6.5)), D̄ a mean diameter: γ is how strongly treatment follows size.

Draws have the order of the published simulator and come from NumPy's frozen legacy stream: its seeds give its data
sets. Its peculiarities are kept, because the published numbers were scored on them: training patients are never treated
on their first day; a test patient's D̄ is taken from another row of the test set (see `tumour_questions.Board`); an
observed volume lies between zero and a ball of 13 cm, and an imagined one may lie outside.
"""

from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

from counterpoint.data.schema import Column, Schema
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.tasks.tumour import CHEMO_DOSE, RADIO_DOSE

DAYS = 60
NOISE = 0.01
WINDOW = 15
"""Days over which the diameter is averaged before a treatment is decided."""
CELLS = 5.8e8
"""Cells in a cm³; a patient recovers with the probability exp(−cells)."""
TREATMENTS = ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0))
"""(chemotherapy, radiotherapy)"""
STAGES = {  # number of patients seen; mean and deviation of the log diameter, smallest and largest diameter in cm
    "I": (1432, 1.72, 4.70, 0.3, 5.0),
    "II": (128, 1.96, 1.63, 0.3, 13.0),
    "IIIA": (1306, 1.91, 9.40, 0.3, 13.0),
    "IIIB": (7248, 2.76, 6.87, 0.3, 13.0),
    "IV": (12840, 3.86, 8.82, 0.3, 13.0),
}
SCHEMA = Schema(
    (Column("volume", unit="cm³"), Column("type", levels=("1", "2", "3"), static=True)),
    Discrete(TREATMENTS),
    ("chemo", "radio"),
)
OUTCOMES = ("died", "recovered")
Size = TypeVar("Size", float, ndarray)


def ball(diameter: Size) -> Size:
    """Volume in cm³ of a ball of `diameter` cm."""
    return 4 / 3 * np.pi * (diameter / 2) ** 3


CAPACITY, DEATH = ball(30), ball(13)


class Cohort(NamedTuple):
    """Patients before the first day; arrays with one value a patient."""

    volume: ndarray
    type: ndarray
    """1, 2 or 3: the first responds more to radiotherapy, the last to chemotherapy."""
    radio: ndarray
    """α, with β = α/10"""
    growth: ndarray
    """ρ"""
    chemo: ndarray
    """β_c"""

    def of(self, patient: ndarray | int) -> "Cohort":
        return Cohort(*(value[patient] for value in self))


def draw_cohort(count: int, random: np.random.RandomState) -> Cohort:
    """Draw patients: diameters log-normal by stage, (α, ρ) jointly normal and positive, β_c normal."""
    volume = _first_volumes(count, random)
    radio, growth = _radio_and_growth(count, random)
    kind = random.choice([1, 2, 3], count)
    chemo = 0.028 + 0.0007 * _between(-0.028 / 0.0007, np.inf, count, random)
    cohort = Cohort(volume, kind, radio + 0.1 * 0.0398 * (kind == 1), growth, chemo + 0.1 * 0.028 * (kind == 3))
    # Volumes were drawn stage by stage, so patients are shuffled.
    return cohort.of(random.permutation(count))


def _first_volumes(count: int, random: np.random.RandomState) -> ndarray:
    """Sorted by stage."""
    seen = np.array([stage[0] for stage in STAGES.values()])
    stage = random.choice(len(STAGES), count, p=seen / seen.sum())
    diameters = []
    for number, (_, mean, deviation, low, high) in enumerate(STAGES.values()):
        lowest, highest = (np.log([low, high]) - mean) / deviation
        drawn = _between(lowest, highest, int((stage == number).sum()), random)
        diameters.append(np.exp(mean + deviation * drawn))
    return ball(np.concatenate(diameters))


def _radio_and_growth(count: int, random: np.random.RandomState) -> ndarray:
    spread = np.array([0.168, 7.23e-3])
    covariance = np.outer(spread, spread) * [[1, 0.87], [0.87, 1]]
    accepted = np.empty((0, 2))
    while len(accepted) < count:
        drawn = random.multivariate_normal([0.0398, 7e-5], covariance, count)
        accepted = np.concatenate([accepted, drawn[(drawn > 0).all(1)]])
    return accepted[:count].T


def _between(low: float, high: float, count: int, random: np.random.RandomState) -> ndarray:
    """Standard normal draws cut to an interval."""
    from scipy.stats import truncnorm

    return np.asarray(truncnorm.rvs(low, high, size=count, random_state=random))


def relative_change(patient: Cohort, volume: ndarray, concentration: ndarray, radio: ndarray) -> ndarray:
    """(V' − V)/V without the noise."""
    dose = RADIO_DOSE * radio
    killed = patient.radio * dose + patient.radio / 10 * dose**2
    return patient.growth * np.log(CAPACITY / volume) - patient.chemo * concentration - killed


def diameter(volume: ndarray) -> ndarray:
    """Diameter in cm of a ball of `volume` cm³; NaN for a volume below zero."""
    with np.errstate(invalid="ignore"):
        return 2 * (volume / (4 / 3 * np.pi)) ** (1 / 3)


def treatment_probability(gamma: float, mean_diameter: ndarray) -> ndarray:
    """The chance of each treatment."""
    return 1 / (1 + np.exp(-gamma / 13 * (mean_diameter - 6.5)))


@dataclass
class Course:
    """Records of patients: column `t` of an array is day `t`. The last day has a volume and no treatment."""

    cohort: Cohort
    volume: ndarray
    flags: ndarray
    """Chemotherapy and radiotherapy of every day, 0 or 1, [patients, days, 2]"""
    length: ndarray
    """Days with a next day, for every patient."""
    outcome: ndarray
    """The index of the outcome in `OUTCOMES`, −1 where the record is cut."""

    @classmethod
    def start(cls, cohort: Cohort) -> "Course":
        count = len(cohort.volume)
        volume, flags = np.zeros((count, DAYS)), np.zeros((count, DAYS, 2))
        volume[:, 0] = cohort.volume
        return cls(cohort, volume, flags, np.full(count, DAYS - 1), np.full(count, -1))

    def treat(self, day: int, probability: ndarray, uniform: tuple[ndarray, ndarray], patients: ndarray) -> None:
        """Give each treatment to those whose uniform draw lies below the probability."""
        for column, drawn in enumerate(uniform):
            self.flags[patients, day, column] = drawn < probability

    def table(self) -> Transitions:
        """Return the days as forecasters see them: volume, type and two flags; a row for each day that has a next."""
        patient, day = np.nonzero(np.arange(DAYS) < self.length[:, None])
        last = day == self.length[patient] - 1
        ended = self.outcome[patient]
        return Transitions.logged(
            state=_numbers(self.volume[patient, day], self.cohort.type[patient] - 1),
            action=_numbers(*self.flags[patient, day].T),
            reward=torch.zeros(len(day)),
            next_state=_numbers(self.volume[patient, day + 1], self.cohort.type[patient] - 1),
            terminated=torch.from_numpy(last & (ended >= 0)),
            outcome=torch.from_numpy(np.where(last, ended, -1)),
            truncated=torch.from_numpy(last & (ended < 0)),
            subject=torch.from_numpy(patient),
            step=torch.from_numpy(day),
            schema=SCHEMA,
            outcome_names=OUTCOMES,
        )


def _numbers(*columns: ndarray) -> Float[Tensor, "n c"]:
    return torch.from_numpy(np.stack(columns, 1)).float()


class Noise(NamedTuple):
    """Exogenous draws, [patients, days] each."""

    volume: ndarray
    recovery: ndarray
    chemo: ndarray
    radio: ndarray

    @classmethod
    def draw(cls, shape: tuple[int, ...], random: np.random.RandomState) -> "Noise":
        return cls(NOISE * random.randn(*shape), *(random.rand(*shape) for _ in range(3)))


def simulate_training(count: int, gamma: float, random: np.random.RandomState) -> Course:
    """Simulate patients whose treatment follows the mean diameter of the fifteen days before; none on the first day."""
    course = Course.start(draw_cohort(count, random))
    noise = Noise.draw((count, DAYS), random)
    alive, drug, wide = np.arange(count), np.zeros(count), np.zeros((count, DAYS))
    for day in range(1, DAYS):
        before, patient = course.volume[alive, day - 1], course.cohort.of(alive)
        change = relative_change(patient, before, drug[alive], course.flags[alive, day - 1, 1])
        after = before * (1 + change + noise.volume[alive, day])
        wide[alive, day - 1] = diameter(before)
        mean = wide[alive, max(day - WINDOW, 0) : day].mean(1)
        course.treat(day, treatment_probability(gamma, mean), (noise.chemo[alive, day], noise.radio[alive, day]), alive)
        drug[alive] = drug[alive] / 2 + CHEMO_DOSE * course.flags[alive, day, 0]
        alive = _end(course, alive, day, after, noise.recovery[alive, day])
    return course


def _end(course: Course, alive: ndarray, day: int, after: ndarray, uniform: ndarray) -> ndarray:
    """Store the volumes and outcomes of a day; return the patients who go on."""
    died = after > DEATH
    recovered = ~died & (uniform < np.exp(-CELLS * after.clip(0)))
    course.volume[alive, day] = np.where(recovered, 0, after.clip(None, DEATH))
    ended = died | recovered
    course.length[alive[ended]] = day
    course.outcome[alive[ended]] = recovered[ended]
    return alive[~ended]
