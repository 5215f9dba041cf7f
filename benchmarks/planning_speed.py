"""What trying PETS costs: `python benchmarks/planning_speed.py --device cuda [--policies 20] [--episodes 50]`.

All policies are tried in all episodes of noisy CartPole, planning at every step; on a GPU by one kernel a step of the
model and, in the same run, layer by layer. The last line is JSON.
"""

import argparse
import json
import time
from typing import Any
from unittest.mock import patch

import torch

import counterpoint as cp
from counterpoint.core.results import markdown_table, provenance
from counterpoint.models.dynamics.base import Head
from counterpoint.models.dynamics.gaussian import DiagonalGaussian
from counterpoint.ope.true_return import true_returns
from counterpoint.policies.base import Policy


def tried(how: str, policies: list[Policy], episodes: int) -> dict[str, Any]:
    """Seconds of all episodes, and how long they lasted."""
    begun = time.perf_counter()
    lasted = true_returns(policies, cp.CartPole(), episodes).cpu()
    seconds, plans = time.perf_counter() - begun, float(lasted.sum())
    return {"model": how, "seconds": seconds, "plans a second": plans / seconds, "mean return": float(lasted.mean())}


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    for name, number in (("policies", 20), ("episodes", 50), ("trials", 250)):
        parser.add_argument(f"--{name}", type=int, default=number)
    told = parser.parse_args()
    if told.device == "cuda" and not torch.cuda.is_available():
        parser.error("no CUDA device is available here; use --device cpu")
    if min(told.policies, told.episodes, told.trials) < 1:
        parser.error("--policies, --episodes and --trials must be 1 or more")
    task = cp.CartPole()
    jobs = [cp.Job(cp.simulate(task, cp.random_policy(task), told.trials, 20, i), i) for i in range(told.policies)]
    policies = [each.selected for each in cp.PETS().fit_many(jobs, task, device=told.device)]
    tried("first", policies[:1], 1)
    table = [tried("one kernel" if told.device == "cuda" else "layer by layer", policies, told.episodes)]
    if told.device == "cuda":
        with patch.object(DiagonalGaussian, "step", Head.step):
            table.append(tried("layer by layer", policies, told.episodes))
    print(markdown_table(table, formats={"seconds": ".1f", "plans a second": ",.0f", "mean return": ".1f"}))
    print(json.dumps({**vars(told), "table": table, **provenance()}))


if __name__ == "__main__":
    main()
