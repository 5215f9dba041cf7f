"""Subjects that differ, on the command line: factors, groups, and advice to one new subject by its own record."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import counterpoint as cp
from counterpoint.cli.column_flags import Columns
from counterpoint.data.tables.new_subjects import read_history, read_patients
from counterpoint.data.tables.reading import read_table
from counterpoint.policies.personal import PersonalPolicy
from counterpoint.policies.recommendation import recommend_to
from counterpoint.policies.values import subject_values
from counterpoint.run import Run
from helpers.cli import command
from helpers.personal_commands import EFFECTS, TABLE, refused, table

SHAPES = False


def record(subject: str, rows: int = 6, seed: int = 5) -> pd.DataFrame:
    """A new subject as it stands at the bedside: no rewards, and the last dose is yet to be chosen."""
    whole = table(2, seed=seed)
    own = whole[whole["id"] == subject].head(rows).drop(columns="r").astype({"dose": object})
    own.iloc[-1, own.columns.get_loc("dose")] = None
    return own


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fitted and trained on the command line."""
    folder = tmp_path_factory.mktemp("personal")
    table().to_csv(folder / "log.csv", index=False)
    command("fit", "--run", folder / "run", "--data", folder / "log.csv", *TABLE, "--last", "truncate", *EFFECTS)
    command("train", "--run", folder / "run", "--method", "ctrl-p")
    return folder / "run"


def advice(run: Path, history: pd.DataFrame, out: Path) -> dict[str, Any]:
    history.to_csv(out.with_suffix(".csv"), index=False)
    command("recommend", "--run", run, "--history", out.with_suffix(".csv"), "--out", out)
    return json.loads(out.read_text())


def test_groups_are_found_and_their_rules_are_told(run: Path, capsys) -> None:
    command("train", "--run", run, "--method", "ctrl-p", "--groups", 2)
    said = capsys.readouterr().out
    policy, rows = Run(run).policy, Run(run).training
    assert isinstance(policy, PersonalPolicy)
    sizes = policy.sizes(rows)
    odd = sum(int(rows.subject_names[s][1:]) % 2 for s in rows.subject.unique())
    assert sorted(sizes) == sorted([odd, len(rows.subject.unique()) - odd])
    assert "2 groups of subjects" in said
    assert f"group 1, {sizes[0]} of {sum(sizes)} subjects:\n  dose = " in said
    assert "everybody, and subjects not known yet:\n  dose = " in said


def test_a_record_finds_the_group_and_its_policy_answers(run: Path, tmp_path: Path, capsys) -> None:
    """The two subjects need opposite doses in the same state."""
    told = {s: advice(run, record(s).assign(x=lambda t: t.x.where(t.t < 5, 1.5)), tmp_path / f"{s}.json")
            for s in ("p0", "p1")}  # fmt: skip
    assert {told[s]["recommendation"]["label"] for s in told} == {"0", "2"}
    assert told["p0"]["recommendation"]["label"] == "2"
    said = capsys.readouterr().out
    for s, each in told.items():
        known, own = each["record"], each["recommendation"]
        assert known["rows"] == 5
        assert known["chances"][known["group"] - 1] == max(known["chances"]) > 0.9
        assert known["deviation"][0] < 0.5
        assert f"by the policy of group {known['group']}" in said
        assert own["subject"] == s
        for label, (low, high) in own["intervals"].items():
            assert low <= own["values"][label] <= high
        assert own["values"][own["label"]] == max(own["values"].values())
        assert own["supports"][own["label"]] == own["support"] > 0


def test_one_row_tells_nothing_and_the_policy_for_everybody_answers(run: Path, tmp_path: Path, capsys) -> None:
    told = advice(run, record("p1", rows=1), tmp_path / "one.json")
    assert (told["record"]["rows"], told["record"]["group"]) == (0, None)
    assert sum(told["record"]["chances"]) == pytest.approx(1), "the shares of the groups"
    assert told["record"]["deviation"] == [1.0]
    policy = Run(run).policy
    assert isinstance(policy, PersonalPolicy)
    state = read_patients(record("p1", rows=1), policy.schema, Run(run).data.layout).state
    assert told["recommendation"]["action"]["dose"] == float(policy.policies[-1].act(state))  # pyright: ignore[reportCallIssue]
    assert "too few consecutive rows" in capsys.readouterr().out


def test_steps_apart_are_no_evidence_and_that_is_said(run: Path, tmp_path: Path, capsys) -> None:
    told = advice(run, record("p1").assign(t=lambda t: 3 * t.t), tmp_path / "apart.json")
    assert told["record"]["rows"] == 0
    assert "were cut" in told["record"]["notes"][0]
    assert "were cut" in capsys.readouterr().out


def test_a_longer_record_is_surer(run: Path) -> None:
    whole = Run(run)
    schema, layout, model = whole.policy.schema, whole.data.layout, whole.scm
    spreads = []
    for rows in (2, 4, 6):
        history = read_history(record("p0", rows), schema, layout)
        assert len(history.rows) == rows - 1
        assert torch.equal(history.now.state, read_patients(record("p0", rows), schema, layout).state)
        spreads.append(float(model.subject_factors(history.rows).covariance[0, 0, 0]))
    assert spreads[0] > spreads[1] > spreads[2]


def test_rewards_and_outcomes_of_a_record_do_not_matter(run: Path) -> None:
    schema, layout = Run(run).policy.schema, Run(run).data.layout
    plain = read_history(record("p0"), schema, layout)
    other = read_history(record("p0").assign(r=[9.0, None, 1, 2, 3, None]), schema, layout)
    assert torch.equal(plain.rows.next_state, other.rows.next_state)
    assert torch.equal(plain.rows.action, other.rows.action)


def test_what_is_unsure_of_the_factor_is_unsure_of_the_value(run: Path) -> None:
    whole = Run(run)
    state = torch.tensor([[0.0, 1.0]])
    policy = whole.policy.policies[-1]  # pyright: ignore[reportIndexIssue, reportAttributeAccessIssue]
    wide = whole.scm.subject_factors(whole.training[whole.training.subject < 0])
    know = lambda spread: replace(wide, mean=wide.mean[:1], covariance=wide.covariance[:1] * spread)
    known, unknown = (subject_values(policy, whole.scm, whole.task, state, know(spread)) for spread in (1e-6, 1.0))  # pyright: ignore[reportArgumentType]
    wider = (unknown.high - unknown.low) / (known.high - known.low)
    assert (wider[0, [0, 2]] > 5).all(), "it matters to whom 0 or 2 is given, and not to whom 1 is"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.drop(columns="x"), "column 'x' is not in the table"),
        (lambda t: t.drop(columns="dose"), "column 'dose' is not in the table"),
        (lambda t: t.assign(id=["a", "b", "a", "b", "a", "b"]), "the history is of 2 subjects"),
        (lambda t: t.assign(sex="secret"), "column 'sex' at row 0 is none of the 2 known labels"),
        (lambda t: t.assign(x=[7.7777, None, 0, 0, 0, 0]), "column 'x' has 1 missing value (first at row 1)"),
        (lambda t: t.assign(x="secret"), "column 'x' is not a number at row 0"),
        (lambda t: t.assign(dose=[1, None, 1, 1, 1, 1]), "column 'dose' has 1 missing value (first at row 1)"),
        (lambda t: t.head(0), "the table has no rows"),
    ],
)
def test_a_foreign_file_is_one_line(run: Path, tmp_path: Path, capsys, change: Any, words: str) -> None:
    path = tmp_path / "foreign.csv"
    change(record("p0")).to_csv(path, index=False)
    line = refused(capsys, "recommend", "--run", run, "--history", path)
    assert words in line
    assert "secret" not in line
    assert "7.7777" not in line


def test_a_record_or_a_table_and_not_both(run: Path, capsys) -> None:
    assert "--data" in refused(capsys, "recommend", "--run", run)
    assert "--data" in refused(capsys, "recommend", "--run", run, "--data", "a.csv", "--history", "b.csv")


def test_many_new_subjects_get_everybodys_policy(run: Path, tmp_path: Path) -> None:
    new = table(4, seed=7).drop(columns=["dose", "r"])
    new.to_csv(tmp_path / "new.csv", index=False)
    command("recommend", "--run", run, "--data", tmp_path / "new.csv", "--out", tmp_path / "new.json")
    told = json.loads((tmp_path / "new.json").read_text())["recommendations"]
    policy = Run(run).policy
    everybody = policy.policies[-1].act(read_patients(new, policy.schema, Run(run).data.layout).state)  # pyright: ignore[reportIndexIssue, reportAttributeAccessIssue]
    assert [each["action"]["dose"] for each in told] == everybody[:, 0].tolist()
    assert all(len(each["values"]) == 3 for each in told)


@pytest.fixture(scope="module")
def searched(run: Path, tmp_path_factory: pytest.TempPathFactory) -> cp.Policy:
    """One rule that is told the factor, searched in the same model."""
    whole = Run(run)
    brief = cp.Search(whole.scm.recipe, None, schedule=cp.Schedule(steps=3, check_every=1), choosing_starts=2)
    return brief.with_models([cp.data.Job(whole.training)], [whole.scm], whole.task)[0].selected


def test_a_policy_that_is_told_factors_is_told_the_records(run: Path, searched: cp.Policy) -> None:
    whole = Run(run)
    assert searched.factor_width == 1
    told = recommend_to(searched, record("p0"), whole.training, model=whole.scm, task=whole.task)
    history = read_history(record("p0"), searched.schema, Run(run).data.layout)
    theta = whole.scm.subject_factors(history.rows).mean
    assert told.subject.factor == pytest.approx(tuple(theta[0].tolist()))
    assert told.advice.action == {"dose": float(searched.act(history.now.state, theta))}
    assert "conditioned on the subject's factor, inferred from 5 steps" in told.subject.why
    with pytest.raises(cp.CounterpointError, match="conditioned on every subject's factor"):
        cp.true_return(searched, cp.CartPole())


def test_a_policy_that_is_the_same_for_everybody_says_so(run: Path) -> None:
    whole = Run(run)
    plain = cp.D3QN((8,), cp.Schedule(steps=20)).fit(whole.training, whole.task)
    told = recommend_to(plain, record("p0"), whole.training)
    assert "only the last row counts" in told.subject.why
    assert told.advice.values == pytest.approx(
        dict(
            zip(
                "012",
                plain.values(read_patients(record("p0"), plain.schema, Run(run).data.layout).state)[0].tolist(),
                strict=True,
            )
        )  # pyright: ignore[reportAttributeAccessIssue]
    )
    assert told.intervals == {}


def test_a_model_without_factors_is_refused_before_anything_is_learned(tmp_path: Path, capsys) -> None:
    table(10, 4).to_csv(tmp_path / "log.csv", index=False)
    call = ("fit", "--run", tmp_path / "run", "--data", tmp_path / "log.csv", *TABLE, "--last", "truncate")
    command(*call, "scm:random-effects", "--scm.ensemble", 1, "--scm.factors", 0)
    line = refused(capsys, "train", "--run", tmp_path / "run", "--method", "ctrl-p")
    assert "finds no difference between the subjects" in line
    command(*call, "scm:density", "--scm.ensemble", 1, "--scm.hidden", 8, "--scm.likelihood.schedule.steps", 20)
    line = refused(capsys, "train", "--run", tmp_path / "run", "--method", "ctrl-p-d3qn")
    assert "scm:random-effects" in line
    assert not Run(tmp_path / "run").has("check")
    assert "knows no groups" in refused(capsys, "train", "--run", tmp_path / "run", "--method", "search", "--groups", 2)
    assert "number of groups" in refused(
        capsys, "train", "--run", tmp_path / "run", "--method", "ctrl-p", "--groups", 0
    )


def test_q_networks_for_groups(run: Path, tmp_path: Path, capsys) -> None:
    whole = Run(run)
    few = ("--steps", 40, "--check-every", 0, "--hidden", 8, "--batch", 16)
    command("train", "--run", run, "--method", "ctrl-p-d3qn", "--groups", 3, *few)
    assert "3 groups of subjects\ngroup 1, " in capsys.readouterr().out
    policy = whole.policy
    assert isinstance(policy, PersonalPolicy)
    assert len(policy.policies) == 4
    assert advice(run, record("p0"), tmp_path / "q.json")["record"]["policy"].startswith("the policy")
    command("train", "--run", run, "--method", "ctrl-p")


# --- earlier actions --------------------------------------------------------------------------------------------------


def lagged(table: pd.DataFrame, lags: int = 2) -> cp.Transitions:
    flags = Columns("id", "t", ("sex", "x"), ("dose",), "r", last="truncate", lags=lags)
    return read_table(table, flags.layout()).rows


def test_lags_are_read_again_from_a_new_subjects_table() -> None:
    rows = lagged(table(6, late=True))
    assert rows.state_names == ("sex", "x", "dose_1_ago", "dose_2_ago")
    new = record("p0")
    history = read_history(new, rows.schema, rows.layout)
    doses = [float(dose) for dose in new["dose"][:-1]]
    assert history.now.state[0, 2:].tolist() == [doses[-1], doses[-2]]
    assert history.rows.state[:, 2].tolist() == [0.0, *doses[:-1]]
    assert torch.equal(
        history.rows.next_state[:, 2:], torch.cat([history.rows.state[1:, 2:], history.now.state[:, 2:]])
    )
    again = read_table(table(6, late=True), rows.layout, like=rows.schema).rows
    assert again.fingerprint == rows.fingerprint
    apart = new.assign(t=[0, 1, 2, 3, 4, 9])
    assert read_history(apart, rows.schema, rows.layout).now.state[0, 2:].tolist() == [0.0, 0.0]
    with pytest.raises(cp.CounterpointError, match="column 'dose' is not in the table"):
        read_patients(new.drop(columns="dose"), rows.schema, rows.layout)


def test_lags_given_later_are_remembered_too() -> None:
    later = cp.data.with_lags(lagged(table(6), lags=0), 2)
    assert later.schema == lagged(table(6)).schema
    assert read_patients(table(3), later.schema, later.layout).state.shape == (3, 4)


def test_a_drug_that_acts_late_on_the_command_line(tmp_path: Path, capsys) -> None:
    table(late=True).to_csv(tmp_path / "log.csv", index=False)
    words = ("--data", tmp_path / "log.csv", *TABLE, "--last", "truncate", "--lags", 1)
    command("fit", "--run", tmp_path / "run", *words, *EFFECTS)
    command("check-scm", "--run", tmp_path / "run")
    said = capsys.readouterr().out
    assert "does not return what happened" not in said
    assert Run(tmp_path / "run").scm.theta_width == 1


def test_a_finished_record_leaves_nothing_to_decide() -> None:
    whole = table(6)
    whole["died"] = (whole["t"] == 7) & (whole["id"] == "p1")
    layout = cp.Layout("id", "t", ("sex", "x"), ("dose",), "r", done=("died",), last="truncate")
    rows = read_table(whole, layout).rows
    own = whole[whole["id"] == "p1"]
    with pytest.raises(cp.CounterpointError, match="nothing is left to decide"):
        read_history(own, rows.schema, rows.layout)
    assert len(read_history(own.drop(columns="died"), rows.schema, rows.layout).rows) == 7
