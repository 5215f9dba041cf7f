"""The paper's sepsis experiment (section 5.2, Figure 3), and beside it what can be believed of it.

A row is (seed, policy, estimator, value, low, high, truth, verdict, …): what the records of patients whom nobody
learned from say of a policy and, on the synthetic cohort, what it is truly worth to unseen patients. Every seed is a
cell in a file of its own: another synthetic cohort, or another split of a table. A killed run goes on.
"""

import shutil
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from counterpoint.core.artifacts import device_of, encode, recipe_hash, write_text
from counterpoint.core.results import made_by, provenance, where, write_csv, write_json
from counterpoint.core.settings import Count, Positive, check_settings
from counterpoint.data import storage
from counterpoint.nets.training import Monitor
from counterpoint.ope.behaviour import Logistic
from counterpoint.ope.evaluation import OPESettings
from counterpoint.ope.result import Evaluation
from counterpoint.policies.personal import PersonalPolicy
from reproduction.cells import carry_out, read_rows, refuse_failures, write_rows
from reproduction.executors import Executor, InProcess
from reproduction.grid import code_version
from reproduction.pages.sepsis import COLUMNS, sepsis_page
from reproduction.pages.sepsis_figure import sepsis_figure
from reproduction.sepsis_arms import CTRL_G, PERSONAL, PHYSICIAN, SEARCH_G, Fitted, Learning, SepsisArms
from reproduction.sepsis_cohort import Cohort, Split, SyntheticPatients, one_ending, with_numbers
from reproduction.sepsis_findings import (
    action_counts,
    discounted,
    dose_differences,
    dose_levels,
    estimates_of,
    groups_of,
    logged_row,
    mortality_by_return,
    q_values,
    self_graded,
    taken,
)
from reproduction.sepsis_judging import examined, judged_policies, true_values
from reproduction.workers import Report, silent

CELL = ("seed", "ending", "sizes", "judged", "mean_q", "counts", "mortality", "doses", "groups", "models")
REPORTED = SEARCH_G
"""The policy whose report is written: one that can be read."""
JUDGING = OPESettings(behaviour=Logistic(penalty=100.0), alternative_behaviours=(), draws=400, critic_draws=50)
"""Of 25 actions most are rare: a strong ridge keeps their probabilities from being taken for nearly none (seed 100: as
good a Brier score, 0.851, and more than twice the effective patients)."""
Cells = list[dict[str, Any]]


@dataclass(frozen=True)
class Cell:
    """One seed."""

    cohort: Cohort
    arms: SepsisArms
    judging: OPESettings
    trials: int
    seed: int

    @property
    def key(self) -> str:
        """What defines the cell, the code included."""
        return recipe_hash(code_version(), self)


@dataclass(frozen=True)
class Sepsis:
    """What to run."""

    cohort: Cohort = SyntheticPatients()
    """Who is treated."""
    arms: SepsisArms = SepsisArms()
    """What is learned."""
    seeds: Positive = 10
    """Cohorts, or splits of a table."""
    first_seed: Count = 0
    """The first of them; settings were chosen on seeds from 100 on."""
    trials: Positive = 2000
    """Unseen patients on whom policies are tried, where the truth is known."""
    judging: OPESettings = JUDGING
    """How policies are judged from the records of held-out patients."""
    name: str = "sepsis"
    """What the files are called."""

    def __post_init__(self) -> None:
        check_settings(self)

    def cells(self) -> list[Cell]:
        seeds = range(self.first_seed, self.first_seed + self.seeds)
        return [Cell(self.cohort, self.arms, self.judging, self.trials, seed) for seed in seeds]

    def run(
        self, out: Path, executor: Executor = InProcess(), device: str = "cpu", report: Report = silent,
        command: str = "",
    ) -> Cells:  # fmt: skip
        """Run what is not done yet; write `<name>.csv`, `.md`, `.png` and `.settings.json`."""
        folder, cells = out / self.name, self.cells()
        left = [cell for cell in cells if read_rows(_path(folder, cell), CELL) is None]
        work = partial(run_cell, folder=folder.resolve(), device=device, first=self.first_seed)
        failed = carry_out(
            left, work, partial(_keep, folder), lambda cell: f"seed {cell.seed}", len(cells),
            out / f"{self.name}.failures.txt", executor, report,
        )  # fmt: skip
        found = [row for cell in cells for row in read_rows(_path(folder, cell), CELL) or ()]
        refuse_failures(failed if not found else [], len(cells), "seeds")
        self._write(out, found, command)
        refuse_failures(failed, len(cells), "seeds")
        return found

    def _write(self, out: Path, found: Cells, command: str) -> None:
        rows = [row for cell in found for row in cell["judged"]]
        write_csv(rows, out / f"{self.name}.csv", COLUMNS)
        write_json(
            {**encode(self), **made_by([[cell] for cell in found], "seed"), **provenance()},
            out / f"{self.name}.settings.json",
        )
        write_text(out / f"{self.name}.md", sepsis_page(found, command or "Sepsis().run", self.name))
        if rows:
            sepsis_figure(found, out / f"{self.name}.png")

    def parts(self, out: Path) -> Path:
        """Where the first seed's table, model, searched policy and what was found of it lie, for the report of a run;
        nothing is there where no policy can be judged."""
        return out / self.name / "run-parts" / self.cells()[0].key


def run_cell(
    cell: Cell, report: Report = silent, *, folder: Path, device: str = "cpu", first: int | None = None
) -> Cells:
    """Learn and judge everything of one seed; of the `first` one, keep what its report is made of."""
    begun, task = time.perf_counter(), cell.cohort.task(cell.seed)
    rows = cell.cohort.read(cell.seed)
    split, ending = Split.of(rows, cell.seed), one_ending(rows)
    found = {"seed": cell.seed, "ending": ending, "sizes": split.sizes(), **{key: [] for key in CELL[3:]}}
    if not ending:
        monitor = Monitor(folder / "checkpoints" / cell.key / device_of(device).type, True, report, save_seconds=30.0)
        fitted = Learning(cell.arms, split, cell.seed, monitor, device).fit()
        judged = judged_policies(cell.judging, split, fitted, cell.seed, monitor)
        truths = true_values(fitted, cell.trials) if task is not None else {}
        found |= {"judged": _estimates(judged, cell.seed, truths), **_doings(split, fitted, judged)}
        found["models"] = examined(rows, split, fitted, task, cell.seed)
        if cell.seed == first and REPORTED in judged:
            _keep_parts(folder / "run-parts" / cell.key, split, fitted, judged[REPORTED])
    return [{**found, "seconds": time.perf_counter() - begun, **where()}]


def _estimates(judged: dict[str, Evaluation], seed: int, truths: dict[str, float]) -> Cells:
    first = next(iter(judged.values()))
    rows = [logged_row(first, seed, PHYSICIAN, truths.get(PHYSICIAN))]
    return [*rows, *(row for name, each in judged.items() for row in estimates_of(each, seed, truths.get(name)))]


def _doings(split: Split, fitted: Fitted, judged: dict[str, Evaluation]) -> dict[str, Any]:
    """Figure 3 on the test patients, and who died among all held-out ones."""
    test, aside, discount = split.test, split.held_out, fitted.task.discount
    levels = dose_levels(test)
    counts = {PHYSICIAN: action_counts(test.action_index, levels)}
    mean_q: Cells = [{"policy": PHYSICIAN, "own": float(discounted(test, discount).mean()), "clinicians": None}]
    mortality, doses, groups = [], [], []
    for name, policy in fitted.policies.items():
        tested, rows = (with_numbers(part) if name in PERSONAL else part for part in (test, aside))
        action, values, later = taken(policy, rows), q_values(policy, tested), q_values(policy, rows)
        counts[name] = action_counts(taken(policy, tested), levels)
        doses += [{"policy": name, **each} for each in dose_differences(action, rows)]
        if values is not None and later is not None:
            mean_q.append({"policy": name, **self_graded(values, test.action_index)})
            mortality += [{"policy": name, **each} for each in mortality_by_return(later, rows)]
        if isinstance(policy, PersonalPolicy) and policy.groups is not None:
            groups += [{"policy": name, **each} for each in groups_of(policy, rows, action, judged[name])]
    return {"mean_q": mean_q, "counts": counts, "mortality": mortality, "doses": doses, "groups": groups}


def _keep_parts(folder: Path, split: Split, fitted: Fitted, judged: Evaluation) -> None:
    """What the report of a run is made of."""
    folder.mkdir(parents=True, exist_ok=True)
    storage.write(split.everybody, folder / "data.parquet")
    fitted.task.save(folder / "task")
    fitted.models[CTRL_G].save(folder / "scm")
    fitted.policies[REPORTED].save(folder / "policy")
    write_text(folder / "evaluation.json", judged.text())


def _path(folder: Path, cell: Cell) -> Path:
    return folder / "cells" / f"{cell.key}.json"


def _keep(folder: Path, cell: Cell, rows: Cells) -> None:
    """The cell into its own file, whole or absent; then the checkpoints have served."""
    write_rows(_path(folder, cell), rows)
    shutil.rmtree(folder / "checkpoints" / cell.key, ignore_errors=True)
