"""The frame of all experiments: cells that run once and are stored, and a page that is made from their rows.

An experiment is a frozen dataclass that derives from `Experiment` and names methods, data and seeds:

    @dataclass(frozen=True)
    class Forecasts(Experiment):
        seeds: int = 5
        name: str = "forecasts"
        columns = ("method", "seed", "error")

        def cells(self) -> list[Cell]:
            return [Cell(forecast, ForecastRecipe(seed), "linear regression") for seed in range(self.seeds)]

        def page(self, rows: Rows, out: Path) -> None:
            write_text(out / f"{self.name}.md", forecasts_page(rows))

    def forecast(recipe: ForecastRecipe, context: Context) -> Rows:
        ...

`run([Forecasts()], out, executor)` then does the rest. It runs the cells that are not stored, with `executor`. A
finished cell is one file in `<out>/<name>/cells/`, written whole or not at all. An interrupted cell resumes from its
checkpoints. When the last cell of an experiment is done, the frame writes `<name>.csv` (the experiment's `columns` of
all rows, in the order of `cells()`), `<name>.settings.json`, and calls `page`. Failed cells are listed in
`<name>.failures.csv` and run again by the next call.

A cell is the smallest piece that is run and stored: everything that trains in one stack is one cell, because the rows
of a stack depend on what trains beside them. So the experiment's definition alone fixes the cells, never the executor
or what is already stored. A cell is identified by a hash of its recipe and of the source code that it runs
(`source_hash.py`): its rows are reused as long as both are the same. All that rows depend on must be in the recipe,
except the device.
"""

import fcntl
import gc
import json
import shutil
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from counterpoint.core.artifacts import device_of, encode, recipe_hash, write_text
from counterpoint.core.errors import CounterpointError
from counterpoint.core.provenance import provenance
from counterpoint.core.tables import write_csv, write_json
from counterpoint.nets.training import Monitor
from reproduction.executors import Executor, Failure, InProcess, Report, silent
from reproduction.source_hash import source_hash

Rows = list[dict[str, Any]]


def recipe_key(function: Callable[..., Any], recipe: Any) -> str:
    """The hash that identifies the result of `function(recipe)`: of the recipe and of the code that it runs."""
    return recipe_hash(source_hash(function, recipe), recipe)


@dataclass(frozen=True)
class Context:
    """What the function of a cell is given beside its recipe. The rows must not depend on it, except on the device."""

    key: str
    """The cell's key."""
    folder: Path
    """The experiment's folder, `<out>/<name>`, absolute."""
    monitor: Monitor = Monitor()
    """Where training writes checkpoints and progress. Stages need names that differ within the cell."""
    device: str = "cpu"

    @property
    def report(self) -> Report:
        """Reports progress as report(stage, done, total)."""
        return self.monitor.report

    @property
    def shared(self) -> Path:
        """A folder for files that several cells use. It is deleted when all cells of the experiment are done."""
        return self.folder / "shared"


@dataclass(frozen=True)
class Cell:
    """A piece of an experiment that is run and stored as a whole."""

    function: Callable[[Any, Context], Rows]
    """Computes the rows: function(recipe, context), at the top level of a module."""
    recipe: Any
    """Dataclasses and plain values that define the rows; part of the key."""
    name: str
    """What the cell is called in failures and in the table of seconds, for example its method."""
    labels: Mapping[str, Any] = field(default_factory=dict)
    """Columns added to every row. They are not part of the key, so two labels of one recipe share a stored cell."""
    cost: float = 0.0
    """Relative duration. Of one experiment's cells, those of a higher cost start first."""

    @cached_property
    def key(self) -> str:
        return recipe_key(self.function, self.recipe)


class Experiment(ABC):
    """Cells, and the tables and figures made from their rows. A subclass is a frozen dataclass."""

    name: str
    """What its files are called."""
    columns: tuple[str, ...]
    """Columns of `<name>.csv`. `commit` and `device` are known to the frame: what the cell was run with."""

    @property
    def command(self) -> str:
        """The command that runs it with its usual settings."""
        quick = " --quick" * self.name.endswith("-quick")
        return f"python -m reproduction {self.name.removesuffix('-quick')}{quick}"

    @abstractmethod
    def cells(self) -> list[Cell]:
        """All cells, in the order of the table."""

    @abstractmethod
    def page(self, rows: Rows, out: Path) -> None:
        """Write tables and figures to `out`, from the rows that the cells returned; not called without rows."""

    def table(self, rows: Rows) -> Rows:
        """The rows of `<name>.csv` from the rows that the cells returned; the same by default."""
        return rows

    def settings(self) -> dict[str, Any]:
        """What `<name>.settings.json` says of the experiment; its fields by default."""
        return encode(self)

    def summary(self, rows: Rows) -> tuple[str, Rows]:
        """A title and a short table for the terminal; none by default."""
        return "", []

    def run(
        self,
        out: Path,
        executor: Executor = InProcess(),
        device: str = "cpu",
        report: Report = silent,
        save_seconds: float = 5.0,
    ) -> Rows:
        """Run this experiment alone and return the rows of its cells; raise in one line where cells failed."""
        (finished,) = run([self], out, executor, device, report, save_seconds)
        finished.refuse_failures()
        return finished.rows

    def stored(self, out: Path) -> list[dict[str, Any] | None]:
        """The stored record of every cell, in order; None for cells that are not done."""
        return [read_record(out / self.name, cell) for cell in self.cells()]


@dataclass(frozen=True)
class Finished:
    """An experiment all of whose cells are done or have failed."""

    experiment: Experiment
    rows: Rows
    failures: Rows
    """name, attempts and reason of every failed cell."""
    seconds: float
    """Since the start of the call."""

    def refuse_failures(self) -> None:
        """Raise one line where cells failed."""
        if self.failures:
            reasons = dict.fromkeys(f"{failure['name']}: {failure['reason']}" for failure in self.failures)
            raise CounterpointError(
                f"{len(self.failures)} of {len(self.experiment.cells())} cells of {self.experiment.name} failed"
                f" ({'; '.join(list(reasons)[:3])}); run the same command again to try them once more"
            )


def run(
    experiments: Sequence[Experiment],
    out: Path,
    executor: Executor = InProcess(),
    device: str = "cpu",
    report: Report = silent,
    save_seconds: float = 5.0,
) -> Iterator[Finished]:
    """Run the cells of all experiments that are not stored; yield each experiment when its files are written.

    Args:
        experiments: Experiments with different names. Their cells share the executor and start in this order.
        out: Folder for the files of all of them.
        executor: Where cells run.
        device: Where cells train: cpu, cuda or auto.
        report: Called as report("cells", done, total) and, where cells run in this process, by their training.
        save_seconds: Seconds between two checkpoints of a training.
    """
    start = time.perf_counter()
    places = [(experiment, (out / experiment.name).resolve()) for experiment in experiments]
    # Two cells of one key are one piece of work: they differ in their labels alone.
    work = {
        (experiment.name, cell.key): _Work(experiment, cell, folder, device, save_seconds)
        for experiment, folder in places
        for cell in experiment.cells()
    }
    queue = [item for item in work.values() if read_record(item.folder, item.cell) is None]
    place = {experiment.name: number for number, experiment in enumerate(experiments)}
    queue.sort(key=lambda item: (place[item.experiment.name], -item.cell.cost))
    left = Counter(item.experiment.name for item in queue)
    failures: dict[str, Rows] = {experiment.name: [] for experiment in experiments}
    done = len(work) - len(queue)
    report("cells", done, len(work))
    for experiment in experiments:
        if not left[experiment.name]:
            yield _write(experiment, out, [], executor, time.perf_counter() - start)
    for index, outcome in executor.run(_run_cell, queue, report):
        finished = queue[index]
        name = finished.experiment.name
        if isinstance(outcome, Failure):
            why = {"attempts": outcome.attempts, "reason": outcome.reason}
            failures[name].append({"name": finished.cell.name, **why})
        else:
            _store(finished, outcome)
        done += 1
        report("cells", done, len(work))
        left[name] -= 1
        if not left[name]:
            yield _write(finished.experiment, out, failures[name], executor, time.perf_counter() - start)


@dataclass(frozen=True)
class _Work:
    """A cell and where its files lie: all that a worker needs."""

    experiment: Experiment
    cell: Cell
    folder: Path
    device: str
    save_seconds: float


def _run_cell(work: _Work, report: Report) -> dict[str, Any]:
    """Run a cell, from its checkpoints where there are any; those of older code or data are deleted."""
    start = time.perf_counter()
    cell = work.cell
    # A training that began on a GPU cannot go on elsewhere with the same numbers.
    checkpoints = work.folder / "checkpoints" / f"{cell.key}-{device_of(work.device).type}"
    resuming = checkpoints.exists()
    monitor = Monitor(checkpoints, True, report, save_seconds=work.save_seconds)
    context = Context(cell.key, work.folder, monitor, work.device)
    try:
        rows = cell.function(cell.recipe, context)
    except CounterpointError:
        if not resuming:
            raise
        shutil.rmtree(checkpoints, ignore_errors=True)
        rows = cell.function(cell.recipe, context)
    gc.collect()
    return {"name": cell.name, "seconds": time.perf_counter() - start, **where(), "rows": rows}


def _store(work: _Work, record: Mapping[str, Any]) -> None:
    """Write the record of a finished cell; its checkpoints have served."""
    write_text(_path(work.folder, work.cell), json.dumps(record))
    for checkpoints in (work.folder / "checkpoints").glob(f"{work.cell.key}-*"):
        shutil.rmtree(checkpoints, ignore_errors=True)


def read_record(folder: Path, cell: Cell) -> dict[str, Any] | None:
    """The record of a finished cell: seconds, commit, device and rows; None where there is nothing whole."""
    try:
        record = json.loads(_path(folder, cell).read_text())
    except (OSError, ValueError):
        return None
    whole = isinstance(record, dict) and record.keys() >= {"rows", "seconds", "commit", "device"}
    return {**record, "name": cell.name} if whole else None


def _path(folder: Path, cell: Cell) -> Path:
    return folder / "cells" / f"{cell.key}.json"


def _write(experiment: Experiment, out: Path, failures: Rows, executor: Executor, seconds: float) -> Finished:
    """Write the files of an experiment from its stored cells."""
    name = experiment.name
    pairs = zip(experiment.cells(), experiment.stored(out), strict=True)
    done = [(cell, record) for cell, record in pairs if record is not None]
    rows = [
        {**row, **cell.labels, "commit": record["commit"], "device": record["device"]}
        for cell, record in done
        for row in record["rows"]
    ]
    write_csv(experiment.table(rows), out / f"{name}.csv", experiment.columns)
    records = [record for _, record in done]
    made = {"ran_on": ran_on(records), "seconds": seconds_by(records, "name")}
    call = {"executor": encode(executor), "wall_seconds": round(seconds, 1)}
    write_json({**experiment.settings(), **made, **provenance(), "last_call": call}, out / f"{name}.settings.json")
    failures_path = out / f"{name}.failures.csv"
    failures_path.unlink(missing_ok=True)
    if failures:
        write_csv(failures, failures_path)
    else:
        shutil.rmtree(out / name / "shared", ignore_errors=True)
    if rows:
        experiment.page(rows, out)
    return Finished(experiment, rows, failures, seconds)


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the lock of `path`: one process at a time makes a file that several cells share, and the others wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def choose(options: Mapping[str, Any], names: Sequence[str], what: str = "method") -> dict[str, Any]:
    """The options of these names, in their own order; all of them where no name is given.

    Raises:
        CounterpointError: Where there is no option of a name.
    """
    unknown = [name for name in names if name not in options]
    if unknown:
        raise CounterpointError(f"there is no {what} '{unknown[0]}'; choose from {', '.join(options)}")
    return {name: option for name, option in options.items() if not names or name in names}


def where() -> dict[str, Any]:
    """The code and the machine that make a cell's numbers, to be kept with them."""
    record = provenance()
    return {name: record[name] for name in ("commit", "device")}


def ran_on(cells: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """How many cells each code and machine made."""
    found = Counter((cell.get("commit"), cell.get("device")) for cell in cells)
    return [{"commit": commit, "device": device, "cells": count} for (commit, device), count in found.items()]


def seconds_by(cells: Iterable[Mapping[str, Any]], column: str) -> dict[str, float]:
    """How long the cells of each kind took together; a table holds no seconds, so that two runs of it are the same."""
    total: Counter[str] = Counter()
    for cell in cells:
        total[str(cell[column])] += cell["seconds"]
    return {kind: round(seconds, 1) for kind, seconds in total.items()}
