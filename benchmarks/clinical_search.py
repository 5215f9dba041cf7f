"""Policies searched in a fitted SCM, on clinical simulators: `python benchmarks/clinical_search.py --task tumour`.

`--task tumour` and `hiv`: logs of `--subjects` patients of a population who were treated at random. The same rules are
searched in two SCMs fitted on them, the default one, without subject factors, and random effects, and in the simulator
itself, where the search has the subjects' parameters and the policy does not. All are evaluated on the whole
population. The gap is the cost of fitting. `error` is that of one-step counterfactuals of the log, 1 where they are no
better than the factual outcome. Drugs that change every five days teach little of HIV, whose healthy state
no such log comes near: `--hold 20` keeps each for twenty steps on average, and `--trained` logs patients whom a rule
treated that a short search in the simulator found, but for a share of random decisions. HIV's equations are stiff, so
searching in the truth wants a GPU (`--device cuda`); `--errors-only` fits both models and asks them for
counterfactuals, no more.

`--task sepsis`: logs of patients whom a physician treated, 46 columns and 25 pairs of doses; Q-learning on the logged
rows, CTRL_g (`--ctrl-g`) and the search in the same fitted SCM, tried on `--patients` others who are the same, with the
same noise, for every policy. The last line is JSON.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import counterpoint as cp
from counterpoint.core.provenance import provenance
from counterpoint.core.seeding import derive, generator
from counterpoint.core.tables import markdown_table
from counterpoint.learners.methods import unselected
from counterpoint.models.base import Model
from counterpoint.ope.model_based import returns, true_returns
from counterpoint.simulation.trials import BehaviourPolicy
from counterpoint.tasks import (
    hiv,
    tumour,
)
from reproduction.behaviour import exploring
from reproduction.measures.counterfactual_error import questions
from reproduction.sepsis_arms import Q_LEARNING, SEARCH, SUPPORT_PRICE
from reproduction.statistics import paired_difference
from reproduction.tasks import sepsis
from reproduction.true_model import TrueModel

SUBJECTS = {"tumour": 200, "hiv": 200, "sepsis": 500}
MODELS = {"truth": "the truth", "default": "the default SCM", "effects": "random effects"}
ASKED = 5000
"""Logged rows whose counterfactuals are compared with the truth."""
SHORT = cp.Search(optimizer=cp.learners.CrossEntropy(32, 4), restarts=1, schedule=cp.Schedule(steps=20, check_every=5))
"""A quarter of the default's candidates, for equations that are slow to integrate on a processor."""


def task_of(name: str, subjects: int) -> cp.KnownSCM:
    """The task with a population of patients."""
    if name == "tumour":
        return cp.Tumour(response=tumour.population(subjects, 0))
    return cp.HIV(response=hiv.population(subjects, 0), compiled=True)


def held(task: cp.KnownSCM, steps: float) -> BehaviourPolicy:
    """Treatments at random, each of them for `steps` steps on average."""
    now: list[torch.Tensor] = []

    def act(state: torch.Tensor, random: torch.Generator) -> torch.Tensor:
        drawn = task.actions.sample(len(state), random)
        change = torch.rand(len(state), 1, generator=random) < 1 / steps
        now[:] = [torch.where(change, drawn, now[0]) if now else drawn]
        return now[0]

    return act


def trained(task: cp.KnownSCM, options: argparse.Namespace) -> BehaviourPolicy:
    """A rule that a short search in the simulator found, but for a share of decisions that are random."""
    seed = derive(options.first_seed, "behaviour")
    asked = cp.data.Job(cp.simulate(task, cp.random_policy(task), options.subjects, 2, seed), seed)
    results = in_truth(SHORT, task).fit_many([asked], task, device=options.device)[0]
    return exploring(results.selected.to("cpu"), task, options.trained)


def in_truth(search: cp.Search, task: cp.KnownSCM) -> cp.Search:
    """The same search in the simulator of the whole population."""
    return replace(search, model=TrueModel(task, population=True), draws=None, starts=20, sees_factor=False)


def against_the_truth(options: argparse.Namespace) -> dict[str, Any]:
    """The rules searched in fitted SCMs beside the rule searched in the truth."""
    task = task_of(options.task, options.subjects)
    steps = options.steps or task.horizon
    logged = trained(task, options) if options.trained else held(task, options.hold)
    jobs = [
        cp.data.Job(cp.simulate(task, logged, options.subjects, steps, seed, stop_at_failure=True), seed)
        for seed in seeds(options)
    ]
    rows = torch.cat([job.data.reward for job in jobs])
    print(f"mean reward of a logged step {float(rows.mean()):.3g}, the highest {float(rows.max()):.3g}", flush=True)
    base = SHORT if options.short else cp.Search()
    base = replace(base, schedule=replace(base.schedule, steps=options.rounds or base.schedule.steps, patience=0))
    truth = in_truth(base, task)
    base = replace(base, support_price=options.support_price or 0.0)
    effects = replace(base, model=cp.RandomEffects(), sees_factor=False)
    searches = {"truth": truth, "default": base, "effects": effects}
    asked = [name for name in options.models if name != "truth" or not options.errors_only]
    table = [searched_in(MODELS[name], searches[name], jobs, task, options) for name in asked]
    print_table(table)
    if asked[0] != "truth":
        return {"table": table}
    best = table[0]["true return"]
    return {"share_of_the_best": {each["searched in"]: each["true return"] / best for each in table}, "table": table}


def searched_in(
    name: str, search: cp.Search, jobs: list[cp.data.Job], task: cp.KnownSCM, options: argparse.Namespace
) -> dict[str, Any]:
    """A row of the table: one model for each log, its counterfactuals, and the policies that are found in it."""
    start_time = time.perf_counter()
    models = search.fit_models(jobs, cp.models.Monitor(), options.device)
    error = [counterfactual_error_of(model, task, job.data) for model, job in zip(models, jobs, strict=True)]
    results: dict[str, Any] = {"searched in": name, "error": sum(error) / len(error)}
    if not options.errors_only:
        learned = search.with_models(jobs, models, task)
        policies: list[Any] = [each.selected for each in learned]
        true = true_returns(policies, task, options.subjects, 0).mean(1)
        inside = sum(policy.return_in_model for policy in policies) / len(policies)
        results |= {"true return": float(true.mean()), "lowest": float(true.min()), "in model": inside}
    results["seconds"] = time.perf_counter() - start_time
    print(json.dumps(results), flush=True)
    return results


def counterfactual_error_of(model: Model, task: cp.KnownSCM, log: cp.Transitions) -> float:
    """Of `ASKED` logged rows; what is known of a patient comes from the whole record."""
    rows = log.to(model.device)
    theta = model.subjects(rows).cpu()
    some = torch.randperm(len(log), generator=generator(0, "asked"))[:ASKED]
    asked = questions(task, log[some])
    alternative = asked.action[:, None].to(model.device)
    answer = model.imagine(
        rows[some.to(model.device)], alternative, generator(0, "imagine"), theta[some].to(model.device)
    )
    return asked.yardstick.error(answer[:, 0].cpu(), asked.truth)


class SepsisArms:
    """What is compared on one set of logs; all arms with a model share the one that is fitted first."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.task = options, sepsis.SyntheticSepsis(sepsis.population(options.subjects, 0))
        self.unseen = sepsis.SyntheticSepsis(sepsis.population(options.patients, derive(0, "unseen")))
        logs = (
            cp.simulate(self.task, sepsis.physician(self.task), options.subjects, 20, seed) for seed in seeds(options)
        )
        self.jobs = [cp.data.Job(log, seed) for log, seed in zip(logs, seeds(options), strict=True)]
        self.start_time, self.said = time.perf_counter(), -10.0
        self.monitor = cp.models.Monitor(report=self.progress)

    def progress(self, stage: str, done: int, total: int) -> None:
        """A line every ten seconds, and one at the end of every stage."""
        now = time.perf_counter() - self.start_time
        if now - self.said > 10 or done == total:
            self.said = now
            print(f"{now:6.0f} s  {stage}: {done} of {total}", flush=True)

    def behaviours(self) -> dict[str, list[float]]:
        """The true value of policies that learn nothing, which is the same for every log."""
        asked = {
            "physician": sepsis.physician(self.unseen),
            "random": cp.random_policy(self.unseen),
            "a protocol by hand": sepsis.protocol,
        }
        return {name: [self.value(act)] * len(self.jobs) for name, act in asked.items()}

    def value(self, act: BehaviourPolicy) -> float:
        random = generator(0, "behaviour")
        actor = lambda state, theta: act(state[0], random)[None]
        return float(returns(actor, self.unseen, 1, self.options.patients, 0).mean())

    def learned(self) -> dict[str, Callable[[], Sequence[Any]]]:
        """Every learner as a function; the models that they share are fitted first."""
        general = cp.CTRLg(learner=Q_LEARNING)
        schedule = replace(SEARCH.schedule, steps=self.options.rounds or SEARCH.schedule.steps)
        search = replace(SEARCH, schedule=schedule, support_price=support_price(self.options))
        device, jobs, task = self.options.device, self.jobs, self.task
        arms: dict[str, Callable[[], Sequence[Any]]] = {
            "D3QN": lambda: unselected(Q_LEARNING).fit_many(jobs, task, self.monitor.stage("D3QN"), device)
        }
        models = general.fit_models(jobs, self.monitor, device)
        if self.options.ctrl_g:
            augmented = [general.augment(job, model, task) for job, model in zip(jobs, models, strict=True)]
            arms["CTRL_g"] = lambda: general.learn(augmented, models, task, self.monitor.stage("CTRL_g"))
        arms["CTRL_g + search"] = lambda: search.with_models(jobs, models, task, self.monitor)
        return arms

    def values(self) -> dict[str, list[float]]:
        """The true value of every policy on the unseen patients, log by log."""
        results = self.behaviours()
        for name, learn in self.learned().items():
            policies = [each.selected.to("cpu") for each in learn()]
            results[name] = true_returns(policies, self.unseen, self.options.patients, 0).mean(1).tolist()
            print(
                f"{time.perf_counter() - self.start_time:6.0f} s  {name}: {sum(results[name]) / len(policies):.2f}",
                flush=True,
            )
        return results


def among_arms(options: argparse.Namespace) -> dict[str, Any]:
    """The search beside what learns from the same logs, and beside who treated the patients in them."""
    values = SepsisArms(options).values()
    ours = values["CTRL_g + search"]
    table = []
    for name, own in values.items():
        better = paired_difference(ours, own, np.mean) if len(own) > 1 and own is not ours else None
        gain = f"{better.estimate:.2f} ({better.low:.2f} to {better.high:.2f})" if better else "–"
        mean = sum(own) / len(own)
        table.append({"policy": name, "true return": mean, "lowest": min(own), "highest": max(own),
                      "search − this": gain})  # fmt: skip
    print_table(table)
    return {
        "patients": options.patients,
        "rounds": options.rounds or SEARCH.schedule.steps,
        "support_price": support_price(options),
        "values": values,
        "table": table,
    }


def support_price(options: argparse.Namespace) -> float:
    return SUPPORT_PRICE if options.support_price is None else options.support_price


def seeds(options: argparse.Namespace) -> range:
    return range(options.first_seed, options.first_seed + options.seeds)


def print_table(table: list[dict[str, Any]]) -> None:
    print(markdown_table([{k: f"{v:.2f}" if isinstance(v, float) else v for k, v in each.items()} for each in table]))


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", choices=tuple(SUBJECTS), default="tumour")
    parser.add_argument("--subjects", type=int, help="logged patients: 200, and 500 for sepsis, by default")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=0, help="of a log of tumour or hiv; the task's horizon by default")
    parser.add_argument("--hold", type=float, default=1.0, help="steps that a treatment of tumour or hiv is held for")
    parser.add_argument(
        "--trained", type=float, default=0.0, help="of tumour and hiv: log by a trained rule with this share at random"
    )
    parser.add_argument("--short", action="store_true", help="of tumour and hiv: a shorter search, in all models alike")
    parser.add_argument("--errors-only", action="store_true", help="of tumour and hiv: search nothing")
    parser.add_argument("--patients", type=int, default=2000, help="of sepsis, whom policies are tried on")
    parser.add_argument("--rounds", type=int, default=0, help="of a search; its own number by default")
    parser.add_argument(
        "--models", nargs="+", choices=tuple(MODELS), default=list(MODELS), help="of tumour and hiv: searched in"
    )
    parser.add_argument(
        "--support-price",
        type=float,
        help="of leaving the log; 1 in sepsis and 0 elsewhere by default",
    )
    parser.add_argument("--ctrl-g", action="store_true", help="of sepsis: also Q-learning on counterfactual rows")
    options = parser.parse_args()
    options.subjects = options.subjects or SUBJECTS[options.task]
    results = among_arms(options) if options.task == "sepsis" else against_the_truth(options)
    print(
        json.dumps(
            {"task": options.task, "subjects": options.subjects, "seeds": options.seeds, **results, **provenance()}
        )
    )


if __name__ == "__main__":
    main()
