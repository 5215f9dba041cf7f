"""The paper's HD experiment: five gravities in one log, and policies evaluated on each planet (Figure 2b and its twin).

A row is (method, behaviour, planet, seed, return_selected, return_last, return_in_model, commit, device). All seeds of
a method are learned in one stack. A personal policy begins every episode without knowledge of the pole's gravity and
infers it from step to step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from counterpoint.core.artifacts import encode, write_text
from counterpoint.core.errors import require
from counterpoint.core.seeding import derive, generator
from counterpoint.core.settings import Count, Positive
from counterpoint.data.jobs import Job
from counterpoint.data.transitions import Transitions
from counterpoint.ope.model_based import true_returns
from counterpoint.policies.base import Policy
from counterpoint.simulation.trials import simulate_population
from counterpoint.tasks.cartpole import PLANETS, CartPole
from reproduction.experiment import Cell, Context, Experiment, Rows
from reproduction.hd_arms import HDArm, Split, hd_arms
from reproduction.learning import evaluate_both, learn
from reproduction.logs import Behaviour, LogSource, Protocol, behaviours, shared_logs
from reproduction.pages.hd import hd_figure, hd_page, means

COLUMNS = (
    "method", "behaviour", "planet", "seed", "return_selected", "return_last", "return_in_model", "commit", "device",
)  # fmt: skip
TASKS = {planet: CartPole(gravity=gravity) for planet, gravity in PLANETS.items()}
FIRST = next(iter(TASKS.values()))
"""Reward, end and columns are the same on every planet."""
HD_PROTOCOL = Protocol(logged_trials=50)
"""Trials of each planet in a log, and how policies are evaluated."""


@dataclass(frozen=True)
class HDRecipe:
    """All seeds of one method, learned in one stack."""

    arm: HDArm
    behaviour: Behaviour
    seeds: tuple[int, ...]
    protocol: Protocol

    @property
    def source(self) -> LogSource:
        return LogSource(FIRST, self.behaviour, self.protocol)


@dataclass(frozen=True)
class HD(Experiment):
    """Every method on logs of five planets."""

    behaviour: Behaviour = "random"
    """The policy that logs."""
    arms: Mapping[str, HDArm] = field(default_factory=hd_arms)
    """Methods, by the name they have in the table."""
    seeds: Positive = 20
    """Data sets and training seeds."""
    first_seed: Count = 0
    """The first of them."""
    protocol: Protocol = HD_PROTOCOL
    """Trials of each planet, and how policies are evaluated."""
    name: str = "hd"

    columns = COLUMNS

    def __post_init__(self) -> None:
        require(self.seeds > 1, f"{self.seeds} seeds give no interval; set --seeds to 2 or more")

    def cells(self) -> list[Cell]:
        """One for each method."""
        seeds = tuple(range(self.first_seed, self.first_seed + self.seeds))
        cells = []
        for place, (method, arm) in enumerate(self.arms.items()):
            recipe = HDRecipe(arm, self.behaviour, seeds, self.protocol)
            labels = {"method": method, "behaviour": self.behaviour}
            cells.append(Cell(learn_and_evaluate, recipe, method, labels, cost=place))
        return cells

    def settings(self) -> dict[str, Any]:
        settings = {"behaviour": self.behaviour, "seeds": self.seeds, "first_seed": self.first_seed}
        arms = {name: encode(arm) for name, arm in self.arms.items()}
        return {"arms": arms, "protocol": encode(self.protocol), **settings}

    def page(self, rows: Rows, out: Path) -> None:
        hd_figure(rows, self.behaviour, out / f"{self.name}.png")
        write_text(out / f"{self.name}.md", hd_page(rows, self.behaviour, self.name))

    def summary(self, rows: Rows) -> tuple[str, Rows]:
        columns = ("method", *PLANETS, "mean")
        return "mean return on each planet", [{column: row[column] for column in columns} for row in means(rows)]


def hd_logs(source: LogSource, seeds: Sequence[int]) -> dict[int, Transitions]:
    """Simulate the log of every seed, all planets in it, without the noise that the simulator drew."""
    protocol = source.protocol
    share = protocol.random_action_share
    policies = {task.gravity: behaviours(task, source.behaviour, seeds, share) for task in TASKS.values()}
    tables = {}
    for seed in seeds:
        table = simulate_population(
            list(TASKS.values()),
            lambda task, seed=seed: policies[task.gravity][seed],  # pyright: ignore[reportAttributeAccessIssue]
            protocol.logged_trials,
            protocol.steps,
            derive(seed, "data"),
        )
        tables[seed] = replace(table, noise=table.noise[:, :0])
    return tables


def learn_and_evaluate(recipe: HDRecipe, context: Context) -> Rows:
    """A row for every seed and planet; all policies are learned side by side."""
    arm = recipe.arm
    tables = shared_logs(hd_logs, recipe.source, recipe.seeds, context.shared)
    jobs = [Job(tables[seed], derive(seed, "training")) for seed in recipe.seeds]
    parts = [part for job in jobs for part in split(job, arm.split, recipe.protocol.logged_trials)]
    data = [recipe.source, arm.split, recipe.seeds]
    learned = learn(arm.learner, parts, FIRST, context, data, "policy")
    context.report("evaluation", 0, 1)
    count = len(parts) // len(jobs)
    returns = {}
    for place, (planet, task) in enumerate(TASKS.items()):
        mean_returns = partial(_mean_returns, task=task, recipe=recipe)
        returns[planet] = evaluate_both(learned[place % count :: count], mean_returns)
    return [
        {"planet": planet, "seed": seed, **returns[planet][place]}
        for place, seed in enumerate(recipe.seeds)
        for planet in TASKS
    ]


def split(job: Job, how: Split, trials: int) -> list[Job]:
    """The job whole, or one for each planet, or for as many groups drawn at random."""
    if how == "none":
        return [job]
    subjects = len(TASKS) * trials
    group_of_subject = torch.arange(subjects) // trials
    if how == "chance":
        group_of_subject = group_of_subject[torch.randperm(subjects, generator=generator(job.seed, "random groups"))]
    group_of_row = group_of_subject[job.data.subject]
    return [replace(job[group_of_row == group], seed=derive(job.seed, how, group)) for group in range(len(TASKS))]


def _mean_returns(policies: Sequence[Policy], task: CartPole, recipe: HDRecipe) -> list[float]:
    """The mean return of every policy on one planet."""
    protocol = recipe.protocol
    episodes = min(recipe.arm.most_episodes or protocol.evaluation_trials, protocol.evaluation_trials)
    return true_returns(policies, task.at_evaluation(), episodes, protocol.evaluation_seed).mean(1).tolist()
