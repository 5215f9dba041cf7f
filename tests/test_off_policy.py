"""Estimators against numbers worked by hand, every trajectory of a small process, and the formulas of their papers."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.ope.estimators import (
    _simplex_minimum,
    doubly_robust,
    effective_sample_size,
    importance_sampling,
    logged_return,
    magic,
    per_decision_importance_sampling,
    per_decision_weighted_importance_sampling,
    weighted_doubly_robust,
    weighted_importance_sampling,
)
from counterpoint.ope.fqe import FQE, Critic
from counterpoint.ope.problem import (
    Episodes,
    OPEData,
)
from helpers.tables import refused

Step = tuple[int, int, float]
"""State, action, reward."""
IS, PDIS = importance_sampling, per_decision_importance_sampling
WIS, PDWIS = weighted_importance_sampling, per_decision_weighted_importance_sampling


def table(episodes: list[list[Step]], subject: list[int] | None = None, ended: list[bool] | None = None) -> Transitions:
    """Logged episodes of (state, action, reward), each of a subject of its own unless told."""
    flat = [(e, t, *step) for e, steps in enumerate(episodes) for t, step in enumerate(steps)]
    last = torch.tensor([t == len(episodes[e]) - 1 for e, t, *_ in flat])
    over = torch.tensor([ended is None or ended[e] for e, *_ in flat])
    state = torch.tensor([[float(s)] for _, _, s, _, _ in flat])
    return Transitions.logged(
        state=state,
        action=torch.tensor([[float(a)] for *_, a, _ in flat]),
        reward=torch.tensor([r for *_, r in flat]),
        next_state=state,
        terminated=last & over,
        truncated=last & ~over,
        subject=torch.tensor([e if subject is None else subject[e] for e, *_ in flat]),
        episode=torch.tensor([e for e, *_ in flat]),
        step=torch.tensor([t for _, t, *_ in flat]),
        actions=Discrete.of([0.0, 1.0]),
    )


def asked(rows: Transitions, policy: Tensor, behaviour: Tensor, discount: float = 1.0) -> OPEData:
    """The question where probabilities belong to states: a row of each table is a state's."""
    state = rows.state[:, 0].long()
    return OPEData(Episodes.of(rows), policy[state], policy[state], behaviour[state], discount)


def critic(taken: Any, state: Any, after: Any = None) -> Critic:
    columns = taken, state, torch.zeros(len(taken)) if after is None else after
    return Critic(*(torch.as_tensor(column).double()[None] for column in columns))


def once(question: OPEData) -> Tensor:
    return torch.ones(1, question.episodes.subjects, dtype=torch.double)


HALF = torch.tensor([[0.5, 0.5]])
BY_HAND = [[(0, 1, 2.0)], [(0, 0, 1.0), (0, 1, 4.0)]]
"""With π(1) = 3/4, μ = 1/2 and γ = 1/2 the weights are 1.5 (kept), and 0.5 and 0.75; the returns are 2 and 3."""
HAND_CRITIC = critic([1.0, 2.0, 3.0], [1.0, 1.5, 2.5])


@pytest.mark.parametrize(
    ("estimator", "value"),
    [
        (logged_return, 2.5),
        (IS, (1.5 * 2 + 0.75 * 3) / 2),
        (WIS, (1.5 * 2 + 0.75 * 3) / 2.25),
        (PDIS, (1.5 * 2 + 0.5 * 1 + 0.5 * 0.75 * 4) / 2),
        (PDWIS, (1.5 * 2 + 0.5 * 1) / 2 + 0.5 * 0.75 * 4 / 2.25),
        # V(s0) + ρ0·(r − Q), and the same with γ·(ρ0·V(s1) + ρ1·(r − Q)) behind it.
        (partial(doubly_robust, critic=HAND_CRITIC), (1 + 1.5 * 1 + 1.5 - 0.5 * 1 + 0.5 * (0.5 * 2.5 + 0.75)) / 2),
        (partial(weighted_doubly_robust, critic=HAND_CRITIC), 1.25 + 1.0 / 2 + 0.5 * (0.5 * 2.5 / 2 + 0.75 / 2.25)),
    ],
)
def test_two_episodes_by_hand(estimator: Callable[..., Tensor], value: float) -> None:
    question = asked(table(BY_HAND), torch.tensor([[0.25, 0.75]]), HALF, 0.5)
    assert float(estimator(question, once(question))) == pytest.approx(value, rel=1e-12)


def test_weights_by_hand() -> None:
    question = asked(table(BY_HAND), torch.tensor([[0.25, 0.75]]), HALF, 0.5)
    assert effective_sample_size(question) == pytest.approx(2.25**2 / (1.5**2 + 0.75**2))


def test_a_subject_drawn_twice_counts_all_of_its_episodes_twice() -> None:
    episodes = [BY_HAND[0], BY_HAND[1], BY_HAND[1][::-1]]
    again = table([*episodes, *episodes[:2]], [0, 0, 1, 2, 2])
    few, policy = table(episodes, [0, 0, 1]), torch.tensor([[0.25, 0.75]])
    counts = torch.tensor([[2.0, 1.0]], dtype=torch.double)
    rows = torch.arange(len(again)) % len(few)  # The rows of the critic again, where they stand again.
    values = torch.linspace(-1, 2, len(few)), torch.linspace(3, 1, len(few))
    one, two = asked(few, policy, HALF, 0.5), asked(again, policy, HALF, 0.5)
    for estimator in (logged_return, IS, WIS, PDIS, PDWIS):
        torch.testing.assert_close(estimator(one, counts), estimator(two, once(two)))
    for estimator in (doubly_robust, weighted_doubly_robust):
        twice = estimator(two, once(two), critic=critic(*(each[rows] for each in values)))
        torch.testing.assert_close(estimator(one, counts, critic=critic(*values)), twice)


class Process:
    """Two states, two actions, at most three steps, and an end that may come after each."""

    horizon, discount = 3, 0.9
    move = np.array([[0.3, 0.8], [0.6, 0.1]])  # P(next state is 1 | s, a)
    end = np.array([[0.2, 0.5], [0.4, 0.1]])  # P(over | s, a)
    reward = np.array([[1.0, -2.0], [0.5, 3.0]])
    policy = np.array([[0.7, 0.3], [0.2, 0.8]])
    behaviour = np.array([[0.4, 0.6], [0.5, 0.5]])

    @classmethod
    def values(cls) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Q and V of the policy at every step, backwards, and the mean of V in the state that follows, if one does."""
        q, v, after = np.zeros((cls.horizon, 2, 2)), np.zeros((cls.horizon + 1, 2)), np.zeros((cls.horizon, 2, 2))
        for t in reversed(range(cls.horizon)):
            after[t] = cls.move * v[t + 1, 1] + (1 - cls.move) * v[t + 1, 0]
            q[t] = cls.reward + cls.discount * (1 - cls.end) * after[t]
            v[t] = (cls.policy * q[t]).sum(1)
        return q, v, after

    @classmethod
    def trajectories(cls, steps: int) -> list[tuple[list[Step], bool, float]]:
        """All of them under the behaviour, whether each came to an end within `steps`, and its probability."""
        found = []
        for states, actions in product(product((0, 1), repeat=steps), product((0, 1), repeat=steps)):
            chance, path = 0.5, []  # The first state is either.
            for t, (s, a) in enumerate(zip(states, actions, strict=True)):
                chance *= cls.behaviour[s, a]
                path = [*path, (s, a, float(cls.reward[s, a]))]
                last = t == steps - 1
                ends = 1.0 if t == cls.horizon - 1 else cls.end[s, a]
                if not any(states[t + 1 :]) and not any(actions[t + 1 :]):  # Once, not for all that could follow.
                    found.append((path, True, chance * ends))
                if last:
                    found.append((path, False, chance * (1 - ends)))
                else:
                    chance *= (1 - ends) * (cls.move[s, a] if states[t + 1] else 1 - cls.move[s, a])
        return [each for each in found if each[2] > 0]

    @classmethod
    def asked(cls, steps: int = 3, behaviour: np.ndarray | None = None) -> tuple[OPEData, Tensor]:
        """A log of all trajectories, and how probable each is: estimates by these counts are expectations."""
        paths = cls.trajectories(steps)
        rows = table([path for path, _, _ in paths], ended=[over for _, over, _ in paths])
        used = cls.behaviour if behaviour is None else behaviour
        question = asked(rows, torch.tensor(cls.policy), torch.tensor(used), cls.discount)
        return question, torch.tensor([[chance for *_, chance in paths]], dtype=torch.double)

    @classmethod
    def critic(cls, question: OPEData) -> Critic:
        q, v, after = map(torch.tensor, cls.values())
        step, state, action = question.rows.step, question.rows.state[:, 0].long(), question.rows.action_index
        return critic(q[step, state, action], v[step, state], after[step, state, action])


TRUTH = float(Process.values()[1][0].mean())
WRONG = np.array([[0.9, 0.1], [0.3, 0.7]])


def test_all_trajectories_are_there() -> None:
    question, chance = Process.asked()
    assert float(chance.sum()) == pytest.approx(1.0)
    assert set(question.episodes.length.tolist()) == {1, 2, 3}


@pytest.mark.parametrize("estimator", [IS, PDIS, WIS, PDWIS])
def test_importance_sampling_is_right_over_all_trajectories(estimator: Callable[..., Tensor]) -> None:
    question, chance = Process.asked()
    assert float(estimator(question, chance)) == pytest.approx(TRUTH, rel=1e-6)


@pytest.mark.parametrize("estimator", [doubly_robust, weighted_doubly_robust])
def test_doubly_robust_is_right_where_the_behaviour_is(estimator: Callable[..., Tensor]) -> None:
    question, chance = Process.asked()
    state, step = question.rows.state[:, 0].long(), question.rows.step
    q = torch.tensor([[3.0, -1.0], [0.5, 2.0]]).double()[state] * (1 + step[:, None])
    taken = q.gather(1, question.rows.action_index[:, None])[:, 0]
    wrong = critic(taken, (q * torch.tensor(Process.policy)[state]).sum(1), torch.full_like(taken, 7.0))
    assert float(estimator(question, chance, critic=wrong)) == pytest.approx(TRUTH, rel=1e-6)


@pytest.mark.parametrize("estimator", [doubly_robust, weighted_doubly_robust, magic])
def test_doubly_robust_is_right_where_the_critic_is(estimator: Callable[..., Tensor]) -> None:
    question, chance = Process.asked(behaviour=WRONG)
    assert abs(float(PDWIS(question, chance)) - TRUTH) > 0.1
    exact = Process.critic(question)
    counts = chance * 1000  # MAGIC asks how many subjects there are.
    assert float(estimator(question, counts, critic=exact)) == pytest.approx(TRUTH, rel=1e-6)


@pytest.mark.parametrize("estimator", [doubly_robust, weighted_doubly_robust, magic])
def test_the_critic_stands_for_what_follows_a_record_that_stops(estimator: Callable[..., Tensor]) -> None:
    question, chance = Process.asked(steps=2)
    assert bool(question.rows.truncated.any())
    exact = Process.critic(question)
    assert float(estimator(question, 1000 * chance, critic=exact)) == pytest.approx(TRUTH, rel=1e-6)


def test_a_fitted_critic_values_what_follows_a_row_as_the_next_one() -> None:
    question = drawn(ended=[True, False] * 20)
    rows = question.rows
    state = rows.state.roll(-1, 0)
    told = OPEData(Episodes.of(replace(rows, next_state=state)), *[question.policy.float()] * 3, 0.9)
    told = replace(told, policy_after=told.policy.roll(-1, 0))
    found = FQE(hidden=8).fit(told, torch.ones(2, 20, dtype=torch.double))
    inner = ~(rows.truncated | rows.terminated)
    torch.testing.assert_close(found.after[:, inner], found.state.roll(-1, 1)[:, inner])
    assert float(found.after[:, rows.terminated].abs().max()) == 0.0
    short = rows.truncated & (rows.step < 2)
    assert float(found.after[:, short].abs().min()) > 0.0
    assert float(found.after[:, rows.step == 2].abs().max()) == 0.0  # No step is left.


def drawn(episodes: int = 40, seed: int = 0, ended: list[bool] | None = None) -> OPEData:
    """Trajectories of the process as the behaviour draws them, two for each subject."""
    paths = Process.trajectories(3)
    chance = np.array([each[2] for each in paths])
    picked = np.random.default_rng(seed).choice(len(paths), episodes, p=chance / chance.sum())
    rows = table([paths[i][0] for i in picked], (np.arange(episodes) // 2).tolist(), ended)
    return asked(rows, torch.tensor(Process.policy), torch.tensor(Process.behaviour), Process.discount)


def test_the_policy_that_logged_is_worth_what_was_logged() -> None:
    rows = drawn().rows
    question = asked(rows, torch.tensor(Process.behaviour), torch.tensor(Process.behaviour), 0.9)
    earned = question.episodes.returns(0.9).double().mean()
    for estimator in (IS, WIS, PDIS, PDWIS, logged_return):
        torch.testing.assert_close(estimator(question, once(question))[0], earned, rtol=1e-6, atol=0)
    assert effective_sample_size(question) == pytest.approx(question.episodes.subjects)


def formula_of_magic(question: OPEData, values: Critic) -> tuple[float, np.ndarray]:
    """MAGIC and its j-step returns with loops over subjects, as Thomas and Brunskill write them."""
    episodes, gamma = question.episodes, question.discount
    length = episodes.places.shape[1]
    weight, w_before = question.weight.numpy(), np.ones(len(episodes))
    tables = [
        episodes.table(each).numpy() for each in (question.rows.reward.double(), values.taken[0], values.state[0])
    ]
    reward, q, v = (np.pad(each, ((0, 0), (0, 1))) for each in tables)
    parts = np.zeros((episodes.subjects, length + 1))
    for e, who in enumerate(episodes.subject.tolist()):
        for j in range(-1, length):
            total = 0.0
            for t in range(j + 1):
                w = weight[e, t] / weight[:, t].sum()
                before = (weight[e, t - 1] / weight[:, t - 1].sum()) if t else w_before[e] / w_before.sum()
                total += gamma**t * (w * (reward[e, t] - q[e, t]) + before * v[e, t])
            last = (weight[e, j] / weight[:, j].sum()) if j >= 0 else w_before[e] / w_before.sum()
            parts[who, j + 1] += total + gamma ** (j + 1) * last * v[e, j + 1]
    returns, n = parts.sum(0), len(parts)
    omega = n / (n - 1) * (parts - returns / n).T @ (parts - returns / n)
    reach = 1.6448536 * np.sqrt(omega[-1, -1])
    bias = np.maximum(returns - returns[-1] - reach, 0) + np.minimum(returns - returns[-1] + reach, 0)
    matrix = omega + np.outer(bias, bias)
    best = minimize(
        lambda x: 1e3 * x @ matrix @ x,
        np.full(length + 1, 1 / (length + 1)),
        bounds=[(0, 1)] * (length + 1),
        constraints={"type": "eq", "fun": lambda x: x.sum() - 1},
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    return float(best.x @ returns), returns


@pytest.mark.parametrize(("shift", "size"), [(0.0, 1.0), (1.5, 1.0), (-0.2, 0.3)])
def test_magic_is_its_formula(shift: float, size: float) -> None:
    question = drawn()
    exact = Process.critic(question)
    values = critic(size * exact.taken[0] + shift, size * exact.state[0] + shift)
    expected, returns = formula_of_magic(question, values)
    found = float(magic(question, once(question), critic=values))
    assert found == pytest.approx(expected, abs=1e-4 * np.ptp(returns))
    assert min(returns) <= found <= max(returns)
    wdr = float(weighted_doubly_robust(question, once(question), critic=values))
    assert returns[-1] == pytest.approx(wdr, rel=1e-9)


def test_magic_trusts_a_good_critic_and_leaves_a_bad_one() -> None:
    question = drawn(400)
    exact = Process.critic(question)
    far = critic(exact.taken[0] + 50, exact.state[0] + 50)
    wdr = float(weighted_doubly_robust(question, once(question), critic=far))
    assert float(magic(question, once(question), critic=far)) == pytest.approx(wdr, abs=0.5)
    alone = exact.state[0][question.episodes.places[:, 0]].mean()
    wdr = float(weighted_doubly_robust(question, once(question), critic=exact))
    trusted = float(magic(question, once(question), critic=exact))
    assert abs(trusted - alone) < abs(wdr - alone)


def test_the_mixture_of_the_least_variance() -> None:
    """Shares of uncorrelated estimates are as one over their variances, however far these lie apart."""
    shares = _simplex_minimum(torch.tensor([1e-8, 1.0, 4.0]).double().diag())
    torch.testing.assert_close(shares[1:], torch.tensor([1e-8, 0.25e-8]).double(), rtol=1e-3, atol=0)
    # The second one varies with the first, and more: it could only help with a negative share.
    torch.testing.assert_close(
        _simplex_minimum(torch.tensor([[1.0, 1.5], [1.5, 4.0]]).double()), torch.tensor([1.0, 0.0]).double()
    )


def test_products_of_many_small_ratios_keep_their_proportions() -> None:
    rows = table([[(0, 0, 0.0)] * 299 + [(0, 0, 5.0)], [(0, 0, 0.0)] * 299 + [(0, 1, 8.0)]])
    question = asked(rows, torch.tensor([[0.01, 0.03]]).double(), torch.tensor([[0.5, 0.5]]).double())
    assert float(question.weight[:, -1].sum()) == 0.0  # 0.02³⁰⁰
    for estimator in (WIS, PDWIS):
        assert float(estimator(question, once(question))) == pytest.approx((5 + 3 * 8) / 4)


def test_nobody_who_was_treated_so_says_nothing() -> None:
    question = asked(table(BY_HAND), torch.tensor([[1.0, 0.0]]), HALF)
    alone = torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.double)
    assert WIS(question, alone).isnan().tolist() == [True, True]
    assert PDWIS(question, alone).isnan().tolist() == [True, True]
    assert magic(question, alone, critic=HAND_CRITIC).isnan().all()
    assert effective_sample_size(question) == 0.0


def test_imagined_rows_are_refused() -> None:
    rows = table(BY_HAND)
    rows.imagined[1] = True
    assert "imagined rows" in refused(lambda: Episodes.of(rows))


def test_a_critic_of_many_members_is_refused() -> None:
    question = asked(table(BY_HAND), HALF, HALF)
    many = Critic(*torch.zeros(3, 2, 3))
    for estimator in (doubly_robust, weighted_doubly_robust, magic):
        assert "2 members" in refused(lambda made=estimator: made(question, once(question), critic=many))
