"""The SD grid's Q-learning, stacked against one by one: `python benchmarks/stacking.py`.

Member-updates a second (members × updates / seconds) of D3QN (2×256, batch 256) on the grid's own logs. `in the loop`
is the rate between two lengths of training, which leaves out tables, initial weights and graph capture; `whole fits` is
`fit_many` from its call to its policies, which pays for those once a stack, or once a member one by one. On a GPU one
by one replays its CUDA graph as the stack does; `without graph` is the plain loop. The last line is a JSON object.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from counterpoint.core.provenance import provenance
from counterpoint.core.tables import markdown_table
from counterpoint.data.jobs import Job
from counterpoint.learners.ctrl_g import LEARNER
from counterpoint.learners.methods import unselected
from counterpoint.nets import learner
from counterpoint.simulation.trials import trial_subset
from counterpoint.tasks.cartpole import CartPole
from reproduction.logs import LogSource, logs

TASK = CartPole()
SIZES = (50, 100, 150, 200, 250)


def grid_jobs(members: int) -> list[Job]:
    """The grid's jobs in the grid's order; fewer members take fewer seeds of every size."""
    tables = logs(LogSource(TASK), range(max(members // len(SIZES), 1)))
    jobs = [Job(trial_subset(table, size), seed) for size in SIZES for seed, table in tables.items()]
    return jobs[:members]


def fit_seconds(jobs: Sequence[Job], steps: int, device: str, stacked: bool) -> float:
    """The wall time of fitting every job for some updates."""
    learner = unselected(replace(LEARNER, schedule=replace(LEARNER.schedule, steps=steps)))
    start_time = time.perf_counter()
    for some in [jobs] if stacked else [[job] for job in jobs]:
        learner.fit_many(some, TASK, device=device)
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start_time


def measure(
    jobs: Sequence[Job], lengths: tuple[int, int], device: str, stacked: bool, repeats: int = 3
) -> dict[str, float]:
    """Member-updates a second in the loop and over whole fits; the best of some repeats, since neighbours only slow."""
    fit_seconds(jobs[:1], lengths[0], device, stacked)
    short, long = (min(fit_seconds(jobs, n, device, stacked) for _ in range(repeats)) for n in lengths)
    return {
        "in the loop": len(jobs) * (lengths[1] - lengths[0]) / (long - short),
        "whole fits": len(jobs) * lengths[1] / long,
    }


def row(device: str, how: str, jobs: Sequence[Job], lengths: tuple[int, int], stacked: bool) -> dict[str, Any]:
    names = {"cpu": "CPU, one thread", "cuda": "GPU"}
    return {"device": names[device], "how": how, "members": len(jobs), **measure(jobs, lengths, device, stacked)}


def on_cpu(members: int) -> list[dict[str, Any]]:
    return [
        row("cpu", "stacked", grid_jobs(members), (10, 40), stacked=True),
        row("cpu", "one by one", grid_jobs(5), (10, 110), stacked=False),
    ]


def on_gpu(members: int) -> list[dict[str, Any]]:
    jobs, few = grid_jobs(members), grid_jobs(5)
    rows = [
        row("cuda", "stacked", jobs, (500, 3000), stacked=True),
        row("cuda", "one by one", few, (500, 3000), stacked=False),
    ]
    graphs, learner.Replayed = learner.Replayed, partial(learner.Replayed, eager=10**9)
    rows += [
        row("cuda", "stacked, without graph", jobs, (100, 500), stacked=True),
        row("cuda", "one by one, without graph", few[:2], (100, 500), stacked=False),
    ]
    learner.Replayed = graphs
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu-members", type=int, default=20, help="members of the stack on the CPU")
    parser.add_argument("--gpu-members", type=int, default=100, help="members of the stack on the GPU; the grid's 100")
    parser.add_argument("--only", choices=("cpu", "gpu"), help="one of the two; without it, what there is")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = on_cpu(arguments.cpu_members) if arguments.only != "gpu" else []
    rows += on_gpu(arguments.gpu_members) if torch.cuda.is_available() and arguments.only != "cpu" else []
    print(markdown_table(rows, formats={"in the loop": ",.0f", "whole fits": ",.0f"}))
    rates = {f"{row['device'][:3]} {row['how']}": row for row in rows}
    figures: dict[str, Any] = {"rows": rows}
    for device in [device for device in ("CPU", "GPU") if f"{device} stacked" in rates]:
        for what in ("in the loop", "whole fits"):
            ratio = rates[f"{device} stacked"][what] / rates[f"{device} one by one"][what]
            figures[f"{device} stacked over one by one, {what}"] = round(ratio, 2)
            print(f"{device}: stacking is {ratio:.1f}× one by one, {what}")
    record = provenance()
    print(json.dumps({**figures, **{name: record[name] for name in ("torch", "device", "processor")}}))


if __name__ == "__main__":
    main()
