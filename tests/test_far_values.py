"""A few values far from all others do not set the scale of a column; columns without them keep theirs bit for bit."""

import pytest
import torch

from counterpoint.checks.support import _scale
from counterpoint.data.far_values import near
from counterpoint.data.jobs import pad

CREATININE = 1 + 0.3 * torch.randn(500, 1, generator=torch.Generator().manual_seed(0))
SPOILT = CREATININE.clone()
SPOILT[7] = 9999.0


def test_one_value_of_9999_leaves_the_scale_as_it_is() -> None:
    for values in (CREATININE, SPOILT):
        mean, spread = pad([{"x": values}]).mean_and_spread("x")
        assert float(mean) == pytest.approx(1.0, abs=0.05)
        assert float(spread) == pytest.approx(0.3, abs=0.03)
        assert float(_scale(values)) == pytest.approx(0.3, abs=0.03)
    assert float(SPOILT.std()) > 400


def test_the_far_value_is_moved_to_the_farthest_of_the_others() -> None:
    others = torch.cat([SPOILT[:7], SPOILT[8:]])
    reach = (others - SPOILT.median()).abs().max()
    assert float(near(SPOILT)[7]) == pytest.approx(float(SPOILT.median() + reach))


@pytest.mark.parametrize(
    "values",
    [
        CREATININE,
        CREATININE.exp() ** 3,
        torch.arange(200.0)[:, None],
        (torch.arange(200) < 2).float()[:, None],
        torch.zeros(200, 1),
        torch.tensor([[1.0], [2.0], [1000.0]]),
    ],
)
def test_columns_without_far_values_stay_bit_for_bit(values: torch.Tensor) -> None:
    assert near(values).equal(values)
