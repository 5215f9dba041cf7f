"""Error of a model's counterfactuals in a task that is a known SCM.

    error_i = RMSE(ŝ'_i − s'_i) / sd(s'_i − factual s'_i),    error = √ mean over columns i of error_i²

0 is perfect and 1 is as good as copying the factual outcome. Columns that the action never changes are scored apart,
in standard deviations of the noise.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from counterpoint.core.errors import CounterpointError
from counterpoint.core.seeding import generator
from counterpoint.data.transitions import Transitions
from counterpoint.simulation.augmentation import Imaginer
from counterpoint.tasks.base import KnownSCM

NO_EFFECT = 1e-6
"""An effect below this share of the column's standard deviation is rounding."""
REPLAY = 1e-3
"""The recorded noise must reproduce the next state within this share of the column's standard deviation."""


@dataclass(frozen=True)
class Yardstick:
    """Units of the errors of one table of counterfactuals, column by column."""

    moved: Bool[Tensor, " s"]
    """Whether the action changes the column."""
    unit: Float[Tensor, " s"]
    """Standard deviation of the true effect; of the noise where there is no effect."""

    def columns(self, answer: Float[Tensor, "n s"], truth: Float[Tensor, "n s"]) -> Float[Tensor, " s"]:
        """Return the error of every column."""
        return (answer - truth).square().mean(0).sqrt() / self.unit

    def error(self, answer: Float[Tensor, "n s"], truth: Float[Tensor, "n s"]) -> float:
        """Return the root mean square over the columns that the action changes."""
        return _root_mean_square(self.columns(answer, truth)[self.moved])

    def unmoved_error(self, answer: Float[Tensor, "n s"], truth: Float[Tensor, "n s"]) -> float:
        """Return the same over the other columns, in standard deviations of the noise; nan if there are none."""
        return _root_mean_square(self.columns(answer, truth)[~self.moved])


@dataclass(frozen=True)
class CounterfactualQueries:
    """Logged rows, alternative actions, and the true counterfactual next states."""

    rows: Transitions
    action: Float[Tensor, "n a"]
    truth: Float[Tensor, "n s"]
    yardstick: Yardstick

    def to(self, device: torch.device | str) -> "CounterfactualQueries":
        yardstick = Yardstick(self.yardstick.moved.to(device), self.yardstick.unit.to(device))
        return CounterfactualQueries(self.rows.to(device), self.action.to(device), self.truth.to(device), yardstick)


@dataclass(frozen=True)
class CounterfactualError:
    """Errors of one model on one table of questions."""

    error: float
    """Of its counterfactuals."""
    fresh_error: float
    """Of the same model with fresh noise instead of abduction."""
    round_trip: float
    """Of its counterfactual under the logged action, whose truth is the factual next state; over all columns."""
    unmoved_error: float
    """Of its counterfactuals in the columns that no action changes; nan if there are none."""
    columns: tuple[float, ...]
    """Of its counterfactuals, column by column."""


def questions(task: KnownSCM, rows: Transitions, seed: int = 0) -> CounterfactualQueries:
    """Draw one alternative action for each row; `rows` must be real and carry their noise."""
    _check(task, rows)
    action = task.actions.sample(len(rows), generator(seed, "alternative")).to(rows.action)
    truth = task.counterfactual(rows, action)
    return CounterfactualQueries(rows, action, truth, _yardstick(task, rows, truth, seed))


def counterfactual_error(model: Imaginer, task: KnownSCM, rows: Transitions, seed: int = 0) -> CounterfactualError:
    """Compare the model's counterfactuals under one alternative action for each row with the truth.

    Example:
        >>> from counterpoint.models.scm.density import location_scale
        >>> from reproduction.tasks.structural_problems import Additive, sample
        >>> model = location_scale().fit(sample(Additive(), rows=1000, seed=0))
        >>> counterfactual_error(model, Additive(), sample(Additive(), rows=2000, seed=1)).error < 0.2
        True
    """
    return score(model, questions(task, rows, seed), seed)


def score(model: Imaginer, asked: CounterfactualQueries, seed: int = 0) -> CounterfactualError:
    """Return the errors of `model` on questions that are already drawn, for example for several models."""
    rows, yardstick = asked.rows, asked.yardstick
    answer = model.imagine(rows, asked.action[:, None], generator(seed, "imagine"))[:, 0]
    again = model.imagine(rows, rows.action[:, None], generator(seed, "again"))[:, 0]
    fresh = model.sample(rows.state, asked.action, generator(seed, "fresh"))
    return CounterfactualError(
        error=yardstick.error(answer, asked.truth),
        fresh_error=yardstick.error(fresh, asked.truth),
        round_trip=_root_mean_square(yardstick.columns(again, rows.next_state)),
        unmoved_error=yardstick.unmoved_error(answer, asked.truth),
        columns=tuple(yardstick.columns(answer, asked.truth).tolist()),
    )


def _yardstick(task: KnownSCM, rows: Transitions, truth: Tensor, seed: int) -> Yardstick:
    effect, spread = (truth - rows.next_state).std(0), rows.next_state.std(0)
    moved = effect > NO_EFFECT * spread
    if not bool(moved.any()):
        raise CounterpointError("no action changes any state column in these rows; there is no effect to measure by")
    noise = _noise_spread(task, rows, seed)
    # Without effect and without noise the unit is 0 and any error infinite.
    return Yardstick(moved, torch.where(moved, effect, noise))


def _noise_spread(task: KnownSCM, rows: Transitions, seed: int) -> Float[Tensor, " s"]:
    """Standard deviation of the noise in each column: two draws in the same (s, a) differ by √2 of it."""
    drawn = task.noise(len(rows), generator(seed, "noise spread")).to(rows.noise)
    other = task.of_subjects(rows.subject).transition(rows.state, rows.action, drawn)
    return (other - rows.next_state).square().mean(0).sqrt() / 2**0.5


def _check(task: KnownSCM, rows: Transitions) -> None:
    imagined = rows.imagined.nonzero()
    if len(imagined):
        raise CounterpointError(
            f"row {int(imagined[0])} is imagined: it has no true counterfactual; pass rows.real"
            f" ({len(imagined)} such rows)"
        )
    if len(rows) < 2:
        raise CounterpointError(f"{len(rows)} rows have no spread to measure an effect by; pass at least 2")
    if rows.noise.shape[1] != task.noise_width:
        raise CounterpointError(
            f"the rows carry {rows.noise.shape[1]} noise columns and the task has {task.noise_width};"
            " pass rows that this task simulated"
        )
    replayed = task.counterfactual(rows, rows.action)
    wrong = ((replayed - rows.next_state).abs() > REPLAY * rows.next_state.std(0)).any(1) | replayed.isnan().any(1)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise CounterpointError(
            f"row {row}'s noise does not lead to its next state in this task; pass rows that this task simulated"
        )


def _root_mean_square(errors: Float[Tensor, " s"]) -> float:
    return float(errors.square().mean().sqrt()) if len(errors) else float("nan")
