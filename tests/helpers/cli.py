"""What `test_cli.py` shares with other test modules."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from counterpoint.cli.main import main


def command(*words: object) -> None:
    main([str(word) for word in words])


def kill_and_resume(words: list[str], tail: list[str], checkpoint: Path) -> None:
    """Start, kill -9 as soon as the checkpoint is there, start again with --resume; flags go before a subcommand."""
    program = [sys.executable, "-m", "counterpoint", *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([*program, *tail], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list(checkpoint.parent.glob(checkpoint.name)) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert process.poll() is None, "it ended before it could be killed"
    process.send_signal(signal.SIGKILL)
    process.wait()
    subprocess.run([*program, "--resume", *tail], env=environment, check=True, stdout=subprocess.DEVNULL)
