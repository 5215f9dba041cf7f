"""CTRL_g: fit an SCM, generate counterfactual rows, learn on real and imagined rows (Algorithm 1, step 2)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from counterpoint.core.seeding import derive
from counterpoint.core.settings import check_settings
from counterpoint.data.jobs import NO_THETA, Job
from counterpoint.learners.base import ModelBased, PolicyCheckpoints, discrete_actions
from counterpoint.learners.d3qn import D3QN
from counterpoint.learners.rollout_rows import RolloutRows
from counterpoint.models.base import Model, Recipe
from counterpoint.models.scm.density import DensitySCM
from counterpoint.nets.training import Monitor, Schedule
from counterpoint.policies.q import QPolicy
from counterpoint.simulation.augmentation import Augmenter
from counterpoint.simulation.rollout import on_device
from counterpoint.simulation.selection import CheckpointSelection
from counterpoint.tasks.base import Task

LEARNER = D3QN(schedule=Schedule(steps=3000, check_every=150, rate="linear", log_every=250))
"""The default Q-learning; short, because longer training on 20-step trials lowers true returns."""


@dataclass(frozen=True)
class CTRLg(ModelBased[QPolicy]):
    """One policy for all subjects, learned on real rows and rows imagined by a model.

    CTRL_g and the baselines Base-D, Base-S and Base-M differ in `model` alone.
    """

    model: Recipe[Model] = DensitySCM()
    """The model that imagines rows."""
    augmenter: Augmenter = Augmenter()
    """The alternative actions of the imagined rows."""
    learner: D3QN = LEARNER
    """The Q-learning."""
    selection: CheckpointSelection = CheckpointSelection()
    """How a checkpoint is selected inside the model, where the learner's schedule checks."""
    rollouts: RolloutRows | None = None
    """Rows of the learning policy's own episodes inside the model, in addition; None in the paper."""
    sees_factor: bool = True
    """Whether the policy is conditioned on the subject's factor, where the model has one."""

    def __post_init__(self) -> None:
        check_settings(self)

    def check(self, jobs: Sequence[Job], task: Task) -> None:
        discrete_actions(task, jobs)

    def with_models(
        self, jobs: Sequence[Job], models: Sequence[Model], task: Task, monitor: Monitor = Monitor()
    ) -> list[PolicyCheckpoints[QPolicy]]:
        augmented = [self.augment(job, model, task) for job, model in zip(jobs, models, strict=True)]
        return self.learn(augmented, models, task, monitor)

    def augment(self, job: Job, model: Model, task: Task) -> Job:
        """The same job with real and imagined rows."""
        theta = job.rows_theta if job.theta.shape[1] else model.subjects(job.data)
        local_task = on_device(task, job.data.state.device)
        rows = self.augmenter.augment(job.data, model, local_task, derive(job.seed, "augment"), theta)
        source = rows.source.where(rows.imagined, torch.arange(len(rows)).to(rows.source))
        return Job(rows, job.seed, theta[source])

    def learn(
        self, augmented: Sequence[Job], models: Sequence[Model], task: Task, monitor: Monitor = Monitor()
    ) -> list[PolicyCheckpoints[QPolicy]]:
        """The policy of every job from its augmented table, on the device of the models."""
        selector = self.selection.selector(models, augmented, task) if self.learner.schedule.check_every else None
        jobs = [replace(job, seed=derive(job.seed, "policy")) for job in augmented]
        replay = self.rollouts.replay(models, jobs, task, self.sees_factor) if self.rollouts else None
        jobs = jobs if self.sees_factor else [replace(job, theta=NO_THETA) for job in jobs]
        return self.learner.fit_many(jobs, task, monitor.stage("policy"), str(models[0].device), selector, replay)
