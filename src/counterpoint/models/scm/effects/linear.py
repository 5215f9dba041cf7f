"""A linear mixed-effects model of several columns, fitted by the marginal likelihood of whole subjects.

    y_t = x_t·(M + B·θ) + e_t,    θ ~ N(0, I_r) for each subject,    e_t ~ N(0, Σ)

Everything that the likelihood needs of a subject are its sums Σx'x, Σx'y, Σy'y, so that an iteration costs the same
for a record of ten rows and of ten thousand. Fitted by expectation maximisation with the covariance of θ as an extra
parameter (Liu, Rubin & Wu 1998), which is then folded into B. Clinicians know it as lme4's; here θ moves all columns
at once, which lme4 has no word for.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

ROUNDS = 150
"""Iterations of a fit; the extra parameter makes them few."""
FIRST_ROUNDS = 15
"""Iterations after which the better of two starts goes on."""
STILL = 1e-5
"""A fit is done when an iteration moves its numbers by less than this share of them."""
RIDGE = 1e-6
"""Share of each diagonal number that is added to normal equations: only enough for columns that repeat each other."""
LEAST = 1e-9
"""Share of a column's variance that its noise has at least: an equation without noise would know every subject."""


@dataclass(frozen=True)
class Sums:
    """What the likelihood needs of n subjects."""

    xx: Float[Tensor, "n p p"]
    xy: Float[Tensor, "n p d"]
    yy: Float[Tensor, "n d d"]
    rows: Float[Tensor, " n"]

    @classmethod
    def of(cls, x: Float[Tensor, "m p"], y: Float[Tensor, "m d"], subject: Int[Tensor, " m"], subjects: int) -> "Sums":
        """The sums over every subject's rows, in double precision."""
        order, rows = subject.argsort(stable=True), torch.bincount(subject, minlength=subjects)
        by_subject = [table.double()[order].split(rows.tolist()) for table in (x, y)]
        pairs = ((0, 0), (0, 1), (1, 1))
        xx, xy, yy = (
            torch.stack([a.T @ b for a, b in zip(by_subject[i], by_subject[j], strict=True)]) for i, j in pairs
        )
        return cls(xx, xy, yy, rows.double())

    def __getitem__(self, subjects: Tensor) -> "Sums":
        return Sums(self.xx[subjects], self.xy[subjects], self.yy[subjects], self.rows[subjects])


@dataclass(frozen=True)
class LinearEffects:
    """M, B and Σ."""

    mean: Float[Tensor, "p d"]
    effect: Float[Tensor, "p d r"]
    covariance: Float[Tensor, "d d"]

    @property
    def factors(self) -> int:
        return self.effect.shape[-1]

    def posterior(self, sums: Sums) -> tuple[Float[Tensor, "n r"], Float[Tensor, "n r r"]]:
        """Mean and covariance of every subject's θ."""
        information, precision = self._evidence(sums)
        covariance = torch.linalg.inv(precision)
        return (covariance @ information[..., None])[..., 0], covariance

    def log_likelihood(self, sums: Sums) -> Float[Tensor, " n"]:
        """The marginal likelihood of each subject's whole record."""
        information, precision = self._evidence(sums)
        left = sums.xy.mT @ self.mean
        misfit = sums.yy - left - left.mT + self.mean.T @ sums.xx @ self.mean
        weight = torch.linalg.inv(self.covariance)
        explained = (information[:, None] @ torch.linalg.solve(precision, information[..., None]))[:, 0, 0]
        volume = sums.rows * torch.logdet(2 * torch.pi * self.covariance) + torch.logdet(precision)
        return 0.5 * (explained - volume - (misfit * weight).sum((1, 2)))

    def _evidence(self, sums: Sums) -> tuple[Float[Tensor, "n r"], Float[Tensor, "n r r"]]:
        weighted = torch.einsum("pdr,de->per", self.effect, torch.linalg.inv(self.covariance))
        products = torch.einsum("per,qes->pqrs", weighted, self.effect)
        precision = torch.einsum("npq,pqrs->nrs", sums.xx, products) + torch.eye(self.factors).to(products)
        information = torch.einsum("npe,per->nr", sums.xy - sums.xx @ self.mean, weighted)
        return information, precision


def fit(sums: Sums, factors: int, weight: Float[Tensor, " n"] | None = None) -> LinearEffects:
    """The model of largest marginal likelihood, from the better of two starts; subject i counts `weight[i]` times."""
    weight = torch.ones_like(sums.rows) if weight is None else weight.double()
    pooled = _pooled(sums, weight)
    if not factors:
        return pooled
    starts = [_by_scores(sums, pooled, factors), _by_coefficients(sums, pooled, factors)]
    tried = [improve(start, sums, weight, FIRST_ROUNDS) for start in starts]
    best = max(tried, key=lambda start: float((start.log_likelihood(sums) * weight).sum().nan_to_num(-torch.inf)))
    return improve(best, sums, weight, ROUNDS)


def improve(effects: LinearEffects, sums: Sums, weight: Float[Tensor, " n"], rounds: int) -> LinearEffects:
    """Iterations of expectation maximisation, so many at most."""
    for _ in range(rounds):
        before, effects = effects, _iterate(effects, sums, weight)
        moved = (effects.effect - before.effect).norm() + (effects.mean - before.mean).norm()
        if moved <= STILL * (effects.effect.norm() + effects.mean.norm()):
            break
    return effects


def _iterate(effects: LinearEffects, sums: Sums, weight: Float[Tensor, " n"]) -> LinearEffects:
    mean, covariance = effects.posterior(sums)
    n, r = mean.shape
    one = torch.cat([torch.ones_like(mean[:, :1]), mean], 1) * weight[:, None]
    both = torch.zeros(n, 1 + r, 1 + r, dtype=mean.dtype)
    both[:, 0, 0], both[:, 0, 1:], both[:, 1:, 0] = 1, mean, mean
    both[:, 1:, 1:] = covariance + mean[:, :, None] * mean[:, None]
    p, d = effects.mean.shape
    left = torch.einsum("npq,nab->paqb", sums.xx, both * weight[:, None, None]).reshape(p * (1 + r), -1)
    right = torch.einsum("npd,na->pad", sums.xy, one).reshape(p * (1 + r), d)
    coefficients = _solve(left, right)
    square = (sums.yy * weight[:, None, None]).sum(0)
    crossed = coefficients.T @ right
    noise = (square - crossed - crossed.T + coefficients.T @ left @ coefficients) / (sums.rows * weight).sum()
    by_factor = coefficients.view(p, 1 + r, d)
    centre = (mean * weight[:, None]).sum(0) / weight.sum()
    spread = (both[:, 1:, 1:] * weight[:, None, None]).sum(0) / weight.sum() - centre[:, None] * centre
    effect = by_factor[:, 1:].permute(0, 2, 1)
    root = torch.linalg.cholesky(spread + LEAST * torch.eye(r).to(spread))
    return LinearEffects(by_factor[:, 0] + effect @ centre, effect @ root, _proper(noise, square, sums.rows @ weight))


def _pooled(sums: Sums, weight: Float[Tensor, " n"]) -> LinearEffects:
    """Linear regression on all rows, as if subjects were alike."""
    xx, xy, yy = ((part * weight[:, None, None]).sum(0) for part in (sums.xx, sums.xy, sums.yy))
    mean, rows = _solve(xx, xy), sums.rows @ weight
    crossed = mean.T @ xy
    noise = _proper((yy - crossed - crossed.T + mean.T @ xx @ mean) / rows, yy, rows)
    return LinearEffects(mean, mean.new_zeros(*mean.shape, 0), noise)


def _by_scores(sums: Sums, pooled: LinearEffects, factors: int) -> LinearEffects:
    """Start where subjects' scores, the slopes of their own likelihood at the pooled fit, spread most beyond chance."""
    root, whitening = _roots(sums, pooled)
    scores = torch.linalg.solve_triangular(root, sums.xy - sums.xx @ pooled.mean, upper=False) @ whitening
    _, size, direction = torch.linalg.svd(scores.flatten(1), full_matrices=False)
    beyond = (len(sums.rows) * (size.square() - 1).clamp(min=0.1)).sqrt()
    return _started(pooled, root, whitening, direction[:factors] * beyond[:factors, None], factors)


def _by_coefficients(sums: Sums, pooled: LinearEffects, factors: int) -> LinearEffects:
    """Start from the main directions of regression coefficients of every subject alone, shrunk to the pooled ones."""
    root, whitening = _roots(sums, pooled)
    average = root @ root.T / sums.rows.sum()
    deviations = torch.linalg.solve(sums.xx + average * sums.rows.mean() ** 0.5, sums.xy - sums.xx @ pooled.mean)
    seen = (root.T @ deviations @ whitening).flatten(1)
    _, size, direction = torch.linalg.svd(seen - seen.mean(0), full_matrices=False)
    return _started(pooled, root, whitening, direction[:factors] * size[:factors, None] / len(seen) ** 0.5, factors)


def _roots(sums: Sums, pooled: LinearEffects) -> tuple[Float[Tensor, "p p"], Float[Tensor, "d d"]]:
    """Cholesky factors of all rows' Σx'x, and of the inverse noise."""
    return torch.linalg.cholesky(_ridged(sums.xx.sum(0))), torch.linalg.cholesky(torch.linalg.inv(pooled.covariance))


def _started(
    pooled: LinearEffects, root: Tensor, whitening: Tensor, direction: Float[Tensor, "f pd"], factors: int
) -> LinearEffects:
    """The pooled fit with these directions, given in whitened units, as effects; zeros where there are too few."""
    p, d = pooled.mean.shape
    effect = torch.linalg.solve_triangular(root.T, direction.view(-1, p, d), upper=True) @ torch.linalg.inv(whitening)
    missing = effect.new_zeros(factors - len(effect), p, d)
    return LinearEffects(pooled.mean, torch.cat([effect, missing]).permute(1, 2, 0), pooled.covariance)


def _solve(left: Float[Tensor, "a a"], right: Float[Tensor, "a d"]) -> Float[Tensor, "a d"]:
    return torch.linalg.solve(_ridged(left), right)


def _ridged(left: Float[Tensor, "a a"]) -> Float[Tensor, "a a"]:
    """Normal equations with a ridge in each coefficient's own units: precise columns are no measure for noisy ones."""
    diagonal = left.diagonal()
    return left + RIDGE * torch.diag(diagonal.clamp(min=RIDGE * diagonal.mean()))


def _proper(noise: Float[Tensor, "d d"], square: Float[Tensor, "d d"], rows: Tensor) -> Float[Tensor, "d d"]:
    """A noise covariance that is symmetric and nowhere quite zero."""
    least = LEAST * square.diagonal() / rows
    return (noise + noise.T) / 2 + torch.diag(least.clamp(min=1e-30))
