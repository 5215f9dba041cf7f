"""The README's code runs as printed."""

import re
import shlex
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from counterpoint.cli import main
from counterpoint.nets import training
from counterpoint.runs import Run

SHAPES = False

README = Path(__file__).parents[1] / "README.md"


def patients(count: int = 300) -> pd.DataFrame:
    """A stranger's log: string ids, timestamps with holes, missing values, yes/no and text, two doses, deaths."""
    random, rows = np.random.default_rng(0), []
    for number in range(count):
        sex, age, on = random.choice(["f", "m"]), int(random.integers(30, 90)), int(random.random() < 0.2)
        severity = random.normal(1, 0.5)
        for step in range(random.integers(3, 10)):
            iv = float(random.integers(20, 200)) if random.random() < 0.6 else 0.0
            vaso = round(float(random.uniform(0.05, 0.6)), 2) if random.random() < 0.4 else 0.0
            died = bool(random.random() < 1 / (1 + np.exp(4 - severity)))
            moment = pd.Timestamp("2150-03-01 06:00") + pd.Timedelta(hours=4 * (step + (step > 5)))
            rate = round(80 + 8 * severity + random.normal(0, 4), 1) if random.random() < 0.9 else None
            lactate = round(max(0.3, 1.5 * severity + random.normal(0, 0.2)), 2) if random.random() < 0.6 else None
            told = (f"{number:04d}", moment, age, sex, rate, lactate, on)
            rows.append((*told, iv, vaso, round(-severity, 2), "yes" if died else "no"))
            if died:
                break
            severity += 0.1 - 0.004 * iv - 0.8 * vaso + random.normal(0, 0.3)
            on = int(random.random() < (0.8 if on else 0.1))
    names = [
        "patient",
        "charttime",
        "age",
        "sex",
        "heart_rate",
        "lactate",
        "ventilated",
        "iv_ml",
        "vaso",
        "reward",
        "died",
    ]
    table = pd.DataFrame(rows, columns=names)
    last = ~table["patient"].duplicated(keep="last")
    return table.assign(discharged=np.where(last & (table["died"] == "no"), "yes", "no"))


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the stranger's two tables; training is short, so that the lines are run and not waited for."""
    monkeypatch.chdir(tmp_path)
    short = property(lambda run: run.progress.step >= min(300, run.schedule.steps))
    monkeypatch.setattr(training._Run, "finished", short)
    table = patients()
    table.to_csv("patients.csv", index=False)
    new = table[table["patient"] < "0005"].drop(columns=["iv_ml", "vaso", "reward", "died", "discharged"])
    new.to_csv("new_patients.csv", index=False)
    return tmp_path


def test_the_eight_commands_recommend_a_dose(stranger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    block = re.findall(r"```bash\n(.*?)```", README.read_text(), re.DOTALL)[1]
    lines = [shlex.split(line, comments=True) for line in block.replace("\\\n", " ").strip().splitlines()]
    assert len(lines) <= 8
    for program, *words in lines:
        assert program == "counterpoint"
        main(words)
    told = pd.read_csv("runs/first/recommendations.csv", dtype={"subject": str})
    assert told["subject"].tolist() == ["0000", "0001", "0002", "0003", "0004"]
    doses = {(c["iv_ml"], c["vaso"]) for c in Run("runs/first").policy.schema.choices()}
    known = told.dropna(subset=["iv_ml"])
    assert len(known) > 0
    assert set(zip(known["iv_ml"], known["vaso"], strict=True)) <= doses
    assert (known["support"] > 0).all()
    assert told["trust"].isin(["yes", "with care", "no"]).all()
    said = capsys.readouterr().out
    assert "Trust in the model behind this policy" in said
    assert "rows the model had not seen" in said
    assert "Verdict: " in said
    assert "Cannot be judged" in Path("runs/first/report.html").read_text()


def test_a_checked_table_runs_as_a_study(stranger: Path) -> None:
    main(["check", "patients.csv", "--write-study", "study.toml"])
    main(["run", "patients.csv", "--config", "study.toml"])
    main(["recommend", "--run", "runs/study", "--data", "new_patients.csv"])
    assert len(pd.read_csv("runs/study/recommendations.csv")) == 5


def test_the_sixteen_lines_work(stranger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(code.strip().splitlines()) <= 16
    names: dict = {}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        exec(compile(code, "README.md", "exec"), names)
    assert any("are not one step of" in str(each.message) for each in said)
    assert set(names["dose"]) == {"iv_ml", "vaso"}
    assert names["dose"] in names["policy"].schema.choices()
    told = capsys.readouterr().out
    assert "rows the model had not seen" in told
    assert "Verdict: " in told
    assert names["rows"].outcome_names == ("died", "discharged")
    assert set(names["training"].subject.tolist()).isdisjoint(names["held_out"].subject.tolist())
    seen = names["held_out"].with_next()
    effect = (names["what_if"] - seen.next_state)[:, 1]
    treated = seen.action.sum(1) > 100
    assert effect[treated].mean() > 0.1  # without the doses the lactate would have been higher
    untreated = (seen.action == 0).all(1)
    assert torch.allclose(effect[untreated], torch.tensor(0.0), atol=1e-3)  # nothing else was done


def test_every_source_folder_has_its_line() -> None:
    text = README.read_text()
    for folder in (README.parent / "src" / "counterpoint").iterdir():
        if folder.is_dir() and folder.name != "__pycache__":
            assert f"`{folder.name}/`" in text, folder.name
