"""What `test_cli.py` shares with other test modules."""

import os
import sys
import time
from pathlib import Path

import torch

from counterpoint.cli.main import main
from helpers.processes import process_of


def command(*words: object) -> None:
    main([str(word) for word in words])


def kill_and_resume(words: list[str], tail: list[str], checkpoint: Path) -> None:
    """Start, kill -9 as soon as the checkpoint is there, go on here with --resume; flags go before a subcommand."""
    process = process_of(_unheard, *words, *tail)
    deadline = time.monotonic() + 120
    while not list(checkpoint.parent.glob(checkpoint.name)) and process.is_alive() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert process.is_alive(), "it ended before it could be killed"
    process.kill()
    process.join()
    assert process.exitcode == -9
    command(*words, "--resume", *tail)


def _unheard(*words: str) -> None:
    """Run a command that prints nothing."""
    torch.set_num_threads(1)
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115  Open until the process ends.
    command(*words)
