"""Base classes of policy-learning recipes: frozen dataclasses of hyperparameters whose `fit` returns a policy."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from jaxtyping import Int
from torch import Tensor

from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.seeding import derive
from counterpoint.core.settings import checked
from counterpoint.data.jobs import NO_THETA, Job
from counterpoint.data.shapes import Theta
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.models.base import Model, Recipe
from counterpoint.nets.training import Monitor
from counterpoint.policies.base import Policy
from counterpoint.tasks.base import Task, check_task

P_co = TypeVar("P_co", bound=Policy, covariant=True)


@dataclass(frozen=True)
class PolicyCheckpoints(Generic[P_co]):
    """The selected checkpoint of a training run and its last one; the same policy where nothing was selected."""

    selected: P_co
    last: P_co


class PolicyLearner(ABC, Generic[P_co]):
    """A policy-learning recipe. `P_co` is the class of its policies."""

    @checked
    def fit(
        self,
        data: Transitions,
        task: Task,
        seed: int = 0,
        monitor: Monitor = Monitor(),
        device: str = "cpu",
        theta: Theta = NO_THETA,
    ) -> P_co:
        """Learn a policy from one table; `theta` holds the subject factor of every row, if any."""
        return self.fit_many([Job(data, seed, theta)], task, monitor, device)[0].selected

    @abstractmethod
    def fit_many(
        self, jobs: Sequence[Job], task: Task, monitor: Monitor = Monitor(), device: str = "cpu"
    ) -> list[PolicyCheckpoints[P_co]]:
        """Learn a policy from every job, all in one loop."""


class ModelBased(PolicyLearner[P_co]):
    """Fits a model of every job, then learns a policy with it.

    Learners with equal `model` recipes fit equal models on equal jobs, so that fitted models can be shared.
    """

    model: Recipe[Model]
    """The recipe of the models."""

    @abstractmethod
    def check(self, jobs: Sequence[Job], task: Task) -> None:
        """Refuse what cannot be learned, before a model is fitted."""

    @abstractmethod
    def with_models(
        self, jobs: Sequence[Job], models: Sequence[Model], task: Task, monitor: Monitor = Monitor()
    ) -> list[PolicyCheckpoints[P_co]]:
        """Learn the policy of every job with its fitted model, on the device of the models."""

    def model_job(self, job: Job) -> Job:
        """The job that the model of `job` is fitted on: the same rows with the model's seed."""
        return replace(job, seed=derive(job.seed, "model"))

    def fit_models(self, jobs: Sequence[Job], monitor: Monitor = Monitor(), device: str = "cpu") -> list[Model]:
        """Fit the models alone."""
        return self.model.fit_many([self.model_job(job) for job in jobs], monitor.stage("model"), device)

    def fit_many(
        self, jobs: Sequence[Job], task: Task, monitor: Monitor = Monitor(), device: str = "cpu"
    ) -> list[PolicyCheckpoints[P_co]]:
        self.check(jobs, task)
        models = self.fit_models(jobs, monitor, device)
        return self.with_models(jobs, models, task, monitor)


def check_actions_differ(jobs: Sequence[Job]) -> None:
    """Refuse a table in which every row has the same action: it shows nothing about any other."""
    for job in jobs:
        action = job.data.action
        require(
            len(action) == 0 or bool((action != action[0]).any()),
            "all rows have the same action, and nothing shows what another would do; give a log in which decisions"
            " differ, or keep to this one (--method practice)",
        )


def discrete_actions(task: Task, jobs: Sequence[Job] = ()) -> Discrete:
    """The finite action space of the task, for a learner that needs one.

    The tables of the jobs must be tables of the task, with more than one action.
    """
    if not isinstance(task.actions, Discrete):
        raise CounterpointError(
            "this learner chooses from a list of actions, and the doses are continuous; cut them with actions=Bins()"
        )
    for job in jobs:
        check_task(task, job.data.schema)
    check_actions_differ(jobs)
    return task.actions


def action_numbers(data: Transitions) -> Int[Tensor, " n"]:
    """The action number of every row; a row outside the discrete_actions action space is refused."""
    outside = (data.action_index < 0).nonzero()
    if len(outside):
        raise CounterpointError(
            f"row {int(outside[0])} has an action outside the discrete_actions action space; correct it"
        )
    return data.action_index
