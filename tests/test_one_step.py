"""The recommended estimator and how much of a log stands behind it, worked by hand: discount, rows and subjects."""

import pytest
import torch

from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.ope.diagnostics import diagnose
from counterpoint.ope.estimators import one_step_doubly_robust, one_step_effective_sample_size, one_step_largest_share
from counterpoint.ope.fqe import Critic
from counterpoint.ope.problem import (
    Episodes,
    OPEData,
)

ONE = torch.ones(1, 1, dtype=torch.double)


def records(subjects: int, steps: int, rewards: list[float]) -> Transitions:
    """`steps` rows of every subject, all in one state and with action 0, which pay `rewards` one after another."""
    count, last = subjects * steps, torch.arange(subjects * steps) % steps == steps - 1
    state = torch.zeros(count, 1)
    return Transitions.logged(
        state=state,
        action=torch.zeros(count, 1),
        reward=torch.tensor(rewards).repeat(subjects),
        next_state=state,
        terminated=last,
        truncated=torch.zeros_like(last),
        subject=torch.arange(subjects).repeat_interleave(steps),
        step=torch.arange(steps).repeat(subjects),
        actions=Discrete.of([0.0, 1.0]),
    )


def question(rows: Transitions, policy: list[float], behaviour: float, discount: float = 1.0) -> OPEData:
    """`policy` gives action 0 these probabilities, row by row; whoever logged gave it `behaviour`."""
    own = torch.tensor(policy)
    acted = torch.full((len(rows),), behaviour)
    chances = (torch.stack([each, 1 - each], 1) for each in (own, own, acted))
    return OPEData(Episodes.of(rows), *chances, discount=discount)


def critic(taken: list[float], state: list[float], after: list[float]) -> Critic:
    return Critic(*(torch.tensor([column]) for column in (taken, state, after)))


def test_the_value_of_the_next_state_is_discounted() -> None:
    """One step that pays 1 with Q = 0, V(s) = 0 and V(s') = 8: δ = 1 + γ·8, and nothing else counts."""
    found = one_step_doubly_robust(
        question(records(1, 1, [1.0]), [0.5], 0.5, 0.25), ONE, critic=critic([0.0], [0.0], [8.0])
    )
    assert float(found) == pytest.approx(1 + 0.25 * 8)


def test_later_errors_of_the_critic_count_less() -> None:
    """Two steps with ρ = 1 and 1/2, V(s_0) = 10, and errors δ = 0 and 6: the discounted mean of the errors is
    (1·1·0 + γ·½·6) / (1 + γ·½) and stands for 1 + γ steps."""
    rows = records(1, 2, [0.0, 6.0])
    found = one_step_doubly_robust(
        question(rows, [0.5, 0.25], 0.5, 0.5), ONE, critic=critic([0.0, 0.0], [10.0, 0.0], [0.0, 0.0])
    )
    assert float(found) == pytest.approx(10 + (0.5 * 0.5 * 6) / (1 + 0.5 * 0.5) * 1.5)


def test_many_rows_of_few_subjects_are_as_sure_as_the_subjects() -> None:
    """Forty subjects with five equally likely decisions each amount to 40 subjects, not to 200 rows: the limits of 50
    and 100 are limits of subjects."""
    equal = question(records(40, 5, [0.0] * 5), [0.5] * 200, 0.5)
    assert one_step_effective_sample_size(equal) == pytest.approx(40)
    assert one_step_largest_share(equal) == pytest.approx(1 / 40)
    assert diagnose(equal, equal.policy, equal.rows).effective == pytest.approx(40)


def test_unequal_ratios_count_as_fewer_subjects() -> None:
    """Ratios 2 and 0 in turn: half of the decisions are never the policy's, so ten subjects amount to five."""
    half = question(records(10, 2, [0.0, 0.0]), [1.0, 0.0] * 10, 0.5)
    assert one_step_effective_sample_size(half) == pytest.approx(5)
