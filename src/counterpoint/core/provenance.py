"""What produced a result: versions, commit and hardware."""

import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch


def hardware() -> dict[str, Any]:
    """What the numbers were computed on: the accelerator if torch sees one, else the processor."""
    cuda = torch.cuda.is_available()
    return {
        "device": torch.cuda.get_device_name() if cuda else _processor(),
        "accelerator": "cuda" if cuda else "none",
        "processor": _processor(),
        "cpu_count": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
    }


def provenance() -> dict[str, Any]:
    """What produced a result, to be saved beside it: versions, commit and hardware; no paths and no host names."""
    return {
        "counterpoint": _package_version(),
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        **hardware(),
    }


def _processor() -> str:
    """The processor's model name, which Linux tells only in /proc/cpuinfo."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        found = re.search(r"^model name\s*:\s*(.+)$", information.read_text(), re.MULTILINE)
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine()


def _package_version() -> str | None:
    try:
        return metadata.version("counterpoint")
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the checkout this file is tracked in, "-dirty" when the package is edited; a copy without history
    is told its own in COUNTERPOINT_COMMIT; None where nobody knows."""
    here = Path(__file__)
    if "COUNTERPOINT_COMMIT" in os.environ:
        return os.environ["COUNTERPOINT_COMMIT"]
    try:
        # An installed copy may lie inside some other project's checkout, whose commit would say nothing.
        _git(here.parent, "ls-files", "--error-unmatch", here.name)
        edited = _git(here.parents[2], "status", "--porcelain", "--untracked-files=no", ".")
        return _git(here.parent, "rev-parse", "HEAD") + "-dirty" * bool(edited)
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    finished = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=10)
    return finished.stdout.strip()
