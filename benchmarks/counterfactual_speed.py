"""How long a million counterfactual rows of 46 state columns take on one core, and how much memory they need.

    python benchmarks/counterfactual_speed.py [rows] [columns]

The model is the default SCM with its five members, fitted for a few steps: speed does not depend on how well it fits.
Prints a table, and the same figures as JSON on the last line.
"""

import json
import resource
import sys
import time

import torch

from counterpoint.core.provenance import hardware
from counterpoint.core.tables import markdown_table
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.models.base import CHUNK
from counterpoint.models.scm.density import DensitySCM
from counterpoint.nets.likelihood import Likelihood
from counterpoint.nets.training import Schedule

ACTIONS = 25
"""One-hot treatments, as many as the sepsis task has."""


def table(rows: int, columns: int, seed: int) -> Transitions:
    """Random rows of the right shape."""
    random = torch.Generator().manual_seed(seed)
    space = Discrete.one_hot(ACTIONS)
    state = torch.randn(rows, columns, generator=random)
    return Transitions.logged(
        state=state,
        action=space.sample(rows, random),
        reward=torch.zeros(rows),
        next_state=0.9 * state + 0.3 * torch.randn(rows, columns, generator=random),
        terminated=torch.zeros(rows, dtype=torch.bool),
        truncated=torch.zeros(rows, dtype=torch.bool),
        subject=torch.arange(rows),
        step=torch.zeros(rows, dtype=torch.long),
        actions=space,
        subject_names=("-",),
    )


def peak_gigabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measure(rows: int, columns: int) -> dict[str, float]:
    """Wall and processor seconds of one counterfactual call, and the peak of memory before and after it."""
    brief = Likelihood(Schedule(steps=20, check_every=10))
    model = DensitySCM(likelihood=brief).fit(table(5000, columns, 0))
    data = table(rows, columns, 1)
    action = data.action.roll(1, 0)
    before, wall, processor = peak_gigabytes(), time.perf_counter(), time.process_time()
    model.counterfactual(data, action)
    return {
        "rows": rows,
        "columns": columns,
        "members": model.mechanism.members,
        "chunk": CHUNK,
        "wall_seconds": time.perf_counter() - wall,
        "processor_seconds": time.process_time() - processor,
        "peak_before_gb": before,
        "peak_after_gb": peak_gigabytes(),
    }


def main() -> None:
    torch.set_num_threads(1)
    rows, columns = (int(text) for text in [*sys.argv[1:], *("1000000", "46")[len(sys.argv) - 1 :]])
    results = measure(rows, columns)
    print(markdown_table([results], formats={name: ".1f" for name in results if isinstance(results[name], float)}))
    print(json.dumps({**results, **hardware()}))


if __name__ == "__main__":
    main()
