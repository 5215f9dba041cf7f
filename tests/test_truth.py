"""The truth as a model: it simulates the task itself, subject by subject, and a search in it is the ceiling."""

from dataclasses import replace

import torch

import counterpoint as cp
from counterpoint.data.jobs import Job
from counterpoint.nets.training import Schedule
from counterpoint.simulation.models import ModelSimulator
from counterpoint.tasks.tumour import Tumour, population
from reproduction.true_model import TrueModel

SHAPES = False
TASK = Tumour(response=population(12, 0))
LOG = cp.simulate(TASK, cp.random_policy(TASK), 12, 10, seed=3)
SEARCH = cp.Search(
    TrueModel(TASK, population=True),
    draws=None,
    optimizer=cp.learners.CrossEntropy(16, 4),
    schedule=Schedule(steps=3, check_every=1, log_every=1),
    horizon=10,
)


def test_the_truth_gives_the_log_back() -> None:
    model = SEARCH.model.fit(LOG)
    torch.testing.assert_close(model.imagine(LOG, LOG.action[:, None], torch.Generator())[:, 0], LOG.next_state)
    simulator, factors = ModelSimulator([model]), model.subjects(LOG)
    after = simulator.step(LOG.state[None], LOG.action[None], (LOG.noise[None],), factors[None])[0]
    torch.testing.assert_close(after, LOG.next_state)
    others = simulator.step(LOG.state[None], LOG.action[None], (LOG.noise[None],), factors.flip(0)[None])[0]
    assert (others - LOG.next_state).abs().max() > 0.01


def test_subjects_that_do_not_differ_need_no_factor() -> None:
    task = cp.CartPole()
    rows = cp.simulate(task, cp.random_policy(task), 5, 20, seed=0)
    model = TrueModel(task).fit(rows)
    assert model.theta_width == 0
    torch.testing.assert_close(model.imagine(rows, rows.action[:, None], torch.Generator())[:, 0], rows.next_state)
    random = torch.Generator().manual_seed(0)
    drawn = model.sample(rows.state, rows.action, random)
    noise = task.noise(len(rows), torch.Generator().manual_seed(0))
    torch.testing.assert_close(drawn, task.transition(rows.state, rows.action, noise))


def test_a_policy_may_be_blind_to_the_factor_that_the_model_knows() -> None:
    blind = replace(SEARCH, sees_factor=False).fit_many([Job(LOG)], TASK)[0].selected
    seeing = SEARCH.fit_many([Job(LOG)], TASK)[0].selected
    assert blind.weights()["mean"].shape == (1, 2)
    assert seeing.weights()["mean"].shape == (1, 3)
    one, other = torch.zeros(len(LOG), 1), torch.full((len(LOG), 1), 11.0)
    assert torch.equal(blind.act(LOG.state, one), blind.act(LOG.state, other))
    assert "factor 1" in seeing.explain()  # pyright: ignore[reportAttributeAccessIssue]
    assert "factor" not in blind.explain()  # pyright: ignore[reportAttributeAccessIssue]
