"""How far a query has read its files, from a thread that looks while DuckDB works.

The position of the open file is what the system knows of it (Linux; elsewhere the stage shows and does not move).
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
"""Between two looks; a query that takes less shows nothing."""


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
    """The byte to which this process has read an open file, 0 where nobody says."""
    found = 0
    for link in OPEN.iterdir() if OPEN.is_dir() else ():
        try:
            if os.readlink(link) == path:
                text = (OPEN.parent / "fdinfo" / link.name).read_text()
                found = max(found, int(re.findall(r"pos:\s*(\d+)", text)[0]))
        except OSError:  # Closed since it was listed.
            continue
    return found
