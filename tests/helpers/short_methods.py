"""Every method of `train` for a few updates, and a run that all of them can learn from."""

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pandas as pd
import pytest

from counterpoint.cli import train
from counterpoint.learners.methods import named_methods
from counterpoint.nets.training import Schedule
from helpers.cli import command
from helpers.personal_commands import EFFECTS, TABLE, table

UPDATES = 10


def shortened(recipe: Any) -> Any:
    """The same recipe with few updates wherever one has a schedule."""
    if isinstance(recipe, Schedule):
        fewer = min(recipe.steps, UPDATES)
        return replace(recipe, steps=fewer, check_every=min(recipe.check_every, fewer // 2))
    if not is_dataclass(recipe) or isinstance(recipe, type):
        return recipe
    inner = {field.name: getattr(recipe, field.name) for field in fields(recipe) if field.init}
    return replace(recipe, **{name: shortened(value) for name, value in inner.items() if is_dataclass(value)})


def sizes(method: str) -> list[str]:
    """Flags that make a method short."""
    if method in train.SEARCHED:
        return ["--rounds", "2", "--restarts", "1", "--horizon", "4"]
    return ["--steps", "10", "--check-every", "5", "--hidden", "8", "--batch", "16"] if train.learns_q(method) else []


@pytest.fixture(scope="module")
def short_methods() -> Iterator[None]:
    """The models that methods fit themselves are trained for a few updates."""
    with patch.object(
        train, "named_methods", lambda learner: {k: shortened(v) for k, v in named_methods(learner).items()}
    ):
        yield


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a model of random effects, which every method takes, and imagined rows."""
    run = fitted_run(tmp_path_factory.mktemp("short"), table(24, 6))
    command("augment", "--run", run)
    return run


def fitted_run(folder: Path, log: pd.DataFrame, roles: Sequence[str] = TABLE) -> Path:
    """A run with a model of random effects of a log."""
    log.assign(sex=(log["sex"] == "f").astype(int)).to_csv(folder / "log.csv", index=False)
    words = ["--run", folder / "run", "--data", folder / "log.csv", *roles, "--last", "truncate"]
    command("fit", *words, "--numeric", "sex", *EFFECTS)
    return folder / "run"
