"""A few hundred cases of `benchmarks/fuzz.py`, and proofs that it would notice."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import counterpoint as cp

SHAPES = False


def load_script() -> ModuleType:
    path = Path(__file__).parent.parent / "benchmarks" / "fuzz.py"
    spec = importlib.util.spec_from_file_location("fuzz", path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules["fuzz"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fuzz = load_script()


@pytest.mark.parametrize(("part", "cases"), [("tables", 150), ("artifacts", 50), ("calls", 150)])
def test_everything_is_refused_in_one_line_or_answered_exactly(part: str, cases: int) -> None:
    found = [(number, *fuzz.judged(part, number, seed=7)) for number in range(cases)]
    assert [case for case in found if case[2].kind in fuzz.BAD] == []
    assert any(verdict.kind == fuzz.REFUSED for _, _, verdict in found)


@pytest.mark.parametrize("name", fuzz.HARMLESS)
def test_what_is_harmless_is_read(name: str) -> None:
    for number in range(3):
        rng = fuzz.random.Random(f"{name}/{number}")
        case = fuzz.clean(rng)
        case.damage = [name]
        fuzz.HARMLESS[name](case, rng)
        assert fuzz.judge_table(case).kind in (fuzz.UNCHANGED, fuzz.NOTED)


def whole_case() -> Any:
    """A clean table that is read as it is."""
    cases = (fuzz.clean(fuzz.random.Random(number)) for number in range(50))
    return next(case for case in cases if fuzz.judge_table(case).kind == fuzz.UNCHANGED)


@pytest.mark.parametrize("column", ["state", "next_state", "action", "reward", "outcome", "step", "episode"])
def test_one_other_number_is_a_silent_change(column: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, read = whole_case(), cp.from_dataframe

    def misread(table: Any, **options: Any) -> cp.Transitions:
        rows = read(table, **options)
        values = getattr(rows, column).clone()
        values.view(-1)[1] += 1
        return replace(rows, **{column: values})

    monkeypatch.setattr(cp, "from_dataframe", misread)
    verdict = fuzz.judge_table(case)
    assert verdict.kind == fuzz.SILENT
    assert column in verdict.why


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (KeyError("hr"), "KeyError"),
        (cp.CounterpointError("column 'hr' is wrong;\n correct it"), "more than one line"),
        (cp.CounterpointError("column 'hr' is wrong"), "no fix"),
        (cp.CounterpointError("it is wrong; correct it"), "nothing named"),
        (cp.CounterpointError("column 'hr' holds 77.125; correct it"), "the cell 77.125 shown"),
    ],
)
def test_not_every_error_is_a_refusal(error: Exception, why: str) -> None:
    verdict = fuzz.refusal(error, ["77.125"])
    assert verdict.kind == fuzz.TRACEBACK
    assert why in verdict.why


def test_a_refusal_is_one() -> None:
    assert fuzz.refusal(cp.CounterpointError("column 'hr' is wrong; correct it"), ["77.125"]).kind == fuzz.REFUSED


def test_the_slow_reader_by_hand() -> None:
    """Ann has three rows and dies, Bob has two, out of order; his last row is only a next state."""
    cells = {
        "id": ["bob", "ann", "ann", "bob", "ann"],
        "hour": [5, 8, 0, 1, 4],
        "x": [51.0, 12.0, 10.0, 50.0, None],
        "dose": [0.2, 0.1, 0.0, 0.1, 0.2],
        "r": [None, 2.0, 0.0, 3.0, 1.0],
        "died": [False, True, False, False, False],
    }
    told = [(name, fuzz.Told(values)) for name, values in cells.items()]
    how = {"subject": "id", "time": "hour", "state": ["x"], "action": "dose", "reward": "r", "done": "died"}
    slow = fuzz.SlowReader(told, {**how, "last": "truncate", "carry_forward": 1})
    assert slow.columns["state"] == [[10.0], [10.0], [12.0], [50.0]]
    assert slow.columns["next_state"][:2] == [[10.0], [12.0]]
    assert slow.columns["next_state"][3] == [51.0]
    assert slow.columns["action"] == [[0.0], [0.2], [0.1], [0.1]]
    assert slow.columns["outcome"] == [-1, -1, 0, -1]
    assert slow.columns["truncated"] == [False, False, False, True]
    assert slow.columns["subject"] == ["ann", "ann", "ann", "bob"]
    with pytest.raises(fuzz.UnreadableError, match="no word of it"):
        fuzz.SlowReader(told, {**how, "carry_forward": 1})
    with pytest.raises(fuzz.UnreadableError, match="a missing state"):
        fuzz.SlowReader(told, {**how, "last": "truncate"})
