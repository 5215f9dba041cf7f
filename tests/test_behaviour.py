"""The better-than-random behaviour of the appendix is better than random."""

from dataclasses import replace

import pytest
import torch

from counterpoint.core.seeding import generator
from counterpoint.learners.d3qn import D3QN
from counterpoint.nets.training import Schedule
from counterpoint.simulation.trials import random_policy, simulate
from counterpoint.tasks.cartpole import CartPole
from reproduction import behaviour
from reproduction.behaviour import exploring, trained_behaviour, trained_behaviours

SHAPES = False

TASK = CartPole()


def mean_length(act) -> float:
    """Steps until the pole falls, 200 at most."""
    return len(simulate(TASK, act, 50, 200, 9, stop_at_failure=True)) / 50


def test_trained_behaviours_last_longer_than_random_ones() -> None:
    lengths = [mean_length(act) for act in trained_behaviours(TASK, [0, 1])]
    assert sum(lengths) / 2 > 1.2 * mean_length(random_policy(TASK))


def test_a_behaviour_is_the_same_alone_and_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(behaviour, "EPISODES", 2)
    monkeypatch.setattr(behaviour, "LEARNER", replace(behaviour.LEARNER, schedule=Schedule(steps=100)))
    alone, beside = trained_behaviour(TASK, 1), trained_behaviours(TASK, [0, 1])[1]
    states = TASK.initial(200, generator(0))
    agree = alone(states, generator(1)) == beside(states, generator(1))
    assert agree.float().mean() > 0.95


def test_the_log_wanders_as_much_as_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(behaviour, "EPISODES", 2)
    monkeypatch.setattr(behaviour, "LEARNER", replace(behaviour.LEARNER, schedule=Schedule(steps=20)))
    states = TASK.initial(2000, generator(0))

    def changed(random_action_share: float) -> float:
        act = trained_behaviours(TASK, [0], random_action_share)[0]
        return (act(states, generator(1)) != act(states, generator(2))).float().mean().item()

    assert changed(0.0) == 0
    assert abs(changed(1.0) - 10 / 11) < 0.03


def test_exploring_takes_the_stated_share_of_random_actions() -> None:
    data = simulate(TASK, random_policy(TASK), 2, 20, 0)
    policy = D3QN(hidden=(8,), schedule=Schedule(steps=5)).fit(data, TASK)
    states = torch.zeros(20_000, 4)
    chosen = policy.act(states[:1])[0]
    followed = (exploring(policy, TASK, share=0.3)(states, generator(0)) == chosen).all(1).float().mean()
    assert abs(followed.item() - (0.7 + 0.3 / 11)) < 0.015
    assert (exploring(policy, TASK, share=0.0)(states, generator(0)) == chosen).all()
