"""A user's file before it is read: a regular file, and one that does not unpack to far more than a table is."""

import gzip
import zlib
from pathlib import Path

from counterpoint.core.errors import CounterpointError

PIECE = 2**20
"""Bytes that are unpacked at once."""
USUAL = 2**26
"""Bytes that any packed table may unpack to."""
FOLD = 100
"""How many times its own size a larger table may unpack to; text packs five to thirty times."""
MOST = 2**32
"""Bytes beyond which no packed table is read."""


def check_file(path: Path) -> None:
    """Refuse what is no regular file, on which a reader could wait forever, and a packed one that fills the memory."""
    if not path.exists():
        raise CounterpointError(f"there is no file {path}; check the path")
    check_regular(path)
    if path.suffix.lower() == ".gz":
        _check_unpacked(path)


def check_regular(path: Path) -> None:
    """Refuse a pipe, a device or a folder; a path where nothing is passes."""
    if path.exists() and not path.is_file():
        raise CounterpointError(f"{path} is no regular file but a pipe, a device or a folder; save it as a file")


def _check_unpacked(path: Path) -> None:
    """Count what the file unpacks to, piece by piece; a damaged one is left to its reader."""
    most, size = min(MOST, max(USUAL, FOLD * path.stat().st_size)), 0
    try:
        with gzip.open(path) as file:
            while size <= most and (piece := file.read(PIECE)):
                size += len(piece)
    except (OSError, EOFError, zlib.error):
        return
    if size > most:
        raise CounterpointError(
            f"{path} unpacks to more than {most / 1e6:,.0f} MB, which is too much for a packed table of its size;"
            " unpack it, and give the file itself if that is right"
        )
