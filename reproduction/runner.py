"""Runs a grid: what is done is skipped, what was begun goes on, what fails is reported.

Every finished cell is a file of its own, written whole or not at all; cells in training leave checkpoints every few
seconds (every minute on a GPU). A killed run therefore loses little, at most the trial runs of the packs it had in
hand, and run again it ends with the same rows as one that was never killed.
"""

import gc
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from counterpoint.core.artifacts import device_of, encode, read_tensors, recipe_hash, write_tensors, write_text
from counterpoint.core.errors import CounterpointError
from counterpoint.core.results import provenance, ran_on, seconds_by, where, write_csv, write_json
from counterpoint.core.seeding import derive
from counterpoint.core.threads import one_thread
from counterpoint.data.jobs import Job
from counterpoint.data.transitions import Transitions
from counterpoint.nets.training import Monitor
from counterpoint.ope.true_return import true_returns
from counterpoint.policies.base import Learned, Policy
from counterpoint.simulation.trials import trial_subset
from counterpoint.tasks.base import KnownSCM
from reproduction.executors import Executor
from reproduction.grid import Arm, Behaviour, Cell, Grid, Pack, Protocol, behaviour_recipe, code_version, logs
from reproduction.shared_models import SharedModels
from reproduction.workers import Failure, Report, silent

COLUMNS = ("method", "behaviour", "trials", "seed", "return_selected", "return_last", "return_in_model")
LOGGED = (
    "state", "action", "reward", "next_state", "terminated", "outcome", "truncated", "subject", "episode", "step",
)  # fmt: skip
Source = tuple[KnownSCM, Behaviour, Protocol]
"""What a seed's log depends on beside the seed."""


@dataclass(frozen=True)
class Order:
    """A pack with the logs of its seeds: all that a worker needs."""

    pack: Pack
    logs: Mapping[int, Transitions]

    @property
    def models_key(self) -> str:
        return self.pack.models_key

    @property
    def jobs(self) -> list[Job]:
        """The log of every cell, and the seed of its training."""
        return [
            Job(trial_subset(self.logs[cell.seed], cell.trials), derive(cell.seed, "training"))
            for cell in self.pack.cells
        ]


@dataclass(frozen=True)
class FailedCell:
    """A cell without numbers."""

    cell: Cell
    failure: Failure

    def row(self) -> dict[str, Any]:
        cell, failure = self.cell, self.failure
        return {"method": cell.method, "behaviour": cell.behaviour, "trials": cell.trials, "seed": cell.seed,
                "attempts": failure.attempts, "reason": failure.reason}  # fmt: skip


@dataclass(frozen=True)
class Ran:
    """What a run left behind: a row for every finished cell, in the grid's order, and the cells that failed."""

    rows: list[dict[str, Any]]
    failures: list[FailedCell]


def run(
    grid: Grid,
    out: Path,
    executor: Executor,
    device: str = "cpu",
    report: Report = silent,
    save_seconds: float = 5.0,
) -> Ran:
    """Run what is not done yet; write `<name>.csv` and `<name>.settings.json`. Cells and checkpoints lie in `<name>/`.

    The same call after a kill goes on from the cells and the last checkpoints; `report("cells", done, total)` tells.
    """
    begun, folder = time.perf_counter(), out / grid.name
    # The last arms of a grid take longest: begun first, they do not keep one worker busy while the others are idle.
    packs = grid.packs()[::-1]
    left = [pack for pack in packs if any(read_cell(folder, cell) is None for cell in pack.cells)]
    total = sum(len(pack.cells) for pack in packs)
    done = total - sum(len(pack.cells) for pack in left)
    report("cells", done, total)
    orders, models = _orders(left, folder / "logs"), SharedModels(folder.resolve() / "models", device)
    watch = {"models": models, "save_seconds": save_seconds}
    models.prepare(orders, partial(fit_models, **watch), executor, report)
    work = partial(fit_pack, checkpoints=folder.resolve() / "checkpoints", device=device, **watch)
    failed: list[FailedCell] = []
    for index, outcome in executor.run(work, orders, report):
        pack = left[index]
        if isinstance(outcome, Failure):
            failed += [FailedCell(cell, outcome) for cell in pack.cells]
        else:
            _keep(folder, pack, outcome)
        done += len(pack.cells)
        report("cells", done, total)
    if not failed:
        models.forget()
    how = {"executor": encode(executor), "cells_run": sum(len(pack.cells) for pack in left)}
    how |= {"wall_seconds": round(time.perf_counter() - begun, 1)}
    return _assemble(grid, out, failed, how, models.seconds(packs))


def fit_models(order: Order, report: Report, models: SharedModels, save_seconds: float) -> None:
    """Fit the models of a pack for all packs that need the same."""
    models.fit(order.models_key, order.pack.cells[0].arm.learner, order.jobs, report, save_seconds)


def fit_pack(
    order: Order, report: Report, checkpoints: Path, device: str, models: SharedModels, save_seconds: float
) -> list[dict[str, Any]]:
    """Learn the cells of a pack together and try every policy; a result for each cell, in order."""
    begun = time.perf_counter()
    cells, arm = order.pack.cells, order.pack.cells[0].arm
    folder = _checkpoint_folder(checkpoints, order.pack, device)
    monitor = Monitor(folder, True, report, save_seconds=save_seconds).stage(cells[0].method.replace("/", "-"))
    learned = _learn(order, models, monitor)
    report("evaluation", 0, 2)
    selected = _returns([each.selected for each in learned], arm, cells[0].protocol)
    report("evaluation", 1, 2)
    same = all(each.selected is each.last for each in learned)
    last = selected if same else _returns([each.last for each in learned], arm, cells[0].protocol)
    gc.collect()
    seconds = (time.perf_counter() - begun) / len(cells)
    inside = [getattr(each.selected, "return_in_model", None) for each in learned]
    told = zip(selected, last, inside, strict=True)
    return [{"selected": s, "last": t, "in_model": m, "seconds": seconds, **where()} for s, t, m in told]


def read_cell(folder: Path, cell: Cell) -> dict[str, Any] | None:
    """What a finished cell left behind; None where there is nothing whole."""
    try:
        result = json.loads((folder / "cells" / f"{cell.key}.json").read_text())
    except (OSError, ValueError):
        return None
    return result if isinstance(result, dict) and result.keys() >= {"selected", "last", "seconds"} else None


def _learn(order: Order, models: SharedModels, monitor: Monitor) -> list[Learned]:
    """From the checkpoints where they fit; those of older code or data are thrown away."""
    arm, resuming = order.pack.cells[0].arm, monitor.folder is not None and monitor.folder.exists()
    learn = partial(models.learn, order.models_key, arm.learner, order.jobs, arm.task, monitor)
    try:
        return learn()
    except CounterpointError:
        if not resuming:
            raise
    shutil.rmtree(monitor.folder or Path(), ignore_errors=True)
    return learn()


def _returns(policies: Sequence[Policy], arm: Arm, protocol: Protocol) -> list[list[float]]:
    task, trials, seed = arm.task.at_evaluation(), protocol.evaluation_trials, protocol.evaluation_seed
    return true_returns(policies, task, trials, seed).tolist()


def _orders(packs: Sequence[Pack], folder: Path) -> list[Order]:
    """Every pack with its logs, each log made once and kept for a restart."""
    wanted: dict[str, tuple[Source, set[int]]] = {}
    for cell in (cell for pack in packs for cell in pack.cells):
        wanted.setdefault(recipe_hash(_source(cell)), (_source(cell), set()))[1].add(cell.seed)
    made = {key: _kept_logs(source, sorted(seeds), folder) for key, (source, seeds) in wanted.items()}
    own = lambda cell: made[recipe_hash(_source(cell))][cell.seed]
    return [Order(pack, {cell.seed: own(cell) for cell in pack.cells}) for pack in packs]


def _kept_logs(source: Source, seeds: Sequence[int], folder: Path) -> dict[int, Transitions]:
    """The logs of some seeds, from the folder where it has them."""
    task, behaviour, protocol = source
    made_by = code_version(), task, behaviour_recipe(behaviour, protocol), protocol.logged_trials, protocol.steps
    paths = {seed: folder / f"{recipe_hash(*made_by, seed)}.safetensors" for seed in seeds}
    missing = [seed for seed, path in paths.items() if not path.exists()]
    with one_thread():
        made = logs(task, behaviour, missing, protocol)
    for seed, table in made.items():
        write_tensors(paths[seed], {name: getattr(table, name) for name in LOGGED}, {})
    return {seed: made.get(seed) or _read_log(path, task) for seed, path in paths.items()}


def _read_log(path: Path, task: KnownSCM) -> Transitions:
    columns: dict[str, Any] = {**read_tensors(path)[0]}
    columns |= {name: getattr(task, name) for name in ("schema", "outcome_names")}
    return Transitions.logged(**columns)


def _source(cell: Cell) -> Source:
    return cell.arm.task, cell.behaviour, cell.protocol


def _keep(folder: Path, pack: Pack, results: Sequence[dict[str, Any]]) -> None:
    """Each cell into its own file, whole or absent; then the checkpoints have served."""
    for cell, result in zip(pack.cells, results, strict=True):
        text = json.dumps({"key": cell.key, "method": cell.method, "behaviour": cell.behaviour, "trials": cell.trials,
                           "seed": cell.seed, **result})  # fmt: skip
        write_text(folder / "cells" / f"{cell.key}.json", text)
    for checkpoints in (folder / "checkpoints").glob(f"{pack.key}-*"):
        shutil.rmtree(checkpoints, ignore_errors=True)


def _checkpoint_folder(checkpoints: Path, pack: Pack, device: str) -> Path:
    """One a pack and kind of device: a run begun on a GPU cannot go on elsewhere with the same numbers."""
    return checkpoints / f"{pack.key}-{device_of(device).type}"


def _assemble(
    grid: Grid, out: Path, failed: list[FailedCell], how: Mapping[str, Any], shared: Mapping[str, float]
) -> Ran:
    """The files of a run from its cells, in the grid's order."""
    found = [(cell, read_cell(out / grid.name, cell)) for cell in grid.cells()]
    results = [(cell, result) for cell, result in found if result is not None]
    rows = [_row(cell, result) for cell, result in results]
    out.mkdir(parents=True, exist_ok=True)
    write_csv(rows, out / f"{grid.name}.csv", COLUMNS)
    settings = {name: encode(getattr(grid, name)) for name in ("name", "behaviour", "trials", "seeds", "pack_size")}
    settings |= {"protocol": encode(grid.protocol), "arms": {name: encode(arm) for name, arm in grid.arms.items()}}
    settings["ran_on"] = ran_on(result for _, result in results)
    seconds = seconds_by(({"method": cell.method, **result} for cell, result in results), "method")
    settings["seconds"] = {**seconds, **shared}
    write_json({**settings, **provenance(), "last_call": dict(how)}, out / f"{grid.name}.settings.json")
    failures = out / f"{grid.name}.failures.csv"
    failures.unlink(missing_ok=True)
    if failed:
        places = {cell.key: place for place, (cell, _) in enumerate(found)}
        failed = sorted(failed, key=lambda each: places[each.cell.key])
        write_csv([each.row() for each in failed], failures)
    return Ran(rows, failed)


def _row(cell: Cell, result: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "method": cell.method,
        "behaviour": cell.behaviour,
        "trials": cell.trials,
        "seed": cell.seed,
        "return_selected": _mean(result["selected"]),
        "return_last": _mean(result["last"]),
        "return_in_model": result.get("in_model"),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
