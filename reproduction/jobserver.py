"""Slots that several commands on one machine share, as with GNU make's jobserver; each command has a rank.

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

ADDRESS, RANK = "COUNTERPOINT_JOBSERVER", "COUNTERPOINT_JOBSERVER_RANK"
"""What tells a command where to ask, and in which order it is served."""
HOW_MANY = b"how many"
"""Asks how many slots are taken, instead of for one."""


class JobServer:
    """Hands out `slots`: to the lowest rank of those who wait, and among equals to who came first."""

    def __init__(self, slots: int) -> None:
        self.slots, self.free, self.waiting, self.number = slots, slots, [], count()
        self.changed = threading.Condition()
        self.listener = Listener(backlog=1024)

    def environment(self, rank: int) -> dict[str, str]:
        """What a command of that rank needs to know."""
        return {ADDRESS: str(self.listener.address), RANK: str(rank)}

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
            asked = asking.recv_bytes()
            if asked == HOW_MANY:
                asking.send_bytes(str(self.slots - self.free).encode())
                return
            self._take(int(asked))
            try:
                asking.send_bytes(b"go")
                asking.recv_bytes()
            finally:
                self._give_back()

    def _take(self, rank: int) -> None:
        with self.changed:
            mine = (rank, next(self.number))
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
    rank: int = 0

    @classmethod
    def of_environment(cls) -> "Slots":
        return cls(os.environ.get(ADDRESS, ""), int(os.environ.get(RANK, "0")))

    def slot(self) -> AbstractContextManager[None]:
        """Wait for a slot and hold it inside the block."""
        return self._held() if self.address else nullcontext()

    def taken(self) -> int:
        """How many slots all commands hold; none where they share none, or nobody answers."""
        with suppress(EOFError, OSError):
            if self.address:
                with Client(self.address) as connection:
                    connection.send_bytes(HOW_MANY)
                    return int(connection.recv_bytes())
        return 0

    @contextmanager
    def _held(self) -> Iterator[None]:
        with Client(self.address) as connection:
            connection.send_bytes(str(self.rank).encode())
            connection.recv_bytes()
            yield
