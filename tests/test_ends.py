"""Ends that can happen: hazards learned from a ward whose truth is known, in imagined rows, rollouts and policies."""

from dataclasses import replace

import pytest
import torch

from counterpoint.data.jobs import Job
from counterpoint.data.transitions import Transitions
from counterpoint.learners.ctrl_g import CTRLg
from counterpoint.learners.d3qn import D3QN
from counterpoint.models.dynamics.outcome import LearnedTask, Outcome
from counterpoint.models.scm.base import StructuralCausalModel
from counterpoint.models.scm.density import location_scale
from counterpoint.nets.likelihood import Likelihood
from counterpoint.nets.training import Monitor, Schedule
from counterpoint.ope.model_based import returns, true_returns
from counterpoint.simulation.augmentation import Augmenter
from counterpoint.simulation.models import ModelSimulator
from counterpoint.simulation.rollout import Rollout
from counterpoint.simulation.trials import random_policy, simulate
from counterpoint.tasks.base import Task
from counterpoint.tasks.ward import Ward

SHAPES = False

WARD = Ward()
QUICK = Likelihood(Schedule(steps=600, check_every=50, rate="one-cycle"), batch=128)
SCM = replace(location_scale(ensemble=2), likelihood=QUICK, hidden=(32,))


def logged(patients: int, seed: int = 0) -> Transitions:
    rows = simulate(WARD, random_policy(WARD), patients, 40, seed)
    return replace(rows, noise=rows.noise[:, :0])


@pytest.fixture(scope="module")
def ward() -> tuple[Transitions, LearnedTask, StructuralCausalModel]:
    rows = logged(800)
    return rows, Outcome(discount=WARD.discount, likelihood=QUICK).fit(rows), SCM.fit(rows)


def test_the_wards_hazard_by_hand() -> None:
    """Severity −2 and a level of .5·3.2 + 1: who dies, with sigmoid(.7), does not go home, with sigmoid(1)."""
    died, home = 0.668188, 0.331812 * 0.731059
    chance = WARD.hazard(torch.tensor([[-2.0, 3.2]]), torch.tensor([[1.0]]))
    torch.testing.assert_close(chance, torch.tensor([[died, home, 1 - died - home]]), rtol=0, atol=1e-5)


def test_the_ward_ends_as_its_hazard_says() -> None:
    rows = logged(2000)
    foreseen = WARD.hazard(rows.state, rows.action).mean(0)
    seen = torch.stack([(rows.outcome == k).float().mean() for k in (0, 1, -1)])
    torch.testing.assert_close(seen, foreseen, rtol=0.1, atol=0.003)
    assert torch.equal(rows.terminated, ~rows.has_next)
    assert set(rows.reward[rows.outcome == 0].tolist()) == {WARD.died_reward}
    assert set(rows.reward[rows.outcome == 1].tolist()) == {WARD.discharged_reward}


def test_imagined_rows_end_as_often_as_they_truly_would(ward) -> None:
    """Shares and rewards of imagined ends, outcome by outcome, within a tenth of the truth."""
    rows, task, model = ward
    imagined = Augmenter().imagine(rows, model, task, seed=1)
    truth = WARD.hazard(imagined.state, imagined.action).mean(0)
    for k, name in enumerate(WARD.outcome_names):
        ended = imagined.outcome == k
        share = float(ended.float().mean())
        assert abs(share / float(truth[k]) - 1) < 0.1, (name, share, float(truth[k]))
        meant = (WARD.died_reward, WARD.discharged_reward)[k]
        assert abs(float(imagined.reward[ended].mean()) / meant - 1) < 0.1
    assert imagined.next_state[imagined.terminated].isnan().all()
    assert not imagined.next_state[~imagined.terminated].isnan().any()


def test_ends_depend_on_the_action_and_not_only_on_the_state(ward) -> None:
    """At the same severity the full dose kills at once; the learned hazard must say so, outcome by outcome."""
    _, task, _ = ward
    state = torch.tensor([[0.5, 0.5]]).expand(3, -1)
    probability, _ = task.branches(state, WARD.actions.table(), state)
    found, truth = probability[:, :2], WARD.hazard(state, WARD.actions.table())[:, :2]
    torch.testing.assert_close(found[:, 0], truth[:, 0], rtol=0.35, atol=0.02)
    assert found[2, 0] > 3 * found[0, 0]


def test_rollouts_in_the_model_weigh_the_ends(ward) -> None:
    """The value of a fixed dose inside the fitted model is near the true one, and far from that without ends."""
    rows, task, model = ward
    simulator = ModelSimulator([model])
    first = rows.state[rows.step == 0][:200][None]
    for dose, margin in ((0.0, 1.5), (0.5, 1.2), (1.0, 1.2)):
        act = lambda state, theta, dose=dose: torch.full((*state.shape[:-1], 1), dose)
        true = float(returns(act, WARD, 1, 1000, 0).mean())
        found = Rollout(simulator, task, act).returns(first, simulator.fresh(200, 0), WARD.horizon)
        endless = Rollout(simulator, Endless(task), act).returns(first, simulator.fresh(200, 0), WARD.horizon)
        assert abs(float(found.mean()) - true) < margin, (dose, float(found.mean()), true)
        assert abs(float(endless.mean()) - WARD.horizon * WARD.step_reward) < 0.5


class Endless(Task):
    """What was learned before ends were hazards: every imagined step goes on and earns what going on earns."""

    def __init__(self, task: LearnedTask) -> None:
        self.task, self.actions, self.discount = task, task.actions, task.discount
        self.horizon, self.outcome_names = task.horizon, task.outcome_names

    def reward(self, state, action, next_state):
        return self.task.reward(state, action, next_state)

    def terminated(self, next_state):
        return torch.zeros_like(next_state[..., 0], dtype=torch.bool)


def test_a_policy_that_knows_of_ends_beats_one_that_does_not() -> None:
    """The same rows, the same SCM, the same learner; only the ends of imagined rows and of the judge's differ."""
    jobs = [Job(logged(150, seed), seed) for seed in range(3)]
    tasks = Outcome(discount=WARD.discount, likelihood=QUICK).fit_many(jobs)
    learner = D3QN((32, 32), Schedule(steps=400, check_every=100, rate="linear"), 64, 2e-3, tau=0.02, huber=10.0)
    method = CTRLg(SCM, learner=learner)
    models = method.fit_models(jobs, Monitor(), "cpu")

    def value(wrapped: list[Task]) -> float:
        policies = []
        for job, model, task in zip(jobs, models, wrapped, strict=True):
            augmented = method.augment(job, model, task)
            policies.append(method.learn([augmented], [model], task, Monitor())[0].selected)
        return float(true_returns(policies, WARD, 500).mean())

    assert value(list(tasks)) > value([Endless(task) for task in tasks]) + 0.5
