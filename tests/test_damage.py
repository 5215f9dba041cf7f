"""The benchmark of damaged hospital tables can tell its classes apart."""

import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import counterpoint as cp
from counterpoint.cli import console
from counterpoint.data.tables.reading import read_table
from helpers.odd_worker import serve_odd

SHAPES = False
sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
damage: Any = importlib.import_module("damage")
kinds: Any = importlib.import_module("damage_kinds")
logs: Any = importlib.import_module("damage_log")
verdicts: Any = importlib.import_module("damage_verdicts")
BASE = {base.name: base for base in logs.BASES}
NAMED = kinds.Trace("lactate")


def test_there_are_at_least_40_kinds_of_damaged_logs() -> None:
    assert sum(kind.where in ("log", "both") for kind in damage.KINDS.values()) >= 40
    assert sum(kind.where in ("new", "both") for kind in damage.KINDS.values()) >= 40
    assert {case.kind for mode in damage.MODES for case in damage.cases_of(mode, 200, 0, ())} == set(damage.KINDS)


@pytest.mark.parametrize("name", damage.KINDS)
def test_every_kind_damages_a_table_and_a_seed_tells_how(name: str) -> None:
    kind = damage.KINDS[name]
    for mode in damage.MODES if kind.where == "both" else [kind.where]:
        written = []
        for _ in range(2):
            case = verdicts.Case(mode, 5, name, 0)
            rng = case.rng
            log = logs.clean(BASE[rng.choice(kind.bases)], 0, 30, new=mode == "new")
            log.held = frozenset({0, 1})
            whole, before = log.content(), log.options()
            kind.damage(log, rng)
            written.append((log.content(), log.options(), log.fifo, log.beside))
            assert written[-1] != (whole, before, False, "")
        if "packed" not in name and "spreadsheet" not in name:  # Packed files hold the time.
            assert written[0] == written[1]


def ends(out: str = "", err: str = "", stop: BaseException | None = None) -> Callable[[list[str]], None]:
    def main(_: list[str]) -> None:
        print(out)
        print(err, end="", file=sys.stderr)
        if stop is not None:
            raise stop

    return main


@pytest.mark.parametrize(
    ("main", "result"),
    [
        (ends(out="fitted"), None),
        (ends(stop=SystemExit(0)), None),
        (ends(err="counterpoint: column 'x' is not there; name another\n", stop=SystemExit(2)), "refused"),
        (ends(err="counterpoint: one\ncounterpoint: two\n", stop=SystemExit(2)), "traceback"),
        (ends(err="usage: counterpoint\n", stop=SystemExit(2)), "traceback"),
        (ends(stop=SystemExit(1)), "traceback"),
        (ends(stop=KeyError("lactate")), "traceback"),
        (ends(stop=MemoryError()), "traceback"),
    ],
)
def test_how_a_command_ended(main: Any, result: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts.cli, "main", main)
    verdict = verdicts.failure([verdicts.command("check", "log.csv")])
    assert (None if verdict is None else verdict.result) == result


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("column 'lactate' has 7 values far from the others", True),
        ("│ lactate │ state │ number │ 1.2 ± 3.4 │ two units? │", True),
        ("│ lactate │ state │ number │ 99.2 ± 1003 │ │", False),
        ("3 of 700 pairs were cut in 'lactate'", False),
        ("column 'creatinine' has 7 values far from the others", False),
        ("    counterpoint fit --state lactate --bounds lactate=0,10", False),
        ("Why: a model learns nothing from lactate", False),
        ("lactate: fixed within subjects", False),
        ("│ lactate │ state │ number │ 1.2 ± 3.4 │ fixed within subjects │", False),
        ("P-1: lactate, creatinine not measured now", False),
        ("P-1: lactate not measured now; 1 gap among its rows", False),
        ("P-1: lactate outside the training subjects' range; 1 gap among its rows", True),
    ],
)
def test_what_a_warning_is(line: str, found: bool) -> None:
    """A new line that names the column; other numbers in a line of the clean table are none."""
    said, before = verdicts.Said(line, "", 0), verdicts.Said("19 of 643 pairs were cut in 'lactate'", "", 0)
    assert bool(verdicts.warning([said], [before], NAMED.named)) == found


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A clean log and how it is read, without a fitted model."""
    log, folder = logs.clean(BASE["lenient"], 0, 20), tmp_path_factory.mktemp("clean")
    fit = verdicts.tyro.cli(
        verdicts.Fit, args=verdicts.fit_words(log, verdicts.write(log, folder, "log"), folder / "run")
    )
    rows = read_table(folder / "log.csv", fit.columns.layout(), 0.2, 0).rows
    quiet = verdicts.Said("age: state", "", 0)
    return verdicts.Clean(log, folder / "run", (quiet, quiet), rows, verdicts.reading(rows))


def misread(rows: cp.Transitions, column: str) -> cp.Transitions:
    values = getattr(rows, column).clone()
    values.view(-1)[3] += 1
    return replace(rows, **{column: values})


@pytest.mark.parametrize("column", ["", "state", "action", "reward", "step", "next_state"])
@pytest.mark.parametrize("line", ["", "'lactate' is odd"])
def test_a_log_that_was_read_otherwise_is_silently_wrong_unless_that_was_said(
    column: str, line: str, before: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(_: Any, __: Path, run: Path) -> list[Any]:
        run.mkdir()
        cp.write(misread(before.rows, column) if column else before.rows, run / "data.parquet")
        return [verdicts.Said(line, "", 0), before.said[1]]

    monkeypatch.setattr(verdicts, "look", look)
    verdict, _ = verdicts.judge_log(NAMED, before, before.log, tmp_path)
    assert verdict.result == ("warned" if line else "silently wrong" if column else "harmless")


def test_a_log_is_compared_with_the_one_whose_reading_is_right(
    before: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing value is filled as the user said; with the clean log's value in its place it would be wrong."""
    right = before.log.copy()
    right.rows[0]["lactate"] = ""

    def look(log: Any, path: Path, run: Path) -> list[Any]:
        fit = verdicts.tyro.cli(verdicts.Fit, args=verdicts.fit_words(log, path, run))
        run.mkdir()
        cp.write(read_table(path, fit.columns.layout(), 0.2, 0).rows, run / "data.parquet")
        return list(before.said)

    monkeypatch.setattr(verdicts, "look", look)
    for trace, result in ((replace(NAMED, right=right), "harmless"), (NAMED, "silently wrong")):
        folder = tmp_path / result
        folder.mkdir()
        assert verdicts.judge_log(trace, before, right, folder)[0].result == result


ADVICE = {"subject": "P-1", "recommended": "5", "value": "1.25", "why": "", "value of 0": "1.0", "value of 5": "1.25"}


@pytest.mark.parametrize(
    ("row", "out", "result"),
    [
        ({}, "P-1", "harmless"),
        ({"value of 0": "1.000001"}, "P-1", "harmless"),
        ({"recommended": "no recommendation", "why": "unlike everybody"}, "P-1", "refused"),
        ({"recommended": "no recommendation", "why": ""}, "P-1", "silently wrong"),
        ({"recommended": "0"}, "P-1", "silently wrong"),
        ({"value of 0": "1.1"}, "P-1", "silently wrong"),
        ({"recommended": "0"}, "P-1\n'lactate' of 1 patient is above all of the log", "warned"),
        ({"recommended": "0", "why": "lactate is above all of the log"}, "P-1", "warned"),
        ({"recommended": "0", "why": "age is above all of the log"}, "P-1", "silently wrong"),
        ({"subject": "P-2"}, "P-2", "silently wrong"),
        ({"subject": "P-1[b]"}, "P-1", "silently wrong"),
        ({"subject": "=P-1"}, "=P-1", "silently wrong"),
        ({"subject": "'=P-1"}, "=P-1", "harmless"),
    ],
)
def test_advice_that_differs_is_silently_wrong_unless_that_was_said(
    row: dict[str, str], out: str, result: str, before: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def recommended(_: Path, __: Any, ___: Path, name: str) -> Any:
        return verdicts.Said("P-1" if name == "right" else out, "", 0), [ADVICE if name == "right" else ADVICE | row]

    monkeypatch.setattr(verdicts, "recommended", recommended)
    trace = replace(NAMED, ids={"P-1[b]": "P-1", "=P-1": "P-1"})
    verdict, _ = verdicts.judge_new(trace, before, before.log, before.log, tmp_path)
    assert verdict.result == result, verdict


@pytest.mark.parametrize("base", BASE)
def test_check_says_nothing_but_descriptions_of_clean_logs(
    base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console.CONSOLE, "_width", 240)
    for seed in range(2):
        log = logs.clean(BASE[base], 100 + seed, 60)
        said = verdicts.command("check", verdicts.write(log, tmp_path, str(seed)), *log.options())
        assert said.code == 0, said.err
        assert not verdicts.statements([said])


@pytest.mark.parametrize("new", [False, True])
@pytest.mark.parametrize(
    ("said", "result"),
    [
        (("dose_mg: 201 different values, cut into 5 bins.", "", 0), "harmless"),
        (("P-507: lactate not measured now", "", 0), "harmless"),
        (("P-507: 2 gaps among its rows", "", 0), "harmless"),
        (("1,666 rows and 13 columns. 150 subjects: 6 to 15 rows each", "", 0), "harmless"),
        (("recommended to the first 20 of 33 subjects", "", 0), "harmless"),
        (("column 'lactate' has 7 values far from the others", "", 0), "warned"),
        (("", "counterpoint: column 'lactate' is odd; mend it\n", 2), "refused"),
    ],
)
def test_a_warning_or_a_refusal_of_a_clean_table_is_a_false_alarm(
    said: tuple[str, str, int], result: str, new: bool, before: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdicts, "look", lambda *_: [verdicts.Said(*said)])
    monkeypatch.setattr(verdicts, "recommended", lambda *_: (verdicts.Said(*said), []))
    verdict, _ = verdicts.judge_clean(before, before.log, tmp_path, new)
    assert verdict.result == result
    case = verdicts.Case("new" if new else "log", 0, damage.CLEAN, 0)
    record = damage.record_of([(case, verdict, 0.1)], 0)
    assert record[f"clean_{case.mode}"] == {"tables": 1, "false_alarms": int(result != "harmless")}
    assert record["kinds"] == 0


def test_a_warning_of_check_alone_is_late(before: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = verdicts.Said("'lactate' is odd", "", 0)
    for said, late in (((line, before.said[1]), True), ((before.said[0], line), False)):
        monkeypatch.setattr(verdicts, "look", lambda *_, said=said: list(said))
        verdict, _ = verdicts.judge_log(NAMED, before, before.log, tmp_path)
        assert (verdict.result, verdict.late) == ("warned", late)


def test_a_table_that_never_ends_is_stopped() -> None:
    """A worker that never ends with 1, dies of 2 and judges 3; numbers stand for the tables."""
    found = {case: verdict for case, verdict, _ in damage.judged([1, 2, 3], 2, 1.0, serve_odd)}
    assert [found[1].result, found[2].result, found[3]] == ["traceback", "traceback", "judged"]
    assert "1 s" in found[1].why
