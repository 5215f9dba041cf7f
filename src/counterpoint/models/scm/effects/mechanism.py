"""The law of a step as a structural equation, and what rows say of their subjects."""

import copy

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.core.seeding import generator
from counterpoint.data.jobs import context
from counterpoint.data.transitions import Transitions, lexsort
from counterpoint.models.base import CHUNK, OnlineSubjectMechanism, SubjectFactors, SubjectTracker
from counterpoint.models.scm.base import StructuralMechanism
from counterpoint.models.scm.effects.law import EffectsLaw
from counterpoint.models.scm.exogenous import ExogenousLaw


class EffectsMechanism(StructuralMechanism, OnlineSubjectMechanism):
    """The law of a step as a structural equation. All members speak of the same θ."""

    def __init__(self, law: EffectsLaw, context: int, exogenous: ExogenousLaw | None = None) -> None:
        super().__init__()
        self.law, self.members, self.context_width, self.exogenous = law, law.members, context, exogenous
        self.noise_width = law.size + (exogenous.noise_width if exogenous else 0)

    @property
    def normal_noise(self) -> int:
        return self.law.size

    @property
    def equation_noise(self) -> int:
        return self.law.size

    @property
    def noise_columns(self) -> list[int]:
        return [*self.law.layout.moving, *(self.exogenous.noise_columns if self.exogenous else ())]

    def prior(self, count: int, random: torch.Generator) -> Float[Tensor, "n u"]:
        normal = torch.randn(count, self.law.size, generator=random, device=random.device)
        return normal if self.exogenous is None else torch.cat([normal, self.exogenous.prior(count, random)], -1)

    def combine(self, predictions: Float[Tensor, "m n s"]) -> Float[Tensor, "n s"]:
        mean = predictions.mean(0)
        return mean if self.exogenous is None else self.exogenous.combine(predictions, mean)

    def _split(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """The context's columns of state and action, and those of the factor."""
        width = self.context_width - self.law.factors
        return context[..., :width], context[..., width:]

    def abduct(self, context: Tensor, state: Tensor, next_state: Tensor) -> Tensor:
        """The noise of the equations; what exogenous values leave open is drawn, always alike for a table."""
        return self.posterior(context, state, next_state, generator(0, "exogenous"))

    def posterior(self, context: Tensor, state: Tensor, next_state: Tensor, random: torch.Generator) -> Tensor:
        inputs, theta = self._split(context)
        noise = self.law.noise(self.law.step(inputs, state), theta, self.law.layout.change(state, next_state))
        if self.exogenous is None:
            return noise
        return torch.cat([noise, self.exogenous.abduct(state, next_state, random)], -1)

    def predict(self, context: Tensor, state: Tensor, noise: Tensor) -> Tensor:
        inputs, theta = self._split(context)
        own = noise[..., : self.law.size]
        after = self.law.layout.after(state, self.law.change(self.law.step(inputs, state), theta, own))
        if self.exogenous is None:
            return after
        return self.exogenous.write(after, self.exogenous.predict(state, noise[..., self.law.size :]))

    @torch.no_grad()
    def evidence(self, rows: Transitions) -> tuple[Float[Tensor, "k n r"], Float[Tensor, "k n r r"]]:
        """What every row says of its subject; nothing where it is imagined or has no next state."""
        inputs, device = context(rows.state, rows.action), self.law.unit.device
        parts: list[tuple[Tensor, Tensor]] = []
        for piece in torch.arange(len(rows)).split(CHUNK // self.members):
            state, after = (
                table[piece].to(device).expand(self.members, -1, -1) for table in (rows.state, rows.next_state)
            )
            step = self.law.step(inputs[piece].to(device).expand(self.members, -1, -1), state)
            evidence = self.law.evidence(step, self.law.layout.change(state, after))
            parts.append((evidence.information.double().cpu(), evidence.precision.double().cpu()))
        information, precision = (torch.cat(column, 1) for column in zip(*parts, strict=True))
        silent = (rows.imagined | ~rows.has_next).cpu()
        information[:, silent], precision[:, silent] = 0.0, 0.0
        return information, precision

    def subject_factors(self, rows: Transitions) -> SubjectFactors:
        return _mixed(self.member_factors(rows))

    def member_factors(self, rows: Transitions) -> SubjectFactors:
        subjects, subject = len(rows.subject_names), rows.subject.cpu()
        totals = [
            part.new_zeros(self.members, subjects, *part.shape[2:]).index_add_(1, subject, part)
            for part in self.evidence(rows)
        ]
        return _posteriors(*totals)

    def factors_before(self, rows: Transitions) -> SubjectFactors:
        keys = torch.stack([rows.subject, rows.episode, rows.step]).cpu()
        order = lexsort(*keys)
        place = order.argsort()
        subject, now = _first_alike(keys[:1, order]), _first_alike(keys[:, order])
        totals = []
        for part in self.evidence(rows):
            before = part[:, order].cumsum(1) - part[:, order]
            totals.append((before[:, now] - before[:, subject])[:, place])
        return _mixed(_posteriors(*totals))

    def tracker(self) -> "EffectsTracker":
        return EffectsTracker(self)

    def subjects(self, rows: Transitions) -> Float[Tensor, "n t"]:
        return self.subject_factors(rows).mean[rows.subject.cpu()].to(rows.state)


def _first_alike(keys: Int[Tensor, "c n"]) -> Int[Tensor, " n"]:
    """For every place of sorted keys, the first place with the same ones."""
    opens = torch.ones_like(keys[0], dtype=torch.bool)
    opens[1:] = (keys.diff() != 0).any(0)
    return opens.nonzero()[:, 0][opens.cumsum(0) - 1]


class EffectsTracker(SubjectTracker):
    """Sums of evidence that grow by a row at every step.

    On a processor wherever the model is: a GPU would take longer to be asked for a hundred tiny operations than a core
    to do them, and would be waited for at every inverse.
    """

    device = torch.device("cpu")

    def __init__(self, mechanism: EffectsMechanism) -> None:
        here = mechanism.law.unit.device == self.device
        self.mechanism = mechanism if here else copy.deepcopy(mechanism).to(self.device)
        self.sums: tuple[Tensor, Tensor] | None = None

    @property
    def informed(self) -> bool:
        return self.sums is not None

    def update(self, state: Tensor, action: Tensor, after: Tensor) -> None:
        law, members = self.mechanism.law, self.mechanism.members
        inputs, before, following = (x.expand(members, -1, -1) for x in (context(state, action), state, after))
        evidence = law.evidence(law.step(inputs, before), law.layout.change(before, following))
        new = evidence.information.double(), evidence.precision.double()
        self.sums = new if self.sums is None else (self.sums[0] + new[0], self.sums[1] + new[1])

    def factors(self, subjects: int) -> SubjectFactors:
        law = self.mechanism.law
        return (
            _mixed(_posteriors(*self.sums)) if self.sums else SubjectFactors.prior(subjects, law.factors, self.device)
        )


def _posteriors(information: Float[Tensor, "k n r"], precision: Float[Tensor, "k n r r"]) -> SubjectFactors:
    """Every member's posterior."""
    covariance = torch.linalg.inv(precision + torch.eye(precision.shape[-1]).to(precision))
    return SubjectFactors((covariance @ information[..., None])[..., 0], covariance)


def _mixed(posteriors: SubjectFactors) -> SubjectFactors:
    """The members' posteriors as one of their mean, and of their covariance and disagreement."""
    mean = posteriors.mean
    apart = mean - mean.mean(0)
    whole = posteriors.covariance.mean(0) + (apart[..., :, None] * apart[..., None, :]).mean(0)
    return SubjectFactors(mean.mean(0).float(), whole.float())


@torch.no_grad()
def align(mechanism: EffectsMechanism, rows: Transitions) -> None:
    """Turn every member's factors to those of the first, by the subjects they were fitted on (Procrustes)."""
    law = mechanism.law
    if law.factors == 0 or law.members == 1:
        return
    subjects = len(rows.subject_names)
    information, precision = (
        part.new_zeros(law.members, subjects, *part.shape[2:]).index_add_(1, rows.subject.cpu(), part)
        for part in mechanism.evidence(rows)
    )
    means = torch.linalg.solve(precision + torch.eye(law.factors).to(precision), information[..., None])[..., 0]
    left, _, right = torch.linalg.svd(means.mT @ means[:1])
    law.rotation.copy_((left @ right).to(law.rotation))
