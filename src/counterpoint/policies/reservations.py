"""What speaks against a recommendation: a subject unlike the training subjects, and impossible values."""

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

UNLIKE = "unlike every subject of the log, so nothing can be said"
PLACEHOLDERS = {"", "?", "-", "n/a", "na", "nan", "null", "missing", "unknown", "not recorded"}
"""Words that stand for an action which was not recorded; nobody can be given one."""
NEGLIGIBLE = 1e-3
"""Discount below which later rewards no longer count."""


def is_placeholder(label: str) -> bool:
    return label.strip().lower() in PLACEHOLDERS


def unseen(patients: CurrentStates, logged: Transitions) -> list[str]:
    """For each subject which columns hold what no training subject had: a level, or another value of a constant."""
    real = logged.real
    levels = {place for place, _ in logged.schema.categories}
    found: list[list[str]] = [[] for _ in patients.names]
    for place, name in enumerate(logged.state_names):
        values = real.state[:, place].unique()
        if place not in levels and len(values) > 1:
            continue
        strange = ~torch.isin(patients.state[:, place], values.to(patients.state))
        for subject in strange.nonzero()[:, 0].tolist():
            found[subject].append(name)
    return [f"no training subject had the value of {', '.join(names)}" if names else "" for names in found]


def out_of_range(patients: CurrentStates, logged: Transitions) -> list[str]:
    """For each subject which numbers lie below or above all of the training subjects'."""
    state = logged.real.state
    low, high = state.amin(0), state.amax(0)
    outside = (patients.state < low.to(patients.state)) | (patients.state > high.to(patients.state))
    outside[:, [place for place, _ in logged.schema.categories]] = False
    names = [[logged.state_names[i] for i in row.nonzero()[:, 0].tolist()] for row in outside]
    return [f"{', '.join(own)} outside the training subjects' range" if own else "" for own in names]


def returns_of(logged: Transitions, task: Task | None, by_q: bool) -> ReturnRange:
    """The returns that values may have: of rollouts up to the task's horizon, or of a Q function, which discounts.

    A Q function looks beyond the end of the log where records stop without an outcome.
    """
    length = int(logged.real.step.max()) + 1 if len(logged.real) else 1
    horizon = max(length, 0 if task is None else task.horizon)
    discount = task.discount if by_q and task is not None else 1.0
    if 0 < discount < 1 and bool(logged.truncated.any()):
        horizon = max(horizon, math.ceil(math.log(NEGLIGIBLE) / math.log(discount)))
    declared = getattr(task, "reward_range", None) or logged.schema.knowledge.reward_range
    return possible_returns(logged, discount, declared, horizon)


def impossible(values: Float[Tensor, "n actions"], possible: ReturnRange) -> str:
    """How many subjects have values outside the possible returns, in a sentence; empty where none has."""
    wrong = [not all(possible.holds(value) for value in row) for row in values.tolist()]
    if not any(wrong):
        return ""
    return (
        f"values of {sum(wrong)} of {len(wrong)} subjects lay outside the returns that an episode can have ({possible})"
        " and are given as its nearer end"
    )
