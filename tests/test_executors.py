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
from counterpoint.core.tables import read_csv
from counterpoint.data.jobs import Job
from counterpoint.learners.base import PolicyCheckpoints, PolicyLearner
from counterpoint.nets.training import Monitor
from counterpoint.tasks.base import Task
from helpers.grid import TINY, tiny_grid
from reproduction.executors import Auto, Executor, Failure, InProcess, Joblib, Ray, Report, silent

SHAPES = False

with_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: its executor was NOT tested")


@dataclass(frozen=True)
class Dying(PolicyLearner):
    """Ends its process without a word in its first `deaths` fits."""

    note: str
    deaths: int

    def fit_many(
        self, jobs: Sequence[Job], task: Task, monitor: Monitor = Monitor(), device: str = "cpu"
    ) -> list[PolicyCheckpoints]:
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
    with pytest.raises(CounterpointError, match="1 of 3 cells"):
        tiny_grid(arms, None).run(tmp_path / "mortal", executor)
    rows = read_csv(tmp_path / "mortal" / "tiny.csv")
    tiny_grid({"never": TINY}, None).run(tmp_path / "plain")
    for method in ("once", "never"):
        relabelled = [{**row, "method": "never"} for row in rows if row["method"] == method]
        assert relabelled == read_csv(tmp_path / "plain" / "tiny.csv")
    (failure,) = read_csv(tmp_path / "mortal" / "tiny.failures.csv")
    assert (failure["name"], failure["attempts"]) == ("always", 3)
    assert "died" in failure["reason"]
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
    """Finds no memory on the GPU at its first try, or at every one."""
    tried = int(path.read_text()) + 1 if path.exists() else 1
    path.write_text(str(tried))
    if tried == 1 or "always" in path.name:
        raise torch.OutOfMemoryError("CUDA out of memory. Process 461 has 66.00 MiB memory in use.")
    return tried


def test_an_item_without_memory_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("reproduction.executors.WAIT_SECONDS", 0.01)
    outcomes = dict(Joblib(1).run(crowded, [tmp_path / "once", tmp_path / "always"], silent))
    assert outcomes == {0: 2, 1: Failure("OutOfMemoryError: CUDA out of memory", 3)}


def process_number(path: Path, report: Report) -> int:
    time.sleep(0.05)
    return os.getpid()


def test_a_process_takes_one_item_after_the_other(tmp_path: Path):
    numbers = [number for _, number in Joblib(2).run(process_number, [tmp_path] * 6, silent)]
    assert 1 <= len(set(numbers)) <= 2


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
