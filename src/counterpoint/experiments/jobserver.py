"""Slots that several commands on one machine share, as with GNU make's jobserver; who has most to do comes first.

A command asks before every item and holds its slot until the connection ends, so that a slot is free again whatever
became of its holder.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from multiprocessing.connection import Client, Connection, Listener

ADDRESS, SECONDS = "COUNTERPOINT_JOBSERVER", "COUNTERPOINT_JOBSERVER_SECONDS"
"""What tells a command where to ask, and how long it will work, by which it is served."""


class JobServer:
    """Hands out `slots`; of those who wait, who has most to do comes first, and among equals who came first."""

    def __init__(self, slots: int) -> None:
        self.free, self.waiting, self.number = slots, [], count()
        self.changed = threading.Condition()
        self.listener = Listener(family="AF_UNIX", backlog=1024)

    def environment(self, seconds: float) -> dict[str, str]:
        """What a command needs to know that has `seconds` to do."""
        return {ADDRESS: str(self.listener.address), SECONDS: repr(seconds)}

    def __enter__(self) -> "JobServer":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=(self.listener.accept(),), daemon=True).start()

    def _serve(self, asking: Connection) -> None:
        """One request: in the queue until it is its turn, in a slot until the other side hangs up."""
        with asking, suppress(EOFError, OSError):
            self._take(float(asking.recv_bytes()))
            try:
                asking.send_bytes(b"go")
                asking.recv_bytes()
            finally:
                self._give_back()

    def _take(self, seconds: float) -> None:
        with self.changed:
            mine = (-seconds, next(self.number))
            heappush(self.waiting, mine)
            self.changed.wait_for(lambda: self.free > 0 and self.waiting[0] == mine)
            heappop(self.waiting)
            self.free -= 1
            self.changed.notify_all()

    def _give_back(self) -> None:
        with self.changed:
            self.free += 1
            self.changed.notify_all()


@dataclass(frozen=True)
class Slots:
    """Where to ask for slots, if anywhere."""

    address: str = ""
    seconds: float = 0.0
    """How long all items of this command take one process."""

    @classmethod
    def of_environment(cls) -> "Slots":
        return cls(os.environ.get(ADDRESS, ""), float(os.environ.get(SECONDS, "0")))

    def slot(self, left: float) -> AbstractContextManager[None]:
        """Wait for a slot and hold it inside the block; `left` is the share of the command's items not yet begun."""
        return self._held(self.seconds * left) if self.address else nullcontext()

    @contextmanager
    def _held(self, seconds: float) -> Iterator[None]:
        with Client(self.address, family="AF_UNIX") as connection:
            connection.send_bytes(repr(seconds).encode())
            connection.recv_bytes()
            yield
