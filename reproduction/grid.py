"""A grid of one simulator: every method at every number of logged trials with every seed (Figure 2a and ablations).

A row is (method, behaviour, trials, seed, return_selected, return_last, return_in_model). Returns are true means over
the evaluation episodes, of the checkpoint that training selected and of the last one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from counterpoint.core.artifacts import encode
from counterpoint.core.seeding import derive
from counterpoint.core.settings import Positive
from counterpoint.data.jobs import Job
from counterpoint.learners.base import PolicyLearner
from counterpoint.ope.model_based import true_returns
from counterpoint.policies.base import Policy
from counterpoint.simulation.trials import trial_subset
from counterpoint.tasks.base import KnownSCM
from reproduction.experiment import Cell, Context, Experiment, Rows
from reproduction.learning import evaluate_both, learn
from reproduction.logs import Behaviour, LogSource, Protocol, logs, shared_logs
from reproduction.summary import levels, write_summary

COLUMNS = ("method", "behaviour", "trials", "seed", "return_selected", "return_last", "return_in_model")


@dataclass(frozen=True)
class Arm:
    """What a method's name stands for."""

    learner: PolicyLearner
    task: KnownSCM
    most_trials: Positive | None = None
    """Logged trials that it can learn from at most; None for any number."""
    one_size: bool = False
    """Whether only logs of one length share a stack. Otherwise a long log makes every short one as slow as itself where
    the method inverts a kernel matrix, or where good policies live long and every step is planned."""


@dataclass(frozen=True)
class StackRecipe:
    """Cells of the grid that are learned in one stack."""

    arm: Arm
    behaviour: Behaviour
    protocol: Protocol
    cells: tuple[tuple[int, int], ...]
    """(trials, seed) of each."""

    @property
    def source(self) -> LogSource:
        return LogSource(self.arm.task, self.behaviour, self.protocol)


@dataclass(frozen=True)
class Grid(Experiment):
    """Every method at every number of trials with every seed, and the comparisons between methods."""

    name: str
    arms: Mapping[str, Arm]
    trials: tuple[int, ...] = (50, 100, 150, 200, 250)
    seeds: tuple[int, ...] = tuple(range(20))
    behaviour: Behaviour = "random"
    protocol: Protocol = Protocol()
    stack_size: Positive | None = None
    """How many (trials, seed) of a method are learned together; None for all of them, which suits a GPU."""
    comparisons: tuple[tuple[str, str], ...] = ()
    """Pairs (method, baseline) on the page."""
    with_paper: bool = False
    """Whether the page shows the paper's figure beside the returns."""

    columns = COLUMNS

    def cells(self) -> list[Cell]:
        cells = []
        for place, (method, arm) in enumerate(self.arms.items()):
            sizes = [trials for trials in self.trials if arm.most_trials is None or trials <= arm.most_trials]
            pairs = list(product(sizes, self.seeds))
            size = self.stack_size or (len(self.seeds) if arm.one_size else len(pairs))
            labels = {"method": method, "behaviour": self.behaviour}
            for first in range(0, len(pairs), size):
                recipe = StackRecipe(arm, self.behaviour, self.protocol, tuple(pairs[first : first + size]))
                # The last arms take longest. Started first, they do not keep one worker busy while others are idle.
                cells.append(Cell(learn_and_evaluate, recipe, method, labels, cost=place))
        return cells

    def settings(self) -> dict[str, Any]:
        names = ("name", "behaviour", "trials", "seeds", "stack_size", "protocol")
        settings = {name: encode(getattr(self, name)) for name in names}
        return {**settings, "arms": {name: encode(arm) for name, arm in self.arms.items()}}

    def page(self, rows: Rows, out: Path) -> None:
        paper = self.behaviour if self.with_paper else None
        ceiling = next(iter(self.arms.values())).task.ceiling
        write_summary(self.name, rows, self.comparisons, out, paper, ceiling)

    def summary(self, rows: Rows) -> tuple[str, Rows]:
        columns = ("method", "trials", "seeds", "estimate", "low", "high")
        table = [{column: row[column] for column in columns} for row in levels(rows)]
        return "interquartile mean return with 95% interval", table


def learn_and_evaluate(recipe: StackRecipe, context: Context) -> Rows:
    """A row for every (trials, seed): the policies are learned in one stack, then each is evaluated."""
    arm = recipe.arm
    seeds = list(dict.fromkeys(seed for _, seed in recipe.cells))
    tables = shared_logs(logs, recipe.source, seeds, context.shared)
    jobs = [Job(trial_subset(tables[seed], trials), derive(seed, "training")) for trials, seed in recipe.cells]
    learned = learn(arm.learner, jobs, arm.task, context, [recipe.source, recipe.cells], "policy")
    context.report("evaluation", 0, 1)
    protocol = recipe.protocol

    def mean_returns(policies: Sequence[Policy]) -> list[float]:
        task = arm.task.at_evaluation()
        returns = true_returns(policies, task, protocol.evaluation_trials, protocol.evaluation_seed)
        return [sum(episodes) / len(episodes) for episodes in returns.tolist()]

    rows = zip(recipe.cells, evaluate_both(learned, mean_returns), strict=True)
    return [{"trials": trials, "seed": seed, **returns} for (trials, seed), returns in rows]
