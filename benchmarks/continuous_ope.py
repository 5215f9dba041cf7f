"""Coverage of the evaluation of continuous doses against simulated truths: `python benchmarks/continuous_ope.py`.

Policies near the clinicians' and far from them, and interventions on the logged dose, in a linear task with normal
doses and in one with positive doses that are often none. Reported are the coverage of the 95% interval of the
recommended estimator and of the difference from the logged return, how often a comparison with practice is given where
it is true, and how often it is right where it is given. The truth of a policy is the mean return of 20,000 episodes of
the policy itself, without the spread that it is evaluated with. Writes results/continuous_ope.csv; ends with a Markdown
table and, in the last line, the same as JSON.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro
from torch import Tensor

from counterpoint.core.seeding import derive, generator
from counterpoint.core.tables import Row, markdown_table, write_csv
from counterpoint.ope.continuous import ShiftedDoses
from counterpoint.ope.evaluation import EvaluatedPolicy, OPESettings, evaluate
from counterpoint.ope.model_based import returns
from counterpoint.ope.result import Estimate, Evaluation
from counterpoint.simulation.trials import simulate
from reproduction.tasks.linear_dose import LinearDose, RulePolicy

TRUTH = 20_000
"""Episodes of a true mean return."""
NEAR = ("usual", "usual, more where x is high", "usual, a little more", "usual, less", "everybody 0.1 more by x")
"""Policies that the log supports."""

Rule = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Case:
    """A policy, and what it does in the simulator."""

    name: str
    policy: EvaluatedPolicy
    rule: Rule


def cases(task: LinearDose) -> list[Case]:
    """Policies near practice and far from it."""
    settings = {
        "usual": (0.0, 0.0),
        "usual, more where x is high": (0.15, 0.0),
        "usual, a little more": (0.0, 0.1),
        "usual, less": (-0.1, -0.1),
        "far": (0.3, 0.8),
        "unlike the log": (0.0, 3.0),
    }
    rules = {name: rule_of(task, more, shift) for name, (more, shift) in settings.items()}
    by_rule = [Case(name, RulePolicy(task.schema, rule), rule) for name, rule in rules.items()]
    random = generator(0, "clinicians")
    change = lambda state, action: action + 0.1 * state[..., :1] * (action > 0 if task.positive else 1)
    shifted = ShiftedDoses(task.schema, change)
    acting = lambda state: shifted.shifted(state, task.clinicians(state, random))
    return [*by_rule, Case("everybody 0.1 more by x", shifted, acting)]


def rule_of(task: LinearDose, more: float, shift: float) -> Rule:
    """A deterministic policy of the task."""
    return lambda state: task.rule(state, more, shift)


def true_value(task: LinearDose, rule: Rule, seed: int) -> float:
    """Mean return of a policy."""
    return float(returns(lambda state, theta: rule(state), task, 1, TRUTH, seed, task.horizon).mean())


def rows_of(task: LinearDose, subjects: int, seeds: int, draws: int) -> list[Row]:
    """A row for every policy and seed."""
    random = generator(1, "clinicians")
    logged = true_value(task, lambda state: task.clinicians(state, random), 11)
    rows: list[Row] = []
    settings = OPESettings(baselines=False, draws=draws, critic_draws=max(10, draws // 5))
    for case in cases(task):
        truth = true_value(task, case.rule, 11)
        for seed in range(seeds):
            log = simulate(task, task.clinicians, subjects, task.horizon, derive(seed, "log"))
            start = time.perf_counter()
            found = evaluate(log, case.policy, settings, held_out=True, seed=seed)
            row = result_row(found, truth, logged)
            world = "positive" if task.positive else "normal"
            log_of = {"world": world, "steps": task.horizon, "subjects": subjects, "policy": case.name}
            rows.append({**log_of, **row, "seed": seed, "seconds": round(time.perf_counter() - start, 2)})
    return rows


def result_row(found: Evaluation, truth: float, logged: float) -> Row:
    """Numbers of one evaluation beside the truth."""
    value, difference = found.value, found.difference
    assert difference is not None
    assert found.diagnostics is not None
    return {
        "estimate": value.value,
        "low": value.low,
        "high": value.high,
        "truth": truth,
        "covered": covers(value, truth),
        "difference_covered": covers(difference, truth - logged),
        "true_difference": truth - logged,
        "effective": found.diagnostics.effective,
        "unsupported": found.diagnostics.unsupported,
        "verdict": found.verdict,
        "against_practice": found.against_practice,
    }


def covers(estimate: Estimate, truth: float) -> int:
    """Whether the interval holds the truth."""
    return int(not estimate.excludes(truth))


def summary(rows: Sequence[Row]) -> list[Row]:
    """Coverage by world, length and subjects, and how right comparisons with practice are."""
    table: list[Row] = []
    keys = list(dict.fromkeys((row["world"], row["steps"], row["subjects"]) for row in rows))
    for world, steps, subjects in keys:
        part = [row for row in rows if (row["world"], row["steps"], row["subjects"]) == (world, steps, subjects)]
        near = [row for row in part if row["policy"] in NEAR]
        better = [row for row in part if row["against_practice"] == "better than practice"]
        worse = [row for row in part if row["against_practice"] in ("worse than practice", "dangerous")]
        is_better = [row for row in near if number(row["true_difference"]) > 0]
        table.append(
            {
                "world": world,
                "steps": steps,
                "subjects": subjects,
                "coverage near practice": share([number(row["covered"]) for row in near]),
                "of the difference": share([number(row["difference_covered"]) for row in near]),
                "better: given where true": share([float(row in better) for row in is_better]),
                "better: right": share([float(number(row["true_difference"]) > 0) for row in better]),
                "worse: right": share([float(number(row["true_difference"]) < 0) for row in worse]),
                "given better/worse": f"{len(better)}/{len(worse)}",
                "of": len(part),
            }
        )
    return table


def number(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)


def share(values: Sequence[float]) -> str:
    """A mean as a share; a dash where there are no values."""
    return f"{sum(values) / len(values):.0%}" if values else "–"


def main(
    subjects: tuple[int, ...] = (30, 100, 300),
    steps: tuple[int, ...] = (10, 50),
    seeds: int = 20,
    draws: int = 300,
    out: Path = Path("results/continuous_ope.csv"),
) -> None:
    """Evaluate every policy on every log.

    Args:
        subjects: Subjects of a log.
        steps: Steps of an episode.
        seeds: Logs of every size.
        draws: Bootstrap resamples.
        out: Table of all evaluations.
    """
    torch.set_num_threads(1)
    rows: list[Row] = []
    for positive in (False, True):
        for length in steps:
            for count in subjects:
                rows += rows_of(LinearDose(horizon=length, positive=positive), count, seeds, draws)
                write_csv(rows, out)
    table = summary(rows)
    print(markdown_table(table))
    print(json.dumps(table))


if __name__ == "__main__":
    tyro.cli(main)
