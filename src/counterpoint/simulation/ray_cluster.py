"""Connections to a Ray cluster (extra `ray`)."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from counterpoint.core.errors import CounterpointError


def ray_library() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise CounterpointError("Ray is not installed; pip install 'counterpoint[ray]', or use joblib") from None
    return ray


@contextmanager
def cluster(ray: Any, address: str) -> Iterator[None]:
    """A connection for the block; one that is there already is used and left alone."""
    ours = not ray.is_initialized()
    if ours:
        try:
            ray.init(address=address, include_dashboard=False if address == "local" else None, log_to_driver=False)
        except (ConnectionError, ValueError) as error:
            raise CounterpointError(
                f"no Ray cluster at '{address}' ({error}); start one with `ray start --head`, or use local"
            ) from None
    try:
        yield
    finally:
        if ours:
            ray.shutdown()
