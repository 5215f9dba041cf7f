"""Executors give the same rows; a worker that dies is tried again, then reported, and the others go on."""

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from counterpoint.core.errors import CounterpointError
from counterpoint.data.jobs import Job
from counterpoint.nets.training import Monitor
from counterpoint.policies.base import Learned, PolicyLearner
from counterpoint.tasks.base import Task
from helpers.grid import TINY, tiny_grid
from reproduction.executors import Auto, Executor, InProcess, Joblib, Ray
from reproduction.runner import run
from reproduction.workers import Failure, Report, silent

SHAPES = False

with_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: its executor was NOT tested")


@dataclass(frozen=True)
class Dying(PolicyLearner):
    """Ends its process without a word in its first `deaths` fits."""

    note: str
    deaths: int

    def fit_many(
        self, jobs: Sequence[Job], task: Task, monitor: Monitor = Monitor(), device: str = "cpu"
    ) -> list[Learned]:
        path = Path(self.note)
        path.write_text(f"{path.read_text() if path.exists() else ''}died\n")
        if len(path.read_text().splitlines()) <= self.deaths:
            os._exit(3)
        return TINY.fit_many(jobs, task, monitor, device)


def square(number: int, report: Report) -> int:
    if number < 0:
        raise CounterpointError(f"{number} is negative; give another")
    report("square", 1, 1)
    return number**2


def check_deaths(tmp_path: Path, executor: Executor) -> None:
    """One arm dies once, one always, one never."""
    once, always = tmp_path / "once", tmp_path / "always"
    arms = {"once": Dying(str(once), 1), "always": Dying(str(always), 99), "never": TINY}
    ran = run(tiny_grid(arms, pack_size=0), tmp_path / "mortal", executor)
    plain = run(tiny_grid({"never": TINY}, pack_size=0), tmp_path / "plain", InProcess())
    for method in ("once", "never"):
        rows = [{**row, "method": "never"} for row in ran.rows if row["method"] == method]
        assert rows == plain.rows
    assert {(each.cell.method, each.failure.attempts) for each in ran.failures} == {("always", 3)}
    assert len(ran.failures) == 4
    assert all("died" in each.failure.reason for each in ran.failures)
    assert (len(once.read_text().splitlines()), len(always.read_text().splitlines())) == (2, 3)


def check_exceptions(executor: Executor) -> None:
    outcomes = dict(executor.run(square, [3, -1, 4], silent))
    assert (outcomes[0], outcomes[2]) == (9, 16)
    assert outcomes[1] == Failure("CounterpointError: -1 is negative; give another", 1)


def test_in_process_reports_progress_and_exceptions():
    check_exceptions(InProcess())
    seen: list[str] = []
    assert list(InProcess().run(square, [2], lambda stage, done, total: seen.append(stage))) == [(0, 4)]
    assert seen == ["square"]


def test_joblib_gives_the_same_rows_and_survives_dying_workers(tmp_path: Path):
    check_deaths(tmp_path, Joblib(2))


def test_joblib_reports_exceptions_without_retrying(monkeypatch: pytest.MonkeyPatch):
    check_exceptions(Joblib(1))
    monkeypatch.setattr("joblib.cpu_count", lambda: 1)
    check_exceptions(Auto())
    with pytest.raises(CounterpointError, match="0 processes"):
        list(Joblib(0).run(square, [1], silent))


def crowded(path: Path, report: Report) -> int:
    """Finds the GPU's memory taken at its first try, or at every one."""
    tried = int(path.read_text()) + 1 if path.exists() else 1
    path.write_text(str(tried))
    if tried == 1 or "always" in path.name:
        raise torch.OutOfMemoryError("CUDA out of memory. Process 461 has 66.00 MiB memory in use.")
    return tried


def test_memory_that_neighbours_hold_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("reproduction.workers.PATIENCE", 0.01)
    outcomes = dict(Joblib(1).run(crowded, [tmp_path / "once", tmp_path / "always"], silent))
    assert outcomes == {0: 2, 1: Failure("OutOfMemoryError: CUDA out of memory", 3)}


def holding(task: tuple[str, Path], report: Report) -> int:
    """One item holds the memory for a while; the other counts how often it found it taken."""
    role, memory = task
    if role == "holds":
        time.sleep(1.5)
        memory.unlink()
        return 0
    tries = memory.with_name("tries")
    tries.write_text(tries.read_text() + "." if tries.exists() else ".")
    if memory.exists():
        raise torch.OutOfMemoryError("CUDA out of memory")
    return len(tries.read_text())


@pytest.mark.parametrize(("longest", "fewest", "most"), [(10.0, 4, 12), (0.04, 12, 80)])
def test_memory_is_waited_for_as_long_as_a_neighbour_is_at_work(
    longest: float, fewest: int, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("reproduction.workers.PATIENCE", 0.02)
    monkeypatch.setattr("reproduction.workers.LONGEST_PATIENCE", longest)
    memory = tmp_path / "memory"
    memory.touch()
    outcomes = dict(Joblib(2).run(holding, [("holds", memory), ("needs", memory)], silent))
    assert outcomes[0] == 0
    assert isinstance(outcomes[1], int)  # It got there in the end,
    # after more tries than an item has alone, with ever longer waits between them up to the longest.
    assert fewest <= outcomes[1] < most


@with_ray
def test_ray_gives_the_same_rows_survives_dying_workers_and_reports_exceptions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # Ray's workers look for this file's classes where Python looks for modules.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))
    check_deaths(tmp_path, Ray())
    check_exceptions(Ray())


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_the_error_says_how_to_get_it():
    with pytest.raises(CounterpointError, match=r"pip install 'counterpoint\[ray\]'"):
        list(Ray().run(square, [1], silent))
