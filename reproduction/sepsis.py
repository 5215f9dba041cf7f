"""The paper's sepsis experiment (section 5.2, Figure 3), with off-policy evaluations and true values of its policies.

A cell is one seed: another synthetic cohort, or another split of a table. It learns all policies from the training
patients, and evaluates them on held-out patients and, for the synthetic cohort, in the simulator. A row of the table is
(seed, policy, estimator, value, low, high, truth, verdict, …).
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterpoint.core.artifacts import write_text
from counterpoint.core.settings import Count, Positive, check_settings
from counterpoint.data import storage
from counterpoint.ope.behaviour import Logistic
from counterpoint.ope.evaluation import OPESettings
from counterpoint.ope.result import Evaluation
from reproduction.experiment import Cell, Context, Experiment, Rows
from reproduction.pages.sepsis import COLUMNS, policy_lines, rows_of, sepsis_page, why_none_is_evaluated
from reproduction.pages.sepsis_figure import sepsis_figure
from reproduction.sepsis_arms import CTRL_G, SEARCH_G, Fitted, Learning, SepsisArms
from reproduction.sepsis_behaviour import describe_policies, estimate_rows
from reproduction.sepsis_cohort import Cohort, Split, SyntheticPatients, one_ending
from reproduction.sepsis_evaluation import check_models, evaluate_policies, true_values

PARTS = ("estimates", "mean_q", "counts", "mortality", "doses", "groups", "models")
"""What a cell has beside its seed, ending and sizes."""
REPORTED = SEARCH_G
"""The policy whose report is written: its rule can be read."""
OPE = OPESettings(
    baselines=False, behaviour=Logistic(penalty=100.0), alternative_behaviours=(), draws=400, critic_draws=50
)
"""Most of the 25 actions are rare. Without a strong ridge their probabilities are estimated near zero (seed 100: with
the ridge an equally good Brier score, 0.851, and more than twice the effective patients)."""


@dataclass(frozen=True)
class SepsisRecipe:
    """One seed."""

    cohort: Cohort
    arms: SepsisArms
    ope: OPESettings
    trials: int
    seed: int
    reported: bool = False
    """Whether to keep the data, model and policy that a report is made of."""


@dataclass(frozen=True)
class Sepsis(Experiment):
    """All policies on several cohorts."""

    cohort: Cohort = SyntheticPatients()
    """The patients."""
    arms: SepsisArms = SepsisArms()
    """Recipes of everything that is learned."""
    seeds: Positive = 10
    """Cohorts, or splits of a table."""
    first_seed: Count = 0
    """The first of them; settings were chosen on seeds from 100 on."""
    trials: Positive = 2000
    """Unseen patients whose mean return is a policy's true value, in the simulator."""
    ope: OPESettings = OPE
    """How policies are evaluated on the records of held-out patients."""
    name: str = "sepsis"

    columns = COLUMNS

    def __post_init__(self) -> None:
        check_settings(self)

    def cells(self) -> list[Cell]:
        cells = []
        for seed in range(self.first_seed, self.first_seed + self.seeds):
            recipe = SepsisRecipe(self.cohort, self.arms, self.ope, self.trials, seed, seed == self.first_seed)
            cells.append(Cell(learn_and_evaluate, recipe, f"seed {seed}"))
        return cells

    def table(self, rows: Rows) -> Rows:
        return [dict(row) for row in rows_of(rows, "estimates")]

    def page(self, rows: Rows, out: Path) -> None:
        write_text(out / f"{self.name}.md", sepsis_page(rows, self.command, self.name))
        if self.table(rows):
            sepsis_figure(rows, out / f"{self.name}.png")

    def summary(self, rows: Rows) -> tuple[str, Rows]:
        return why_none_is_evaluated(rows) or "policies for septic patients", policy_lines(rows)

    def parts(self, out: Path) -> Path:
        """Return the folder with the data, model and policy of the first seed's report; absent without a report."""
        return out / self.name / "run-parts" / self.cells()[0].key


def learn_and_evaluate(recipe: SepsisRecipe, context: Context) -> Rows:
    """Return one row with everything of a seed; without policies where all patients ended alike."""
    begun = time.perf_counter()
    task = recipe.cohort.task(recipe.seed)
    rows = recipe.cohort.read(recipe.seed)
    split = Split.of(rows, recipe.seed)
    ending = one_ending(rows)
    result: dict[str, Any] = {"seed": recipe.seed, "ending": ending, "sizes": split.sizes(), **{p: [] for p in PARTS}}
    if not ending:
        fitted = Learning(recipe.arms, split, recipe.seed, context.monitor, context.device).fit()
        evaluations = evaluate_policies(recipe.ope, split, fitted, recipe.seed, context.monitor)
        truth = {} if task is None else true_values(fitted, recipe.trials)
        result["estimates"] = estimate_rows(evaluations, recipe.seed, truth)
        result |= describe_policies(split, fitted, evaluations)
        result["models"] = check_models(rows, split, fitted, task, recipe.seed)
        if recipe.reported and REPORTED in evaluations:
            _keep_parts(context.folder / "run-parts" / context.key, split, fitted, evaluations[REPORTED])
    return [{**result, "seconds": time.perf_counter() - begun}]


def _keep_parts(folder: Path, split: Split, fitted: Fitted, evaluation: Evaluation) -> None:
    """Save what the report of a run is made of."""
    folder.mkdir(parents=True, exist_ok=True)
    storage.write(split.everybody, folder / "data.parquet")
    fitted.task.save(folder / "task")
    fitted.models[CTRL_G].save(folder / "scm")
    fitted.policies[REPORTED].save(folder / "policy")
    write_text(folder / "evaluation.json", evaluation.text())
