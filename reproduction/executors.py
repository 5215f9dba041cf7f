"""Who does the work of a grid: this process, processes beside it, or a Ray cluster; all three give the same rows.

A worker that dies is given its item again, twice; then the item is reported as failed, and the others go on. An item
that found the GPU's memory taken is tried again as long as others are at work, who may hold it, and twice when none is.
Any other exception is reported at once: the same numbers would raise it again. Where a job server is named in the
environment (`jobserver.py`), processes of several commands share its slots.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

import torch

from counterpoint.core.errors import CounterpointError
from counterpoint.core.threads import one_thread
from counterpoint.simulation.ray_cluster import cluster, ray_library
from reproduction.jobserver import Slots
from reproduction.workers import RETRIES, Failure, Item, Lanes, Report, Result, alone, reason


class Executor(ABC):
    """Does `work(item, report)` for every item, each with one torch thread, and yields (index, outcome) as they end."""

    @abstractmethod
    def run(
        self, work: Callable[[Item, Report], Result], items: Sequence[Item], report: Report
    ) -> Iterator[tuple[int, Result | Failure]]:
        """Outcomes in the order in which they end; `report` is called where the work is done in this process."""


@dataclass(frozen=True)
class InProcess(Executor):
    """One item after the other, here; the cells of an item train together, which a GPU needs."""

    def run(
        self, work: Callable[[Item, Report], Result], items: Sequence[Item], report: Report
    ) -> Iterator[tuple[int, Result | Failure]]:
        for index, item in enumerate(items):
            with one_thread():
                try:
                    outcome = work(item, report)
                except Exception as error:
                    outcome = Failure(reason(error), 1)
            yield index, outcome


@dataclass(frozen=True)
class Joblib(Executor):
    """Processes on this machine (joblib's loky); each item has a worker of its own, so a death concerns one item."""

    workers: int = 2
    """Processes side by side."""

    def run(
        self, work: Callable[[Item, Report], Result], items: Sequence[Item], report: Report
    ) -> Iterator[tuple[int, Result | Failure]]:
        if self.workers < 1:
            raise CounterpointError(f"cannot work with {self.workers} processes; set workers to 1 or more")
        lanes = Lanes(min(self.workers, len(items)), len(items))
        threads, slots = ThreadPoolExecutor(max(lanes.count, 1)), Slots.of_environment()
        try:
            futures = {threads.submit(lanes.do, work, item, slots): index for index, item in enumerate(items)}
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            lanes.close()


@dataclass(frozen=True)
class Ray(Executor):
    """Tasks on a Ray cluster; Ray itself gives a task to another node when its own is lost."""

    address: str = "local"
    """Address of a running cluster ("auto" finds one on this machine), or "local" to start one."""
    gpus: float = 0.0
    """GPUs an item asks for; 0.25 lets four items share one."""

    def run(
        self, work: Callable[[Item, Report], Result], items: Sequence[Item], report: Report
    ) -> Iterator[tuple[int, Result | Failure]]:
        ray = ray_library()
        with cluster(ray, self.address):
            remote = ray.remote(num_cpus=1, num_gpus=self.gpus, max_retries=RETRIES)(alone)
            pending = {remote.remote(work, item): index for index, item in enumerate(items)}
            while pending:
                (ended,), _ = ray.wait(list(pending), num_returns=1)
                yield pending.pop(ended), _outcome(ray, ended)


@dataclass(frozen=True)
class Auto(Executor):
    """In this process where there is a GPU, whose memory the items need not share; else a process for every core."""

    def run(
        self, work: Callable[[Item, Report], Result], items: Sequence[Item], report: Report
    ) -> Iterator[tuple[int, Result | Failure]]:
        from joblib import cpu_count

        workers = min(cpu_count(), len(items))
        chosen = InProcess() if torch.cuda.is_available() or workers < 2 else Joblib(workers)
        yield from chosen.run(work, items, report)


def _outcome(ray: Any, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        return Failure(reason(error.cause), 1)
    except ray.exceptions.RayError as error:
        return Failure(f"the worker died ({reason(error)})", 1 + RETRIES)
