"""Rows of the learning policy's own episodes inside the model: what they are, when they are made, who learns them."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import counterpoint as cp
from counterpoint.data.jobs import Job
from counterpoint.learners.ctrl_g import CTRLg
from counterpoint.learners.d3qn import D3QN
from counterpoint.learners.rollout_rows import RolloutReplay, RolloutRows
from counterpoint.models.scm.base import StructuralCausalModel
from counterpoint.nets.training import Monitor, Schedule
from counterpoint.policies.q import QPolicy
from helpers.recipes import BRIEF

SHAPES = False
TASK = cp.CartPole()
LOG = cp.simulate(TASK, cp.random_policy(TASK), 10, 20, seed=0)
HOW = RolloutRows(every=4, episodes=3, steps=6, rounds=2, random_actions=0.0)
LEARNER = D3QN((8,), Schedule(steps=12, check_every=6, log_every=6), batch=20, networks=2)
METHOD = CTRLg(cp.DensitySCM(ensemble=2, hidden=(8,), likelihood=BRIEF), learner=LEARNER, rollouts=HOW)


@pytest.fixture(scope="module")
def model() -> StructuralCausalModel:
    return METHOD.model.fit(LOG)


def middle(state: Tensor, theta: Tensor) -> Tensor:
    return torch.full_like(state[..., :1], 0.5)


def replay_of(model: StructuralCausalModel, how: RolloutRows = HOW, seed: int = 7) -> RolloutReplay:
    return how.replay([model], [Job(LOG, seed)], TASK)


def test_rows_are_steps_of_the_policy_from_logged_states(model: StructuralCausalModel) -> None:
    replay = replay_of(model)
    replay.refresh(middle, 0)
    made = slice(0, replay.round_rows)
    each = replay.round_rows // HOW.steps
    state, after, valid = replay.state[0, made], replay.next_state[0, made], replay.valid[0, made]
    logged = {tuple(row) for row in LOG.state.tolist()}
    assert all(tuple(row) in logged for row in state[:each].tolist())
    assert bool((replay.action[0, made] == 5).all())
    assert torch.equal(state[each:], after[:-each])
    ended = TASK.terminated(after)
    assert torch.equal(replay.not_terminated[0, made][valid], (~ended).float()[valid])
    assert torch.equal(valid[each:], valid[:-each] & ~ended[:-each])
    assert bool((replay.reward[0, made] == 1).all())
    assert not bool(replay.valid[0, replay.round_rows :].any())


def test_rounds_take_turns_and_the_oldest_makes_room(model: StructuralCausalModel) -> None:
    replay = replay_of(model)
    rounds = []
    for update in (0, 4, 8):
        replay.refresh(middle, update)
        rounds.append(replay.state.clone())
    first, second = slice(0, replay.round_rows), slice(replay.round_rows, None)
    assert torch.equal(rounds[0][:, first], rounds[1][:, first])
    assert torch.equal(rounds[1][:, second], rounds[2][:, second])
    assert not torch.equal(rounds[1][:, first], rounds[2][:, first])
    assert int(replay.count) == int(replay.valid.sum())


def test_only_valid_rows_are_taken_and_networks_of_a_job_share_them(model: StructuralCausalModel) -> None:
    replay = replay_of(model)
    replay.refresh(middle, 0)
    uniform = torch.rand(3, 500, generator=torch.Generator().manual_seed(0))
    state, *_ = replay.sample(uniform, networks=3)
    known = {tuple(row) for row in replay.state[0][replay.valid[0]].tolist()}
    assert {tuple(row) for row in state.flatten(0, 1).tolist()} == known
    ends = replay.sample(torch.tensor([[0.0, 0.999999, 1.0]]), networks=1)[0]
    assert all(tuple(row) in known for row in ends[0, :2].tolist())


def test_some_actions_are_random(model: StructuralCausalModel) -> None:
    replay = replay_of(model, replace(HOW, random_actions=0.5, episodes=50))
    replay.refresh(middle, 0)
    taken = replay.action[0, : replay.round_rows]
    assert 0.4 < (taken != 5).float().mean() < 0.52
    assert len(taken.unique()) == 11


def test_a_minibatch_has_fixed_shares(model: StructuralCausalModel) -> None:
    from counterpoint.learners.d3qn import (
        QLearner,
        double_q_objective,
        table,
    )

    job = METHOD.augment(Job(LOG), model, TASK)
    tables, replay = [table(job)] * 2, replay_of(model, replace(HOW, share=0.4))
    network = LEARNER.build(4, 11, 2)
    objective = replace(double_q_objective(TASK, job), votes=2)
    learner = QLearner(network, LEARNER.build, tables, LEARNER, objective, lambda actor: torch.zeros(1), replay)
    draw = learner.draw(0, torch.Generator().manual_seed(0), 5)
    assert draw["rollouts"].shape == (5, 8)
    assert draw["rows"].shape == (5, 12)
    assert bool((draw["rows"][:, :6] < len(LOG)).all())
    assert bool((draw["rows"][:, 6:] >= len(LOG)).all())
    learner.prepare(0)
    both = {name: torch.stack([tensor[0]] * 2) for name, tensor in draw.items()}
    state, *_ = learner._batch(both)
    assert state.shape == (2, 20, 4)
    torch.testing.assert_close(state[:, 12:], replay.sample(both["rollouts"], 2)[0])


def test_networks_of_a_policy_differ_and_vote() -> None:
    policy = METHOD.fit(LOG, TASK)
    assert isinstance(policy, QPolicy)
    assert policy.network.members == 2
    first, second = policy.network(LOG.state.expand(2, -1, -1))
    assert not torch.equal(first, second)
    assert torch.equal(policy.index(LOG.state), (first + second).argmax(-1))


def test_a_stopped_run_goes_on_with_the_same_rows(tmp_path: Path) -> None:
    whole = METHOD.fit(LOG, TASK)

    def stop(stage: str, done: int, total: int) -> None:
        if stage == "policy" and done >= 6:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        METHOD.fit(LOG, TASK, monitor=Monitor(tmp_path, report=stop, save_seconds=0))
    resumed = METHOD.fit(LOG, TASK, monitor=Monitor(tmp_path, resume=True))
    for name, tensor in whole.weights().items():
        assert torch.equal(tensor, resumed.weights()[name]), name
    other = replace(METHOD, rollouts=replace(HOW, share=0.3))
    with pytest.raises(cp.CounterpointError, match="belongs to another recipe"):
        other.fit(LOG, TASK, monitor=Monitor(tmp_path, resume=True))
