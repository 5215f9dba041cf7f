"""Forecasts under planned actions, each from a row of a table and its subject's rows before it, against the truth."""

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
"""cm³, about a cell; below it the logarithm of a volume says nothing."""

Step = Callable[
    [Float[Tensor, "m s"], Float[Tensor, "m a"], Int[Tensor, " m"]],
    Float[Tensor, " m"],
]
"""step(state, action, row): the first state column one step later; `row` says which row of the table was begun from."""


class Forecast(Protocol):
    """A fitted forecaster."""

    def __call__(self, rows: Transitions, plans: Float[Tensor, "n p h a"]) -> Float[Tensor, "n p h"]:
        """The first state column after every step of each row's plans, whose first action is taken in the row's state.

        The table holds whole records: the answer for a row may use the rows of its subject before it and its state,
        neither its own action and next state nor what comes later.
        """
        ...


class Forecaster(Protocol):
    """A recipe for one: a frozen dataclass, whose fields define its results."""

    def fit(self, train: Transitions, seed: int) -> Forecast: ...


@dataclass(frozen=True)
class CopyLast:
    """Nothing changes."""

    def fit(self, train: Transitions, seed: int) -> Forecast:
        return lambda rows, plans: rows.state[:, :1, None].expand(plans.shape[:-1])


@dataclass(frozen=True)
class PooledRegression:
    """Least squares of the relative change on (1, ln V, action, earlier actions, other columns), subjects all alike."""

    lags: Positive = 5
    """Earlier actions it sees."""

    def __post_init__(self) -> None:
        check_settings(self)

    def fit(self, train: Transitions, seed: int) -> Forecast:
        told = with_lags(train.with_next(), self.lags)
        categories = told.schema.categories
        change = told.next_state[:, 0].double() / told.state[:, 0] - 1
        inputs = _features(told.state, told.action, categories)
        # The default driver gives other weights from call to call where a level is absent and columns are dependent.
        weights = torch.linalg.lstsq(inputs, change[:, None], driver="gelsd").solution[:, 0]

        def step(state: Tensor, action: Tensor, row: Tensor) -> Tensor:
            return state[:, 0] * (1 + _features(state, action, categories) @ weights).float()

        return lambda rows, plans: roll_out(step, with_lags(rows, self.lags), plans)


@dataclass(frozen=True)
class SubjectEffects:
    """An SCM with random effects: every patient's own response, as far as its earlier rows tell."""

    model: RandomEffects = RandomEffects(ensemble=1)
    """How it is fitted."""
    lags: Positive = 5
    """Earlier actions it sees."""

    def __post_init__(self) -> None:
        check_settings(self)

    def fit(self, train: Transitions, seed: int) -> Forecast:
        told = with_lags(train, self.lags)
        model = self.model.fit(told[told.has_next & (told.outcome == GOES_ON)], seed)

        def forecast(rows: Transitions, plans: Float[Tensor, "n p h a"]) -> Float[Tensor, "n p h"]:
            known = with_lags(rows, self.lags)
            theta = model.factors_before(known).mean
            still = torch.zeros(1, model.mechanism.members * model.mechanism.noise_width)

            def step(state: Tensor, action: Tensor, row: Tensor) -> Tensor:
                return model.predict(state, action, still.expand(len(state), -1), theta[row])[:, 0]

            return roll_out(step, known, plans)

        return forecast


def _features(state: Tensor, action: Tensor, categories: tuple[tuple[int, int], ...]) -> Float[Tensor, "n f"]:
    """One, ln V, every number, and an indicator of every level but the first."""
    coded = dict(categories)
    columns = [torch.ones_like(state[:, :1]), state[:, :1].clamp_min(SMALLEST).log(), action]
    for place in range(1, state.shape[1]):
        value = state[:, place : place + 1]
        columns.append(value == torch.arange(1, coded[place]).to(value) if place in coded else value)
    return torch.cat([column.double() for column in columns], 1)


@torch.no_grad()
def roll_out(step: Step, rows: Transitions, plans: Float[Tensor, "n p h a"]) -> Float[Tensor, "n p h"]:
    """Plans followed step by step in a table with lags (see `with_lags`).

    The first column comes from `step`, the lags move on, and the other columns stay.
    """
    count, many, steps, width = plans.shape
    lagged = len([name for name in rows.state_names if name.endswith("_ago")])
    row = torch.arange(count, device=plans.device).repeat_interleave(many)
    state, found = rows.state[row], []
    for action in plans.reshape(-1, steps, width).unbind(1):
        first = step(state, action, row)
        found.append(first)
        kept, past = state[:, 1 : state.shape[1] - lagged], state[:, state.shape[1] - lagged :]
        state = torch.cat([first[:, None], kept, shifted(past, action)], 1)
    return torch.stack(found, 1).view(count, many, steps)


def rmse_by_horizon(forecast: Float[Tensor, "n p h"], truth: Float[Tensor, "n p h"]) -> Float[Tensor, " h"]:
    """Root mean square error over all questions of a horizon; those whose truth is NaN do not count."""
    return (forecast - truth).square().double().nanmean((0, 1)).sqrt()
