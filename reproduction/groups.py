"""How well subjects are told apart: gravities named by groups of factors, beside what the true physics could name.

A row is (noise, trials_per_subject, seed, groups, accuracy, bound). The bound names every subject by the likelihood of
its record under the true equations of each planet, which no method can beat on average. Accuracy is that of the best
matching of groups to planets.
"""

import time
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from counterpoint.core.artifacts import encode, recipe_hash, write_text
from counterpoint.core.results import made_by, provenance, where, write_csv, write_json
from counterpoint.core.seeding import derive
from counterpoint.core.settings import Count, Positive, Widths, check_settings
from counterpoint.data.transitions import Transitions
from counterpoint.models.base import SubjectFactors
from counterpoint.models.groups import KMeansGroups, MixtureGroups
from counterpoint.models.scm.random_effects import RandomEffects
from counterpoint.simulation.trials import random_policy, simulate_population
from counterpoint.tasks.cartpole import PLANETS, STATE_SCALE, CartPole
from reproduction.cells import carry_out, read_rows, refuse_failures, write_rows
from reproduction.executors import Executor
from reproduction.grid import code_version
from reproduction.pages.groups import factors_figure, groups_page
from reproduction.workers import Report, silent

COLUMNS = ("noise", "trials_per_subject", "seed", "groups", "factors", "accuracy", "bound")
KEPT = (*COLUMNS, "seconds")
"""What the rows of a finished cell have."""
Noise = Literal["scaled", "relative"]
GROUPINGS = {"mixture": MixtureGroups(len(PLANETS)), "k-means": KMeansGroups(len(PLANETS))}
LEAST = 1e-12


def population(noise: Noise, subjects: int, trials: int, seed: int) -> Transitions:
    """A log of `subjects` subjects of each planet, each with so many trials of 20 steps."""
    tasks = [CartPole(gravity=gravity, noise_reading=noise) for gravity in PLANETS.values()]
    rows = simulate_population(tasks, random_policy, subjects * trials, 20, seed)
    names = tuple(map(str, range(len(PLANETS) * subjects)))
    return replace(rows, noise=rows.noise[:, :0], subject=rows.subject // trials, subject_names=names)


def likelihood_bound(rows: Transitions, noise: Noise, planet: Int[Tensor, " n"]) -> float:
    """The share of subjects that the true equations name right; the noise of the action is taken to first order."""
    densities = [_log_density(CartPole(gravity=g, noise_reading=noise), rows) for g in PLANETS.values()]
    total = torch.zeros(len(planet), len(densities), dtype=torch.double)
    total.index_add_(0, rows.subject, torch.stack(densities, 1))
    return float((total.argmax(1) == planet).double().mean())


def _log_density(task: CartPole, rows: Transitions) -> Float[Tensor, " m"]:
    mean = task.physics(rows.state, rows.action).double()
    push = (task.physics(rows.state, rows.action + 1) - task.physics(rows.state, rows.action)).double()
    own = torch.tensor(STATE_SCALE).double().expand_as(mean) if task.noise_reading == "scaled" else mean
    size = task.noise_size
    covariance = (size * own).square().diag_embed() + size**2 * push[:, :, None] * push[:, None]
    root = torch.linalg.cholesky(covariance + LEAST * torch.eye(mean.shape[1]).double())
    white = torch.linalg.solve_triangular(root, (rows.next_state.double() - mean)[..., None], upper=False)[..., 0]
    return -0.5 * white.square().sum(1) - root.diagonal(0, 1, 2).log().sum(1)


def matched_accuracy(group: Int[Tensor, " n"], planet: Int[Tensor, " n"]) -> float:
    """The share of subjects named right under the best matching of groups to planets."""
    table = np.zeros((int(group.max()) + 1, int(planet.max()) + 1))
    np.add.at(table, (group.numpy(), planet.numpy()), 1)
    return float(table[linear_sum_assignment(-table)].sum() / len(planet))


@dataclass(frozen=True)
class Cell:
    """One log."""

    noise: Noise
    trials: int
    seed: int
    subjects: int
    model: RandomEffects

    @property
    def key(self) -> str:
        """What defines the cell, the code included."""
        return recipe_hash(code_version(), self)


@dataclass(frozen=True)
class GroupAccuracy:
    """What to run."""

    trials: Widths = (1, 4)
    """Trials of a subject."""
    subjects: Positive = 50
    """Subjects of each planet."""
    seeds: Positive = 10
    """Logs."""
    first_seed: Count = 0
    """The first of them."""
    model: RandomEffects = RandomEffects()
    """What finds the factors."""
    name: str = "groups"
    """What the files are called."""

    def __post_init__(self) -> None:
        check_settings(self)

    def cells(self) -> list[Cell]:
        seeds = range(self.first_seed, self.first_seed + self.seeds)
        noises: tuple[Noise, ...] = ("scaled", "relative")
        return [Cell(n, t, s, self.subjects, self.model) for n, t, s in product(noises, self.trials, seeds)]

    def run(self, out: Path, executor: Executor, report: Report = silent) -> list[dict[str, Any]]:
        """Run what is not done yet; write `<name>.csv`, `.md`, `.png` and `.settings.json`."""
        cells, folder = self.cells(), out / self.name / "cells"
        left = [cell for cell in cells if read_rows(folder / f"{cell.key}.json", KEPT) is None]
        keep = lambda cell, rows: write_rows(folder / f"{cell.key}.json", rows)
        named, failures = lambda cell: f"{cell.noise}, seed {cell.seed}", out / f"{self.name}.failures.txt"
        failed = carry_out(left, run_cell, keep, named, len(cells), failures, executor, report)
        kept = [read_rows(folder / f"{cell.key}.json", KEPT) or [] for cell in cells]
        rows = [row for cell in kept for row in cell]
        write_csv(rows, out / f"{self.name}.csv", COLUMNS)
        write_json({**encode(self), **made_by(kept, "noise"), **provenance()}, out / f"{self.name}.settings.json")
        refuse_failures(failed, len(cells), "cells")
        write_text(out / f"{self.name}.md", groups_page(rows, "python -m reproduction groups"))
        _draw(self, out / f"{self.name}.png")
        return rows


def quick() -> GroupAccuracy:
    """One log of few subjects, by one factor: less than a minute."""
    model = RandomEffects(factors=1, ensemble=1)
    return GroupAccuracy(trials=(4,), subjects=10, seeds=1, model=model, name="groups-quick")


def run_cell(cell: Cell, report: Report = silent) -> list[dict[str, Any]]:
    """A row for each way of grouping."""
    begun = time.perf_counter()
    rows, planet, factors = fitted(cell)
    bound = likelihood_bound(rows, cell.noise, planet)
    found = {"noise": cell.noise, "trials_per_subject": cell.trials, "seed": cell.seed}
    named = {name: how.fit(factors, cell.seed).chances(factors).argmax(1) for name, how in GROUPINGS.items()}
    took = {"seconds": time.perf_counter() - begun, **where()}
    return [
        {**found, "groups": name, "factors": factors.mean.shape[1], "bound": bound,
         "accuracy": matched_accuracy(group, planet), **took}
        for name, group in named.items()
    ]  # fmt: skip


def fitted(cell: Cell) -> tuple[Transitions, Int[Tensor, " n"], SubjectFactors]:
    """A log, the planet of each subject, and what a model fitted on the log knows of it."""
    rows = population(cell.noise, cell.subjects, cell.trials, derive(cell.seed, "data"))
    planet = torch.arange(len(PLANETS)).repeat_interleave(cell.subjects)
    return rows, planet, cell.model.fit(rows, derive(cell.seed, "model")).subject_factors(rows)


def _draw(experiment: GroupAccuracy, path: Path) -> None:
    """The factors of one log by gravity, and the posterior of new subjects step by step."""
    cell = replace(experiment.cells()[0], noise="scaled", trials=max(experiment.trials))
    rows = population(cell.noise, cell.subjects, cell.trials, derive(cell.seed, "data"))
    model = cell.model.fit(rows, derive(cell.seed, "model"))
    if not model.theta_width:
        return
    known = model.subject_factors(rows)
    fresh = population(cell.noise, 1, 6, derive(cell.seed, "new subjects"))
    closing = model.factors_before(fresh)
    factors_figure(known, closing, fresh.subject, list(PLANETS), path)
