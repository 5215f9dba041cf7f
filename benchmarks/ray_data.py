"""Imagined rows from two Ray nodes and from this process: `python benchmarks/ray_data.py [rows]`.

Needs `pip install 'counterpoint[ray]'`. Two raylets run on this machine's loopback, with one CPU each; Ray Data gives
them the pieces of a table. The files must be the same, byte for byte. The last line is a JSON object of the figures.
"""

import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray
import torch
from ray.cluster_utils import Cluster

from counterpoint.core.provenance import provenance
from counterpoint.core.tables import markdown_table
from counterpoint.data import storage
from counterpoint.data.transitions import Transitions
from counterpoint.simulation.augmentation import Augmenter
from counterpoint.simulation.ray_data import RayData
from counterpoint.simulation.streaming import (
    AugmentationExecutor,
    AugmentationWork,
    StoredPieces,
    ThisProcess,
    augment,
)
from scale import Ward, brief_model, log


@dataclass(frozen=True)
class Noted(Augmenter):
    """Augments, and notes on which node each piece was made."""

    notes: str = ""

    def piece(self, rows: Transitions, number: int, *more: object, **other: object) -> Transitions:
        node = ray.get_runtime_context().get_node_id() if ray.is_initialized() else "here"
        with Path(self.notes).open("a") as file:
            file.write(f"{number} {node}\n")
        return super().piece(rows, number, *more, **other)  # pyright: ignore[reportArgumentType]


def timed(where: AugmentationExecutor, work: AugmentationWork, out: Path) -> tuple[float, bytes]:
    start_time = time.monotonic()
    augment(work, out, where)
    return time.monotonic() - start_time, out.read_bytes()


def main() -> None:
    torch.set_num_threads(1)
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        storage.write(log(rows, 1), folder / "rows.parquet")
        work = AugmentationWork(
            StoredPieces.of(folder / "rows.parquet"), Noted(2, notes=f"{folder}/notes"), brief_model(), Ward(), 0
        )
        here, expected = timed(ThisProcess(), work, folder / "here.parquet")
        (folder / "notes").unlink()
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        cluster.add_node(num_cpus=1)
        try:
            there, results = timed(RayData(cluster.address), work, folder / "ray.parquet")
        finally:
            cluster.shutdown()
        nodes = [line.split()[1] for line in (folder / "notes").read_text().splitlines()]
    figures = {
        "rows": rows,
        "pieces": len(work.source),
        "pieces_by_node": sorted(nodes.count(node) for node in set(nodes)),
        "same_bytes": results == expected,
        "seconds_here": round(here, 1),
        "seconds_on_two_nodes": round(there, 1),
        "ray": ray.__version__,
        "processor": provenance()["processor"],
    }
    print(markdown_table([figures]))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
