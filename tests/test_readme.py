"""The README's code runs as printed."""

import re
from pathlib import Path

import pandas as pd
import pytest
import torch

README = Path(__file__).parents[1] / "README.md"


def patients() -> pd.DataFrame:
    """A made-up ward: the dose lowers the lactate, and a high lactate is bad."""
    random = torch.Generator().manual_seed(0)
    rows = []
    for subject in range(40):
        rate, lactate = 80 + 10 * torch.randn(1, generator=random).item(), 2 + torch.rand(1, generator=random).item()
        for hour in range(8):
            dose = 0.5 * int(torch.randint(3, (1,), generator=random))
            died = lactate > 3.4
            rows.append((subject, hour, rate, lactate, dose, -lactate, died))
            if died:
                break
            rate += 3 * torch.randn(1, generator=random).item()
            lactate += 0.2 - 0.4 * dose + 0.1 * torch.randn(1, generator=random).item()
    return pd.DataFrame(rows, columns=["id", "hour", "heart_rate", "lactate", "dose", "reward", "died"])


def test_the_fifteen_lines_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(code.strip().splitlines()) <= 16
    monkeypatch.chdir(tmp_path)
    patients().to_csv("patients.csv", index=False)
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    assert set(names["dose"].flatten().tolist()) <= {0.0, 0.5, 1.0}
    taken = names["rows"].with_next()
    effect = (names["what_if"] - taken.next_state)[:, 1]
    assert effect[taken.action[:, 0] == 1.0].mean() > 0.2  # without the dose the lactate would have been higher


def test_every_source_folder_has_its_line() -> None:
    text = README.read_text()
    for folder in (README.parent / "src" / "counterpoint").iterdir():
        if folder.is_dir() and folder.name != "__pycache__":
            assert f"`{folder.name}/`" in text, folder.name
