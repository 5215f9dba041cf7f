"""Fitted models as simulators: each policy is judged in the members of its own model, from its own first states."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.data.jobs import Job
from counterpoint.data.transitions import Transitions, concatenate
from counterpoint.dynamics.deterministic import Deterministic
from counterpoint.nets.conditional import Likelihood
from counterpoint.nets.training import Schedule
from counterpoint.policies.base import Actor
from counterpoint.scm.density import DensitySCM
from counterpoint.seeding import generator
from counterpoint.tasks.cartpole import CartPole
from counterpoint.tasks.simulate import random_policy, simulate
from counterpoint.worlds import RolloutJudge, Rollouts, Worlds
from recipes import DYNAMICS, MODELS, SCMS

TASK = CartPole()


def logged(trials: int, seed: int = 0) -> Transitions:
    return simulate(TASK, random_policy(TASK), trials, 20, seed)


@pytest.mark.parametrize("name", ["gaussian", "triangular mixture", "mixed", "bicogan", "conditional bicogan"])
def test_every_world_is_one_member_of_one_scm(name: str) -> None:
    recipe, rows = SCMS[name]
    models = recipe.fit_many([Job(rows, seed) for seed in range(3)])
    worlds, members = Worlds(models), models[0].mechanism.members
    assert worlds.count == 3 * members
    state = torch.stack([rows.state[i : i + 5] for i in range(worlds.count)])
    action = torch.stack([rows.action[i : i + 5] for i in range(worlds.count)])
    stepped = worlds.step(state, action, generator(0))
    noise = models[0].mechanism.prior(members * 5, generator(0)).view(members, 5, -1).repeat(3, 1, 1)
    for j, model in enumerate(models):
        own = slice(j * members, (j + 1) * members)
        by_hand = model.mechanism.predict(torch.cat([state[own], action[own]], -1), state[own], noise[own])
        torch.testing.assert_close(stepped[own], by_hand, rtol=1e-4, atol=1e-5)
    if members > 1:
        assert not torch.allclose(*_swapped(models[0], state, action, noise))


def _swapped(model: Any, state: Tensor, action: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """The first world's rows in the first and in the second member."""
    first = [table[:1].expand(model.mechanism.members, -1, -1) for table in (state, action, noise)]
    out = model.mechanism.predict(torch.cat(first[:2], -1), first[0], first[2])
    return out[0], out[1]


@pytest.mark.parametrize("name", MODELS)
def test_every_world_is_one_member_of_one_dynamics_model(name: str) -> None:
    recipe, rows = MODELS[name], SCMS["gaussian"][1]
    models = recipe.fit_many([Job(rows, seed) for seed in range(3)])
    worlds = Worlds(models)
    assert worlds.count == 6
    state, action = rows.state[:30].view(6, 5, 4), rows.action[:30].view(6, 5, 1)
    context = torch.cat([state, action], -1)
    raw = torch.cat([model.network.raw(context[2 * j : 2 * j + 2]) for j, model in enumerate(models)])
    torch.testing.assert_close(worlds.network.raw(context), raw, rtol=1e-4, atol=1e-5)  # pyright: ignore[reportCallIssue]
    assert torch.equal(worlds.step(state, action, generator(0)), worlds.step(state, action, generator(0)))


def test_a_deterministic_world_steps_as_its_member() -> None:
    rows = SCMS["gaussian"][1]
    models = Deterministic(**DYNAMICS).fit_many([Job(rows, seed) for seed in range(2)])
    state, action = rows.state[:20].view(4, 5, 4), rows.action[:20].view(4, 5, 1)
    stepped = Worlds(models).step(state, action, generator(0))
    for j, model in enumerate(models):
        own = slice(2 * j, 2 * j + 2)
        by_hand = model.sample_members(state[own], action[own], generator(1))
        torch.testing.assert_close(stepped[own], by_hand, rtol=1e-4, atol=1e-5)


class Drift:
    """Worlds by hand: world w adds `drift[w]` to the position and leaves the rest."""

    device = torch.device("cpu")

    def __init__(self, drift: Sequence[float]) -> None:
        self.drift, self.count = torch.tensor(drift), len(drift)

    def step(
        self, state: Float[Tensor, "w n s"], action: Float[Tensor, "w n a"], random: torch.Generator
    ) -> Float[Tensor, "w n s"]:
        moved = state.clone()
        moved[..., 0] += self.drift[:, None] * action[..., 0]
        return moved


def fixed(*actions: float) -> Actor:
    return lambda state: torch.tensor(actions)[:, None, None].expand(-1, state.shape[1], 1)


def judge(drift: Sequence[float], jobs: int, horizon: int = 50) -> RolloutJudge:
    data = replace(logged(4), state=torch.zeros(80, 4))
    worlds: Any = Drift(drift)
    return Rollouts(starts=3, horizon=horizon).judge(worlds, [Job(data, seed) for seed in range(jobs)], TASK)


def test_returns_end_where_the_task_ends() -> None:
    """The limit of 2.4 is passed with the third step of 1 and with the fifth of .5; without a drift, never."""
    got = judge([1.0, 0.5, 0.0, 1.0], jobs=2, horizon=9).returns(fixed(1.0, 1.0))
    assert got.tolist() == [[3.0] * 3 + [5.0] * 3, [9.0] * 3 + [3.0] * 3]


def test_the_score_is_minus_the_mean_return_in_ones_own_worlds() -> None:
    scores = judge([1.0, 0.5, 0.0, 1.0], jobs=2, horizon=9)(fixed(1.0, 1.0))
    assert scores.tolist() == [-4.0, -6.0]


def test_a_policys_action_goes_to_its_own_worlds() -> None:
    got = judge([1.0, 1.0], jobs=2, horizon=9).returns(fixed(1.0, 0.5))
    assert got.tolist() == [[3.0] * 3, [5.0] * 3]


def test_nothing_is_earned_after_the_end() -> None:
    """A policy that turns round beyond the limit comes back into the world, but not to life."""
    turning = lambda state: torch.where(state[..., :1].abs() > 2.4, -1.0, 1.0)
    assert judge([1.0], jobs=1, horizon=9).returns(turning).tolist() == [[3.0] * 3]


def test_starts_are_first_states_of_ones_own_real_rows() -> None:
    tables = [logged(6, 0), logged(6, 1)]
    imagined = replace(tables[0], state=tables[0].state + 50, imagined=torch.ones(120, dtype=torch.bool))
    jobs = [Job(concatenate([tables[0], imagined]), 0), Job(tables[1], 1)]
    worlds: Any = Drift([0.0] * 4)
    starts = Rollouts(starts=20).judge(worlds, jobs, TASK).starts
    assert starts.shape == (2, 40, 4)
    for k, table in enumerate(tables):
        first = {tuple(row) for row in table.state[table.step == 0].tolist()}
        assert {tuple(row) for row in starts[k].tolist()} <= first


@pytest.fixture(scope="module")
def pole() -> list[Any]:
    how = Likelihood(Schedule(steps=400, check_every=50, rate="one-cycle"), batch=256, learning_rate=5e-3)
    recipe = DensitySCM(ensemble=2, hidden=(32,), likelihood=how)
    return recipe.fit_many([Job(logged(40, seed), seed) for seed in range(2)])


def test_the_balancing_policy_wins_inside_a_fitted_model(pole: list[Any]) -> None:
    """Judged without the simulator, as it would be in it."""
    jobs = [Job(logged(40, seed), seed) for seed in range(2)]
    judged = Rollouts(starts=16, horizon=120).judge(Worlds(pole), jobs, TASK)
    balance = lambda state: TASK.actions.features(10 * (state[..., 2] + 0.5 * state[..., 3] > 0).long())
    fall = lambda state: TASK.actions.features(10 * (state[..., 2] + 0.5 * state[..., 3] < 0).long())
    mixed = lambda state: torch.cat([balance(state)[:1], fall(state)[1:]])
    assert (judged(balance) < -80).all()
    assert (judged(fall) > -20).all()
    scores = judged(mixed)
    assert scores[0] < -80
    assert scores[1] > -20
    assert torch.equal(judged(balance), judged(balance))


@pytest.mark.parametrize("recipe", [DensitySCM(ensemble=2, hidden=(8,)), *MODELS.values()], ids=["scm", *MODELS])
def test_a_policy_is_judged_the_same_alone_and_beside_others(recipe: Any) -> None:
    brief = Likelihood(Schedule(steps=30))
    jobs = [Job(logged(6, seed), seed) for seed in range(3)]
    models = [replace(recipe, likelihood=brief).fit_many([job])[0] for job in jobs]
    how, actor = Rollouts(starts=4, horizon=25), fixed(0.4)
    together = how.judge(Worlds(models), jobs, TASK).returns(fixed(0.4, 0.4, 0.4))
    for k, (job, model) in enumerate(zip(jobs, models, strict=True)):
        alone = how.judge(Worlds([model]), [job], TASK).returns(actor)
        torch.testing.assert_close(together[k : k + 1], alone)
