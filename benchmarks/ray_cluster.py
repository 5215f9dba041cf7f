"""A grid on two Ray nodes, one of which is killed halfway: `python benchmarks/ray_cluster.py`.

Needs `pip install 'counterpoint[ray]'`. Two raylets run on this machine's loopback, with one CPU each. Once the second
node has finished a cell and holds another, its processes are killed (-9). Every cell must end, and the rows must be
those of a run in this process. The last line is a JSON object of the figures.
"""

import json
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray
from ray.cluster_utils import Cluster

from counterpoint.core.provenance import provenance
from counterpoint.core.tables import markdown_table
from counterpoint.data.jobs import Job
from counterpoint.learners.base import PolicyCheckpoints, PolicyLearner
from counterpoint.learners.d3qn import D3QN
from counterpoint.nets.training import Monitor, Schedule
from counterpoint.tasks.base import Task
from counterpoint.tasks.cartpole import CartPole
from reproduction.executors import InProcess, Ray
from reproduction.experiment import Finished, run
from reproduction.grid import Arm, Grid
from reproduction.logs import Protocol

LEARNER = D3QN((64, 64), Schedule(steps=1500, rate="linear"), batch=64)


@dataclass(frozen=True)
class Noted(PolicyLearner):
    """Learns as `learner` does, and notes on which node each attempt began and ended."""

    notes: str
    learner: D3QN = LEARNER

    def fit_many(
        self, jobs: Sequence[Job], task: Task, monitor: Monitor = Monitor(), device: str = "cpu"
    ) -> list[PolicyCheckpoints]:
        assert monitor.folder is not None
        self._note("began", monitor.folder.name)
        learned = self.learner.fit_many(jobs, task, monitor, device)
        self._note("ended", monitor.folder.name)
        return learned

    def _note(self, event: str, cell: str) -> None:
        node = ray.get_runtime_context().get_node_id() if ray.is_initialized() else "here"
        with Path(self.notes).open("a") as file:
            file.write(json.dumps({"event": event, "cell": cell, "node": node}) + "\n")


def grid(notes: Path, seeds: int = 5) -> Grid:
    arms = {"D3QN": Arm(Noted(str(notes)), CartPole())}
    return Grid("ray", arms, (20, 50), tuple(range(seeds)), stack_size=1, protocol=Protocol(50))


def events(notes: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []


def kill_midway(cluster: Cluster, node: Any, notes: Path, killed: threading.Event) -> None:
    """Kill the node's processes as soon as it has ended a cell and begun another."""
    while not killed.is_set():
        mine = [event["event"] for event in events(notes) if event["node"] == node.node_id]
        if "ended" in mine and mine[-1] == "began":
            time.sleep(0.5)
            cluster.remove_node(node, allow_graceful=False)
            killed.set()
        time.sleep(0.05)


def on_cluster(out: Path, notes: Path) -> tuple[Finished, str, float, bool]:
    """The run on two nodes, the id of the node that was killed, the seconds it took, and whether the kill happened."""
    quick_death = {"health_check_period_ms": 500, "health_check_timeout_ms": 500, "health_check_failure_threshold": 3}
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "_system_config": {**quick_death}, "include_dashboard": False},
    )
    node = cluster.add_node(num_cpus=1)
    killed = threading.Event()
    killer = threading.Thread(target=kill_midway, args=(cluster, node, notes, killed), daemon=True)
    killer.start()
    start_time = time.monotonic()
    try:
        (finished,) = run([grid(notes)], out, Ray(address=cluster.address))
        happened = killed.is_set()
    finally:
        killed.set()
        killer.join()
        cluster.shutdown()
    return finished, node.node_id, time.monotonic() - start_time, happened


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder) / "notes.jsonl"
        finished, lost, seconds, happened = on_cluster(Path(folder) / "cluster", notes)
        history = events(notes)
        names = {lost: "second (killed)"}
        table = []
        for cell in dict.fromkeys(event["cell"] for event in history):
            attempts = [names.get(e["node"], "head") for e in history if e["cell"] == cell and e["event"] == "began"]
            ended = [names.get(e["node"], "head") for e in history if e["cell"] == cell and e["event"] == "ended"]
            table.append({"cell": cell, "begun on": ", ".join(attempts), "ended on": ", ".join(ended)})
        # The notes' path is part of the recipe, so the comparison uses the same one.
        rows_here = grid(notes).run(Path(folder) / "here", InProcess())
    print(markdown_table(table))
    moved = [row["cell"] for row in table if "second (killed)" in row["begun on"] and row["ended on"] == "head"]
    figures = {
        "cells": len(finished.rows),
        "failures": len(finished.failures),
        "node_killed": happened,
        "cells_moved_to_the_other_node": len(moved),
        "same_rows_as_in_process": finished.rows == rows_here,
        "seconds": round(seconds, 1),
        "ray": ray.__version__,
        "device": provenance()["processor"],
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
