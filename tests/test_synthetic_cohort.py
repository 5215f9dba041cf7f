"""The synthetic cohort: the task's own rows in a hospital's table, read back by the printed line without a change."""

import json
import shlex
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import tyro

from counterpoint.cli.fit import Fit
from counterpoint.core.errors import CounterpointError
from counterpoint.data.tables.clock import changes
from counterpoint.data.transitions import Transitions
from counterpoint.sources.mimic.columns import CTRL46, DOSES
from reproduction.command import main
from reproduction.tasks.sepsis import DOSES as DRUGS
from reproduction.tasks.synthetic_cohort import SyntheticCohort

COHORT = SyntheticCohort(patients=120, seed=3)
LOG = COHORT.log()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cohort")
    main(["synthetic-cohort", "--out", str(folder / "cohort.parquet"), "--patients", "120", "--seed", "3"])
    return folder


@pytest.fixture(scope="module")
def table(folder: Path) -> pd.DataFrame:
    return pd.read_parquet(folder / "cohort.parquet")


def read_back(folder: Path) -> tuple[Transitions, Fit]:
    """The rows that the manifest's `counterpoint fit …` would learn from and hold out."""
    words = shlex.split(json.loads((folder / "cohort.json").read_text())["fit"])
    assert words[:2] == ["counterpoint", "fit"]
    fit = tyro.cli(Fit, args=words[2:])
    assert fit.data is not None
    assert fit.held_out is not None
    return fit.columns.read(fit.data, fit.held_out, fit.seed), fit


def test_the_printed_line_reads_the_task_s_own_rows(folder: Path) -> None:
    rows, _ = read_back(folder)
    for name in ("state", "action", "action_index", "reward", "outcome", "truncated", "subject", "step"):
        assert torch.equal(getattr(rows, name), getattr(LOG, name)), name
    assert torch.equal(rows.next_state.nan_to_num(-9e9), LOG.next_state.nan_to_num(-9e9))
    assert rows.outcome_names == LOG.outcome_names == ("died", "survived")
    assert rows.actions == COHORT.task.actions
    assert rows.state_names == COHORT.task.state_names
    assert rows.schema.static == COHORT.task.schema.static
    assert rows.schema.categories == COHORT.task.schema.categories
    assert Counter(rows.outcome.tolist()).keys() == {-1, 0, 1}


def test_the_truth_belongs_to_the_rows_that_were_read(folder: Path) -> None:
    """Patient i of the table is subject i of the task, in whose equation the log's noise gives the table's rows."""
    rows, _ = read_back(folder)
    known = rows.has_next
    assert rows.schema.computed == COHORT.task.schema.computed
    assert rows.schema.knowledge.whole == COHORT.task.schema.knowledge.whole
    own = COHORT.task.of_subjects(rows.subject[known])
    torch.testing.assert_close(
        own.transition(rows.state[known], rows.action[known], LOG.noise[known]), rows.next_state[known]
    )


def test_the_same_patients_are_held_out(folder: Path, table: pd.DataFrame) -> None:
    rows, fit = read_back(folder)
    assert fit.held_out is not None
    aside = rows.split(fit.held_out, fit.seed)[1].subject.unique().tolist()
    assert sorted(table["patient"][table["split"] == "held out"].unique()) == aside
    assert len(aside) == 24


def test_a_stay_ends_once_and_what_was_given_adds_up(table: pd.DataFrame) -> None:
    last = np.r_[changes(table["stay"].to_numpy())[1:], True]
    ends = table[["died", "survived", "truncated"]].to_numpy()
    assert (ends[last].sum(1) == 1).all()
    assert not ends[~last].any()
    assert (table["terminated"] == table["died"] | table["survived"]).all()
    assert (table.groupby("stay")["bloc"].diff().dropna() == 1).all()
    decided = table[~table["truncated"]]
    assert decided["bloc"].max() == COHORT.task.horizon
    assert (decided["action"] == 5 * decided["fluid_bin"] + decided["vaso_bin"]).all()
    for drug, code in zip(DRUGS, ("fluid_bin", "vaso_bin"), strict=True):
        assert (np.array(drug.doses)[decided[code].astype(int)] == decided[drug.name]).all()
        assert (drug.codes(decided[drug.name].to_numpy()) == decided[code]).all()
    first = table.groupby("stay").first()
    assert (first["input_total"] == first["input_4hourly"]).all()
    balance = table["input_total"] - table["output_total"]
    np.testing.assert_allclose(table["cumulated_balance"], balance, atol=1e-2)


def test_nothing_is_decided_where_a_record_stops(table: pd.DataFrame) -> None:
    stopped = table[table["truncated"]]
    assert (stopped["bloc"] == COHORT.task.horizon + 1).all()
    assert stopped[["input_4hourly", "max_dose_vaso", "action", "reward"]].isna().to_numpy().all()
    assert table[list(CTRL46)].notna().to_numpy().all()


def test_the_manifest_counts_the_table(folder: Path, table: pd.DataFrame) -> None:
    found = json.loads((folder / "cohort.json").read_text())
    assert found["options"] == {"patients": 120, "held_out": 0.2, "seed": 3}
    assert (found["rows"], found["stays"], found["training_patients"]) == (len(table), 120, 96)
    assert found["died"] + found["survived"] + found["cut_at_the_horizon"] == 120
    assert set(DOSES) <= set(table)


def test_one_seed_one_table(folder: Path, tmp_path: Path) -> None:
    COHORT.build(tmp_path / "again.parquet")
    assert (tmp_path / "again.parquet").read_bytes() == (folder / "cohort.parquet").read_bytes()
    SyntheticCohort(patients=120, seed=4).build(tmp_path / "other.parquet")
    assert (tmp_path / "other.parquet").read_bytes() != (folder / "cohort.parquet").read_bytes()


def test_settings_that_leave_nobody_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CounterpointError, match="held_out=1 leaves nobody"):
        SyntheticCohort(held_out=1.0)
    with pytest.raises(SystemExit):
        main(["synthetic-cohort", "--out", "cohort.csv"])
    assert "no Parquet file" in capsys.readouterr().err
