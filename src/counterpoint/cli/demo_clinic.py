"""The clinical part of `counterpoint demo`: the commands for one's own table, on records of a simulator.

The commands see a CSV file and the roles of its columns. The simulator's equations are used twice: to write the
records, and at the end to compute the true mean returns that stand beside the estimates.
"""

import shlex
from pathlib import Path
from typing import Any

from counterpoint.cli import main
from counterpoint.cli.console import say, show
from counterpoint.cli.demo import Demo
from counterpoint.cli.mirror import build
from counterpoint.core.seeding import derive
from counterpoint.core.tables import write_csv
from counterpoint.data.shapes import State
from counterpoint.data.transitions import Transitions
from counterpoint.ope.result import Estimate, Evaluation
from counterpoint.policies.near_practice import NearPracticePolicy
from counterpoint.run import Run
from counterpoint.simulation.trials import BehaviourPolicy, simulate
from counterpoint.tasks.blood_pressure import LOW, TARGET, BloodPressure, clinicians, population

STEPS = 24
"""Rows of a record: six hours."""
NEW_STEPS = 9
"""Rows of a new patient, who has been treated for two hours."""
TRUE_TRIALS = 500
"""Other patients of the same population in whom true returns are computed."""
DRAWS = 300
"""Bootstrap resamples of the evaluation."""
NEAR = 15
"""Distance from the target in mmHg that counts as near."""
COLUMNS = (
    "--subject", "patient", "--time", "hour", "--state", "pressure", "pain", "weight", "--action", "dose",
    f"--reward=-abs(next pressure - {TARGET:g})/10 - 2*(next pressure < {LOW:g})",
    "--exogenous", "pain", "--on-board", "dose:1", "--sign", "dose:pressure=-", "--per", "dose:weight",
    "--last", "truncate", "--held-out", "0.4",
)  # fmt: skip
"""What a user knows of the table: pain is not changed by the drug, half of a dose is gone after an hour, more of it
never raises the pressure, and it acts per kilogram."""


def run_clinic(demo: Demo) -> None:
    """Write records, run the commands from `fit` to `recommend`, and compare estimates with the truth."""
    folder = demo.run / "clinic"
    records, new = folder / "records.csv", folder / "new_patients.csv"
    rows = _records(demo.patients, STEPS, derive(demo.seed, "records"))
    write_csv(_table(rows), records)
    write_csv(_table(_records(2, NEW_STEPS, derive(demo.seed, "new patients")), acted=False), new)
    say(
        f"\nA clinical table: {demo.patients} patients with high blood pressure after surgery, a dose every 15 minutes,"
        f" in {records}"
    )
    for words in _commands(demo, folder, records, new):
        say(f"\n$ counterpoint {shlex.join(words)}")
        build(main.parse(words)).execute()
    _compare(demo, folder)


def _records(patients: int, steps: int, seed: int) -> Transitions:
    task = BloodPressure(population(patients, derive(seed, "patients")))
    return simulate(task, clinicians, patients, steps, seed)


def _table(rows: Transitions, acted: bool = True) -> list[dict[str, Any]]:
    """The records as a hospital would have them; a new patient's last dose is not decided yet."""
    table = []
    last = rows.step.max()
    states = (rows.state[:, rows.state_names.index(name)].tolist() for name in ("pressure", "pain", "weight"))
    columns = zip(rows.subject.tolist(), rows.step.tolist(), *states, rows.action[:, 0].tolist(), strict=True)
    for subject, step, pressure, pain, weight, dose in columns:
        measured = {"pressure": round(pressure, 1), "pain": round(pain, 1), "weight": round(weight, 1)}
        given = {"dose": round(dose, 2) if acted or step < last else ""}
        table.append({"patient": f"P{subject + 1:03d}", "hour": step / 4, **measured, **given})
    return table


def _commands(demo: Demo, folder: Path, records: Path, new: Path) -> list[list[str]]:
    """The commands, from a table to a recommendation, with a short search."""
    run = ["--run", str(folder)]
    common = ["--seed", str(demo.seed), "--device", demo.device]
    resume = ["--resume"] if demo.saving.resume else []
    rounds = str(max(round(10 * demo.length), 1))
    return [
        ["fit", *run, "--data", str(records), *COLUMNS, *common, *resume],
        ["check-scm", *run],
        ["train", *run, "--rounds", rounds, *common, *resume],
        ["evaluate", *run, "--draws", str(DRAWS)],
        ["report", *run],
        ["recommend", *run, "--data", str(new)],
    ]


def _compare(demo: Demo, folder: Path) -> None:
    """Print estimates from the log and true mean returns in other patients, policy by policy."""
    run = Run(folder)
    policy, evaluation = run.policy, run.evaluation
    assert isinstance(policy, NearPracticePolicy)

    def nothing(state: State, random: object) -> State:
        return state.new_zeros(len(state), 1)

    practice, untreated = (_baseline(evaluation, name) for name in ("practice", "nothing"))
    compared: dict[str, tuple[BehaviourPolicy, Estimate]] = {
        "the clinicians, as logged": (clinicians, evaluation.logged),
        practice.name: (policy.with_share(0), practice),
        untreated.name: (nothing, untreated),
        "near practice": (policy, evaluation.value),
    }
    numbers, shown = [], []
    for name, (acting, estimate) in compared.items():
        truth, near = _truth(acting, demo.seed)
        interval = {"estimate": estimate.value, "low": estimate.low, "high": estimate.high}
        numbers.append({"policy": name, **interval, "truth": truth, "near": near})
        words = {"policy": name, "estimate from the log": str(estimate), "truth": truth}
        shown.append({**words, f"within {NEAR} mmHg of the target": f"{near:.0%}"})
    write_csv(numbers, folder / "truth.csv")
    say("")
    show(shown, f"mean return of {STEPS - 1} steps: estimates, and the truth in {TRUE_TRIALS} other patients")
    say(f"the log alone says: {evaluation.verdict}. The truth is known because the records were simulated")
    say(f"the page about this run is {folder / 'report.html'}; the table in {folder / 'truth.csv'}")


def _baseline(evaluation: Evaluation, name: str) -> Estimate:
    return next(estimate for estimate in evaluation.baselines if estimate.name.startswith(name))


def _truth(policy: BehaviourPolicy, seed: int) -> tuple[float, float]:
    """True mean return of a policy, and the share of steps near the target; all policies meet the same noise."""
    task = BloodPressure(population(TRUE_TRIALS, derive(seed, "true patients")))
    rows = simulate(task, policy, TRUE_TRIALS, STEPS - 1, derive(seed, "truth"))
    near = (rows.next_state[:, 0] - TARGET).abs() <= NEAR
    return float(rows.reward.view(TRUE_TRIALS, -1).sum(1).mean()), float(near.float().mean())
