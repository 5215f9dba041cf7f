"""Learners of other libraries on the rows of `python -m reproduction classic`: `python benchmarks/classic_peers.py`.

Needs `pip install d3rlpy==2.8.1 stable-baselines3` next to this package. Offline: TD3+BC, IQL and CQL where actions are
continuous, DiscreteBCQ and DiscreteCQL on Acrobot, each with d3rlpy's own settings on the very same rows, judged in the
same episodes. Online, which is a ceiling and no peer: SAC or PPO of stable-baselines3, trained in the environment. And
uniformly random actions, which is what made the rows. Writes results/classic_peers.csv in the columns of classic.csv;
a finished cell is a file of its own and is not run again. All methods come to a seed before the next one, so a run that
is cut short compares them on the same seeds. Ends with a Markdown table and, in the last line, the same as JSON.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import gymnasium
import tyro

from counterpoint.core.artifacts import recipe_hash, write_text
from counterpoint.core.errors import require
from counterpoint.core.provenance import provenance
from counterpoint.core.seeding import derive, generator
from counterpoint.core.tables import Row, markdown_table, write_csv, write_json
from counterpoint.data.spaces import Discrete
from reproduction.classic import COLUMNS, Problem, problems
from reproduction.executors import Failure, Joblib, Report, silent
from reproduction.peers_d3rlpy import features, offline
from reproduction.tasks.classic_simulation import Choose, gym_returns

RANDOM = "random actions"
CONTINUOUS, LISTED = ("TD3+BC", "IQL", "CQL"), ("DiscreteBCQ", "DiscreteCQL")
ONLINE = {"Pendulum": "SAC", "Acrobot": "PPO", "MountainCar": "SAC"}
ONLINE_SETTINGS: dict[str, dict[str, Any]] = {
    "Pendulum": {"learning_rate": 1e-3},
    "Acrobot": {"n_steps": 256, "gae_lambda": 0.94, "ent_coef": 0.0, "n_epochs": 4},
    "MountainCar": {
        "learning_rate": 3e-4, "batch_size": 512, "ent_coef": 0.1, "train_freq": 32, "gradient_steps": 32,
        "gamma": 0.9999, "tau": 0.01, "use_sde": True, "policy_kwargs": {"log_std_init": -3.67, "net_arch": [64, 64]},
    },
}  # fmt: skip
"""Those of rl-baselines3-zoo, shortened."""


class Cell(NamedTuple):
    """One policy to learn and to judge."""

    environment: str
    method: str
    rows: int
    seed: int

    def __str__(self) -> str:
        return f"{self.method} on {self.environment}, {self.rows} rows, seed {self.seed}"


@dataclass(frozen=True)
class Peers:
    """What to run."""

    out: Path = Path("results")
    """Folder for classic_peers.csv; cells lie in classic_peers/."""
    environments: tuple[str, ...] = tuple(ONLINE)
    """Which environments."""
    methods: tuple[str, ...] = ()
    """Which learners; all where none is named. The online one is called "online"."""
    seeds: int = 10
    """Data sets and training seeds, those of `python -m reproduction classic`."""
    updates: int = 5000
    """Updates of an offline learner."""
    online_steps: int = 20_000
    """Steps of an online learner in the environment; PPO takes ten times as many."""
    episodes: int = 50
    """Episodes each policy is tried in; by default those of `python -m reproduction classic`."""
    workers: int = 1
    """Processes side by side, of one thread each."""
    limit_seconds: float = 0.0
    """Seconds after which no further cell is begun; 0 for no limit."""

    def run(self) -> None:
        """Every cell that is not done, then the table of those that are."""
        require(self.limit_seconds >= 0, "a run cannot last less than 0 seconds; set --limit-seconds to 0 or more")
        cells, found, failures = self.cells(), {}, 0
        until = time.time() + self.limit_seconds if self.limit_seconds else float("inf")
        for index, outcome in Joblib(self.workers).run(partial(self.cell, until=until), cells, silent):
            if isinstance(outcome, Failure):
                failures += 1
                print(f"failed: {cells[index]}: {outcome.reason}", flush=True)
            elif outcome is not None:
                found[index] = outcome
                print(f"{len(found)}/{len(cells)} {cells[index]} {outcome['return_true']:.1f}", flush=True)
        self.write([found[index] for index in sorted(found)], len(cells), failures)

    def cells(self) -> list["Cell"]:
        """Seed after seed: offline learners at every number of rows, the others once."""
        each = [cell for name in self.environments for cell in self._of_environment(name)]
        return [Cell(name, method, size, seed) for seed in range(self.seeds) for name, method, size in each]

    def _of_environment(self, name: str) -> list[tuple[str, str, int]]:
        problem = problems()[name]
        offline = LISTED if isinstance(problem.task.actions, Discrete) else CONTINUOUS
        every = [*((method, size) for method in offline for size in problem.rows), (RANDOM, 0), ("online", 0)]
        return [(name, method, size) for method, size in every if not self.methods or method in self.methods]

    def cell(self, cell: "Cell", report: Report, until: float) -> dict[str, Any] | None:
        """The row of a cell; None where it is not done and it is too late to begin."""
        name, method, size, seed = cell
        effort = {"online": self.online_steps, RANDOM: 0}.get(method, self.updates)
        key = recipe_hash(problems()[name].task, problems()[name].piece, method, size, seed, effort, self.episodes)
        path = self.out / "classic_peers" / f"{key}.json"
        if path.exists():
            return json.loads(path.read_text())
        if time.time() >= until:
            return None
        start_time, problem = time.perf_counter(), problems()[name]
        choose = self._learn(name, method, problem, size, seed)
        task = problem.task
        found = gym_returns(choose, task.actions, task.gym_id, self.episodes, seed=0)
        label = f"{ONLINE[name]} in the environment" if method == "online" else method
        row = {"method": label, "environment": name, "rows": size, "seed": seed, "return_true": float(found.mean())}
        row |= {"return_in_model": None, "seconds": time.perf_counter() - start_time}
        write_text(path, json.dumps(row))
        return row

    def write(self, rows: list[dict[str, Any]], cells: int, failures: int) -> None:
        """The files of a run, and its figures on the screen."""
        write_csv(rows, self.out / "classic_peers.csv", (*COLUMNS, "seconds"))
        record = {"updates": self.updates, "online_steps": self.online_steps, "episodes": self.episodes}
        record |= {"seeds": self.seeds, "cells": cells, "finished": len(rows), "failed": failures}
        write_json({**record, **provenance()}, self.out / "classic_peers.settings.json")
        means = summary(rows)
        print(markdown_table(means, formats={"return_true": ".1f", "lowest": ".1f", "seconds": ".1f"}))
        print(json.dumps({"means": means, **record, **provenance()}))

    def _learn(self, name: str, method: str, problem: Problem, size: int, seed: int) -> Choose:
        own = derive(seed, "training") % 2**31
        if method == RANDOM:
            random = generator(seed, "random policy")
            return lambda state: problem.task.actions.sample(len(state), random)
        if method == "online":
            return online(name, problem, own, self.online_steps)
        return offline(method, problem.log(size, seed), own, self.updates, problem.task.discount)


def summary(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Over the finished seeds of every environment, method and number of rows: mean return, lowest return, seconds."""
    of = lambda row: (row["environment"], row["method"], row["rows"])
    groups = [(key, list(group)) for key, group in groupby(sorted(rows, key=of), of)]
    return [
        {"environment": environment, "method": method, "rows": size, "seeds": len(own),
         "return_true": fmean(row["return_true"] for row in own), "lowest": min(row["return_true"] for row in own),
         "seconds": fmean(row["seconds"] for row in own)}
        for (environment, method, size), own in groups
    ]  # fmt: skip


def online(name: str, problem: Problem, seed: int, steps: int) -> Choose:
    """A learner of stable-baselines3, trained in the environment itself."""
    from stable_baselines3 import PPO, SAC

    kind = {"SAC": SAC, "PPO": PPO}[ONLINE[name]]
    environment = gymnasium.make(problem.task.gym_id)
    agent = kind("MlpPolicy", environment, seed=seed, device="cpu", **ONLINE_SETTINGS[name])
    agent.learn(steps * (10 if kind is PPO else 1))
    actions = problem.task.actions
    return lambda state: features(actions, agent.predict(state.numpy(), deterministic=True)[0])


if __name__ == "__main__":
    tyro.cli(Peers).run()
