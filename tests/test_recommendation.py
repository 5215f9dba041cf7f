"""From a stranger's table to a recommended dose: the steps of the training table, support, and the verdict go along."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import counterpoint as cp
from counterpoint.checks.support import SimilarRows
from counterpoint.cli.main import in_flags, main
from counterpoint.data.tables.new_subjects import read_patients
from counterpoint.nets import training
from counterpoint.policies.recommendation import Recommendations, recommend

SHAPES = False

FLAGS = ["--subject", "patient", "--time", "charttime", "--state", "sex", "heart_rate", "lactate", "ventilated",
         "--action", "iv", "vaso", "--reward", "reward", "--done", "died", "discharged", "--gaps", "cut",
         "--missing", "median", "--carry-forward", "2", "--masks", "lactate", "--bins", "3", "scm:density"]  # fmt: skip


def stranger(patients: int = 90, seed: int = 0) -> pd.DataFrame:
    """String ids, timestamps with holes, missing values, a binary and a text column, two dose columns, deaths."""
    random, rows = np.random.default_rng(seed), []
    for number in range(patients):
        sex, severity, on = random.choice(["f", "m"]), random.normal(1, 0.5), int(random.random() < 0.3)
        for hour in range(random.integers(4, 9)):
            iv = round(float(random.integers(1, 200)), 1) if random.random() < 0.6 else 0.0
            vaso = round(float(random.random()), 2) if random.random() < 0.4 else 0.0
            died = bool(random.random() < 1 / (1 + np.exp(4 - severity)))
            moment = pd.Timestamp("2150-03-01") + pd.Timedelta(hours=4 * (hour + (hour > 4)))
            rate = round(80 + 8 * severity + random.normal(0, 4), 1) if random.random() < 0.9 else None
            lactate = round(max(0.3, 1.5 * severity + random.normal(0, 0.2)), 2) if random.random() < 0.6 else None
            rows.append((f"{number:03d}", moment, sex, rate, lactate, on, iv, vaso, -severity, "yes" if died else "no"))
            if died:
                break
            severity += 0.1 - 0.003 * iv - 0.4 * vaso + random.normal(0, 0.3)
            on = int(random.random() < (0.8 if on else 0.1))
    names = ["patient", "charttime", "sex", "heart_rate", "lactate", "ventilated", "iv", "vaso", "reward", "died"]
    table = pd.DataFrame(rows, columns=names)
    last = ~table["patient"].duplicated(keep="last")
    return table.assign(discharged=np.where(last & (table["died"] == "no"), "yes", "no"))


def command(*words: object) -> None:
    main([str(word) for word in words])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run made on the command line alone."""
    folder = tmp_path_factory.mktemp("stranger")
    stranger().to_csv(folder / "patients.csv", index=False)
    stranger(8, seed=1).drop(columns=["iv", "vaso", "reward", "died", "discharged"]).to_csv(folder / "new.csv")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training._Run, "finished", property(lambda run: run.progress.step >= 150))
        command("fit", "--run", folder / "run", "--data", folder / "patients.csv", *FLAGS)
        command("augment", "--run", folder / "run", "--alternatives", 2)
        command("train", "--run", folder / "run", "--method", "ctrl-g")
    return folder


def advice(folder: Path, table: Any) -> Recommendations:
    run = cp.Run(folder / "run")
    return recommend(run.policy, table, run.training)


def test_the_run_reads_the_table_as_it_was_told(folder: Path) -> None:
    rows = cp.Run(folder / "run").data
    kinds = {column.name: column.levels for column in rows.schema.states}
    assert kinds["sex"] == ("f", "m")
    assert kinds["ventilated"] == ("0", "1")
    assert kinds["lactate_missing"] == ("0", "1")
    assert [column.name for column in rows.schema.states if column.static] == ["sex"]
    assert rows.actions.count == 9
    assert rows.outcome_names == ("died", "discharged")
    assert "003" in rows.subject_names
    assert set(cp.Run(folder / "run").augmented.state[:, 3].unique().tolist()) == {0.0, 1.0}


def test_every_subject_gets_a_supported_action_or_a_reason(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command("recommend", "--run", folder / "run", "--data", folder / "new.csv", "--out", folder / "out.json")
    told = json.loads((folder / "out.json").read_text())
    run = cp.Run(folder / "run")
    assert told["trust"] == json.loads((folder / "run" / "check.json").read_text())["trust"]
    assert len(told["recommendations"]) == 8
    for each in told["recommendations"]:
        assert len(each["values"]) == len(each["supports"]) == 9
        assert sum(each["supports"].values()) == pytest.approx(1)
        if each["action"] is None:
            assert each["why"]
        else:
            assert each["supports"][each["label"]] == each["support"] > 0
            assert set(each["action"]) == {"iv", "vaso"}
            assert each["action"] in run.policy.schema.choices()
    said = capsys.readouterr().out
    assert "Trust in the model behind this policy: " + told["trust"] in said
    command("recommend", "--run", folder / "run", "--data", folder / "new.csv")
    flat = pd.read_csv(folder / "run" / "recommendations.csv", dtype={"subject": str})
    assert flat["subject"].tolist() == [f"{i:03d}" for i in range(8)]
    assert set(flat["trust"]) == {told["trust"]}


def test_an_action_that_nobody_alike_was_given_is_never_recommended(folder: Path) -> None:
    """A policy in love with the highest doses, and a log in which nobody was given them."""
    run = cp.Run(folder / "run")
    policy, logged = run.policy, run.training
    logged = logged[logged.action_index != 8]
    wish = torch.arange(9.0).expand(8, -1)
    policy.values = lambda state, theta=None: wish  # type: ignore[method-assign]
    policy.act = lambda state, theta=None: policy.actions.features(torch.full((8,), 8))  # type: ignore[method-assign]
    for each in recommend(policy, folder / "new.csv", logged).advice:
        if each.action is not None:
            taken = [label for label, share in each.supports.items() if share > 0]
            assert each.label == max(taken, key=lambda label: each.values[label])
            assert "given to nobody like this subject" in each.why


def test_a_subject_unlike_everybody_gets_no_recommendation(folder: Path) -> None:
    table = pd.read_csv(folder / "new.csv", dtype={"patient": str})
    odd = advice(folder, table.assign(heart_rate=table["heart_rate"] * 20)).advice
    assert all(each.action is None and "unlike every subject" in each.why for each in odd)
    assert any(each.action is not None for each in advice(folder, table).advice)


def test_similar_states_are_counted(folder: Path) -> None:
    rows = cp.Run(folder / "run").training
    similar = SimilarRows(rows)
    taken, known = similar.taken(rows.state, 9)
    nearest, _ = similar.rows(rows.state)
    by_hand = torch.stack([rows.action_index[near].bincount(minlength=9) for near in nearest])
    assert torch.equal(taken, by_hand)
    assert known.float().mean() > 0.99
    assert (taken.sum(1) == 50).all()


def test_a_new_patient_is_read_as_the_training_table_was(folder: Path) -> None:
    run = cp.Run(folder / "run")
    schema = run.policy.schema
    fills = {column.name: column.fill for column in schema.states}
    moments = ["2150-01-01 00:00", "2150-01-01 04:00", "2150-01-01 08:00", "2150-01-01 20:00"]
    table = pd.DataFrame(
        {"patient": ["a", "a", "a", "b"], "charttime": moments, "sex": ["f", None, None, "m"],
         "heart_rate": [90.0, 91.0, None, None], "lactate": [None, 2.5, None, None], "ventilated": [0, 1, 1, 0]}
    )  # fmt: skip
    patients = read_patients(table, schema, run.training.layout)
    assert patients.names == ["a", "b"]
    median = fills["heart_rate"].value
    assert patients.state[0].tolist() == [0.0, 91.0, 2.5, 1.0, 1.0]  # carried forward; a mask says it was not measured
    assert patients.state[1].tolist() == pytest.approx([1.0, median, fills["lactate"].value, 0.0, 1.0])
    assert patients.filled == [["sex", "heart_rate", "lactate"], ["heart_rate", "lactate"]]
    late = table.assign(charttime=["2150-01-01", "2150-01-02", "2150-01-05", "2150-01-01"])
    assert read_patients(late, schema, run.training.layout).state[0, 1] == pytest.approx(
        median
    )  # two steps are eight hours, not three days


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"heart_rate": "fast"}, "'heart_rate'"),
        ({"sex": "x"}, "'sex'"),
        ({"charttime": "soon"}, "'charttime'"),
        ({"heart_rate": np.inf}, "'heart_rate'"),
    ],
)
def test_bad_patients_are_one_line(folder: Path, capsys, change: dict[str, Any], words: str) -> None:
    path = folder / "bad.csv"
    pd.read_csv(folder / "new.csv", dtype={"patient": str}).assign(**change).to_csv(path, index=False)
    with pytest.raises(SystemExit) as stop:
        command("recommend", "--run", folder / "run", "--data", path)
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert words in line
    with pytest.raises(SystemExit):
        command("recommend", "--run", folder / "run", "--data", folder / "nowhere.csv")
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_the_verdict_travels_with_the_policy(folder: Path, tmp_path: Path) -> None:
    found = json.loads((folder / "run" / "check.json").read_text())
    policy = cp.load(folder / "run" / "policy")
    assert policy.verdict == cp.policies.Verdict(found["trust"], tuple(found["reasons"]))
    policy.with_verdict(cp.policies.Verdict("no", ("it was seen to fail.",))).save(tmp_path / "copy")
    again = cp.load(tmp_path / "copy")
    assert again.verdict.trust == "no"
    assert policy.verdict.trust == found["trust"]
    assert "it was seen to fail." in str(again.verdict)
    assert recommend(again, folder / "new.csv", cp.Run(folder / "run").training).to_json()["trust"] == "no"
    edited = (tmp_path / "copy" / "recipe.json").read_text().replace('"trust": "no"', '"trust": "yes"')
    (tmp_path / "copy" / "recipe.json").write_text(edited)
    with pytest.raises(cp.CounterpointError, match="not as it was saved"):
        cp.load(tmp_path / "copy")


def test_a_policy_without_a_model_says_so(folder: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(training._Run, "finished", property(lambda run: run.progress.step >= 20))
    command("fit", "--run", tmp_path / "run", "--data", folder / "patients.csv", *FLAGS)
    command("train", "--run", tmp_path / "run", "--method", "d3qn")
    assert "without the run's model" in str(cp.load(tmp_path / "run" / "policy").verdict)
    command("recommend", "--run", tmp_path / "run", "--data", folder / "new.csv")
    assert "Trust in the model behind this policy: not checked" in capsys.readouterr().out


def test_one_study_file_does_the_whole_chain(folder: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    short = property(lambda run: run.progress.step >= min(30, run.schedule.steps))
    monkeypatch.setattr(training._Run, "finished", short)
    study = """
[table]
subject = "patient"
time = "charttime"
state = ["sex", "heart_rate", "lactate", "ventilated"]
action = ["iv", "vaso"]
reward = "reward"
done = ["died", "discharged"]
gaps = "cut"
missing = "median"
carry_forward = 2
bins = ["3"]
[fit]
held_out = 0.25
scm = "density"
[augment]
alternatives = 2
[train]
method = "ctrl-g"
batch = 64
check_every = 15
[evaluate]
draws = 50
[report]
severity = "lactate"
"""
    (tmp_path / "study.toml").write_text(study)
    call = ("run", folder / "patients.csv", "--config", tmp_path / "study.toml", "--run", tmp_path / "run")
    command(*call)
    first = (tmp_path / "run" / "policy" / "recipe.json").read_bytes()
    assert (tmp_path / "run" / "study.toml").read_text() == study
    assert len(cp.Run(tmp_path / "run").held_out.subject.unique()) == 22
    assert cp.Run(tmp_path / "run").evaluation.held_out
    assert "Severity is measured by <strong>lactate</strong>" in (tmp_path / "run" / "report.html").read_text()
    command(*call)
    assert (tmp_path / "run" / "policy" / "recipe.json").read_bytes() == first
    capsys.readouterr()
    for wrong, word in (("[fit]\nheld_outt = 1", "held-outt"), ("[fti]\na = 1", "[fti]"), ("[fit", "TOML")):
        (tmp_path / "study.toml").write_text(wrong)
        with pytest.raises(SystemExit) as stop:
            command(*call)
        assert stop.value.code == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert word in line


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("choose last='terminal' or 'drop'", "choose --last terminal or 'drop'"),
        ("pass outcome='last row of the subject'", "pass --outcome 'last row of the subject'"),
        ("carry_forward=-1.0 is wrong", "--carry-forward -1.0 is wrong"),
        ("pass labels=[…], one", "pass --labels […], one"),
        ("held_out=2.0 is not a share", "--held-out 2.0 is not a share"),
    ],
)
def test_messages_name_flags(message: str, said: str) -> None:
    assert in_flags(message) == said


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--version"])
    assert capsys.readouterr().out.strip() == f"counterpoint {cp.__version__}"
