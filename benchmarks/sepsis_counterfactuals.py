"""Counterfactual error on the synthetic sepsis cohort: `python benchmarks/sepsis_counterfactuals.py --out results`.

SCMs are fitted on the training patients of a cohort of `--patients` (a tenth of the paper's) and asked, in the rows of
the patients held out, what another of the 25 actions would have led to; the task knows. 0 is right and 1 is as good as
copying what happened. The models:

    default          `DensitySCM` on the table as it is
    random effects   `RandomEffects`, for which the ventilator is a number
    told             the default told what is known: amounts by their logarithm, doses by their level, and what other
                     columns determine (SOFA, SIRS, shock index, PaO2, total urine) computed from the answer

The checks' verdict stands beside each. Writes sepsis-counterfactuals.csv, .md and .settings.json.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

import counterpoint as cp
from counterpoint.artifacts import encode, write_text
from counterpoint.clinic.synthetic import SyntheticCohort
from counterpoint.data.schema import Schema
from counterpoint.data.spaces import Discrete
from counterpoint.evaluation.counterfactual_error import Questions, questions
from counterpoint.model import ModelRecipe
from counterpoint.report.results import markdown_table, provenance, write_csv, write_json
from counterpoint.seeding import generator
from counterpoint.tasks.sepsis import ACTIONS, SCHEMA, with_derived
from counterpoint.tasks.sepsis_columns import COLUMNS, PLACE, TABLE

COMPUTED = ("SOFA", "SIRS", "Shock_Index", "paO2", "output_total")
AMOUNTS = [PLACE[row.name] for row in TABLE if row.link == "log"]
Answer = Float[Tensor, "n 46"]


@dataclass(frozen=True)
class Arm:
    """A recipe, how it is shown rows and actions, and what is made of its answers."""

    recipe: ModelRecipe
    rows: Callable[[cp.Transitions], cp.Transitions] = lambda rows: rows
    action: Callable[[Tensor], Tensor] = lambda action: action
    answer: Callable[[Answer, cp.Transitions], Answer] = lambda answer, rows: answer


def ventilator_as_number(rows: cp.Transitions) -> cp.Transitions:
    states = tuple(replace(column, levels=()) if column.name == "mechvent" else column for column in rows.schema.states)
    return replace(rows, schema=replace(rows.schema, states=states))


def levels(action: Float[Tensor, "n 2"]) -> Float[Tensor, "n 8"]:
    """One column for each level of each drug but none."""
    code, unit = ACTIONS.index(action), torch.eye(5)[:, 1:]
    return torch.cat([unit[code // 5], unit[code % 5]], 1)


TOLD = Schema(
    tuple(replace(column, static=column.static or column.name in COMPUTED) for column in SCHEMA.states),
    Discrete(tuple(map(tuple, levels(ACTIONS.table()).tolist()))),
    tuple(f"{drug}_{level}" for drug in ("fluid", "vasopressor") for level in range(1, 5)),
)
"""The table with levels in place of doses; computed columns are seen and not foretold."""


def logged(rows: cp.Transitions) -> cp.Transitions:
    state, after = (_amounts(table, torch.log) for table in (rows.state, rows.next_state))
    return replace(rows, state=state, next_state=after, action=levels(rows.action), schema=TOLD)


def whole(answer: Answer, rows: cp.Transitions) -> Answer:
    """The answer in the table's units, with what its columns determine."""
    after = SCHEMA.knowledge.hold(_amounts(answer, torch.exp), COLUMNS)
    after[:, PLACE["output_total"]] = rows.state[:, PLACE["output_total"]]
    return with_derived(after)


def _amounts(state: Answer, link: Callable[[Tensor], Tensor]) -> Answer:
    state = state.clone()
    state[:, AMOUNTS] = link(state[:, AMOUNTS])
    return state


ARMS = {
    "default": Arm(cp.DensitySCM()),
    "random effects": Arm(cp.RandomEffects(), ventilator_as_number),
    "told": Arm(cp.DensitySCM(), logged, levels, whole),
}


def tried(name: str, arm: Arm, training: cp.Transitions, asked: Questions) -> dict[str, Any]:
    """Errors, verdict and time of one model."""
    begun, rows = time.process_time(), arm.rows(asked.rows)
    model = arm.recipe.fit(arm.rows(training))
    seconds = time.process_time() - begun
    action = arm.action(asked.action)[:, None]
    after = model.imagine(rows, action, generator(0, "imagine"), model.subjects(rows))[:, 0]
    answer, yard = arm.answer(after, asked.rows), asked.yardstick
    verdict = cp.check(model, rows, theta=model.subjects(rows))
    columns = dict(zip(COLUMNS, yard.columns(answer, asked.truth).tolist(), strict=True))
    return {
        "model": name, "error": yard.error(answer, asked.truth), "trust": verdict.trust,
        "processor_seconds": seconds, "rows": len(training.with_next()),
        "failed": "; ".join(finding.name for finding in verdict.findings if not finding.passed),
        **{column: columns[column] for column, moved in zip(COLUMNS, yard.moved.tolist(), strict=True) if moved},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--patients", type=int, default=1566)
    parser.add_argument("--models", nargs="+", choices=ARMS, default=list(ARMS))
    told = parser.parse_args()
    torch.set_num_threads(1)
    cohort = SyntheticCohort(patients=told.patients)
    training, held_out = cohort.log().split(cohort.held_out, cohort.seed)
    asked = questions(cohort.task, held_out.with_next())
    found = []
    for name in told.models:
        found.append(tried(name, ARMS[name], training, asked))
        keep(found, cohort, told.out)


def keep(found: list[dict[str, Any]], cohort: SyntheticCohort, out: Path) -> None:
    """What is known so far, as files and on the screen."""
    turned = [{"": name} | {row["model"]: _said(row[name]) for row in found} for name in found[0] if name != "model"]
    write_csv(found, out / "sepsis-counterfactuals.csv")
    write_text(out / "sepsis-counterfactuals.md", markdown_table(turned) + "\n")
    recipes = {row["model"]: encode(ARMS[row["model"]].recipe) for row in found}
    settings = {"cohort": asdict(cohort), "models": recipes, "made_with": provenance()}
    write_json(settings, out / "sepsis-counterfactuals.settings.json")
    print(markdown_table(turned), flush=True)


def _said(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
