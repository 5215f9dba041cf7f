"""Worker processes of a command: each is given an item at a time, and an item again whose worker was unlucky."""

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import LifoQueue
from typing import Any, TypeVar

import torch

from counterpoint.core.threads import one_thread
from reproduction.jobserver import Slots

Item = TypeVar("Item")
Result = TypeVar("Result")
Report = Callable[[str, int, int], None]
"""Called as report(stage, done, total)."""
RETRIES = 2
"""How often an item is tried again after its worker died, or found no memory while no other item was at work, of this
command or of those that it shares slots with."""
PATIENCE, LONGEST_PATIENCE = 20.0, 80.0
"""Seconds before an item that found no memory is tried again, twice as long each time while others are at work, but no
longer than the second number: the memory that one item held for minutes may be free."""
IDLE = 10.0
"""Seconds after which a worker without an item is ended: commands that share slots may wait long for one, and what a
worker keeps of a GPU's memory others need."""


@dataclass(frozen=True)
class Failure:
    """Why an item has no result."""

    reason: str
    attempts: int


def silent(stage: str, done: int, total: int) -> None:
    """Reports to nobody."""


def alone(work: Callable[[Item, Report], Result], item: Item, report: Report = silent) -> Result:
    """The work in a process of its own, which keeps no memory of a GPU that it does not need."""
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
                died = f"the worker died ({reason(error)})"
                self.process = self._start()
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                return Failure(reason(error), 1)
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


class Lanes:
    """Processes for a number of items; the last one used comes first, and one that no item waits for is ended."""

    def __init__(self, count: int, items: int) -> None:
        self.count, self.waiting, self.at_work = count, items, 0
        self.all = [_Lane() for _ in range(count)]
        self.free: LifoQueue[_Lane] = LifoQueue()
        for lane in self.all:
            self.free.put(lane)
        self.changed = threading.Condition()

    def do(self, work: Callable[[Item, Report], Result], item: Item, slots: Slots) -> Result | Failure:
        """The item's outcome, tried again where there was no memory for it."""
        undisturbed, attempts, patience = 0, 0, PATIENCE
        while True:
            attempts += 1
            try:
                with slots.slot(), self._one() as lane:
                    return lane.do(work, item)
            except torch.OutOfMemoryError as error:
                if self.at_work:
                    self._wait_for_quiet(patience)
                elif slots.taken():
                    time.sleep(patience)
                elif undisturbed == RETRIES:
                    return Failure(reason(error), attempts)
                else:
                    undisturbed, patience = undisturbed + 1, PATIENCE
                    time.sleep(patience)
                patience = min(2 * patience, LONGEST_PATIENCE)

    @contextmanager
    def _one(self) -> Iterator[_Lane]:
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

    def _wait_for_quiet(self, seconds: float) -> None:
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

    return alone(work, item, report)


def reason(error: BaseException) -> str:
    text = str(error).strip()
    if isinstance(error, torch.OutOfMemoryError):  # What follows names every process on the GPU.
        text = text.split(". ")[0]
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
