"""What would have happened to these subjects: exact in known SCMs, factual under the factual policy in fitted ones."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import counterpoint as cp
from counterpoint.data.jobs import Origin
from counterpoint.models.scm.base import StructuralCausalModel
from counterpoint.ope.model_based import counterfactual_episodes
from counterpoint.policies.searched import SearchedPolicy
from counterpoint.policies.values import rollout_values
from helpers.effects import by_hand, logged
from helpers.recipes import BRIEF, Pays

SHAPES = False
TASK = cp.CartPole()


def rule(numbers: list[float]) -> SearchedPolicy:
    weights = {"numbers": torch.tensor(numbers), "returns": torch.zeros(1)}
    weights |= {"mean": torch.zeros(1, 4), "spread": torch.ones(1, 4)}
    return SearchedPolicy(cp.Search(), weights, TASK.schema, Origin(0, "", ""))


HOLDS, FALLS = rule([0.5, 1.0, 12.0, 2.0, 0.0]), rule([0.0, 0.0, -9.0, 0.0, 0.1])
RANDOM = cp.simulate(TASK, cp.random_policy(TASK), 40, 20, seed=1)
LOG = cp.simulate(TASK, HOLDS, 6, 30, seed=4, stop_at_failure=True)


@pytest.fixture(scope="module")
def model() -> StructuralCausalModel:
    return cp.DensitySCM(ensemble=2, hidden=(8,), likelihood=BRIEF).fit(RANDOM)


def test_in_a_known_scm_a_replay_is_the_simulator_with_the_same_noise() -> None:
    found = counterfactual_episodes(LOG, FALLS, TASK, TASK)
    for e in range(6):
        own = LOG[LOG.episode == e]
        state = own.state[0]
        for t in range(len(own)):
            if not bool(found.alive[e, t, 0]):
                break
            torch.testing.assert_close(found.state[e, t, 0], state)
            action = FALLS._act(state[None], torch.zeros(1, 0))[0]
            assert torch.equal(found.action[e, t, 0], action)
            state = TASK.transition(state, action, own.noise[t])
    assert bool((found.returns[:, 0] < found.factual).all())
    assert found.members.value == pytest.approx(float(found.returns.mean()))


def test_the_factual_policy_gives_the_record_back(model: StructuralCausalModel) -> None:
    found = counterfactual_episodes(LOG, HOLDS, model, TASK)
    for e in range(6):
        own = LOG[LOG.episode == e]
        for member in range(2):
            torch.testing.assert_close(found.state[e, : len(own), member], own.state, atol=2e-3, rtol=1e-2)
    torch.testing.assert_close(found.returns, found.factual[:, None].expand(-1, 2))
    inside = found.members.interval()
    assert inside.low <= inside.estimate <= inside.high


def test_the_value_is_the_mean_over_subjects_and_close_to_the_truth(model: StructuralCausalModel) -> None:
    truth, fitted = counterfactual_episodes(LOG, FALLS, TASK, TASK), counterfactual_episodes(LOG, FALLS, model, TASK)
    assert abs(truth.members.value - fitted.members.value) < 0.25 * truth.members.value
    half, most = fitted.members.interval(0.5), fitted.members.interval(0.99)
    assert most.low <= half.low <= half.high <= most.high


def test_noise_and_next_states_are_those_of_the_factor_that_is_given() -> None:
    """s' = s + θ·a + u with θ = 2 and −1. Subject 0 goes 0, 0.5, 1 under doses 1 and 0, so u = −1.5 and 0.5;
    subject 1 goes 1, 1 under dose 1, so u = 1. Half a dose in every step gives 0 + 1 − 1.5, then − 0.5 + 1 + 0.5, and
    1 − 0.5 + 1."""
    rows = logged(
        torch.tensor([[0.0], [0.5], [1.0]]),
        torch.tensor([[1.0], [0.0], [1.0]]),
        torch.tensor([[0.5], [1.0], [1.0]]),
        torch.tensor([0, 0, 1]),
    )
    weights = {"numbers": torch.zeros(2), "returns": torch.zeros(1), "doses": torch.tensor([[0.5], [1.0], [1.0]])}
    weights |= {"mean": torch.zeros(1, 1), "spread": torch.ones(1, 1)}
    half = SearchedPolicy(cp.Search(sees_factor=False), weights, rows.schema, Origin(0, "", ""))
    model, theta = by_hand([[0.0, 0.0, 1.0]], 1.0, rows), torch.tensor([[2.0], [2.0], [-1.0]])
    found = counterfactual_episodes(rows, half, model, Pays(rows.actions), theta)
    torch.testing.assert_close(found.next_state[0, :, 0, 0], torch.tensor([-0.5, 1.0]), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.next_state[1, 0, 0, 0], torch.tensor(1.5), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.returns[:, 0], torch.tensor([0.5, 1.5]), atol=1e-5, rtol=0)


def test_records_of_different_lengths_count_over_their_own_steps() -> None:
    short = LOG[~((LOG.episode == 0) & (LOG.step >= 5))]
    found = counterfactual_episodes(short, HOLDS, TASK, TASK)
    assert found.returns[0, 0] == 5
    assert not bool(found.alive[0, 5:].any())
    torch.testing.assert_close(found.returns[1:], counterfactual_episodes(LOG, HOLDS, TASK, TASK).returns[1:])


def test_support_is_the_share_of_similar_states_with_that_action() -> None:
    found = counterfactual_episodes(LOG, HOLDS, TASK, TASK, logged=RANDOM)
    assert 0.02 < found.support.mean() < 0.3
    assert bool(counterfactual_episodes(LOG, HOLDS, TASK, TASK).support.isnan().all())


def test_what_is_no_record_is_refused(model: StructuralCausalModel) -> None:
    with pytest.raises(cp.CounterpointError, match="lacks rows in the middle"):
        counterfactual_episodes(LOG[LOG.step != 3], HOLDS, model, TASK)
    with pytest.raises(cp.CounterpointError, match="no recorded noise"):
        counterfactual_episodes(replace(LOG, noise=LOG.noise[:, :0]), HOLDS, TASK, TASK)
    with pytest.raises(cp.CounterpointError, match="imagined rows are no record"):
        counterfactual_episodes(replace(LOG, imagined=torch.ones_like(LOG.imagined)), HOLDS, model, TASK)


def test_one_step_values_are_the_mean_reward_over_the_same_noise(model: StructuralCausalModel) -> None:
    task, states = Pays(TASK.actions), LOG.state[:2]
    values = rollout_values(HOLDS, model, task, states, episodes=5, horizon=1, seed=3)
    noise = model.mechanism.prior(5, torch.Generator().manual_seed(3))
    for i, action in ((0, 2), (1, 7)):
        told = TASK.actions.table()[action].expand(5, -1)
        after = model.member_predictions(states[i].expand(5, -1), told, noise.expand(2, -1, -1))
        torch.testing.assert_close(values.members[:, i, action], after[..., 0].mean(1))
    torch.testing.assert_close(values.mean, values.members.mean(0))
    assert bool((values.low <= values.mean).all() & (values.mean <= values.high).all())


def test_the_value_of_a_state_is_that_of_the_policy_s_own_action(model: StructuralCausalModel) -> None:
    states = LOG.state[5:9]
    task = Pays(TASK.actions)
    by_action = rollout_values(FALLS, model, task, states, episodes=4, horizon=15)
    own = TASK.actions.index(FALLS.act(states))
    alone = rollout_values(FALLS, model, task, states, episodes=4, every_action=False, horizon=15)
    torch.testing.assert_close(alone.mean[:, 0], by_action.mean[torch.arange(4), own])


def test_values_are_discounted_and_agreement_is_counted(model: StructuralCausalModel) -> None:
    whole, half = (
        rollout_values(HOLDS, model, TASK, LOG.state[:1], every_action=False, horizon=3, discount=d).mean
        for d in (1.0, 0.5)
    )
    assert (float(whole), float(half)) == (3.0, 1.75)
    values = rollout_values(HOLDS, model, TASK, LOG.state[:3], horizon=2)
    members = torch.tensor([[[0.0, 1.0, 0.5]], [[0.0, 0.0, 0.9]]])
    counted = replace(values, members=members)
    assert (int(counted.best), float(counted.agreement)) == (2, 0.5)


def test_a_state_unlike_the_log_is_refused(model: StructuralCausalModel) -> None:
    far: Tensor = LOG.state[:2] + torch.tensor([[0.0] * 4, [50.0] * 4])
    with pytest.raises(cp.CounterpointError, match="row 1 is unlike every state of the log"):
        rollout_values(HOLDS, model, TASK, far, every_action=False, horizon=2, logged=LOG)
    with pytest.raises(cp.CounterpointError, match="has no 'position' at row 0"):
        rollout_values(HOLDS, model, TASK, [float("nan")] * 4, every_action=False, horizon=2)
