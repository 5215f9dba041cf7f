"""The tumour benchmark: forecasters fitted on the published training patients and asked the published questions.

A row is (model, patients, gamma, horizon, seed, nrmse). Every finished cell (model × patients × γ × seed) is a file of
its own, with the processor seconds of its fit, so a killed run goes on.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from counterpoint.core.artifacts import encode, recipe_hash, write_text
from counterpoint.core.errors import require
from counterpoint.core.results import made_by, provenance, where, write_csv, write_json
from counterpoint.core.seeding import derive
from counterpoint.core.settings import Positive, Range, Weight, Widths, check_settings
from reproduction.cells import carry_out, read_rows, refuse_failures, write_rows
from reproduction.executors import Executor, InProcess
from reproduction.grid import code_version
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
from reproduction.workers import Report, silent

KEPT = (*COLUMNS, FIT_SECONDS, "seconds")
"""What the rows of a finished cell have."""
Seeds = tuple[Annotated[int, Range(0, 2**32 - 1)], ...]


def forecasters() -> dict[str, Forecaster]:
    """Every forecaster, by the name it has in the table."""
    return {
        "copy the last volume": CopyLast(),
        "pooled linear regression": PooledRegression(),
        "random effects": SubjectEffects(),
    }


@dataclass(frozen=True)
class Cell:
    """One forecaster, fitted on the first patients of one data set."""

    model: str
    forecaster: Any
    patients: int
    gamma: float
    seed: int
    test: int = TEST

    @property
    def key(self) -> str:
        """What defines the cell, the code included."""
        return recipe_hash(code_version(), self)


@dataclass(frozen=True)
class TumourBenchmark:
    """What to run."""

    patients: Widths = (10_000, 1000, 300, 100)
    """Training patients; the smaller sets are the first patients of the largest."""
    gammas: tuple[Weight, ...] = (0.0, 1.0, 2.0, 3.0, 4.0)
    """How strongly treatment followed the size of the tumour."""
    seeds: Seeds = SEEDS
    """Data sets; the published five."""
    test: Positive = TEST
    """Test patients of each kind of question."""
    forecasters: Mapping[str, Forecaster] = field(default_factory=forecasters)
    """Who is asked."""
    name: str = "tumour"
    """What the files are called."""

    def __post_init__(self) -> None:
        check_settings(self)
        require(max(self.patients, default=0) <= TRAIN, f"the benchmark has {TRAIN} patients; set patients to fewer")
        require(bool(self.cells()), "there is nothing to run; name patients, gammas, seeds and a model")

    def cells(self) -> list[Cell]:
        """Those of one data set one after the other, so that it is simulated once."""
        each = product(self.gammas, self.seeds, self.forecasters.items(), self.patients)
        return [Cell(name, who, patients, gamma, seed, self.test) for gamma, seed, (name, who), patients in each]

    def run(
        self, out: Path, executor: Executor = InProcess(), report: Report = silent, command: str = ""
    ) -> list[dict[str, Any]]:
        """Run what is not done yet; write `<name>.csv`, `.md`, `.png` and `.settings.json`."""
        cells, folder = self.cells(), out / self.name / "cells"
        left = [cell for cell in cells if read_rows(folder / f"{cell.key}.json", KEPT) is None]
        keep = lambda cell, rows: write_rows(folder / f"{cell.key}.json", rows)
        named, failures = lambda cell: cell.model, out / f"{self.name}.failures.txt"
        failed = carry_out(left, run_cell, keep, named, len(cells), failures, executor, report)
        rows = self._write(out, folder, command)
        refuse_failures(failed, len(cells), "cells")
        return rows

    def _write(self, out: Path, folder: Path, command: str) -> list[dict[str, Any]]:
        """The files of a run from its cells."""
        cells = [read_rows(folder / f"{cell.key}.json", KEPT) or [] for cell in self.cells()]
        rows = [row for cell in cells for row in cell]
        write_csv(rows, out / f"{self.name}.csv", COLUMNS)
        write_json({**encode(self), **made_by(cells, "model"), **provenance()}, out / f"{self.name}.settings.json")
        if rows:
            write_text(out / f"{self.name}.md", tumour_page(rows, command or "TumourBenchmark().run"))
            tumour_figure(rows, out / f"{self.name}.png")
        return rows


def quick() -> TumourBenchmark:
    """Two strengths of confounding, few patients, one seed: less than a minute."""
    return TumourBenchmark((300, 100), (0.0, 4.0), SEEDS[:1], test=100, name="tumour-quick")


@lru_cache(maxsize=1)
def _data(gamma: float, seed: int, test: int) -> TumourData:
    return tumour_data(gamma, seed, test=test)


def run_cell(cell: Cell, report: Report = silent) -> list[dict[str, Any]]:
    """A row for every horizon."""
    begun = time.perf_counter()
    data = _data(cell.gamma, cell.seed, cell.test)
    train = data.train[data.train.subject < cell.patients]
    fitting = time.process_time()
    forecast = cell.forecaster.fit(train, derive(cell.seed, "training"))
    fitted = time.process_time() - fitting
    rows = []
    for asked in (data.one_step, data.several):
        answer = forecast(asked.rows, asked.plans)[:, :, -len(asked.horizons) :]
        errors = 100 * rmse_by_horizon(answer, asked.truth) / DEATH
        rows += [
            {"model": cell.model, "patients": cell.patients, "gamma": cell.gamma, "horizon": horizon,
             "seed": cell.seed, "nrmse": float(error), FIT_SECONDS: fitted}
            for horizon, error in zip(asked.horizons, errors, strict=True)
        ]  # fmt: skip
    return [{**row, "seconds": time.perf_counter() - begun, **where()} for row in rows]
