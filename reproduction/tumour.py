"""The tumour benchmark: forecasters fitted on the published training patients and scored on the published questions.

A row is (model, patients, gamma, horizon, seed, nrmse). A cell is a forecaster, a number of patients, γ and a seed.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from counterpoint.core.artifacts import write_text
from counterpoint.core.errors import require
from counterpoint.core.seeding import derive
from counterpoint.core.settings import Positive, Range, Weight, Widths, check_settings
from reproduction.experiment import Cell, Context, Experiment, Rows
from reproduction.measures.forecasting import (
    CopyLast,
    Forecaster,
    PooledRegression,
    SubjectEffects,
    rmse_by_horizon,
)
from reproduction.pages.tumour import COLUMNS, FIT_SECONDS, tumour_figure, tumour_page
from reproduction.tasks.tumour_benchmark import DEATH
from reproduction.tasks.tumour_questions import SEEDS, TEST, TRAIN, TumourData, tumour_data

Seeds = tuple[Annotated[int, Range(0, 2**32 - 1)], ...]


def forecasters() -> dict[str, Forecaster]:
    """Return every forecaster by its name in the table."""
    return {
        "copy the last volume": CopyLast(),
        "pooled linear regression": PooledRegression(),
        "random effects": SubjectEffects(),
    }


@dataclass(frozen=True)
class TumourRecipe:
    """One forecaster, fitted on the first patients of one data set."""

    forecaster: Forecaster
    patients: int
    gamma: float
    seed: int
    test: int = TEST


@dataclass(frozen=True)
class TumourBenchmark(Experiment):
    """Every forecaster on every data set, with several numbers of training patients."""

    patients: Widths = (10_000, 1000, 300, 100)
    """Training patients; the smaller sets are the first patients of the largest."""
    gammas: tuple[Weight, ...] = (0.0, 1.0, 2.0, 3.0, 4.0)
    """How strongly treatment followed the size of the tumour."""
    seeds: Seeds = SEEDS
    """Data sets; the published five."""
    test: Positive = TEST
    """Test patients of each kind of question."""
    forecasters: Mapping[str, Forecaster] = field(default_factory=forecasters)
    """Models by their names in the table."""
    name: str = "tumour"

    columns = COLUMNS

    def __post_init__(self) -> None:
        check_settings(self)
        require(max(self.patients, default=0) <= TRAIN, f"the benchmark has {TRAIN} patients; set patients to fewer")
        require(bool(self.cells()), "there is nothing to run; name patients, gammas, seeds and a model")

    def cells(self) -> list[Cell]:
        """Those of one data set one after the other, so that it is simulated once."""
        cells = []
        for gamma in self.gammas:
            for seed in self.seeds:
                for name, forecaster in self.forecasters.items():
                    for patients in self.patients:
                        recipe = TumourRecipe(forecaster, patients, gamma, seed, self.test)
                        labels = {"model": name, "patients": patients, "gamma": gamma, "seed": seed}
                        cells.append(Cell(fit_and_score, recipe, name, labels))
        return cells

    def page(self, rows: Rows, out: Path) -> None:
        write_text(out / f"{self.name}.md", tumour_page(rows, self.command))
        tumour_figure(rows, out / f"{self.name}.png")


def quick() -> TumourBenchmark:
    """Two strengths of confounding, few patients, one seed: less than a minute."""
    return TumourBenchmark((300, 100), (0.0, 4.0), SEEDS[:1], test=100, name="tumour-quick")


@lru_cache(maxsize=1)
def _data(gamma: float, seed: int, test: int) -> TumourData:
    return tumour_data(gamma, seed, test=test)


def fit_and_score(recipe: TumourRecipe, context: Context) -> Rows:
    """Return a row for each horizon."""
    data = _data(recipe.gamma, recipe.seed, recipe.test)
    train = data.train[data.train.subject < recipe.patients]
    begun = time.process_time()
    forecast = recipe.forecaster.fit(train, derive(recipe.seed, "training"))
    seconds = time.process_time() - begun
    rows = []
    for questions in (data.one_step, data.several):
        volumes = forecast(questions.rows, questions.plans)[:, :, -len(questions.horizons) :]
        errors = 100 * rmse_by_horizon(volumes, questions.truth) / DEATH
        for horizon, error in zip(questions.horizons, errors, strict=True):
            rows.append({"horizon": horizon, "nrmse": float(error), FIT_SECONDS: seconds})
    return rows
