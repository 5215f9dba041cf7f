"""The counterfactual error against numbers worked by hand, on models whose error is known, and what it refuses."""

from dataclasses import dataclass, replace
from math import sqrt

import pytest
import torch
from torch import Tensor

from counterpoint.core.errors import CounterpointError
from counterpoint.data.jobs import NO_THETA
from counterpoint.data.spaces import Box
from counterpoint.data.transitions import Transitions
from counterpoint.simulation.trials import random_policy, simulate
from counterpoint.tasks.base import KnownSCM
from counterpoint.tasks.cartpole import CartPole
from reproduction.measures.counterfactual_error import Yardstick, counterfactual_error, questions, score
from reproduction.tasks.structural_problems import (
    Heteroscedastic,
    OneStep,
    Triangular,
    sample,
)


@dataclass
class Oracle:
    """The true SCM, whose answers can be made worse on purpose."""

    task: KnownSCM
    offset: tuple[float, ...] = (0.0,)
    copies: bool = False

    def imagine(self, rows: Transitions, action: Tensor, random: torch.Generator, theta: Tensor = NO_THETA) -> Tensor:
        asked = action.unbind(1)
        answers = [rows.next_state if self.copies else self.task.counterfactual(rows, each) for each in asked]
        return torch.stack(answers, 1) + torch.tensor(self.offset)

    def sample(self, state: Tensor, action: Tensor, random: torch.Generator, theta: Tensor = NO_THETA) -> Tensor:
        return self.task.transition(state, action, self.task.noise(len(state), random))


class TwoColumns(OneStep):
    """s'₁ = s₁ + 2a + u₁ moves with the action, s'₂ = s₂ + .5u₂ does not."""

    state_names = ("moved", "unmoved")
    noise_width = 2
    actions = Box((-1.0,), (1.0,))

    def transition(self, state: Tensor, action: Tensor, noise: Tensor) -> Tensor:
        return state + torch.cat([2 * action, 0 * action], -1) + noise * noise.new_tensor([1.0, 0.5])


def test_worked_by_hand() -> None:
    """Errors 1, −1, 1, −1 over a unit of 2, and 3, 3, 3, 3 over 4: .5 and .75; together √((.25 + .5625)/2)."""
    answer = torch.tensor([[1.0, 3.0], [-1.0, 3.0], [1.0, 3.0], [-1.0, 3.0]])
    unit = torch.tensor([2.0, 4.0])
    both = Yardstick(torch.tensor([True, True]), unit)
    assert both.columns(answer, torch.zeros(4, 2)).tolist() == [0.5, 0.75]
    assert both.error(answer, torch.zeros(4, 2)) == pytest.approx(sqrt(0.8125 / 2))
    first = Yardstick(torch.tensor([True, False]), unit)
    assert first.error(answer, torch.zeros(4, 2)) == pytest.approx(0.5)
    assert first.unmoved_error(answer, torch.zeros(4, 2)) == pytest.approx(0.75)


def test_the_truth_scores_zero_and_copying_one() -> None:
    rows = sample(Triangular(), 4000, 0)
    truth = counterfactual_error(Oracle(Triangular()), Triangular(), rows)
    copied = counterfactual_error(Oracle(Triangular(), copies=True), Triangular(), rows)
    assert (truth.error, truth.round_trip) == pytest.approx((0.0, 0.0), abs=1e-5)
    assert copied.error == pytest.approx(1.0, abs=0.02)
    assert copied.round_trip == 0.0


def test_fresh_noise_is_worse_by_the_noise() -> None:
    """In s' = s + 2a + u the effect 2(a' − a) has variance 8/3 and two noises differ by variance 2: √(3/4)."""
    errors = counterfactual_error(Oracle(TwoColumns()), TwoColumns(), sample(TwoColumns(), 20_000, 0))
    assert errors.error == pytest.approx(0.0, abs=1e-5)
    assert errors.fresh_error == pytest.approx(sqrt(0.75), abs=0.02)


def test_a_column_no_action_moves_is_scored_apart_by_the_noise() -> None:
    """An answer .25 off where the noise has sd .5 is wrong by half of it, and the error does not hear of it."""
    errors = counterfactual_error(Oracle(TwoColumns(), (0.0, 0.25)), TwoColumns(), sample(TwoColumns(), 20_000, 0))
    assert errors.error == pytest.approx(0.0, abs=1e-5)
    assert errors.unmoved_error == pytest.approx(0.5, abs=0.01)
    assert errors.columns[1] == pytest.approx(0.5, abs=0.01)


def test_cartpole_is_scored_on_its_velocities() -> None:
    task = CartPole()
    rows = simulate(task, random_policy(task), 20, 20, 0)
    assert questions(task, rows).yardstick.moved.tolist() == [False, True, False, True]


def test_offset_in_units_of_the_effect() -> None:
    rows = sample(Heteroscedastic(), 500, 0)
    asked = questions(Heteroscedastic(), rows)
    off = float(asked.yardstick.unit)
    assert score(Oracle(Heteroscedastic(), (0.5 * off,)), asked).error == pytest.approx(0.5, abs=1e-5)


def test_imagined_rows_are_refused() -> None:
    rows = sample(Heteroscedastic(), 10, 0)
    imagined = replace(rows, imagined=torch.arange(10) == 7)
    with pytest.raises(CounterpointError, match="row 7 is imagined"):
        counterfactual_error(Oracle(Heteroscedastic()), Heteroscedastic(), imagined)


def test_rows_without_the_tasks_own_noise_are_refused() -> None:
    rows = sample(Heteroscedastic(), 10, 0)
    with pytest.raises(CounterpointError, match="0 noise columns and the task has 1"):
        questions(Heteroscedastic(), replace(rows, noise=rows.noise[:, :0]))
    with pytest.raises(CounterpointError, match="does not lead to its next state"):
        questions(Heteroscedastic(), replace(rows, noise=rows.noise + 1))
    with pytest.raises(CounterpointError, match="1 rows have no spread"):
        questions(Heteroscedastic(), rows[:1])
