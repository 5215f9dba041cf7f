"""Where the cells of experiments run: in this process, in processes beside it, or on a Ray cluster.

The rows do not depend on the executor. A worker process that dies, or finds no memory on the GPU, gets its item again,
twice; then the item has failed, and the others go on. Any other exception is reported at once: the same numbers would
raise it again.
"""

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from counterpoint.core.errors import CounterpointError
from counterpoint.core.threads import one_thread
from counterpoint.simulation.ray_data import cluster, ray_library

Item = TypeVar("Item")
Result = TypeVar("Result")
Report = Callable[[str, int, int], None]
"""Called as report(stage, done, total)."""
RETRIES = 2
"""How often an item runs again after its worker died or found no memory on the GPU."""
WAIT_SECONDS = 20.0
"""Seconds before an item that found no memory on the GPU runs again."""


@dataclass(frozen=True)
class Failure:
    """Why an item has no result."""

    reason: str
    attempts: int


def silent(stage: str, done: int, total: int) -> None:
    """Report nothing."""


class Executor(ABC):
    """Run `work(item, report)` for every item, with one torch thread, and yield (index, outcome) as items finish."""

    @abstractmethod
    def run(
        self, work: Callable[[Item, Report], Result], items: Sequence[Item], report: Report
    ) -> Iterator[tuple[int, Result | Failure]]:
        """Yield outcomes in the order in which they finish; `report` is called for work in this process."""


@dataclass(frozen=True)
class InProcess(Executor):
    """Run one item after the other in this process."""

    def run(
        self, work: Callable[[Item, Report], Result], items: Sequence[Item], report: Report
    ) -> Iterator[tuple[int, Result | Failure]]:
        for index, item in enumerate(items):
            try:
                outcome = _alone(work, item, report)
            except Exception as error:
                outcome = Failure(_reason(error), 1)
            yield index, outcome


@dataclass(frozen=True)
class Joblib(Executor):
    """Run items in processes on this machine (joblib's loky). A process that dies costs its own item alone."""

    workers: int = 2
    """Number of processes."""

    def run(
        self, work: Callable[[Item, Report], Result], items: Sequence[Item], report: Report
    ) -> Iterator[tuple[int, Result | Failure]]:
        if self.workers < 1:
            raise CounterpointError(f"cannot work with {self.workers} processes; set workers to 1 or more")
        threads = ThreadPoolExecutor(max(min(self.workers, len(items)), 1))
        pool = _Processes()
        try:
            futures = {threads.submit(pool.run, work, item): index for index, item in enumerate(items)}
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            pool.close()


@dataclass(frozen=True)
class Ray(Executor):
    """Run items as tasks on a Ray cluster; Ray itself gives a task to another node when its node is lost."""

    address: str = "local"
    """Address of a running cluster ("auto" finds one on this machine), or "local" to start one."""
    gpus: float = 0.0
    """GPUs an item asks for; 0.25 lets four items share one."""

    def run(
        self, work: Callable[[Item, Report], Result], items: Sequence[Item], report: Report
    ) -> Iterator[tuple[int, Result | Failure]]:
        ray = ray_library()
        with cluster(ray, self.address):
            remote = ray.remote(num_cpus=1, num_gpus=self.gpus, max_retries=RETRIES)(_alone)
            pending = {remote.remote(work, item, silent): index for index, item in enumerate(items)}
            while pending:
                (finished,), _ = ray.wait(list(pending), num_returns=1)
                yield pending.pop(finished), _ray_outcome(ray, finished)


@dataclass(frozen=True)
class Auto(Executor):
    """Use this process where there is a GPU or one core, else a process for every core."""

    def run(
        self, work: Callable[[Item, Report], Result], items: Sequence[Item], report: Report
    ) -> Iterator[tuple[int, Result | Failure]]:
        from joblib import cpu_count

        workers = min(cpu_count(), len(items))
        chosen = InProcess() if torch.cuda.is_available() or workers < 2 else Joblib(workers)
        yield from chosen.run(work, items, report)


class _Processes:
    """A pool of one process for every thread that calls `run`."""

    def __init__(self) -> None:
        self.of_thread: dict[int, Any] = {}

    def run(self, work: Callable[[Item, Report], Result], item: Item) -> Result | Failure:
        from joblib.externals.loky.process_executor import BrokenProcessPool

        why = ""
        for attempt in range(1 + RETRIES):
            try:
                return self._process(fresh=attempt > 0).submit(_under_parent, work, item, os.getpid()).result()
            except BrokenProcessPool as error:
                why = f"the worker died ({_reason(error)})"
            except torch.OutOfMemoryError as error:
                why = _reason(error)
                time.sleep(WAIT_SECONDS)
            except Exception as error:
                return Failure(_reason(error), 1)
        return Failure(why, 1 + RETRIES)

    def _process(self, fresh: bool) -> Any:
        """The process of this thread; a new one where the old one is broken or full."""
        from joblib.externals.loky import ProcessPoolExecutor

        thread = threading.get_ident()
        if fresh:
            self.of_thread.pop(thread).shutdown(wait=False, kill_workers=True)
        if thread not in self.of_thread:
            self.of_thread[thread] = ProcessPoolExecutor(1, env={"OMP_NUM_THREADS": "1"})
        return self.of_thread[thread]

    def close(self) -> None:
        for process in list(self.of_thread.values()):
            process.shutdown(wait=True, kill_workers=True)


def _alone(work: Callable[[Item, Report], Result], item: Item, report: Report) -> Result:
    """Run an item with one thread, and free the memory of the GPU that it no longer needs."""
    try:
        with one_thread():
            return work(item, report)
    finally:
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()


def _under_parent(work: Callable[[Item, Report], Result], item: Item, parent: int) -> Result:
    """Run an item, and stop once the parent process is gone: its successor writes the same checkpoints."""

    def report(stage: str, done: int, total: int) -> None:
        if os.getppid() != parent:
            os._exit(1)

    return _alone(work, item, report)


def _ray_outcome(ray: Any, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        return Failure(_reason(error.cause), 1)
    except ray.exceptions.RayError as error:
        return Failure(f"the worker died ({_reason(error)})", 1 + RETRIES)


def _reason(error: BaseException) -> str:
    text = str(error).strip()
    if isinstance(error, torch.OutOfMemoryError):  # The rest of the message names every process on the GPU.
        text = text.split(". ")[0]
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
