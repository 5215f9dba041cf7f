"""Estimators for states of categories: by hand, against dense algebra, and against values that are known exactly."""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch
from torch import Tensor

from counterpoint.core.statistics import Interval
from counterpoint.data.schema import Column, Schema
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions, subject_folds
from counterpoint.ope.estimators import (
    one_step_doubly_robust,
    one_step_effective_sample_size,
    one_step_largest_share,
)
from counterpoint.ope.fqe import Critic, fitted_q_evaluation
from counterpoint.ope.intervals import widened
from counterpoint.ope.problem import (
    Episodes,
    OPEData,
    resampled,
)
from counterpoint.ope.tabular import (
    TabularBehaviour,
    TabularFQE,
)
from counterpoint.simulation.trials import simulate
from helpers.tables import refused
from reproduction.tasks import icu_sepsis
from reproduction.tasks.finite import FiniteProcess

NAN = float("nan")
LONG = 1500
"""Subjects of a log that is long enough to tell values."""


def process() -> FiniteProcess:
    """Three states; the second action heals in the first and harms in the last."""
    chance = torch.tensor(
        [
            [[0.5, 0.2, 0.1, 0.1, 0.1], [0.1, 0.1, 0.1, 0.1, 0.6]],
            [[0.2, 0.4, 0.2, 0.1, 0.1], [0.4, 0.2, 0.1, 0.1, 0.2]],
            [[0.1, 0.2, 0.4, 0.2, 0.1], [0.1, 0.1, 0.2, 0.5, 0.1]],
        ]
    )
    return FiniteProcess(torch.tensor([0.2, 0.3, 0.5]), chance)


LOGGER = torch.tensor([[0.7, 0.3], [0.5, 0.5], [0.4, 0.6]])
OTHER = torch.tensor([[0.2, 0.8], [0.3, 0.7], [0.9, 0.1]])


@lru_cache
def logged(trials: int, seed: int = 0) -> Transitions:
    def act(state: Tensor, generator: torch.Generator) -> Tensor:
        chance = LOGGER[state[:, 0].long().clamp(max=2)]
        return torch.nn.functional.one_hot(torch.multinomial(chance, 1, generator=generator)[:, 0], 2).float()

    return simulate(process(), act, trials, 25, seed)


def asked(rows: Transitions, policy: Tensor, behaviour: Tensor, discount: float = 1.0) -> OPEData:
    there = rows.has_next
    after = torch.zeros(len(rows), 2)
    after[there] = policy[rows.next_state[there, 0].long()]
    return OPEData(Episodes.of(rows), policy[rows.state[:, 0].long()], after, behaviour, discount)


def hand() -> Transitions:
    """Subject 0: state 0, then 1, over. Subject 1: state 0, and the record stops in state 1."""
    return Transitions.logged(
        state=torch.tensor([[0.0], [1.0], [0.0]]),
        action=torch.tensor([[0.0], [1.0], [1.0]]),
        reward=torch.tensor([1.0, 3.0, 2.0]),
        next_state=torch.tensor([[1.0], [NAN], [1.0]]),
        terminated=torch.tensor([False, True, False]),
        truncated=torch.tensor([False, False, True]),
        subject=torch.tensor([0, 0, 1]),
        step=torch.tensor([0, 1, 0]),
        schema=Schema((Column("cell", levels=("a", "b")),), Discrete.of([0.0, 1.0]), ("dose",)),
    )


def test_one_step_ratios_correct_a_critic_by_hand() -> None:
    rows = hand()
    question = asked(rows, torch.tensor([[0.25, 0.75], [0.5, 0.5]]), torch.full((3, 2), 0.5), 0.5)
    critic = Critic(*(torch.tensor([values]) for values in ([1.0, 2.0, 1.5], [1.2, 2.0, 1.4], [2.0, 0.0, 2.5])))
    # δ = 1 + 1 − 1, 3 − 2, 2 + 1.25 − 1.5; ρ = 0.5, 1, 1.5; γ^t = 1, 0.5, 1
    error, weight = (1.0, 1.0, 1.75), (0.5, 0.5, 1.5)
    for counts in ([1.0, 1.0], [2.0, 1.0]):
        drawn = counts[0], counts[0], counts[1]
        corrected = sum(c * w * e for c, w, e in zip(drawn, weight, error, strict=True))
        weighed = sum(c * w for c, w in zip(drawn, weight, strict=True))
        logged_steps = 1.5 * counts[0] + counts[1]
        value = (1.2 * counts[0] + 1.4 * counts[1] + corrected / weighed * logged_steps) / sum(counts)
        found = one_step_doubly_robust(question, torch.tensor([counts], dtype=torch.double), critic=critic)
        assert float(found) == pytest.approx(value, rel=1e-6)
    assert one_step_effective_sample_size(question) == pytest.approx(2 * 3**2 / (3 * (0.25 + 1 + 2.25)))
    assert one_step_largest_share(question) == pytest.approx(0.5)


def test_an_interval_is_widened_by_what_was_held_fixed() -> None:
    found = widened(Interval(1.0, 0.7, 1.4), 0.1, 0.95)
    reach = 0.1 * 1.959964
    ends = 1 - (0.3**2 + reach**2) ** 0.5, 1 + (0.4**2 + reach**2) ** 0.5
    assert (found.estimate, found.low, found.high) == pytest.approx((1.0, *ends))
    same = widened(Interval(1.0, 0.7, 1.4), 0.0)
    assert (same.low, same.high) == pytest.approx((0.7, 1.4))
    assert widened(Interval(1.0, -np.inf, np.inf), 0.1).high == np.inf


def test_actions_are_counted_in_the_log_itself() -> None:
    rows = hand()
    share = TabularBehaviour(prior=1.0).cross_fit(rows)
    mean = torch.tensor([1 / 3, 2 / 3])  # One of three rows took the first action.
    expected = torch.stack([(torch.ones(2) + mean) / 3, (torch.tensor([0.0, 1.0]) + mean) / 2])
    torch.testing.assert_close(share.probabilities, expected[[0, 1, 0]])


def test_counting_is_the_fixed_point_of_the_shrunken_equations() -> None:
    rows, recipe = logged(30), TabularFQE(action_prior=0.7, state_prior=0.4)
    question = asked(rows, OTHER, torch.full((len(rows), 2), 0.5), 0.9)
    counts = resampled(30, 2, 0)
    critic = recipe.fit(question, counts)
    for member in range(2):
        taken, state = _dense(rows, counts[member].numpy(), recipe, 0.9)
        cell, action = rows.state[:, 0].long().numpy(), rows.action_index.numpy()
        np.testing.assert_allclose(critic.taken[member], taken[cell, action], atol=1e-3)
        np.testing.assert_allclose(critic.state[member], state[cell], atol=1e-3)
        following = torch.where(rows.has_next, rows.next_state[:, 0], 0).long().numpy()
        np.testing.assert_allclose(critic.after[member], np.where(rows.has_next, state[following], 0), atol=1e-3)


def _dense(rows: Transitions, drawn: np.ndarray, how: TabularFQE, discount: float) -> tuple[np.ndarray, np.ndarray]:
    """Q and V of three states by one linear system: target_i = r_i + γ·V(s'_i), Q = W·target, V = Σ π Q."""
    weight, cell, action = drawn[rows.subject], rows.state[:, 0].long().numpy(), rows.action_index.numpy()
    lead = np.zeros((len(rows), 3))
    follows = rows.has_next.numpy()
    lead[follows, rows.next_state[follows, 0].long()] = discount
    mean = weight / weight.sum()
    gather = np.zeros((3, 2, len(rows)))
    for s in range(3):
        own = weight * (cell == s)
        shrunk = (own + how.state_prior * mean) / (own.sum() + how.state_prior)
        for a in range(2):
            both = own * (action == a)
            gather[s, a] = (both + how.action_prior * shrunk) / (both.sum() + how.action_prior)
    mixed = (OTHER.numpy()[:, :, None] * gather).sum(1)
    state = np.linalg.solve(np.eye(3) - mixed @ lead, mixed @ rows.reward.numpy())
    return gather @ (rows.reward.numpy() + lead @ state), state


def test_a_row_is_valued_by_critics_that_never_saw_its_subject() -> None:
    rows = logged(40)
    question = asked(rows, OTHER, torch.full((len(rows), 2), 0.5))
    folds = subject_folds(40, 4, 0)
    critic = TabularFQE().cross_fit(question, folds)
    apart = TabularFQE().fit(question, (folds != 2).double()[None])
    own = folds[rows.subject] == 2
    torch.testing.assert_close(critic.taken[:, own], apart.taken[:, own], atol=1e-3, rtol=0.0)
    assert not torch.allclose(critic.taken[:, ~own], apart.taken[:, ~own], atol=1e-3)


def test_a_long_log_tells_the_exact_value_of_another_policy() -> None:
    rows = logged(LONG)
    truth, estimated = process().value(OTHER), TabularBehaviour().cross_fit(rows)
    assert abs(truth - process().value(LOGGER)) > 0.1
    question = asked(rows, OTHER, estimated.probabilities)
    ones = torch.ones(1, LONG, dtype=torch.double)
    critic = TabularFQE().cross_fit(question, subject_folds(LONG, 5, 0))
    assert float(fitted_q_evaluation(question, TabularFQE().fit(question, ones))) == pytest.approx(truth, abs=0.03)
    assert float(one_step_doubly_robust(question, ones, critic=critic)) == pytest.approx(truth, abs=0.03)


def test_ratios_mend_a_critic_that_knows_nothing_of_actions() -> None:
    """The critic of a heavy prior values all actions alike; most of what it gets wrong comes back."""
    rows = logged(LONG)
    truth, estimated = process().value(OTHER), TabularBehaviour().cross_fit(rows)
    question = asked(rows, OTHER, estimated.probabilities)
    ones = torch.ones(1, LONG, dtype=torch.double)
    critic = TabularFQE(action_prior=1e6).cross_fit(question, subject_folds(LONG, 5, 0))
    wrong = abs(float(fitted_q_evaluation(question, critic)) - truth)
    assert wrong > 0.1
    assert abs(float(one_step_doubly_robust(question, ones, critic=critic)) - truth) < 0.4 * wrong


def test_numbers_are_not_counted() -> None:
    rows = hand()
    plain = replace(rows, schema=Schema.of(("x",), Discrete.of([0.0, 1.0])))
    assert "is no category" in refused(lambda: TabularBehaviour().cross_fit(plain))


def test_values_of_a_finite_process_are_those_of_long_simulations() -> None:
    rows = logged(LONG)
    assert float(rows.reward.sum() / LONG) == pytest.approx(process().value(LOGGER), abs=0.03)
    assert rows.outcome_names == ("died", "survived")
    assert bool((rows.outcome[rows.reward == 1] == 1).all())


def test_the_optimal_policy_is_the_best_of_all() -> None:
    task = process()
    every = [torch.eye(2)[list(choice)] for choice in np.ndindex(2, 2, 2)]
    assert task.value(task.optimal()) == pytest.approx(max(task.value(each) for each in every), abs=1e-9)


def test_a_process_with_wrong_probabilities_is_refused() -> None:
    chance = process().chance
    assert "do not sum to 1" in refused(lambda: FiniteProcess(torch.tensor([0.2, 0.3, 0.4]), chance))
    assert "list every state" in refused(
        lambda: FiniteProcess(torch.tensor([0.2, 0.3, 0.5]), chance, (1.0,), ("died",))
    )


def test_icu_sepsis_names_the_extra_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(icu_sepsis, "find_spec", lambda name: None)
    assert "counterpoint[bench]" in refused(icu_sepsis.icu_sepsis)
