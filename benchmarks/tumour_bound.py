"""The least one-step error of the tumour benchmark: `python benchmarks/tumour_bound.py [--gammas 0 4] [--seeds 5]`.

A Bayesian who knows the true equation, the true noise and the true law of patients' parameters sees what every
forecaster sees, the volumes, treatments and types so far, and answers with the mean of what may follow. Growth and
response to radiotherapy lie on a grid, weighed by their law and by the likelihood of the record; the response to
chemotherapy, which hardly varies, is its mean. Nobody can do better on average. The last line is JSON.
"""

import argparse
import json

import numpy as np
import torch
from numpy import ndarray

from counterpoint.core.provenance import provenance
from counterpoint.core.tables import markdown_table
from counterpoint.ope.problem import Episodes
from counterpoint.tasks.tumour import CHEMO_DOSE
from reproduction.tasks.tumour_benchmark import DEATH, NOISE, Cohort, relative_change
from reproduction.tasks.tumour_questions import (
    SEEDS,
    ForecastQueries,
    tumour_data,
)

RADIO = np.arange(0.005, 0.76, 0.01)
GROWTH = np.arange(0.00025, 0.0325, 0.0005)
MEAN_RADIO, MEAN_GROWTH, MEAN_CHEMO = 0.0398, 7e-5, 0.028
"""Of the normal laws that parameters are drawn from, those above zero."""
SPREAD_RADIO, SPREAD_GROWTH, SPREAD_CHEMO, CORRELATION = 0.168, 7.23e-3, 0.0007, 0.87
MORE = 0.1
"""By how much the first type responds more to radiotherapy and the third more to chemotherapy, in units of the mean."""


def grid() -> tuple[ndarray, ndarray, ndarray]:
    """Responses to radiotherapy and growth on a grid, and the logarithm of their density up to a constant."""
    radio, growth = (table.ravel() for table in np.meshgrid(RADIO, GROWTH))
    a, b = (radio - MEAN_RADIO) / SPREAD_RADIO, (growth - MEAN_GROWTH) / SPREAD_GROWTH
    return radio, growth, -(a**2 - 2 * CORRELATION * a * b + b**2) / (2 * (1 - CORRELATION**2))


def patients(kind: ndarray, radio: ndarray, growth: ndarray) -> Cohort:
    """What patients of these types with these parameters are like."""
    chemo = MEAN_CHEMO * (1 + MORE * (kind == 2))
    return Cohort(growth, kind, radio + MORE * MEAN_RADIO * (kind == 0), growth, chemo)


def expected_volumes(asked: ForecastQueries) -> ndarray:
    """The mean volume after each treatment of every row, [rows, plans]."""
    episodes = Episodes.of(asked.rows)
    volume, kind, chemo, radio, after = (
        episodes.table(column.double()).numpy()
        for column in (*asked.rows.state.T, *asked.rows.action.T, asked.rows.next_state[:, 0])
    )
    points, slopes, weight = grid()
    belief = np.tile(weight, (len(episodes), 1))
    plans, answer = asked.plans[:, :, 0].double().numpy(), np.zeros(asked.plans.shape[:2])
    drug = np.zeros(len(episodes))
    for day in range(volume.shape[1]):
        live = np.nonzero(episodes.present[:, day].numpy())[0]
        now, type_ = volume[live, day], kind[live, day]
        share = np.exp(belief[live] - belief[live].max(1, keepdims=True))
        share /= share.sum(1, keepdims=True)
        mean, rows = patients(type_, share @ points, share @ slopes), episodes.places[live, day].numpy()
        for plan in range(answer.shape[1]):
            given = plans[rows, plan]
            change = relative_change(mean, now, drug[live] / 2 + CHEMO_DOSE * given[:, 0], given[:, 1])
            answer[rows, plan] = now * (1 + change)
        drug[live] = drug[live] / 2 + CHEMO_DOSE * chemo[live, day]
        belief[live] += likelihood(now, after[live, day], type_, drug[live], radio[live, day], points, slopes)
    return answer


def likelihood(
    now: ndarray, after: ndarray, kind: ndarray, drug: ndarray, radio: ndarray, points: ndarray, slopes: ndarray
) -> ndarray:
    """Log likelihood of a day at every point of the grid; a volume cut at none or at death tells nothing."""
    wide = lambda x: x[:, None]
    change = relative_change(patients(wide(kind), points, slopes), wide(now), wide(drug), wide(radio))
    spread = np.sqrt(NOISE**2 + (SPREAD_CHEMO * drug) ** 2)
    known = (after > 0) & (after < DEATH * (1 - 1e-6))
    off = (wide(after / now - 1) - change) / wide(spread)
    return np.where(wide(known), -(off**2) / 2, 0.0)


def error(gamma: float, seed: int) -> float:
    """In percent of the largest volume, as the benchmark has it."""
    asked = tumour_data(gamma, seed).one_step
    apart = expected_volumes(asked) - asked.truth[:, :, 0].numpy()
    return float(100 * np.sqrt((apart**2).mean()) / DEATH)


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--gammas", type=float, nargs="+", default=[0.0, 1.0, 2.0, 3.0, 4.0])
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="the first of the published ones")
    options = parser.parse_args()
    results = {gamma: [error(gamma, seed) for seed in SEEDS[: options.seeds]] for gamma in options.gammas}
    table = [
        {"γ": gamma, "least error": f"{np.mean(each):.3f}", "by seed": ", ".join(f"{x:.3f}" for x in each)}
        for gamma, each in results.items()
    ]
    print(markdown_table(table))
    print(json.dumps({"least_error": {str(g): float(np.mean(e)) for g, e in results.items()}, **provenance()}))


if __name__ == "__main__":
    main()
