"""A stranger's log, and a folder to run the pages' commands in."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from counterpoint.nets import training


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


def settle(folder: Path, monkeypatch: pytest.MonkeyPatch, steps: int) -> Path:
    """Work in a folder with the stranger's two tables; no training takes more steps than these, so that lines are run
    and not waited for."""
    monkeypatch.chdir(folder)
    short = property(lambda run: run.progress.step >= min(steps, run.schedule.steps))
    monkeypatch.setattr(training._Run, "finished", short)
    table = patients()
    table.to_csv("patients.csv", index=False)
    new = table[table["patient"] < "0005"].drop(columns=["iv_ml", "vaso", "reward", "died", "discharged"])
    new.to_csv("new_patients.csv", index=False)
    return folder
