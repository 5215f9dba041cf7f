"""A worker of the benchmark of damaged tables that fails; it imports little, so that it starts quickly."""

import sys
import time
from multiprocessing.connection import Connection


def serve_odd(line: Connection) -> None:
    """Never end with table 1, die of table 2, judge every other."""
    line.send("ready")
    while (case := line.recv()) is not None:
        if case == 1:
            time.sleep(1000)
        if case == 2:
            sys.exit(1)
        line.send(("judged", 0.1))
