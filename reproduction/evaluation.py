"""Off-policy evaluation against the truth: what `evaluate` says of policies of known value, from logs of known writers.

A row is (task, estimator, policy, repetition, estimate, low, high, truth, verdict). Every repetition of a task is a
file of its own, and so are the true values of its policies, so that a killed run goes on.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from counterpoint.core.artifacts import encode, recipe_hash, write_text
from counterpoint.core.errors import require
from counterpoint.core.results import made_by, provenance, where, write_csv, write_json
from counterpoint.core.seeding import derive
from counterpoint.core.settings import Count, Positive, check_settings
from counterpoint.ope.evaluation import OPESettings, evaluate
from reproduction.cells import carry_out, read_rows, refuse_failures, write_rows
from reproduction.executors import Executor, InProcess
from reproduction.grid import code_version
from reproduction.known_policies import GROUNDS, Ground
from reproduction.pages.evaluation import COLUMNS, evaluation_figure, evaluation_page
from reproduction.workers import Report, silent

TRUTH, KEPT = ("policy", "truth", "silent"), (*COLUMNS, "seconds")
"""What the rows of a finished cell have."""
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class TruthCell:
    """What the policies of one task are worth."""

    task: str
    trials: int

    @property
    def key(self) -> str:
        return recipe_hash(code_version(), self)


@dataclass(frozen=True)
class Cell:
    """One log of one task, and every policy judged from it."""

    task: str
    repetition: int
    judging: OPESettings
    truth: TruthCell

    @property
    def key(self) -> str:
        """What defines the cell, the code included."""
        return recipe_hash(code_version(), self)


def repetitions() -> dict[str, int]:
    """Logs of every task; those of HIV take longest to simulate."""
    return {"icu-sepsis": 50, "tumour": 20, "hiv": 3, "cartpole": 20}


@dataclass(frozen=True)
class EvaluationBenchmark:
    """What to run."""

    repetitions: Mapping[str, int] = field(default_factory=repetitions)
    """Logs of every task."""
    first: Count = 0
    """The first of them."""
    trials: Positive = 4000
    """Trials whose mean return is the truth, where it is not known exactly."""
    judging: OPESettings = OPESettings(alternative_behaviours=(), draws=400, critic_draws=50)
    """How policies are judged; the estimate of whoever logged may be the task's own."""
    name: str = "evaluation"
    """What the files are called."""

    def __post_init__(self) -> None:
        check_settings(self)
        unknown = [task for task in self.repetitions if task not in GROUNDS]
        require(not unknown, f"there is no task '{(unknown or [''])[0]}'; choose from {', '.join(GROUNDS)}")
        require(bool(self.cells()), "there is nothing to run; name a task and at least one repetition")

    def cells(self) -> list[Cell]:
        return [
            Cell(task, self.first + number, self.judging, TruthCell(task, self.trials))
            for task, count in self.repetitions.items()
            for number in range(count)
        ]

    def run(self, out: Path, executor: Executor = InProcess(), report: Report = silent, command: str = "") -> Rows:
        """Run what is not done yet; write `<name>.csv`, `.md`, `.png` and `.settings.json`."""
        folder = out / self.name / "cells"
        truths = list(dict.fromkeys(cell.truth for cell in self.cells()))
        failed = _carry_out(truths, find_truth, TRUTH, folder, executor, report)
        known = {cell.task: _kept(folder, cell, TRUTH) for cell in truths}
        asked = [cell for cell in self.cells() if known[cell.task]]
        failed += _carry_out(asked, run_cell, KEPT, folder, executor, report)
        cells = [[_judged(row, known[cell.task]) for row in _kept(folder, cell, KEPT)] for cell in asked]
        rows = self._write(out, cells, command)
        refuse_failures(failed, len(truths) + len(self.cells()), "cells")
        return rows

    def _write(self, out: Path, cells: Sequence[Rows], command: str) -> Rows:
        """The files of a run from its cells; a task whose policies could not be valued has none."""
        rows = [row for cell in cells for row in cell]
        write_csv(rows, out / f"{self.name}.csv", COLUMNS)
        write_json({**encode(self), **made_by(cells, "task"), **provenance()}, out / f"{self.name}.settings.json")
        if rows:
            write_text(out / f"{self.name}.md", evaluation_page(rows, command or "EvaluationBenchmark().run"))
            evaluation_figure(rows, out / f"{self.name}.png")
        return rows


def quick() -> EvaluationBenchmark:
    """One task that needs no extra, two logs: less than a minute."""
    judging = OPESettings(alternative_behaviours=(), draws=200, critic_draws=20)
    return EvaluationBenchmark({"tumour": 2}, trials=1000, judging=judging, name="evaluation-quick")


def _carry_out(
    cells: Sequence[Any], work: Callable[..., Rows], columns: Sequence[str], folder: Path, executor: Executor,
    report: Report,
) -> list[str]:  # fmt: skip
    left = [cell for cell in cells if read_rows(folder / f"{cell.key}.json", columns) is None]
    keep = lambda cell, rows: write_rows(folder / f"{cell.key}.json", rows)
    failures = folder.parent / f"{work.__name__}.failures.txt"
    return carry_out(left, work, keep, lambda cell: cell.task, len(cells), failures, executor, report)


@lru_cache(maxsize=1)
def _ground(task: str) -> Ground:
    return GROUNDS[task]()


def find_truth(cell: TruthCell, report: Report = silent) -> Rows:
    """A row for every policy: its value, and whether the log cannot speak of it."""
    ground = _ground(cell.task)
    seed = derive(0, "truth", cell.task)
    return [
        {"policy": name, "truth": ground.truth(name, cell.trials, seed), "silent": name == ground.silent}
        for name in ground.policies
    ]


def run_cell(cell: Cell, report: Report = silent) -> Rows:
    """A row for every policy and estimator; the true values are filled in from their own file."""
    begun, ground = time.perf_counter(), _ground(cell.task)
    rows = ground.log(derive(cell.repetition, "log", cell.task))
    found: Rows = []
    for name, policy in ground.policies.items():
        how = cell.judging if ground.behaviour is None else replace(cell.judging, behaviour=ground.behaviour)
        said = evaluate(rows, policy, how, name=name, seed=derive(cell.repetition, "judged", name))
        told = said.diagnostics
        for each in said.estimates:
            found.append(
                {"task": cell.task, "estimator": each.name, "policy": name, "repetition": cell.repetition,
                 "estimate": each.value, "low": each.low, "high": each.high, "truth": None, "verdict": said.verdict,
                 "recommended": each.name == said.recommended, "silent": None,
                 "effective": told and told.effective, "unsupported": told and told.unsupported,
                 "strayed": told and told.off_support}
            )  # fmt: skip
        report("policies", len(found), len(ground.policies) * len(said.estimates))
    return [{**row, "seconds": time.perf_counter() - begun, **where()} for row in found]


def _kept(folder: Path, cell: TruthCell | Cell, columns: Sequence[str]) -> Rows:
    return read_rows(folder / f"{cell.key}.json", columns) or []


def _judged(row: Mapping[str, Any], known: Rows) -> dict[str, Any]:
    """The row beside the truth of its policy."""
    own = next(each for each in known if each["policy"] == row["policy"])
    return {**row, "truth": own["truth"], "silent": own["silent"]}
