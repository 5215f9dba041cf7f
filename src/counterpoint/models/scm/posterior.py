"""Members as draws from a posterior, which differ as much as the data leave open.

    s' − s = d(s, a) + x·β_j + σ_j·u,      β_ij ~ N(0, 1/α_ij),      x = the standardised (s, a, θ) and a 1

d is what the fitted network adds to its linear start. Given d, the linear part of every column j has an exact posterior
N(m, S); its prior widths 1/α are those that make the data likeliest (automatic relevance determination: MacKay 1994,
Tipping 2001), so that a column which says nothing about another is left out of it and not guessed at. With few rows
this decides what a policy meets in the model: a small wrong slope, over hundreds of steps, is another world.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.core.seeding import generator
from counterpoint.core.settings import Positive, check_settings
from counterpoint.data.jobs import Job, change_table
from counterpoint.models.base import Model
from counterpoint.models.scm.base import StructuralCausalModel
from counterpoint.models.scm.density import LawMechanism
from counterpoint.nets.conditional import ConditionalLaw
from counterpoint.nets.stacked import with_weights

ROUNDS = 200
"""Updates of the prior's widths; they settle long before."""
LEAST = 1e-8
"""A residual variance or squared slope below this share of the column's variance is rounding."""


@dataclass(frozen=True)
class PosteriorDraws:
    """Replace a model's members by draws from the posterior of their linear parts."""

    members: Positive = 10
    """Draws, dealt to the fitted members in turn."""

    def __post_init__(self) -> None:
        check_settings(self)

    @torch.no_grad()
    def __call__(self, model: Model, job: Job) -> Model:
        """The model with other members, from the job it was fitted on; a model without a linear part keeps its own."""
        mechanism = model.mechanism
        if not isinstance(mechanism, LawMechanism) or mechanism.law.triangular:
            return model
        assert isinstance(model, StructuralCausalModel)
        picked = torch.arange(self.members) % mechanism.members
        weights = {name: tensor[picked.to(tensor.device)] for name, tensor in mechanism.state_dict().items()}
        slopes = self._slopes(mechanism.law, job, picked)
        weights["law.slope"], weights["law.y.mean"] = slopes[:, :-1].contiguous(), slopes[:, -1:].contiguous()
        drawn = model.structure.build(len(model.state_names), mechanism.context_width, self.members)
        return model.with_mechanism(with_weights(drawn, weights))

    def _slopes(self, law: ConditionalLaw, job: Job, picked: Int[Tensor, " draws"]) -> Float[Tensor, "draws i d"]:
        """Slopes and, last, intercepts; exactly mirrored where a mirror is declared."""
        table, schema, device = change_table(job), job.data.schema, law.slope.device
        weight = 0.5 if schema.knowledge.mirror else 1.0
        inputs, rest = _regression(law, table["context"].to(device), table["y"].to(device))
        mean, covariance, _ = linear_posterior(inputs, rest, weight)
        shape = len(picked), *mean.shape[1:], 1
        draws = torch.randn(shape, generator=generator(job.seed, "posterior"), dtype=torch.double).to(mean)
        slopes = (mean[picked] + (torch.linalg.cholesky(covariance)[picked] @ draws)[..., 0]).mT.float()
        states, actions = schema.knowledge.mirror_signs(schema.state_names, schema.action_names)
        others = torch.ones(slopes.shape[1] - len(states) - len(actions))  # Subject factors and the constant.
        alike = torch.cat([states, actions, others])[:, None] == states
        return slopes * alike.to(slopes)


def _regression(
    law: ConditionalLaw, inputs_of_rows: Float[Tensor, "n c"], y: Float[Tensor, "n d"]
) -> tuple[Float[Tensor, "m n i"], Float[Tensor, "m n d"]]:
    """Inputs of every member's linear part, the last of them 1, and what its network leaves for it to explain."""
    context = inputs_of_rows.expand(law.members, -1, -1)
    inputs = law.context(context)
    departure = law.predict(context, torch.zeros_like(y).expand(law.members, -1, -1))
    departure = departure - law.y.mean - inputs @ law.slope
    return torch.cat([inputs, torch.ones_like(inputs[..., :1])], -1), y - departure


@torch.no_grad()
def linear_posterior(
    x: Float[Tensor, "m n i"], y: Float[Tensor, "m n d"], weight: float = 1.0
) -> tuple[Float[Tensor, "m d i"], Float[Tensor, "m d i i"], Float[Tensor, "m d"]]:
    """Mean and covariance of every column's weights, and its noise variance; the last input has a flat prior.

    Each row counts `weight` times.

    On the Gram matrix of a stack; scikit-learn's `ARDRegression` fits one column of one table (a test compares them).
    """
    x, y, rows = weight**0.5 * x.double(), weight**0.5 * y.double(), weight * x.shape[1]
    gram, product, square = (x.mT @ x)[:, None], (x.mT @ y).mT[..., None], y.square().sum(1)
    total = (square / rows).clamp(min=LEAST)
    variance, precision = 0.1 * total, 1e-3 / total[..., None].expand(*total.shape, x.shape[-1]).clone()
    flat = torch.ones_like(precision)
    flat[..., -1] = 0
    for _ in range(ROUNDS):
        covariance = torch.linalg.inv(gram / variance[..., None, None] + torch.diag_embed(precision))
        mean = covariance @ product / variance[..., None, None]
        determined = 1 - precision * covariance.diagonal(dim1=-2, dim2=-1)
        precision = determined.clamp(min=LEAST) / (mean[..., 0].square() + LEAST * total[..., None])
        precision = precision.clamp(max=1e8 / total[..., None]) * flat + 1e-9 * (1 - flat)
        misfit = square - 2 * (mean.mT @ product)[..., 0, 0] + (mean.mT @ gram @ mean)[..., 0, 0]
        variance = (misfit / (rows - determined.sum(-1)).clamp(min=1)).maximum(LEAST * total)
    covariance = (covariance + covariance.mT) / 2
    return mean[..., 0], covariance, variance
