"""Who does the work of a grid: this process, processes beside it, or a Ray cluster; all three give the same rows.

A worker that dies is given its item again, twice; then the item is reported as failed, and the others go on. An item
that found the GPU's memory taken is tried again as long as others are at work, who may hold it, and twice when none is.
Any other exception is reported at once: the same numbers would raise it again. Where a job server is named in the
environment (`jobserver.py`), processes of several commands share its slots.
"""

import os
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from queue import LifoQueue
from typing import Any, TypeVar

import torch

from counterpoint.errors import CounterpointError
from counterpoint.experiments.jobserver import Slots

Item = TypeVar("Item")
Result = TypeVar("Result")
Report = Callable[[str, int, int], None]
"""Called as report(stage, done, total)."""
RETRIES = 2
"""How often an item is tried again after its worker died, or found no memory while no other item was at work."""
PATIENCE = 20.0
"""Seconds before an item that found no memory is tried again, twice as long each time while others are at work."""
IDLE = 10.0
"""Seconds after which a worker without an item is ended: commands that share slots may wait long for one, and what a
worker keeps of a GPU's memory others need."""


@dataclass(frozen=True)
class Failure:
    """Why an item has no result."""

    reason: str
    attempts: int


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
                    outcome = Failure(_reason(error), 1)
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
        lanes = _Lanes(min(self.workers, len(items)), len(items))
        threads, slots = ThreadPoolExecutor(max(lanes.count, 1)), Slots.of_environment()

        def do(index: int) -> Result | Failure:
            alone, attempts, patience = 0, 0, PATIENCE
            while True:
                attempts += 1
                try:
                    with slots.slot(), lanes.one() as lane:
                        return lane.do(work, items[index])
                except torch.OutOfMemoryError as error:
                    if lanes.at_work:
                        lanes.wait_for_quiet(patience)
                        patience *= 2
                    elif alone == RETRIES:
                        return Failure(_reason(error), attempts)
                    else:
                        alone += 1
                        time.sleep(PATIENCE)

        try:
            futures = {threads.submit(do, index): index for index in range(len(items))}
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
            remote = ray.remote(num_cpus=1, num_gpus=self.gpus, max_retries=RETRIES)(_alone)
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


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread inside the block: threads that fight for a core are slow, and their number changes the sums."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def silent(stage: str, done: int, total: int) -> None:
    """Reports to nobody."""


def _alone(work: Callable[[Item, Report], Result], item: Item, report: Report = silent) -> Result:
    try:
        with one_thread():
            return work(item, report)
    finally:
        if torch.cuda.is_initialized():  # Processes beside this one need the memory that the item no longer does.
            torch.cuda.empty_cache()


class _Lane:
    """One worker process, started anew after a death."""

    def __init__(self) -> None:
        self.process, self.lock = self._start(), threading.Lock()
        self.resting: threading.Timer | None = None

    def _start(self) -> Any:
        from joblib.externals.loky import ProcessPoolExecutor

        # A worker whose memory has grown ends after its item, and the next item starts another: nothing to warn of.
        warnings.filterwarnings("ignore", "A worker stopped while some jobs were given", UserWarning)
        return ProcessPoolExecutor(1, env={"OMP_NUM_THREADS": "1"})

    def do(self, work: Callable[[Item, Report], Result], item: Item) -> Result | Failure:
        """The item's outcome; raises where there was no memory for it."""
        from joblib.externals.loky.process_executor import BrokenProcessPool

        died = ""
        for _ in range(1 + RETRIES):
            try:
                return self.process.submit(_with_parent, work, item, os.getpid()).result()
            except BrokenProcessPool as error:
                died = f"the worker died ({_reason(error)})"
                self.process = self._start()
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                return Failure(_reason(error), 1)
        return Failure(died, 1 + RETRIES)

    def wake(self) -> None:
        """Before an item: the process is not ended from now on."""
        with self.lock:
            if self.resting is not None:
                self.resting.cancel()
                self.resting = None

    def rest(self) -> None:
        """After an item: end the process unless there is another one soon."""
        with self.lock:
            self.resting = threading.Timer(IDLE, self._end)
            self.resting.daemon = True
            self.resting.start()

    def _end(self) -> None:
        with self.lock:
            if self.resting is not None:
                self.process.shutdown(wait=True, kill_workers=True)
                self.process, self.resting = self._start(), None

    def close(self) -> None:
        self.wake()
        self.process.shutdown(wait=True, kill_workers=True)


class _Lanes:
    """Processes for a number of items; the last one used comes first, and one that no item waits for is ended."""

    def __init__(self, count: int, items: int) -> None:
        self.count, self.waiting, self.at_work = count, items, 0
        self.all = [_Lane() for _ in range(count)]
        self.free: LifoQueue[_Lane] = LifoQueue()
        for lane in self.all:
            self.free.put(lane)
        self.changed = threading.Condition()

    @contextmanager
    def one(self) -> Iterator[_Lane]:
        """A process for an item, which waits again for one where it found no memory."""
        lane = self.free.get()
        lane.wake()
        self._count(waiting=-1, at_work=1)
        again = 0
        try:
            yield lane
        except torch.OutOfMemoryError:
            again = 1
            raise
        finally:
            self._count(waiting=again, at_work=-1)
            if self.waiting:
                lane.rest()
                self.free.put(lane)
            else:
                lane.close()

    def _count(self, waiting: int, at_work: int) -> None:
        with self.changed:
            self.waiting += waiting
            self.at_work += at_work
            self.changed.notify_all()

    def wait_for_quiet(self, seconds: float) -> None:
        """Until no item is at work, but not longer."""
        with self.changed:
            self.changed.wait_for(lambda: not self.at_work, seconds)

    def close(self) -> None:
        for lane in self.all:
            lane.close()


def _with_parent(work: Callable[[Item, Report], Result], item: Item, parent: int) -> Result:
    """The work, given up once the process that asked for it is gone: its successor writes the same checkpoints."""

    def report(stage: str, done: int, total: int) -> None:
        if os.getppid() != parent:
            os._exit(1)

    return _alone(work, item, report)


def _reason(error: BaseException) -> str:
    text = str(error).strip()
    if isinstance(error, torch.OutOfMemoryError):  # What follows names every process on the GPU.
        text = text.split(". ")[0]
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__


def ray_library() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise CounterpointError("Ray is not installed; pip install 'counterpoint[ray]', or use joblib") from None
    return ray


@contextmanager
def cluster(ray: Any, address: str) -> Iterator[None]:
    """A connection for the block; one that is there already is used and left alone."""
    ours = not ray.is_initialized()
    if ours:
        try:
            ray.init(address=address, include_dashboard=False if address == "local" else None, log_to_driver=False)
        except (ConnectionError, ValueError) as error:
            raise CounterpointError(
                f"no Ray cluster at '{address}' ({_reason(error)}); start one with `ray start --head`, or use local"
            ) from None
    try:
        yield
    finally:
        if ours:
            ray.shutdown()


def _outcome(ray: Any, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        return Failure(_reason(error.cause), 1)
    except ray.exceptions.RayError as error:
        return Failure(f"the worker died ({_reason(error)})", 1 + RETRIES)
