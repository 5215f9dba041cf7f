"""The paper's HD experiment: five gravities in one log, and policies evaluated on each planet (Figure 2b and its twin).

A row is (method, behaviour, planet, seed, return_selected, return_last, return_in_model, commit, device). All seeds of
a method are learned in one stack. A personal policy begins every episode without knowledge of the pole's gravity and
infers it from step to step.

The methods are those of the paper, CTRL_p in four ways, an upper bound and a control.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from counterpoint.core.artifacts import encode, write_text
from counterpoint.core.errors import require
from counterpoint.core.seeding import derive, generator
from counterpoint.core.settings import Count, Positive, check_settings
from counterpoint.data.jobs import Job
from counterpoint.data.transitions import Transitions
from counterpoint.learners.base import PolicyLearner
from counterpoint.learners.ctrl_g import LEARNER, CTRLg
from counterpoint.learners.ctrl_p import CTRLp
from counterpoint.learners.methods import QUICK_SEARCH
from counterpoint.learners.search import Search
from counterpoint.models.groups import KMeansGroups, MixtureGroups
from counterpoint.models.scm.bicogan import BiCoGAN
from counterpoint.models.scm.lstm_factor import LSTMFactor
from counterpoint.models.scm.random_effects import RandomEffects
from counterpoint.ope.model_based import true_returns
from counterpoint.policies.base import Policy
from counterpoint.simulation.trials import simulate_population
from counterpoint.tasks.cartpole import PLANETS, CartPole
from reproduction.arms import CTRL_G, SEARCH, beyond_arms, paper_arms, quick_arms
from reproduction.experiment import Cell, Context, Experiment, Rows
from reproduction.learning import evaluate_both, learn
from reproduction.logs import Behaviour, LogSource, Protocol, behaviours, shared_logs
from reproduction.pages.hd import hd_figure, hd_page, means

PLANNED_EPISODES = 10
"""Episodes of a planner's evaluation on each planet, fifty in all: it plans at every step of every episode."""
Split = Literal["none", "planets", "chance"]


@dataclass(frozen=True)
class HDArm:
    """What a method's name stands for."""

    learner: PolicyLearner
    split: Split = "none"
    """How subjects are divided before learning, with one policy for each part: not at all, by planet (an upper bound),
    or into as many groups at random (a control)."""
    most_episodes: Positive | None = None
    """Episodes of each policy's evaluation on a planet at most; None for as many as every other method."""

    def __post_init__(self) -> None:
        check_settings(self)


def hd_arms() -> dict[str, HDArm]:
    """Every method of Figure 2b, CTRL_p in the paper's way and in three others, an upper bound and a control."""
    paper = paper_arms()
    effects, count = RandomEffects(), len(PLANETS)
    one_step = CTRLg(effects, learner=LEARNER, sees_factor=False)
    lstm = CTRLg(BiCoGAN(factor=LSTMFactor()), learner=LEARNER, sees_factor=False)
    search = Search(effects, sees_factor=False)
    return {
        **{name: HDArm(paper[name]) for name in ("D3QN", "BCQ", "STEVE", CTRL_G)},
        "CTRL_p, paper": HDArm(CTRLp(lstm, KMeansGroups(count), centroids=True)),
        "CTRL_p, D3QN": HDArm(CTRLp(one_step, MixtureGroups(count), centroids=True)),
        SEARCH: HDArm(beyond_arms()[SEARCH]),
        "one policy, robust over θ": HDArm(search),
        "CTRL_p + search, told θ": HDArm(CTRLp(replace(search, sees_factor=True), None)),
        "CTRL_p + search": HDArm(CTRLp(search, MixtureGroups(count))),
        "known gravity": HDArm(Search(), "planets"),
        "random groups": HDArm(Search(), "chance"),
        "PETS": HDArm(paper["PETS"], most_episodes=PLANNED_EPISODES),
    }


def quick_hd_arms() -> dict[str, HDArm]:
    """A few methods with small networks and short searches: minutes on two cores."""
    quick, effects = quick_arms(), RandomEffects(ensemble=2)
    search = replace(QUICK_SEARCH, model=effects, sees_factor=False)
    return {
        "D3QN": HDArm(quick["D3QN"]),
        SEARCH: HDArm(quick[SEARCH]),
        "one policy, robust over θ": HDArm(search),
        "CTRL_p + search": HDArm(CTRLp(search, MixtureGroups(len(PLANETS)))),
    }


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
