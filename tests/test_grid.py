"""Cells are identified by what defines them, stacks by the grid alone; a run can be killed anywhere and go on."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from counterpoint.core.errors import CounterpointError
from counterpoint.core.seeding import derive
from counterpoint.core.tables import read_csv
from counterpoint.data.jobs import Job
from counterpoint.learners.base import PolicyCheckpoints, PolicyLearner
from counterpoint.learners.d3qn import D3QN
from counterpoint.nets.training import Monitor
from counterpoint.ope.model_based import true_return
from counterpoint.simulation.trials import trial_subset
from counterpoint.tasks import tumour
from counterpoint.tasks.base import Task
from counterpoint.tasks.cartpole import CartPole
from helpers.grid import PROTOCOL, TINY, TINY_CTRL_G, tiny_grid
from helpers.processes import process_of
from reproduction.ablations import REFERENCE, ablations, search_ablations
from reproduction.arms import CTRL_G, PAPER_NAMES, PILCO, ROLLOUTS, SEARCH, adversarial_arms
from reproduction.grid import Grid
from reproduction.logs import Behaviour, LogSource, logs, shared_logs
from reproduction.pages.paper import paper_returns_by_size
from reproduction.sd import SEARCH_MIRROR, WITHOUT_FAILURES, quick_sd, sd, sd_comparisons
from reproduction.summary import differences, levels, selection, write_summary

SHAPES = False


@dataclass(frozen=True)
class Noted(PolicyLearner):
    """Learns as `learner` does, and leaves a line in a file for every fit."""

    note: str
    learner: D3QN = TINY

    def fit_many(
        self, jobs: Sequence[Job], task: Task, monitor: Monitor = Monitor(), device: str = "cpu"
    ) -> list[PolicyCheckpoints]:
        with Path(self.note).open("a") as file:
            file.write(f"{len(jobs)}\n")
        return self.learner.fit_many(jobs, task, monitor, device)


@dataclass(frozen=True)
class Raising(PolicyLearner):
    """Cannot learn."""

    def fit_many(
        self, jobs: Sequence[Job], task: Task, monitor: Monitor = Monitor(), device: str = "cpu"
    ) -> list[PolicyCheckpoints]:
        raise CounterpointError("the loss is not finite")


def keys(grid: Grid) -> set[str]:
    return {cell.key for cell in grid.cells()}


def test_keys_are_stable_and_know_the_recipe_but_not_the_name():
    (key,) = keys(tiny_grid({"D3QN": TINY}, None))
    assert keys(tiny_grid({"another name": TINY}, None)) == {key}
    program = "from helpers.grid import TINY, tiny_grid; print(tiny_grid({'D3QN': TINY}, None).cells()[0].key)"
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": "7"}
    process = subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True
    )
    assert process.stdout.strip() == key, "another process identifies the cell by the same key"
    others = [
        tiny_grid({"D3QN": replace(TINY, tau=0.01)}, None),
        tiny_grid({"D3QN": replace(TINY, schedule=replace(TINY.schedule, steps=151))}, None),
        tiny_grid({"D3QN": TINY}, None, CartPole(noise_size=0.06)),
        tiny_grid({"D3QN": TINY}, None, behaviour="non-random"),
        tiny_grid({"D3QN": TINY}, None, behaviour="non-random", protocol=replace(PROTOCOL, random_action_share=0.1)),
        tiny_grid({"D3QN": TINY}, None, protocol=replace(PROTOCOL, evaluation_trials=4)),
        tiny_grid({"D3QN": TINY}, None, trials=(6,)),
        tiny_grid({"D3QN": TINY}, None, seeds=(2,)),
    ]
    other_keys = set.union(*(keys(grid) for grid in others))
    assert len(other_keys) == len(others)
    assert key not in other_keys


def test_two_tasks_that_differ_in_one_patient_are_two_cells():
    """The patients' numbers are in the key, each of them: a rounded or shortened print of a tensor would not do."""
    patients = tumour.population(2000, 0)
    all_keys = keys(tiny_grid({"D3QN": TINY}, None, tumour.Tumour(patients)))
    for field in patients._fields:
        for row in (0, 1000, 1999):
            values = getattr(patients, field).clone()
            values[row] = values[row].nextafter(torch.tensor(1.0))
            task = tumour.Tumour(patients._replace(**{field: values}))
            all_keys |= keys(tiny_grid({"D3QN": TINY}, None, task))
    assert len(all_keys) == 10
    assert keys(tiny_grid({"D3QN": TINY}, None, tumour.Tumour(tumour.population(2000, 0)))) < all_keys


def test_a_grid_runs_in_any_simulator(tmp_path: Path):
    """Tumours of seven patients; a policy learned apart has the same return."""
    task = tumour.Tumour(tumour.population(7, 0))
    grid = tiny_grid({"D3QN": TINY, "CTRL_g": TINY_CTRL_G}, None, task)
    rows = grid.run(tmp_path)
    assert len(rows) == 8
    log = logs(LogSource(task, "random", PROTOCOL), (1,))[1]
    policy = TINY.fit(trial_subset(log, 5), task, derive(1, "training"))
    by_hand = true_return(policy, task, PROTOCOL.evaluation_trials, PROTOCOL.evaluation_seed)
    (row,) = [row for row in rows if (row["method"], row["trials"], row["seed"]) == ("D3QN", 5, 1)]
    assert row["return_last"] == pytest.approx(float(by_hand.mean()), rel=1e-4)
    settings = json.loads((tmp_path / "tiny.settings.json").read_text())
    assert len(settings["arms"]["D3QN"]["task"]["response"]["radio"]["values"]) == 7


def stacks(grid: Grid) -> list[tuple[tuple[int, int], ...]]:
    return [cell.recipe.cells for cell in grid.cells()]


def test_stacks_cover_every_size_and_seed_once_and_arms_of_one_recipe_share_theirs():
    grid = tiny_grid({"a": TINY, "b": replace(TINY, tau=0.1), "also a": TINY}, 3)
    assert stacks(grid) == 3 * [((5, 0), (5, 1), (10, 0)), ((10, 1),)]
    assert [cell.name for cell in grid.cells()] == ["a", "a", "b", "b", "also a", "also a"]
    assert len(keys(grid)) == 4
    assert [len(stack) for stack in stacks(replace(grid, stack_size=None))] == [4, 4, 4]
    one_size = {name: replace(arm, one_size=True) for name, arm in grid.arms.items()}
    sizes = [{trials for trials, _ in stack} for stack in stacks(replace(grid, arms=one_size, stack_size=None))]
    assert sizes == 3 * [{5}, {10}]


def test_a_restart_fits_what_is_missing_and_nothing_else(tmp_path: Path):
    note = tmp_path / "fits"
    grid = tiny_grid({"noted": Noted(str(note)), "plain": TINY})
    first = grid.run(tmp_path)
    assert note.read_text() == "2\n2\n"
    assert grid.run(tmp_path) == first
    assert note.read_text() == "2\n2\n"
    (tmp_path / "tiny" / "cells" / f"{grid.cells()[1].key}.json").write_text('{"rows": [{')
    assert grid.run(tmp_path) == first
    assert note.read_text() == "2\n2\n2\n", "a damaged cell is missing"
    assert not list((tmp_path / "tiny" / "checkpoints").iterdir())


def test_files_of_a_run(tmp_path: Path):
    grid = tiny_grid({"a": TINY, "also a": TINY, "raising": Raising()}, comparisons=(("a", "also a"),))
    with pytest.raises(CounterpointError, match="2 of 6 cells of tiny failed"):
        grid.run(tmp_path)
    rows = read_csv(tmp_path / "tiny.csv")
    assert [(row["method"], row["trials"], row["seed"]) for row in rows] == [
        (method, trials, seed) for method in ("a", "also a") for trials in (5, 10) for seed in (0, 1)
    ]
    settings = json.loads((tmp_path / "tiny.settings.json").read_text())
    assert settings["arms"]["a"]["learner"]["tau"] == TINY.tau
    assert settings["protocol"]["evaluation_trials"] == 3
    failures = read_csv(tmp_path / "tiny.failures.csv")
    assert [row["name"] for row in failures] == ["raising", "raising"]
    assert all("the loss is not finite" in row["reason"] for row in failures)
    page = (tmp_path / "tiny.md").read_text()
    assert "a − also a" in page
    assert (tmp_path / "tiny-differences.png").stat().st_size > 1000
    title, table = grid.summary(rows)
    assert "interquartile" in title
    assert [(line["method"], line["trials"]) for line in table][:2] == [("a", 5), ("a", 10)]


def test_checkpoints_of_something_else_are_not_taken_up(tmp_path: Path):
    grid = tiny_grid({"a": TINY}, None)
    clean = grid.run(tmp_path / "clean")
    (cell,) = grid.cells()
    begun = tmp_path / "begun" / "tiny" / "checkpoints" / f"{cell.key}-cpu"
    other = [Job(log, 99) for log in logs(LogSource(CartPole(), "random", PROTOCOL), (5, 6, 7, 8)).values()]
    TINY.fit_many(other, CartPole(), Monitor(begun).stage("policy"))
    assert begun.exists()
    assert grid.run(tmp_path / "begun") == clean


@pytest.mark.parametrize("behaviour", ["random", "non-random"])
def test_logs_are_paired_and_nested_and_hide_the_noise(
    behaviour: Behaviour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("reproduction.logs.BEHAVIOUR_BLOCK", 2)
    monkeypatch.setattr("reproduction.behaviour.EPISODES", 2)
    monkeypatch.setattr("reproduction.behaviour.LEARNER", TINY)
    source = LogSource(CartPole(), behaviour, PROTOCOL)
    alone = logs(source, (1,))[1]
    together = logs(source, (0, 1))
    longer = logs(replace(source, protocol=replace(PROTOCOL, logged_trials=20)), (1,))[1]
    assert alone.fingerprint == together[1].fingerprint == trial_subset(longer, 10).fingerprint
    assert alone.fingerprint != together[0].fingerprint
    assert alone.noise.shape == (200, 0)
    read = [shared_logs(logs, source, seeds, tmp_path) for seeds in ((1,), (0, 1), (0, 1))]
    assert [len(tables) for tables in read] == [1, 2, 2]
    assert {tables[1].fingerprint for tables in read} == {alone.fingerprint}, "a log read from disk is the log"
    stored = list(tmp_path.rglob("*.safetensors"))
    assert len(stored) == (0 if behaviour == "random" else 2)


def _killable(folder: str) -> None:
    torch.set_num_threads(1)
    tiny_grid({"D3QN": TINY, "CTRL_g": TINY_CTRL_G}).run(Path(folder), save_seconds=0.02)


def test_killed_five_times_and_restarted_the_rows_are_the_same(tmp_path: Path):
    process_of(print).join()
    begun = time.monotonic()
    whole = process_of(_killable, str(tmp_path / "whole"))
    whole.join()
    longest = time.monotonic() - begun
    assert whole.exitcode == 0
    exits = []
    for _ in range(5):
        process = process_of(_killable, str(tmp_path / "killed"))
        process.join(random.uniform(0.05, 0.35) * longest)
        process.kill()
        process.join()
        exits.append(process.exitcode)
    assert -9 in exits, "not one kill came in time"
    process_of(_killable, str(tmp_path / "killed")).join()
    rows = [read_csv(tmp_path / name / "tiny.csv") for name in ("whole", "killed")]
    assert len(rows[0]) == 8
    assert rows[0] == rows[1]


def test_the_papers_grids():
    grid = sd(stack_size=20)
    sizes, small = len(grid.trials), sum(trials <= 100 for trials in grid.trials)
    assert len(grid.cells()) == 15 * sizes + small
    assert max(trials for cell in grid.cells() if cell.name == PILCO for trials, _ in cell.recipe.cells) == 100
    assert all(len({trials for trials, _ in stack}) == 1 for stack in stacks(grid))
    paper = {row["method"] for row in paper_returns_by_size()}
    beyond = {ROLLOUTS, SEARCH, SEARCH_MIRROR, PILCO, *adversarial_arms()}
    assert {PAPER_NAMES.get(name, name) for name in grid.arms} == paper | beyond
    assert [left for left, _ in grid.comparisons] == 15 * [SEARCH] + 14 * [CTRL_G]
    assert grid.comparisons == tuple(sd_comparisons(grid.arms))
    assert list(quick_sd(methods=("PETS", "D3QN")).arms) == ["D3QN", "PETS"]
    with pytest.raises(CounterpointError, match="no method 'DQN'; choose from D3QN, Base-D"):
        sd(methods=("DQN",))


def test_other_logs_have_the_papers_sizes_and_fewer_arms():
    grid = sd("non-random")
    paper = paper_returns_by_size()
    assert set(grid.trials) == {row["trials"] for row in paper}
    assert {PAPER_NAMES.get(name, name) for name in grid.arms} == {row["method"] for row in paper} | {ROLLOUTS, SEARCH}
    assert set(quick_sd("non-random").arms) == set(grid.arms) - {ROLLOUTS}
    assert set(WITHOUT_FAILURES) < set(quick_sd("non-random").arms)


def test_every_arm_is_evaluated_in_as_many_episodes():
    assert sd().protocol.evaluation_trials == sd("non-random").protocol.evaluation_trials == 50
    assert ablations().protocol.evaluation_trials == search_ablations().protocol.evaluation_trials == 50
    assert quick_sd().protocol.evaluation_trials == 10
    pets = sd(methods=["PETS"])
    assert {len(stack) for stack in stacks(pets)} == {20}, "of one size, which live about as long"


def test_logs_of_another_share_of_random_actions_have_files_of_their_own():
    assert sd("non-random").name == "sd-nonrandom"
    assert quick_sd("non-random", random_action_share=0.2).name == "sd-nonrandom-20-quick"
    assert sd("non-random", random_action_share=0.125).name == "sd-nonrandom-12.5"


def test_ablations_change_one_thing_at_a_time():
    grid = ablations(seeds=2)
    reference = grid.arms[REFERENCE]
    same = [name for name, arm in grid.arms.items() if arm == reference and name != REFERENCE]
    assert same == ["length: 3000 updates", "real share: 0.5", "noise reading: scaled, CTRL_g"]
    fresh = grid.arms["noise: fresh, on the same SCM"].learner
    assert replace(fresh, augmenter=reference.learner.augmenter) == reference.learner  # pyright: ignore
    assert ("noise reading: absolute, CTRL_g", "noise reading: absolute, D3QN") in grid.comparisons
    assert len(keys(grid)) == len(grid.arms) - len(same)


def fake_rows() -> list[dict[str, Any]]:
    scores = {"good": (10.0, 20.0, 30.0, 100.0), "bad": (8.0, 15.0, 31.0, 60.0)}
    return [
        {"method": name, "behaviour": "random", "trials": trials, "seed": seed, "return_selected": value + trials,
         "return_last": value, "seconds": 1.0}
        for name, values in scores.items() for trials in (50, 250) for seed, value in enumerate(values)
    ]  # fmt: skip


def test_summary_against_hand_numbers(tmp_path: Path):
    rows = fake_rows()
    table = levels(rows)
    assert [(row["method"], row["trials"], row["seeds"]) for row in table[:2]] == [("good", 50, 4), ("good", 250, 4)]
    assert table[0]["estimate"] == 75.0
    (at_50, at_250) = differences(rows, [("good", "bad")])
    assert at_50["estimate"] == at_250["estimate"] == pytest.approx((2 + 5 - 1 + 40) / 4)
    assert at_50["improves"].estimate == pytest.approx(9 / 16)
    assert [row["estimate"] for row in selection(rows)] == [50, 250, 50, 250]
    missing = [row for row in rows if (row["method"], row["trials"], row["seed"]) != ("bad", 50, 3)]
    assert differences(missing, [("good", "bad")])[0]["estimate"] == pytest.approx((2 + 5 - 1) / 3)
    page = write_summary("fake", rows, [("good", "bad")], tmp_path).read_text()
    assert "| good | 75.0 [" in page
    assert "good − bad" in page
    assert (tmp_path / "fake-differences.png").stat().st_size > 1000
