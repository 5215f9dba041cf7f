"""Report how far a query has read its files, from a thread beside DuckDB's.

The system knows the position in an open file (on Linux; elsewhere no progress is shown).
DuckDB's own estimate is at 100% after a quarter of a packed CHARTEVENTS, whose text is ten times as long as the file.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

OPEN = Path("/proc/self/fd")
SECONDS = 0.5
"""Seconds between two reports."""


@contextmanager
def watched(files: list[Path], report: Callable[[int, int], None]) -> Iterator[None]:
    """Report the percentage of the files that has been read, until the block ends."""
    done = Event()
    thread = Thread(target=_watch, args=(files, report, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _watch(files: list[Path], report: Callable[[int, int], None], done: Event) -> None:
    paths = [os.path.realpath(file) for file in files]
    whole = sum(map(os.path.getsize, paths))
    read = dict.fromkeys(paths, 0)
    shown = False
    while not done.wait(SECONDS):
        for path in paths:
            read[path] = max(read[path], position(path))
        report(100 * sum(read.values()) // max(whole, 1), 100)
        shown = True
    if shown:
        report(100, 100)


def position(path: str) -> int:
    """Return the position of this process in an open file; 0 where it is unknown."""
    furthest = 0
    for link in OPEN.iterdir() if OPEN.is_dir() else ():
        try:
            if os.readlink(link) == path:
                text = (OPEN.parent / "fdinfo" / link.name).read_text()
                furthest = max(furthest, int(re.findall(r"pos:\s*(\d+)", text)[0]))
        except OSError:  # Closed since it was listed.
            continue
    return furthest
