"""How long the default SCM takes to fit: `python benchmarks/fit_speed.py [--rows 1000 5000] [--scms a h d cartpole]`.

Processor seconds of one core, one fit a problem of the counterfactual benchmark, beside two plain peers in the same
run: one location-scale network, and DoWhy's gcm with its mechanisms assigned automatically where DoWhy is installed.
The peers' columns are the medians over the problems, and `ratio` is the default's median over theirs. Models take turns
on every problem, so that a busy neighbour slows all of them. The last line is a JSON object.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from statistics import median
from typing import Any

import torch

from counterpoint.core.provenance import provenance
from counterpoint.core.seeding import derive
from counterpoint.core.tables import markdown_table
from counterpoint.data.transitions import Transitions
from counterpoint.models.scm.density import default_scm, location_scale
from counterpoint.simulation.augmentation import without_noise
from reproduction.counterfactuals import TASKS, log
from reproduction.tasks.structural_problems import PROBLEMS

DEFAULT, PEER, DOWHY = "default", "location-scale, one network", "DoWhy gcm"
SEED = 150


def fit_dowhy(rows: Transitions) -> None:
    """Every column of s' from all of (s, a), on one core."""
    import networkx  # pyright: ignore[reportMissingImports, reportMissingModuleSource]
    import pandas
    from dowhy import gcm  # pyright: ignore[reportMissingImports]

    gcm.config.set_default_n_jobs(1)
    gcm.config.disable_progress_bars()
    tables = {"s": rows.state, "a": rows.action, "next": rows.next_state}
    columns = {f"{name}{i}": t[:, i].numpy() for name, t in tables.items() for i in range(t.shape[1])}
    causes = [name for name in columns if not name.startswith("next")]
    graph = networkx.DiGraph([(cause, effect) for effect in columns if effect not in causes for cause in causes])
    model, frame = gcm.InvertibleStructuralCausalModel(graph), pandas.DataFrame(columns)
    gcm.auto.assign_causal_mechanisms(model, frame)
    gcm.fit(model, frame)


def fits() -> dict[str, Callable[[Transitions], Any]]:
    """What is timed, by its name in the table."""
    ours: dict[str, Callable[[Transitions], Any]] = {DEFAULT: default_scm().fit, PEER: location_scale(ensemble=1).fit}
    return {**ours, DOWHY: fit_dowhy} if find_spec("dowhy") else ours


def seconds(fit: Callable[[Transitions], Any], rows: Transitions) -> float:
    start_time = time.process_time()
    fit(rows)
    return time.process_time() - start_time


def measure(scms: Sequence[str], n: int) -> dict[str, dict[str, float]]:
    """Seconds of every model on every problem."""
    logs = {scm: without_noise(log(scm, n, derive(SEED, "fit"))) for scm in scms}
    results: dict[str, dict[str, float]] = {name: {} for name in fits()}
    for scm, rows in logs.items():
        for name, fit in fits().items():
            results[name][scm] = seconds(fit, rows)
    return results


def lines(n: int, results: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    """One row a model: seconds on every problem, their median, and the default's median over it."""
    medians = {name: median(times.values()) for name, times in results.items()}
    return [
        {"rows": n, "model": name, **times, "median": medians[name], "ratio": medians[DEFAULT] / medians[name]}
        for name, times in results.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 5000])
    parser.add_argument("--scms", nargs="+", default=[*PROBLEMS, "cartpole"], choices=[*TASKS])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    seconds(fits()[PEER], without_noise(log(asked.scms[0], 200, SEED)))  # What torch does once is not a fit's.
    table = [line for n in asked.rows for line in lines(n, measure(asked.scms, n))]
    print(markdown_table(table, formats=dict.fromkeys((*asked.scms, "median", "ratio"), ".2f")))
    if not find_spec("dowhy"):
        print("\nDoWhy is not installed: its gcm is left out.")
    print(json.dumps({"fits": table, **provenance()}))


if __name__ == "__main__":
    main()
