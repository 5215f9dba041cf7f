"""Forecasters of the first state column under planned actions, and their error by horizon."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.core.settings import Positive, check_settings
from counterpoint.data.lags import shifted, with_lags
from counterpoint.data.transitions import GOES_ON, Transitions
from counterpoint.models.scm.random_effects import RandomEffects

SMALLEST = 1e-9
"""cm³, about the volume of a cell: logarithms are taken of no smaller volume."""

Step = Callable[
    [Float[Tensor, "m s"], Float[Tensor, "m a"], Int[Tensor, " m"]],
    Float[Tensor, " m"],
]
"""step(state, action, row): the first state column one step later; `row` is the table's row at the start."""


class Forecast(Protocol):
    """A fitted forecaster."""

    def __call__(self, rows: Transitions, plans: Float[Tensor, "n p h a"]) -> Float[Tensor, "n p h"]:
        """Predict the first state column after every step of each row's plans, from the row's state on.

        The table holds whole records. The prediction for a row may use its state and its subject's earlier rows, but
        not its action and next state or later rows.
        """
        ...


class Forecaster(Protocol):
    """A recipe of a forecast: a frozen dataclass."""

    def fit(self, train: Transitions, seed: int) -> Forecast: ...


@dataclass(frozen=True)
class CopyLast:
    """Predicts that nothing changes."""

    def fit(self, train: Transitions, seed: int) -> Forecast:
        return lambda rows, plans: rows.state[:, :1, None].expand(plans.shape[:-1])


@dataclass(frozen=True)
class PooledRegression:
    """Least squares of the relative change on (1, ln V, action, earlier actions, other columns), for all subjects."""

    lags: Positive = 5
    """Earlier actions among the inputs."""

    def __post_init__(self) -> None:
        check_settings(self)

    def fit(self, train: Transitions, seed: int) -> Forecast:
        rows = with_lags(train.with_next(), self.lags)
        categories = rows.schema.categories
        change = rows.next_state[:, 0].double() / rows.state[:, 0] - 1
        inputs = _features(rows.state, rows.action, categories)
        # The weights of the default driver vary from call to call if columns are linearly dependent.
        weights = torch.linalg.lstsq(inputs, change[:, None], driver="gelsd").solution[:, 0]

        def step(state: Tensor, action: Tensor, row: Tensor) -> Tensor:
            return state[:, 0] * (1 + _features(state, action, categories) @ weights).float()

        return lambda rows, plans: roll_out(step, with_lags(rows, self.lags), plans)


@dataclass(frozen=True)
class SubjectEffects:
    """An SCM with random effects: each patient's response is inferred from his earlier rows."""

    model: RandomEffects = RandomEffects(ensemble=1)
    """The recipe of the SCM."""
    lags: Positive = 5
    """Earlier actions among the inputs."""

    def __post_init__(self) -> None:
        check_settings(self)

    def fit(self, train: Transitions, seed: int) -> Forecast:
        lagged = with_lags(train, self.lags)
        model = self.model.fit(lagged[lagged.has_next & (lagged.outcome == GOES_ON)], seed)

        def forecast(rows: Transitions, plans: Float[Tensor, "n p h a"]) -> Float[Tensor, "n p h"]:
            lagged = with_lags(rows, self.lags)
            theta = model.factors_before(lagged).mean
            no_noise = torch.zeros(1, model.mechanism.members * model.mechanism.noise_width)

            def step(state: Tensor, action: Tensor, row: Tensor) -> Tensor:
                return model.predict(state, action, no_noise.expand(len(state), -1), theta[row])[:, 0]

            return roll_out(step, lagged, plans)

        return forecast


def _features(state: Tensor, action: Tensor, categories: tuple[tuple[int, int], ...]) -> Float[Tensor, "n f"]:
    """A constant, ln V, every number, and an indicator of every level but the first."""
    coded = dict(categories)
    columns = [torch.ones_like(state[:, :1]), state[:, :1].clamp_min(SMALLEST).log(), action]
    for place in range(1, state.shape[1]):
        value = state[:, place : place + 1]
        columns.append(value == torch.arange(1, coded[place]).to(value) if place in coded else value)
    return torch.cat([column.double() for column in columns], 1)


@torch.no_grad()
def roll_out(step: Step, rows: Transitions, plans: Float[Tensor, "n p h a"]) -> Float[Tensor, "n p h"]:
    """Follow plans step by step in a table with lags (see `with_lags`).

    `step` gives the first column; the lags are shifted, and the other columns stay constant.
    """
    count, many, steps, width = plans.shape
    lagged = len([name for name in rows.state_names if name.endswith("_ago")])
    row = torch.arange(count, device=plans.device).repeat_interleave(many)
    state, values = rows.state[row], []
    for action in plans.reshape(-1, steps, width).unbind(1):
        first = step(state, action, row)
        values.append(first)
        kept, past = state[:, 1 : state.shape[1] - lagged], state[:, state.shape[1] - lagged :]
        state = torch.cat([first[:, None], kept, shifted(past, action)], 1)
    return torch.stack(values, 1).view(count, many, steps)


def rmse_by_horizon(forecast: Float[Tensor, "n p h"], truth: Float[Tensor, "n p h"]) -> Float[Tensor, " h"]:
    """Return the root mean square error of each horizon; predictions whose truth is NaN do not count."""
    return (forecast - truth).square().double().nanmean((0, 1)).sqrt()
