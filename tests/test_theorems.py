"""The paper's two theorems, checked by numbers: counterfactuals are identified, and Q-learning on them finds Q*."""

from collections.abc import Callable
from itertools import chain, product

import pytest
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from counterpoint.core.seeding import generator
from counterpoint.data.jobs import NO_THETA, Job
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.learners.d3qn import D3QN
from counterpoint.nets.training import Schedule
from counterpoint.simulation.augmentation import Augmenter, Imaginer
from counterpoint.tasks.base import Task
from reproduction.tasks.structural_problems import (
    Heteroscedastic,
    RotatingMixing,
    Skewed,
)

SHAPES = False

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
        """Rotating noises give the law of noises that stay, N(m, .16 I) at every (s, a), and other counterfactuals."""
        random, task = torch.Generator().manual_seed(0), RotatingMixing()
        state = torch.randn(1, 4, generator=random).expand(200_000, -1)
        noise = torch.randn(200_000, 4, generator=random)
        for value in (-0.9, -0.3, 0.5):
            action = torch.full((200_000, 1), value)
            apart = task.transition(state, action, noise) - task.mean(state, action)
            torch.testing.assert_close(apart.T.cov(), 0.16 * torch.eye(4), rtol=0, atol=0.003)
        seen = task.transition(state, torch.full_like(action, -0.5), noise)
        own = seen + task.mean(state, action) - task.mean(state, torch.full_like(action, -0.5))
        assert (own - task.transition(state, action, noise)).square().mean() > 0.1


STATES, ACTIONS, LUCK = 4, 3, 8
TABULAR = D3QN(hidden=(), schedule=Schedule(steps=1500, rate="linear"), learning_rate=5e-3, tau=0.02)
"""Without a hidden layer Q is a table: every (s, a) of one-hot states has a number of its own."""


class FiniteSCM(Task):
    """s' = the u-th of m equally likely rungs of P(s' | s, a), states in order: monotone, the quantile coupling.

    States and actions are one-hot. Rewards are small, so that Huber's loss is a square: its minimum is then the mean.
    """

    actions = Discrete.one_hot(ACTIONS)
    discount = 0.6
    horizon = 1

    def __init__(self, seed: int) -> None:
        random = generator(seed, "finite")
        self.rungs = torch.randint(STATES, (STATES, ACTIONS, LUCK), generator=random).sort(-1).values
        self.rewards = 0.2 * torch.randn(STATES, ACTIONS, STATES, generator=random)

    def reward(
        self, state: Float[Tensor, "*n s"], action: Float[Tensor, "*n a"], next_state: Float[Tensor, "*n s"]
    ) -> Float[Tensor, "*n"]:
        return self.rewards[state.argmax(-1), action.argmax(-1), next_state.argmax(-1)]

    def terminated(self, next_state: Float[Tensor, "*n s"]) -> Bool[Tensor, "*n"]:
        return torch.zeros_like(next_state[..., 0], dtype=torch.bool)

    def transition(
        self, state: Float[Tensor, "n s"], action: Float[Tensor, "n a"], luck: Int[Tensor, " n"]
    ) -> Float[Tensor, "n s"]:
        return torch.eye(STATES)[self.rungs[state.argmax(-1), action.argmax(-1), luck]]

    def imagine(
        self,
        rows: Transitions,
        action: Float[Tensor, "n m a"],
        random: torch.Generator,
        theta: Float[Tensor, "_ t"] = NO_THETA,
    ) -> Float[Tensor, "n m s"]:
        """Ties: several u lead to s', all equally likely; draw one of them from the posterior, for all of the row."""
        rungs = self.rungs[rows.state.argmax(-1), rows.action.argmax(-1)]
        possible = rungs == rows.next_state.argmax(-1, keepdim=True)
        luck = (possible * torch.rand(possible.shape, generator=random)).argmax(-1)
        state, often = (x.repeat_interleave(action.shape[1], 0) for x in (rows.state, luck))
        imagined = self.transition(state, action.flatten(0, 1), often)
        return imagined.view(*action.shape[:2], -1)

    def sample(
        self,
        state: Float[Tensor, "n s"],
        action: Float[Tensor, "n a"],
        random: torch.Generator,
        theta: Float[Tensor, "_ t"] = NO_THETA,
    ) -> Float[Tensor, "n s"]:
        return self.transition(state, action, torch.randint(LUCK, (len(state),), generator=random))

    def optimal(self) -> Float[Tensor, "s a"]:
        """Q* by value iteration on the exact law."""
        q, reward = torch.zeros(STATES, ACTIONS), self.rewards.gather(-1, self.rungs)
        for _ in range(100):
            q = (reward + self.discount * q.max(1).values[self.rungs]).mean(-1)
        return q

    def log(self, count: int, seed: int) -> Transitions:
        """A behaviour that never tries action s mod 3 in state s."""
        random = generator(seed, "log")
        number = torch.randint(STATES, (count,), generator=random)
        taken = (number + torch.randint(1, ACTIONS, (count,), generator=random)) % ACTIONS
        state, action = torch.eye(STATES)[number], self.actions.features(taken)
        next_state = self.sample(state, action, random)
        return Transitions.logged(
            state=state,
            action=action,
            reward=self.reward(state, action, next_state),
            next_state=next_state,
            terminated=self.terminated(next_state),
            truncated=torch.ones(count, dtype=torch.bool),
            subject=torch.arange(count),
            step=torch.zeros(count, dtype=torch.long),
            actions=self.actions,
        )


SCMS = [FiniteSCM(seed) for seed in (0, 1, 4)]
"""In these the best action of every state leads by a tenth of the span of Q*, so that small errors cannot hide it."""
OPTIMAL = torch.stack([scm.optimal() for scm in SCMS])


def logs(count: int) -> list[Transitions]:
    return [scm.log(count, seed) for seed, scm in enumerate(SCMS)]


def augmented(count: int) -> list[Transitions]:
    return [Augmenter().augment(log, scm, scm) for log, scm in zip(logs(count), SCMS, strict=True)]


def errors(q: Float[Tensor, "k s a"]) -> Float[Tensor, " k"]:
    """Largest error of a Q-value, in units of the span of Q*."""
    return (q - OPTIMAL).abs().amax((1, 2)) / (OPTIMAL.amax((1, 2)) - OPTIMAL.amin((1, 2)))


@pytest.fixture(scope="module")
def learned() -> dict[str, Float[Tensor, "k s a"]]:
    """Q of the package's own learner: every SCM's log alone, and augmented from ever more rows, in one stack."""
    tables = {"log": logs(20_000), **{f"from {count}": augmented(count) for count in (60, 500, 20_000)}}
    jobs = [Job(table, seed) for seed, table in enumerate(chain(*tables.values()))]
    q = torch.stack([each.last.values(torch.eye(STATES)) for each in TABULAR.fit_many(jobs, SCMS[0])])
    return dict(zip(tables, q.split(len(SCMS)), strict=True))


class TestTheorem2:
    """Q-learning on counterfactually augmented rows converges to Q*, even where actions were never tried."""

    def test_augmented_rows_give_q_star(self, learned) -> None:
        assert errors(learned["from 20000"]).max() < 0.05
        assert torch.equal(learned["from 20000"].argmax(-1), OPTIMAL.argmax(-1))

    def test_logged_rows_alone_do_not(self, learned) -> None:
        assert errors(learned["log"]).min() > 1
        assert not torch.equal(learned["log"].argmax(-1), OPTIMAL.argmax(-1))

    def test_error_falls_with_rows(self, learned) -> None:
        few, more, many = (errors(learned[f"from {count}"]).mean() for count in (60, 500, 20_000))
        assert few > more > many

    def test_augmented_rows_have_the_true_law(self) -> None:
        """The heart of the proof: a counterfactual row (s, a', s') is a draw from P(s' | s, a')."""
        scm = SCMS[0]
        assert isinstance(scm, Imaginer)
        rows = Augmenter().imagine(scm.log(100_000, 0), scm, scm)
        cell = ACTIONS * rows.state.argmax(-1) + rows.action_index
        for s, a in product(range(STATES), range(ACTIONS)):
            truth = torch.eye(STATES)[scm.rungs[s, a]].mean(0)
            torch.testing.assert_close(rows.next_state[cell == ACTIONS * s + a].mean(0), truth, rtol=0, atol=0.02)
