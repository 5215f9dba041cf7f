"""A declared range of rewards: kept with the table, held by the learned reward, and refused where the log breaks it."""

from pathlib import Path

import pandas as pd
import pytest
import torch

import counterpoint as cp
from counterpoint.cli.column_flags import Columns
from counterpoint.cli.run import _flags
from helpers.cli import command
from helpers.recipes import BRIEF

SHAPES = False
ROLES = {"subject": "id", "time": "t", "state": ["x"], "action": "dose", "reward": "r", "last": "truncate"}
FLAGS = ("--subject", "id", "--time", "t", "--state", "x", "--action", "dose", "--reward", "r", "--last", "truncate")


def log(subjects: int = 12) -> pd.DataFrame:
    """Rewards from −4 to 0."""
    rows = [(f"p{i}", t, 0.1 * i - t, (i + t) % 2, -float((i + t) % 5)) for i in range(subjects) for t in range(5)]
    return pd.DataFrame(rows, columns=["id", "t", "x", "dose", "r"])


def declared(low: float, high: float) -> cp.Transitions:
    return cp.from_dataframe(log(), **ROLES, knowledge=cp.Knowledge(reward_range=(low, high)))  # pyright: ignore[reportArgumentType]


def test_a_table_carries_the_declared_range_of_its_rewards(tmp_path: Path) -> None:
    rows = declared(-10.0, 0.0)
    cp.write(rows, tmp_path / "rows.parquet")
    assert cp.read(tmp_path / "rows.parquet").schema.knowledge.reward_range == (-10.0, 0.0)
    with pytest.raises(cp.CounterpointError, match="begins above its end"):
        cp.Knowledge(reward_range=(1.0, 0.0))


def test_a_logged_reward_outside_the_declared_range_is_refused_without_its_value() -> None:
    with pytest.raises(cp.CounterpointError) as refused:
        declared(-3.0, 0.0)
    assert str(refused.value) == (
        "9 rewards in 'r' are outside the declared range -3 to 0; correct the rows or the declaration"
    )
    with pytest.raises(cp.CounterpointError, match="outside the declared range"):
        cp.Outcome(hidden=(8,), likelihood=BRIEF, reward_range=(-3.0, 0.0)).fit(declared(-4.0, 0.0))


def test_learned_rewards_are_held_to_the_declared_range() -> None:
    rows = declared(-4.0, 0.0)
    task = cp.Outcome(hidden=(8,), likelihood=BRIEF).fit(rows)
    wider = cp.Outcome(hidden=(8,), likelihood=BRIEF, reward_range=(-5.0, 1.0)).fit(rows)
    assert (task.reward_range, wider.reward_range) == ((-4.0, 0.0), (-5.0, 1.0))
    far = torch.linspace(-1e4, 1e4, 50)[:, None]
    reward = task.reward(far, torch.ones_like(far), far)
    branches = task.branches(far, torch.ones_like(far), far)[1]
    for found in (reward, branches):
        assert float(found.min()) >= -4.0
        assert float(found.max()) <= 0.0
    free = cp.Outcome(hidden=(8,), likelihood=BRIEF).fit(cp.from_dataframe(log(), **ROLES))  # pyright: ignore[reportArgumentType]
    assert free.reward_range is None
    assert float(free.reward(far, torch.ones_like(far), far).abs().max()) > 4.0


def test_the_command_line_declares_the_range_of_rewards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    roles = {"subject": "id", "time": "t", "state": ("x",), "action": ("dose",), "reward": "r"}
    assert Columns(**roles, reward_range="-4:0").layout().knowledge.reward_range == (-4.0, 0.0)  # pyright: ignore[reportArgumentType]
    assert list(_flags({"reward_range": "-4:0"})) == ["--reward-range", "-4:0"]
    with pytest.raises(cp.CounterpointError, match="--reward-range -4 is not understood; give LOWEST:HIGHEST"):
        Columns(**roles, reward_range="-4").layout()  # pyright: ignore[reportArgumentType]
    log().to_csv(tmp_path / "log.csv", index=False)
    for words in (("--data", tmp_path / "log.csv", *FLAGS, "--reward-range", "-3:0"), ("--reward-range", "-3:0")):
        with pytest.raises(SystemExit) as stopped:
            command("fit", "--run", tmp_path / "run", *words)
        said = capsys.readouterr().err.strip()
        assert stopped.value.code == 2
        assert "outside the declared range" in said or "give --data too" in said
        assert "\n" not in said


def test_a_table_that_counterpoint_wrote_takes_the_declaration_too(tmp_path: Path) -> None:
    cp.write(declared(-9.0, 0.0), tmp_path / "rows.parquet")
    rows = Columns(reward_range="-5:1").read(tmp_path / "rows.parquet", 0.0, 0)
    assert rows.schema.knowledge.reward_range == (-5.0, 1.0)
    with pytest.raises(cp.CounterpointError, match="outside the declared range"):
        Columns(reward_range="-1:1").read(tmp_path / "rows.parquet", 0.0, 0)
