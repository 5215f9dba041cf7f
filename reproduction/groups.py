"""Gravities named by groups of subject factors, and the accuracy that the true equations allow.

A row is (noise, trials_per_subject, seed, groups, factors, accuracy, bound). Accuracy is the share of subjects named
right under the best matching of groups to planets. `bound` is the accuracy of naming every subject by the likelihood of
its record under the true equations of each planet, which no method exceeds on average.
"""

from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.core.artifacts import write_text
from counterpoint.core.seeding import derive
from counterpoint.core.settings import Count, Positive, Widths, check_settings
from counterpoint.data.transitions import Transitions
from counterpoint.models.groups import KMeansGroups, MixtureGroups
from counterpoint.models.scm.random_effects import RandomEffects
from counterpoint.simulation.trials import random_policy, simulate_population
from counterpoint.tasks.cartpole import PLANETS, STATE_SCALE, CartPole
from reproduction.experiment import Cell, Context, Experiment, Rows
from reproduction.pages.groups import factors_figure, groups_page

Noise = Literal["scaled", "relative"]
NOISES: tuple[Noise, ...] = ("scaled", "relative")
GROUPINGS = {"mixture": MixtureGroups(len(PLANETS)), "k-means": KMeansGroups(len(PLANETS))}
JITTER = 1e-12
"""Added to the diagonal of a covariance, so that it has a Cholesky factor."""


@dataclass(frozen=True)
class GroupsRecipe:
    """One log and the model that estimates the factors of its subjects."""

    noise: Noise
    trials: int
    seed: int
    subjects: int
    model: RandomEffects


@dataclass(frozen=True)
class GroupAccuracy(Experiment):
    """Every kind of noise and number of trials, with several logs of each."""

    trials: Widths = (1, 4)
    """Trials of a subject."""
    subjects: Positive = 50
    """Subjects of each planet."""
    seeds: Positive = 10
    """Logs."""
    first_seed: Count = 0
    """The first of them."""
    model: RandomEffects = RandomEffects()
    """Estimates the factors."""
    name: str = "groups"

    columns = ("noise", "trials_per_subject", "seed", "groups", "factors", "accuracy", "bound")

    def __post_init__(self) -> None:
        check_settings(self)

    def cells(self) -> list[Cell]:
        seeds = range(self.first_seed, self.first_seed + self.seeds)
        cells = []
        for noise, trials, seed in product(NOISES, self.trials, seeds):
            recipe = GroupsRecipe(noise, trials, seed, self.subjects, self.model)
            labels = {"noise": noise, "trials_per_subject": trials, "seed": seed}
            cells.append(Cell(name_subjects, recipe, f"{noise} noise, seed {seed}", labels))
        return cells

    def page(self, rows: Rows, out: Path) -> None:
        """The table, and the factors of one log by gravity with the posterior of new subjects step by step."""
        write_text(out / f"{self.name}.md", groups_page(rows, self.command))
        recipe = GroupsRecipe("scaled", max(self.trials), self.first_seed, self.subjects, self.model)
        logged = log_of(recipe)
        model = recipe.model.fit(logged, derive(recipe.seed, "model"))
        if model.theta_width:
            new = population("scaled", 1, 6, derive(recipe.seed, "new subjects"))
            factors, online = model.subject_factors(logged), model.factors_before(new)
            factors_figure(factors, online, new.subject, list(PLANETS), out / f"{self.name}.png")


def quick() -> GroupAccuracy:
    """One log of few subjects, by one factor: less than a minute."""
    model = RandomEffects(factors=1, ensemble=1)
    return GroupAccuracy(trials=(4,), subjects=10, seeds=1, model=model, name="groups-quick")


def log_of(recipe: GroupsRecipe) -> Transitions:
    """Simulate the log of a recipe."""
    return population(recipe.noise, recipe.subjects, recipe.trials, derive(recipe.seed, "data"))


def name_subjects(recipe: GroupsRecipe, context: Context) -> Rows:
    """Return a row for each method of grouping."""
    rows = log_of(recipe)
    planet = torch.arange(len(PLANETS)).repeat_interleave(recipe.subjects)
    factors = recipe.model.fit(rows, derive(recipe.seed, "model")).subject_factors(rows)
    shared = {"factors": factors.mean.shape[1], "bound": likelihood_bound(rows, recipe.noise, planet)}
    results = []
    for name, grouping in GROUPINGS.items():
        group = grouping.fit(factors, recipe.seed).chances(factors).argmax(1)
        results.append({"groups": name, **shared, "accuracy": matched_accuracy(group, planet)})
    return results


def population(noise: Noise, subjects: int, trials: int, seed: int) -> Transitions:
    """Simulate a log: `subjects` subjects of each planet, each with `trials` trials of 20 steps."""
    tasks = [CartPole(gravity=gravity, noise_reading=noise) for gravity in PLANETS.values()]
    rows = simulate_population(tasks, random_policy, subjects * trials, 20, seed)
    names = tuple(map(str, range(len(PLANETS) * subjects)))
    return replace(rows, noise=rows.noise[:, :0], subject=rows.subject // trials, subject_names=names)


def likelihood_bound(rows: Transitions, noise: Noise, planet: Int[Tensor, " n"]) -> float:
    """The share of subjects that maximum likelihood names right; noise of the action is linearised."""
    densities = [_log_density(CartPole(gravity=g, noise_reading=noise), rows) for g in PLANETS.values()]
    total = torch.zeros(len(planet), len(densities), dtype=torch.double)
    total.index_add_(0, rows.subject, torch.stack(densities, 1))
    return float((total.argmax(1) == planet).double().mean())


def _log_density(task: CartPole, rows: Transitions) -> Float[Tensor, " m"]:
    r"""log N(s' | f(s, a), (σ diag(u))² + σ² (∂f/∂a)(∂f/∂a)ᵀ), less a constant; u is the scale of the noise."""
    mean = task.physics(rows.state, rows.action).double()
    push = (task.physics(rows.state, rows.action + 1) - task.physics(rows.state, rows.action)).double()
    scale = torch.tensor(STATE_SCALE).double().expand_as(mean) if task.noise_reading == "scaled" else mean
    size = task.noise_size
    covariance = (size * scale).square().diag_embed() + size**2 * push[:, :, None] * push[:, None]
    root = torch.linalg.cholesky(covariance + JITTER * torch.eye(mean.shape[1]).double())
    white = torch.linalg.solve_triangular(root, (rows.next_state.double() - mean)[..., None], upper=False)[..., 0]
    return -0.5 * white.square().sum(1) - root.diagonal(0, 1, 2).log().sum(1)


def matched_accuracy(group: Int[Tensor, " n"], planet: Int[Tensor, " n"]) -> float:
    """The share of subjects named right under the best matching of groups to planets."""
    from scipy.optimize import linear_sum_assignment

    table = np.zeros((int(group.max()) + 1, int(planet.max()) + 1))
    np.add.at(table, (group.numpy(), planet.numpy()), 1)
    return float(table[linear_sum_assignment(-table)].sum() / len(planet))
