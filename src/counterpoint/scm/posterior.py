"""Members as draws from a posterior: worlds that differ as much as the data leave open.

    s' − s = d(s, a) + x·β_j + σ_j·u,      β_ij ~ N(0, 1/α_ij),      x = the standardised (s, a, θ) and a 1

d is what the fitted network adds to its linear start. Given d, the linear part of every column j has an exact posterior
N(m, S); its prior widths 1/α are those that make the data likeliest (automatic relevance determination: MacKay 1994,
Tipping 2001), so that a column which says nothing about another is left out of it and not guessed at. With few rows
this decides what a policy meets in the model: a small wrong slope, over hundreds of steps, is another world.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.data.jobs import Job, change_table
from counterpoint.errors import CounterpointError
from counterpoint.model import Model
from counterpoint.nets.conditional import ConditionalLaw
from counterpoint.nets.stacked import with_weights
from counterpoint.scm.base import StructuralCausalModel
from counterpoint.scm.density import LawMechanism
from counterpoint.seeding import generator
from counterpoint.settings import Positive, check_settings

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

    def __call__(self, model: Model, job: Job) -> Model:
        """The model with other members; `job` is what it was fitted on."""
        mechanism = model.mechanism
        if not isinstance(mechanism, LawMechanism) or mechanism.law.triangular:
            raise CounterpointError(
                "posterior draws need a model with one noise a state column and no order; use DensitySCM(), or search"
                " with draws=None"
            )
        assert isinstance(model, StructuralCausalModel)
        table = change_table(job)
        told, y = (table[name].to(model.device) for name in ("context", "y"))
        mean, covariance, _ = linear_posterior(*_regression(mechanism.law, told, y))
        shape = len(model.state_names), mechanism.context_width, self.members
        picked = torch.arange(self.members) % mechanism.members
        weights = {name: tensor[picked.to(tensor.device)] for name, tensor in mechanism.state_dict().items()}
        random = generator(job.seed, "posterior")
        draws = torch.randn(self.members, mean.shape[1], mean.shape[2], 1, generator=random, dtype=torch.double)
        root = torch.linalg.cholesky(covariance)[picked]
        slopes = (mean[picked] + (root @ draws.to(root))[..., 0]).mT.float()
        weights["law.slope"], weights["law.y.mean"] = slopes[:, :-1].contiguous(), slopes[:, -1:].contiguous()
        drawn = with_weights(model.recipe.build(*shape), weights)
        return type(model)(model.recipe, drawn, model.schema, model.origin, model.fitted_rows)


def _regression(
    law: ConditionalLaw, told: Float[Tensor, "n c"], y: Float[Tensor, "n d"]
) -> tuple[Float[Tensor, "m n i"], Float[Tensor, "m n d"]]:
    """Inputs of every member's linear part, the last of them 1, and what its network leaves for it to explain."""
    context = told.expand(law.members, -1, -1)
    inputs = law.context(context)
    departure = law.predict(context, torch.zeros_like(y).expand(law.members, -1, -1))
    departure = departure - law.y.mean - inputs @ law.slope
    return torch.cat([inputs, torch.ones_like(inputs[..., :1])], -1), y - departure


@torch.no_grad()
def linear_posterior(
    x: Float[Tensor, "m n i"], y: Float[Tensor, "m n d"]
) -> tuple[Float[Tensor, "m d i"], Float[Tensor, "m d i i"], Float[Tensor, "m d"]]:
    """Mean and covariance of every column's weights, and its noise variance; the last input has a flat prior.

    On the Gram matrix of a stack; scikit-learn's `ARDRegression` fits one column of one table (a test compares them).
    """
    x, y, rows = x.double(), y.double(), x.shape[1]
    gram, product, square = (x.mT @ x)[:, None], (x.mT @ y).mT[..., None], y.square().sum(1)
    total = y.var(1, correction=0).clamp(min=LEAST)
    variance, precision = 0.1 * total, 1e-3 / total[..., None].expand(*total.shape, x.shape[-1]).clone()
    flat = torch.ones_like(precision)
    flat[..., -1] = 0
    for _ in range(ROUNDS):
        covariance = torch.linalg.inv(gram / variance[..., None, None] + torch.diag_embed(precision))
        mean = covariance @ product / variance[..., None, None]
        known = 1 - precision * covariance.diagonal(dim1=-2, dim2=-1)
        precision = known.clamp(min=LEAST) / (mean[..., 0].square() + LEAST * total[..., None])
        precision = precision.clamp(max=1e8 / total[..., None]) * flat + 1e-9 * (1 - flat)
        misfit = square - 2 * (mean.mT @ product)[..., 0, 0] + (mean.mT @ gram @ mean)[..., 0, 0]
        variance = (misfit / (rows - known.sum(-1)).clamp(min=1)).maximum(LEAST * total)
    covariance = (covariance + covariance.mT) / 2
    return mean[..., 0], covariance, variance
