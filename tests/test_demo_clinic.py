"""The clinical part of the demo: its simulator, the table that it writes, and true values beside the estimates."""

from pathlib import Path

import pandas as pd
import pytest
import torch

from counterpoint.cli import demo_clinic
from counterpoint.cli.demo import Demo
from counterpoint.core.errors import CounterpointError
from counterpoint.core.seeding import derive
from counterpoint.nets import training
from counterpoint.policies.near_practice import NearPracticePolicy
from counterpoint.run import Run
from counterpoint.simulation.trials import simulate
from counterpoint.tasks.blood_pressure import KEPT, BloodPressure, PressureResponse, clinicians, population

SHAPES = False
PATIENTS, STEPS = 26, 10


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """The demo's clinical part, with networks that are hardly trained."""
    demo = Demo(run=tmp_path_factory.mktemp("demo"), patients=PATIENTS, length=0.1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training._Run, "finished", property(lambda run: run.progress.step >= 5))
        patch.setattr(demo_clinic, "TRUE_TRIALS", 20)
        patch.setattr(demo_clinic, "DRAWS", 20)
        patch.setattr(demo_clinic, "STEPS", STEPS)
        demo_clinic.run_clinic(demo)
    return demo


def test_a_step_by_hand() -> None:
    task = BloodPressure(PressureResponse(torch.tensor(120.0), torch.tensor(8.0)))
    after = task.transition(torch.tensor([110.0, 2.0, 80.0, 1.0]), torch.tensor([1.5]), torch.tensor([-1.0, 1.3]))
    pain, on_board = 0.8 * 2 + 2 * 0.5, KEPT * 2.5
    pressure = 110 + 0.3 * (120 + 3 * pain - 8 * on_board * 70 / 80 - 110) - 3
    torch.testing.assert_close(after, torch.tensor([pressure, pain, 80.0, on_board]))
    assert pytest.approx(0.5) == KEPT**4
    reached = torch.tensor([[60.0, 0, 80, 0], [97.0, 0, 80, 0]])
    reward = task.reward(after.expand(2, -1), torch.tensor([1.5]).expand(2, -1), reached)
    torch.testing.assert_close(reward, torch.tensor([-5.0, -0.7]))


def test_clinicians_ignore_all_but_the_pressure() -> None:
    state = torch.tensor([[110.0, 0.0, 50.0, 0.0], [110.0, 5.0, 120.0, 6.0], [89.0, 0.0, 50.0, 0.0]]).repeat(4000, 1)
    dose = clinicians(state, torch.Generator().manual_seed(0)).view(4000, 3)
    assert (dose[:, 2] == 0).all()
    assert (dose[:, 0] == 0).float().mean() == pytest.approx(0.25, abs=0.03)
    assert dose[:, 0].median() == pytest.approx(float(dose[:, 1].median()), rel=0.1)


def test_the_declared_roles_are_those_of_the_simulator(demo: Demo) -> None:
    """The run's schema, made of the flags and the CSV file, holds the facts that the simulator is written with."""
    declared, known = Run(demo.run / "clinic").data.schema, BloodPressure().schema
    assert declared.state_names == known.state_names
    assert (declared.knowledge.exogenous, declared.knowledge.signs, declared.knowledge.per) == (
        known.knowledge.exogenous, known.knowledge.signs, known.knowledge.per
    )  # fmt: skip
    (recursion,), (true,) = declared.knowledge.recursions, known.knowledge.recursions
    assert recursion.column == true.column
    assert dict(recursion.weights) == pytest.approx(dict(true.weights))
    assert [column.static for column in declared.states] == [column.static for column in known.states]


def test_rewards_and_doses_on_board_are_the_simulators_up_to_rounding(demo: Demo) -> None:
    rows = Run(demo.run / "clinic").data
    true = demo_clinic._records(PATIENTS, STEPS, derive(demo.seed, "records"))
    true = true[true.step < STEPS - 1]
    assert len(rows) == len(true)
    torch.testing.assert_close(rows.state, true.state, rtol=0, atol=0.06)
    off = (rows.reward - true.reward).abs() > 0.02
    assert off.float().mean() < 0.01  # A pressure near the limit of danger is rounded across it.


def test_the_truth_stands_beside_the_estimates(demo: Demo) -> None:
    folder = demo.run / "clinic"
    table, evaluation = pd.read_csv(folder / "truth.csv"), Run(folder).evaluation
    logged, practice, nothing, near = table.to_dict("records")
    assert logged["estimate"] == pytest.approx(evaluation.logged.value)
    assert near["low"] == pytest.approx(evaluation.value.low)
    assert practice["policy"].startswith("practice")
    policy = Run(folder).policy
    assert isinstance(policy, NearPracticePolicy)
    task = BloodPressure(population(20, derive(demo.seed, "true patients")))
    rows = simulate(task, policy, 20, STEPS - 1, derive(demo.seed, "truth"))
    assert near["truth"] == pytest.approx(float(rows.reward.sum()) / 20, rel=1e-4)
    assert nothing["truth"] < logged["truth"] - 3


def test_both_new_patients_have_their_line_and_no_decided_dose(demo: Demo) -> None:
    folder = demo.run / "clinic"
    assert pd.read_csv(folder / "recommendations.csv")["subject"].tolist() == ["P001", "P002"]
    new = pd.read_csv(folder / "new_patients.csv")
    assert (
        new.groupby("patient")["dose"].apply(lambda dose: dose.isna().tolist()).tolist()
        == [[False] * (demo_clinic.NEW_STEPS - 1) + [True]] * 2
    )
    assert (folder / "report.html").exists()


def test_a_few_patients_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CounterpointError, match="3 patients are too few"):
        Demo(run=tmp_path, patients=3).execute()
