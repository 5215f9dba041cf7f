"""Processes that a test may kill."""

import multiprocessing
from collections.abc import Callable
from typing import Any

LOADED = ["torch._dynamo", "counterpoint.cli.train", "counterpoint.cli.fit", "counterpoint.learners.methods"]
"""Modules that the processes need."""


def process_of(target: Callable[..., None], *arguments: Any) -> Any:
    """Start a process of an interpreter that has imported everything: a kill hits the run and not the imports.

    The interpreter is started once, and every process is a fork of it.
    """
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([*LOADED, __name__])
    process = server.Process(target=target, args=arguments)
    process.start()
    return process
