"""Records as users have them: a small ward with numbers, words, flags and doses, a row every four hours."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from counterpoint.core.errors import CounterpointError, CounterpointWarning
from counterpoint.data.tables.dataframe import from_dataframe
from counterpoint.data.transitions import Transitions

ROLES: dict[str, Any] = {
    "subject": "id",
    "time": "hour",
    "state": ["lactate", "age", "vent", "sex", "unit"],
    "action": "drug",
    "reward": "r",
    "done": "died",
    "last": "drop",
}
STEPS = 6


def ward(subjects: int = 24, seed: int = 0) -> pd.DataFrame:
    """Two numbers, one of them static; a 0/1 column; two columns of words, one static; doses; every third one dies."""
    random, count = np.random.default_rng(seed), subjects * STEPS
    who = np.repeat(np.arange(subjects), STEPS)
    dose, fluid = (np.where(random.random(count) < 0.3, 0.0, random.gamma(2.0, 1.0, count)) for _ in range(2))
    return pd.DataFrame(
        {
            "id": [f"p{i:02d}" for i in who],
            "hour": np.tile(4 * np.arange(STEPS), subjects),
            "lactate": random.normal(2.0, 1.0, count),
            "age": random.normal(60.0, 9.0, subjects)[who],
            "vent": random.integers(0, 2, count),
            "sex": np.array(["m", "f"])[np.arange(subjects) % 2][who],
            "unit": random.choice(["er", "home", "icu"], count),
            "drug": random.choice(["iron", "none", "salt"], count),
            "dose": dose,
            "fluid": fluid,
            "r": random.normal(size=count),
            "died": (np.arange(count) % STEPS == STEPS - 1) & (who % 3 == 0),
        }
    )


def load(table: Any = None, **changes: Any) -> Transitions:
    return from_dataframe(ward() if table is None else table, **{**ROLES, **changes})


def noted(table: Any = None, **changes: Any) -> tuple[Transitions, list[str]]:
    """The rows, and what was said of them."""
    with pytest.warns(CounterpointWarning) as said:
        rows = load(table, **changes)
    return rows, [str(warning.message) for warning in said]


def refused(call: Callable[[], object]) -> str:
    """The one line of a refusal."""
    with pytest.raises(CounterpointError) as caught:
        call()
    message = str(caught.value)
    assert message
    assert "\n" not in message
    return message
