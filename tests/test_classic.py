"""Gymnasium's classic control: rewards and ends are its own, and so are the logs and the judgement."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from counterpoint.commands.reproduce import Reproduce
from counterpoint.data.jobs import Origin
from counterpoint.data.spaces import Discrete
from counterpoint.errors import CounterpointError
from counterpoint.evaluation.gym_return import evaluate_in_gym
from counterpoint.experiments.classic import COLUMNS, Classic, Problem, problems
from counterpoint.experiments.executors import InProcess
from counterpoint.nets.laws import Gaussian
from counterpoint.nets.likelihood import Likelihood
from counterpoint.nets.training import Schedule
from counterpoint.policies.evolution import CrossEntropy
from counterpoint.policies.rules import OrderedDose
from counterpoint.policies.search import Search, SearchedPolicy
from counterpoint.report.results import read_csv
from counterpoint.scm.density import DensitySCM
from counterpoint.seeding import derive
from counterpoint.simulation.classic import gym_actions, gym_returns, log_random
from counterpoint.tasks.classic import Acrobot, ClassicControl, MountainCar, Pendulum

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
    with pytest.raises(CounterpointError, match="ask for at least one"):
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


MODEL = DensitySCM(Gaussian(), 1, (8,), likelihood=Likelihood(Schedule(steps=20)), variation_penalty=0.0)
SEARCH = Search(MODEL, optimizer=CrossEntropy(8, 2), schedule=Schedule(steps=2, check_every=1), restarts=1, horizon=5)
TINY = Classic({"Pendulum": Problem(Pendulum(), (60,), 20, SEARCH)}, seeds=2, episodes=1, name="tiny")


def test_experiment_writes_its_files_and_does_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[tuple[str, int, int]] = []
    rows = TINY.run(tmp_path, InProcess(), report=lambda *told: reports.append(told))
    assert [(row["rows"], row["seed"]) for row in rows] == [(60, 0), (60, 1)]
    assert read_csv(tmp_path / "tiny.csv") == rows
    assert tuple(rows[0]) == COLUMNS
    assert all((tmp_path / f"tiny{ending}").exists() for ending in (".settings.json", ".png"))
    assert [each for each in reports if each[0] == "cells"] == [("cells", 0, 2), ("cells", 2, 2)]
    assert not list((tmp_path / "tiny" / "checkpoints").glob("*"))
    monkeypatch.setattr(Search, "fit_many", None)
    assert TINY.run(tmp_path, InProcess()) == rows
    monkeypatch.undo()
    next((tmp_path / "tiny" / "cells").glob("*")).write_text("{")
    again = TINY.run(tmp_path, InProcess())
    assert [row["return_true"] for row in again] == [row["return_true"] for row in rows]


def test_experiment_tells_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Search, "fit_many", None)
    with pytest.raises(CounterpointError, match="1 of 1 packs failed"):
        TINY.run(tmp_path, InProcess())


def test_command_describes_the_experiment() -> None:
    assert Reproduce("classic", seeds=4).classic() == Classic(seeds=4)
    assert Reproduce("classic", quick=True).classic().name == "classic-quick"
    assert set(problems()) == {"Pendulum", "Acrobot", "MountainCar"}
    with pytest.raises(CounterpointError, match="leave them out"):
        Reproduce("classic", trials=(50,)).execute()
    with pytest.raises(CounterpointError, match="nothing to run"):
        Reproduce("classic", seeds=0).execute()
