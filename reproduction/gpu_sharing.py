"""One GPU for several processes: CUDA's Multi-Process Service (MPS) runs their kernels at once instead of in turns."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

CONTROL = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
TRIAL = "import torch; torch.zeros(1, device='cuda')"


@contextmanager
def shared_gpu() -> Iterator[bool]:
    """Processes begun inside the block share the GPU by MPS; gives whether they do.

    A service that runs already is used as it is; without one on this machine, or where it does not serve, nothing is
    changed and processes take turns.
    """
    if PIPES in os.environ:
        yield True
        return
    if shutil.which(CONTROL) is None:
        yield False
        return
    with TemporaryDirectory(prefix="mps") as folder:
        own = _folders(Path(folder))
        with _service({**os.environ, **own}) as serving:
            before = os.environ.copy()
            os.environ.update(own if serving else {})
            try:
                yield serving
            finally:
                os.environ.clear()
                os.environ.update(before)


def _folders(folder: Path) -> dict[str, str]:
    own = {PIPES: folder / "pipes", LOGS: folder / "logs"}
    for path in own.values():
        path.mkdir()
    return {name: str(path) for name, path in own.items()}


@contextmanager
def _service(environment: dict[str, str]) -> Iterator[bool]:
    """The service for the block, tried by a process of its own; not where it cannot be started or does not serve."""
    silently = {"env": environment, "capture_output": True}
    if subprocess.run([CONTROL, "-d"], **silently).returncode:
        yield False
        return
    try:
        yield subprocess.run([sys.executable, "-c", TRIAL], **silently).returncode == 0
    finally:
        subprocess.run([CONTROL], input=b"quit\n", **silently)
