"""The search on the command line: continuous doses from a table to a recommendation, with what is known declared."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import counterpoint as cp
from counterpoint.cli.column_flags import Columns
from counterpoint.policies.recommendation import WITHHELD
from counterpoint.run import Run
from helpers.cli import command, kill_and_resume
from helpers.search_commands import FIT, TABLE


def table(path: Path) -> Path:
    """A dose lowers lactate, which is best at 1; every third subject dies."""
    random, rows = np.random.default_rng(0), []
    for subject in range(30):
        level = random.normal(2, 1)
        for t in range(8):
            dose = random.uniform(0, 4)
            after = 0.8 * level - 0.3 * dose + 1 + 0.1 * random.normal()
            rows.append((f"p{subject}", t, level, dose, -abs(after - 1), t == 7 and subject % 3 == 0))
            level = after
    pd.DataFrame(rows, columns=["id", "t", "lactate", "dose", "r", "died"]).to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("search")
    data = table(folder / "log.csv")
    words = ["--run", folder / "run", "--data", data, *TABLE, "--last", "truncate", "--bounds", "lactate=-20,20"]
    command("fit", *words, *FIT)
    command("train", "--run", folder / "run", "--method", "search")
    return folder / "run"


def test_a_table_of_continuous_doses_gives_a_rule_and_recommendations(run: Path, tmp_path: Path, capsys) -> None:
    policy = Run(run).policy
    assert policy.explain().startswith("dose = ")  # pyright: ignore[reportAttributeAccessIssue]
    low, high = (float(policy.act([level])[0]) for level in (0.5, 3.0))
    assert low < high
    new = pd.DataFrame({"id": ["near", "far"], "t": [0, 0], "lactate": [2.0, 19.0]})
    new.to_csv(tmp_path / "new.csv", index=False)
    command("recommend", "--run", run, "--data", tmp_path / "new.csv", "--out", tmp_path / "advice.csv")
    told = pd.read_csv(tmp_path / "advice.csv").set_index("subject")
    assert told.loc["near", "dose"] == pytest.approx(float(policy.act([2.0])[0]), rel=1e-4)
    assert 0 < told.loc["near", "support"] < 0.6
    assert told.loc["far", "recommended"] == WITHHELD
    assert "unlike every subject" in told.loc["far", "why"]


def test_what_was_declared_is_kept_in_the_run(run: Path) -> None:
    assert Run(run).data.schema.knowledge == cp.Knowledge(bounds=(("lactate", -20.0, 20.0),))
    drawn = Run(run).scm.sample(torch.full((50, 1), 19.99), torch.full((50, 1), 0.1), torch.Generator().manual_seed(0))
    assert drawn.max() <= 20


def test_nobody_is_given_a_dose_that_nobody_alike_was(run: Path) -> None:
    """In the log of this test only low doses were given where lactate is high."""
    logged = Run(run).training
    some = logged[(logged.state[:, 0] < 1.5) | (logged.action[:, 0] < 1.0)]
    advice = cp.recommend(Run(run).policy, pd.DataFrame({"id": ["a"], "t": [0], "lactate": [2.5]}), some).advice[0]
    assert (advice.action, advice.label) == (None, WITHHELD)
    assert "or about as much, was given to nobody like this subject" in advice.why


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"bounds": ("HR",)}, "--bounds HR is not understood; give COLUMN=LOWEST,HIGHEST"),
        ({"bounds": ("HR=1,2,3",)}, "--bounds HR=1,2,3 is not understood"),
        ({"bounds": ("=1,2",)}, "--bounds =1,2 names no column"),
        ({"circles": ("a",)}, "--circles a is not understood; give COSINE,SINE"),
    ],
)
def test_declarations_that_say_nothing_are_refused(flags: dict[str, tuple[str, ...]], said: str) -> None:
    columns = Columns("id", "t", ("HR",), ("dose",), "r", **flags)  # pyright: ignore[reportArgumentType]
    with pytest.raises(cp.CounterpointError, match=said):
        columns.layout()


def test_flags_become_declarations() -> None:
    flags = {"bounds": ("HR=0,300",), "whole": ("n",), "circles": ("c,s",), "mirror": ("HR", "dose")}
    layout = Columns("id", "t", ("HR", "n", "c", "s"), ("dose",), "r", **flags).layout()  # pyright: ignore[reportArgumentType]
    assert layout.knowledge == cp.Knowledge((("HR", 0.0, 300.0),), ("n",), (("c", "s"),), ("HR", "dose"))


def test_a_killed_search_resumes_to_the_same_policy(run: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    shutil.copytree(run, again)
    shutil.rmtree(again / "checkpoints")
    program = ["train", "--run", str(again), "--method", "search", "--save-seconds", "0"]
    kill_and_resume(program, [], again / "checkpoints" / "*search.checkpoint.safetensors")
    assert torch.equal(Run(again).policy.weights()["numbers"], Run(run).policy.weights()["numbers"])
