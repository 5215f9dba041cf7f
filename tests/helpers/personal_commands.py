"""What `test_personal_commands.py` shares with other test modules."""

import numpy as np
import pandas as pd
import pytest

from helpers.cli import command

TABLE = ["--subject", "id", "--time", "t", "--state", "sex", "x", "--action", "dose", "--reward", "r"]

EFFECTS = ["scm:random-effects", "--scm.ensemble", "2", "--scm.factors", "1", "--scm.schedule.steps", "50"]


def table(subjects: int = 40, steps: int = 8, seed: int = 0, late: bool = False) -> pd.DataFrame:
    """A dose raises x in every second subject and lowers it in the others, at once or a step late; x is best at 0."""
    random, rows = np.random.default_rng(seed), []
    for subject in range(subjects):
        x, before = random.normal(0, 1), 1
        for t in range(steps):
            dose = int(random.integers(0, 3))
            rows.append((f"p{subject}", t, "f" if subject % 3 else "m", round(x, 4), dose, round(-x * x, 4)))
            acts, before = before if late else dose, dose
            x = 0.7 * x + (1 if subject % 2 else -1) * 0.6 * (acts - 1) + 0.1 * random.normal()
    return pd.DataFrame(rows, columns=["id", "t", "sex", "x", "dose", "r"])


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        command(*words)
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line
