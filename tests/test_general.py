"""CTRL_g end to end, small: model, imagined rows and policy, each from its own child of the seed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from counterpoint.core.errors import CounterpointError
from counterpoint.core.seeding import derive
from counterpoint.data.jobs import Job
from counterpoint.data.transitions import Transitions
from counterpoint.learners.ctrl_g import CTRLg
from counterpoint.learners.d3qn import D3QN
from counterpoint.nets.training import Monitor, Schedule
from counterpoint.policies.base import Policy, joint_actor
from counterpoint.simulation.augmentation import Augmenter
from counterpoint.simulation.rollout import Actor
from counterpoint.simulation.selection import CheckpointSelection
from counterpoint.simulation.trials import random_policy, simulate
from counterpoint.tasks.cartpole import CartPole
from helpers.recipes import BRIEF, DENSITY, MODELS, SCMS
from helpers.selectors import FunctionSelector

TASK = CartPole()
LEARNER = D3QN(hidden=(16,), schedule=Schedule(steps=120, rate="linear"), batch=32)
GENERAL = CTRLg(DENSITY, Augmenter(3), LEARNER, CheckpointSelection(starts=4, horizon=30))
CHECKED = replace(GENERAL, learner=replace(LEARNER, schedule=Schedule(steps=120, check_every=40)))


def logged(trials: int = 5, seed: int = 0) -> Transitions:
    return simulate(TASK, random_policy(TASK), trials, 20, seed)


def same(one: Policy, other: Policy) -> bool:
    pairs = zip(one.weights().values(), other.weights().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_it_is_the_model_then_the_augmenter_then_the_learner() -> None:
    data = logged()
    learned = GENERAL.fit_many([Job(data, 5)], TASK)[0]
    model = DENSITY.fit(data, derive(5, "model"))
    rows = GENERAL.augmenter.augment(data, model, TASK, derive(5, "augment"))
    assert int(rows.imagined.sum()) == 300
    assert same(learned.last, LEARNER.fit_many([Job(rows, derive(5, "policy"))], TASK)[0].last)


def test_imagined_rows_change_the_policy() -> None:
    data = logged()
    alone = LEARNER.fit_many([Job(data, derive(5, "policy"))], TASK)[0]
    assert not same(GENERAL.fit_many([Job(data, 5)], TASK)[0].last, alone.last)


def test_the_checkpoint_is_the_best_inside_ones_own_model() -> None:
    jobs = [Job(logged(seed=seed), seed) for seed in (0, 1)]
    learned = CHECKED.fit_many(jobs, TASK)
    models = CHECKED.fit_models(jobs, Monitor(), "cpu")
    selector = CHECKED.selection.selector(models, jobs, TASK)
    score = lambda policies: selector(joint_actor(policies))
    selected, last = ([getattr(one, end) for one in learned] for end in ("selected", "last"))
    assert (score(selected) <= score(last)).all()
    seen: list[Tensor] = []

    def watch(actor: Actor) -> Tensor:
        seen.append(selector(actor))
        return seen[-1]

    augmented = [
        Job(CHECKED.augmenter.augment(job.data, model, TASK, derive(job.seed, "augment")), derive(job.seed, "policy"))
        for job, model in zip(jobs, models, strict=True)
    ]
    CHECKED.learner.fit_many(augmented, TASK, selector=FunctionSelector(watch))
    assert len(seen) == 3
    torch.testing.assert_close(score(selected), torch.stack(seen).amin(0))


def test_unless_told_otherwise_a_checkpoint_is_selected() -> None:
    seen: list[Tensor] = []

    class Watched(CheckpointSelection):
        def selector(self, models: Any, jobs: Any, task: Any) -> Any:
            score = super().selector(models, jobs, task)
            return FunctionSelector(lambda actor: seen.append(score(actor)) or seen[-1])

    usual = CTRLg().learner.schedule
    learner = replace(LEARNER, schedule=replace(usual, steps=2 * usual.check_every))
    CTRLg(DENSITY, learner=learner, selection=Watched(2, 10)).fit(logged(), TASK)
    assert len(seen) == 2


def test_jobs_together_learn_as_alone() -> None:
    jobs = [Job(logged(seed=seed), seed) for seed in (0, 1)]
    for job, learned in zip(jobs, CHECKED.fit_many(jobs, TASK), strict=True):
        alone = CHECKED.fit_many([job], TASK)[0]
        for one, other in zip(alone.last.weights().values(), learned.last.weights().values(), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-4)


def test_the_seed_decides_the_policy() -> None:
    one, again, other = (CHECKED.fit(logged(), TASK, seed) for seed in (0, 0, 1))
    assert same(one, again)
    assert not same(one, other)


@pytest.mark.parametrize("model", [*MODELS.values(), SCMS["bicogan"][0], SCMS["conditional bicogan"][0]])
def test_methods_differ_in_their_model_alone(model: Any) -> None:
    """Every model that imagines gives a policy of the same kind, checked in its own worlds."""
    learned = replace(CHECKED, model=model).fit_many([Job(logged())], TASK)[0]
    assert learned.selected.recipe == CHECKED.learner
    assert not same(learned.last, CHECKED.fit_many([Job(logged())], TASK)[0].last)


def test_fresh_noise_gives_another_policy() -> None:
    fresh = replace(GENERAL, augmenter=Augmenter(3, fresh_noise=True))
    assert not same(GENERAL.fit(logged(), TASK), fresh.fit(logged(), TASK))


@pytest.mark.parametrize("stage", ["model", "policy"])
def test_a_run_stopped_in_either_part_resumes_to_the_same_policy(stage: str, tmp_path: Path) -> None:
    method = replace(CHECKED, model=replace(DENSITY, likelihood=replace(BRIEF, schedule=Schedule(120, 20))))

    def report(name: str, done: int, total: int) -> None:
        if name == stage and done >= 80:
            raise KeyboardInterrupt

    data = logged()
    with pytest.raises(KeyboardInterrupt):
        method.fit(data, TASK, monitor=Monitor(tmp_path, report=report, save_seconds=0.0))
    resumed = method.fit(data, TASK, monitor=Monitor(tmp_path, resume=True))
    assert same(resumed, method.fit(data, TASK))
    assert {p.name for p in tmp_path.glob("*.jsonl")} == {"model.log.jsonl", "policy.log.jsonl"}


def test_a_checkpoint_chosen_by_another_selection_is_not_taken_up(tmp_path: Path) -> None:
    CHECKED.fit(logged(), TASK, monitor=Monitor(tmp_path))
    other = replace(CHECKED, selection=CheckpointSelection(starts=4, horizon=31))
    with pytest.raises(CounterpointError, match="belongs to another recipe"):
        other.fit(logged(), TASK, monitor=Monitor(tmp_path, resume=True))


def test_a_table_that_cannot_be_fitted_is_one_line() -> None:
    with pytest.raises(CounterpointError, match=r"^[^\n]*rows with a next state are fewer than[^\n]*$"):
        GENERAL.fit(logged()[:8], TASK)
