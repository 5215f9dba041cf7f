"""Search in environments nobody here wrote: from random rows of Gymnasium's own, judged in Gymnasium's own.

Reward and end are the task's known functions or, by a second method, learned from the same log. A log of Acrobot or
MountainCar holds no goal, so what is learned from it foresees none and every policy is worth the same: the second
method is for the pendulum alone.

A row is (method, environment, rows, seed, return_true, return_in_model): the true return is the mean over whole
episodes in the environment, the other the same policy's in the model it was searched in. All seeds of an environment
and a number of rows are learned in one stack; every finished cell is a file of its own, so a killed run goes on.
"""

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from counterpoint.core.artifacts import device_of, encode, recipe_hash
from counterpoint.core.errors import require
from counterpoint.core.results import Row, provenance, ran_on, read_csv, seconds_by, where, write_csv, write_json
from counterpoint.core.seeding import derive
from counterpoint.core.settings import Count, Positive, Widths, check_settings
from counterpoint.data.jobs import Job
from counterpoint.data.transitions import Transitions
from counterpoint.learners.evolution import CrossEntropy
from counterpoint.learners.search import Search
from counterpoint.models.dynamics.outcome import Outcome
from counterpoint.models.scm.density import DensitySCM
from counterpoint.nets.laws import Gaussian
from counterpoint.nets.likelihood import Likelihood
from counterpoint.nets.training import Monitor, Schedule
from counterpoint.page.returns import returns_by_environment
from counterpoint.policies.rule import OrderedDose, ScoredActions
from counterpoint.policies.searched import SearchedPolicy
from counterpoint.tasks.base import Task
from reproduction.cells import carry_out, read_rows, refuse_failures, write_rows
from reproduction.executors import Executor
from reproduction.grid import code_version
from reproduction.measures.gym_return import evaluate_in_gym
from reproduction.tasks.classic import Acrobot, ClassicControl, MountainCar, Pendulum
from reproduction.tasks.classic_simulation import log_random
from reproduction.tasks.stack import TaskStack
from reproduction.workers import Report, silent

COLUMNS = ("method", "environment", "rows", "seed", "return_true", "return_in_model")
METHOD, LEARNED_METHOD = "Search", "Search, learned reward and end"
SIZES = (1000, 2000, 5000)
MODEL = DensitySCM(Gaussian(), likelihood=Likelihood(Schedule(steps=3000, rate="one-cycle"), learning_rate=5e-3))
"""Keeps its last weights: where nothing is noise, one held-out row beyond a limit outweighs all others in a check."""


@dataclass(frozen=True)
class Problem:
    """An environment, the logs taken from it, and the search that suits it."""

    task: ClassicControl
    rows: Widths
    """Logged transitions; one data set for each number."""
    piece: Positive
    """Steps after which a log begins anew."""
    search: Search
    """Class of policies and how they are searched."""
    outcome: Outcome | None = None
    """How reward and end are learned for the second method; none where the log cannot tell them."""

    def __post_init__(self) -> None:
        check_settings(self)

    def log(self, rows: int, seed: int) -> Transitions:
        """The random log of one seed."""
        return log_random(self.task, rows, self.piece, derive(seed, "data"))


def problems() -> dict[str, Problem]:
    """Every environment, by the name it has in the table.

    Energy takes hundreds of random steps to gather: short pieces of Acrobot and MountainCar never leave the bottom.
    """
    dose, score = OrderedDose(hidden=(16,)), ScoredActions(hidden=(16,))
    swing = _search(dose, CrossEntropy(96, 12, spread=3.0, extra=1.0), rounds=100)
    swing = replace(swing, restarts=4, starts=4, choosing_starts=16)
    reach = replace(_search(score, CrossEntropy(64, 8, spread=2.0, extra=0.6), rounds=20), restarts=4)
    climb = _search(dose, CrossEntropy(64, 8, spread=3.0, extra=1.0), rounds=20, horizon=500)
    return {
        "Pendulum": Problem(Pendulum(), SIZES, 50, swing, Outcome()),
        "Acrobot": Problem(Acrobot(), SIZES, 500, reach),
        "MountainCar": Problem(MountainCar(), SIZES, 500, climb),
    }


def _search(rule: OrderedDose | ScoredActions, optimizer: CrossEntropy, rounds: Positive, horizon: Count = 0) -> Search:
    schedule = Schedule(steps=rounds, check_every=5, log_every=5)
    return Search(
        MODEL,
        draws=None,
        rule=rule,
        optimizer=optimizer,
        schedule=schedule,
        choosing_starts=8,
        horizon=horizon,
        support_price=0.0,
    )


def ways(problem: Problem) -> list[Problem]:
    """The problem with known reward and end and, where they can be learned, with learned ones."""
    known = replace(problem, outcome=None)
    return [known, problem] if problem.outcome else [known]


def quick_problems() -> dict[str, Problem]:
    """The pendulum alone, by a linear rule and few candidates: minutes on two cores, and no good policy."""
    search = _search(OrderedDose(), CrossEntropy(32), rounds=10)
    return {"Pendulum": Problem(Pendulum(), (500,), 50, search)}


@dataclass(frozen=True)
class Pack:
    """All seeds of one method, environment and number of rows, learned in one stack."""

    environment: str
    problem: Problem
    """Its outcome is none where reward and end are the task's own."""
    rows: int
    seeds: tuple[int, ...]
    episodes: int

    @property
    def method(self) -> str:
        return LEARNED_METHOD if self.problem.outcome else METHOD

    def key(self, seed: int) -> str:
        """What defines one seed's cell, the code included."""
        own = replace(self.problem, rows=())
        return recipe_hash(code_version(), own, self.rows, seed, self.episodes)

    @property
    def name(self) -> str:
        return recipe_hash([self.key(seed) for seed in self.seeds])


@dataclass(frozen=True)
class Classic:
    """What to run."""

    problems: Mapping[str, Problem] = field(default_factory=problems)
    """Environments with their logs and searches."""
    seeds: Positive = 10
    """Data sets and training seeds."""
    first_seed: Count = 0
    """The first of them."""
    episodes: Positive = 50
    """Episodes each policy is tried in, the same for all policies: a pendulum's return depends on where it starts."""
    name: str = "classic"
    """What the files are called."""

    def __post_init__(self) -> None:
        require(self.seeds > 0 and self.episodes > 0, "there is nothing to run; ask for seeds and episodes")

    def packs(self) -> list[Pack]:
        seeds = tuple(range(self.first_seed, self.first_seed + self.seeds))
        each = [(name, way, rows) for name, given in self.problems.items() for way in ways(given) for rows in way.rows]
        return [Pack(name, way, rows, seeds, self.episodes) for name, way, rows in each]

    def run(self, out: Path, executor: Executor, device: str = "cpu", report: Report = silent) -> list[dict[str, Any]]:
        """Run what is not done yet; write `<name>.csv`, `<name>.settings.json` and `<name>.png`."""
        packs, folder = self.packs(), out / self.name
        left = [pack for pack in packs if any(_read(folder, pack, seed) is None for seed in pack.seeds)]
        work = partial(learn, checkpoints=folder.resolve() / "checkpoints", device=device)
        failed = carry_out(
            left, work, partial(_keep, folder), lambda pack: pack.environment, self.seeds * len(packs),
            out / f"{self.name}.failures.txt", executor, report, self.seeds,
        )  # fmt: skip
        rows = self._write(out)
        refuse_failures(failed, len(packs), "packs")
        return rows

    def _write(self, out: Path) -> list[dict[str, Any]]:
        """The files of a run from its cells."""
        found = [_read(out / self.name, pack, seed) for pack in self.packs() for seed in pack.seeds]
        cells = [row for row in found if row is not None]
        rows = [{column: row[column] for column in COLUMNS} for row in cells]
        write_csv(rows, out / f"{self.name}.csv", COLUMNS)
        settings: dict[str, Any] = {"problems": {name: encode(each) for name, each in self.problems.items()}}
        settings |= {"seeds": self.seeds, "first_seed": self.first_seed, "episodes": self.episodes}
        settings |= {"ran_on": ran_on(cells), "seconds": seconds_by(cells, "environment")}
        write_json({**settings, **provenance()}, out / f"{self.name}.settings.json")
        if rows:
            returns_by_environment([*rows, *_peers(out, self.problems)], out / f"{self.name}.png")
        return rows


def learn(pack: Pack, report: Report, checkpoints: Path, device: str) -> list[dict[str, Any]]:
    """A row for every seed of a pack, learned side by side."""
    begun, problem = time.perf_counter(), pack.problem
    jobs = [Job(problem.log(pack.rows, seed), derive(seed, "training")) for seed in pack.seeds]
    folder = checkpoints / f"{pack.name}-{device_of(device).type}"
    monitor = Monitor(folder, True, report).stage(pack.environment)
    task = _task(problem, jobs, monitor, device)
    search = replace(problem.search, horizon=problem.search.horizon or problem.task.horizon)
    found = [each.selected for each in search.fit_many(jobs, task, monitor, device)]
    report("evaluation", 0, 1)
    true = [evaluate_in_gym(policy, problem.task.gym_id, pack.episodes) for policy in found]
    seconds = (time.perf_counter() - begun) / len(jobs)
    return [
        {"method": pack.method, "environment": pack.environment, "rows": pack.rows, "seed": seed,
         "return_true": float(own.mean()), "return_in_model": _in_model(policy), "seconds": seconds, **where()}
        for seed, policy, own in zip(pack.seeds, found, true, strict=True)
    ]  # fmt: skip


def _task(problem: Problem, jobs: Sequence[Job], monitor: Monitor, device: str) -> Task:
    """The known reward and end, or those learned from every job's own log."""
    if problem.outcome is None:
        return problem.task
    return TaskStack(problem.outcome.fit_many(jobs, monitor.stage("outcome"), device))


def _in_model(policy: Any) -> float:
    assert isinstance(policy, SearchedPolicy)
    return policy.return_in_model


def _read(folder: Path, pack: Pack, seed: int) -> dict[str, Any] | None:
    """What a finished cell left behind; None where there is nothing whole."""
    rows = read_rows(_path(folder, pack, seed), (*COLUMNS, "seconds"))
    return {**rows[0], "environment": pack.environment} if rows else None


def _path(folder: Path, pack: Pack, seed: int) -> Path:
    return folder / "cells" / f"{pack.key(seed)}.json"


def _keep(folder: Path, pack: Pack, rows: Sequence[Row]) -> None:
    """Each cell into its own file, whole or absent; then the checkpoints have served."""
    for seed, row in zip(pack.seeds, rows, strict=True):
        write_rows(_path(folder, pack, seed), [row])
    for checkpoints in (folder / "checkpoints").glob(f"{pack.name}-*"):
        shutil.rmtree(checkpoints, ignore_errors=True)


def _peers(out: Path, problems: Mapping[str, Problem]) -> list[Row]:
    """What `benchmarks/classic_peers.py` left beside, for the same environments."""
    path = out / "classic_peers.csv"
    return [row for row in read_csv(path) if row["environment"] in problems] if path.exists() else []
