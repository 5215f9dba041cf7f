"""Counterfactual error on the synthetic sepsis cohort: `python benchmarks/sepsis_counterfactuals.py --out results`.

SCMs are fitted on the training patients of a cohort of `--patients` (a tenth of the paper's) and asked, in the rows of
the patients held out, what another of the 25 actions would have led to; the task knows. 0 is right and 1 is as good as
copying what happened. The models:

    default            `DensitySCM`
    nothing declared   the same without the declaration of computed columns (SOFA, SIRS, shock index, PaO2, total urine)
    random effects     `RandomEffects` as in the experiment, for which the ventilator is a number

The checks' verdict stands beside each. Writes sepsis-counterfactuals-PATIENTS.csv, .md and .settings.json; the last
line is JSON. `floor` is what the true equations reach that take every patient's response for the mean one: nobody who
takes patients for alike does better.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

import counterpoint as cp
from counterpoint.core.artifacts import encode, write_text
from counterpoint.core.provenance import provenance
from counterpoint.core.seeding import generator
from counterpoint.core.tables import markdown_table, write_csv, write_json
from counterpoint.models.base import Recipe
from counterpoint.models.scm.base import StructuralCausalModel
from counterpoint.sources.mimic.columns import CTRL46, PLACE
from reproduction.measures.counterfactual_error import (
    CounterfactualQueries,
    questions,
)
from reproduction.sepsis_arms import EFFECTS, changes_of
from reproduction.sepsis_cohort import with_numbers
from reproduction.tasks.sepsis import (
    SyntheticSepsis,
    with_derived,
)
from reproduction.tasks.sepsis_columns import (
    constants,
    measured,
    standardised,
)
from reproduction.tasks.synthetic_cohort import SyntheticCohort


@dataclass(frozen=True)
class Arm:
    """A recipe, and how rows are prepared for it."""

    recipe: Recipe[StructuralCausalModel]
    rows: Callable[[cp.Transitions], cp.Transitions] = lambda rows: rows


def nothing_declared(rows: cp.Transitions) -> cp.Transitions:
    known = replace(rows.schema.knowledge, computed=())
    return replace(rows, schema=replace(rows.schema, knowledge=known))


ARMS = {
    "default": Arm(cp.DensitySCM()),
    "nothing declared": Arm(cp.DensitySCM(), nothing_declared),
    "random effects": Arm(EFFECTS, with_numbers),
}


def floor(asked: CounterfactualQueries) -> float:
    """The error of the true equations with the mean response, which know all but who the patient is."""
    rows, alike = asked.rows, SyntheticSepsis()
    before, after = standardised(rows.state), standardised(rows.next_state)
    moved = after + alike.treatment(before, asked.action) - alike.treatment(before, rows.action)
    answer = rows.next_state.clone()
    answer[:, constants(answer.device).places] = measured(moved)
    answer[:, PLACE["output_total"]] = rows.state[:, PLACE["output_total"]]
    return asked.yardstick.error(with_derived(answer), asked.truth)


def tried(name: str, arm: Arm, training: cp.Transitions, asked: CounterfactualQueries, device: str) -> dict[str, Any]:
    """Errors, verdict and time of one model."""
    start_time, shown, rows = time.process_time(), arm.rows(training), arm.rows(asked.rows)
    recipe = arm.recipe
    if isinstance(recipe, cp.RandomEffects):
        recipe = replace(recipe, changes=changes_of(shown))
    model = recipe.fit(shown, device=device).to("cpu")
    seconds = time.process_time() - start_time
    answer = model.imagine(rows, asked.action[:, None], generator(0, "imagine"), model.subjects(rows))[:, 0]
    yard = asked.yardstick
    verdict = cp.check_scm(model, rows, theta=model.subjects(rows))
    columns = dict(zip(CTRL46, yard.columns(answer, asked.truth).tolist(), strict=True))
    return {
        "model": name, "error": yard.error(answer, asked.truth), "trust": verdict.trust,
        "processor_seconds": seconds, "rows": len(training.with_next()),
        "failed": "; ".join(finding.name for finding in verdict.findings if not finding.passed),
        **{column: columns[column] for column, moved in zip(CTRL46, yard.moved.tolist(), strict=True) if moved},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--patients", type=int, default=1566)
    parser.add_argument("--models", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cohort = SyntheticCohort(patients=options.patients)
    training, held_out = cohort.log().split(cohort.held_out, cohort.seed)
    asked = questions(cohort.task, held_out.with_next())
    found = []
    for name in options.models:
        found.append(tried(name, ARMS[name], training, asked, options.device))
        keep(found, cohort, options, floor(asked))
    print(json.dumps({"patients": options.patients, "models": found, "floor": floor(asked), **provenance()}))


def keep(found: list[dict[str, Any]], cohort: SyntheticCohort, options: argparse.Namespace, lowest: float) -> None:
    """What is known so far, as files and on the screen."""
    name = f"sepsis-counterfactuals-{cohort.patients}"
    turned = [{"": name} | {row["model"]: _said(row[name]) for row in found} for name in found[0] if name != "model"]
    write_csv(found, options.out / f"{name}.csv")
    write_text(options.out / f"{name}.md", markdown_table(turned) + "\n")
    recipes = {row["model"]: encode(ARMS[row["model"]].recipe) for row in found}
    settings = {"cohort": asdict(cohort), "floor": lowest, "models": recipes, "made_with": provenance()}
    write_json(settings, options.out / f"{name}.settings.json")
    print(markdown_table(turned), flush=True)


def _said(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
