"""Gymnasium's classic control: rewards and ends are its own, and so are the logs and the judgement."""

import json
from dataclasses import replace
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from counterpoint.core.errors import CounterpointError
from counterpoint.core.seeding import derive
from counterpoint.core.tables import read_csv
from counterpoint.data.jobs import Job, Origin
from counterpoint.data.spaces import Discrete
from counterpoint.learners.search import Search
from counterpoint.models.dynamics.outcome import Outcome
from counterpoint.nets.likelihood import Likelihood
from counterpoint.nets.training import Schedule
from counterpoint.policies.rule import OrderedDose
from counterpoint.policies.searched import SearchedPolicy
from helpers.classic import SEARCH
from reproduction.classic import COLUMNS, LEARNED_METHOD, METHOD, Classic, Problem, problems, search_and_evaluate
from reproduction.command import Reproduce
from reproduction.executors import InProcess, silent
from reproduction.experiment import Context
from reproduction.tasks.classic import Acrobot, ClassicControl, MountainCar, Pendulum, TaskStack
from reproduction.tasks.classic_simulation import evaluate_in_gym, gym_actions, gym_returns, log_random

TASKS = [Pendulum(), Acrobot(), MountainCar()]


def named(task: ClassicControl) -> str:
    return task.gym_id


def steps(task: ClassicControl, count: int, push: bool) -> list[tuple[Any, ...]]:
    """(state, features, reward, next state, terminated) of an agent that acts at random, or pushes as it moves."""
    environment, random = gymnasium.make(task.gym_id, disable_env_checker=True), torch.Generator().manual_seed(3)
    state, found = environment.reset(seed=3)[0], []
    for _ in range(count):
        action = task.actions.sample(1, random)
        if push:
            action = torch.full((1, 1), float(np.sign(state[-1]) or 1) * task.actions.high[0])
        after, reward, terminated, truncated, _ = environment.step(gym_actions(task.actions, action)[0])
        found.append((torch.tensor(state), action[0], float(reward), torch.tensor(after), terminated))
        state = environment.reset()[0] if terminated or truncated else after
    return found


@pytest.mark.parametrize("push", [False, True], ids=["random", "pushing"])
@pytest.mark.parametrize("task", TASKS, ids=named)
def test_reward_and_end_are_gymnasiums(task: ClassicControl, push: bool) -> None:
    state, action, reward, after, terminated = zip(*steps(task, 1000, push), strict=True)
    before, taken, next_state = torch.stack(state), torch.stack(action), torch.stack(after)
    assert torch.allclose(task.reward(before, taken, next_state), torch.tensor(reward), atol=1e-4)
    assert task.terminated(next_state).tolist() == list(terminated)


@pytest.mark.parametrize("task", [Acrobot(), MountainCar()], ids=named)
def test_pushing_reaches_the_end(task: ClassicControl) -> None:
    """So that the test above has seen ends."""
    assert any(terminated for *_, terminated in steps(task, 1000, push=True))


@pytest.mark.parametrize("task", TASKS, ids=named)
def test_tasks_say_what_gymnasium_says(task: ClassicControl) -> None:
    environment = gymnasium.make(task.gym_id, disable_env_checker=True)
    assert environment.spec is not None
    assert environment.spec.max_episode_steps == task.horizon
    assert environment.observation_space.shape == (len(task.state_names),)
    space: Any = environment.action_space
    if isinstance(task.actions, Discrete):
        assert space.n == task.actions.count
    else:
        assert (space.low.tolist(), space.high.tolist()) == (list(task.actions.low), list(task.actions.high))


@pytest.mark.parametrize("task", TASKS, ids=named)
def test_log_has_pieces_and_is_reproducible(task: ClassicControl) -> None:
    log, again, shorter = (log_random(task, rows, 50, seed=1) for rows in (230, 230, 120))
    assert len(log) == 230
    assert log.schema == task.schema
    assert log.subject.tolist() == [row // 50 for row in range(230)] == log.episode.tolist()
    assert log.step.tolist() == [row % 50 for row in range(230)]
    assert log.truncated.nonzero().flatten().tolist() == [49, 99, 149, 199, 229]
    assert not bool(log.terminated.any())
    assert all(torch.equal(getattr(log, name), getattr(again, name)) for name in ("state", "action", "next_state"))
    assert torch.equal(log.state[:120], shorter.state)
    inside = log.step > 0
    assert torch.equal(log.state[inside], log.next_state[:-1][inside[1:]])
    assert not torch.equal(log.action, log_random(task, 230, 50, seed=2).action)


class Short(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that ends after seven steps."""

    def reset(self, **options: Any) -> Any:
        self.steps = 0
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        self.steps += 1
        state, reward, _, truncated, info = super().step(action)
        return state, reward, self.steps == 7, truncated, info


def test_log_ends_a_piece_at_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    make = gymnasium.make
    monkeypatch.setattr(gymnasium, "make", lambda *args, **options: Short(make(*args, **options)))
    log = log_random(Acrobot(), 24, 10, seed=0)
    assert log.subject.tolist() == [row // 7 for row in range(24)]
    assert log.terminated.nonzero().flatten().tolist() == [6, 13, 20]
    assert log.truncated.nonzero().flatten().tolist() == [23]


def test_log_is_cut_where_gymnasium_cuts() -> None:
    log = log_random(Pendulum(), 500, 400, seed=0)
    assert log.truncated.nonzero().flatten().tolist() == [199, 399, 499]


def test_log_refuses_nothing_to_log() -> None:
    with pytest.raises(CounterpointError, match="set both to 1 or more"):
        log_random(Pendulum(), 0, 50, seed=0)


def linear_policy(task: ClassicControl, weights: list[float]) -> SearchedPolicy:
    """torque = 2·tanh(w·state + b)."""
    width = len(task.state_names)
    parts = {"numbers": torch.tensor(weights), "returns": torch.zeros(1)}
    parts |= {"mean": torch.zeros(1, width), "spread": torch.ones(1, width)}
    return SearchedPolicy(Search(rule=OrderedDose()), parts, task.schema, Origin(0, "", ""))


@pytest.mark.parametrize(
    ("task", "weights"), [(Pendulum(), [0.3, -0.5, 0.8, 0.1]), (MountainCar(), [0.0, 500.0, 0.1])], ids=str
)
def test_evaluation_is_a_plain_loop(task: ClassicControl, weights: list[float]) -> None:
    policy = linear_policy(task, weights)
    found = evaluate_in_gym(policy, task.gym_id, 2, seed=5)
    expected = []
    for i in range(2):
        environment = gymnasium.make(task.gym_id, disable_env_checker=True)
        state, total, over = environment.reset(seed=derive(5, "evaluation", i))[0], 0.0, False
        while not over:
            action = policy.act(torch.tensor(state)[None])[0].numpy()
            state, reward, terminated, truncated, _ = environment.step(action)
            total, over = total + float(reward), terminated or truncated
        expected.append(total)
    assert found.tolist() == pytest.approx(expected, rel=1e-5)
    assert torch.equal(found, evaluate_in_gym(policy, task.gym_id, 2, seed=5))


def test_idle_acrobot_never_arrives() -> None:
    idle = lambda state: torch.zeros(len(state), 1)
    assert gym_returns(idle, Acrobot.actions, "Acrobot-v1", 2, seed=0).tolist() == [-500, -500]


TINY = Classic({"Pendulum": Problem(Pendulum(), (60,), 20, SEARCH)}, seeds=2, episodes=1, name="tiny")


def test_experiment_writes_its_files_and_does_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[tuple[str, int, int]] = []
    rows = TINY.run(tmp_path, InProcess(), report=lambda *told: reports.append(told))
    assert [(row["rows"], row["seed"]) for row in rows] == [(60, 0), (60, 1)]
    assert read_csv(tmp_path / "tiny.csv") == [{column: row[column] for column in COLUMNS} for row in rows]
    assert all((tmp_path / f"tiny{ending}").exists() for ending in (".settings.json", ".png"))
    assert [each for each in reports if each[0] == "cells"] == [("cells", 0, 1), ("cells", 1, 1)]
    assert not list((tmp_path / "tiny" / "checkpoints").glob("*"))
    monkeypatch.setattr(Search, "fit_many", None)
    assert TINY.run(tmp_path, InProcess()) == rows
    monkeypatch.undo()
    next((tmp_path / "tiny" / "cells").glob("*")).write_text("{")
    again = TINY.run(tmp_path, InProcess())
    assert [row["return_true"] for row in again] == [row["return_true"] for row in rows]


OUTCOME = Outcome(hidden=(8,), likelihood=Likelihood(Schedule(steps=20)))
BOTH = Classic({"Pendulum": Problem(Pendulum(), (60,), 20, SEARCH, OUTCOME)}, seeds=2, episodes=1, name="both")


def test_reward_and_end_are_known_and_learned(tmp_path: Path) -> None:
    rows = BOTH.run(tmp_path, InProcess())
    assert [(row["method"], row["seed"]) for row in rows] == [
        (m, seed) for m in (METHOD, LEARNED_METHOD) for seed in (0, 1)
    ]
    known, learned = ([row["return_in_model"] for row in rows if row["method"] == m] for m in (METHOD, LEARNED_METHOD))
    assert known != learned
    assert [row["return_true"] for row in read_csv(tmp_path / "both.csv")] == [row["return_true"] for row in rows]
    assert (tmp_path / "both.png").exists()
    settings = json.loads((tmp_path / "both.settings.json").read_text())
    assert settings["problems"]["Pendulum"]["outcome"]["type"] == "Outcome"
    assert BOTH.cells()[0].key == TINY.cells()[0].key != BOTH.cells()[1].key


def test_every_seed_has_the_reward_of_its_own_log(tmp_path: Path) -> None:
    """A seed beside others is learned as it is alone; with its neighbour's reward its return in the model differs."""
    recipe = BOTH.cells()[1].recipe
    context = Context("key", tmp_path)
    together = search_and_evaluate(recipe, context)
    for seed, row in zip(recipe.seeds, together, strict=True):
        (alone,) = search_and_evaluate(replace(recipe, seeds=(seed,)), context)
        assert alone["return_in_model"] == pytest.approx(row["return_in_model"], rel=1e-4)
    assert together[0]["return_in_model"] != pytest.approx(together[1]["return_in_model"], rel=1e-3)


@pytest.mark.parametrize("horizon", [None, 7])
def test_learned_tasks_last_as_long_as_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, horizon: int | None
) -> None:
    """Not as long as the pieces of the log."""
    problem = Problem(Pendulum(), (60,), 20, replace(SEARCH, horizon=horizon), OUTCOME)
    given: list[tuple[int, Any]] = []

    def note(self: Search, jobs: Any, task: Any, *rest: Any) -> list[Any]:
        given.append((self.horizon, task))
        return []

    monkeypatch.setattr(Search, "fit_many", note)
    with pytest.raises(ValueError, match="zip"):
        search_and_evaluate(Classic({"Pendulum": problem}, seeds=1).cells()[1].recipe, Context("key", tmp_path))
    ((lasts, task),) = given
    assert (lasts, type(task), task.horizon) == (horizon or 200, TaskStack, 20)


def test_only_the_pendulums_log_tells_reward_and_end() -> None:
    assert {name: problem.outcome is not None for name, problem in problems().items()} == {
        "Pendulum": True, "Acrobot": False, "MountainCar": False
    }  # fmt: skip


def test_task_of_a_stack_judges_its_own_steps() -> None:
    logs = [log_random(Pendulum(), 60, 20, seed) for seed in (0, 1)]
    ended = [replace(log, outcome=torch.where(torch.arange(60) % (5 + k) == 4, 0, -1)) for k, log in enumerate(logs)]
    tasks = OUTCOME.fit_many([Job(log, 0) for log in ended])
    state, action, after = (
        torch.stack([getattr(log, name) for log in logs]) for name in ("state", "action", "next_state")
    )
    uniform, stack = torch.rand(2, 60, generator=torch.Generator().manual_seed(0)), TaskStack(tasks)
    for k, task in enumerate(tasks):
        own = state[k], action[k], after[k]
        for found, expected in (
            (stack.reward(state, action, after), task.reward(*own)),
            (stack.terminated(after), task.terminated(after[k])),
            *zip(stack.expected(state, action, after), task.expected(*own), strict=True),
            *zip(stack.draw_result(state, action, after, uniform), task.draw_result(*own, uniform[k]), strict=True),
        ):
            torch.testing.assert_close(found[k], expected, equal_nan=True)
    first, second = (task.expected(state[0], action[0], after[0])[1] for task in tasks)
    assert not torch.allclose(first, second, atol=1e-3)


def test_tasks_that_differ_are_not_stacked() -> None:
    with pytest.raises(CounterpointError, match="differ in their actions"):
        TaskStack([Pendulum(), Acrobot()])
    with pytest.raises(CounterpointError, match="no tasks to stack"):
        TaskStack([])


def test_experiment_tells_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Search, "fit_many", None)
    with pytest.raises(CounterpointError, match="1 of 1 cells of tiny failed"):
        TINY.run(tmp_path, InProcess())


def test_command_describes_the_experiment() -> None:
    assert Reproduce("classic", seeds=4).part("classic") == Classic(seeds=4)
    assert Reproduce("classic", quick=True).part("classic").name == "classic-quick"
    assert set(problems()) == {"Pendulum", "Acrobot", "MountainCar"}
    with pytest.raises(CounterpointError, match="leave it out"):
        Reproduce("classic", methods=("Search",)).execute()
    with pytest.raises(CounterpointError, match="nothing to run"):
        Reproduce("classic", seeds=0).execute()


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`benchmarks/classic_peers.py`, all of it in this process."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "benchmarks"))
    module = import_module("classic_peers")
    monkeypatch.setattr(module, "Joblib", lambda workers: InProcess())
    return module


def test_peers_take_seed_after_seed(peers: Any) -> None:
    cells = peers.Peers(seeds=2).cells()
    assert [cell.seed for cell in cells] == [0] * (len(cells) // 2) + [1] * (len(cells) // 2)
    assert [cell[:3] for cell in cells[: len(cells) // 2]] == [cell[:3] for cell in cells[len(cells) // 2 :]]
    assert len(set(cells)) == len(cells) == 2 * (2 * 11 + 8)
    assert peers.Peers().episodes == Classic().episodes


def test_peers_write_what_is_finished(
    peers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = peers.Peers(tmp_path, ("Pendulum",), (peers.RANDOM,), seeds=2, episodes=1)
    run.run()
    rows = read_csv(tmp_path / "classic_peers.csv")
    assert [(row["method"], row["seed"]) for row in rows] == [(peers.RANDOM, 0), (peers.RANDOM, 1)]
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    mean = sum(row["return_true"] for row in rows) / 2
    assert [(each["seeds"], each["return_true"]) for each in figures["means"]] == [(2, pytest.approx(mean))]
    late = replace(run, seeds=3, limit_seconds=1e-9)
    late.run()
    assert read_csv(tmp_path / "classic_peers.csv") == rows
    settings = json.loads((tmp_path / "classic_peers.settings.json").read_text())
    assert (settings["finished"], settings["cells"], settings["failed"]) == (2, 3, 0)


def test_peers_are_judged_in_the_episodes_of_the_search(peers: Any, tmp_path: Path) -> None:
    """The random row of a seed, by the judge of the searched policies."""
    row = peers.Peers(tmp_path, episodes=2).cell(peers.Cell("Pendulum", peers.RANDOM, 0, 3), silent, float("inf"))
    choose = peers.Peers()._learn("Pendulum", peers.RANDOM, problems()["Pendulum"], 0, 3)
    seed = signature(evaluate_in_gym).parameters["seed"].default
    judged = gym_returns(choose, Pendulum.actions, Pendulum.gym_id, 2, seed)
    assert row["return_true"] == pytest.approx(float(judged.mean()))
