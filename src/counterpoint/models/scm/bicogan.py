"""BiCoGAN: the paper's SCM s' = G(s, a, θ, u), learned against a discriminator together with an encoder (section 3.1).

`BiCoGAN` is the paper's model. Its encoder sees s' alone; a deterministic map of s' fills fewer dimensions than
(s, a, u), so it cannot reach the law of the decoder and its counterfactuals are about as good as the conditional mean.
`ConditionalBiCoGAN` tells the encoder and the discriminator (s, a), and works.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch
from torch import nn

from counterpoint.core.artifacts import device_of
from counterpoint.core.errors import require
from counterpoint.core.seeding import derive
from counterpoint.core.settings import Positive, Weight, Widths, check_settings
from counterpoint.data.jobs import Job, Padded, check_numeric, fitting_table, identity, pad
from counterpoint.models.scm.base import SCMRecipe, StructuralCausalModel
from counterpoint.models.scm.bicogan_networks import (
    Adversarial,
    AdversarialMechanism,
    AdversarialTraining,
    ConditionalEncoder,
    PaperEncoder,
    SubjectAdversarialMechanism,
    normalised,
)
from counterpoint.models.scm.lstm_factor import FactorTraining, Histories, LSTMFactor, WindowFactors
from counterpoint.nets.monotone import DiagonalGenerator, PaperGenerator
from counterpoint.nets.stacked import StackedMLP, initialise, with_weights
from counterpoint.nets.training import Monitor, Schedule, train


class AdversarialSCM(SCMRecipe):
    """What the two recipes share: every job is one member of one stack, trained in one loop."""

    abduction: Literal["encoder", "inversion"]
    change: bool
    factor: LSTMFactor | None
    training: Adversarial

    @property
    def trained(self) -> Self:
        """The recipe that is trained in the same way and asks the encoder: abduction plays no part in training."""
        return replace(self, abduction="encoder")  # pyright: ignore[reportArgumentType, reportCallIssue]

    def reread(self, model: StructuralCausalModel) -> StructuralCausalModel:
        """A model of the same training, with its noise abducted as this recipe says."""
        recipe, trained = model.recipe, model.mechanism
        require(
            isinstance(recipe, AdversarialSCM) and recipe.trained == self.trained,
            "the model was trained by another recipe; fit this one",
        )
        mechanism = self.build(len(model.state_names), trained.context_width, trained.members)
        mechanism = with_weights(mechanism, trained.state_dict())
        reread = StructuralCausalModel(self, mechanism, model.schema, model.origin, model.fitted_rows)
        reread.logged_doses = model.logged_doses
        return reread

    @abstractmethod
    def build(self, state: int, context: int, members: int) -> AdversarialMechanism: ...

    @abstractmethod
    def discriminator(self, state: int, context: int, members: int) -> StackedMLP:
        """The discriminator of (c, u, s')."""

    @abstractmethod
    def weights(self) -> tuple[float, float]:
        """The weights of the context regulariser and of the noise cycle."""

    def fit_many(
        self, jobs: Sequence[Job], monitor: Monitor = Monitor(), device: str = "cpu"
    ) -> list[StructuralCausalModel]:
        with_factors, first = [self._with_room(job) for job in jobs], jobs[0].data
        shape = first.state_size, first.state_size + first.action.shape[1] + with_factors[0].theta.shape[1], len(jobs)
        mechanism, discriminator = self.build(*shape), self.discriminator(*shape)
        padded = standardised(mechanism, with_factors)
        seeds = [derive(job.seed, "bicogan") for job in jobs]
        _initialise(mechanism, discriminator, seeds)
        on = device_of(device)
        learner = AdversarialTraining(
            mechanism.to(on),
            discriminator.to(on),
            padded,
            self.training,
            *self.weights(),
            self.factoring(mechanism, jobs),
        )
        train(learner, self.training.schedule, seeds, identity(self, jobs), monitor)
        learner.settle(seeds)
        return self.cut(mechanism, jobs)

    def _with_room(self, job: Job) -> Job:
        """The job with columns for the factors that will be learned, zero until then."""
        if self.factor is None:
            return job
        require(job.theta.shape[1] == 0, "theta is given and `factor` would learn it; leave one of them out")
        return replace(job, theta=torch.zeros(1, self.factor.factors))

    def _mechanism(
        self,
        generator: PaperGenerator | DiagonalGenerator,
        encoder: PaperEncoder | ConditionalEncoder,
        shape: tuple[int, int, int],
    ) -> AdversarialMechanism:
        """The mechanism of these networks, which infers subject factors where `factor` asks for it."""
        settings = self.abduction == "inversion", self.change
        if self.factor is None:
            return AdversarialMechanism(generator, encoder, shape, *settings)
        members, context, _ = shape
        factor = WindowFactors(members, context - self.factor.factors, self.factor)
        return SubjectAdversarialMechanism(generator, encoder, shape, *settings, factor)

    def factoring(self, mechanism: AdversarialMechanism, jobs: Sequence[Job]) -> FactorTraining | None:
        """What the factors are learned from, where they are learned."""
        if self.factor is None:
            return None
        histories = [Histories.of(job.data, self.factor.window) for job in jobs]
        windows = pad([{"windows": history.windows} for history in histories]).columns["windows"]
        standard = mechanism.standard_inputs(windows.to(mechanism.context.mean.device))
        return FactorTraining(self.factor, histories, standard)


@dataclass(frozen=True)
class BiCoGAN(AdversarialSCM):
    """The paper's model: G(s, a, u) increasing in u, E(s') → (ŝ, â, û), and D on (s, a, u, s').

    What the paper leaves open, and how it is settled here:

    - Monotone generator: weights e^v on every path from u, batch norm's scale an exponential, a strictly increasing
      skip, half of the noise units with −ReLU(−x), s'_i from u_i alone (`PaperGenerator`).
    - Inputs: s, a, θ and s' are standardised with the table's mean and standard deviation; u ~ N(0, I), one a state.
    - R is the squared error of (ŝ, â, θ̂) in these units, summed over columns.
    - G and E minimise the non-saturating loss, the discriminator's with its halves exchanged, in turn with D.
    - Batch norm of D: both halves of the minibatch together when D learns, running statistics when G and E do. With the
      batch's statistics for G and E too, the generator's scale ran away (errors of 20 and more).
    - The weights kept are averaged over updates, and their batch-norm statistics are taken anew at the end (`settle`).
    - Minibatch, Adam's numbers and length are the fields of `training`; neither clipping nor a penalty was needed.
    """

    command: ClassVar = ("bicogan", "the paper's model")
    generator_hidden: Widths = (200, 400, 600, 600)
    """Widths of the generator (appendix E)."""
    encoder_hidden: Widths = (600, 600, 400, 200)
    """Widths of the encoder (appendix E)."""
    discriminator_hidden: Widths = (600, 600, 400, 200)
    """Widths of the discriminator (appendix E)."""
    regulariser: Weight = 1.0
    """λ, the weight of the error of (ŝ, â)."""
    change: bool = False
    """Generate s' − s, which the encoder then sees, rather than s' as in the paper."""
    abduction: Literal["encoder", "inversion"] = "encoder"
    """Where û comes from: the encoder as in the paper, or solving G(s, a, u) = s' for u."""
    factor: LSTMFactor | None = None
    """How a subject factor is learned (CTRL_p); none where subjects are alike or their factors are given."""
    training: Adversarial = Adversarial(
        Schedule(steps=3000), batch=64, learning_rate=2e-4, betas=(0.5, 0.99), penalty=0.0, average=0.999
    )
    """How it is trained."""

    def __post_init__(self) -> None:
        check_settings(self)

    def build(self, state: int, context: int, members: int) -> AdversarialMechanism:
        generator = PaperGenerator(members, context, state, self.generator_hidden)
        encoder = PaperEncoder(members, context, state, self.encoder_hidden)
        return self._mechanism(generator, encoder, (members, context, state))

    def discriminator(self, state: int, context: int, members: int) -> StackedMLP:
        return normalised(members, context + 2 * state, self.discriminator_hidden, 1)

    def weights(self) -> tuple[float, float]:
        return self.regulariser, 0.0


@dataclass(frozen=True)
class ConditionalBiCoGAN(AdversarialSCM):
    """A bidirectional GAN whose encoder and discriminator know (s, a), with the noise cycle E(s, a, G(s, a, u)) = u.

    The same (s, a) stand in both halves of a minibatch, so D can only tell them apart by how s' and u go together.
    """

    command: ClassVar = ("conditional-bicogan", "a BiCoGAN whose encoder sees (s, a, s')")
    generator_hidden: Widths = (64, 64)
    """Widths of the network from (s, a, θ) to the generator's bends, one network a state."""
    monotone_width: Positive = 16
    """Units in each of the generator's two monotone layers."""
    encoder_hidden: Widths = (128, 128)
    """Widths of the encoder."""
    discriminator_hidden: Widths = (128, 128)
    """Widths of the discriminator, LeakyReLU without batch norm."""
    cycle: Weight = 0.5
    """Weight of the noise cycle's squared error; more helps small tables, less helps skewed noise."""
    change: bool = True
    """Generate s' − s rather than s'."""
    abduction: Literal["encoder", "inversion"] = "inversion"
    """Where û comes from: solving G(s, a, u) = s' for u, or the encoder."""
    factor: LSTMFactor | None = None
    """How a subject factor is learned (CTRL_p); none where subjects are alike or their factors are given."""
    training: Adversarial = Adversarial(
        Schedule(steps=5000, rate="linear"),
        batch=256,
        learning_rate=1e-3,
        betas=(0.5, 0.99),
        penalty=0.1,
        average=0.999,
    )
    """How it is trained."""

    def __post_init__(self) -> None:
        check_settings(self)

    def build(self, state: int, context: int, members: int) -> AdversarialMechanism:
        generator = DiagonalGenerator(members, context, state, self.generator_hidden, self.monotone_width)
        encoder = ConditionalEncoder(members, context, state, self.encoder_hidden)
        return self._mechanism(generator, encoder, (members, context, state))

    def discriminator(self, state: int, context: int, members: int) -> StackedMLP:
        return StackedMLP(members, context + 2 * state, self.discriminator_hidden, 1, nn.LeakyReLU)

    def weights(self) -> tuple[float, float]:
        return 0.0, self.cycle


def standardised(mechanism: AdversarialMechanism, jobs: Sequence[Job]) -> Padded:
    """What is learned from, context and target; the mechanism takes up their mean and standard deviation."""
    for job in jobs:
        check_numeric(job.data)
    tables = [fitting_table(job) for job in jobs]
    targets = [mechanism.target_of(table["state"], table["next_state"]) for table in tables]
    padded = pad([{"context": t["context"], "target": y} for t, y in zip(tables, targets, strict=True)])
    mechanism.context.take(*padded.moments("context"))
    mechanism.target.take(*padded.moments("target"))
    return padded


def _initialise(mechanism: AdversarialMechanism, discriminator: StackedMLP, seeds: Sequence[int]) -> None:
    per_member = mechanism.generator.per_member
    initialise(mechanism.generator, [derive(seed, "generator", i) for seed in seeds for i in range(per_member)])
    initialise(mechanism.encoder, [derive(seed, "encoder") for seed in seeds])
    initialise(discriminator, [derive(seed, "discriminator") for seed in seeds])
    if isinstance(mechanism, SubjectAdversarialMechanism):
        initialise(mechanism.factor, [derive(seed, "factor") for seed in seeds])
