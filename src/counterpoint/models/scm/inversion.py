"""Exact abduction from a generator that increases in its noise: f(u) = y solved by bisection in every coordinate."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

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
