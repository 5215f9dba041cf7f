"""Search in Gymnasium's classic control: learned from random rows, evaluated in Gymnasium's own environment.

Reward and end are the task's known functions or, in a second method, learned from the same log. A log of Acrobot or
MountainCar holds no goal, so a learned outcome predicts none and every policy has the same return: the second method is
for the pendulum alone.

A row is (method, environment, rows, seed, return_true, return_in_model): the mean return of whole episodes in the
environment, and the same policy's return in the model in which it was searched. All seeds of an environment and a
number of rows are learned in one stack.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from counterpoint.core.artifacts import encode
from counterpoint.core.errors import require
from counterpoint.core.seeding import derive
from counterpoint.core.settings import Count, Positive, Widths, check_settings
from counterpoint.core.tables import read_csv
from counterpoint.data.jobs import Job
from counterpoint.data.transitions import Transitions
from counterpoint.learners.evolution import CrossEntropy
from counterpoint.learners.search import Search
from counterpoint.models.dynamics.outcome import Outcome
from counterpoint.models.scm.density import DensitySCM
from counterpoint.nets.laws import Gaussian
from counterpoint.nets.likelihood import Likelihood
from counterpoint.nets.training import Schedule
from counterpoint.policies.rule import OrderedDose, ScoredActions
from counterpoint.policies.searched import SearchedPolicy
from counterpoint.tasks.base import Task
from reproduction.experiment import Cell, Context, Experiment, Rows
from reproduction.pages.returns import returns_by_environment
from reproduction.tasks.classic import Acrobot, ClassicControl, MountainCar, Pendulum, TaskStack
from reproduction.tasks.classic_simulation import evaluate_in_gym, log_random

COLUMNS = ("method", "environment", "rows", "seed", "return_true", "return_in_model")
METHOD, LEARNED_METHOD = "Search", "Search, learned reward and end"
SIZES = (1000, 2000, 5000)
MODEL = DensitySCM(Gaussian(), likelihood=Likelihood(Schedule(steps=3000, rate="one-cycle"), learning_rate=5e-3))
"""Keeps its last weights: without noise, one held-out row beyond a limit outweighs all others in a validation."""


@dataclass(frozen=True)
class Problem:
    """An environment, the logs taken from it, and the settings of the search in it."""

    task: ClassicControl
    rows: Widths
    """Logged transitions; one data set for each number."""
    piece: Positive
    """Steps after which a log begins anew."""
    search: Search
    """Class of policies and how they are searched."""
    outcome: Outcome | None = None
    """How reward and end are learned in the second method; None where the log does not identify them."""

    def __post_init__(self) -> None:
        check_settings(self)

    def log(self, rows: int, seed: int) -> Transitions:
        """The random log of one seed."""
        return log_random(self.task, rows, self.piece, derive(seed, "data"))


def problems() -> dict[str, Problem]:
    """Every environment, by the name it has in the table.

    Energy takes hundreds of random steps to gather: short pieces of Acrobot and MountainCar never leave the bottom.
    """
    dose, score = OrderedDose(hidden=(16,)), ScoredActions(hidden=(16,))
    swing = _search(dose, CrossEntropy(96, 12, spread=3.0, extra=1.0), rounds=100)
    swing = replace(swing, restarts=4, starts=4, choosing_starts=16)
    reach = replace(_search(score, CrossEntropy(64, 8, spread=2.0, extra=0.6), rounds=20), restarts=4)
    climb = _search(dose, CrossEntropy(64, 8, spread=3.0, extra=1.0), rounds=20, horizon=500)
    return {
        "Pendulum": Problem(Pendulum(), SIZES, 50, swing, Outcome()),
        "Acrobot": Problem(Acrobot(), SIZES, 500, reach),
        "MountainCar": Problem(MountainCar(), SIZES, 500, climb),
    }


def _search(
    rule: OrderedDose | ScoredActions, optimizer: CrossEntropy, rounds: Positive, horizon: Count | None = None
) -> Search:
    schedule = Schedule(steps=rounds, check_every=5, log_every=5)
    return Search(
        MODEL,
        draws=None,
        rule=rule,
        optimizer=optimizer,
        schedule=schedule,
        choosing_starts=8,
        horizon=horizon,
        support_price=0.0,
    )


def variants(problem: Problem) -> list[Problem]:
    """The problem with known reward and end and, where they can be learned, with learned ones."""
    with_known = replace(problem, outcome=None)
    return [with_known, problem] if problem.outcome else [with_known]


def quick_problems() -> dict[str, Problem]:
    """The pendulum alone, by a linear rule and few candidates: minutes on two cores, and no good policy."""
    search = _search(OrderedDose(), CrossEntropy(32), rounds=10)
    return {"Pendulum": Problem(Pendulum(), (500,), 50, search)}


@dataclass(frozen=True)
class ClassicRecipe:
    """All seeds of one method, environment and number of rows, learned in one stack."""

    problem: Problem
    """Its outcome is None where reward and end are the task's own; its `rows` are empty."""
    rows: int
    seeds: tuple[int, ...]
    episodes: int


@dataclass(frozen=True)
class Classic(Experiment):
    """The search in every environment, from every number of rows."""

    problems: Mapping[str, Problem] = field(default_factory=problems)
    """Environments with their logs and searches."""
    seeds: Positive = 10
    """Data sets and training seeds."""
    first_seed: Count = 0
    """The first of them."""
    episodes: Positive = 50
    """Episodes of each policy's evaluation, the same for all: a pendulum's return depends on where it starts."""
    name: str = "classic"

    columns = COLUMNS

    def __post_init__(self) -> None:
        require(self.seeds > 0 and self.episodes > 0, "there is nothing to run; ask for seeds and episodes")

    def cells(self) -> list[Cell]:
        """One for each environment, method and number of rows."""
        cells = []
        for environment, problem in self.problems.items():
            for variant in variants(problem):
                for rows in variant.rows:
                    cells.append(self._cell(environment, variant, rows))
        return cells

    def _cell(self, environment: str, problem: Problem, rows: int) -> Cell:
        seeds = tuple(range(self.first_seed, self.first_seed + self.seeds))
        recipe = ClassicRecipe(replace(problem, rows=()), rows, seeds, self.episodes)
        labels = {"method": LEARNED_METHOD if problem.outcome else METHOD, "environment": environment, "rows": rows}
        return Cell(search_and_evaluate, recipe, environment, labels)

    def settings(self) -> dict[str, Any]:
        problems = {name: encode(problem) for name, problem in self.problems.items()}
        return {"problems": problems, "seeds": self.seeds, "first_seed": self.first_seed, "episodes": self.episodes}

    def page(self, rows: Rows, out: Path) -> None:
        """The figure of returns, with the rows of `benchmarks/classic_peers.py` where they are in the folder."""
        path = out / "classic_peers.csv"
        peers = [row for row in read_csv(path) if row["environment"] in self.problems] if path.exists() else []
        returns_by_environment([*rows, *peers], out / f"{self.name}.png")

    def summary(self, rows: Rows) -> tuple[str, Rows]:
        return "return in the environment and in the model", [{c: row[c] for c in COLUMNS} for row in rows]


def search_and_evaluate(recipe: ClassicRecipe, context: Context) -> Rows:
    """A row for every seed: the policies are searched side by side, then each is evaluated in Gymnasium."""
    problem = recipe.problem
    jobs = [Job(problem.log(recipe.rows, seed), derive(seed, "training")) for seed in recipe.seeds]
    task = _task(problem, jobs, context)
    search = replace(problem.search, horizon=problem.search.horizon or problem.task.horizon)
    learned = search.fit_many(jobs, task, context.monitor, context.device)
    policies = [policies.selected for policies in learned]
    context.report("evaluation", 0, 1)
    returns = [evaluate_in_gym(policy, problem.task.gym_id, recipe.episodes) for policy in policies]
    return [
        {"seed": seed, "return_true": float(episodes.mean()), "return_in_model": _return_in_model(policy)}
        for seed, policy, episodes in zip(recipe.seeds, policies, returns, strict=True)
    ]


def _task(problem: Problem, jobs: Sequence[Job], context: Context) -> Task:
    """The known reward and end, or those learned from every job's own log."""
    if problem.outcome is None:
        return problem.task
    return TaskStack(problem.outcome.fit_many(jobs, context.monitor.stage("outcome"), context.device))


def _return_in_model(policy: Any) -> float:
    assert isinstance(policy, SearchedPolicy)
    return policy.return_in_model
