"""STEVE's weights and targets against cases worked by hand, and MVE against what it reduces to."""

from dataclasses import replace

import pytest
import torch

from counterpoint.data.jobs import Job
from counterpoint.dynamics.deterministic import Deterministic
from counterpoint.errors import CounterpointError
from counterpoint.nets.conditional import Likelihood
from counterpoint.nets.training import Schedule
from counterpoint.policies.d3qn import D3QN
from counterpoint.policies.steve import MVE, STEVE, ExpansionLearner, ValueExpansion, inverse_variance, last_horizon
from counterpoint.tasks.cartpole import CartPole
from counterpoint.tasks.simulate import random_policy, simulate

SMALL = D3QN(hidden=(16,), schedule=Schedule(steps=40), batch=32)
MODEL = Deterministic(hidden=(8,), batch_norm=False, likelihood=Likelihood(schedule=Schedule(steps=20)))


def logged(trials: int = 20, seed: int = 0):
    task = CartPole()
    return simulate(task, random_policy(task), trials, 20, seed)


def by_hand(recipe: ValueExpansion) -> ExpansionLearner:
    """CartPole's states with constant models: transition model d moves the cart by 0.5 + d, reward model m says 1 + m,
    Q-function l says 10 + l for action 0 and less for the others; the target network says 100 times as much."""
    task, data = CartPole(), logged(5)
    online = recipe.network(4, 11, recipe.q_functions)
    learner = ExpansionLearner(online, recipe, [Job(data)], task, task.actions, None)
    dynamics = recipe.model.network(4, 5, recipe.dynamics)
    dynamics.y_mean[:, 0, 0] = 0.5 + torch.arange(recipe.dynamics)
    reward = None
    if recipe.rewards:
        from counterpoint.dynamics.base import HeadNetwork
        from counterpoint.dynamics.deterministic import Point

        reward = HeadNetwork(recipe.rewards, 9, 1, Point(), (), batch_norm=False)
        reward.y_mean[:, 0, 0] = 1.0 + torch.arange(recipe.rewards)
    for network, scale in ((learner.online, 1.0), (learner.target, 100.0)):
        # value + advantage − mean advantage with advantages (11, 0, …, 0): Q of action 0 is value + 10
        network.net.layers[-1].bias.data[:, 0, 0] = scale * torch.arange(recipe.q_functions)
        network.net.layers[-1].bias.data[:, 0, 1] = scale * 11.0
    learner.expand_with(dynamics, reward, task)
    return learner


def test_weights_of_a_case_worked_by_hand() -> None:
    variance = torch.tensor([1.0, 0.5, 4.0])[:, None, None]
    # 1/1 : 1/0.5 : 1/4 = 4 : 8 : 1
    torch.testing.assert_close(inverse_variance(variance).flatten(), torch.tensor([4.0, 8.0, 1.0]) / 13)
    equal = inverse_variance(torch.zeros(4, 1, 1)).flatten()
    torch.testing.assert_close(equal, torch.full((4,), 0.25))
    assert last_horizon(variance).flatten().tolist() == [0.0, 0.0, 1.0]


def test_target_mixes_the_horizons_by_their_agreement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Horizon 0: candidates 1 and 3, mean 2, variance 1. Horizon 1: 6 and 10, mean 8, variance 4. Mix: (4·2 + 8)/5."""
    learner = by_hand(STEVE(horizon=1, dynamics=1, rewards=1, q_functions=2, model=MODEL, learner=SMALL))
    candidates = torch.tensor([[1.0, 3.0], [6.0, 10.0]]).view(2, 1, 1, 1, 2, 1)
    monkeypatch.setattr(learner, "candidates", lambda *rows: candidates)
    rows = torch.zeros(2, 1), torch.zeros(2, 1, 4), torch.ones(2, 1)
    torch.testing.assert_close(learner.bootstrap(*rows), torch.full((2, 1), 16 / 5))


def test_candidates_of_a_case_worked_by_hand() -> None:
    """Two rows in the middle of the track, the second ended. The models move by 0.5 or 1.5; the track ends at 2.4."""
    learner = by_hand(STEVE(horizon=3, dynamics=2, rewards=2, q_functions=2, model=MODEL, learner=SMALL))
    gamma, reward = 0.99, torch.tensor([[0.3, 0.7]])
    state = torch.zeros(1, 2, 4)
    found = learner.candidates(reward, state, torch.tensor([[1.0, 0.0]]))
    assert found.shape == (4, 1, 2, 2, 2, 2)
    for r in range(2):
        for d in range(2):
            for q in range(2):
                worth = 100.0 * (q + 10)
                # the second model leaves the track at 1.5 + 1.5 > 2.4: that step still earns, no value follows
                goes_on = [1.0, 1.0, 1.0 if d == 0 else 0.0, 1.0 if d == 0 else 0.0]
                total, expected = 0.3, []
                for i in range(4):
                    expected.append(total + gamma ** (i + 1) * goes_on[i] * worth)
                    total += gamma ** (i + 1) * goes_on[i] * (1.0 + r)
                torch.testing.assert_close(found[:, 0, r, d, q, 0], torch.tensor(expected), rtol=1e-5, atol=1e-4)
    # the second row has ended: its reward is all there is
    torch.testing.assert_close(found[..., 1], torch.full_like(found[..., 1], 0.7))


def test_tasks_own_reward_takes_the_place_of_reward_models() -> None:
    learner = by_hand(STEVE(horizon=1, dynamics=1, rewards=0, q_functions=1, model=MODEL, learner=SMALL))
    found = learner.candidates(torch.zeros(1, 1), torch.zeros(1, 1, 4), torch.ones(1, 1)).flatten()
    torch.testing.assert_close(found, torch.tensor([990.0, 0.99 + 0.99**2 * 1000]))


def test_mve_takes_the_longest_horizon_alone() -> None:
    learner = by_hand(MVE(horizon=2, model=MODEL, learner=SMALL))
    rows = torch.zeros(1, 1), torch.zeros(1, 1, 4), torch.ones(1, 1)
    expected = 0.99 + 0.99**2 + 0.99**3 * 1000
    torch.testing.assert_close(learner.bootstrap(*rows), torch.tensor([[expected]]))


def test_mve_of_horizon_zero_is_d3qn_bit_for_bit() -> None:
    data, task = logged(), CartPole()
    ours = MVE(horizon=0, model=MODEL, learner=SMALL).fit(data, task, seed=5)
    theirs = SMALL.fit(data, task, seed=5)
    for name, tensor in theirs.weights().items():
        assert torch.equal(ours.weights()[name], tensor), name
    longer = MVE(horizon=1, model=MODEL, learner=SMALL).fit(data, task, seed=5)
    assert not torch.equal(longer.weights()["net.layers.0.weight"], theirs.weights()["net.layers.0.weight"])


def test_q_functions_differ_and_vote_by_their_mean() -> None:
    data, task = logged(), CartPole()
    policy = STEVE(horizon=1, dynamics=2, rewards=1, q_functions=3, model=MODEL, learner=SMALL).fit(data, task)
    values = policy.network(data.state[:30].expand(3, -1, -1))
    assert (values[0] - values[1]).abs().max() > 1e-3
    assert torch.equal(policy.index(data.state[:30]), values.mean(0).argmax(-1))


def test_jobs_learn_the_same_alone_and_together_and_act_the_same() -> None:
    task, recipe = CartPole(), STEVE(horizon=2, dynamics=2, rewards=2, q_functions=2, model=MODEL, learner=SMALL)
    jobs = [Job(logged(10, seed=1), 3), Job(logged(20, seed=2), 4)]
    learned = recipe.fit_many(jobs, task)
    alone = recipe.fit_many(jobs[1:], task)[0]
    for name, tensor in alone.selected.weights().items():
        torch.testing.assert_close(learned[1].selected.weights()[name], tensor, atol=1e-4, rtol=1e-3)
    policies = [each.last for each in learned]
    state = torch.stack([job.data.state[:50] for job in jobs])
    acted = type(policies[0]).together(policies)(state)
    for k, policy in enumerate(policies):
        assert torch.equal(acted[k], policy.act(state[k]))
    back = recipe.rebuild(policies[0].header(), policies[0].weights(), task.actions, policies[0].origin)
    assert torch.equal(back.act(state[0]), acted[0])


def test_checkpoint_is_chosen_by_the_judge_of_its_own_models() -> None:
    """A judge that likes the first check best; the last weights are still those of the end."""
    data, task, seen = logged(), CartPole(), []

    def judge_in(models, jobs, task):
        assert [model.network.members for model in models] == [2]

        def judge(actor):
            seen.append(actor(data.state[None, :4]).shape)
            return torch.tensor([float(len(seen))])

        return judge

    checking = replace(SMALL, schedule=Schedule(steps=40, check_every=10))
    recipe = STEVE(horizon=1, dynamics=2, rewards=1, q_functions=2, model=MODEL, learner=checking)
    learned = recipe.fit_many([Job(data, 7)], task, judge_in=judge_in)[0]
    brief = replace(recipe, learner=replace(SMALL, schedule=Schedule(steps=10)))
    early = brief.fit_many([Job(data, 7)], task)[0]
    assert seen == [(1, 4, 1)] * 4
    torch.testing.assert_close(learned.selected.weights(), early.last.weights())
    assert not torch.equal(learned.last.weights()["net.layers.0.weight"], early.last.weights()["net.layers.0.weight"])
    with pytest.raises(CounterpointError, match="no judge"):
        recipe.fit(data, task)
