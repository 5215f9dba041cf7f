"""The benchmark of effects in confounded logs: every estimator, task and overlap of the behaviour policy.

A row is (task, overlap, horizon, estimator, seed, error, sign_right). The error is

    √ mean over columns i of  mean (ŝ_i − s_i)² / mean (s_i − factual s_i)²,

so that 1 is copying the factual outcome. The sign is right where the answered effect has that of the true one, counted
over the questions whose effect exceeds a tenth of the noise of one step. All overlaps and seeds of one estimator and
one task are fitted in one stack.

A row of `coverage.csv` is (task, overlap, horizon, level, seed, covered, width, estimator, distance): the share of true
answers inside the model's intervals, their mean width as a share of the root mean square effect, and the mean distance
of the first action from those logged in such states.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from math import inf
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.artifacts import write_text
from counterpoint.core.errors import require
from counterpoint.core.seeding import derive
from counterpoint.core.settings import Count, Positive, check_settings
from counterpoint.core.tables import write_csv
from counterpoint.data.jobs import Job
from reproduction.effect_estimators import ONE_STEP_ONLY, EffectEstimator, SCMReplay, estimators, usual
from reproduction.experiment import Cell, Context, Experiment, Rows
from reproduction.pages.effects import (
    COLUMNS,
    COVERAGE,
    coverage_figure,
    coverage_section,
    effects_figure,
    effects_page,
)
from reproduction.tasks.confounded import LOGS, OVERLAPS, Overlap, Questions, confounded_log

TASKS = tuple(name for name in LOGS if name != "infusion")
"""Tasks of the table: the nine synthetic problems, tumour, HIV, the ward and the pharmacokinetic world."""
LEVEL = 0.9
"""Share of the counterfactuals that intervals are asked to hold."""
LARGE = 0.1
"""Effects above this share of the noise have a sign that is asked for."""
ROUNDING = 1e-3
"""Share of the root mean square effect by which an interval may miss."""


@dataclass(frozen=True)
class EffectsRecipe:
    """Logs of one task that one estimator is fitted on in one stack."""

    task: str
    estimator: EffectEstimator
    logs: tuple[tuple[Overlap, int], ...]
    """(overlap, seed) of each."""
    one_step: bool = False
    """Whether it answers about one step only."""


@dataclass(frozen=True)
class Effects(Experiment):
    """Every estimator on every task, with several overlaps and seeds."""

    tasks: tuple[str, ...] = TASKS
    overlaps: tuple[Overlap, ...] = OVERLAPS
    seeds: Positive = 5
    """Logs of every task and overlap."""
    first_seed: Count = 0
    estimators: Mapping[str, EffectEstimator] = field(default_factory=usual)
    """Recipes by their names in the table."""
    name: str = "effects"

    columns = COLUMNS

    def __post_init__(self) -> None:
        check_settings(self)
        unknown = [task for task in self.tasks if task not in LOGS]
        require(not unknown, f"there is no task '{(*unknown, '')[0]}'; choose from {', '.join(LOGS)}")
        require(bool(self.cells()), "there is nothing to run; name tasks, overlaps and estimators")

    def cells(self) -> list[Cell]:
        seeds = range(self.first_seed, self.first_seed + self.seeds)
        logs = tuple(product(self.overlaps, seeds))
        cells = []
        for task, (name, estimator) in product(self.tasks, self.estimators.items()):
            recipe = EffectsRecipe(task, estimator, logs, name in ONE_STEP_ONLY)
            cells.append(Cell(answer_questions, recipe, f"{name} on {task}", {"task": task, "estimator": name}))
        return cells

    def page(self, rows: Rows, out: Path) -> None:
        intervals = [row for row in rows if row["covered"] is not None]
        write_text(out / f"{self.name}.md", effects_page(rows, self.command) + coverage_section(intervals))
        effects_figure(rows, out / f"{self.name}.png")
        if intervals:
            name = self.name.replace("effects", "coverage", 1)
            write_csv(intervals, out / f"{name}.csv", COVERAGE)
            coverage_figure(intervals, out / f"{name}.png")


def quick() -> Effects:
    """Two tasks, one overlap and two seeds by the quick estimators: less than a minute."""
    some = {name: estimators()[name] for name in ("line", "ridge", "boosted trees")}
    return Effects(("a", "tumour", "pharmacokinetic"), ("strong", "weak"), 2, estimators=some, name="effects-quick")


def answer_questions(recipe: EffectsRecipe, context: Context) -> Rows:
    """Return a row for every log and horizon."""
    logs = [confounded_log(recipe.task, overlap, seed) for overlap, seed in recipe.logs]
    seeds = [derive(seed, "fit", overlap) for overlap, seed in recipe.logs]
    jobs = [Job(log.rows, seed) for log, seed in zip(logs, seeds, strict=True)]
    answers = recipe.estimator.fit_many(jobs, context.device)
    rows: Rows = []
    for (overlap, seed), log, answer in zip(recipe.logs, logs, answers, strict=True):
        for horizon, questions in log.questions.items():
            if horizon > 1 and recipe.one_step:
                continue
            answered = answer(questions)
            row = {"overlap": overlap, "seed": seed, "horizon": horizon}
            row |= {"error": relative_error(questions, answered), "level": LEVEL}
            row |= {"sign_right": share_of_right_signs(questions, answered)}
            row |= dict.fromkeys(("covered", "width", "distance"))
            if isinstance(answer, SCMReplay):
                row |= coverage(questions, *answer.interval(questions, LEVEL))
                row |= {"distance": float(answer.distance(questions).mean())}
            rows.append(row)
    return rows


def relative_error(questions: Questions, answered: Float[Tensor, "n s"]) -> float:
    """Return the error as a share of that of copying the factual outcome; infinite where an answer is not finite."""
    columns = list(questions.columns)
    wrong = (answered - questions.truth)[:, columns].double().square().mean(0)
    copied = (questions.factual - questions.truth)[:, columns].double().square().mean(0)
    error = float((wrong / copied).mean().sqrt())
    return error if torch.isfinite(answered[:, columns]).all() else inf


def coverage(questions: Questions, low: Float[Tensor, "n s"], high: Float[Tensor, "n s"]) -> dict[str, float]:
    """Return the share of true answers inside intervals, and the intervals' mean width in root mean square effects."""
    columns = list(questions.columns)
    truth, least, most = questions.truth[:, columns], low[:, columns], high[:, columns]
    effect = (questions.factual - questions.truth)[:, columns].square().mean(0).sqrt()
    # Rounding is no miss where a model knows a column exactly.
    inside = (truth >= least - ROUNDING * effect) & (truth <= most + ROUNDING * effect)
    return {"covered": float(inside.float().mean()), "width": float(((most - least).mean(0) / effect).mean())}


def share_of_right_signs(questions: Questions, answered: Float[Tensor, "n s"]) -> float | None:
    """Return how often the sign of a noticeable effect is right; None where no effect is noticeable."""
    columns = list(questions.columns)
    effect = (questions.truth - questions.factual)[:, columns]
    told = (answered - questions.factual)[:, columns]
    asked = effect.abs() > LARGE * questions.noise[columns].clamp(min=1e-6)
    if not bool(asked.any()):
        return None
    return float((effect.sign() == told.sign())[asked].float().mean())
