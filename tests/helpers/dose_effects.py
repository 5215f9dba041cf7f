"""A log of doses whose effects over several steps are known, and which a linear law of single steps gets wrong.

    level' = .7·level + 2·meal² − κ·(board + dose) / weight + base + e,    board' = .6·(board + dose)
    dose = weight·max(.6·level + .8·meal² + .3 + habit + e', 0) / 60

Meals are announced, and the weight is static. The dose follows the level and the square of the meal, so that a line in
the meal leaves part of the reason for the dose to the effect of the dose. κ, base and habit differ between subjects.
"""

from dataclasses import replace

import numpy as np
import torch

import counterpoint as cp
from counterpoint.data.knowledge import Knowledge, Recursion
from counterpoint.data.schema import Column, Schema
from helpers.dosing import log_of

KAPPA, DECAY, MEAL, BOARD = 24.0, 0.7, 2.0, 0.6
STATES = ("level", "board", "meal", "weight")
KNOWLEDGE = Knowledge(
    exogenous=("meal",),
    recursions=(Recursion("board", (("board", BOARD), ("dose", BOARD))),),
    signs=(("dose", "level", -1),),
    per=(("dose", "weight"),),
)


def true_effect(step: int) -> float:
    """The mean change of the level after some steps for one unit of dose / weight, later doses held."""
    level, board = -KAPPA, BOARD
    for _ in range(step - 1):
        level, board = DECAY * level - KAPPA * board, BOARD * board
    return level


def known_effects_log(subjects: int = 25, steps: int = 40, seed: int = 0) -> cp.Transitions:
    """A log with everything declared that is known of its columns."""
    random = np.random.default_rng(seed)
    weight = random.uniform(45, 100, subjects)
    kappa, habit, base = (_spread_evenly(random.normal(size=subjects)) for _ in range(3))
    kappa = KAPPA * (1 + 0.2 * kappa)
    meal = (random.random((steps + 1, subjects)) < 0.4) * random.uniform(0.3, 1.8, (steps + 1, subjects))
    wish, noise = 0.4 * random.normal(size=(steps, subjects)), 0.25 * random.normal(size=(steps, subjects))
    level, board = 0.5 * random.normal(size=subjects), np.zeros(subjects)
    state, dose, after = [], [], []
    for t in range(steps):
        wanted = weight / 60 * np.maximum(0.6 * level + 0.8 * meal[t] ** 2 + 0.3 + 0.1 * habit + wish[t], 0)
        state.append(np.stack([level, board, meal[t], weight], -1))
        dose.append(wanted[:, None])
        level = DECAY * level + MEAL * meal[t] ** 2 - kappa * (board + wanted) / weight + 0.2 * base + noise[t]
        board = BOARD * (board + wanted)
        after.append(np.stack([level, board, meal[t + 1], weight], -1))
    before, given, following = (
        torch.tensor(np.stack(table, 1).reshape(subjects * steps, -1)).float() for table in (state, dose, after)
    )
    subject = torch.arange(subjects).repeat_interleave(steps)
    columns = tuple(Column(name, static=name == "weight") for name in STATES)
    schema = Schema(columns, cp.Box((0.0,), (8.0,)), ("dose",), knowledge=KNOWLEDGE)
    return log_of(before, given, following, subject, schema=schema)


def without_roles(rows: cp.Transitions) -> cp.Transitions:
    """The same log as a table of which nothing is declared, and without the column of the dose on board."""
    kept = [STATES.index(name) for name in ("level", "meal", "weight")]
    schema = Schema(tuple(Column(STATES[i]) for i in kept), rows.actions, ("dose",))
    state, after = rows.state[:, kept], rows.next_state[:, kept]
    return replace(rows, schema=schema, state=state, next_state=after)


def _spread_evenly(values: np.ndarray) -> np.ndarray:
    """Values with mean 0 and standard deviation 1, so that the means over subjects are known."""
    return (values - values.mean()) / values.std()
