"""Treatment that knows whom it treats: `python benchmarks/personal_treatment.py --seeds 3`.

Tumour patients who differ in how they respond to radiotherapy, which has a price, were treated at random. From their
records: one policy for all (CTRL_g; and searched in a model that knows that patients differ) and policies that know the
patient (CTRL_p: given the factor, or one for each group). Two bounds come from the truth: the best policy for all,
searched in the simulator itself, and each patient's own optimum. `closed` is the share of the way from the one to the
other. Policies are tried on the logged patients, treated once more by what their records say of them, and on patients
nobody has seen, of whom a personal policy learns while it treats them. The last line is JSON.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import counterpoint as cp
from counterpoint.core.provenance import provenance
from counterpoint.core.seeding import derive
from counterpoint.core.tables import markdown_table
from counterpoint.data.jobs import NO_THETA
from counterpoint.ope.model_based import returns
from counterpoint.policies.base import Policy
from counterpoint.simulation.rollout import Actor
from counterpoint.tasks import tumour
from reproduction.true_model import TrueModel

COMMON, OWN = "best for all (truth)", "best for each (truth)"
SEARCH = cp.Search(cp.RandomEffects())
TRIALS = 0
"""Seed of first states and noise that policies are tried with."""


def own_optimum(task: cp.Tumour) -> Actor:
    """What is best for each patient who is known entirely, day by day.

    ln V is linear: a fraction of radiotherapy today lowers the last day's by (α d + β d²)·(1 − ρ)^days left. It is
    worth its price or not, and chemotherapy has none. Nobody who is given it dies.
    """
    response, days = task.response, iter(range(task.horizon - 1, -1, -1))
    fall = response.radio * (tumour.RADIO_DOSE + tumour.RADIO_DOSE**2 / 10)

    def act(state: Tensor, theta: Tensor) -> Tensor:
        radio = (fall * (1 - response.growth) ** next(days) > task.radio_cost).to(state)
        return torch.stack([torch.ones_like(radio), radio], -1).expand(*state.shape[:-1], 2)

    return act


class Study:
    """One population, its log, and everything learned from it."""

    def __init__(self, options: argparse.Namespace, seed: int) -> None:
        self.options, self.logged = options, cp.Tumour(response=tumour.population(options.subjects, seed))
        self.unseen = cp.Tumour(response=tumour.population(options.patients, derive(seed, "unseen")))
        behaviour = cp.random_policy(self.logged)
        log = cp.simulate(self.logged, behaviour, options.subjects, self.logged.horizon, seed, stop_at_failure=True)
        self.job = cp.data.Job(log, seed)
        self.table = [self.best_for_all(), self.row(OWN, [own_optimum(self.logged), own_optimum(self.unseen)])]

    def best_for_all(self) -> dict[str, Any]:
        """Searched in each population's own truth; the better of what is found and of two constant treatments."""
        values = []
        for task in (self.logged, self.unseen):
            search = cp.Search(TrueModel(task, population=True), draws=None, starts=20, sees_factor=False)
            log = cp.simulate(
                task, cp.random_policy(task), len(task.response.radio), 1, derive(self.job.seed, "starts")
            )
            results = search.fit_many([cp.data.Job(log, self.job.seed)], task)[0].selected
            always = [torch.tensor([1.0, radio]) for radio in (0.0, 1.0)]
            constant = [lambda state, theta, dose=dose: dose.expand(*state.shape[:-1], 2) for dose in always]
            values.append(max(self.value(act, task) for act in (together(results), *constant)))
        return {"policy": COMMON, "logged": values[0], "unseen": values[1], "seconds": 0.0}

    def value(self, act: Actor, task: cp.Tumour, theta: Tensor = NO_THETA) -> float:
        return float(returns(act, task, 1, len(task.response.radio), TRIALS, theta=theta).mean())

    def row(self, name: str, acts: list[Actor], theta: Tensor = NO_THETA, seconds: float = 0.0) -> dict[str, Any]:
        """A policy as it acts on logged patients, given `theta`, and on unseen ones."""
        logged, unseen = self.value(acts[0], self.logged, theta), self.value(acts[1], self.unseen)
        return {"policy": name, "logged": logged, "unseen": unseen, "seconds": seconds}

    def run(self) -> list[dict[str, Any]]:
        """All rows, with the share of the way between the bounds that each goes."""
        self.common("CTRL_g", lambda: cp.Search().fit_many([self.job], self.logged, device=self.options.device))
        start_time = time.perf_counter()
        self.models = SEARCH.fit_models([self.job], cp.models.Monitor(), self.options.device)
        print(f"factors: {self.models[0].theta_width}, fitted in {time.perf_counter() - start_time:.0f} s", flush=True)
        blind = replace(SEARCH, sees_factor=False)
        self.common("for all, factors known of", lambda: blind.with_models([self.job], self.models, self.logged))
        self.personal("CTRL_p", cp.CTRLp(SEARCH, groups=None))
        self.personal("CTRL_p, groups", cp.CTRLp(blind))
        low, high = self.table[0], self.table[1]
        for each in self.table:
            for who in ("logged", "unseen"):
                each[f"closed, {who}"] = 100 * (each[who] - low[who]) / (high[who] - low[who])
        return self.table

    def common(self, name: str, learn: Callable[[], list[Any]]) -> None:
        start_time = time.perf_counter()
        act = together(learn()[0].selected)
        self.say(self.row(name, [act, act], seconds=time.perf_counter() - start_time))

    def personal(self, name: str, recipe: cp.CTRLp) -> None:
        """A personal policy that treats the unseen by the mean of what it knows, and one that explores."""
        start_time = time.perf_counter()
        policy: Any = recipe.with_models([self.job], self.models, self.logged)[0].selected.to("cpu")
        seconds = time.perf_counter() - start_time
        factor = policy.model.subject_factors(self.job.data).mean
        self.say(self.row(name, [policy.actor(), together(policy)], factor, seconds))
        policy.recipe = replace(recipe, posterior_sampling=True)
        self.say(self.row(f"{name}, exploring", [policy.actor(), together(policy)], factor, seconds))

    def say(self, row: dict[str, Any]) -> None:
        self.table.append(row)
        print({key: round(value, 2) if isinstance(value, float) else value for key, value in row.items()}, flush=True)


def together(policy: Policy) -> Actor:
    return policy.to("cpu").rollout_actor()


def mean_over(tables: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Means of every row's numbers over seeds, and the lowest share that was closed."""
    results = []
    for rows in zip(*tables, strict=True):
        mean = {key: sum(row[key] for row in rows) / len(rows) for key in rows[0] if key != "policy"}
        lowest = min(row["closed, logged"] for row in rows)
        results.append({"policy": rows[0]["policy"], **mean, "lowest closed, logged": lowest})
    return results


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--subjects", type=int, default=300, help="logged patients")
    parser.add_argument("--patients", type=int, default=1000, help="whom nobody has seen")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    tables = [Study(options, seed).run() for seed in range(options.first_seed, options.first_seed + options.seeds)]
    table = mean_over(tables)
    print(markdown_table([{k: f"{v:.2f}" if isinstance(v, float) else v for k, v in each.items()} for each in table]))
    print(
        json.dumps(
            {"subjects": options.subjects, "seeds": options.seeds, "table": table, "by_seed": tables, **provenance()}
        )
    )


if __name__ == "__main__":
    main()
