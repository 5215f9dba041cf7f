"""Intervals of counterfactuals from the spread of ensemble members, widened for what the members share.

    ŝ' ± factor · t_{M−1} · √(1 + 1/M) · sd over members

The members of one fit see nearly the same rows and share the bias of their recipe, so that they differ less than their
mean errs: with 1,000 rows of the synthetic SCMs the error of five members' mean is 1.4 to 1.9 times their spread.
`SHARED_ROWS` widens for it; with it, 90% intervals held 88% (additive noise), 93% (heteroscedastic) and 92% (four
columns) of the true counterfactuals. Fits to halves of the subjects were tried in its place: they share the bias, and
held 71 to 88%. Members that are fits to bootstrapped subjects need no such factor.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

from jaxtyping import Float
from torch import Tensor

from counterpoint.core.errors import CounterpointError

Values_co = TypeVar("Values_co", covariant=True)
SHARED_ROWS = 1.5
"""Factor for members that were fitted to the same rows."""
THETA_DRAWS = 8
"""Posterior draws of the subject factors that a model with such factors is asked under."""


@dataclass(frozen=True)
class CounterfactualInterval(Generic[Values_co]):
    """Values with the ends of their intervals, all of one type: tensors, arrays or DataFrames.

    The interval holds what the fitted members leave open: how little the log says about these actions in these states.
    It does not hold unmeasured common causes, nor an exogenous noise that changes with the action (see `check_scm`).
    """

    value: Values_co
    low: Values_co
    high: Values_co


def half_width(predictions: Float[Tensor, "k n s"], members: int, level: float, factor: float) -> Float[Tensor, "n s"]:
    """Half the width of the intervals.

    Args:
        predictions: those of every member, for a model with subject factors under several draws of them.
        members: the number of members, whose t-distribution the widths come from.
        level: the share of counterfactuals that the intervals are to hold.
        factor: what the spread is multiplied by.
    """
    from scipy.stats import t

    if members < 2:
        raise CounterpointError(
            "the model has one member, whose spread cannot be told; fit it with ensemble=5, or leave out level"
        )
    quantile = float(t.ppf((1 + level) / 2, members - 1)) * (1 + 1 / members) ** 0.5
    return factor * quantile * predictions.std(0)
