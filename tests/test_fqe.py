"""Fitted Q evaluation: exact where values can be counted, every resample by itself, and nothing learned by peeking."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from counterpoint.data.schema import Column, Schema
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import GOES_ON, Transitions, concatenate
from counterpoint.nets.training import Monitor
from counterpoint.ope.fqe import (
    FQE,
    Critic,
    fitted_q_evaluation,
    return_bounds,
)
from counterpoint.ope.problem import (
    Episodes,
    OPEData,
    resampled,
)
from helpers.tables import refused

STATES, ACTIONS, STEPS, SUBJECTS = 4, 3, 6, 120
SCHEMA = Schema((Column("s", tuple("abcd")),), Discrete.one_hot(ACTIONS), tuple("xyz"))
EXACT = FQE(hidden=64, ridge=1e-4)


def logged(seed: int = 0) -> Transitions:
    """Subjects in four states; a step may end the episode, and the sixth cuts it."""
    random = torch.Generator().manual_seed(seed)
    chance = torch.rand(STATES, ACTIONS, STATES + 1, generator=random)
    chance[..., STATES] = 0.3
    pays, rows = torch.randn(STATES, ACTIONS, generator=random), []
    for subject in range(SUBJECTS):
        state = int(torch.randint(STATES, (1,), generator=random))
        for step in range(STEPS):
            action = int(torch.randint(ACTIONS, (1,), generator=random))
            after = int(torch.multinomial(chance[state, action], 1, generator=random))
            rows.append((state, action, float(pays[state, action]) + step, after, subject, step))
            state = after
            if after == STATES:
                break
    return _table(*(torch.tensor(column) for column in zip(*rows, strict=True)))


def _table(state: Tensor, action: Tensor, reward: Tensor, after: Tensor, subject: Tensor, step: Tensor) -> Transitions:
    ended = after == STATES
    return Transitions.logged(
        state=state[:, None].float(),
        action=SCHEMA.actions.table()[action],
        reward=reward,
        next_state=after[:, None].float().masked_fill(ended[:, None], torch.nan),
        terminated=ended,
        truncated=(step == STEPS - 1) & ~ended,
        subject=subject,
        step=step,
        schema=SCHEMA,
    )


ROWS = logged()
POLICY = torch.rand(STATES, ACTIONS, generator=torch.Generator().manual_seed(1)).softmax(1)


def ask(rows: Transitions, discount: float = 1.0) -> OPEData:
    now, after = (x[:, 0].nan_to_num().long() for x in (rows.state, rows.next_state))
    following = torch.where(rows.has_next[:, None], POLICY[after], 0.0)
    return OPEData(Episodes.of(rows), POLICY[now], following, POLICY[now], discount)


def counted(rows: Transitions, counts: Tensor, discount: float) -> tuple[Tensor, Tensor]:
    """Q_j and V_j, j = 1 … STEPS, of the process whose probabilities are the log's own shares."""
    now, after = rows.state[:, 0].long(), rows.next_state[:, 0].nan_to_num().long()
    weight = counts[rows.subject].double()
    cell = now * ACTIONS + rows.action_index
    often = torch.zeros(STATES * ACTIONS).double().index_add_(0, cell, weight)
    q, v, value = [], [], torch.zeros(STATES).double()
    for _ in range(STEPS):
        target = rows.reward + discount * (~rows.terminated) * value[after]
        total = torch.zeros(STATES * ACTIONS).double().index_add_(0, cell, weight * target)
        q.append((total / often).view(STATES, ACTIONS))
        value = (POLICY * q[-1]).sum(1)
        v.append(value)
    return torch.stack(q), torch.stack(v)


@pytest.mark.parametrize("discount", [1.0, 0.7])
def test_values_are_those_of_the_counted_process(discount: float) -> None:
    """For every row and member: as many steps as are left, r + γV(s') where life goes on, r alone where it ended."""
    counts = torch.cat([torch.ones(1, SUBJECTS).double(), resampled(SUBJECTS, 3, 0)])
    question = ask(ROWS, discount)
    critic = EXACT.fit(question, counts)
    now, after, left = ROWS.state[:, 0].long(), ROWS.next_state[:, 0].nan_to_num().long(), STEPS - 1 - ROWS.step
    for member, own in enumerate(counts):
        q, v = counted(ROWS, own, discount)
        torch.testing.assert_close(critic.taken[member].double(), q[left, now, ROWS.action_index], atol=2e-3, rtol=0)
        torch.testing.assert_close(critic.state[member].double(), v[left, now], atol=2e-3, rtol=0)
        following = torch.where(ROWS.has_next & (left > 0), v[(left - 1).clamp(min=0), after], 0.0)
        torch.testing.assert_close(critic.after[member].double(), following, atol=2e-3, rtol=0)
        first = v[-1, now[question.episodes.places[:, 0]]]
        expected = (own * first).sum() / own.sum()
        assert float(fitted_q_evaluation(question, critic)[member]) == pytest.approx(float(expected), abs=2e-3)


def test_a_truncated_row_is_no_end() -> None:
    """Marking the records that stop as ended changes every value: what they would still have earned is lost."""
    ended = replace(
        ROWS, outcome=torch.where(ROWS.truncated, 0, ROWS.outcome), truncated=torch.zeros_like(ROWS.truncated)
    )
    ones = torch.ones(1, SUBJECTS)
    cut, whole = (fitted_q_evaluation(ask(rows), EXACT.fit(ask(rows), ones)) for rows in (ended, ROWS))
    v = counted(ROWS, ones[0], 1.0)[1]
    first = ROWS.state[ask(ROWS).episodes.places[:, 0], 0].long()
    assert float(whole) == pytest.approx(float(v[-1, first].mean()), abs=2e-3)
    assert float(whole - cut) > 0.2


def test_a_row_that_stops_without_a_next_state_is_not_learned_from() -> None:
    """It neither ended nor tells where it led: its target is not known."""
    lost = ROWS.truncated & (ROWS.subject % 2 == 0)
    blank = replace(ROWS, next_state=ROWS.next_state.masked_fill(lost[:, None], torch.nan))
    odd = replace(blank, reward=torch.where(lost, 1e3, blank.reward))
    ones = torch.ones(1, SUBJECTS)
    found, same = (EXACT.fit(ask(rows), ones).state for rows in (blank, odd))
    torch.testing.assert_close(found, same)


def test_counts_of_two_are_a_doubled_table() -> None:
    counts = torch.ones(1, SUBJECTS)
    counts[0, :40] = 2
    some = ROWS[ROWS.subject < 40]
    twins = replace(some, subject=some.subject + SUBJECTS, episode=some.episode + SUBJECTS)
    names = tuple(map(str, range(SUBJECTS + 40)))
    doubled = concatenate([replace(ROWS, subject_names=names), replace(twins, subject_names=names)])
    how = FQE(hidden=32, ridge=2.0)
    found = fitted_q_evaluation(ask(ROWS), how.fit(ask(ROWS), counts))
    same = fitted_q_evaluation(ask(doubled), how.fit(ask(doubled), torch.ones(1, SUBJECTS + 40)))
    torch.testing.assert_close(found, same, atol=1e-4, rtol=0)


def test_no_row_is_valued_by_who_saw_its_subject() -> None:
    """Other rewards and next states of a fold's subjects change the values of the other folds, and not its own."""
    folds = torch.arange(SUBJECTS) % 3
    own = folds[ROWS.subject] == 1
    other = replace(
        ROWS,
        reward=torch.where(own, -5 * ROWS.reward, ROWS.reward),
        next_state=torch.where(own[:, None] & ROWS.has_next[:, None], 3 - ROWS.next_state, ROWS.next_state),
    )
    before, after = (FQE(hidden=16).cross_fit(ask(rows), folds) for rows in (ROWS, other))
    assert before.taken.shape == (1, len(ROWS))
    torch.testing.assert_close(before.taken[:, own], after.taken[:, own], atol=1e-4, rtol=0)
    torch.testing.assert_close(before.state[:, own], after.state[:, own], atol=1e-4, rtol=0)
    assert float((before.state - after.state)[:, ~own].abs().min()) > 0.01


def test_a_member_is_the_same_alone_and_beside_others() -> None:
    counts = resampled(SUBJECTS, 4, 0)
    how = FQE(hidden=32)
    together, alone, again = (how.fit(ask(ROWS), c, seed=3).state for c in (counts, counts[2:3], counts))
    assert torch.equal(together, again)
    torch.testing.assert_close(together[2:3], alone, atol=1e-5, rtol=1e-5)


def test_values_stay_within_what_rewards_allow() -> None:
    """Rewards of 0 and, at an end, of 0 or 1 make returns from 0 to 1, however long the episodes."""
    lucky = ROWS.terminated & (ROWS.action_index == 0)
    question = ask(replace(ROWS, reward=lucky.float()))
    wild = torch.zeros(len(ROWS), ACTIONS)
    wild[:, 0] = 5.0  # No probabilities: values are driven where they must not go.
    critic = EXACT.fit(replace(question, policy=wild, policy_after=wild), torch.ones(1, SUBJECTS))
    for values in (critic.taken, critic.state, critic.after):
        assert float(values.min()) >= 0.0
        assert float(values.max()) <= 1.0
    assert float(critic.taken[:, ROWS.action_index > 0].max()) < 0.99  # These may end in nothing at any step.


def test_bounds_are_those_of_the_rewards_a_member_has_seen() -> None:
    """Worked by hand: subject 0 earns 0 and ends with 1, subject 1 earns 2 and ends with −3; γ is one half."""
    rows = ROWS[torch.cat([(~ROWS.terminated).nonzero()[:2, 0], ROWS.terminated.nonzero()[:2, 0]])]
    rows = replace(rows, reward=torch.tensor([0.0, 2.0, 1.0, -3.0]))
    counts = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    low, high = return_bounds(rows, torch.tensor([0, 1, 0, 1]), counts, 0.5, 3)
    assert high.tolist() == [[1, 1, 1], [2, 3, 3.5], [2, 3, 3.5]]
    assert low.tolist() == [[0, 0, 0], [-3, -3, -3], [-3, -3, -3]]


def test_a_longer_horizon_counts_more_steps_and_a_shorter_is_refused() -> None:
    ones, free = torch.ones(1, SUBJECTS), replace(ROWS, reward=torch.ones(len(ROWS)))
    short, long = (
        float(fitted_q_evaluation(ask(free), h.fit(ask(free), ones))) for h in (EXACT, replace(EXACT, horizon=12))
    )
    assert 1.0 < short < long
    assert "shorter than an episode of 6 steps" in refused(lambda: FQE(horizon=5).fit(ask(ROWS), ones))


def test_a_stopped_run_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    counts, how = resampled(SUBJECTS, 3, 0), FQE(hidden=16)

    def stop(stage: str, done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        how.fit(ask(ROWS), counts, monitor=Monitor(tmp_path, report=stop, save_seconds=0))
    steps: list[int] = []
    going = Monitor(tmp_path, resume=True, report=lambda stage, done, total: steps.append(done), save_seconds=0)
    resumed = how.fit(ask(ROWS), counts, monitor=going)
    assert min(steps) > 2
    assert torch.equal(resumed.state, how.fit(ask(ROWS), counts).state)
    assert "another recipe" in refused(lambda: how.fit(ask(ROWS, 0.5), counts, monitor=going))


def test_the_mean_is_over_first_states_by_counts() -> None:
    question = ask(ROWS)
    state = torch.zeros(2, len(ROWS))
    state[:, question.episodes.places[7, 0]] = 6.0
    counts = torch.ones(2, SUBJECTS)
    counts[1, 7] = 3
    critic = Critic(state, state, state, counts)
    assert fitted_q_evaluation(question, critic).tolist() == [6 / SUBJECTS, 18 / (SUBJECTS + 2)]


def _with(next_state: Tensor) -> Episodes:
    return Episodes.of(replace(ROWS, next_state=next_state))


def test_what_cannot_be_learned_from_is_refused() -> None:
    ones, bad = torch.ones(1, SUBJECTS), ROWS.reward.clone()
    bad[5] = torch.inf
    assert "reward is not finite at row 5" in refused(lambda: FQE().fit(ask(replace(ROWS, reward=bad)), ones))
    far = ROWS.next_state.clone()
    far[ROWS.has_next.nonzero()[0, 0]] = torch.inf
    assert "next state is infinite" in refused(lambda: FQE().fit(replace(ask(ROWS), episodes=_with(far)), ones))
    assert "counts are not of 120 subjects" in refused(lambda: FQE().fit(ask(ROWS), ones[:, 1:]))
    assert "all 0" in refused(lambda: FQE().fit(ask(ROWS), 0 * ones))
    assert "one fold" in refused(lambda: FQE().cross_fit(ask(ROWS), torch.zeros(SUBJECTS, dtype=torch.long)))
    nothing = replace(
        ROWS, outcome=torch.full_like(ROWS.outcome, GOES_ON), next_state=torch.full_like(ROWS.state, torch.nan)
    )
    assert "no row" in refused(lambda: FQE().fit(ask(nothing), ones))
