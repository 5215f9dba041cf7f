"""Five gravities in one log: who is told apart, who is judged where, and how well subjects can be named."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from counterpoint.core.errors import CounterpointError
from counterpoint.core.tables import read_csv
from counterpoint.data.jobs import Job
from counterpoint.learners.base import PolicyCheckpoints
from counterpoint.learners.d3qn import D3QN
from counterpoint.nets.training import Schedule
from counterpoint.tasks.cartpole import PLANETS
from helpers.hd import PROTOCOL
from reproduction import hd
from reproduction.command import Reproduce
from reproduction.experiment import Context
from reproduction.hd import FIRST, HD, TASKS, HDArm, hd_arms, hd_logs, learn_and_evaluate, split
from reproduction.logs import Behaviour, LogSource, shared_logs
from reproduction.pages.hd import hd_page, means

SHAPES = False

TINY = D3QN((8,), Schedule(steps=30), batch=8)
EXPERIMENT = HD(arms={"a": HDArm(TINY), "b": HDArm(TINY, "planets")}, seeds=2, protocol=PROTOCOL)


def test_a_log_holds_every_planet_alike_and_is_read_back_as_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    source = LogSource(FIRST, "random", PROTOCOL)
    table = hd_logs(source, (0, 1))[0]
    assert len(table.subject_names) == 3 * len(PLANETS)
    assert table.noise.shape[1] == 0, "no method sees the noise that the simulator drew"
    for place, (planet, task) in enumerate(TASKS.items()):
        rows = table[table.subject // 3 == place]
        error = float((rows.next_state - task.physics(rows.state, rows.action))[:, 3].abs().mean())
        others = [t.physics(rows.state, rows.action)[:, 3] for name, t in TASKS.items() if name != planet]
        assert all(error <= float((rows.next_state[:, 3] - other).abs().mean()) + 0.02 for other in others)
    monkeypatch.setattr("reproduction.logs.BEHAVIOUR_BLOCK", 2)
    monkeypatch.setattr("reproduction.behaviour.EPISODES", 2)
    monkeypatch.setattr("reproduction.behaviour.RESTARTS", 1)
    monkeypatch.setattr("reproduction.behaviour.LEARNER", TINY)
    trained = LogSource(FIRST, "non-random", PROTOCOL)
    simulated = hd_logs(trained, (0, 1))
    for tables in (shared_logs(hd_logs, trained, (0, 1), tmp_path) for _ in range(2)):
        assert {seed: log.fingerprint for seed, log in tables.items()} == {
            seed: log.fingerprint for seed, log in simulated.items()
        }
    assert simulated[0].fingerprint != table.fingerprint


def test_subjects_are_split_by_planet_or_at_random_and_no_row_is_lost():
    job = Job(hd_logs(LogSource(FIRST, "random", PROTOCOL), (0,))[0])
    assert [part.data.fingerprint for part in split(job, "none", 3)] == [job.data.fingerprint]
    by_planet, at_random = (split(job, how, 3) for how in ("planets", "chance"))
    for parts in (by_planet, at_random):
        assert [len(part.data.subject.unique()) for part in parts] == [3] * 5
        assert sum(len(part.data) for part in parts) == len(job.data)
    assert [set((part.data.subject // 3).tolist()) for part in by_planet] == [{i} for i in range(5)]
    assert [set((part.data.subject // 3).tolist()) for part in at_random] != [{i} for i in range(5)]


def test_a_run_evaluates_every_planet_and_goes_on_where_it_was(tmp_path: Path):
    rows = EXPERIMENT.run(tmp_path)
    assert [(row["method"], row["seed"], row["planet"]) for row in rows] == [
        (method, seed, planet) for method in ("a", "b") for seed in (0, 1) for planet in PLANETS
    ]
    cells = [tmp_path / "hd" / "cells" / f"{cell.key}.json" for cell in EXPERIMENT.cells()]
    stamps = [cell.stat().st_mtime_ns for cell in cells]
    cells[0].unlink()
    assert EXPERIMENT.run(tmp_path) == rows, "a cell that is gone is learned again, to the same numbers"
    assert [cell.stat().st_mtime_ns == stamp for cell, stamp in zip(cells, stamps, strict=True)] == [False, True]
    assert len(read_csv(tmp_path / "hd.csv")) == 20
    assert json.loads((tmp_path / "hd.settings.json").read_text())["ran_on"][0]["cells"] == 2
    assert {line["method"] for line in means(rows)} == {"a", "b"}
    assert {line["method"] for line in EXPERIMENT.summary(rows)[1]} == {"a", "b"}
    assert "paper" in (tmp_path / "hd.md").read_text()


def test_a_planner_is_evaluated_in_fewer_episodes_and_a_policy_of_one_end_once(monkeypatch: pytest.MonkeyPatch):
    episodes: list[int] = []

    def count(policies: Any, task: Any, trials: int, seed: int) -> torch.Tensor:
        episodes.append(trials)
        return torch.zeros(len(policies), trials)

    policies = [object(), object()]
    recipe = EXPERIMENT.cells()[0].recipe
    learned: list[PolicyCheckpoints] = []
    monkeypatch.setattr(hd, "true_returns", count)
    monkeypatch.setattr(hd, "learn", lambda *_: learned)
    for most, ends, trials in ((None, policies, [2, 2]), (1, policies[:1] * 2, [1]), (9, policies[:1] * 2, [2])):
        learned[:] = [PolicyCheckpoints(*ends)] * 2
        arm = replace(recipe.arm, most_episodes=most)
        rows = learn_and_evaluate(replace(recipe, arm=arm), Context("key", Path()))
        assert len(rows) == 2 * len(TASKS)
        assert episodes == trials * len(TASKS)
        episodes.clear()


def test_the_arms_of_figure_2b_and_the_options_of_the_command():
    arms = hd_arms()
    assert (arms["PETS"].most_episodes or 0) * len(TASKS) == HD().protocol.evaluation_trials == 50
    assert {"D3QN", "BCQ", "STEVE", "PETS", "CTRL_p, paper", "known gravity", "random groups"} <= set(arms)
    experiment = Reproduce("hd", methods=("D3QN",), seeds=4).part("hd")
    assert experiment == HD(arms={"D3QN": arms["D3QN"]}, seeds=4)
    assert Reproduce("hd-nonrandom", quick=True).part("hd-nonrandom").name == "hd-nonrandom-quick"
    with pytest.raises(CounterpointError, match="there is no method 'no'"):
        Reproduce("hd", methods=("no",)).part("hd")
    with pytest.raises(CounterpointError, match="give no interval"):
        Reproduce("hd", seeds=1).part("hd")


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
