"""CartPole against Gymnasium's own, its noise readings, and its answers to what-if questions."""

import math
from dataclasses import replace
from typing import get_args

import pytest
import torch

from counterpoint.simulation.trials import random_policy, simulate
from counterpoint.tasks.cartpole import ANGLE_LIMIT, PLANETS, STATE_SCALE, CartPole, NoiseReading

READINGS = get_args(NoiseReading)


def logged(task: CartPole, trials: int = 50, seed: int = 0):
    return simulate(task, random_policy(task), trials, 20, seed)


def test_noise_free_physics_is_gymnasiums() -> None:
    from gymnasium.envs.classic_control import CartPoleEnv

    env, task = CartPoleEnv(), CartPole(noise_size=0.0)
    observed, _ = env.reset(seed=3)
    state = torch.tensor(env.state, dtype=torch.float64)
    still = torch.zeros(5, dtype=torch.float64)
    terminated, steps = False, 0
    while not terminated:
        push = int(observed[2] + 0.3 * observed[3] > 0) if steps < 150 else 1
        observed, reward, terminated, _, _ = env.step(push)
        next_state = task.transition(state, torch.tensor([float(push)], dtype=torch.float64), still)
        torch.testing.assert_close(next_state, torch.tensor(env.state, dtype=torch.float64), atol=1e-5, rtol=0)
        assert bool(task.terminated(next_state)) == terminated
        assert float(task.reward(state, state[:1], next_state)) == reward == 1.0
        state, steps = next_state, steps + 1
    assert steps > 150


@pytest.mark.parametrize("planet", ["jupiter", "pluto"])
def test_gravity_is_gymnasiums_gravity(planet: str) -> None:
    from gymnasium.envs.classic_control import CartPoleEnv

    env = CartPoleEnv()
    env.gravity = PLANETS[planet]
    env.reset(seed=0)
    env.state = (0.1, -0.3, 0.15, 0.4)
    env.step(1)
    state, push = torch.tensor([0.1, -0.3, 0.15, 0.4], dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    ours = CartPole(gravity=PLANETS[planet]).physics(state, push)
    torch.testing.assert_close(ours, torch.tensor(env.state, dtype=torch.float64), atol=1e-12, rtol=0)


def test_middle_action_is_no_force_and_forces_mirror() -> None:
    task, state = CartPole(), torch.zeros(3, 4)
    left, rest, right = task.physics(state, torch.tensor([[0.0], [0.5], [1.0]]))
    assert torch.equal(rest, torch.zeros(4))
    torch.testing.assert_close(left, -right)
    # 10 N on an upright pole: acceleration (F/m)(1 + m_p l / (m · inertia)) with inertia l(4/3 − m_p/m)
    inertia = 0.5 * (4 / 3 - 0.1 / 1.1)
    assert math.isclose(float(right[1]), 0.02 * (10 / 1.1) * (1 + 0.05 / (1.1 * inertia)), rel_tol=1e-6)


@pytest.mark.parametrize("reading", READINGS)
def test_counterfactual_of_the_taken_action_is_what_happened(reading: NoiseReading) -> None:
    task = CartPole(noise_reading=reading)
    rows = logged(task)
    error = (task.counterfactual(rows, rows.action) - rows.next_state).abs().max()
    assert error <= 1e-6
    other = task.counterfactual(rows, 1 - rows.action)
    moved = rows.action[:, 0] != 0.5
    assert (other - rows.next_state)[moved][:, 1].abs().min() > 1e-2


@pytest.mark.parametrize("reading", READINGS)
def test_counterfactual_is_the_simulator_replayed_with_the_same_noise(reading: NoiseReading) -> None:
    """Two policies under one seed meet the same start and noise, so the other policy's log is the truth."""
    task = CartPole(noise_reading=reading)
    factual = simulate(task, lambda state, _: torch.full((len(state), 1), 0.2), 50, 1, seed=4)
    replayed = simulate(task, lambda state, _: torch.full((len(state), 1), 0.9), 50, 1, seed=4)
    truth = task.counterfactual(factual, replayed.action)
    torch.testing.assert_close(truth, replayed.next_state, atol=1e-6, rtol=0)


def test_scaled_noise_has_five_percent_of_each_states_scale() -> None:
    task = CartPole()
    rows = logged(task, trials=500)
    pushed = task.physics(rows.state, rows.action + 0.05 * rows.noise[:, 4:])
    spread = (rows.next_state - pushed).std(0)
    torch.testing.assert_close(spread, 0.05 * torch.tensor(STATE_SCALE), rtol=0.03, atol=0)


def test_relative_and_absolute_noise_have_the_stated_size() -> None:
    for reading in ("relative", "absolute"):
        task = CartPole(noise_reading=reading)
        rows = logged(task, trials=500)
        pushed = task.physics(rows.state, rows.action + 0.05 * rows.noise[:, 4:])
        away = rows.next_state - pushed
        stated = 0.05 * rows.noise[:, :4] * (pushed if reading == "relative" else 1)
        torch.testing.assert_close(away, stated, atol=1e-5, rtol=0)
        torch.testing.assert_close(rows.noise.std(0), torch.ones(5), rtol=0.03, atol=0)


def test_action_noise_is_not_clipped() -> None:
    """At the strongest force a positive draw pushes still harder: velocity is affine in the action noise."""
    task = CartPole(noise_reading="observation")
    noise = torch.zeros(3, 5)
    noise[:, 4] = torch.tensor([0.0, 1.0, 2.0])
    velocity = task.transition(torch.zeros(3, 4), torch.ones(3, 1), noise)[:, 1]
    torch.testing.assert_close(velocity[1] - velocity[0], velocity[2] - velocity[1], atol=1e-6, rtol=0)
    assert velocity[1] > velocity[0] + 0.01


def test_observation_reading_blurs_what_the_policy_sees_and_nothing_else() -> None:
    task = CartPole(noise_reading="observation")
    seen = []

    def watching(state, generator):
        seen.append(state)
        return task.actions.sample(len(state), generator)

    rows = simulate(task, watching, 50, 20, seed=0)
    true_state = rows.state.view(50, 20, 4).transpose(0, 1)
    spread = (torch.stack(seen) - true_state).flatten(0, 1).std(0)
    torch.testing.assert_close(spread, torch.full((4,), 0.05), rtol=0.1, atol=0)
    assert rows.noise[:, :4].abs().max() == 0
    pushed = task.physics(rows.state, rows.action + 0.05 * rows.noise[:, 4:])
    torch.testing.assert_close(rows.next_state, pushed)


def test_other_readings_show_the_policy_the_logged_state() -> None:
    state = torch.randn(5, 4)
    assert torch.equal(CartPole().observe(state, torch.Generator()), state)


def test_state_scale_is_that_of_noise_free_random_trials_on_earth() -> None:
    rows = logged(CartPole(noise_size=0.0), trials=1000)
    torch.testing.assert_close(rows.next_state.std(0), torch.tensor(STATE_SCALE), rtol=0.08, atol=0)


def test_evaluation_noise_is_an_option_of_its_own() -> None:
    task = CartPole(gravity=3.7, evaluation_noise_size=0.0)
    state, action, noise = torch.randn(6, 4), torch.rand(6, 1), torch.randn(6, 5)
    judged = task.at_evaluation()
    torch.testing.assert_close(judged.transition(state, action, noise), task.physics(state, action))
    assert replace(judged, noise_size=task.noise_size) == task


def test_limits() -> None:
    inside, beyond = ANGLE_LIMIT - 1e-4, ANGLE_LIMIT + 1e-4
    states = torch.tensor([[2.39, 9, 0, 9], [2.41, 0, 0, 0], [-2.41, 0, 0, 0], [0, 0, inside, 0], [0, 0, -beyond, 0]])
    assert CartPole().terminated(states).tolist() == [False, True, True, False, True]


def test_velocities_rise_with_their_noise_whatever_the_action() -> None:
    task, state = CartPole(), 0.3 * torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(64, 5, generator=torch.Generator().manual_seed(1), requires_grad=True)
    for action in (0.0, 1.0):
        next_state = task.transition(state, torch.full((64, 1), action), noise)
        for i in range(4):
            (slope,) = torch.autograd.grad(next_state[:, i].sum(), noise, retain_graph=True)
            torch.testing.assert_close(slope[:, i], torch.full((64,), 0.05 * STATE_SCALE[i]))
