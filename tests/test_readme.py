"""The README's code runs as printed."""

import re
import shlex
import warnings
from pathlib import Path

import pandas as pd
import pytest
import torch

from counterpoint.cli.main import main
from counterpoint.run import Run
from helpers.strangers import settle

SHAPES = False

README = Path(__file__).parents[1] / "README.md"


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return settle(tmp_path, monkeypatch, steps=300)


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
