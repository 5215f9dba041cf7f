"""Estimators of the counterfactual benchmark by their names in the table, and the problems they do not support."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.data.jobs import NO_THETA, Job
from counterpoint.data.transitions import Transitions
from counterpoint.learners.methods import SMALL_BICOGAN
from counterpoint.models.dynamics.deterministic import Deterministic
from counterpoint.models.scm.auto import AutoSCM
from counterpoint.models.scm.bicogan import BiCoGAN, ConditionalBiCoGAN
from counterpoint.models.scm.density import DensitySCM, default_scm, fit_graph, location_scale
from counterpoint.nets.conditional import Parents
from counterpoint.nets.laws import Gaussian, Mixture, Spline
from counterpoint.nets.likelihood import Likelihood
from counterpoint.nets.training import Schedule
from reproduction.peers_dowhy import DoWhyGCM

DOWHY = "DoWhy gcm"
SECONDS: dict[type, float] = {
    DoWhyGCM: 3,
    Deterministic: 1,
    DensitySCM: 6,
    ConditionalBiCoGAN: 60,
    BiCoGAN: 200,
    AutoSCM: 1000,
}
"""About the processor seconds of a fit on 1,000 rows, by which the longest cells start first. AutoSCM has more than it
takes: its candidates are fitted one after another, and its stacks take a GPU longest."""
NO_GRAPH = "a model of (s, a, s') has no place for a graph of variables"


@dataclass(frozen=True)
class Copy:
    """Copies the factual outcome."""

    def fit_many(self, jobs: Sequence[Job], device: str) -> list["Copy"]:
        return [self for _ in jobs]

    def fit_graph(self, tables: Sequence[Tensor], parents: Parents, seeds: Sequence[int]) -> list["CopyGraph"]:
        return [CopyGraph(len(parents)) for _ in tables]

    def imagine(self, rows: Transitions, action: Tensor, random: torch.Generator, theta: Tensor = NO_THETA) -> Tensor:
        return rows.next_state[:, None].expand(-1, action.shape[1], -1)

    def sample(self, state: Tensor, action: Tensor, random: torch.Generator, theta: Tensor = NO_THETA) -> Tensor:
        return state


@dataclass(frozen=True)
class CopyGraph:
    """The same for variables of a graph: only those under intervention change. It cannot draw samples."""

    variables: int

    def counterfactual(self, x: Float[Tensor, "n x"], held: Mapping[int, float]) -> Float[Tensor, "n x"]:
        answer = x.clone()
        for variable, value in held.items():
            answer[:, variable] = value
        return answer

    def sample(self, count: int, random: torch.Generator, held: Mapping[int, float]) -> Float[Tensor, "n x"]:
        return torch.full((count, self.variables), float("nan"))


def estimators() -> dict[str, Any]:
    """Return all estimators."""
    paper, conditional = BiCoGAN(), ConditionalBiCoGAN()
    return {
        "copy the outcome": Copy(),
        "conditional mean": Deterministic(hidden=(64, 64), batch_norm=False),
        "BiCoGAN, paper": paper,
        "BiCoGAN of s' − s": replace(paper, change=True),
        "BiCoGAN, paper, inversion": replace(paper, abduction="inversion"),
        "BiCoGAN of s' − s, inversion": replace(paper, change=True, abduction="inversion"),
        "conditional BiCoGAN, encoder": replace(conditional, abduction="encoder"),
        "conditional BiCoGAN, inversion": conditional,
        "conditional BiCoGAN of s', inversion": replace(conditional, change=False),
        "location-scale": location_scale(ensemble=1),
        "location-scale ×5": location_scale(),
        "mixture ×5": DensitySCM(Mixture()),
        "spline ×5": DensitySCM(Spline()),
        "default": default_scm(),
        "default, Gaussian": replace(default_scm(), law=Gaussian()),
        "default, order given": replace(default_scm(), order=(0, 1, 2, 3)),
        "auto": AutoSCM(
            (replace(default_scm(), law=Gaussian()), default_scm(), DensitySCM(Spline())),
            members=default_scm().ensemble,
        ),
        DOWHY: DoWhyGCM(),
    }


def quick_estimators() -> dict[str, Any]:
    """Return the same with smaller ensembles, much shorter training, and without DoWhy."""
    return {name: _brief(recipe) for name, recipe in estimators().items() if name != DOWHY}


def _brief(recipe: Any) -> Any:
    if isinstance(recipe, AutoSCM):
        return replace(recipe, candidates=tuple(_brief(candidate) for candidate in recipe.candidates))
    if isinstance(recipe, DensitySCM):
        return replace(recipe, ensemble=min(recipe.ensemble, 2), likelihood=_shortened(recipe.likelihood))
    if isinstance(recipe, Deterministic):
        return replace(recipe, likelihood=_shortened(recipe.likelihood))
    if isinstance(recipe, BiCoGAN):
        recipe = replace(SMALL_BICOGAN, change=recipe.change, abduction=recipe.abduction)
    if isinstance(recipe, BiCoGAN | ConditionalBiCoGAN):
        return replace(recipe, training=replace(recipe.training, schedule=Schedule(steps=50)))
    return recipe


def _shortened(likelihood: Likelihood) -> Likelihood:
    return replace(likelihood, schedule=replace(likelihood.schedule, steps=100))


def auto_candidates(chosen: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the names of the candidates of every estimator that chooses."""
    choosing = {name: recipe.candidates for name, recipe in chosen.items() if isinstance(recipe, AutoSCM)}
    return {
        name: tuple(other for other, recipe in chosen.items() if recipe in candidates)
        for name, candidates in choosing.items()
    }


def gap(recipe: Any, columns: int, graph: bool) -> str:
    """Return why an estimator does not support a state of so many columns, or a graph; empty if it does."""
    ordered = isinstance(recipe, DensitySCM) and len(recipe.order) > 0
    if graph and ordered:
        return "a graph of variables takes the place of an order of columns"
    if graph and not isinstance(recipe, DensitySCM) and not hasattr(recipe, "fit_graph"):
        return NO_GRAPH
    if ordered and len(recipe.order) != columns:
        return f"an order of {len(recipe.order)} columns is none for a state of {columns}"
    return ""


def fit_graphs(
    recipe: Any, tables: Sequence[Float[Tensor, "n x"]], parents: Parents, seeds: Sequence[int], device: str
) -> list[Any]:
    """Fit a model to every table of variables with a known graph."""
    if isinstance(recipe, DensitySCM):
        return list(fit_graph(recipe, tables, parents, seeds, device=device))
    return recipe.fit_graph(tables, parents, seeds)


def about_seconds(recipe: Any, rows: int, columns: int) -> float:
    """Return about how long a fit takes; it only decides the order of the work."""
    return SECONDS.get(type(recipe), 0.0) * (1 + rows / 5000) * (1 + columns / 8)
