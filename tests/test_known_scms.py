"""What every simulator with a known truth promises; a new one is one more line in the list."""

import pytest
import torch

from counterpoint.core.artifacts import decode, encode, recipe_hash
from counterpoint.core.seeding import generator
from counterpoint.ope.model_based import returns
from counterpoint.registry import Registry
from counterpoint.simulation.gym import SCMEnv
from counterpoint.simulation.trials import random_policy, simulate
from counterpoint.tasks import blood_pressure, hiv, tumour
from counterpoint.tasks.base import KnownSCM
from counterpoint.tasks.cartpole import CartPole
from counterpoint.tasks.ward import Ward

KNOWN = [
    CartPole(),
    tumour.Tumour(),
    tumour.Tumour(tumour.population(3, 0)),
    hiv.HIV(hiv.population(2, 0)),
    Ward(),
    blood_pressure.BloodPressure(blood_pressure.population(3, 0)),
]
every = pytest.mark.parametrize("task", KNOWN, ids=lambda task: type(task).__name__)


@every
def test_the_recorded_noise_brings_the_recorded_next_state_back(task: KnownSCM) -> None:
    rows = simulate(task, random_policy(task), 6, 5, 0).with_next()
    torch.testing.assert_close(task.counterfactual(rows, rows.action), rows.next_state, rtol=1e-5, atol=1e-5)


@every
def test_ends_are_drawn_as_often_as_they_are_expected(task: KnownSCM) -> None:
    """`draw_result` averages to `expected`, in reward and in survival, row by row over many draws."""
    rows = simulate(task, random_policy(task), 4, 3, 0)
    task, draws = task.of_subjects(rows.subject.repeat(4000)), torch.rand(4000 * len(rows), generator=generator(0))
    state, action, after = (x.repeat(4000, 1) for x in (rows.state, rows.action, rows.state + 0.01))
    reward, outcome, next_state = task.draw_result(state, action, after, draws)
    meant, survival = task.expected(state, action, after)
    by_row = lambda x: x.view(4000, -1).double().mean(0)
    torch.testing.assert_close(by_row((outcome < 0).float()), by_row(survival), rtol=0, atol=0.03)
    torch.testing.assert_close(by_row(reward), by_row(meant), rtol=0.02, atol=0.25)
    assert outcome.max() < len(task.outcome_names)
    assert not next_state[outcome < 0].isnan().any()


@every
def test_it_is_written_exactly_and_comes_back(task: KnownSCM) -> None:
    again = decode(encode(task), Registry())
    assert type(again) is type(task)
    assert recipe_hash(again) == recipe_hash(task)


@every
def test_returns_are_those_of_the_seed_and_of_any_number_of_trials(task: KnownSCM) -> None:
    act = lambda state, theta: torch.zeros(*state.shape[:-1], task.actions.width) + torch.tensor(task.actions.low)
    one, same, other = (returns(act, task, 1, 5, seed, horizon=8) for seed in (0, 0, 1))
    assert one.shape == (1, 5)
    assert torch.equal(one, same)
    assert not torch.equal(one, other) or bool((one == one[0, 0]).all())


@every
def test_its_gymnasium_face_ends_as_the_task_does(task: KnownSCM) -> None:
    env = SCMEnv.of_task(task, horizon=4)
    env.reset(seed=0)
    for step in range(4):
        _, reward, terminated, truncated, info = env.step(env.action_space.sample())
        assert (info["outcome"] in task.outcome_names) == terminated
        assert truncated == (step == 3 and not terminated)
        assert reward == reward
        if terminated:
            break
