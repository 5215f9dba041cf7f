"""A known SCM in place of a fitted model: an upper bound of what any fitted model can reach."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.settings import check_settings
from counterpoint.data.jobs import NO_THETA, Job
from counterpoint.data.shapes import Theta
from counterpoint.data.transitions import Transitions
from counterpoint.models.base import MechanismRecipe, Model, SubjectMechanism, Values
from counterpoint.nets.training import Monitor
from counterpoint.tasks.base import KnownSCM


class KnownMechanism(SubjectMechanism):
    """The task's structural equation; where subjects differ, a subject's factor is its number in the population."""

    capturable = False
    where: Tensor

    def __init__(self, task: KnownSCM, context: int, members: int) -> None:
        super().__init__()
        self.task, self.members, self.context_width = task, members, context
        self.register_buffer("where", torch.zeros(members))

    def predict(self, context: Tensor, state: Tensor, noise: Tensor) -> Tensor:
        width = state.shape[-1]
        action, number = context[..., width : width + self.task.actions.width], context[..., -1]
        if self.context_width == width + self.task.actions.width:
            return self.task.transition(state, action, noise)
        flat = lambda x: x.flatten(0, 1)
        subject_task = self.task.of_subjects(number.flatten().long())
        return subject_task.transition(flat(state), flat(action), flat(noise)).view(state.shape)

    def prior(self, count: int, random: torch.Generator) -> Float[Tensor, "n u"]:
        return self.task.noise(count, random)

    def subjects(self, rows: Transitions) -> Float[Tensor, "n t"]:
        return rows.subject[:, None].to(rows.state)


@final
class KnownModel(Model):
    """A known SCM with the interface of a fitted model."""

    kind: ClassVar[str] = "known"
    mechanism: KnownMechanism

    def sample(self, state: Values, action: object, random: torch.Generator, theta: Theta = NO_THETA) -> Values:
        query, taken = self._query(state, action)
        factors = self._factors(theta, len(taken))
        noise = self.mechanism.prior(len(taken), random)
        return query.restore(self._next(query.values, taken, factors, noise), self.schema.states)

    def imagine(
        self, rows: Transitions, action: Float[Tensor, "n m a"], random: torch.Generator, theta: Theta = NO_THETA
    ) -> Float[Tensor, "n m s"]:
        """Return next states under other actions, with the noise that the simulator recorded."""
        factors = self._factors(theta, len(rows), rows)
        after = [self._next(rows.state, other, factors, rows.noise) for other in action.unbind(1)]
        return torch.stack(after, 1)

    def _next(self, state: Tensor, action: Tensor, factors: Tensor, noise: Tensor) -> Tensor:
        context = torch.cat([state, action, factors], -1)
        return self.mechanism.predict(context[None], state[None], noise[None])[0]


@dataclass(frozen=True)
class TrueModel(MechanismRecipe[KnownModel]):
    """Recipe that fits nothing: every job's model is the task itself."""

    task: KnownSCM
    population: bool = False
    """Whether subjects differ, as the task's `of_subjects` says."""

    fitted: ClassVar[type] = KnownModel

    def __post_init__(self) -> None:
        check_settings(self)

    def fit_many(self, jobs: Sequence[Job], monitor: Monitor = Monitor(), device: str = "cpu") -> list[KnownModel]:
        data = jobs[0].data
        width = data.state_size + data.action.shape[1] + self.population
        models = [self.model(self.build(data.state_size, width, 1), job) for job in jobs]
        return [model.to(device) for model in models]  # pyright: ignore[reportReturnType]

    def build(self, state: int, context: int, members: int) -> KnownMechanism:
        return KnownMechanism(self.task, context, members)
