"""CTRL_p: fit a model that knows subjects' factors, find groups of subjects, learn a policy for each (paper, 3.2)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.artifacts import Saved
from counterpoint.core.errors import require
from counterpoint.core.seeding import derive, generator
from counterpoint.core.settings import Share, check_settings
from counterpoint.data.jobs import Job, Origin
from counterpoint.data.transitions import Transitions
from counterpoint.learners.ctrl_g import CTRLg
from counterpoint.learners.search import Search
from counterpoint.models.base import Model, Recipe, SubjectFactors
from counterpoint.models.groups import Groups, KMeansGroups, MixtureGroups
from counterpoint.models.scm.random_effects import RandomEffects
from counterpoint.nets.training import Monitor
from counterpoint.policies.base import Learned, ModelBased, Policy
from counterpoint.policies.personal import PersonalPolicy, rebuilt
from counterpoint.tasks.base import Task


@dataclass(frozen=True)
class CTRLp(ModelBased):
    """A policy for each group of subjects, or one that is told the subject's factor."""

    policy: Search | CTRLg = Search(RandomEffects(), sees_factor=False)
    """How policies are learned; its model finds the factors."""
    groups: MixtureGroups | KMeansGroups | None = MixtureGroups()
    """How subjects are grouped; none for one policy that sees factors."""
    centroids: bool = False
    """Whether a group's subjects all count as its centre, as in the paper; else each is drawn from its posterior."""
    sure: Share = 0.5
    """Chance of a group from which a new subject is treated as one of it; before that everybody's policy decides."""
    explores: bool = False
    """Whether a subject who is learned about while treated is taken for one drawn anew at every step from what is known
    of it (posterior sampling), so that treatments are tried while it is unsure; else for the mean."""

    def __post_init__(self) -> None:
        check_settings(self)
        require(
            self.policy.sees_factor == (self.groups is None),
            "policies of groups see no factors and a policy without groups does; set policy.sees_factor accordingly",
        )

    def within(self, model: Model, rows: Transitions, groups: int = 0) -> "CTRLp":
        """The same by a fitted model, for so many groups (0 for as many as the rows speak for).

        The groups weigh how sure each factor is where the model says so, and are k-means' where it does not.
        """
        check_personal(model)
        unsure = bool(model.subject_factors(rows).covariance.any())
        kind = MixtureGroups(groups) if unsure else KMeansGroups(groups)
        return replace(self, policy=replace(self.policy, model=model.recipe), groups=kind)

    @property
    def model(self) -> Recipe[Model]:
        """That of its policies."""
        return self.policy.model

    def check(self, jobs: Sequence[Job], task: Task) -> None:
        self.policy.check(jobs, task)

    def with_models(
        self,
        jobs: Sequence[Job],
        models: Sequence[Model],
        task: Task,
        monitor: Monitor = Monitor(),
        device: str = "cpu",
    ) -> list[Learned]:
        """The personal policy of every job, by its own model; models of one width of factors share a stack."""
        found: dict[int, Learned] = {}
        for width in sorted({model.theta_width for model in models}):
            own = [i for i, model in enumerate(models) if model.theta_width == width]
            stage = monitor if len(own) == len(jobs) else monitor.stage(f"factors-{width}")
            learned = self._of_one_width([jobs[i] for i in own], [models[i] for i in own], task, stage, device)
            found |= dict(zip(own, learned, strict=True))
        return [found[i] for i in range(len(jobs))]

    def _of_one_width(
        self, jobs: Sequence[Job], models: Sequence[Model], task: Task, monitor: Monitor, device: str
    ) -> list[Learned]:
        known = [model.subject_factors(job.data) for model, job in zip(models, jobs, strict=True)]
        groups = [self._groups(job, factors) for job, factors in zip(jobs, known, strict=True)]
        parts = [self._parts(*each) for each in zip(jobs, known, groups, strict=True)]
        flat = [(job, model) for own, model in zip(parts, models, strict=True) for job in own if job is not None]
        learned = iter(self.policy.with_models(*zip(*flat, strict=True), task, monitor, device))  # pyright: ignore[reportCallIssue, reportArgumentType]
        ends = [[None if job is None else next(learned) for job in own] for own in parts]
        every = zip(jobs, models, groups, ends, strict=True)
        return [self._learned(job, model, group, own) for job, model, group, own in every]

    def _groups(self, job: Job, factors: SubjectFactors) -> Groups | None:
        if self.groups is None:
            return None
        present = torch.bincount(job.data.subject, minlength=len(factors.mean)) > 0
        return self.groups.fit(factors[present], derive(job.seed, "groups"))

    def _parts(self, job: Job, factors: SubjectFactors, groups: Groups | None) -> list[Job | None]:
        """A job for each group, none where it has no subject, and last one for everybody."""
        drawn = factors.draw(generator(job.seed, "factors"))[job.data.subject]
        everybody = replace(job, seed=derive(job.seed, "everybody"), theta=drawn)
        if groups is None:
            return [everybody]
        member = groups.chances(factors).argmax(1)[job.data.subject]
        return [*(self._part(job, drawn, member == g, groups, g) for g in range(groups.count)), everybody]

    def _part(self, job: Job, drawn: Tensor, own: Tensor, groups: Groups, group: int) -> Job | None:
        if not bool(own.any()):
            return None
        theta: Float[Tensor, "n t"] = drawn[own]
        theta = groups.centre[group].expand(len(theta), -1) if self.centroids else theta
        return Job(job.data[own], derive(job.seed, "group", group), theta)

    def _learned(self, job: Job, model: Model, groups: Groups | None, ends: Sequence[Learned | None]) -> Learned:
        """A group without subjects has everybody's policy."""
        everybody = ends[-1]
        assert everybody is not None
        every = [end or everybody for end in ends]

        def whole(policies: Sequence[Policy]) -> PersonalPolicy:
            return PersonalPolicy(self, model, groups, policies, job.data.schema, Origin.of(job))

        selected = whole([end.selected for end in every])
        same = all(end.selected is end.last for end in every)
        return Learned(selected, selected if same else whole([end.last for end in every]))

    def rebuild(self, saved: Saved) -> PersonalPolicy:
        """The policy back from its artifact."""
        return rebuilt(self, saved)


def check_personal(model: Model) -> None:
    """Refuse a model to which all subjects are alike."""
    alike = isinstance(model.recipe, RandomEffects)
    require(
        bool(model.theta_width),
        "the model finds no difference between the subjects, so one policy serves all (--method search or ctrl-g)"
        if alike
        else "the model knows no subject factors; fit RandomEffects (scm:random-effects), whose subjects differ",
    )
