"""The README's code runs as printed."""

import re
from pathlib import Path

import pandas as pd
import pytest
import torch

from counterpoint.nets import training

SHAPES = False

README = Path(__file__).parents[1] / "README.md"


def patients() -> pd.DataFrame:
    """A made-up ward: the dose lowers the lactate, a high lactate kills, and who lives goes home after eight hours."""
    random = torch.Generator().manual_seed(0)
    rows = []
    for subject in range(80):
        rate, lactate = 80 + 10 * torch.randn(1, generator=random).item(), 2 + torch.rand(1, generator=random).item()
        for hour in range(8):
            dose = 0.5 * int(torch.randint(3, (1,), generator=random))
            died = lactate > 3.4
            rows.append((subject, hour, rate, lactate, dose, -lactate, died, hour == 7 and not died))
            if died:
                break
            rate += 3 * torch.randn(1, generator=random).item()
            lactate += 0.2 - 0.4 * dose + 0.1 * torch.randn(1, generator=random).item()
    return pd.DataFrame(rows, columns=["id", "hour", "heart_rate", "lactate", "dose", "reward", "died", "discharged"])


def test_the_fifteen_lines_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(code.strip().splitlines()) <= 16
    monkeypatch.chdir(tmp_path)
    # Shorter training, so that the lines are run and not waited for.
    monkeypatch.setattr(training._Run, "finished", property(lambda run: run.progress.step >= 400))
    table = patients()
    assert table["died"].any()
    table.to_csv("patients.csv", index=False)
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    assert set(names["dose"].flatten().tolist()) <= {0.0, 0.5, 1.0}
    assert "rows the model had not seen" in capsys.readouterr().out
    assert names["rows"].outcome_names == ("died", "discharged")
    assert set(names["training"].subject.tolist()).isdisjoint(names["held_out"].subject.tolist())
    taken = names["seen"]
    effect = (names["what_if"] - taken.next_state)[:, 1]
    assert effect[taken.action[:, 0] == 1.0].mean() > 0.2  # without the dose the lactate would have been higher
    assert torch.allclose(effect[taken.action[:, 0] == 0.0], torch.tensor(0.0), atol=1e-3)  # nothing else was done


def test_every_source_folder_has_its_line() -> None:
    text = README.read_text()
    for folder in (README.parent / "src" / "counterpoint").iterdir():
        if folder.is_dir() and folder.name != "__pycache__":
            assert f"`{folder.name}/`" in text, folder.name
