"""The questions of the tumour benchmark: what volume follows every day of a test patient, under which treatments?

One step: all four treatments of the day, under the same noise. Several steps: the treatment that was given, then ten
random sequences of five; "n steps" counts from the day's volume, so the sequences end two to six steps after it.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from counterpoint.data.transitions import Transitions
from counterpoint.tasks.tumour import CHEMO_DOSE
from reproduction.tasks.tumour_benchmark import (
    CELLS,
    DAYS,
    DEATH,
    NOISE,
    TREATMENTS,
    WINDOW,
    Cohort,
    Course,
    Noise,
    diameter,
    draw_cohort,
    relative_change,
    simulate_training,
    treatment_probability,
)

TRAIN, VALIDATION, TEST = 10_000, 1_000, 1_000
"""Patients of the published sets."""
SEEDS = (10, 101, 1010, 10101, 101010)
PLANS, AHEAD = 10, 5
"""Random treatment sequences from every day, and their length."""
TINY = 1e-7
"""Added to volumes in the published counterfactuals, so that the logarithm of a vanished one is finite."""


@dataclass(frozen=True, eq=False)
class ForecastQueries:
    """For every row, the volumes after each step of its plans, to be predicted from its patient's rows until then."""

    rows: Transitions
    """Every day of every test patient; a prediction may use the state of its row, but not the next state."""
    plans: Float[Tensor, "n p h a"]
    """Treatments from the row's own day on."""
    truth: Float[Tensor, "n p scored"]
    """The volumes after the last steps of the plans; NaN for a plan that is not scored."""
    horizons: tuple[int, ...]
    """The numbers of those steps, counted from the row's volume."""


class TumourData(NamedTuple):
    """One published data set."""

    train: Transitions
    one_step: ForecastQueries
    several: ForecastQueries


def tumour_data(gamma: float, seed: int, patients: int = TRAIN, test: int = TEST) -> TumourData:
    """Simulate the data set of a seed and a strength of confounding."""
    random = np.random.RandomState(seed)
    train = simulate_training(patients, gamma, random).table()
    # The validation patients are not used, but the test patients are drawn after them.
    draw_cohort(patients // 10, random)
    Noise.draw((patients // 10, DAYS), random)
    return TumourData(train, one_step_questions(test, gamma, random), several_step_questions(test, gamma, random))


def one_step_questions(count: int, gamma: float, random: np.random.RandomState) -> ForecastQueries:
    """Simulate `count` patients; the questions are the four treatments of every day."""
    seen = _observe(draw_cohort(count, random), gamma, random, 0)
    truth = torch.from_numpy(_four(seen, *seen.days()))
    plans = torch.tensor(TREATMENTS)[:, None].expand(len(truth), 4, 1, 2)
    return ForecastQueries(seen.course.table(), plans, truth, (1,))


def several_step_questions(count: int, gamma: float, random: np.random.RandomState) -> ForecastQueries:
    """Simulate `count` patients; ten random sequences after every day. One whose volume vanishes is not scored."""
    seen = _observe(draw_cohort(count, random), gamma, random, AHEAD)
    patient, day = seen.days()
    first = seen.course.flags[patient, day][:, None, None].repeat(PLANS, 1)
    plans = torch.from_numpy(np.concatenate([first, seen.plans[patient, day]], 2)).float()
    truth = torch.from_numpy(_sequences(seen, patient, day))
    return ForecastQueries(seen.course.table(), plans, truth, tuple(range(2, AHEAD + 2)))


@dataclass
class Observed:
    """Test patients with their exogenous noise."""

    course: Course
    noise: ndarray
    """[patients, days and what lies ahead of the last]"""
    plans: ndarray
    """Drawn for every day, [patients, days, plans, steps, 2]"""
    drug: ndarray
    """The concentration of every day, its own dose included, [patients, days]"""

    @classmethod
    def start(cls, cohort: Cohort, ahead: int) -> "Observed":
        count = len(cohort.volume)
        plans = np.zeros((count, DAYS, PLANS, ahead, 2), np.int8)
        return cls(Course.start(cohort), np.zeros((count, DAYS + ahead)), plans, np.zeros((count, DAYS)))

    def days(self) -> tuple[ndarray, ndarray]:
        """Patient and day of every row, in the order of `Course.table`."""
        patient, day = np.nonzero(np.arange(DAYS) < self.course.length[:, None])
        return patient, day

    def step(self, patient: int, day: int, treatment: ndarray) -> None:
        """Simulate a day under a treatment; the next volume lies between zero and that of death."""
        course = self.course
        course.flags[patient, day] = treatment
        self.drug[patient, day] = (self.drug[patient, day - 1] / 2 if day else 0) + CHEMO_DOSE * treatment[0]
        before = course.volume[patient, day]
        change = relative_change(course.cohort.of(patient), before, self.drug[patient, day], treatment[1])
        after = before * (1 + change + self.noise[patient, day + 1])
        course.volume[patient, day + 1] = min(max(after, 0), DEATH)

    def ends(self, patient: int, day: int, uniform: float) -> bool:
        """Store and return whether the patient dies or recovers after a day."""
        after = self.course.volume[patient, day + 1]
        recovered = uniform <= np.exp(-CELLS * after)
        if after < DEATH and not recovered:
            return False
        self.course.length[patient], self.course.outcome[patient] = day + 1, int(after < DEATH)
        return True


def follow(seen: Observed, patient: ndarray, day: ndarray, plans: ndarray) -> ndarray:
    """Return volumes under plans [n, p, h, 2] from a day of a patient on, with that patient's noise, [n, p, h].

    A volume below zero stays as it is, and what follows it is NaN.
    """
    one = seen.course.cohort.of(patient[:, None])
    volume = seen.course.volume[patient, day][:, None]
    drug = np.where(day > 0, seen.drug[patient, day - 1], 0)[:, None]
    volumes = np.empty(plans.shape[:-1])
    for step in range(plans.shape[2]):
        drug = drug / 2 + CHEMO_DOSE * plans[:, :, step, 0]
        with np.errstate(invalid="ignore"):
            change = relative_change(one, volume + TINY, drug, plans[:, :, step, 1])
        volume = volume * (1 + change + seen.noise[patient, day + step + 1][:, None])
        volumes[:, :, step] = volume
    return volumes


def _four(seen: Observed, patient: ndarray, day: ndarray) -> ndarray:
    """Volumes after each of the four treatments, [n, 4, 1]; the recorded one for the treatment that was given."""
    plans = np.broadcast_to(np.array(TREATMENTS)[:, None], (len(day), 4, 1, 2))
    after = follow(seen, patient, day, plans)
    after[np.arange(len(day)), _given(seen, patient, day), 0] = seen.course.volume[patient, day + 1]
    return after


def _given(seen: Observed, patient: ndarray, day: ndarray) -> ndarray:
    """The index in `TREATMENTS` of the treatment that was given."""
    return (seen.course.flags[patient, day] @ [1, 2]).astype(int)


def _sequences(seen: Observed, patient: ndarray, day: ndarray) -> ndarray:
    """Volumes under each of a day's sequences, which begin on the next day; NaN for one that is not scored."""
    after = follow(seen, patient, day + 1, seen.plans[patient, day])
    after[np.isnan(after).any(2)] = np.nan
    return after


@dataclass
class Board:
    """The volumes by which the published code chooses a test patient's treatment.

    Instead of the patient's last days it reads row i of its test set, i the patient's number: one of the first
    questions about the first few patients, with zeros where nothing is written yet. With γ > 0 all test patients are
    therefore treated by the size of a few tumours.
    """

    volumes: ndarray
    filled: int = 0

    def mean_diameters(self, patient: int) -> ndarray:
        """Return the mean diameter over every day and the fifteen days before it; fewer where there are fewer."""
        padded = np.concatenate([np.zeros(WINDOW), diameter(self.volumes[patient, :DAYS])])
        return sliding_window_view(padded, WINDOW + 1).sum(1) / np.arange(1, DAYS + 1).clip(None, WINDOW + 1)

    def write(self, seen: Observed, patient: int, day: int) -> None:
        """Write a row for each question about a day, in the published order: the volumes until then, and the answer."""
        patients, days = np.array([patient]), np.array([day])
        if seen.plans.shape[3]:
            past, after = day + 2, _sequences(seen, patients, days)[0]
            after = after[~np.isnan(after).any(1)]
        else:
            first = _given(seen, patients, days)[0]
            past, after = day + 1, _four(seen, patients, days)[0, [first, *(a for a in (0, 2, 1, 3) if a != first)]]
        for answer in after[: len(self.volumes) - self.filled]:
            self.volumes[self.filled, :past] = seen.course.volume[patient, :past]
            self.volumes[self.filled, past : past + len(answer)] = answer
            self.filled += 1


def _observe(cohort: Cohort, gamma: float, random: np.random.RandomState, ahead: int) -> Observed:
    """Simulate test patients one after the other, in the published order of draws."""
    seen, count = Observed.start(cohort, ahead), len(cohort.volume)
    board = Board(np.zeros((count, DAYS + ahead + 1)))
    if ahead:
        random.randint(0, 2, (PLANS, ahead, 2))  # The published code draws sequences once before the first patient.
    for patient in range(count):
        seen.noise[patient] = NOISE * random.randn(DAYS + ahead)
        recovery, *uniform = random.rand(3, DAYS)
        treatment = uniform < treatment_probability(gamma, board.mean_diameters(patient))
        for day in range(DAYS - 1):
            seen.step(patient, day, treatment[:, day])
            if ahead:
                seen.plans[patient, day] = random.randint(0, 2, (PLANS, ahead, 2))
            if board.filled < count:
                board.write(seen, patient, day)
                treatment = uniform < treatment_probability(gamma, board.mean_diameters(patient))
            if seen.ends(patient, day, recovery[day]):
                break
    return seen
