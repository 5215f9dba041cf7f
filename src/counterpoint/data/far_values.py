"""Scales of columns that a few values far from all others do not set: one creatinine of 9999 among values near 1."""

import torch
from torch import Tensor

FEW, SHARE = 3, 0.001
"""So many values of a column, or such a share of them, may be far …"""
TIMES = 10.0
"""… where they lie so many times as far from the median as all others do."""
LEAST = 1e-7
"""Columns that hardly vary have no far values: a rare change is all that there is of them."""


def near(values: Tensor) -> Tensor:
    """The values [n, w], those far from all others moved to the farthest of the others; bit for bit, where none is."""
    count = len(values)
    few = min(max(FEW, int(SHARE * count)), count - 1)
    if count < 10 or not values.shape[1]:
        return values
    middle = values.median(0).values
    distance = (values - middle).abs()
    top = distance.topk(few + 1, 0).values
    gap = (top[:-1] > TIMES * top[1:]) & (top[1:] > LEAST) & (distance.median(0).values > LEAST)
    # The last gap is that to the bulk; without one the reach is infinite, which moves nothing.
    reach = torch.where(gap, top[1:], torch.inf).amin(0)
    return values.maximum(middle - reach).minimum(middle + reach)
