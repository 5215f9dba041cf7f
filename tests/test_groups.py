"""Groups of subjects: kinds that are apart are found, alike subjects are one group, nobody is surer than its rows."""

from typing import Any

import pytest
import torch
from torch import Tensor

import counterpoint as cp
from counterpoint.models.base import SubjectFactors
from counterpoint.models.groups import Groups, evidence_of
from helpers.effects import by_hand, generator, responders
from helpers.tables import refused

SHAPES = False
GROUPINGS = [cp.models.KMeansGroups(most=5), cp.models.MixtureGroups(most=5)]
KINDS = torch.tensor([[-2.0, 0.0], [2.0, 0.0], [0.0, 3.0]])


def known(truth: Tensor, variance: float, seed: int = 0) -> SubjectFactors:
    """Posteriors under the prior N(0, I) of subjects whose rows leave this variance."""
    precision = 1 + 1 / variance
    seen = truth + variance**0.5 * torch.randn(truth.shape, generator=generator(seed))
    covariance = torch.eye(truth.shape[1]).expand(len(truth), -1, -1) / precision
    return SubjectFactors(seen / variance / precision, covariance)


@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize("given", [False, True])
def test_kinds_that_are_apart_are_found(grouping: Any, given: bool) -> None:
    member = torch.arange(90) % 3
    factors = known(KINDS[member], 0.05)
    groups = (type(grouping)(count=3) if given else grouping).fit(factors, 0)
    assert groups.count == 3
    found = groups.chances(factors).argmax(1)
    label = [int(found[member == kind].mode().values) for kind in range(3)]
    assert sorted(label) == [0, 1, 2]
    assert torch.equal(found, torch.tensor(label)[member])
    torch.testing.assert_close(groups.centre[label], KINDS, rtol=0, atol=0.2)
    torch.testing.assert_close(groups.share, torch.full((3,), 1 / 3), rtol=0, atol=0.02)


@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize("width", [1, 2])
def test_alike_subjects_are_one_group(grouping: Any, width: int) -> None:
    """Exactly alike; alike but for what chance made of their rows; and without any factor."""
    for variance, seed in ((1e-12, 0), (0.3, 0), (0.3, 1), (20.0, 2)):
        assert grouping.fit(known(torch.zeros(60, width), variance, seed), seed).count == 1
    one = SubjectFactors(torch.zeros(5, width), torch.eye(width).expand(5, width, width) * 0.1)
    none = SubjectFactors(torch.zeros(5, 0), torch.zeros(5, 0, 0))
    for factors in (one, none):
        groups = grouping.fit(factors, 0)
        assert groups.count == 1
        torch.testing.assert_close(groups.chances(factors), torch.ones(5, 1))
    assert type(grouping)(count=3).fit(one, 0).count == 1


def test_a_mixture_finds_kinds_that_single_subjects_hide() -> None:
    """Two kinds at ±1 under rows that leave a variance of ½: centres are not shrunk to the prior as factors are."""
    member = torch.arange(400) % 2
    factors = known(torch.tensor([[-1.0], [1.0]])[member], 0.5)
    groups = cp.models.MixtureGroups().fit(factors, 0)
    assert groups.count == 2
    assert sorted(groups.centre[:, 0].tolist()) == pytest.approx([-1, 1], abs=0.2)
    plain = cp.models.KMeansGroups(count=2).fit(factors, 0)
    assert plain.centre.abs().max() < 0.78


def test_nobody_is_surer_than_its_rows() -> None:
    """Chances by Bayes: the share without rows, ½ between two kinds, near 1 after many; k-means is always sure."""
    groups = Groups(torch.tensor([[-1.0], [1.0]]), torch.tensor([0.3, 0.7]))
    means, variances = torch.tensor([[0.0], [0.0], [0.9], [0.9]]), torch.tensor([1.0, 0.01, 0.5, 0.01])
    chances = groups.chances(SubjectFactors(means, variances[:, None, None]))
    torch.testing.assert_close(chances[:2], torch.tensor([[0.3, 0.7]] * 2))
    information, precision = (part.flatten() for part in evidence_of(SubjectFactors(means, variances[:, None, None])))
    seen = torch.distributions.Normal((information / precision)[2:], precision[2:] ** -0.5)
    each = torch.stack([0.3 * seen.log_prob(torch.tensor(-1.0)).exp(), 0.7 * seen.log_prob(torch.tensor(1.0)).exp()], 1)
    torch.testing.assert_close(chances[2:].double(), each / each.sum(1, keepdim=True))
    assert 0.7 < chances[2, 1] < 0.999 < chances[3, 1]
    hard = Groups(groups.centre, groups.share, hard=True)
    assert hard.chances(SubjectFactors(means + 0.1, variances[:, None, None])).max(1).values.tolist() == [1.0] * 4


def test_the_factors_of_a_model_are_what_is_grouped() -> None:
    rows = responders(torch.tensor([-1.0, 1.0])[torch.arange(30) % 2], 8, 0)
    factors = by_hand([[0.0, 0.0, 1.0]], 0.5, rows).subject_factors(rows)
    for grouping in GROUPINGS:
        found = grouping.fit(factors, 0).chances(factors).argmax(1)
        assert torch.equal(found == found[0], torch.arange(30) % 2 == 0)


def test_what_cannot_be_grouped_is_one_line() -> None:
    few = known(torch.zeros(2, 1), 1.0)
    for grouping in (cp.models.KMeansGroups(3), cp.models.MixtureGroups(3)):
        assert "3 groups are more than the 2 subjects" in refused(lambda grouping=grouping: grouping.fit(few, 0))
        assert "no subjects to group" in refused(lambda grouping=grouping: grouping.fit(few[:0], 0))
    points = SubjectFactors(few.mean, torch.zeros(2, 1, 1))
    assert "group by KMeansGroups()" in refused(lambda: cp.models.MixtureGroups().fit(points, 0))
    assert cp.models.KMeansGroups(2).fit(points, 0).count == 2
