"""The benchmark of counterfactuals: every estimator against SCMs with known truth, over sample sizes and seeds.

A row is (scm, n, seed, method, error, fresh_error, round_trip, recipe, commit): the errors of counterfactuals, of fresh
noise in the same model, and of the answer to the logged action. A cell is a stack of fits of one recipe on problems of
the same shape. Estimators that differ only in their abduction share a fit. Seconds, which differ from run to run, are
in `<name>.seconds.json`.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from jaxtyping import Float
from torch import Tensor

from counterpoint.core.artifacts import encode, recipe_hash, write_text
from counterpoint.core.errors import require
from counterpoint.core.seeding import derive, generator
from counterpoint.core.settings import Count, Positive, Widths, check_settings
from counterpoint.core.tables import write_json
from counterpoint.data.jobs import Job
from counterpoint.data.transitions import Transitions
from counterpoint.models.scm.bicogan import AdversarialSCM
from counterpoint.simulation.augmentation import without_noise
from counterpoint.simulation.trials import random_policy, simulate
from counterpoint.tasks.base import KnownSCM
from counterpoint.tasks.cartpole import CartPole
from counterpoint.tasks.hiv import HIV
from counterpoint.tasks.tumour import Tumour
from reproduction.estimators import about_seconds, auto_candidates, estimators, fit_graphs, gap, quick_estimators
from reproduction.experiment import Cell, Context, Experiment, Rows
from reproduction.measures.counterfactual_error import CounterfactualError, questions, score
from reproduction.pages.counterfactuals import COLUMNS, Expected, counterfactual_errors, counterfactuals_page
from reproduction.pages.tables import group_by, select, unique
from reproduction.peers_dowhy import DoWhyGCM
from reproduction.tasks.structural_problems import (
    PROBLEMS,
    SIMPSON_SYMPROD,
    TRIANGLE_NLIN,
    CausalSet,
    OneStep,
    sample,
)

NINE: dict[str, KnownSCM] = {**PROBLEMS, "cartpole": CartPole()}
TASKS: dict[str, KnownSCM] = {**NINE, "tumour": Tumour(), "hiv": HIV()}
SETS: dict[str, CausalSet] = {"triangle-nlin": TRIANGLE_NLIN, "simpson-symprod": SIMPSON_SYMPROD}
SET_ROWS = 20_000
"""The causal sets are published with this many rows."""
TEST_ROWS = 2000
Problem = tuple[str, int]
"""An SCM and the rows to fit on."""
Fit = tuple[str, int, int]
"""An SCM, the rows to fit on, and the seed."""


@dataclass(frozen=True)
class Stack:
    """Fits on problems of the same shape, learned in one stack, and the estimators that share them."""

    estimators: tuple[tuple[str, Any], ...]
    """(name, recipe) of each; the first is fitted."""
    fits: tuple[Fit, ...]

    @property
    def recipe(self) -> Any:
        """The recipe that is fitted."""
        return self.estimators[0][1]

    @property
    def cost(self) -> float:
        """About how many seconds it takes."""
        return sum(about_seconds(self.recipe, n, columns_of(scm)) for scm, n, _ in self.fits)

    def cell(self) -> Cell:
        names = " and ".join(name for name, _ in self.estimators)
        return Cell(fit_and_score, self, f"{names} on {self.fits[0][0]}", cost=self.cost)


@dataclass(frozen=True)
class Counterfactuals(Experiment):
    """Every estimator on every SCM that it supports, with several numbers of rows and seeds."""

    scms: tuple[str, ...] = (*TASKS, *SETS)
    """Names of the SCMs."""
    n: Widths = (1000, 5000)
    """Rows to fit on; the causal sets have their own number."""
    set_rows: Positive = SET_ROWS
    """Rows of the causal sets."""
    seeds: Positive = 5
    """Data sets and fits."""
    first_seed: Count = 0
    """The first of them."""
    estimators: Mapping[str, Any] = field(default_factory=estimators)
    """Recipes by their names in the table."""
    stack_size: Positive | None = None
    """The most fits in one stack; None for all of the same shape, which suits a GPU."""
    name: str = "counterfactuals"

    columns = COLUMNS

    def __post_init__(self) -> None:
        check_settings(self)
        unknown = [scm for scm in self.scms if scm not in (*TASKS, *SETS)]
        require(not unknown, f"there is no SCM '{(*unknown, '')[0]}'; choose from {', '.join((*TASKS, *SETS))}")
        require(bool(self.stacks()), "there is nothing to run; name SCMs, numbers of rows and estimators that fit them")

    def problems(self) -> list[Problem]:
        """Return every SCM with every number of rows."""
        return [(scm, n) for scm in self.scms for n in ((self.set_rows,) if scm in SETS else self.n)]

    def gaps(self) -> dict[tuple[str, str], str]:
        """Return the pairs (method, scm) that the method does not support, and why."""
        reasons = {
            (name, scm): gap(recipe, columns_of(scm), scm in SETS)
            for name, recipe in self.estimators.items()
            for scm in self.scms
        }
        return {place: reason for place, reason in reasons.items() if reason}

    def cells(self) -> list[Cell]:
        return [stack.cell() for stack in self.stacks()]

    def stacks(self) -> list[Stack]:
        """Return all stacks, the longest first."""
        alike: dict[Any, list[tuple[str, Any]]] = {}
        for name, recipe in self.estimators.items():
            alike.setdefault(trained_as(recipe), []).append((name, recipe))
        stacks = [stack for shared in alike.values() for stack in self._stacks_of(tuple(shared))]
        return sorted(stacks, key=lambda stack: -stack.cost)

    def _stacks_of(self, shared: tuple[tuple[str, Any], ...]) -> Iterator[Stack]:
        """The stacks of estimators that share their fits, and so support the same problems."""
        name, recipe = shared[0]
        gaps = self.gaps()
        alike: dict[Any, list[Fit]] = {}
        for (scm, n), seed in product(self.problems(), range(self.first_seed, self.first_seed + self.seeds)):
            if (name, scm) not in gaps:
                alike.setdefault(shape_of(scm), []).append((scm, n, seed))
        for fits in alike.values():
            # DoWhy gains nothing from a stack, and processes can share small ones out.
            size = self.seeds if isinstance(recipe, DoWhyGCM) else self.stack_size or len(fits)
            for first in range(0, len(fits), size):
                yield Stack(shared, tuple(fits[first : first + size]))

    def table(self, rows: Rows) -> Rows:
        """Sort the rows by problem, method and seed."""
        places = [(scm, n, method) for scm, n in self.problems() for method in self.estimators]
        order = {place: number for number, place in enumerate(places)}
        table = [{**row, "commit": row["commit"] or "unknown"} for row in rows]
        return sorted(table, key=lambda row: (order[row["scm"], row["n"], row["method"]], row["seed"]))

    def settings(self) -> dict[str, Any]:
        return {**encode(self), **_peers()}

    def page(self, rows: Rows, out: Path) -> None:
        """The page, the seconds, and a heat map for each number of rows."""
        table = self.table(rows)
        write_json(_seconds(table), out / f"{self.name}.seconds.json")
        page = counterfactuals_page(table, self.expected(), self.command)
        write_text(out / f"{self.name}.md", page)
        names = list(self.estimators)
        for n in sorted(unique(table, "n")):
            part = sorted(select(table, n=n), key=lambda row: names.index(row["method"]))
            counterfactual_errors(part, out / f"{self.name}_{n}.png", title=f"Counterfactual error, {n} rows")

    def expected(self) -> Expected:
        """Return the cells of a complete table."""
        return Expected(
            problems=tuple(self.problems()),
            methods=tuple(self.estimators),
            seeds=self.seeds,
            gaps=self.gaps(),
            choosing=auto_candidates(self.estimators),
            compared=tuple(scm for scm in self.scms if scm in NINE),
        )


def quick() -> Counterfactuals:
    """Four SCMs, few rows, one seed and brief training: less than two minutes on one core."""
    scms = ("b", "f", "cartpole", "triangle-nlin")
    return Counterfactuals(scms, (400,), 400, 1, estimators=quick_estimators(), name="counterfactuals-quick")


def trained_as(recipe: Any) -> Any:
    """Return the part of a recipe that its training depends on; two estimators with the same part share a fit."""
    return recipe.trained if isinstance(recipe, AdversarialSCM) else recipe


def fingerprint(recipe: Any) -> str:
    """Hash a recipe; the first letter keeps a reader of the CSV from taking the hash for a number."""
    return f"r{recipe_hash(recipe)}"


def columns_of(scm: str) -> int:
    """Count the columns of the state, or the variables of the graph."""
    return len(SETS[scm].names) if scm in SETS else len(TASKS[scm].state_names)


def shape_of(scm: str) -> tuple[Any, ...]:
    """Return what two problems of one stack must have in common; a graph is learned alone."""
    return (scm,) if scm in SETS else (TASKS[scm].state_names, TASKS[scm].actions)


def log(scm: str, n: int, seed: int) -> Transitions:
    """Simulate `n` rows of a problem with their noise; trials of 20 steps under random actions if it is sequential."""
    task = TASKS[scm]
    if isinstance(task, OneStep):
        return sample(task, n, seed)
    return simulate(task, random_policy(task), n // 20, 20, seed)


def fit_and_score(stack: Stack, context: Context) -> Rows:
    """Fit every problem of a stack, and score each model on rows it has not seen."""
    begun = time.process_time()
    models = _fitted(stack, context.device)
    seconds = (time.process_time() - begun) / len(models)
    rows: Rows = []
    for name, recipe in stack.estimators:
        for model, fit in zip(models, stack.fits, strict=True):
            error = _error(model if recipe == stack.recipe else recipe.reread(model), fit)
            scm, n, seed = fit
            rows.append(
                {"scm": scm, "n": n, "seed": seed, "method": name, "error": error.error,
                 "fresh_error": error.fresh_error, "round_trip": error.round_trip, "recipe": fingerprint(recipe),
                 "seconds": seconds}
            )  # fmt: skip
    return rows


def _fitted(stack: Stack, device: str) -> list[Any]:
    scm, seeds = stack.fits[0][0], [seed for _, _, seed in stack.fits]
    if scm in SETS:
        tables = [SETS[scm].sample(n, derive(seed, "fit"))[0] for _, n, seed in stack.fits]
        return fit_graphs(stack.recipe, tables, SETS[scm].parents, seeds, device)
    jobs = [Job(without_noise(log(scm, n, derive(seed, "fit"))), seed) for scm, n, seed in stack.fits]
    return stack.recipe.fit_many(jobs, device=device)


def _error(model: Any, fit: Fit) -> CounterfactualError:
    scm, _, seed = fit
    if scm in SETS:
        return _set_error(model, SETS[scm], seed)
    return score(model, questions(TASKS[scm], log(scm, TEST_ROWS, derive(seed, "test")), seed), seed)


def _set_error(model: Any, causal: CausalSet, seed: int) -> CounterfactualError:
    """Mean distance over interventions at the 25th, 50th and 75th percentiles."""
    x, noise = causal.sample(TEST_ROWS, derive(seed, "test"))
    errors, fresh_errors = [], []
    for variable, value in causal.queries(x):
        truth, held = causal.counterfactual(noise, variable, value), {variable: value}
        errors.append(_distance(model.counterfactual(x, held), truth))
        fresh_errors.append(_distance(model.sample(len(x), generator(seed, "fresh"), held), truth))
    round_trip = _distance(model.counterfactual(x, {}), x)
    return CounterfactualError(fmean(errors), fmean(fresh_errors), round_trip, float("nan"), ())


def _distance(left: Float[Tensor, "n x"], right: Float[Tensor, "n x"]) -> float:
    return float((left - right).norm(dim=1).mean())


def _seconds(rows: Rows) -> dict[str, Any]:
    """Processor seconds of a fit, the mean over its stack: method → scm → rows."""
    seconds: dict[str, dict[str, dict[str, float]]] = {}
    for (method, scm, n), part in group_by(rows, "method", "scm", "n").items():
        seconds.setdefault(method, {}).setdefault(scm, {})[str(n)] = round(part[-1]["seconds"], 3)
    return seconds


def _peers() -> dict[str, str]:
    """Versions of the libraries that ours is compared with, where they are installed."""
    try:
        return {"dowhy": metadata.version("dowhy")}
    except metadata.PackageNotFoundError:
        return {}
