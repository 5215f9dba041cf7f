"""What a log says of small changes of practice: first-order gains by hand, and the sign of a dose under confounding."""

from unittest.mock import patch

import pytest
import torch
from torch import Tensor

import counterpoint as cp
from counterpoint.data.transitions import Transitions
from counterpoint.learners.log_evidence import Gain, LogEvidence, mean_gain

FEATURES = {count: torch.linspace(-0.5, 0.5, count)[:, None] for count in (2, 3)}


def log(
    state: Tensor, action: Tensor, reward: Tensor, subject: Tensor, episode: Tensor, step: Tensor, listed: bool = True
) -> Transitions:
    """Rows whose listed actions are given by their numbers."""
    width = 1 if action.dim() == 1 else action.shape[1]
    numbers = cp.Discrete.of([float(number) for number in range(int(action.max()) + 1)])
    none = torch.zeros(len(state), dtype=torch.bool)
    return Transitions.logged(
        state=state,
        action=action.float().view(-1, width),
        reward=reward,
        next_state=state,
        terminated=none,
        truncated=none,
        subject=subject,
        episode=episode,
        step=step,
        actions=numbers if listed else cp.Box((-9.0,) * width, (9.0,) * width),
    )


def one_step(action: Tensor, reward: Tensor, state: Tensor, listed: bool = True, subjects: int = 50) -> Transitions:
    """Every row is an episode of its own; neighbouring rows are of one subject."""
    rows = torch.arange(len(state))
    subject = rows * subjects // len(rows)
    return log(state, action, reward, subject, rows, torch.zeros_like(rows), listed)


def randomised(rows: int, actions: int, seed: int) -> tuple[Tensor, Tensor]:
    """A state of −1 or 1, and actions of equal probability."""
    random = torch.Generator().manual_seed(seed)
    state = torch.randint(2, (rows, 1), generator=random).float() * 2 - 1
    return state, torch.randint(actions, (rows,), generator=random)


def alike(rows: Transitions, probabilities: list[float]) -> Tensor:
    return torch.tensor(probabilities).expand(len(rows), -1)


class TestListedActions:
    def test_the_gain_is_the_change_of_probability_times_the_advantage(self) -> None:
        """r = s + a·(½ + s): action 1 is worth 1.5 more where s = 1, and 0.5 less where s = −1."""
        state, action = randomised(2000, 2, 0)
        rows = one_step(action, state[:, 0] + action * (0.5 + state[:, 0]), state)
        more = 0.5 + 0.2 * state[:, 0]
        policy, practice = torch.stack([1 - more, more], 1), alike(rows, [0.5, 0.5])
        evidence = LogEvidence(rows, 0)
        gain = evidence.action_gain(policy, practice, FEATURES[2])
        assert gain.shape == (50,)
        truth = 40 * (0.5 * 0.2 * 1.5 + 0.5 * -0.2 * -0.5)
        assert mean_gain(gain).value == pytest.approx(truth, rel=0.02)
        assert float(evidence.action_gain(practice, practice, FEATURES[2]).abs().max()) == 0

    def test_it_is_right_on_average_where_its_regression_cannot_be(self) -> None:
        """Of three actions the middle one is best: a line in the action sees nothing."""
        state, action = randomised(6000, 3, 1)
        random = torch.Generator().manual_seed(2)
        reward = (action == 1).float() + 0.5 * torch.randn(len(action), generator=random)
        rows = one_step(action, reward, state)
        gain = LogEvidence(rows, 0).action_gain(alike(rows, [0.23, 0.54, 0.23]), alike(rows, [1 / 3] * 3), FEATURES[3])
        estimate, truth = mean_gain(gain), 120 * (0.54 - 1 / 3)
        assert abs(estimate.value - truth) < 3 * estimate.error
        assert estimate.error < 0.1 * truth

    def test_rewards_of_later_steps_count_for_an_action_and_those_of_other_episodes_do_not(self) -> None:
        """The first action of an episode of two steps is paid at the second; the column says which step it is."""
        first = randomised(4000, 2, 3)[1].view(-1, 2)
        reward = torch.stack([torch.zeros(2000), first[:, 0].float()], 1).flatten()
        step = torch.tensor([0, 1]).repeat(2000)
        episode = torch.arange(2000).repeat_interleave(2)
        rows = log(2.0 * step[:, None] - 1, first.flatten(), reward, episode // 40, episode, step)
        more = alike(rows, [0.4, 0.6])
        gain = mean_gain(LogEvidence(rows, 0).action_gain(more, alike(rows, [0.5, 0.5]), FEATURES[2]))
        assert gain.value == pytest.approx(40 * 0.1, abs=3 * gain.error)
        assert gain.error < 0.6

    def test_a_rare_logged_action_is_not_divided_by_almost_nothing(self) -> None:
        state, action = randomised(400, 2, 4)
        rows = one_step(action, 10 * (action == 1).float() + state[:, 0], state)
        practice = alike(rows, [1 - 1e-6, 1e-6])
        gain = LogEvidence(rows, 0).action_gain(alike(rows, [0.9, 0.1]), practice, FEATURES[2])
        assert float(gain.abs().max()) < 8 * 10 * 0.1 / 0.02


def test_rewards_to_go_end_with_the_episode_and_after_some_steps() -> None:
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    subject, episode, step, reward = torch.tensor(
        [[0, 0, 0, 0, 0, 1], [0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 0], [1, 2, 3, 10, 20, 100]]
    )[:, order]
    rows = log(torch.randn(6, 1), torch.tensor([0, 1, 0, 1, 0, 1]), reward.float(), subject, episode, step)
    assert LogEvidence(rows, 0).reward_to_go.tolist() == [6, 5, 3, 30, 20, 100]
    with patch("counterpoint.learners.log_evidence.STEPS", 2):
        assert LogEvidence(rows, 0).reward_to_go.tolist() == [3, 5, 3, 30, 20, 100]


def dosed(effect: float, seed: int, rows: int = 800) -> Transitions:
    """Worse states are given more and are paid less: the reward falls with the dose, whatever its effect."""
    random = torch.Generator().manual_seed(seed)
    severity, luck, habit = torch.randn(3, rows, generator=random)
    dose = torch.stack([severity + 0.5 * habit, torch.randn(rows, generator=random)], 1)
    reward = -2 * severity + effect * dose[:, 0] + 0.3 * luck
    return one_step(dose, reward, severity[:, None], listed=False)


class TestDoses:
    def test_the_sign_is_that_of_the_effect_though_sicker_states_are_given_more(self) -> None:
        rows = dosed(0.4, 0)
        covariance = torch.cov(torch.stack([rows.action[:, 0], rows.reward]))
        assert float(covariance[0, 1]) < -1
        evidence = LogEvidence(rows, 0)
        more = torch.tensor([1.0, 0.0]).expand(len(rows), -1)
        up, down = evidence.dose_direction(more), evidence.dose_direction(-more)
        assert up.deviations > 5
        assert up.value == pytest.approx(0.4 * 0.5**2, rel=0.2)
        assert (down.value, down.error) == pytest.approx((-up.value, up.error))
        assert LogEvidence(dosed(-0.4, 1), 0).dose_direction(more).deviations < -5

    def test_a_dose_without_effect_is_within_its_standard_errors(self) -> None:
        more = torch.tensor([1.0, -1.0]).expand(400, -1)
        found = [LogEvidence(dosed(0.0, seed, 400), seed).dose_direction(more).deviations for seed in range(60)]
        assert 0.75 < torch.tensor(found).square().mean().sqrt() < 1.4

    def test_without_a_change_there_is_no_direction(self) -> None:
        rows = dosed(0.4, 0, 100)
        assert LogEvidence(rows, 0).dose_direction(torch.zeros(100, 2)) == Gain(0.0, 0.0)


def test_the_error_of_a_mean_over_subjects_by_hand() -> None:
    gain = mean_gain(torch.tensor([1.0, 2.0, 3.0]))
    assert (gain.value, gain.error) == pytest.approx((2.0, 1 / 3**0.5))
    assert gain.deviations == pytest.approx(2 * 3**0.5)
    assert mean_gain(torch.tensor([5.0])) == Gain(5.0, 0.0)
