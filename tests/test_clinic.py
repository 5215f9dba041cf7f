"""The clinical benchmark: values are those of the world, the choice follows the verdicts, and the page counts cells."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
import torch

from counterpoint.core.errors import CounterpointError
from counterpoint.core.tables import read_csv
from counterpoint.ope.continuous import ShiftedDoses
from reproduction.clinic import EVALUATION_SEED, Clinic, choice, learn_and_deploy, quick, worlds
from reproduction.clinic_methods import CANDIDATES, DoseChange, Learned, Rule, methods, some
from reproduction.command import Reproduce
from reproduction.experiment import Context
from reproduction.pages.clinic import chosen_is_first, clinic_page, difference
from reproduction.worlds.base import World
from reproduction.worlds.epicare import EpiCare
from reproduction.worlds.infusion import Infusion

TINY = Clinic(
    {"infusion": Infusion(steps=6)}, (5,), 2, methods=some(("as logged", "nothing", "commonest")), name="clinic-quick"
)


def test_rows_hold_the_true_returns_of_new_subjects(tmp_path: Path) -> None:
    TINY.run(tmp_path)
    rows = read_csv(tmp_path / "clinic-quick.csv")
    assert list(rows[0]) == ["world", "subjects", "method", "seed", "value", "danger", "chosen"]
    world = Infusion(steps=6)
    logged = [row["value"] for row in rows if row["method"] == "as logged"]
    assert logged == [float(world.practice(world.evaluation_subjects, EVALUATION_SEED).returns.mean())] * 2
    nothing = next(row for row in rows if row["method"] == "nothing")
    deployed = world.value(world.nothing, world.evaluation_subjects, EVALUATION_SEED)
    assert (nothing["value"], nothing["danger"]) == (deployed.returns.mean(), deployed.danger.mean())
    estimates = read_csv(tmp_path / "clinic-evaluation-quick.csv")
    assert {row["policy"] for row in estimates} == {"commonest"}
    truths = {row["seed"]: row["value"] for row in rows if row["method"] == "commonest"}
    assert {row["seed"]: row["truth"] for row in estimates} == truths
    assert (tmp_path / "clinic-quick.png").exists()


@dataclass(frozen=True)
class Refusing(Rule):
    def learn(self, world: World, frame: pd.DataFrame, seed: int) -> Learned:
        raise CounterpointError("too few subjects; pass more")


def test_a_method_that_refuses_has_no_value_and_stops_nothing(tmp_path: Path) -> None:
    arms = {"practice": Rule("as logged"), "refusing": Refusing("nothing")}
    experiment = Clinic({"infusion": Infusion(steps=6)}, (5,), 2, methods=arms)
    context = Context("key", tmp_path)
    rows = [{**row, **cell.labels} for cell in experiment.cells() for row in learn_and_deploy(cell.recipe, context)]
    told = {(row["method"], row["value"] is None, row["refused"]) for row in rows}
    assert told == {("practice", False, ""), ("refusing", True, "too few subjects; pass more")}
    assert "| refusing | 0 | – | – |" in clinic_page(experiment.table(rows), [], experiment.command)


def test_the_choice_is_practice_unless_a_verdict_speaks_for_another() -> None:
    def told(method: str, low: float, verdict: str) -> dict[str, object]:
        return {"method": method, "low": low, "verdict": verdict}

    better, near = "better than practice", CANDIDATES[-1]
    assert choice([told("practice", 0, "with care"), told(near, 5, "cannot be judged")]) == "practice"
    assert choice([told("practice", 0, "with care"), told(near, 5, better), told("search", 6, better)]) == "search"
    assert choice([told("d3rlpy IQL", 9, better)]) == "practice"


def test_a_change_of_the_logged_doses_is_deployed_and_evaluated_as_itself() -> None:
    world = Infusion(steps=8)
    frame = world.log(6, 0)
    unchanged = DoseChange(1.0).learn(world, frame, 0)
    assert unchanged.deploy(world, 20, 1).returns.tolist() == world.practice(20, 1).returns.tolist()
    more = DoseChange(1.25).learn(world, frame, 0)
    assert more.rows is not None
    assert isinstance(more.evaluated, ShiftedDoses)
    shifted = more.evaluated.shifted(more.rows.state, more.rows.action)
    assert torch.allclose(shifted, (1.25 * more.rows.action).clamp(max=4.0))
    assert more.deploy(world, 20, 1).returns.tolist() != world.practice(20, 1).returns.tolist()
    assert not DoseChange(1.25).supports(EpiCare())


def _rows(method: str, values: tuple[float, ...], chosen: int = 0) -> list[dict[str, object]]:
    base = {"world": "w", "subjects": 30, "method": method, "danger": 0.0, "chosen": chosen}
    return [{**base, "seed": seed, "value": value} for seed, value in enumerate(values)]


def test_differences_are_paired_and_the_choice_is_first_unless_told_apart() -> None:
    rows = [*_rows("practice", (1.0, 5.0, 9.0), 1), *_rows("search", (2.0, 6.1, 10.0)), *_rows("textbook", (9, 9, 9.0))]
    gain = difference(rows, "search", "practice")
    assert gain is not None
    assert gain.estimate == pytest.approx(31 / 30)
    assert 0.8 < gain.low < gain.high < 1.3
    assert chosen_is_first(rows) is False
    assert chosen_is_first([*_rows("practice", (1.0, 5.0, 9.0), 1), *_rows("search", (2.0, 3.0, 10.0))]) is True
    page = clinic_page(rows, [], "python -m reproduction clinic")
    assert "| search | 1 | 1.00 | 0.00 |" in page
    assert "In 0 of 1 cells" in page


def test_the_command_chooses_worlds_sizes_and_methods() -> None:
    part = Reproduce("clinic", worlds=("epicare",), subjects=(40,), methods=("practice",), seeds=2, device="cpu").part(
        "clinic"
    )
    assert isinstance(part, Clinic)
    assert [(cell.labels["world"], cell.labels["subjects"]) for cell in part.cells()] == [("epicare", 40)] * 2
    whole = Clinic()
    supported = sum(method.supports(world) for world in worlds().values() for method in methods().values())
    assert len(whole.cells()) == 3 * 5 * supported
    assert not Rule("nothing").supports(EpiCare())
    assert {cell.name for cell in quick().cells()} <= set(methods())
    with pytest.raises(CounterpointError, match="no --subjects"):
        Reproduce("effects", subjects=(3,)).parts()
    with pytest.raises(CounterpointError, match="no --worlds"):
        Reproduce("tumour", worlds=("a",)).parts()
