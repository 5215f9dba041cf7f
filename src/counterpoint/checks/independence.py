"""Tests of independence with a p-value and an effect size: HSIC (Gretton et al. 2008), Kolmogorov–Smirnov, Holm.

HSIC is tr(K·L) of two centred Gram matrices. Its mean and variance over all permutations of the rows are known exactly
(Kazi-Aoual et al. 1995), so the p-value needs no random permutation: a gamma law with those two moments.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Dependence:
    """How much two things hang together, and how probable that much is by chance alone."""

    effect: float
    """HSIC with its mean under independence taken off, between 0 (independent) and 1 (each fixes the other)."""
    p_value: float


def gram(values: Float[Tensor, "*m n d"]) -> Float[Tensor, "*m n n"]:
    """A Gaussian kernel as wide as the median distance between two rows."""
    distance = torch.cdist(values.double(), values.double()).square()
    width = distance.flatten(-2).median(-1).values.clamp(min=1e-12)
    return torch.exp(-distance / width[..., None, None])


def column_gram(values: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """The mean of a kernel on each column and of one on all: sees a dependence on one column among many."""
    parts = [gram(column[:, None]) for column in standard(values).unbind(1)]
    return torch.stack([*parts, gram(standard(values))]).mean(0) if len(parts) > 1 else parts[0]


def hsic(first: Float[Tensor, "n n"], second: Float[Tensor, "n n"]) -> Dependence:
    """Are the rows of two Gram matrices paired by chance? Valid where rows are exchangeable under independence."""
    a, b = _centred(first), _centred(second)
    seen = float((a * b).sum())
    mean, variance = permutation_moments(a, b)
    scale = (_excess(a) * _excess(b)) ** 0.5
    effect = max(0.0, (seen - mean) / scale) if scale > 0 else 0.0
    return Dependence(effect, _gamma_tail(seen, mean, variance))


def permutation_moments(a: Float[Tensor, "n n"], b: Float[Tensor, "n n"]) -> tuple[float, float]:
    """Mean and variance of tr(A·PBPᵀ) over all permutations P, for symmetric A and B whose rows sum to zero."""
    n = len(a)
    (t, t2, s2), (v, v2, r2) = _traces(a), _traces(b)
    mean = t * v / (n - 1)
    spread = 2 * ((n - 1) * t2 - t**2) * ((n - 1) * v2 - v**2) / ((n - 1) ** 2 * (n + 1) * (n - 2))
    corner = (n * (n + 1) * s2 - (n - 1) * (t**2 + 2 * t2)) * (n * (n + 1) * r2 - (n - 1) * (v**2 + 2 * v2))
    return mean, spread + corner / ((n + 1) * n * (n - 1) * (n - 2) * (n - 3))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values: below α only with probability α, however many of the hypotheses are true."""
    # scipy.stats.false_discovery_control bounds the share of false alarms; this bounds the chance of a single one.
    ordered, order = torch.tensor(p_values, dtype=torch.float64).sort()
    adjusted = (torch.arange(len(order), 0, -1) * ordered).clamp(max=1.0).cummax(0).values
    return adjusted[order.argsort()].tolist()


def kolmogorov(quantiles: Float[Tensor, "n m"]) -> Dependence:
    """Distance of the m members' pooled quantiles from uniform; p for n rows, conservative as members repeat rows."""
    from scipy.stats import kstest, kstwo

    distance = float(kstest(quantiles.double().flatten().cpu().numpy(), "uniform").statistic)
    return Dependence(distance, float(kstwo.sf(distance, len(quantiles))))


def prior_quantiles(noise: Float[Tensor, "*n u"], prior: Float[Tensor, "p u"]) -> Float[Tensor, "*n u"]:
    """Where every noise lies among draws of its prior, column by column, between 0 and 1."""
    flat = noise.flatten(0, -2).T.contiguous()
    below = torch.searchsorted(prior.T.contiguous().sort(-1).values, flat)
    return ((below + 0.5) / (len(prior) + 1)).T.reshape(noise.shape)


def standard(values: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Every column with mean 0 and standard deviation 1."""
    return (values - values.mean(0)) / values.std(0).clamp(min=1e-12)


def _centred(matrix: Tensor) -> Tensor:
    return matrix - matrix.mean(0) - matrix.mean(1, keepdim=True) + matrix.mean()


def _traces(matrix: Tensor) -> tuple[float, float, float]:
    diagonal = matrix.diagonal()
    return float(diagonal.sum()), float(matrix.square().sum()), float(diagonal.square().sum())


def _excess(matrix: Tensor) -> float:
    """tr A² beyond what independence would give: the largest HSIC this kernel can show with itself."""
    trace, square, _ = _traces(matrix)
    return max(0.0, square - trace**2 / (len(matrix) - 1))


def _gamma_tail(seen: float, mean: float, variance: float) -> float:
    from scipy.stats import gamma

    if variance <= 0 or mean <= 0:
        return 1.0
    return float(gamma.sf(seen, mean**2 / variance, scale=variance / mean))
