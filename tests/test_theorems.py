"""The paper's two theorems, checked by numbers: counterfactuals are identified, and Q-learning on them finds Q*."""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from counterpoint.tasks.synthetic import Heteroscedastic, Skewed, Turning

Equation = Callable[[Tensor, Tensor, Tensor], Tensor]


def rows(count: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """State, action, alternative action and standard normal noise."""
    random = torch.Generator().manual_seed(seed)
    state, noise = (torch.randn(count, 1, generator=random, dtype=torch.float64) for _ in range(2))
    action, alternative = (2 * torch.rand(count, 1, generator=random, dtype=torch.float64) - 1 for _ in range(2))
    return state, action, alternative, noise


def invert(equation: Equation, state: Tensor, action: Tensor, next_state: Tensor, low: float, high: float) -> Tensor:
    """Abduct by bisection, for an equation that rises with its noise."""
    below, above = torch.full_like(next_state, low), torch.full_like(next_state, high)
    for _ in range(80):
        middle = (below + above) / 2
        short = equation(state, action, middle) < next_state
        below, above = torch.where(short, middle, below), torch.where(short, above, middle)
    return (below + above) / 2


class TestTheorem1:
    """Strictly monotone SCMs with one law of s' given (s, a) have one counterfactual, the α-quantile under a'."""

    @pytest.mark.parametrize("task", [Heteroscedastic(), Skewed()])
    def test_two_scms_of_one_law_agree(self, task: Heteroscedastic | Skewed) -> None:
        state, action, alternative, noise = rows(200)
        next_state = task.transition(state, action, noise)
        # The other SCM draws v uniform on (0, 1) and feeds Φ⁻¹(v): another noise, another equation, the same law.
        other: Equation = lambda s, a, v: task.transition(s, a, torch.special.ndtri(v))
        u = invert(task.transition, state, action, next_state, -9, 9)
        v = invert(other, state, action, next_state, 0, 1)
        assert (u - v).abs().max() > 0.5
        torch.testing.assert_close(
            task.transition(state, alternative, u), other(state, alternative, v), rtol=0, atol=1e-6
        )

    @pytest.mark.parametrize("task", [Heteroscedastic(), Skewed()])
    def test_counterfactual_is_the_quantile(self, task: Heteroscedastic | Skewed) -> None:
        """α from draws of P(s' | s, a), the quantile from other draws of P(s' | s, a'): no noise is abducted."""
        state, action, alternative, noise = rows(60, seed=1)
        random = torch.Generator().manual_seed(2)
        draws, others = (torch.randn(60, 20_000, 1, generator=random, dtype=torch.float64) for _ in range(2))
        often = lambda column: column[:, None].expand(-1, 20_000, -1)
        factual = task.transition(often(state), often(action), draws)[..., 0]
        alpha = (factual < task.transition(state, action, noise)).double().mean(1)
        inner = (alpha > 0.05) & (alpha < 0.95)
        under_alternative = task.transition(often(state), often(alternative), others)[..., 0].sort(1).values
        quantile = under_alternative.gather(1, (alpha * 20_000).long()[:, None])
        truth = task.transition(state, alternative, noise)
        assert inner.sum() > 40
        torch.testing.assert_close(quantile[inner], truth[inner], rtol=0, atol=0.05)

    def test_opposite_directions_break_it(self) -> None:
        """S' = (2a − 1)·U and S' = U have equal laws for a in {0, 1} and symmetric U, and opposite counterfactuals."""
        noise = torch.randn(100_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        flipping = lambda a, u: (2 * a - 1) * u
        for action in (0, 1):
            laws = flipping(action, noise).sort().values, noise.sort().values
            assert (laws[0] - laws[1])[1000:-1000].abs().max() < 0.05
        seen = noise  # under a = 1 both SCMs abduct u = s'
        torch.testing.assert_close(flipping(1, noise), seen)
        torch.testing.assert_close(flipping(0, seen), -seen)
        assert (flipping(0, seen) - seen).square().mean() > 3.5

    def test_a_vector_state_is_not_identified_without_own_noises(self) -> None:
        """Turning noises give the law of noises that stay, N(m, .16 I) at every (s, a), and other counterfactuals."""
        random, task = torch.Generator().manual_seed(0), Turning()
        state = torch.randn(1, 4, generator=random).expand(200_000, -1)
        noise = torch.randn(200_000, 4, generator=random)
        for value in (-0.9, -0.3, 0.5):
            action = torch.full((200_000, 1), value)
            apart = task.transition(state, action, noise) - task.mean(state, action)
            torch.testing.assert_close(apart.T.cov(), 0.16 * torch.eye(4), rtol=0, atol=0.003)
        seen = task.transition(state, torch.full_like(action, -0.5), noise)
        own = seen + task.mean(state, action) - task.mean(state, torch.full_like(action, -0.5))
        assert (own - task.transition(state, action, noise)).square().mean() > 0.1


STATES, ACTIONS, LUCK, DISCOUNT = 4, 3, 8, 0.6


class FiniteSCM:
    """s' = the u-th of m equally likely rungs of P(s' | s, a), states in order: monotone, the quantile coupling."""

    def __init__(self, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.next_state = np.sort(random.integers(STATES, size=(STATES, ACTIONS, LUCK)), -1)
        self.reward = random.normal(size=(STATES, ACTIONS, STATES))

    def optimal(self) -> np.ndarray:
        """Q* by value iteration on the exact law."""
        q = np.zeros((STATES, ACTIONS))
        for _ in range(400):
            q = self.backup(q.max(1)).mean(-1)
        return q

    def backup(self, value: np.ndarray) -> np.ndarray:
        s, a = np.indices((STATES, ACTIONS))
        return self.reward[s[..., None], a[..., None], self.next_state] + DISCOUNT * value[self.next_state]

    def log(self, count: int, seed: int) -> np.ndarray:
        """Rows (s, a, s') of a behaviour that never tries action s mod 3 in state s."""
        random = np.random.default_rng(seed)
        state = random.integers(STATES, size=count)
        action = (state + random.integers(1, ACTIONS, size=count)) % ACTIONS
        return np.stack([state, action, self.next_state[state, action, random.integers(LUCK, size=count)]], 1)

    def abduct(self, log: np.ndarray, seed: int) -> np.ndarray:
        """Ties: several u lead to s', all equally likely; draw one of them from the posterior."""
        possible = self.next_state[log[:, 0], log[:, 1]] == log[:, 2:]
        return (possible * np.random.default_rng(seed).random(possible.shape)).argmax(1)

    def augment(self, log: np.ndarray, seed: int) -> np.ndarray:
        """Every row under every action, with its own abducted noise."""
        noise, state = self.abduct(log, seed), log[:, 0]
        under = [np.full(len(log), action) for action in range(ACTIONS)]
        return np.concatenate([np.stack([state, a, self.next_state[state, a, noise]], 1) for a in under])


def q_learning(scm: FiniteSCM, table: np.ndarray, seed: int, sweeps: int = 4) -> np.ndarray:
    """Watkins' Q-learning with Robbins–Monro steps n(s, a)^−0.7 over the shuffled rows."""
    q, visits = np.zeros((STATES, ACTIONS)), np.zeros((STATES, ACTIONS))
    random = np.random.default_rng(seed)
    for _ in range(sweeps):
        for s, a, after in table[random.permutation(len(table))].tolist():
            visits[s, a] += 1
            target = scm.reward[s, a, after] + DISCOUNT * q[after].max()
            q[s, a] += (target - q[s, a]) / visits[s, a] ** 0.7
    return q


class TestTheorem2:
    """Tabular Q-learning on counterfactually augmented rows converges to Q*, even where actions were never tried."""

    @pytest.mark.parametrize("seed", range(3))
    def test_augmented_rows_give_q_star(self, seed: int) -> None:
        scm = FiniteSCM(seed)
        log, optimal = scm.log(5000, seed), scm.optimal()
        learned = q_learning(scm, scm.augment(log, seed), seed)
        assert np.abs(learned - optimal).max() < 0.06 * np.ptp(optimal)
        assert (learned.argmax(1) == optimal.argmax(1)).all()

    def test_logged_rows_alone_do_not(self) -> None:
        missed = 0
        for seed in range(3):
            scm = FiniteSCM(seed)
            optimal = scm.optimal()
            learned = q_learning(scm, scm.log(5000, seed), seed)
            assert np.abs(learned - optimal).max() > 0.3 * np.ptp(optimal)
            missed += int((learned.argmax(1) != optimal.argmax(1)).sum())
        assert missed > 0

    def test_error_falls_with_rows(self) -> None:
        errors = []
        for count in (60, 500, 4000):
            scms = [FiniteSCM(seed) for seed in range(3)]
            learned = [q_learning(scm, scm.augment(scm.log(count, i), i), i, sweeps=2) for i, scm in enumerate(scms)]
            errors.append(np.mean([np.abs(q - scm.optimal()).max() for q, scm in zip(learned, scms, strict=True)]))
        assert errors[0] > errors[1] > errors[2]

    def test_augmented_rows_have_the_true_law(self) -> None:
        """The heart of the proof: a counterfactual row (s, a', s') is a draw from P(s' | s, a')."""
        scm = FiniteSCM(0)
        table = scm.augment(scm.log(40_000, 0), 0)
        for s, a in product(range(STATES), range(ACTIONS)):
            after = table[(table[:, 0] == s) & (table[:, 1] == a)][:, 2]
            truth = np.bincount(scm.next_state[s, a], minlength=STATES) / LUCK
            np.testing.assert_allclose(np.bincount(after, minlength=STATES) / len(after), truth, atol=0.02)
