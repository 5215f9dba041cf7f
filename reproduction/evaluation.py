"""Off-policy evaluation of policies with known values, from logs of known behaviour policies.

A row is (task, estimator, policy, repetition, estimate, low, high, truth, verdict, …). A cell is one log of one task,
or the true values of the task's policies.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from counterpoint.core.artifacts import write_text
from counterpoint.core.errors import require
from counterpoint.core.seeding import derive
from counterpoint.core.settings import Count, Positive, check_settings
from counterpoint.ope.evaluation import OPESettings, evaluate
from reproduction.experiment import Cell, Context, Experiment, Rows
from reproduction.known_policies import (
    PROBLEMS,
    EvaluationProblem,
)
from reproduction.pages.evaluation import COLUMNS, evaluation_figure, evaluation_page


@dataclass(frozen=True)
class TruthRecipe:
    """The true values of the policies of one task."""

    task: str
    trials: int


@dataclass(frozen=True)
class LogRecipe:
    """One log of one task, and how its policies are evaluated from it."""

    task: str
    repetition: int
    ope: OPESettings


def repetitions() -> dict[str, int]:
    """Logs of every task; those of HIV take longest to simulate."""
    return {"icu-sepsis": 50, "tumour": 20, "hiv": 3, "cartpole": 20}


@dataclass(frozen=True)
class EvaluationBenchmark(Experiment):
    """Several logs of each task."""

    repetitions: Mapping[str, int] = field(default_factory=repetitions)
    """Logs of every task."""
    first: Count = 0
    """The first of them."""
    trials: Positive = 4000
    """Trials whose mean return is the true value, where it is not known exactly."""
    ope: OPESettings = OPESettings(baselines=False, alternative_behaviours=(), draws=400, critic_draws=50)
    """How policies are evaluated; a task may have its own estimator of the behaviour policy."""
    name: str = "evaluation"

    columns = COLUMNS

    def __post_init__(self) -> None:
        check_settings(self)
        unknown = [task for task in self.repetitions if task not in PROBLEMS]
        require(not unknown, f"there is no task '{(unknown or [''])[0]}'; choose from {', '.join(PROBLEMS)}")
        require(bool(self.cells()), "there is nothing to run; name a task and at least one repetition")

    def cells(self) -> list[Cell]:
        """The true values of every task, then its logs."""
        cells = []
        for task, count in self.repetitions.items():
            if count > 0:
                cells.append(Cell(true_values, TruthRecipe(task, self.trials), f"{task}, true values", {"task": task}))
            for repetition in range(self.first, self.first + count):
                labels = {"task": task, "repetition": repetition}
                cells.append(Cell(evaluate_policies, LogRecipe(task, repetition, self.ope), task, labels))
        return cells

    def table(self, rows: Rows) -> Rows:
        """Add the true values to the estimates; a task without true values has no rows."""
        truths = {(row["task"], row["policy"]): row for row in rows if "estimator" not in row}
        table = []
        for row in rows:
            truth = truths.get((row["task"], row["policy"]))
            if "estimator" in row and truth is not None:
                table.append({**row, "truth": truth["truth"], "silent": truth["silent"]})
        return table

    def page(self, rows: Rows, out: Path) -> None:
        table = self.table(rows)
        if table:
            write_text(out / f"{self.name}.md", evaluation_page(table, self.command))
            evaluation_figure(table, out / f"{self.name}.png")


def quick() -> EvaluationBenchmark:
    """One task that needs no extra, two logs: less than a minute."""
    ope = OPESettings(baselines=False, alternative_behaviours=(), draws=200, critic_draws=20)
    return EvaluationBenchmark({"tumour": 2}, trials=1000, ope=ope, name="evaluation-quick")


@lru_cache(maxsize=1)
def problem_of(task: str) -> EvaluationProblem:
    """Return the problem of a task; cells of one task that run in one process share it."""
    return PROBLEMS[task]()


def true_values(recipe: TruthRecipe, context: Context) -> Rows:
    """Return a row for each policy: its true value, and whether the log has no support for it."""
    problem = problem_of(recipe.task)
    seed = derive(0, "truth", recipe.task)
    return [
        {"policy": name, "truth": problem.truth(name, recipe.trials, seed), "silent": name == problem.unsupported}
        for name in problem.policies
    ]


def evaluate_policies(recipe: LogRecipe, context: Context) -> Rows:
    """Return a row for each policy and estimator."""
    problem = problem_of(recipe.task)
    log = problem.log(derive(recipe.repetition, "log", recipe.task))
    ope = recipe.ope if problem.behaviour is None else replace(recipe.ope, behaviour=problem.behaviour)
    rows: Rows = []
    for number, (name, policy) in enumerate(problem.policies.items()):
        context.report("policies", number, len(problem.policies))
        evaluation = evaluate(log, policy, ope, name=name, seed=derive(recipe.repetition, "judged", name))
        diagnostics = evaluation.diagnostics
        for estimate in evaluation.estimates:
            rows.append(
                {"estimator": estimate.name, "policy": name, "estimate": estimate.value, "low": estimate.low,
                 "high": estimate.high, "verdict": evaluation.verdict,
                 "recommended": estimate.name == evaluation.recommended,
                 "effective": diagnostics and diagnostics.effective,
                 "unsupported": diagnostics and diagnostics.unsupported,
                 "strayed": diagnostics and diagnostics.off_support}
            )  # fmt: skip
    return rows
