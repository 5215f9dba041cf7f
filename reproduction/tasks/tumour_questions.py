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
    Luck,
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
class Questions:
    """Row i asks for the volume after every step of each of its plans, given the rows of its patient before it."""

    rows: Transitions
    """Every day of every test patient; the state of a row may be used for its own questions, its next state may not."""
    plans: Float[Tensor, "n p h a"]
    """Treatments from the row's own day on."""
    truth: Float[Tensor, "n p scored"]
    """The volumes after the last steps of the plans; NaN for a plan that is not asked."""
    horizons: tuple[int, ...]
    """Which steps those are, counted from the row's volume."""


class TumourData(NamedTuple):
    """One published data set."""

    train: Transitions
    one_step: Questions
    several: Questions


def tumour_data(gamma: float, seed: int, patients: int = TRAIN, test: int = TEST) -> TumourData:
    """The data set of a seed and a strength of confounding."""
    random = np.random.RandomState(seed)
    train = simulate_training(patients, gamma, random).table()
    # The validation patients serve nobody here, but the test patients are drawn after them.
    draw_cohort(patients // 10, random)
    Luck.drawn((patients // 10, DAYS), random)
    return TumourData(train, one_step_questions(test, gamma, random), several_step_questions(test, gamma, random))


def one_step_questions(count: int, gamma: float, random: np.random.RandomState) -> Questions:
    """The four treatments of every day of `count` patients."""
    seen = _observe(draw_cohort(count, random), gamma, random, 0)
    truth = torch.from_numpy(_four(seen, *seen.days()))
    plans = torch.tensor(TREATMENTS)[:, None].expand(len(truth), 4, 1, 2)
    return Questions(seen.course.table(), plans, truth, (1,))


def several_step_questions(count: int, gamma: float, random: np.random.RandomState) -> Questions:
    """Ten random sequences after every day of `count` patients; one that loses its volume on the way is not asked."""
    seen = _observe(draw_cohort(count, random), gamma, random, AHEAD)
    patient, day = seen.days()
    given = seen.course.flags[patient, day][:, None, None].repeat(PLANS, 1)
    plans = torch.from_numpy(np.concatenate([given, seen.plans[patient, day]], 2)).float()
    truth = torch.from_numpy(_sequences(seen, patient, day))
    return Questions(seen.course.table(), plans, truth, tuple(range(2, AHEAD + 2)))


@dataclass
class Observed:
    """Test patients with what chance had in store for them."""

    course: Course
    noise: ndarray
    """[patients, days and what lies ahead of the last]"""
    plans: ndarray
    """Drawn for every day, [patients, days, plans, steps, 2]"""
    drug: ndarray
    """The concentration of every day, its own dose included, [patients, days]"""

    @classmethod
    def begun(cls, cohort: Cohort, ahead: int) -> "Observed":
        count = len(cohort.volume)
        plans = np.zeros((count, DAYS, PLANS, ahead, 2), np.int8)
        return cls(Course.begun(cohort), np.zeros((count, DAYS + ahead)), plans, np.zeros((count, DAYS)))

    def days(self) -> tuple[ndarray, ndarray]:
        """Patient and day of every row, in the order of `Course.table`."""
        patient, day = np.nonzero(np.arange(DAYS) < self.course.length[:, None])
        return patient, day

    def live(self, patient: int, day: int, given: ndarray) -> None:
        """A day with the treatments given; the next volume lies between none and that of death."""
        course = self.course
        course.flags[patient, day] = given
        self.drug[patient, day] = (self.drug[patient, day - 1] / 2 if day else 0) + CHEMO_DOSE * given[0]
        before = course.volume[patient, day]
        change = relative_change(course.cohort.of(patient), before, self.drug[patient, day], given[1])
        after = before * (1 + change + self.noise[patient, day + 1])
        course.volume[patient, day + 1] = min(max(after, 0), DEATH)

    def ends(self, patient: int, day: int, luck: float) -> bool:
        """Whether the patient dies or recovers after a day, which is then his last."""
        after = self.course.volume[patient, day + 1]
        recovered = luck <= np.exp(-CELLS * after)
        if after < DEATH and not recovered:
            return False
        self.course.length[patient], self.course.outcome[patient] = day + 1, int(after < DEATH)
        return True


def follow(seen: Observed, patient: ndarray, day: ndarray, plans: ndarray) -> ndarray:
    """Volumes under plans [n, p, h, 2] from a day of a patient on, with that patient's own noise, [n, p, h].

    A volume below zero stays as it is, and what follows it is NaN.
    """
    one = seen.course.cohort.of(patient[:, None])
    volume = seen.course.volume[patient, day][:, None]
    drug = np.where(day > 0, seen.drug[patient, day - 1], 0)[:, None]
    found = np.empty(plans.shape[:-1])
    for step in range(plans.shape[2]):
        drug = drug / 2 + CHEMO_DOSE * plans[:, :, step, 0]
        with np.errstate(invalid="ignore"):
            change = relative_change(one, volume + TINY, drug, plans[:, :, step, 1])
        volume = volume * (1 + change + seen.noise[patient, day + step + 1][:, None])
        found[:, :, step] = volume
    return found


def _four(seen: Observed, patient: ndarray, day: ndarray) -> ndarray:
    """The volume after each of the four treatments; that of the one given is the recorded one, [n, 4, 1]."""
    plans = np.broadcast_to(np.array(TREATMENTS)[:, None], (len(day), 4, 1, 2))
    after = follow(seen, patient, day, plans)
    after[np.arange(len(day)), _given(seen, patient, day), 0] = seen.course.volume[patient, day + 1]
    return after


def _given(seen: Observed, patient: ndarray, day: ndarray) -> ndarray:
    """The place in `TREATMENTS` of what a patient was given."""
    return (seen.course.flags[patient, day] @ [1, 2]).astype(int)


def _sequences(seen: Observed, patient: ndarray, day: ndarray) -> ndarray:
    """The volumes under each of a day's sequences, which begin on the next day; NaN for one that is not asked."""
    after = follow(seen, patient, day + 1, seen.plans[patient, day])
    after[np.isnan(after).any(2)] = np.nan
    return after


@dataclass
class Board:
    """The volumes from which the published code decides a test patient's treatment.

    It means to look up the patient's own last days and looks up row i of its test set, i the patient's number: one of
    the first questions about the first few patients, with zeros where nothing is written yet. With γ > 0 all test
    patients are therefore treated by the size of a handful of tumours.
    """

    volumes: ndarray
    filled: int = 0

    def mean_diameters(self, patient: int) -> ndarray:
        """For every day, over the fifteen days before it and itself; fewer where there are fewer."""
        padded = np.concatenate([np.zeros(WINDOW), diameter(self.volumes[patient, :DAYS])])
        return sliding_window_view(padded, WINDOW + 1).sum(1) / np.arange(1, DAYS + 1).clip(None, WINDOW + 1)

    def write(self, seen: Observed, patient: int, day: int) -> None:
        """A row for every question about a day, in the published order: the volumes until then, and the answer."""
        who, when = np.array([patient]), np.array([day])
        if seen.plans.shape[3]:
            past, after = day + 2, _sequences(seen, who, when)[0]
            after = after[~np.isnan(after).any(1)]
        else:
            first = _given(seen, who, when)[0]
            past, after = day + 1, _four(seen, who, when)[0, [first, *(a for a in (0, 2, 1, 3) if a != first)]]
        for answer in after[: len(self.volumes) - self.filled]:
            self.volumes[self.filled, :past] = seen.course.volume[patient, :past]
            self.volumes[self.filled, past : past + len(answer)] = answer
            self.filled += 1


def _observe(cohort: Cohort, gamma: float, random: np.random.RandomState, ahead: int) -> Observed:
    """Test patients one after the other, because each one's draws begin where the last one's ended."""
    seen, count = Observed.begun(cohort, ahead), len(cohort.volume)
    board = Board(np.zeros((count, DAYS + ahead + 1)))
    if ahead:
        random.randint(0, 2, (PLANS, ahead, 2))  # The published code draws sequences once before the first patient.
    for patient in range(count):
        seen.noise[patient] = NOISE * random.randn(DAYS + ahead)
        recovery, *treatments = random.rand(3, DAYS)
        given = treatments < treatment_probability(gamma, board.mean_diameters(patient))
        for day in range(DAYS - 1):
            seen.live(patient, day, given[:, day])
            if ahead:
                seen.plans[patient, day] = random.randint(0, 2, (PLANS, ahead, 2))
            if board.filled < count:
                board.write(seen, patient, day)
                given = treatments < treatment_probability(gamma, board.mean_diameters(patient))
            if seen.ends(patient, day, recovery[day]):
                break
    return seen
