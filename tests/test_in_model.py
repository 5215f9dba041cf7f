"""A policy by a model: by the true one it is worth its true value; intervals are over subjects and members."""

from dataclasses import replace

import pytest
import torch

import counterpoint as cp
from counterpoint.data.jobs import Origin
from counterpoint.learners.search import SearchedPolicy
from counterpoint.ope.model_based import MemberReturns, counterfactual_episodes, counterfactual_value, value_in_model
from counterpoint.ope.problem import Episodes
from counterpoint.simulation.rollout import Rollout, TaskSimulator
from helpers.recipes import BRIEF
from helpers.tables import refused
from reproduction.true_model import TrueModel

TASK = cp.Ward()
STEPS = 12


def rule(numbers: list[float]) -> SearchedPolicy:
    weights = {"numbers": torch.tensor(numbers), "returns": torch.zeros(1)}
    weights |= {"mean": torch.zeros(1, 2), "spread": torch.ones(1, 2)}
    return SearchedPolicy(cp.Search(), weights, TASK.schema, Origin(0, "", ""))


TREATS = rule([0.8, -0.4, -0.6])
LOG = cp.simulate(TASK, cp.random_policy(TASK), 800, STEPS, seed=3)
EPISODES = Episodes.of(LOG)
EXACT = TrueModel(TASK).fit(LOG)


@torch.no_grad()
def truth(discount: float, rollouts: int = 20_000) -> float:
    """The mean over new episodes from the log's own first states."""
    first = LOG.state[EPISODES.places[:, 0]]
    start = first.repeat(rollouts // len(first), 1)[None]
    simulator = TaskSimulator(TASK)
    steps = Rollout(simulator, TASK, TREATS.actor())(start, simulator.fresh(start.shape[1], 11), STEPS)
    return sum(float((discount**t * step.alive * step.reward).mean()) for t, step in enumerate(steps))


@pytest.mark.parametrize("discount", [1.0, 0.8])
def test_by_the_true_model_both_give_the_true_value(discount: float) -> None:
    expected = truth(discount)
    simulated = value_in_model(EPISODES, TREATS, EXACT, TASK, discount, rollouts=20)
    assert simulated.value == pytest.approx(expected, abs=0.05)
    replayed = counterfactual_value(EPISODES, TREATS, TASK, TASK, discount)
    inside = replayed.interval(0.99)
    assert not inside.excludes(expected)
    assert inside.high - inside.low < 1.0


def test_who_died_at_once_is_replayed_to_the_horizon() -> None:
    """Records that end early must not shorten what the policy is credited with."""
    whole = counterfactual_value(EPISODES, TREATS, TASK, TASK)
    assert len(whole.returns) == len(EPISODES)
    at_once = EPISODES.length == 1
    assert bool(at_once.any())
    recorded = counterfactual_episodes(LOG, TREATS, TASK, TASK)
    assert len(recorded.returns) == len(EPISODES) - int(at_once.sum())
    assert whole.returns[at_once].std() > 0


def test_a_replay_goes_on_with_the_record_s_noise_first() -> None:
    short, long = (counterfactual_episodes(LOG, TREATS, TASK, TASK, horizon=h, seed=h) for h in (STEPS, STEPS + 3))
    recorded = (EPISODES.length[:, None] > torch.arange(STEPS))[..., None]
    torch.testing.assert_close(short.alive * recorded, long.alive[:, :STEPS] * recorded)
    assert long.alive.shape[1] == STEPS + 3
    assert bool((long.alive[:, STEPS:] > 0).any())


def test_replays_and_records_are_discounted_alike() -> None:
    found = counterfactual_episodes(LOG, TREATS, TASK, TASK, discount=0.5)
    powers = 0.5 ** torch.arange(STEPS)
    torch.testing.assert_close(found.returns[:, 0], (powers[:, None] * found.alive * found.reward).sum(1)[:, 0])
    torch.testing.assert_close(found.factual, Episodes.of(LOG[LOG.has_next]).returns(0.5))


def test_the_interval_draws_subjects_not_episodes() -> None:
    """Subjects with a hundred alike episodes each are as few as they are."""
    values = torch.randn(20, 1, generator=torch.Generator().manual_seed(0))
    once = MemberReturns(values, torch.arange(20)).interval()
    often = MemberReturns(values.repeat_interleave(100, 0), torch.arange(20).repeat_interleave(100)).interval()
    assert often.low == pytest.approx(once.low)
    assert often.high == pytest.approx(once.high)


def test_the_interval_is_as_wide_as_members_differ() -> None:
    values = torch.zeros(50, 2)
    values[:, 1] = 1.0
    found = MemberReturns(values, torch.arange(50)).interval()
    assert (found.estimate, found.low, found.high) == (0.5, 0.0, 1.0)


def test_counts_of_two_are_a_doubled_table() -> None:
    values = torch.randn(6, 3)
    own = MemberReturns(values, torch.tensor([0, 0, 1, 1, 1, 2]))
    doubled = MemberReturns(torch.cat([values, values[:2]]), torch.tensor([0, 0, 1, 1, 1, 2, 3, 3]))
    counted = own.resampled(torch.tensor([[2.0, 1.0, 1.0]]))
    torch.testing.assert_close(counted, doubled.resampled(torch.ones(1, 4)))
    torch.testing.assert_close(own.resampled(torch.ones(1, 3))[0], values.double().mean(0))


def test_a_fitted_model_is_asked_in_every_member() -> None:
    model = cp.DensitySCM(ensemble=2, hidden=(8,), likelihood=BRIEF).fit(LOG)
    some = Episodes.of(LOG[LOG.subject < 30])
    for found in (value_in_model(some, TREATS, model, TASK), counterfactual_value(some, TREATS, model, TASK)):
        assert found.returns.shape == (30, 2)
        assert bool((found.returns[:, 0] != found.returns[:, 1]).any())
    again = value_in_model(some, TREATS, model, TASK)
    assert torch.equal(again.returns, value_in_model(some, TREATS, model, TASK).returns)


def test_every_part_of_many_episodes_meets_noise_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Episodes simulated apart are as independent as those simulated side by side: from one first state, and under one
    seed for all parts, both parts would earn the same."""
    monkeypatch.setattr("counterpoint.ope.model_based.AT_ONCE", 64)
    first = torch.zeros_like(LOG.step).index_fill_(0, EPISODES.places[:2, 0], 1).bool()
    alike = replace(LOG[first], state=LOG.state[:1].repeat(2, 1))
    long = replace(Episodes.of(alike), places=torch.tensor([[0] + [-1] * (STEPS - 1), [1] + [-1] * (STEPS - 1)]))
    found = value_in_model(long, TREATS, EXACT, TASK, rollouts=64)
    assert found.returns.shape == (2, 1)
    assert float(found.returns[0, 0]) != float(found.returns[1, 0])


def test_what_does_not_fit_is_refused() -> None:
    cart = cp.CartPole()
    rows = cp.simulate(cart, cp.random_policy(cart), 2, 5, seed=0)
    assert "policy" in refused(lambda: value_in_model(EPISODES, TREATS, TrueModel(cart).fit(rows), TASK))
    assert "table" in refused(lambda: value_in_model(Episodes.of(rows), TREATS, EXACT, TASK))
