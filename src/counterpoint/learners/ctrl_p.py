"""CTRL_p: fit a model with subject factors, group the subjects, learn a policy for each group (paper, section 3.2)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from counterpoint.core.artifacts import Saved
from counterpoint.core.errors import require
from counterpoint.core.seeding import derive, generator
from counterpoint.core.settings import Share, check_settings
from counterpoint.data.jobs import Job, Origin
from counterpoint.data.transitions import Transitions
from counterpoint.learners.base import ModelBased, PolicyCheckpoints
from counterpoint.learners.ctrl_g import CTRLg
from counterpoint.learners.search import Search
from counterpoint.models.base import Model, Recipe, SubjectFactors
from counterpoint.models.groups import Groups, KMeansGroups, MixtureGroups
from counterpoint.models.scm.random_effects import RandomEffects
from counterpoint.nets.training import Monitor
from counterpoint.policies.base import Policy
from counterpoint.policies.personal import PersonalPolicy, saved_personal_policy
from counterpoint.tasks.base import Task


@dataclass(frozen=True)
class CTRLp(ModelBased[PersonalPolicy]):
    """A policy for each group of subjects, or one policy that is conditioned on the subject's factor."""

    policy: Search | CTRLg = Search(RandomEffects(), sees_factor=False)
    """The learner of the policies; its model infers the factors."""
    groups: MixtureGroups | KMeansGroups | None = MixtureGroups()
    """How subjects are grouped; None for one policy that sees factors."""
    centroids: bool = False
    """Whether all subjects of a group get its centre as factor, as in the paper; else a draw from their posterior."""
    min_group_probability: Share = 0.5
    """Posterior probability from which a new subject gets its group's policy; below it the population's acts."""
    posterior_sampling: bool = False
    """Posterior sampling: at every step, act for a subject factor drawn from its current posterior instead of its mean,
    so that treatments are tried while the factor is uncertain."""

    def __post_init__(self) -> None:
        check_settings(self)
        require(
            self.policy.sees_factor == (self.groups is None),
            "policies of groups see no factors and a policy without groups does; set policy.sees_factor accordingly",
        )

    def within(self, model: Model, rows: Transitions, groups: int | None = None) -> "CTRLp":
        """This recipe for a fitted model, with a number of groups or, for None, as many as the rows support.

        Groups are a Gaussian mixture where the model gives factors with a covariance, else k-means.
        """
        check_personal(model)
        uncertain = bool(model.subject_factors(rows).covariance.any())
        grouping = MixtureGroups(groups) if uncertain else KMeansGroups(groups)
        return replace(self, policy=replace(self.policy, model=model.recipe), groups=grouping)

    @property
    def model(self) -> Recipe[Model]:
        return self.policy.model

    def check(self, jobs: Sequence[Job], task: Task) -> None:
        self.policy.check(jobs, task)

    def with_models(
        self, jobs: Sequence[Job], models: Sequence[Model], task: Task, monitor: Monitor = Monitor()
    ) -> list[PolicyCheckpoints[PersonalPolicy]]:
        """Learn the personal policy of every job; models with equally many factors are trained in one stack."""
        results: dict[int, PolicyCheckpoints[PersonalPolicy]] = {}
        for width in sorted({model.theta_width for model in models}):
            places = [i for i, model in enumerate(models) if model.theta_width == width]
            stage = monitor if len(places) == len(jobs) else monitor.stage(f"factors-{width}")
            learned = self._with_stacked_models([jobs[i] for i in places], [models[i] for i in places], task, stage)
            results |= dict(zip(places, learned, strict=True))
        return [results[i] for i in range(len(jobs))]

    def _with_stacked_models(
        self, jobs: Sequence[Job], models: Sequence[Model], task: Task, monitor: Monitor
    ) -> list[PolicyCheckpoints[PersonalPolicy]]:
        factors = [model.subject_factors(job.data) for model, job in zip(models, jobs, strict=True)]
        groups = [self._groups(job, known) for job, known in zip(jobs, factors, strict=True)]
        parts = [self._parts(*columns) for columns in zip(jobs, factors, groups, strict=True)]
        inner_jobs = [job for members in parts for job in members if job is not None]
        inner_models = [
            model for members, model in zip(parts, models, strict=True) for job in members if job is not None
        ]
        learned = iter(self.policy.with_models(inner_jobs, inner_models, task, monitor))
        ends = [[None if job is None else next(learned) for job in members] for members in parts]
        columns = zip(jobs, models, groups, ends, strict=True)
        return [self._assembled(job, model, grouping, own) for job, model, grouping, own in columns]

    def _groups(self, job: Job, factors: SubjectFactors) -> Groups | None:
        if self.groups is None:
            return None
        present = torch.bincount(job.data.subject, minlength=len(factors.mean)) > 0
        return self.groups.fit(factors[present], derive(job.seed, "groups"))

    def _parts(self, job: Job, factors: SubjectFactors, groups: Groups | None) -> list[Job | None]:
        """A job for each group, None for a group without subjects, and last the job of the whole population."""
        drawn = factors.draw(generator(job.seed, "factors"))[job.data.subject]
        population = replace(job, seed=derive(job.seed, "everybody"), theta=drawn)
        if groups is None:
            return [population]
        group_index = groups.chances(factors).argmax(1)[job.data.subject]
        return [*(self._part(job, drawn, group_index == g, groups, g) for g in range(groups.count)), population]

    def _part(
        self, job: Job, drawn: Float[Tensor, "n t"], in_group: Bool[Tensor, " n"], groups: Groups, group: int
    ) -> Job | None:
        if not bool(in_group.any()):
            return None
        theta = drawn[in_group]
        if self.centroids:
            theta = groups.centre[group].expand(len(theta), -1)
        return Job(job.data[in_group], derive(job.seed, "group", group), theta)

    def _assembled(
        self, job: Job, model: Model, groups: Groups | None, ends: Sequence[PolicyCheckpoints[Policy] | None]
    ) -> PolicyCheckpoints[PersonalPolicy]:
        """The personal policy of a job; a group without subjects gets the population's policy."""
        population = ends[-1]
        assert population is not None
        filled = [end or population for end in ends]

        def personal(policies: Sequence[Policy]) -> PersonalPolicy:
            return PersonalPolicy(self, model, groups, policies, job.data.schema, Origin.of(job))

        selected = personal([end.selected for end in filled])
        if all(end.selected is end.last for end in filled):
            return PolicyCheckpoints(selected, selected)
        return PolicyCheckpoints(selected, personal([end.last for end in filled]))

    def rebuild(self, saved: Saved) -> PersonalPolicy:
        return saved_personal_policy(self, saved)


def check_personal(model: Model) -> None:
    """Refuse a model without subject factors."""
    if isinstance(model.recipe, RandomEffects):
        reason = (
            "the model finds no difference between the subjects, so one policy serves all (--method search or ctrl-g)"
        )
    else:
        reason = "the model knows no subject factors; fit RandomEffects (scm:random-effects), whose subjects differ"
    require(bool(model.theta_width), reason)
