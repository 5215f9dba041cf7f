"""Find reservations about a recommendation: a subject unlike the training subjects, and impossible values."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.data.returns import (
    ReturnRange,
    possible_returns,
)
from counterpoint.data.tables.new_subjects import CurrentStates
from counterpoint.data.transitions import Transitions
from counterpoint.tasks.base import Task

UNLIKE = "unlike every subject of the log, so no action can be recommended"
PLACEHOLDERS = {"", "?", "-", "n/a", "na", "nan", "null", "missing", "unknown", "not recorded"}
"""Labels of actions that were not recorded, which cannot be recommended."""
NEGLIGIBLE = 1e-3
"""Discount below which later rewards are neglected."""


def is_placeholder(label: str) -> bool:
    """Return whether the label stands for an action that was not recorded."""
    return label.strip().lower() in PLACEHOLDERS


def unseen(patients: CurrentStates, logged: Transitions) -> list[str]:
    """Return a sentence for each subject that names columns with a level, or a constant's value, new to the log."""
    real = logged.real
    levels = {place for place, _ in logged.schema.categories}
    columns: list[list[str]] = [[] for _ in patients.names]
    for place, name in enumerate(logged.state_names):
        values = real.state[:, place].unique()
        if place not in levels and len(values) > 1:
            continue
        is_new = ~torch.isin(patients.state[:, place], values.to(patients.state))
        for subject in is_new.nonzero()[:, 0].tolist():
            columns[subject].append(name)
    return [f"no training subject had the value of {', '.join(names)}" if names else "" for names in columns]


def out_of_range(patients: CurrentStates, logged: Transitions) -> list[str]:
    """Return a sentence for each subject that names numbers below or above those of all training subjects."""
    state = logged.real.state
    low, high = state.amin(0), state.amax(0)
    outside = (patients.state < low.to(patients.state)) | (patients.state > high.to(patients.state))
    outside[:, [place for place, _ in logged.schema.categories]] = False
    columns = [[logged.state_names[i] for i in row.nonzero()[:, 0].tolist()] for row in outside]
    return [f"{', '.join(names)} outside the training subjects' range" if names else "" for names in columns]


def returns_of(logged: Transitions, task: Task | None, by_q: bool) -> ReturnRange:
    """Return the range of possible values: of rollouts up to the task's horizon or, `by_q`, of a discounted Q function.

    A Q function extends beyond the end of the log where records stop without an outcome.
    """
    length = int(logged.real.step.max()) + 1 if len(logged.real) else 1
    horizon = max(length, 0 if task is None else task.horizon)
    discount = task.discount if by_q and task is not None else 1.0
    if 0 < discount < 1 and bool(logged.truncated.any()):
        horizon = max(horizon, math.ceil(math.log(NEGLIGIBLE) / math.log(discount)))
    declared = getattr(task, "reward_range", None) or logged.schema.knowledge.reward_range
    return possible_returns(logged, discount, declared, horizon)


def impossible(values: Float[Tensor, "n actions"], possible: ReturnRange) -> str:
    """Return a sentence on the number of subjects with values outside the possible returns; empty where none has."""
    outside = [not all(possible.holds(value) for value in row) for row in values.tolist()]
    if not any(outside):
        return ""
    return (
        f"values of {sum(outside)} of {len(outside)} subjects lay outside the returns that an episode can have"
        f" ({possible}) and were clipped to this range"
    )
