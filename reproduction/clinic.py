"""The clinical benchmark: methods learn from a log of a world with hidden states, and are deployed in it.

A row of `clinic.csv` is (world, subjects, method, seed, value, danger, chosen): the true mean return of an episode and
the share of its steps in danger, both over new subjects who are the same for every method. `chosen` is 1 for the method
that is chosen without the truth: that of the highest lower bound among those that off-policy evaluation calls better
than practice, else near practice, which `counterpoint train` takes by default. A row of `clinic-evaluation.csv` is an
estimate of one policy's return from the log that it was learned from, or of a fixed change of the logged doses, beside
the truth.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from counterpoint.core.artifacts import encode, write_text
from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.seeding import derive
from counterpoint.core.settings import Count, Positive, Widths, check_settings
from counterpoint.core.tables import write_csv
from counterpoint.ope.evaluation import OPESettings, evaluate
from reproduction.clinic_methods import BETTER, CANDIDATES, DEFAULT, PRACTICE, QUICK, Learned, Method, methods, some
from reproduction.experiment import Cell, Context, Experiment, Rows
from reproduction.pages.clinic import COLUMNS, EVALUATION, clinic_figure, clinic_page
from reproduction.pages.tables import group_by
from reproduction.worlds.ahn_chemo import AhnChemo
from reproduction.worlds.base import World
from reproduction.worlds.epicare import EpiCare
from reproduction.worlds.infusion import Infusion
from reproduction.worlds.oberst_sepsis import OberstSepsis
from reproduction.worlds.pharmacokinetic import Pharmacokinetic

EVALUATION_SEED = 2**20
"""Of the subjects in whom policies are deployed; no log has this seed."""
REFUSED = "cannot be judged"


def worlds() -> dict[str, World]:
    """Return every world by its name in the table."""
    return {world.name: world for world in (Pharmacokinetic(), Infusion(), EpiCare(), OberstSepsis(), AhnChemo())}


@dataclass(frozen=True)
class ClinicRecipe:
    """One method, learned from one log of one world."""

    world: World
    subjects: int
    seed: int
    method: Method
    ope: OPESettings


@dataclass(frozen=True)
class Clinic(Experiment):
    """Every method in every world, from logs of several sizes."""

    worlds: Mapping[str, World] = field(default_factory=worlds)
    subjects: Widths = (30, 100, 300)
    """Subjects of the logs."""
    seeds: Positive = 5
    """Logs of every world and size."""
    first_seed: Count = 0
    methods: Mapping[str, Method] = field(default_factory=methods)
    """Methods by their names in the table."""
    ope: OPESettings = OPESettings(baselines=False, alternative_behaviours=(), draws=400, critic_draws=50)
    """How policies are evaluated from the log."""
    name: str = "clinic"

    columns = COLUMNS

    def __post_init__(self) -> None:
        check_settings(self)
        require(bool(self.cells()), "there is nothing to run; name worlds, numbers of subjects and methods")

    def cells(self) -> list[Cell]:
        cells = []
        seeds = range(self.first_seed, self.first_seed + self.seeds)
        for (world_name, world), subjects, seed in product(self.worlds.items(), self.subjects, seeds):
            for name, method in self.methods.items():
                if method.supports(world):
                    recipe = ClinicRecipe(world, subjects, seed, method, self.ope)
                    labels = {"world": world_name, "subjects": subjects, "seed": seed, "method": name}
                    cells.append(Cell(learn_and_deploy, recipe, name, labels))
        return cells

    def settings(self) -> dict[str, Any]:
        return {**encode(self), "candidates": list(CANDIDATES)}

    def table(self, rows: Rows) -> Rows:
        """Return the true values, with the choice among the methods of this package."""
        values = [row for row in rows if "value" in row]
        chosen: dict[tuple[Any, ...], str] = {}
        for log, part in group_by(rows, "world", "subjects", "seed").items():
            learned = {row["method"] for row in part}
            chosen[log] = choice([row for row in part if row.get("recommended")], learned)
        return [
            {**row, "chosen": int(row["method"] == chosen[row["world"], row["subjects"], row["seed"]])}
            for row in values
        ]

    def page(self, rows: Rows, out: Path) -> None:
        table, estimates = self.table(rows), [{**row, "policy": row["method"]} for row in rows if "estimator" in row]
        write_csv(estimates, out / f"{_evaluation_name(self.name)}.csv", EVALUATION)
        write_text(out / f"{self.name}.md", clinic_page(table, estimates, self.command))
        clinic_figure(table, out / f"{self.name}.png")


def _evaluation_name(name: str) -> str:
    return name.replace("clinic", "clinic-evaluation", 1)


def quick() -> Clinic:
    """Short episodes of two worlds and EpiCare, few subjects, and the methods that take seconds."""
    small = {"pharmacokinetic": Pharmacokinetic(days=1), "infusion": Infusion(steps=30), "epicare": EpiCare()}
    ope = OPESettings(baselines=False, alternative_behaviours=(), draws=100, critic_draws=10)
    return Clinic(small, (30,), 2, methods=some(QUICK), ope=ope, name="clinic-quick")


def choice(recommended: Sequence[Mapping[str, Any]], learned: Collection[str] = ()) -> str:
    """Return the method that recommended estimates speak for, each of the policy of one method."""
    better = [row for row in recommended if row["method"] in CANDIDATES and row["verdict"] == BETTER]
    if better:
        return max(better, key=lambda row: row["low"])["method"]
    return DEFAULT if DEFAULT in learned else PRACTICE


def learn_and_deploy(recipe: ClinicRecipe, context: Context) -> Rows:
    """Return the true value, and the estimates of it from the log; a value is absent where the method refuses."""
    world = recipe.world
    frame = world.log(recipe.subjects, derive(recipe.seed, "log"))
    try:
        learned = recipe.method.learn(world, frame, derive(recipe.seed, "training"))
    except CounterpointError as refusal:
        return [{"value": None, "danger": None, "refused": str(refusal)}]
    context.report("deployment", 0, 1)
    truth = learned.deploy(world, world.evaluation_subjects, EVALUATION_SEED)
    value = float(truth.returns.mean())
    rows: Rows = [{"value": value, "danger": float(truth.danger.mean()), "refused": ""}]
    return rows if learned.rows is None else rows + _estimates(learned, value, recipe)


def _estimates(learned: Learned, truth: float, recipe: ClinicRecipe) -> Rows:
    """Return a row for every estimate of the policy's return."""
    assert learned.rows is not None
    assert learned.evaluated is not None
    try:
        evaluation = evaluate(learned.rows, learned.evaluated, recipe.ope, seed=derive(recipe.seed, "evaluation"))
    except CounterpointError:
        absent = {"estimator": "none", "low": None, "high": None, "recommended": True}
        return [{**absent, "truth": truth, "verdict": REFUSED}]
    verdict = evaluation.against_practice or evaluation.verdict
    return [
        {"estimator": estimate.name, "low": estimate.low, "high": estimate.high, "truth": truth,
         "verdict": verdict, "recommended": estimate.name == evaluation.recommended}
        for estimate in evaluation.estimates
    ]  # fmt: skip
