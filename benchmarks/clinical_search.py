"""One policy for all patients, searched in a fitted SCM and in the truth: `python benchmarks/clinical_search.py`.

Logs of `--subjects` patients of a population who were treated at random; the same rules are searched in the default SCM
fitted on them and in the simulator itself, where the search knows who is who and the policy does not. Both are tried on
the whole population. The gap is what the fit costs. `--task hiv` integrates stiff equations and wants a GPU
(`--device cuda`). The last line is JSON.
"""

import argparse
import json
import time
from dataclasses import replace
from typing import Any

import torch

import counterpoint as cp
from counterpoint.evaluation.true_return import evaluate_many
from counterpoint.policies.base import Policy
from counterpoint.report.results import markdown_table, provenance
from counterpoint.tasks import hiv, tumour


def task_of(name: str, subjects: int) -> cp.KnownSCM:
    """The task with a population of patients."""
    if name == "tumour":
        return cp.Tumour(response=tumour.population(subjects, 0))
    return cp.HIV(response=hiv.population(subjects, 0))


def row(name: str, policies: list[Policy], task: cp.KnownSCM, subjects: int, seconds: float) -> dict[str, Any]:
    true = evaluate_many(policies, task, subjects, 0).mean(1)
    inside = [policy.return_in_model for policy in policies]  # pyright: ignore[reportAttributeAccessIssue]
    mean = sum(inside) / len(inside)
    return {"searched in": name, "true return": float(true.mean()), "lowest": float(true.min()), "in model": mean,
            "seconds": seconds}  # fmt: skip


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", choices=("tumour", "hiv"), default="tumour")
    parser.add_argument("--subjects", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--device", default="cpu")
    told = parser.parse_args()
    task = task_of(told.task, told.subjects)
    behaviour = cp.random_policy(task)
    jobs = [
        cp.Job(cp.simulate(task, behaviour, told.subjects, task.horizon, seed, stop_at_failure=True), seed)
        for seed in range(told.seeds)
    ]
    searches = {
        "the truth": replace(cp.Search(cp.Truth(task, population=True), draws=None, starts=20), sees_factor=False),
        "the fitted SCM": cp.Search(),
    }
    table = []
    for name, search in searches.items():
        begun = time.perf_counter()
        learned = search.fit_many(jobs, task, device=told.device)
        found = [each.selected.to("cpu") for each in learned]
        table.append(row(name, found, task, told.subjects, time.perf_counter() - begun))
    best, ours = (each["true return"] for each in table)
    print(markdown_table([{k: f"{v:.2f}" if isinstance(v, float) else v for k, v in each.items()} for each in table]))
    figures = {"task": told.task, "subjects": told.subjects, "seeds": told.seeds, "share_of_the_best": ours / best}
    print(json.dumps({**figures, "table": table, **provenance()}))


if __name__ == "__main__":
    main()
