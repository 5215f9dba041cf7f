"""Levels are those of training subjects: one that only held-out subjects have is refused, a dose is noted."""

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import counterpoint as cp
from counterpoint.data.doses import Bins
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import held_out_subjects
from counterpoint.policies.base import Policy
from counterpoint.policies.recommendation import WITHHELD, recommend

SHAPES = False
SUBJECTS = 30


def table(subjects: int = SUBJECTS, steps: int = 4) -> pd.DataFrame:
    random = np.random.default_rng(0)
    rows = [
        (f"p{s:02d}", t, "ab"[s % 2], s % 3 % 2, round(random.normal(), 3), float(random.integers(0, 3)), -1.0)
        for s in range(subjects)
        for t in range(steps)
    ]
    return pd.DataFrame(rows, columns=["id", "t", "ward", "flag", "x", "dose", "r"])


def read(frame: pd.DataFrame, **more: Any) -> cp.Transitions:
    given = {"state": ["ward", "flag", "x"], "action": "dose", "last": "truncate", "held_out": 0.2, **more}
    return cp.from_dataframe(frame, subject="id", time="t", reward="r", **given)


def aside() -> list[str]:
    """The ids of the held-out subjects."""
    rows = read(table())
    return [rows.subject_names[i] for i in held_out_subjects(rows.subject, 0.2, 0).tolist()]


def test_a_level_that_only_held_out_subjects_have_is_refused() -> None:
    frame = table()
    frame.loc[frame.id == aside()[0], "ward"] = "secret"
    with pytest.raises(cp.CounterpointError, match="column 'ward' has 1 level that only held-out") as refused:
        read(frame)
    assert "secret" not in str(refused.value)
    assert "--categorical ward=" in str(refused.value)
    declared = read(frame, categorical={"ward": ["a", "b", "secret"], "flag": ["0", "1"]})
    assert declared.schema.states[0].levels == ("a", "b", "secret")


def test_a_flag_that_only_held_out_subjects_have_is_refused_or_declared_a_number() -> None:
    frame = table()
    frame["flag"] = (frame.id == aside()[0]).astype(int)
    with pytest.raises(cp.CounterpointError, match="'flag' has 1 level that only held-out"):
        read(frame)
    assert read(frame, numeric=["flag"]).schema.states[1].levels == ()


@pytest.mark.filterwarnings("ignore:.*on fewer than 10 rows")
def test_a_level_in_the_last_row_of_a_training_subject_is_known() -> None:
    """That row is dropped, but it is the next state of the row before."""
    frame, out = table(), aside()
    own = next(name for name in frame.id.unique() if name not in out)
    frame.loc[(frame.id == own) & (frame.t == 3), "ward"] = "c"
    assert read(frame).schema.states[0].levels == ("a", "b", "c")


def test_a_treatment_that_only_held_out_subjects_were_given_is_refused() -> None:
    frame = table()
    frame["dose"] = np.where(frame.dose > 1, "iron", "none")
    frame.loc[frame.id == aside()[0], "dose"] = "secret"
    with pytest.raises(cp.CounterpointError, match="'dose' has 1 level that only held-out"):
        read(frame)
    with pytest.warns(cp.CounterpointWarning, match="doses that no training subject"):
        declared = read(frame, labels=["none", "iron", "secret"])
    assert declared.actions.count == 3  # pyright: ignore[reportAttributeAccessIssue]


def test_a_dose_that_only_held_out_subjects_were_given_is_noted() -> None:
    frame = table()
    frame.loc[frame.id == aside()[0], "dose"] = 7.0
    with pytest.warns(cp.CounterpointWarning, match="3 rows of held-out subjects have doses that no training subject"):
        read(frame)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read(table())


class Always(Policy):
    """A policy that takes the same dose in every state."""

    def __init__(self, schema: cp.data.Schema, dose: float) -> None:
        super().__init__()
        self.schema, self.dose, self.recipe, self.origin = schema, dose, None, None

    def act(self, state: Any, theta: Any = None) -> Any:
        return torch.full((len(state), 1), self.dose)

    def actor(self) -> Any:
        raise NotImplementedError

    def rollout_actor(self, others: Any = ()) -> Any:
        raise NotImplementedError

    def weights(self) -> dict[str, torch.Tensor]:
        return {}


def test_a_dose_that_only_held_out_subjects_were_given_is_never_recommended() -> None:
    """As one of a few amounts it is an action of the schema, but without support among the training subjects."""
    frame = table(subjects=100)
    out = [read(frame).subject_names[i] for i in held_out_subjects(read(frame).subject, 0.2, 0).tolist()]
    frame.loc[frame.id.isin(out), "dose"] = 7.0
    with pytest.warns(cp.CounterpointWarning, match="have doses that no training subject"):
        rows = read(frame)
    training, _ = rows.split(0.2, 0)
    new = frame[frame.id.isin(out)]
    for advice in recommend(Always(rows.schema, 7.0), new, training).advice:
        assert advice.label == WITHHELD
        assert advice.action is None
        assert advice.supports.get("7", 0.0) == 0.0


def test_a_range_of_doses_that_only_held_out_subjects_have_is_no_bin() -> None:
    """Training doses are 1, 2 and 3, held-out ones 100: no bin holds them, and no action is near them."""
    frame = table(subjects=100)
    frame["dose"] = 1.0 + frame["t"]
    out = [read(frame).subject_names[i] for i in held_out_subjects(read(frame).subject, 0.2, 0).tolist()]
    frame.loc[frame.id.isin(out), "dose"] = 100.0
    quantiles = (Bins(count=2, zero=False), ((1.0,), (2.5,)), ((1.0, 1.0), (2.0, 3.0)))
    cuts = (Bins(cuts=(2.5, 50.0), zero=False), ((1.5,), (3.0,)), ((1.0, 2.0), (3.0, 3.0)))
    for bins, doses, spans in (quantiles, cuts):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            schema = read(frame, actions=bins).schema
        assert isinstance(schema.actions, Discrete)
        assert schema.actions.values == doses
        assert schema.doses[0].spans == spans
