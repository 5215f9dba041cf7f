"""Five gravities in one log: who is told apart, who is judged where, and how well subjects can be named."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from counterpoint.core.errors import CounterpointError
from counterpoint.core.results import read_csv
from counterpoint.data.jobs import Job
from counterpoint.learners.d3qn import D3QN
from counterpoint.models.scm.random_effects import RandomEffects
from counterpoint.nets.training import Schedule
from counterpoint.policies.base import Learned
from counterpoint.tasks.cartpole import PLANETS
from helpers.hd import PROTOCOL
from reproduction import hd
from reproduction.commands.reproduce import Reproduce
from reproduction.executors import InProcess
from reproduction.grid import Behaviour
from reproduction.groups import Cell, GroupAccuracy, likelihood_bound, matched_accuracy, population, run_cell
from reproduction.hd import HD, TASKS, _split, kept_logs
from reproduction.hd_arms import HDArm, hd_arms
from reproduction.pages.hd import hd_page, means

TINY = D3QN((8,), Schedule(steps=30), batch=8)
EXPERIMENT = HD(arms={"a": HDArm(TINY), "b": HDArm(TINY, "planets")}, seeds=2, protocol=PROTOCOL)


def test_a_log_holds_every_planet_alike_and_is_read_back_as_it_was_made(tmp_path: Path):
    made = kept_logs(EXPERIMENT, tmp_path)
    again = kept_logs(EXPERIMENT, tmp_path)
    assert sorted(made) == [0, 1]
    assert all(made[seed].fingerprint == again[seed].fingerprint for seed in made)
    assert len(made[0].subject_names) == 3 * len(PLANETS)
    assert made[0].noise.shape[1] == 0, "nobody learns from the luck that the simulator drew"
    gravity = {}
    for place, (planet, task) in enumerate(TASKS.items()):
        own = made[0][made[0].subject // 3 == place]
        foretold = task.physics(own.state, own.action)
        gravity[planet] = float((own.next_state - foretold)[:, 3].abs().mean())
        others = [t.physics(own.state, own.action)[:, 3] for name, t in TASKS.items() if name != planet]
        assert all(gravity[planet] <= float((own.next_state[:, 3] - each).abs().mean()) + 0.02 for each in others)


def test_subjects_are_split_by_planet_or_by_chance_and_no_row_is_lost(tmp_path: Path):
    job = Job(kept_logs(EXPERIMENT, tmp_path)[0])
    assert [part.data.fingerprint for part in _split(job, "nobody", 3)] == [job.data.fingerprint]
    known, chance = (_split(job, split, 3) for split in ("planets", "chance"))
    for parts in (known, chance):
        assert [len(part.data.subject.unique()) for part in parts] == [3] * 5
        assert sum(len(part.data) for part in parts) == len(job.data)
    assert [set((part.data.subject // 3).tolist()) for part in known] == [{i} for i in range(5)]
    assert [set((part.data.subject // 3).tolist()) for part in chance] != [{i} for i in range(5)]


def test_a_run_judges_every_planet_goes_on_where_it_was_and_says_what_made_it(tmp_path: Path):
    rows = EXPERIMENT.run(tmp_path, InProcess())
    assert len(rows) == 2 * 2 * 5
    (tmp_path / "hd.csv").unlink()
    cells = sorted((tmp_path / "hd" / "cells").iterdir())
    stamps = [cell.stat().st_mtime_ns for cell in cells]
    cells[0].unlink()
    again = EXPERIMENT.run(tmp_path, InProcess())
    assert again == rows, "a cell that is gone is learned again, to the same numbers"
    kept = [cell.stat().st_mtime_ns for cell in sorted((tmp_path / "hd" / "cells").iterdir())]
    assert sum(before == after for before, after in zip(stamps, kept, strict=True)) >= 2
    assert len(read_csv(tmp_path / "hd.csv")) == 20
    assert json.loads((tmp_path / "hd.settings.json").read_text())["ran_on"][0]["cells"] == 4
    assert {line["method"] for line in means(rows)} == {"a", "b"}
    assert "paper" in (tmp_path / "hd.md").read_text()
    assert not (tmp_path / "hd.failures.txt").exists()


def test_a_run_of_some_methods_leaves_the_rows_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COUNTERPOINT_COMMIT", "82e1234")
    whole = EXPERIMENT.run(tmp_path, InProcess())
    monkeypatch.setenv("COUNTERPOINT_COMMIT", "7000000")
    shutil.rmtree(tmp_path / "hd" / "cells")
    one = replace(EXPERIMENT, arms={"b": EXPERIMENT.arms["b"]})
    rows = one.run(tmp_path, InProcess())
    others = lambda table: [row for row in table if row["method"] == "a"]
    assert others(rows) == others(whole)
    made = {(row["method"], row["commit"]) for row in read_csv(tmp_path / "hd.csv", ("commit",))}
    assert made == {("a", "82e1234"), ("b", "7000000")}
    assert json.loads((tmp_path / "hd.settings.json").read_text())["arms"].keys() == {"a", "b"}
    with pytest.raises(CounterpointError, match=r"^'[^\n]*hd.settings.json' has other seeds[^\n]*--out$"):
        replace(one, seeds=3).run(tmp_path, InProcess())


def test_a_planner_is_tried_in_fewer_episodes_and_a_policy_of_one_end_once(monkeypatch: pytest.MonkeyPatch):
    asked: list[int] = []

    def count(policies: Any, task: Any, trials: int, seed: int) -> torch.Tensor:
        asked.append(trials)
        return torch.zeros(len(policies), trials)

    monkeypatch.setattr(hd, "evaluate_many", count)
    policies = [object(), object()]
    pack = EXPERIMENT.packs()[0]
    for most, ends, trials in ((0, policies, [2, 2]), (1, policies[:1] * 2, [1]), (9, policies[:1] * 2, [2])):
        hd._judge([Learned(*ends)], TASKS["earth"], replace(pack, arm=replace(pack.arm, most_episodes=most)))
        assert asked == trials
        asked.clear()


def test_the_arms_of_figure_2b_and_the_options_of_the_command():
    arms = hd_arms()
    assert arms["PETS"].most_episodes * len(TASKS) == HD().protocol.evaluation_trials == 50
    assert {"D3QN", "BCQ", "STEVE", "PETS", "CTRL_p, paper", "known gravity", "random groups"} <= set(arms)
    experiment = Reproduce("hd", methods=("D3QN",), seeds=4).hd()
    assert (list(experiment.arms), experiment.seeds, experiment.name) == (["D3QN"], 4, "hd")
    assert Reproduce("hd-nonrandom", quick=True).hd().name == "hd-nonrandom-quick"
    with pytest.raises(CounterpointError, match="there is no method 'no'"):
        Reproduce("hd", methods=("no",)).hd()
    with pytest.raises(CounterpointError, match="give no interval"):
        Reproduce("hd", seeds=1).hd()


def test_accuracy_is_that_of_the_best_matching():
    planet = torch.tensor([0, 0, 1, 1, 2, 2])
    assert matched_accuracy(torch.tensor([2, 2, 0, 0, 1, 1]), planet) == 1.0
    assert matched_accuracy(torch.tensor([0, 0, 0, 0, 1, 1]), planet) == pytest.approx(4 / 6)


def test_the_true_equations_name_more_the_longer_the_record():
    planet = torch.arange(5).repeat_interleave(12)
    bounds = [likelihood_bound(population("scaled", 12, trials, 3), "scaled", planet) for trials in (1, 8)]
    assert 0.35 < bounds[0] < bounds[1] <= 1.0
    shuffled = planet[torch.randperm(60, generator=torch.Generator().manual_seed(0))]
    assert likelihood_bound(population("scaled", 12, 8, 3), "scaled", shuffled) < 0.5


def test_groups_of_random_effects_come_near_the_bound():
    model = RandomEffects(factors=1, ensemble=1, schedule=Schedule(steps=1, check_every=1))
    rows = run_cell(Cell("scaled", 4, 0, 20, model))
    assert {row["groups"] for row in rows} == {"mixture", "k-means"}
    assert all(row["accuracy"] > 0.75 * row["bound"] for row in rows)


def test_the_experiment_with_groups_writes_its_files(tmp_path: Path):
    model = RandomEffects(factors=1, ensemble=1, schedule=Schedule(steps=1, check_every=1))
    experiment = GroupAccuracy(trials=(1,), subjects=8, seeds=1, model=model)
    rows = experiment.run(tmp_path, InProcess())
    assert len(rows) == 4
    assert replace(experiment).run(tmp_path, InProcess()) == rows
    assert {"groups.csv", "groups.md", "groups.png", "groups.settings.json"} <= {p.name for p in tmp_path.iterdir()}


def test_differences_on_the_page_are_of_means():
    """One seed of eight far from the others moves the mean of the differences, not their interquartile mean."""
    scores = {"CTRL_p": [10.0] * 7 + [90.0], "D3QN": [10.0] * 8}
    rows = [
        {"method": method, "planet": planet, "seed": seed, "return_selected": value}
        for method, values in scores.items()
        for seed, value in enumerate(values)
        for planet in PLANETS
    ]
    assert "| CTRL_p | D3QN | 10.0 [" in hd_page(rows, "random", "hd")


@pytest.mark.parametrize(("name", "behaviour"), [("hd", "random"), ("hd-nonrandom", "non-random")])
def test_the_kept_page_is_that_of_the_kept_rows(name: str, behaviour: Behaviour):
    results = Path(__file__).parents[1] / "results"
    rows = read_csv(results / f"{name}.csv", ("commit",))
    assert (results / f"{name}.md").read_text() == hd_page(rows, behaviour, name)
