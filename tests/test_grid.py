"""Cells are known by what defines them, packs by the grid alone, and a run can be killed anywhere and go on."""

import json
import multiprocessing
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from counterpoint.core.errors import CounterpointError
from counterpoint.core.results import read_csv
from counterpoint.core.seeding import derive
from counterpoint.data.jobs import Job
from counterpoint.learners.d3qn import D3QN
from counterpoint.learners.methods import CTRL_G, PAPER_NAMES, PILCO, ROLLOUTS, SEARCH, adversarial_arms
from counterpoint.nets.training import Monitor
from counterpoint.ope.true_return import true_return
from counterpoint.policies.base import Learned, PolicyLearner
from counterpoint.simulation.trials import trial_subset
from counterpoint.tasks import tumour
from counterpoint.tasks.base import Task
from counterpoint.tasks.cartpole import CartPole
from helpers.grid import PROTOCOL, TINY, TINY_CTRL_G, tiny_grid
from reproduction.ablations import REFERENCE, ablation_comparisons, ablations
from reproduction.commands.parts import WITHOUT_FAILURES
from reproduction.commands.reproduce import Reproduce
from reproduction.executors import InProcess, Joblib, Ray
from reproduction.grid import Arm, Behaviour, code_version, logs
from reproduction.pages.paper import paper_returns_by_size
from reproduction.runner import read_cell, run
from reproduction.sd import SEARCH_MIRROR, quick_sd, sd, sd_comparisons
from reproduction.summary import differences, levels, selection, write_summary

SHAPES = False


@dataclass(frozen=True)
class Noted(PolicyLearner):
    """Learns as `learner` does, and leaves a line in a file for every fit."""

    note: str
    learner: D3QN = TINY

    def fit_many(
        self, jobs: Sequence[Job], task: Task, monitor: Monitor = Monitor(), device: str = "cpu"
    ) -> list[Learned]:
        with Path(self.note).open("a") as file:
            file.write(f"{len(jobs)}\n")
        return self.learner.fit_many(jobs, task, monitor, device)


@dataclass(frozen=True)
class Raising(PolicyLearner):
    """Cannot learn."""

    def fit_many(
        self, jobs: Sequence[Job], task: Task, monitor: Monitor = Monitor(), device: str = "cpu"
    ) -> list[Learned]:
        raise CounterpointError("the loss is not finite")


@pytest.fixture
def code(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Sets what the package says of its own code."""

    def become(version: str) -> None:
        for module in ("grid", "runner"):
            monkeypatch.setattr(f"reproduction.{module}.code_version", lambda: version)

    return become


def test_keys_are_stable_and_know_the_recipe_but_not_the_name():
    cell = tiny_grid({"D3QN": TINY}).cells()[0]
    assert cell.key == tiny_grid({"another name": TINY}, pack_size=3).cells()[0].key
    program = "from test_grid import TINY, tiny_grid; print(tiny_grid({'D3QN': TINY}).cells()[0].key)"
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": "7"}
    told = subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True)
    assert told.stdout.strip() == cell.key, "another process knows the cell by the same key"
    others = [
        tiny_grid({"D3QN": replace(TINY, tau=0.01)}),
        tiny_grid({"D3QN": replace(TINY, schedule=replace(TINY.schedule, steps=151))}),
        replace(tiny_grid({"D3QN": TINY}), arms={"D3QN": Arm(TINY, CartPole(noise_size=0.06))}),
        tiny_grid({"D3QN": TINY}, behaviour="non-random"),
        tiny_grid({"D3QN": TINY}, behaviour="non-random", protocol=replace(PROTOCOL, random_action_share=0.1)),
        tiny_grid({"D3QN": TINY}, protocol=replace(PROTOCOL, evaluation_trials=4)),
        tiny_grid({"D3QN": TINY}, trials=(6,)),
        tiny_grid({"D3QN": TINY}, seeds=(2,)),
    ]
    keys = {grid.cells()[0].key for grid in others}
    assert len(keys) == len(others)
    assert cell.key not in keys
    assert tiny_grid({"D3QN": TINY}, protocol=replace(PROTOCOL, random_action_share=0.1)).cells()[0].key == cell.key


def test_another_code_is_another_cell(code: Callable[[str], None], tmp_path: Path):
    assert re.fullmatch("[0-9a-f]{16}", code_version())
    assert code_version() == code_version()
    note = tmp_path / "fits"
    grid = lambda: tiny_grid({"noted": Noted(str(note))}, trials=(5,), seeds=(0,))
    code("before")
    before = grid().cells()[0].key
    first = run(grid(), tmp_path, InProcess())
    code("after")
    assert grid().cells()[0].key != before
    again = run(grid(), tmp_path, InProcess())
    assert note.read_text() == "1\n1\n", "what older code made is made again"
    assert again.rows == first.rows
    code("before")
    assert grid().cells()[0].key == before
    run(grid(), tmp_path, InProcess())
    assert note.read_text() == "1\n1\n"


def test_the_code_of_a_cell_is_what_makes_its_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A change in any file that a number may depend on is another version; one in what shows or starts it is not."""
    root = tmp_path / "counterpoint"
    matters = ("data/jobs.py", "nets/laws.py", "model.py", "tasks/tumour.py", "policies/d3qn.py")
    matters += ("experiments/sepsis_findings.py", "experiments/hd.py", "experiments/runner.py")
    shows = ("experiments/executors.py", "report/style.py", "commands/demo.py", "cli.py", "library.py")
    for name in (*matters, *shows):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("one\n")
    monkeypatch.setattr("reproduction.grid.__file__", str(root / "experiments" / "grid.py"))
    before = code_version.__wrapped__()
    for name in (*matters, *shows):
        (root / name).write_text("two\n")
        assert (code_version.__wrapped__() != before) == (name in matters), name
        (root / name).write_text("one\n")
        assert code_version.__wrapped__() == before


def test_two_tasks_that_differ_in_one_patient_are_two_cells():
    """The patients' numbers are in the key, each of them: a rounded or shortened print of a tensor would not do."""
    patients = tumour.population(2000, 0)
    keys = {tiny_grid({"D3QN": TINY}, task=tumour.Tumour(patients)).cells()[0].key}
    for field in patients._fields:
        for row in (0, 1000, 1999):
            values = getattr(patients, field).clone()
            values[row] = values[row].nextafter(torch.tensor(1.0))
            task = tumour.Tumour(patients._replace(**{field: values}))
            keys.add(tiny_grid({"D3QN": TINY}, task=task).cells()[0].key)
    assert len(keys) == 10
    again = tiny_grid({"D3QN": TINY}, task=tumour.Tumour(tumour.population(2000, 0))).cells()[0].key
    assert again in keys


def test_a_grid_runs_in_any_simulator(tmp_path: Path):
    """Tumours of seven patients, with logs from disk at a restart; a policy learned apart has the same return."""
    task = tumour.Tumour(tumour.population(7, 0))
    grid = tiny_grid({"D3QN": TINY, "CTRL_g": TINY_CTRL_G}, pack_size=0, task=task)
    ran = run(grid, tmp_path, InProcess())
    assert not ran.failures
    assert len(ran.rows) == 8
    log = logs(task, "random", (1,), PROTOCOL)[1]
    policy = TINY.fit(trial_subset(log, 5), task, derive(1, "training"))
    by_hand = true_return(policy, task, PROTOCOL.evaluation_trials, PROTOCOL.evaluation_seed)
    (row,) = [row for row in ran.rows if (row["method"], row["trials"], row["seed"]) == ("D3QN", 5, 1)]
    assert row["return_last"] == pytest.approx(float(by_hand.mean()), rel=1e-4)
    for path in (tmp_path / "tiny" / "cells").iterdir():
        path.unlink()
    again = run(grid, tmp_path, InProcess())
    assert again.rows == ran.rows, "a log read back from disk is the log"
    settings = json.loads((tmp_path / "tiny.settings.json").read_text())
    assert len(settings["arms"]["D3QN"]["task"]["response"]["radio"]["values"]) == 7


def test_packs_cover_every_cell_once_and_arms_of_one_recipe_share_theirs():
    grid = tiny_grid({"a": TINY, "b": replace(TINY, tau=0.1), "also a": TINY}, pack_size=3)
    packs = grid.packs()
    assert [len(pack.cells) for pack in packs] == [3, 1, 3, 1]
    assert [cell.method for pack in packs for cell in pack.cells] == 4 * ["a"] + 4 * ["b"]
    assert {cell.key for pack in packs for cell in pack.cells} == {cell.key for cell in grid.cells()}
    assert [len(pack.cells) for pack in replace(grid, pack_size=0).packs()] == [4, 4]
    dear = {name: replace(arm, one_size=True) for name, arm in grid.arms.items()}
    sizes = [{cell.trials for cell in pack.cells} for pack in replace(grid, arms=dear, pack_size=0).packs()]
    assert [len(own) for own in sizes] == [1, 1, 1, 1]


def test_a_restart_fits_what_is_missing_and_nothing_else(tmp_path: Path):
    note = tmp_path / "fits"
    grid = tiny_grid({"noted": Noted(str(note)), "plain": TINY})
    first = run(grid, tmp_path, InProcess())
    assert note.read_text() == "2\n2\n"
    assert run(grid, tmp_path, InProcess()).rows == first.rows
    assert note.read_text() == "2\n2\n"
    (tmp_path / "tiny" / "cells" / f"{grid.cells()[3].key}.json").write_text('{"selected": [1')
    again = run(grid, tmp_path, InProcess())
    assert note.read_text() == "2\n2\n2\n", "a damaged cell is missing, and its whole pack is fitted again"
    assert again.rows == first.rows
    (tmp_path / "tiny" / "cells" / f"{grid.cells()[0].key}.json").write_text("{}")
    assert run(grid, tmp_path, InProcess()).rows == first.rows
    assert note.read_text() == "2\n2\n2\n2\n", "a cell without numbers is missing too"
    assert not list((tmp_path / "tiny" / "checkpoints").iterdir())
    assert len(list((tmp_path / "tiny" / "logs").iterdir())) == 2, "the log of a seed serves every size and method"


def test_files_of_a_run(tmp_path: Path):
    grid = tiny_grid({"a": TINY, "also a": TINY, "raising": Raising()})
    reports: list[tuple[str, int, int]] = []
    ran = run(grid, tmp_path, InProcess(), report=lambda *each: reports.append(each))
    rows = read_csv(tmp_path / "tiny.csv")
    assert rows == ran.rows
    assert [(row["method"], row["trials"], row["seed"]) for row in rows] == [
        (method, trials, seed) for method in ("a", "also a") for trials in (5, 10) for seed in (0, 1)
    ]
    cell = read_cell(tmp_path / "tiny", grid.cells()[0])
    assert cell is not None
    assert rows[0]["return_last"] == sum(cell["last"]) / 3
    settings = json.loads((tmp_path / "tiny.settings.json").read_text())
    assert settings["arms"]["a"]["learner"]["tau"] == TINY.tau
    assert settings["protocol"]["evaluation_trials"] == 3
    failures = read_csv(tmp_path / "tiny.failures.csv")
    assert [(row["trials"], row["seed"]) for row in failures] == [(5, 0), (5, 1), (10, 0), (10, 1)]
    assert all("the loss is not finite" in row["reason"] for row in failures)
    assert [each for each in reports if each[0] == "cells"] == [("cells", done, 8) for done in (0, 2, 4, 6, 8)]
    page = write_summary("tiny", rows, [("a", "also a")], tmp_path, failures).read_text()
    told = [line for line in page.splitlines() if "the loss is not finite" in line]
    assert len(told) == 1, "four cells of one method and one reason are one line"
    assert told[0].startswith("| raising | 4 | 5, 10 | ")


def test_checkpoints_of_something_else_are_not_taken_up(tmp_path: Path):
    grid = tiny_grid({"a": TINY}, pack_size=0)
    clean = run(grid, tmp_path / "clean", InProcess())
    (pack,) = grid.packs()
    begun = tmp_path / "begun" / "tiny" / "checkpoints" / f"{pack.key}-cpu"
    other = [Job(log, 99) for log in logs(CartPole(), "random", (5, 6, 7, 8), PROTOCOL).values()]
    TINY.fit_many(other, CartPole(), Monitor(begun).stage("a"))
    assert begun.exists()
    assert run(grid, tmp_path / "begun", InProcess()).rows == clean.rows


@pytest.mark.parametrize("behaviour", ["random", "non-random"])
def test_logs_are_paired_and_nested_and_hide_the_noise(behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("reproduction.grid.BEHAVIOUR_BLOCK", 2)
    monkeypatch.setattr("reproduction.behaviour.EPISODES", 2)
    monkeypatch.setattr("reproduction.behaviour.LEARNER", TINY)
    alone = logs(CartPole(), behaviour, (1,), PROTOCOL)[1]
    together = logs(CartPole(), behaviour, (0, 1), PROTOCOL)
    longer = logs(CartPole(), behaviour, (1,), replace(PROTOCOL, logged_trials=20))[1]
    assert alone.fingerprint == together[1].fingerprint == trial_subset(longer, 10).fingerprint
    assert alone.fingerprint != together[0].fingerprint
    assert alone.noise.shape == (200, 0)


def _killable(folder: str) -> None:
    torch.set_num_threads(1)
    run(tiny_grid({"D3QN": TINY, "CTRL_g": TINY_CTRL_G}), Path(folder), InProcess(), save_seconds=0.02)


def _process(target: Callable[..., None], *arguments: str) -> Any:
    """A process of an interpreter that has imported everything: a kill hits the run and not the imports."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["torch._dynamo", __name__])
    process = server.Process(target=target, args=arguments)
    process.start()
    return process


def test_killed_five_times_and_restarted_the_rows_are_the_same(tmp_path: Path):
    _process(print).join()
    begun = time.monotonic()
    whole = _process(_killable, str(tmp_path / "whole"))
    whole.join()
    longest = time.monotonic() - begun
    assert whole.exitcode == 0
    exits = []
    for _ in range(5):
        process = _process(_killable, str(tmp_path / "killed"))
        process.join(random.uniform(0.05, 0.35) * longest)
        process.kill()
        process.join()
        exits.append(process.exitcode)
    assert -9 in exits, "not one kill came in time"
    _process(_killable, str(tmp_path / "killed")).join()
    rows = [read_csv(tmp_path / name / "tiny.csv") for name in ("whole", "killed")]
    assert len(rows[0]) == 8
    assert rows[0] == rows[1]


def test_the_papers_grids():
    grid = sd(pack_size=20)
    sizes, small = len(grid.trials), sum(trials <= 100 for trials in grid.trials)
    assert len(grid.cells()) == 20 * (15 * sizes + small)
    assert max(cell.trials for cell in grid.cells() if cell.method == PILCO) == 100
    assert all(len({(cell.method, cell.trials) for cell in pack.cells}) == 1 for pack in grid.packs())
    paper = {row["method"] for row in paper_returns_by_size()}
    beyond = {ROLLOUTS, SEARCH, SEARCH_MIRROR, PILCO, *adversarial_arms()}
    assert {PAPER_NAMES.get(name, name) for name in grid.arms} == paper | beyond
    assert [left for left, _ in sd_comparisons(grid)] == 15 * [SEARCH] + 14 * [CTRL_G]
    assert list(quick_sd(methods=("PETS", "D3QN")).arms) == ["D3QN", "PETS"]
    with pytest.raises(CounterpointError, match="no method 'DQN'; choose from D3QN, Base-D"):
        sd(methods=("DQN",))


def test_other_logs_are_asked_about_at_the_papers_sizes_and_of_fewer_arms():
    grid = sd("non-random")
    paper = paper_returns_by_size()
    assert set(grid.trials) == {row["trials"] for row in paper}
    assert {PAPER_NAMES.get(name, name) for name in grid.arms} == {row["method"] for row in paper} | {ROLLOUTS, SEARCH}
    assert set(quick_sd("non-random").arms) == set(grid.arms) - {ROLLOUTS}
    assert set(WITHOUT_FAILURES) < set(quick_sd("non-random").arms)


def test_every_arm_is_tried_in_as_many_episodes(tmp_path: Path):
    assert sd().protocol.evaluation_trials == sd("non-random").protocol.evaluation_trials == 50
    assert {len(pack.cells) for pack in sd(methods=["PETS"]).packs()} == {20}, "of one size, which live about as long"
    grid = tiny_grid({"D3QN": TINY})
    run(grid, tmp_path, InProcess())
    assert {len((read_cell(tmp_path / grid.name, cell) or {})["selected"]) for cell in grid.cells()} == {3}


def test_the_command_names_the_grid_and_fixes_its_packs():
    grid = Reproduce("sd", device="cpu").grid()
    assert (grid.name, grid.pack_size, len(grid.seeds)) == ("sd", 20, 20)
    quick = Reproduce("sd-nonrandom", quick=True, seeds=4, device="cpu", executor=Joblib()).grid()
    assert (quick.name, quick.behaviour, quick.pack_size) == ("sd-nonrandom-quick", "non-random", 4)
    assert Reproduce("ablations", device="cuda", executor=Ray()).grid().pack_size == 0
    assert quick.cells()[0].key != grid.cells()[0].key
    assert Reproduce("sd", trials=(50, 100), device="cpu").grid().trials == (50, 100)
    with pytest.raises(CounterpointError, match="a pack cannot hold -1 cells"):
        Reproduce("sd", pack_size=-1, device="cpu").grid()
    with pytest.raises(CounterpointError, match="--seeds to 2 or more"):
        Reproduce("sd", seeds=1).grid()
    assert Reproduce("sd-nonrandom", random_action_share=0.2, device="cpu").grid().protocol.random_action_share == 0.2
    with pytest.raises(CounterpointError, match=r"a share of 1\.5 random actions is not possible"):
        Reproduce("sd-nonrandom", random_action_share=1.5, device="cpu").grid()
    with pytest.raises(CounterpointError, match="a log has 1 to 250 trials, not 300"):
        Reproduce("sd", trials=(300,), device="cpu").grid()


def test_a_failed_cell_ends_the_command_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Reproduce, "grid", lambda self: tiny_grid({"D3QN": TINY, "raising": Raising()}, pack_size=0))
    with pytest.raises(CounterpointError, match="4 of 8 cells failed; run the same command again"):
        Reproduce("sd", out=tmp_path, device="cpu", executor=InProcess()).execute()
    assert "CounterpointError: the loss is not finite" in (tmp_path / "tiny.md").read_text()
    assert (tmp_path / "tiny-returns.png").stat().st_size > 1000


def test_ablations_change_one_thing_at_a_time():
    grid = ablations(seeds=2)
    reference = grid.arms[REFERENCE]
    same = [name for name, arm in grid.arms.items() if arm == reference and name != REFERENCE]
    assert same == ["length: 3000 updates", "real share: 0.5", "noise reading: scaled, CTRL_g"]
    fresh = grid.arms["noise: fresh, on the same SCM"].learner
    assert replace(fresh, augmenter=reference.learner.augmenter) == reference.learner  # pyright: ignore
    assert ("noise reading: absolute, CTRL_g", "noise reading: absolute, D3QN") in ablation_comparisons(grid)
    assert len(grid.packs()) == len(grid.arms) - len(same)


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
