"""The parts of a bidirectional conditional GAN: encoders, the fitted mechanism, and the adversarial training of both.

    min_{G,E} max_D  E[log D(E(s'), s')] + E[log(1 − D((c, u), G(c, u)))] + λ·E‖c − ĉ‖²,    c = (s, a, θ), u ~ N(0, I)

(paper, section 3.1). Here c and s' are standardised, and D gives a logit.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.optim import Optimizer

from counterpoint.core.errors import require
from counterpoint.core.seeding import generator
from counterpoint.core.settings import Positive, Share, Weight, check_settings
from counterpoint.data.jobs import Padded
from counterpoint.data.transitions import Transitions, Windows
from counterpoint.models.base import OnlineSubjectMechanism, SubjectFactors, SubjectTracker
from counterpoint.models.scm.base import StructuralMechanism
from counterpoint.models.scm.lstm_factor import FactorTraining, WindowFactors, earlier_means, inputs_of, subject_means
from counterpoint.nets.learner import StackTraining
from counterpoint.nets.monotone import DiagonalGenerator, FoldedGenerator, PaperGenerator
from counterpoint.nets.optimizers import adam
from counterpoint.nets.stacked import StackedBatchNorm, StackedMLP, Standardizer
from counterpoint.nets.training import Schedule

EXPANSIONS = 14
"""Times that the bracket [0, ±1] moves outwards fourfold: noise up to 4¹⁴ ≈ 3·10⁸ is found."""
HALVINGS = 30
"""Times that the bracket is halved; more than float32 can tell apart within a factor of four."""


@torch.no_grad()
def invert(
    rising: Callable[[Float[Tensor, "*n d"]], Float[Tensor, "*n d"]], y: Float[Tensor, "*n d"]
) -> Float[Tensor, "*n d"]:
    """The u with rising(u) = y, where the i-th result increases strictly in u_i and depends on no other noise.

    All rows and coordinates are searched at once in a fixed number of steps, so nothing waits for a GPU.

    Example:
        >>> invert(lambda u: 2 * u + 1, torch.tensor([[3.0]]))
        tensor([[1.]])
    """
    side = torch.where(rising(torch.zeros_like(y)) < y, 1.0, -1.0)
    near, far = torch.zeros_like(y), side
    for _ in range(EXPANSIONS):
        short = side * (y - rising(far)) > 0
        near, far = torch.where(short, far, near), torch.where(short, 4 * far, far)
    for _ in range(HALVINGS):
        middle = (near + far) / 2
        short = side * (y - rising(middle)) > 0
        near, far = torch.where(short, middle, near), torch.where(short, far, middle)
    return (near + far) / 2


SETTLING = 4096
"""Rows, drawn with return, from which the final batch-norm statistics are taken."""


class PaperEncoder(nn.Module):
    """E(s') → (ŝ, â, θ̂, û): the paper's, which must guess from the next state alone where it came from."""

    def __init__(self, members: int, context: int, size: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.split = [context, size]
        self.net = normalised(members, size, hidden, context + size)

    def forward(self, context: Float[Tensor, "k n c"], y: Float[Tensor, "k n d"]) -> tuple[Tensor, Tensor]:
        guess, noise = self.net(y).split(self.split, -1)
        return guess, noise


def normalised(members: int, inputs: int, hidden: Sequence[int], outputs: int) -> StackedMLP:
    """Linear + batch norm + ReLU (appendix E); biases that batch norm takes out again are left as they are."""
    net = StackedMLP(members, inputs, hidden, outputs, nn.ReLU, batch_norm=True)
    for linear, after in pairwise(net.layers):
        if isinstance(after, StackedBatchNorm):
            linear.bias.requires_grad_(False)  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
    return net


class ConditionalEncoder(nn.Module):
    """E(s, a, θ, s') → û: it sees the context, so its ĉ is c."""

    def __init__(self, members: int, context: int, size: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.net = StackedMLP(members, context + size, hidden, size)

    def forward(self, context: Float[Tensor, "k n c"], y: Float[Tensor, "k n d"]) -> tuple[Tensor, Tensor]:
        return context, self.net(torch.cat([context, y], -1))


class WindowTracker(SubjectTracker):
    """Mean of θ(w) over the windows of the rows so far; the population's factor before the first window."""

    def __init__(self, mechanism: "SubjectAdversarialMechanism") -> None:
        self.mechanism, self.factor, self.device = mechanism, mechanism.factor, mechanism.factor.population.device
        self.recent: list[Tensor] = []
        self.total: Tensor | None = None
        self.windows = 0

    @property
    def informed(self) -> bool:
        return self.windows > 0

    def update(self, state: Tensor, action: Tensor, after: Tensor) -> None:
        self.recent = [*self.recent, torch.cat([state, action], -1)][-self.factor.window :]
        if len(self.recent) == self.factor.window:
            theta = self.factor(self.mechanism.standard_inputs(torch.stack(self.recent, 1)))[0]
            self.total = theta if self.total is None else self.total + theta
            self.windows += 1

    def factors(self, subjects: int) -> SubjectFactors:
        mean = self.factor.population[0].expand(subjects, -1) if self.total is None else self.total / self.windows
        return SubjectFactors.point(mean)


class AdversarialMechanism(StructuralMechanism):
    """A generator and an encoder in standard units; `inversion` abducts from the generator and not by the encoder."""

    def __init__(
        self,
        generator: PaperGenerator | FoldedGenerator | DiagonalGenerator,
        encoder: PaperEncoder | ConditionalEncoder,
        shape: tuple[int, int, int],
        inversion: bool,
        change: bool,
    ) -> None:
        super().__init__()
        self.members, self.context_width, self.noise_width = shape
        self.generator, self.encoder, self.inversion, self.change = generator, encoder, inversion, change
        self.context, self.target = (Standardizer(self.members, width) for width in shape[1:])

    def target_of(self, state: Tensor, next_state: Tensor) -> Tensor:
        """What is generated: the next state, or its difference from the state."""
        return next_state - state if self.change else next_state

    def abduct(self, context: Tensor, state: Tensor, next_state: Tensor) -> Tensor:
        c, y = self.context(context), self.target(self.target_of(state, next_state))
        return invert(self.generator.given(c), y) if self.inversion else self.encoder(c, y)[1]

    def predict(self, context: Tensor, state: Tensor, noise: Tensor) -> Tensor:
        y = self.target.inverse(self.generator(self.context(context), noise))
        return state + y if self.change else y

    def for_rollouts(self) -> "AdversarialMechanism":
        if not isinstance(self.generator, PaperGenerator):
            return self
        folded = copy.copy(self)
        folded._modules = {**self._modules, "generator": self.generator.folded()}
        return folded.eval()

    def standard_inputs(self, windows: Float[Tensor, "k w length i"]) -> Float[Tensor, "k w length i"]:
        """Windows of (s, a) in the units of the context."""
        width = windows.shape[-1]
        mean, scale = (values[:, None, :, :width] for values in (self.context.mean, self.context.scale))
        return (windows - mean) / scale


class SubjectAdversarialMechanism(AdversarialMechanism, OnlineSubjectMechanism):
    """An adversarial mechanism that infers θ of a subject from the windows of its rows."""

    def __init__(
        self,
        generator: PaperGenerator | DiagonalGenerator,
        encoder: PaperEncoder | ConditionalEncoder,
        shape: tuple[int, int, int],
        inversion: bool,
        change: bool,
        factor: WindowFactors,
    ) -> None:
        super().__init__(generator, encoder, shape, inversion, change)
        self.factor = factor

    @torch.no_grad()
    def subjects(self, rows: Transitions) -> Float[Tensor, "n t"]:
        theta, windows = self._window_factors(rows)
        return subject_means(theta, windows.subject, rows.subject, self.factor.population[0].to(theta))

    @torch.no_grad()
    def factors_before(self, rows: Transitions) -> SubjectFactors:
        population = self.factor.population[0].to(rows.state)
        return SubjectFactors.point(earlier_means(*self._window_factors(rows), rows, population))

    def _window_factors(self, rows: Transitions) -> tuple[Float[Tensor, "w t"], Windows]:
        """θ(w) of every window of the rows, on the rows' device."""
        require(self.members == 1, "a stack of models has as many factors of a subject; ask each model alone")
        windows = rows.windows(self.factor.window)
        inputs = inputs_of(windows)[None].to(self.context.mean.device)
        return self.factor.in_pieces(self.standard_inputs(inputs))[0].to(rows.state.device), windows

    def tracker(self) -> WindowTracker:
        return WindowTracker(self)

    def informative_rows(self, rows: Transitions) -> Bool[Tensor, " n"]:
        """The rows that are part of a complete window."""
        informative = torch.zeros(len(rows), dtype=torch.bool, device=rows.state.device)
        informative[rows.windows(self.factor.window).rows] = True
        return informative


@dataclass(frozen=True)
class Adversarial:
    """How generator, encoder and discriminator are trained; all but Adam is the choice of this package."""

    schedule: Schedule
    """Length and learning-rate schedule."""
    batch: Positive
    """Rows in each half of a minibatch; the same rows stand in both halves."""
    learning_rate: Weight
    """Adam's learning rate, for all three networks."""
    betas: tuple[Share, Share]
    """Adam's averaging of gradients and of their squares."""
    penalty: Weight
    """Weight γ of the discriminator's penalty γ/2·‖∇D‖² at the minibatch (R1 of Mescheder et al. 2018); 0 for none."""
    average: Share
    """How much of the averaged weights, which are the ones kept, survives an update."""

    def __post_init__(self) -> None:
        check_settings(self)


def discriminator_loss(encoded: Float[Tensor, "k n 1"], decoded: Float[Tensor, "k n 1"]) -> Float[Tensor, " k"]:
    """−E log D(E(s'), s') − E log(1 − D(c, u, G(c, u))), from D's logits."""
    return F.softplus(-encoded).mean((1, 2)) + F.softplus(decoded).mean((1, 2))


def deception_loss(encoded: Float[Tensor, "k n 1"], decoded: Float[Tensor, "k n 1"]) -> Float[Tensor, " k"]:
    """What G and E minimise: the discriminator's loss with the halves exchanged (non-saturating)."""
    return discriminator_loss(decoded, encoded)


def context_loss(context: Float[Tensor, "k n c"], guess: Float[Tensor, "k n c"]) -> Float[Tensor, " k"]:
    """R of the paper: the squared error of (ŝ, â, θ̂); the noise has no part in it."""
    return (context - guess).square().sum(-1).mean(-1)


class AdversarialTraining(StackTraining):
    """K bidirectional GANs in training; `averaged` is the mechanism that is kept."""

    context: Tensor
    target: Tensor
    updates: Tensor

    def __init__(
        self,
        mechanism: AdversarialMechanism,
        discriminator: StackedMLP,
        padded: Padded,
        how: Adversarial,
        regulariser: float,
        cycle: float,
        factoring: FactorTraining | None = None,
    ) -> None:
        super().__init__()
        self.factoring = factoring
        self.averaged, self.live, self.discriminator = mechanism, copy.deepcopy(mechanism).train(), discriminator
        self.how, self.regulariser, self.cycle, self.count = how, regulariser, cycle, padded.count.tolist()
        self.averaged.requires_grad_(False)
        device = next(mechanism.parameters()).device
        self.register_buffer("updates", torch.zeros((), device=device))
        for name in ("context", "target"):
            standard = getattr(mechanism, name)(padded.columns[name].to(device))
            self.register_buffer(name, standard, persistent=False)
        self.generator_weights, self.discriminator_weights = _trainable(self.live), _trainable(discriminator)
        self.generator_optimizer = adam(self.generator_weights, how.learning_rate, how.betas)
        self.discriminator_optimizer = adam(self.discriminator_weights, how.learning_rate, how.betas)

    def draw(self, member: int, random: torch.Generator, steps: int) -> dict[str, Tensor]:
        if self.factoring is None:
            return self._pick(member, random, steps, self.how.batch)
        rows, windows = self.factoring.draw(member, random, steps, self.how.batch)
        return {"rows": rows, "noise": self._noise(random, *rows.shape), "windows": windows}

    def _pick(self, member: int, random: torch.Generator, *shape: int) -> dict[str, Tensor]:
        rows = torch.randint(self.count[member], shape, generator=random)
        return {"rows": rows, "noise": self._noise(random, *shape)}

    def _noise(self, random: torch.Generator, *shape: int) -> Tensor:
        return torch.randn(*shape, self.target.shape[-1], generator=random)

    def _contexts(self, draw: dict[str, Tensor]) -> tuple[Tensor, Float[Tensor, " k"] | float]:
        """The context of a minibatch, with θ where it is learned, and how far the windows of a subject disagree."""
        context = _rows(self.context, draw["rows"])
        if self.factoring is None or not isinstance(self.live, SubjectAdversarialMechanism):
            return context, 0.0
        theta, disagreement = self.factoring(self.live.factor, draw["windows"])
        return torch.cat([context[..., : -theta.shape[-1]], theta], -1), disagreement

    def update(self, draw: dict[str, Tensor]) -> dict[str, Tensor]:
        inputs, disagreement = self._contexts(draw)
        context, y, noise = inputs.detach(), _rows(self.target, draw["rows"]), draw["noise"]
        generated = self.live.generator(inputs, noise)
        guess, abducted = self.live.encoder(context, y)
        joint = torch.cat([torch.cat([guess, abducted, y], -1), torch.cat([context, noise, generated], -1)], 1)
        discriminator_step = self._discriminate(joint.detach())
        extra = self.regulariser * context_loss(context, guess) + disagreement
        if self.cycle:
            recovered = self.live.encoder(context, generated)[1]
            extra = extra + self.cycle * context_loss(noise, recovered)
        deception_step = self._deceive(joint, extra)
        self._average()
        return {"discriminator": discriminator_step, "deception": deception_step}

    def _discriminate(self, joint: Float[Tensor, "k m j"]) -> Float[Tensor, " k"]:
        """One step of the discriminator. Both halves pass it together, so batch norm cannot hide a difference."""
        loss = total = discriminator_loss(*self.discriminator.train()(joint).chunk(2, 1))
        if self.how.penalty:
            total = loss + self.how.penalty / 2 * self._steepness(joint)
        self.discriminator_optimizer.zero_grad(set_to_none=True)
        total.sum().backward(inputs=self.discriminator_weights)
        self.discriminator_optimizer.step()
        return loss.detach()

    def _steepness(self, joint: Float[Tensor, "k m j"]) -> Float[Tensor, " k"]:
        """E‖∇D‖² over both halves, either of which is the real one to the other."""
        joint = joint.requires_grad_()
        slope = torch.autograd.grad(self.discriminator.eval()(joint).sum(), joint, create_graph=True)[0]
        return slope.square().sum(-1).mean(-1)

    def _deceive(self, joint: Float[Tensor, "k m j"], extra: Float[Tensor, " k"]) -> Float[Tensor, " k"]:
        """One step of generator and encoder against the discriminator as it now is.

        Batch norm uses its running statistics here: through those of the batch, G learns to blow up its own scale,
        which spoils the discriminator's view of the other half.
        """
        loss = deception_loss(*self.discriminator.eval()(joint).chunk(2, 1))
        self.generator_optimizer.zero_grad(set_to_none=True)
        (loss + extra).sum().backward(inputs=self.generator_weights)
        self.generator_optimizer.step()
        return loss.detach()

    @torch.no_grad()
    def _average(self) -> None:
        """Averaged weights move quickly at first, so that a short training is not the average of its beginning."""
        self.updates += 1
        share = (9 / (9 + self.updates)).clamp(min=1 - self.how.average)
        for kept, live in zip(self.averaged.state_dict().values(), self.live.state_dict().values(), strict=True):
            kept.lerp_(live, share)

    @torch.no_grad()
    def settle(self, seeds: Sequence[int]) -> None:
        """Give the averaged weights the batch-norm statistics that belong to them, from `SETTLING` rows and noises.

        Statistics averaged along the training belong to weights that are gone; positive weights add such errors up.
        """
        if self.factoring is not None and isinstance(self.averaged, SubjectAdversarialMechanism):
            theta = self.factoring.settle(self.averaged.factor, seeds)
            self.context[..., -theta.shape[-1] :] = theta
        kept = nn.ModuleList([self.averaged.generator, self.averaged.encoder])
        norms = [module for module in kept.modules() if isinstance(module, StackedBatchNorm)]
        draws = [self._pick(k, generator(seed, "statistics"), SETTLING) for k, seed in enumerate(seeds)]
        rows, noise = (torch.stack([d[name] for d in draws]).to(self.context.device) for name in ("rows", "noise"))
        context, y = (_rows(table, rows) for table in (self.context, self.target))
        usual = [norm.momentum for norm in norms]
        for norm in norms:
            norm.momentum = 1.0
        kept.train()
        self.averaged.generator(context, noise)
        self.averaged.encoder(context, y)
        for norm, momentum in zip(norms, usual, strict=True):
            norm.momentum = momentum

    def optimizers(self) -> Sequence[Optimizer]:
        return (self.discriminator_optimizer, self.generator_optimizer)

    def network(self) -> nn.Module:
        return self.averaged


def _trainable(network: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in network.parameters() if parameter.requires_grad]


def _rows(table: Float[Tensor, "k n w"], rows: Tensor) -> Float[Tensor, "k b w"]:
    return table.gather(1, rows[..., None].expand(-1, -1, table.shape[-1]))
