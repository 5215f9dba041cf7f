"""How fast a policy answers one state, and what a search costs: `python benchmarks/search_speed.py [--rows 1000]`.

A searched rule and PETS answer one state at a time on one core; one data set is fitted and searched with the defaults.
The last line is JSON.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import counterpoint as cp
from counterpoint.core.provenance import provenance
from counterpoint.core.tables import markdown_table
from counterpoint.data.jobs import NO_THETA
from counterpoint.nets.likelihood import Likelihood
from counterpoint.nets.training import Schedule
from counterpoint.policies.base import Policy


def microseconds(act: Callable[[torch.Tensor], Any], states: torch.Tensor, repeats: int) -> float:
    """The median time of an answer to one state."""
    times = []
    for i in range(repeats):
        state = states[i % len(states)][None]
        start_time = time.perf_counter()
        act(state)
        times.append(time.perf_counter() - start_time)
    return 1e6 * statistics.median(times)


def answers(name: str, policy: Policy, states: torch.Tensor, repeats: int) -> dict[str, Any]:
    actor = policy.actor()
    with torch.inference_mode():
        bare = microseconds(lambda state: actor(state[None], NO_THETA[None]), states, repeats)
        whole = microseconds(policy.act, states, repeats)
    return {"policy": name, "actor, µs": bare, "act, with its checks, µs": whole}


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1000)
    options = parser.parse_args()
    task = cp.CartPole()
    rows = cp.simulate(task, cp.random_policy(task), options.rows // 20, 20, seed=100)
    clock, stages = time.process_time, {}
    search, start_time = cp.Search(), clock()
    model = search.model.fit(rows)
    stages["fit"], start_time = clock() - start_time, clock()
    searched = search.with_models([cp.data.Job(rows)], [model], task)[0].selected
    stages["search"] = clock() - start_time
    brief = Likelihood(Schedule(steps=100, check_every=50), bootstrap=True)
    pets = cp.learners.PETS(cp.models.GaussianDynamics(5, (64, 64), batch_norm=False, likelihood=brief)).fit(rows, task)
    table = [answers("searched rule", searched, rows.state, 2000), answers("PETS", pets, rows.state, 5)]
    figures = {"rows": len(rows), **{f"{name}_processor_seconds": value for name, value in stages.items()}}
    figures |= {"true_return": float(cp.true_return(searched, task, 20).mean()), "in_model": searched.return_in_model}
    shown = [{k: f"{v:.0f}" if isinstance(v, float) else v for k, v in row.items()} for row in table]
    print(markdown_table(shown))
    print(markdown_table([{k: f"{v:.1f}" if isinstance(v, float) else v for k, v in figures.items()}]))
    print(json.dumps({"answers": table, **figures, **provenance()}))


if __name__ == "__main__":
    main()
