"""Groups of subjects by their factors: k-means, as in the paper, or a mixture that weighs factors by their precision.

The mixture says where in factor space the groups are and how many subjects each has, by the likelihood of all records:

    p(records of i) ∝ Σ_g π_g · exp(h_i·c_g − ½ c_g'Λ_i c_g),    Λ_i, h_i what the rows of i say of θ without its prior

so a subject with few rows counts for little, and a new subject's chances of each group come with their sureness.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.core.errors import require
from counterpoint.core.seeding import generator
from counterpoint.core.settings import Positive, check_settings
from counterpoint.models.base import SubjectFactors

ROUNDS, STARTS = 200, 5
"""Rounds of expectation maximisation at most, and how often it is begun."""
STILL = 1e-3
"""A round that moves the log likelihood by less than this is the last."""
REFERENCES = 20
"""Tables without groups that the gap statistic compares with."""
RIDGE = 1e-3
"""Precision of the prior of a group's centre, so that a group of unknown subjects stays near the middle."""


@dataclass(frozen=True)
class Groups:
    """Where the groups are, and how many of the subjects each has."""

    centre: Float[Tensor, "g t"]
    share: Float[Tensor, " g"]
    hard: bool = False
    """Whether a subject is of the group whose centre is nearest, however unsure its factor is."""

    @property
    def count(self) -> int:
        return len(self.centre)

    def chances(self, factors: SubjectFactors) -> Float[Tensor, "n g"]:
        """How likely each subject is of each group."""
        if self.hard:
            nearest = torch.cdist(factors.mean, self.centre.to(factors.mean)).argmin(1)
            return torch.nn.functional.one_hot(nearest, self.count).to(factors.mean)
        evidence, precision = evidence_of(factors)
        centre, share = (part.to(evidence) for part in (self.centre, self.share))
        return _log_chances(evidence, precision, centre, share).softmax(1).to(factors.mean)


@dataclass(frozen=True)
class KMeansGroups:
    """k-means on the factors (paper, section 3.2); every subject counts alike."""

    count: Positive | None = None
    """Groups; None for the number by the gap statistic (Tibshirani, Walther & Hastie 2001), which may be one."""
    most: Positive = 10
    """Groups that are tried at most where their number is chosen."""

    def __post_init__(self) -> None:
        check_settings(self)

    def fit(self, factors: SubjectFactors, seed: int) -> Groups:
        """The groups of some subjects."""
        mean = factors.mean.double()
        _check(len(mean), self.count)
        if not mean.shape[1]:
            return Groups(factors.mean[:1], torch.ones(1), hard=True)
        count = self.count or self._choose(mean, seed)
        clusters = _lloyd(mean, count, seed)
        share = torch.bincount(clusters.label) / len(mean)
        return Groups(clusters.centre.float(), share.float(), hard=True)

    def _choose(self, mean: Float[Tensor, "n t"], seed: int) -> int:
        """The least number whose gap is not surely smaller than that of one more."""
        most = min(self.most, len(mean.unique(dim=0)) - 1)
        if most < 2:
            return 1
        observed = _log_spreads(mean, most, seed)
        random, axes = generator(seed, "gap"), torch.linalg.svd(mean - mean.mean(0), full_matrices=False)[2]
        turned = (mean - mean.mean(0)) @ axes.T
        low, high = turned.amin(0), turned.amax(0)
        drawn = [low + (high - low) * torch.rand(mean.shape, generator=random).double() for _ in range(REFERENCES)]
        without = torch.stack([_log_spreads(table, most, seed) for table in drawn])
        gap, error = without.mean(0) - observed, without.std(0, correction=0) * (1 + 1 / REFERENCES) ** 0.5
        enough = gap[:-1] >= gap[1:] - error[1:]
        return int(enough.nonzero()[0]) + 1 if bool(enough.any()) else most


@dataclass(frozen=True)
class MixtureGroups:
    """A mixture of groups, each a point in factor space, by the likelihood of the subjects' records."""

    count: Positive | None = None
    """Groups; None for the number with the best Bayesian information criterion."""
    most: Positive = 10
    """Groups that are tried at most where their number is chosen."""

    def __post_init__(self) -> None:
        check_settings(self)

    def fit(self, factors: SubjectFactors, seed: int) -> Groups:
        """The groups of some subjects."""
        _check(len(factors.mean), self.count)
        if not factors.mean.shape[1]:
            return Groups(factors.mean[:1], torch.ones(1))
        require(
            bool((factors.covariance.diagonal(0, 1, 2) > 0).all()),
            "the model does not say how sure a subject's factor is; group by KMeansGroups()",
        )
        tried = [self.count] if self.count else range(1, min(self.most, len(factors.mean)) + 1)
        fits = [_mixture(factors, count, seed) for count in tried]
        width, subjects = factors.mean.shape[1], len(factors.mean)
        criterion = [
            -2 * likelihood + (groups.count * (width + 1) - 1) * torch.log(torch.tensor(float(subjects)))
            for groups, likelihood in fits
        ]
        return fits[int(torch.stack(criterion).argmin())][0]


def evidence_of(factors: SubjectFactors) -> tuple[Float[Tensor, "n t"], Float[Tensor, "n t t"]]:
    """What the rows of each subject say of its factor, without the prior N(0, I)."""
    precision = torch.linalg.inv(factors.covariance.double())
    evidence = (precision @ factors.mean.double()[..., None])[..., 0]
    return evidence, precision - torch.eye(precision.shape[-1]).to(precision)


def _mixture(factors: SubjectFactors, count: int, seed: int) -> tuple[Groups, Tensor]:
    """The best of several starts, and its log likelihood."""
    evidence, precision = evidence_of(factors)
    tried = [_maximise(factors, evidence, precision, count, seed + start) for start in range(STARTS)]
    return max(tried, key=lambda fit: float(fit[1]))


def _maximise(
    factors: SubjectFactors, evidence: Tensor, precision: Tensor, count: int, seed: int
) -> tuple[Groups, Tensor]:
    centre = _lloyd(factors.mean.double(), count, seed, starts=1).centre.double()
    count, width = centre.shape
    share, ridge = torch.full((count,), 1 / count).double(), RIDGE * torch.eye(width).double()
    logits, likelihood = _log_chances(evidence, precision, centre, share), torch.tensor(-torch.inf).double()
    for _ in range(ROUNDS):
        before, likelihood = likelihood, logits.logsumexp(1).sum()
        if (likelihood - before).abs() < STILL:
            break
        chance = logits.softmax(1)
        share = (chance.sum(0) + 1) / (len(chance) + count)
        weighed = torch.einsum("ng,nrs->grs", chance, precision) + ridge
        centre = torch.linalg.solve(weighed, torch.einsum("ng,nr->gr", chance, evidence)[..., None])[..., 0]
        logits = _log_chances(evidence, precision, centre, share)
    return Groups(centre.float(), share.float()), likelihood


def _log_chances(
    evidence: Float[Tensor, "n t"], precision: Float[Tensor, "n t t"], centre: Tensor, share: Tensor
) -> Float[Tensor, "n g"]:
    square = torch.einsum("gr,nrs,gs->ng", centre, precision, centre)
    return evidence @ centre.T - 0.5 * square + share.log()


def _log_spreads(mean: Float[Tensor, "n t"], most: int, seed: int) -> Float[Tensor, " g"]:
    """The log of the squared distances to the centres of 1 … `most` groups."""
    return torch.tensor([_lloyd(mean, count, seed, starts=2).inertia for count in range(1, most + 1)]).double().log()


class _Clusters(NamedTuple):
    """Result of k-means."""

    centre: Float[Tensor, "g t"]
    label: Int[Tensor, " n"]
    inertia: float


def _lloyd(mean: Float[Tensor, "n t"], count: int, seed: int, starts: int = 10) -> _Clusters:
    """k-means by Lloyd's algorithm; of fewer groups where fewer subjects differ."""
    from sklearn.cluster import KMeans

    count = min(count, len(mean.unique(dim=0)))
    fitted = KMeans(count, n_init=starts, random_state=seed % 2**31).fit(mean.numpy())  # pyright: ignore[reportArgumentType]
    assert fitted.inertia_ is not None
    return _Clusters(torch.as_tensor(fitted.cluster_centers_), torch.as_tensor(fitted.labels_).long(), fitted.inertia_)


def _check(subjects: int, count: int | None) -> None:
    require(subjects > 0, "there are no subjects to group; give rows of some")
    require((count or 0) <= subjects, f"{count} groups are more than the {subjects} subjects; ask for fewer")
