"""A reward that is declared as an expression of columns is computed, and nothing else is accepted as one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import counterpoint as cp
from counterpoint.cli.column_flags import Columns
from counterpoint.cli.fit import Fit
from counterpoint.cli.main import parse_options
from counterpoint.cli.run import _flags  # pyright: ignore[reportPrivateUsage]
from counterpoint.data.reward_expression import parse_reward
from helpers.recipes import BRIEF

NAMES = ("x", "heart rate"), ("dose",), ("died",)
STATE = torch.tensor([[1.0, 60.0], [-2.0, 130.0], [4.0, 90.0]])
ACTION = torch.tensor([[0.5], [1.0], [2.0]])
AFTER = torch.tensor([[3.0, 50.0], [5.0, 140.0], [-1.0, 100.0]])
DIED = torch.tensor([[0.0], [1.0], [0.0]])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-(x - 1)**2 / 2 - 0.1*dose", [-0.05, -4.6, -4.7]),
        ("next x - x", [2, 7, -5]),
        ("-abs(next `heart rate` - 100) - 50*died", [-50, -90, 0]),
        ("where(`heart rate` > 100, -1, 0) + (0 < x < 3)", [1, -1, 0]),
        ("x if x >= 1 else 2.5e1*dose", [1, 25, 4]),
        ("max(x, 0, dose) + min(x, 0)", [1, -1, 4]),
        ("sqrt(exp(log(dose)))*2 != 2", [1, 0, 1]),
        ("+dose == .5", [1, 0, 0]),
    ],
)
def test_what_expressions_mean(text: str, expected: list[float]) -> None:
    got = parse_reward(text).evaluate(NAMES, STATE, ACTION, AFTER, DIED)
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float32))
    wide = [table.expand(2, 3, -1) for table in (STATE, ACTION, AFTER, DIED)]
    assert torch.equal(parse_reward(text).evaluate(NAMES, *wide), got.expand(2, 3))


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('ls')", "x.__class__", "x[0]", "(lambda: x)()", "[x]", "x and dose", "open(x)",
        "abs(x, x)", "max(x)", "where(x, 1)", "'x' + x", "x @ x", "x // 2", "x % 2", "~x", "x := 2", "x +", "1e300*x",
        "max(*x)", "abs(x=1)", "x is x", "9**9**9**9", "2x + 1", "(" * 300 + "x" + ")" * 300, "1j*x", "1 + 1",
    ],
)  # fmt: skip
def test_nothing_else_is_an_expression(text: str) -> None:
    with pytest.raises(cp.CounterpointError, match=r"is neither a column nor an expression|reads no column"):
        parse_reward(text)


def test_names_are_columns_of_imagined_rows() -> None:
    parse_reward("x + dose + next x + died").check_names(*NAMES)
    with pytest.raises(cp.CounterpointError, match="reads 'age', and 'age' is not a column of the state, an action"):
        parse_reward("x + age").check_names(*NAMES)
    with pytest.raises(cp.CounterpointError, match="reads 'next dose', and 'dose' is not a state column"):
        parse_reward("x + next dose").check_names(*NAMES)


def log(subjects: int = 8, rows: int = 15) -> pd.DataFrame:
    random = np.random.default_rng(0)
    size = subjects * rows
    died = np.zeros(size, dtype=int)
    died[rows - 1 :: 2 * rows] = 1
    return pd.DataFrame(
        {
            "id": np.repeat(np.arange(subjects), rows), "t": np.tile(np.arange(rows), subjects),
            "x": random.normal(size=size), "ward": random.choice(["a", "b"], size), "dose": random.integers(0, 3, size),
            "died": died, "r": random.normal(size=size),
        }
    )  # fmt: skip


ROLES: dict[str, Any] = {
    "subject": "id", "time": "t", "state": ["x", "ward"], "action": "dose", "done": "died", "last": "truncate"
}  # fmt: skip
LOG = log()


def test_the_declared_reward_is_computed_in_the_log_and_by_the_learned_task(tmp_path: Path) -> None:
    text = "-x**2 - 0.1*dose - 50*died"
    rows = cp.from_dataframe(LOG, **ROLES, reward=text)
    died = rows.terminated.float()
    expected = -(rows.state[:, 0] ** 2) - 0.1 * rows.action[:, 0] - 50 * died
    torch.testing.assert_close(rows.reward, expected)
    assert rows.schema.knowledge.reward == text
    assert died.sum() == 4
    task = cp.Outcome(likelihood=BRIEF).fit(rows)
    task.save(tmp_path / "task")
    loaded = cp.load(tmp_path / "task")
    assert isinstance(loaded, type(task))
    state, action = torch.randn(5, 2).abs().floor().clamp(max=1), torch.tensor([[0.0], [1.0], [2.0], [0.0], [1.0]])
    for learned in (task, loaded):
        alive = -(state[:, 0] ** 2) - 0.1 * action[:, 0]
        torch.testing.assert_close(learned.reward(state, action, state + 1), alive)
        _, reward = learned.branches(state, action, state)
        torch.testing.assert_close(reward, torch.stack([alive - 50, alive - 50, alive], 1))


def test_a_reward_of_the_next_row_needs_one() -> None:
    with pytest.raises(cp.CounterpointError, match="reads next values, and 4 rows that end an episode have none"):
        cp.from_dataframe(LOG, **ROLES, reward="-next x")
    without_ends: dict[str, Any] = {**ROLES, "done": ()}
    rows = cp.from_dataframe(LOG, **without_ends, reward="-(next x)")
    torch.testing.assert_close(rows.reward, -rows.next_state[:, 0])
    task = cp.Outcome(likelihood=BRIEF).fit(rows)
    torch.testing.assert_close(task.reward(rows.state, rows.action, rows.next_state), rows.reward)


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ("rr", "column 'rr' is not in the table; did you mean 'r'"),
        ("-age", "reads 'age', and 'age' is not a column of the state"),
        ("log(x)", "is not a finite number in .* rows; keep logarithms"),
        ("-(x", "the reward .* is neither a column nor an expression"),
        ("x + ward", "'ward' is a category, and only of numbers can more be declared"),
    ],
)
def test_rewards_that_cannot_be_computed_are_refused(reward: str, message: str) -> None:
    with pytest.raises(cp.CounterpointError, match=message):
        cp.from_dataframe(LOG, **ROLES, reward=reward)


def test_a_column_of_that_name_is_the_reward() -> None:
    rows = cp.from_dataframe(LOG.rename(columns={"r": "x - dose"}), **ROLES, reward="x - dose")
    assert rows.schema.knowledge.reward == ""
    torch.testing.assert_close(rows.reward, cp.from_dataframe(LOG, **ROLES, reward="r").reward)


def test_rows_with_other_rewards_are_refused() -> None:
    rows = cp.from_dataframe(LOG, **ROLES, reward="-x")
    with pytest.raises(cp.CounterpointError, match="the reward of 116 rows is not '-x', as declared"):
        cp.Outcome(likelihood=BRIEF).fit(replace(rows, reward=rows.reward + 1))


def test_expressions_on_the_command_line_and_in_study_files() -> None:
    text = "-abs(x)"
    words = ["--data", "t.csv", "--run", "r", *_flags({"subject": "id", "reward": text})]
    assert parse_options(Fit, words, "fit").columns.reward == text
    assert Columns(subject="id", time="t", state=("x",), action=("dose",), reward=text).layout().reward == text
