"""What tables of a million rows and more take on one core: `python benchmarks/scale.py [--rows N] [--streamed N]`.

Fits the default SCM on a tenth of the rows and on all of them, imagines four alternatives of every row in memory, and
augments `--streamed` rows from Parquet to Parquet with one alternative. Every figure comes from a process of its own,
whose peak of memory is that figure's. `--out results/scale.md` writes the page. The last line is JSON.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from counterfactual_speed import ACTIONS, table
from counterpoint.core.provenance import provenance
from counterpoint.core.tables import markdown_table
from counterpoint.data import storage
from counterpoint.data.shapes import Action, Flag, Reward, State
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.models.scm.base import StructuralCausalModel
from counterpoint.models.scm.density import CAREFUL, DensitySCM
from counterpoint.nets.likelihood import Likelihood
from counterpoint.nets.training import Monitor, Schedule
from counterpoint.simulation.augmentation import PIECE, Augmenter
from counterpoint.simulation.streaming import AugmentationWork, StoredPieces, augment
from counterpoint.tasks.base import Task

COLUMNS = 46
STEPS = 20
"""Rows of a subject."""


class Ward(Task):
    """Reward and end by one column."""

    actions = Discrete.one_hot(ACTIONS)
    discount, horizon = 0.99, STEPS

    def reward(self, state: State, action: Action, next_state: State) -> Reward:
        return next_state[..., 0]

    def terminated(self, next_state: State) -> Flag:
        return next_state[..., 0] > 3


def log(rows: int, seed: int, first: int = 0) -> Transitions:
    """Random rows of subjects of `STEPS` rows each; `first` is the number of the first row."""
    return replace(table(rows, COLUMNS, seed), subject=torch.arange(first, first + rows) // STEPS)


def brief_model() -> StructuralCausalModel:
    """The default SCM after a few steps: answering does not depend on how well it fits."""
    return DensitySCM(likelihood=Likelihood(Schedule(steps=20, check_every=10))).fit(log(5000, 0))


def stopwatch() -> Callable[[], dict[str, float]]:
    """Seconds of wall time and of this process since now."""
    wall, processor = time.perf_counter(), time.process_time()
    return lambda: {
        "seconds": time.perf_counter() - wall,
        "processor_seconds": time.process_time() - processor,
    }


def fit(rows: int, steps: str, device: str = "cpu") -> dict[str, Any]:
    data, reports = log(rows, 1), []
    used = stopwatch()
    monitor = Monitor(report=lambda stage, done, total: reports.append((used()["seconds"], done)))
    # Without patience: a fit that stops early, as one of random rows does, would flatter the figure.
    schedule = replace(CAREFUL.schedule, steps=int(steps), patience=0)
    DensitySCM(likelihood=replace(CAREFUL, schedule=schedule)).fit(data, monitor=monitor, device=device)
    first_steps = next(at for at, done in reports if done)
    options = {"first_report": reports[0][0], "first_steps": first_steps, "steps": reports[-1][1]}
    return {"device": device, **used(), **options}


def imagine(rows: int) -> dict[str, Any]:
    model, data = brief_model(), log(rows, 1)
    used = stopwatch()
    made = Augmenter(4).augment(data, model, Ward())
    return {**used(), "rows_out": len(made)}


def stream(rows: int, folder: str) -> dict[str, Any]:
    model, used = brief_model(), stopwatch()
    work = AugmentationWork(StoredPieces.of(f"{folder}/rows.parquet"), Augmenter(1), model, Ward(), 0)
    out = Path(folder) / "augmented.parquet"
    written = augment(work, out)
    size = out.stat().st_size / 2**30
    return {**used(), "rows_out": written.real + written.imagined, "file_gb": size}


def prepare(rows: int, folder: str) -> dict[str, Any]:
    with storage.writing(f"{folder}/rows.parquet") as put:
        for first in range(0, rows, PIECE):
            put(log(min(PIECE, rows - first), first, first))
    return {}


STAGES: dict[str, Callable[..., dict[str, Any]]] = {
    "fit": fit,
    "imagine": imagine,
    "prepare": prepare,
    "stream": stream,
}


def alone(stage: str, rows: int, *more: str) -> dict[str, Any]:
    """A stage in a process of its own."""
    command = [sys.executable, __file__, "--stage", stage, "--rows", str(rows), *more]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    return {"figure": stage, "rows": rows, **json.loads(ended.stdout.splitlines()[-1])}


def measure(rows: int, streamed: int, steps: str, workers: int) -> list[dict[str, Any]]:
    """Every figure; with two workers the streamed one beside the others."""
    with ThreadPoolExecutor(workers) as pool:
        others, flowing = pool.submit(in_memory, rows, steps), pool.submit(from_file_to_file, streamed)
        return [*others.result(), flowing.result()]


def in_memory(rows: int, steps: str) -> list[dict[str, Any]]:
    found = [alone("fit", rows // 10, steps), alone("fit", rows, steps), alone("imagine", rows)]
    return [*found, alone("fit", rows, steps, "cuda")] if torch.cuda.is_available() else found


def from_file_to_file(rows: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        alone("prepare", rows, folder)
        return alone("stream", rows, folder)


def page(figures: list[dict[str, Any]], about: dict[str, Any], command: str) -> str:
    columns = list(dict.fromkeys(name for figure in figures for name in figure))
    rows = [{name: figure.get(name, "") for name in columns} for figure in figures]
    shown = [{n: f"{v:.1f}" if isinstance(v, float) else v for n, v in row.items()} for row in rows]
    said = ", ".join(f"{name} {about[name]}" for name in ("commit", "torch", "processor", "cpu_count", "torch_threads"))
    return (
        f"# Tables of a million rows and more\n\n`{command}` ({said}; {COLUMNS} state columns, {ACTIONS} one-hot"
        " actions, five members; `imagine` makes four alternatives of a row in memory, `stream` one from Parquet to"
        " Parquet; `processor_seconds` of one thread, `seconds` of wall time, memory at its peak)."
        f"\n\n{markdown_table(shown)}\n"
    )


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--streamed", type=int, default=10_000_000)
    parser.add_argument("--workers", type=int, default=1, help="figures taken at a time, each on a core of its own")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--stage", choices=STAGES)
    parser.add_argument("--steps", default=str(CAREFUL.schedule.steps), help="of a fit")
    parser.add_argument("more", nargs="*")
    options = parser.parse_args()
    if options.stage:
        found = STAGES[options.stage](options.rows, *options.more)
        print(json.dumps({**found, "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}))
        return
    figures, about = measure(options.rows, options.streamed, options.steps, options.workers), provenance()
    words = f"--rows {options.rows} --streamed {options.streamed} --workers {options.workers}"
    text = page(figures, about, f"python benchmarks/scale.py {words}")
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    print(text)
    print(json.dumps({"figures": figures, **about}))


if __name__ == "__main__":
    main()
