"""Policies near practice with a tilt by hand, and a log of doses that differ between subjects."""

import warnings
from typing import Any

import numpy as np
import pandas as pd
import torch

import counterpoint as cp
from counterpoint.data.jobs import Origin
from counterpoint.learners.near_practice import NearPractice
from counterpoint.learners.practice import Practice
from counterpoint.policies.near_practice import NearPracticePolicy
from counterpoint.tasks.base import Task
from helpers.search import DRIFT, MODEL_RECIPE

RECIPE = NearPractice(model=MODEL_RECIPE, practice=Practice(trees=5, folds=2))


def near_practice(rows: cp.Transitions, share: float, number: float, task: Task = DRIFT) -> NearPracticePolicy:
    """A tilt by one number in every column."""
    practice = RECIPE.practice.fit(rows, task)
    weights: dict[str, Any] = {"mean": rows.state.mean(0), "spread": rows.state.std(0), "share": torch.tensor(share)}
    width = rows.action.shape[1]
    weights |= {"drawn": torch.tensor(0.0)}
    weights |= {"numbers": torch.full(((rows.state.shape[1] + 1) * width,), number), "offset": torch.zeros(width)}
    return NearPracticePolicy(RECIPE, practice, weights, rows.schema, Origin(0, "", ""), ("by hand",))


HOURS = 12


def ward(subjects: int = 30) -> pd.DataFrame:
    """Doses that rise with lactate; subjects are given a third, the same or three times as much."""
    random = np.random.default_rng(0)
    table = pd.DataFrame({"id": np.repeat(np.arange(subjects), HOURS), "t": np.tile(np.arange(HOURS), subjects)})
    table["lactate"] = random.uniform(1, 5, len(table)).round(2)
    usual = table["lactate"] * 3.0 ** (table["id"] % 3 - 1)
    table["dose"] = (usual * np.exp(0.1 * random.normal(size=len(table)))).round(3)
    table["reward"] = -table["lactate"]
    return table


ROLES: dict[str, Any] = {"subject": "id", "time": "t", "action": ["dose"], "state": ["lactate"], "reward": "reward"}


def dosed_rows() -> cp.Transitions:
    """The ward as rows."""
    with warnings.catch_warnings(action="ignore"):
        return cp.from_dataframe(ward(), **ROLES, last="truncate")
