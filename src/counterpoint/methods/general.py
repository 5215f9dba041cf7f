"""CTRL_g: fit a model, imagine other actions with it, learn on real and imagined rows (Algorithm 1, step 2)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from counterpoint.counterfactual import Augmenter
from counterpoint.data.jobs import Job
from counterpoint.nets.training import Monitor
from counterpoint.policies.base import Learned, PolicyLearner
from counterpoint.policies.d3qn import D3QN
from counterpoint.scm.density import DensitySCM
from counterpoint.seeding import derive
from counterpoint.tasks.base import Task
from counterpoint.worlds import Rollouts, Worlds


@runtime_checkable
class ModelRecipe(Protocol):
    """Any recipe of a model that imagines: an SCM for CTRL_g, a model that cannot abduct for the baselines."""

    def fit_many(self, jobs: Sequence[Job], monitor: Monitor = ..., device: str = ...) -> Sequence[Any]: ...


@dataclass(frozen=True)
class General(PolicyLearner):
    """A general policy from a model that imagines. CTRL_g and the baselines differ in `model` alone."""

    model: ModelRecipe = DensitySCM()
    """What imagines the rows."""
    augmenter: Augmenter = Augmenter()
    """Which other actions are asked about."""
    learner: D3QN = D3QN()
    """What learns the policy."""
    rollouts: Rollouts = Rollouts()
    """How the checkpoint is chosen inside the model, where the learner's schedule checks."""

    def fit_many(
        self, jobs: Sequence[Job], task: Task, monitor: Monitor = Monitor(), device: str = "cpu"
    ) -> list[Learned]:
        models = self.fit_models(jobs, monitor, device)
        augmented = [
            Job(self.augmenter.augment(job.data, model, task, derive(job.seed, "augment")), derive(job.seed, "policy"))
            for job, model in zip(jobs, models, strict=True)
        ]
        judge = None
        if self.learner.schedule.check_every:
            judge = self.rollouts.judge(Worlds(models), jobs, task)
        return self.learner.fit_many(augmented, task, monitor.stage("policy"), device, judge)

    def fit_models(self, jobs: Sequence[Job], monitor: Monitor, device: str) -> Sequence[Any]:
        """The models alone."""
        return self.model.fit_many(
            [replace(job, seed=derive(job.seed, "model")) for job in jobs], monitor.stage("model"), device
        )
