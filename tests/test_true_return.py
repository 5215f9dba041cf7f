"""True returns: a fall at a known step, the horizon, and the same chance for every policy."""

from dataclasses import dataclass, replace

import pytest
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from counterpoint.core.errors import CounterpointError
from counterpoint.core.seeding import generator
from counterpoint.data.jobs import Job
from counterpoint.data.spaces import Discrete
from counterpoint.learners.d3qn import D3QN
from counterpoint.nets.training import Schedule
from counterpoint.ope.model_based import returns, true_return, true_returns
from counterpoint.simulation.rollout import Actor
from counterpoint.simulation.trials import random_policy, simulate
from counterpoint.tasks.base import KnownSCM
from counterpoint.tasks.cartpole import CartPole
from counterpoint.tasks.tumour import LOG_CAPACITY, Tumour, TumourResponse


@dataclass(frozen=True)
class Walk(KnownSCM):
    """s' = s + a + size·u, worth 1 a step and the action besides; over beyond 4.5."""

    size: float = 0.0
    discount: float = 1.0
    horizon: int = 12
    actions = Discrete.of([0.0, 1.0, 2.0])
    state_names = ("s",)
    noise_width = 1

    def reward(
        self, state: Float[Tensor, "*n s"], action: Float[Tensor, "*n a"], next_state: Float[Tensor, "*n s"]
    ) -> Float[Tensor, "*n"]:
        return 1 + 0.1 * action[..., 0]

    def terminated(self, next_state: Float[Tensor, "*n s"]) -> Bool[Tensor, "*n"]:
        return next_state[..., 0] > 4.5

    def initial(self, count: int, generator: torch.Generator) -> Float[Tensor, "n s"]:
        return self.size * torch.randn(count, 1, generator=generator)

    def noise(self, count: int, generator: torch.Generator) -> Float[Tensor, "n u"]:
        return torch.randn(count, 1, generator=generator)

    def transition(
        self, state: Float[Tensor, "*n s"], action: Float[Tensor, "*n a"], noise: Float[Tensor, "*n u"]
    ) -> Float[Tensor, "*n s"]:
        return state + action + self.size * noise


def always(*values: float) -> Actor:
    """Policy k takes values[k] whatever it sees."""

    def act(state: Float[Tensor, "k n s"], theta: Float[Tensor, "k n t"]) -> Float[Tensor, "k n a"]:
        return torch.tensor(values)[:, None, None].expand(-1, state.shape[1], 1)

    return act


def test_returns_of_known_falls_and_of_the_horizon() -> None:
    """Steps of 1 end with the fifth, steps of 2 with the third; standing still lasts to the horizon."""
    got = returns(always(0.0, 1.0, 2.0), Walk(), 3, 4, seed=0, horizon=20)
    torch.testing.assert_close(got, torch.tensor([[20.0], [5.5], [3.6]]).expand(-1, 4))


def test_the_horizon_caps() -> None:
    got = returns(always(0.0, 1.0), Walk(), 2, 2, seed=0, horizon=3)
    torch.testing.assert_close(got, torch.tensor([[3.0], [3.3]]).expand(-1, 2))


def test_unless_told_otherwise_the_horizon_is_the_tasks() -> None:
    assert returns(always(0.0), Walk(), 1, 2, seed=0).tolist() == [[12.0, 12.0]]
    assert returns(always(0.0), Walk(horizon=7), 1, 2, seed=0).tolist() == [[7.0, 7.0]]


def test_no_trials_are_one_line() -> None:
    with pytest.raises(CounterpointError, match=r"^0 trials say nothing;[^\n]*$"):
        returns(always(0.0), Walk(), 1, 0, seed=0)


def test_trial_i_is_one_of_subject_i_and_the_policy_is_told_its_factor() -> None:
    """Nobody treated: patient i's tumour grows at the patient's own rate, whatever the policy makes of the factors."""
    task = Tumour(TumourResponse(*torch.tensor([[0.1] * 3, [0.0, 0.01, 0.02], [0.028] * 3])), noise_size=0.0)
    told: list[Tensor] = []

    def act(state: Float[Tensor, "k n s"], theta: Float[Tensor, "k n t"]) -> Float[Tensor, "k n a"]:
        told.append(theta)
        return torch.zeros(*state.shape[:2], 2)

    factors = torch.tensor([[5.0], [6.0], [7.0]])
    got = returns(act, task, 2, 3, seed=0, horizon=1, theta=factors)
    start = task.initial(3, generator(0, "evaluation start"))[:, 0]
    growth = torch.tensor([0.0, 0.01, 0.02]) * (LOG_CAPACITY - start)
    torch.testing.assert_close(got, -growth.expand(2, -1), rtol=0, atol=1e-5)
    assert torch.equal(told[0], factors.expand(2, -1, -1))


def test_nothing_is_earned_after_the_end() -> None:
    """The walk could come back below the limit, but the episode is over."""

    def act(state: Float[Tensor, "k n s"], theta: Float[Tensor, "k n t"]) -> Float[Tensor, "k n a"]:
        return torch.where(state > 4.5, -5.0, 2.0)

    assert returns(act, Walk(), 1, 1, seed=0, horizon=50).item() == pytest.approx(3.6)


@pytest.mark.parametrize("task", [CartPole(noise_size=0.1), CartPole(noise_reading="observation", noise_size=0.6)])
def test_every_policy_meets_the_same_chance(task: CartPole) -> None:
    feedback = lambda state, theta: task.actions.features(10 * (state[..., 2] + state[..., 3] > 0).long())
    twice = returns(feedback, task, 2, 6, seed=0, horizon=200)
    alone = returns(feedback, task, 1, 6, seed=0, horizon=200)
    assert torch.equal(twice[0], twice[1])
    assert torch.equal(alone[0], twice[0])
    assert not torch.equal(alone, returns(feedback, task, 1, 6, seed=1, horizon=200))
    assert len(set(alone[0].tolist())) > 1


def test_a_policys_chance_does_not_depend_on_the_others() -> None:
    task = Walk(size=0.5)
    beside = returns(always(1.0, 2.0), task, 2, 50, seed=0, horizon=20)
    assert torch.equal(beside[0], returns(always(1.0), task, 1, 50, seed=0, horizon=20)[0])
    assert len(set(beside[0].tolist())) > 3


def test_a_trial_follows_the_tasks_equation() -> None:
    """One trial replayed by hand from its seed."""
    task = Walk(size=0.5)
    state, chance = task.initial(3, generator(7, "evaluation start")), generator(7, "evaluation")
    total, alive = torch.zeros(3), torch.ones(3)
    for _ in range(10):
        state = state + 1 + 0.5 * torch.randn(3, 1, generator=chance)
        total += 1.1 * alive
        alive *= state[:, 0] <= 4.5
    torch.testing.assert_close(returns(always(1.0), task, 1, 3, seed=7, horizon=10)[0], total)


def test_many_policies_are_evaluated_as_one_by_one() -> None:
    task = CartPole()
    data = simulate(task, random_policy(task), 5, 20, 0)
    how = D3QN(hidden=(16,), schedule=Schedule(steps=100), batch=32)
    policies = [learned.selected for learned in how.fit_many([Job(data, seed) for seed in range(3)], task)]
    together = true_returns(policies, task, trials=4, seed=2, horizon=60)
    for k, policy in enumerate(policies):
        assert torch.equal(true_return(policy, task, trials=4, seed=2, horizon=60), together[k])
    assert not torch.equal(together[0], together[1]) or not torch.equal(together[0], together[2])


def test_evaluation_noise_is_that_of_the_task() -> None:
    """Without noise every trial of a policy that sees nothing differs by its start alone."""
    task = CartPole(noise_size=0.0)
    still = replace(task, noise_size=0.3)
    push = lambda state, theta: torch.full((*state.shape[:-1], 1), 0.5)
    calm, shaken = (returns(push, t, 1, 30, seed=0, horizon=300) for t in (task, still))
    assert shaken.mean() < calm.mean()
