"""Run the augmentation on a Ray cluster with Ray Data (extra `ray`): the rows and their order are as in one process."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from counterpoint.core.errors import CounterpointError
from counterpoint.core.threads import one_thread
from counterpoint.data.stored_format import (
    from_arrow,
    to_arrow,
)
from counterpoint.data.transitions import Transitions
from counterpoint.simulation.augmentation import without_noise
from counterpoint.simulation.streaming import AugmentationExecutor, AugmentationWork


@dataclass(frozen=True)
class RayData(AugmentationExecutor):
    """Executor on a Ray cluster whose nodes can all read the table's file."""

    address: str = "local"
    """Address of a running cluster ("auto" finds one on this machine), or "local" to start one."""

    def imagine(self, work: AugmentationWork) -> Iterator[Transitions]:
        ray = ray_library()
        like = without_noise(work.source.piece(0)[:0])
        with cluster(ray, self.address):
            from ray import data

            context = data.DataContext.get_current()
            context.execution_options.preserve_order = True
            context.enable_progress_bars = False
            numbers = data.range(len(work.source), override_num_blocks=len(work.source))
            pieces = numbers.map_batches(_imagined, batch_size=1, fn_args=(ray.put(work),), num_cpus=1)
            for batch in pieces.iter_batches(batch_size=None, batch_format="pyarrow"):
                yield from_arrow(batch, like)


def _imagined(batch: dict[str, Any], work: Any) -> Any:
    """Return the piece whose number is in `batch` as an Arrow table; called in a worker."""
    import ray

    (number,) = batch["id"].tolist()
    with one_thread():
        return to_arrow(ray.get(work)(number))


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
