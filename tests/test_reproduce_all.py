"""All parts from one command: the plan, one record, the same tables twice, other commits refused, what fails told."""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
import torch

from counterpoint.cli.main import main
from counterpoint.core.errors import CounterpointError
from counterpoint.core.results import hardware
from counterpoint.learners.methods import CTRL_G
from counterpoint.models.scm.random_effects import RandomEffects
from counterpoint.nets.training import Schedule
from counterpoint.ope.evaluation import OPESettings
from helpers.classic import SEARCH
from helpers.evaluation_bench import CHANCE, EXPERT
from helpers.grid import TINY, TINY_CTRL_G, tiny_grid
from helpers.sepsis_experiment import BRIEFLY
from helpers.sepsis_experiment import TINY as TINY_SEPSIS
from reproduction import evaluation
from reproduction.ablations import REFERENCE
from reproduction.classic import Problem
from reproduction.commands import parts, reproduce, reproduce_all
from reproduction.commands.parts import HOST, PARTS, Measured, Part
from reproduction.commands.reproduce import Reproduce
from reproduction.commands.reproduce_all import Record, ReproduceAll
from reproduction.counterfactuals import Counterfactuals, named
from reproduction.estimators import quick_estimators
from reproduction.evaluation import EvaluationBenchmark
from reproduction.executors import Auto, Executor, InProcess, Joblib
from reproduction.grid import Grid, Protocol
from reproduction.groups import GroupAccuracy
from reproduction.hd_arms import HDArm
from reproduction.jobserver import ADDRESS, RANK, Slots
from reproduction.known_policies import GROUNDS, finite_ground
from reproduction.sepsis import Sepsis
from reproduction.sepsis_cohort import SyntheticPatients
from reproduction.tasks.classic import Pendulum
from reproduction.tasks.finite import FiniteProcess
from reproduction.tumour import TumourBenchmark

SHAPES = False


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every part as it is, but small."""
    one = RandomEffects(factors=1, ensemble=1, schedule=Schedule(steps=1, check_every=1))
    arms = {"D3QN": TINY, CTRL_G: TINY_CTRL_G}
    process = FiniteProcess(torch.tensor([0.5, 0.5]), CHANCE, horizon=20)
    sizes: dict[str, Any] = {
        "reproduce.QUICK_SEEDS": 2,
        "reproduce.QUICK_EPISODES": 2,
        "reproduce.HD_PROTOCOL": Protocol(logged_trials=3, steps=10),
        "reproduce.quick_sd": lambda behaviour, *_: tiny_grid(arms, behaviour=behaviour, trials=(5,)),
        "reproduce.quick_ablations": lambda *_: tiny_grid({REFERENCE: TINY, "length: 1": replace(TINY, tau=0.1)}),
        "reproduce.quick_search_ablations": lambda *_: tiny_grid({REFERENCE: TINY}),
        "reproduce.quick_hd_arms": lambda: {"D3QN": HDArm(TINY), "CTRL_p, D3QN": HDArm(replace(TINY, tau=0.1))},
        "reproduce.quick_problems": lambda: {"Pendulum": Problem(Pendulum(), (60,), 20, SEARCH)},
        "bench.quick": lambda: TumourBenchmark((40,), (4.0,), (10,), test=3, name="tumour-quick"),
        "bench.quick_counterfactuals": lambda: Counterfactuals(
            ("a",),
            (200,),
            seeds=1,
            estimators=named(["copy the outcome", "conditional mean"], quick_estimators()),
            name="counterfactuals-quick",
        ),
        "bench.quick_groups": lambda: GroupAccuracy((1,), 8, 1, model=one, name="groups-quick"),
        "bench.quick_evaluation": lambda: EvaluationBenchmark(
            {"tiny": 1},
            judging=OPESettings(alternative_behaviours=(), draws=20, critic_draws=3),
            name="evaluation-quick",
        ),
    }
    sepsis = Sepsis(SyntheticPatients(60), TINY_SEPSIS, 1, trials=10, judging=BRIEFLY, name="sepsis-quick")
    monkeypatch.setattr(Reproduce, "sepsis", lambda self: sepsis)
    for name, value in sizes.items():
        monkeypatch.setattr(f"counterpoint.cli.{name}", value)
    monkeypatch.setattr(reproduce_all, "QUICK", {})
    monkeypatch.setattr("reproduction.grid.BEHAVIOUR_BLOCK", 2)
    monkeypatch.setattr("reproduction.behaviour.EPISODES", 2)
    monkeypatch.setattr("reproduction.behaviour.RESTARTS", 1)
    monkeypatch.setattr("reproduction.behaviour.LEARNER", TINY)
    monkeypatch.setitem(GROUNDS, "tiny", lambda: finite_ground(process, EXPERT, 60))  # pyright: ignore[reportArgumentType]
    monkeypatch.setenv("COUNTERPOINT_COMMIT", "1111111")
    evaluation._ground.cache_clear()


def everything(out: Path, executor: Executor = InProcess(), **options: Any) -> Reproduce:
    return Reproduce("all", out=out, quick=True, device="cpu", executor=executor, **options)


def tables(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*.csv")}


def test_all_parts_run_and_two_runs_write_the_same_tables(tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    everything(tmp_path / "a").execute()
    made = tables(tmp_path / "a")
    assert made.keys() == {f"{name}-quick.csv" for name in PARTS}
    record = json.loads((tmp_path / "a" / "all-quick.settings.json").read_text())
    assert list(record["parts"]) == list(PARTS)
    assert all(part["done"] == part["cells"] > 0 and not part["failed"] for part in record["parts"].values())
    assert all(part["seconds"] > 0 and part["seeds"] for part in record["parts"].values())
    own = {name: json.loads((tmp_path / "a" / f"{name}-quick.settings.json").read_text())["seconds"] for name in PARTS}
    assert {name: part["seconds_of_cells"] for name, part in record["parts"].items()} == {
        name: pytest.approx(sum(seconds.values()), abs=0.051) for name, seconds in own.items()
    }
    assert (record["commit"], record["torch"]) == ("1111111", torch.__version__)
    assert record["command"] == "counterpoint reproduce all --quick --device cpu in-process"
    assert str(tmp_path) not in json.dumps(record)
    monkeypatch.setattr(reproduce_all, "PARTS", {name: PARTS[name] for name in ("hd", "tumour")})
    everything(tmp_path / "b", Joblib(2)).execute()
    assert tables(tmp_path / "b").items() <= made.items()
    monkeypatch.undo()
    assert not any(b"seconds" in table.splitlines()[0] for table in made.values())


def test_a_parts_command_can_be_typed_as_it_is_shown(tmp_path: Path):
    part = parts.Part("sd-nonrandom-20", PARTS["sd-nonrandom-20"], tmp_path)
    assert shlex.split(part.line) == ["counterpoint", *PARTS["sd-nonrandom-20"]]
    assert "'CTRL_g, BiCoGAN'" in part.line


def test_the_plan_of_what_is_done_is_nothing(two: None, tmp_path: Path, capsys: Any):
    everything(tmp_path).execute()
    capsys.readouterr()
    everything(tmp_path, plan=True).execute()
    assert " 0 │ 0.0 " in capsys.readouterr().out.splitlines()[-2], "nothing is left"


def test_the_plan_counts_cells_and_takes_its_minutes_from_an_earlier_run_here(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
):
    grid = Reproduce("sd", device="cpu").grid()
    count, rest = len(grid.cells()), str(len(grid.cells()) - 20)
    monkeypatch.setattr(parts, "MEASURED", {"sd": Measured(core=count * 60.0), "hd": Measured(core=60.0, quick=120.0)})
    plan = lambda **changes: replace(Reproduce("all", out=tmp_path, device="cpu", plan=True), **changes).execute()
    told = lambda: {
        words[0]: words[1:]
        for words in ([word.strip() for word in line.split("│")[1:-1]] for line in capsys.readouterr().out.splitlines())
        if words
    }
    plan(executor=InProcess())
    found = told()
    assert list(found) == [*PARTS, "all"]
    assert found["sd"] == [str(count), "0", str(count), f"{count}.0"]
    few = str(len(parts.WITHOUT_FAILURES) * 5 * 20)
    assert found["sd-nonrandom-20"] == [few, "0", few, "?"]
    assert found["all"][-1] == f"{count + 1}.0 and what is not known"
    plan(executor=Joblib(4))
    assert told()["sd"][-1] == f"{count / 4:.1f}"
    plan(executor=InProcess(), quick=True)
    assert told()["hd"][-1] == "2.0"
    (tmp_path / "sd" / "cells").mkdir(parents=True)
    for cell in grid.cells()[:20]:
        (tmp_path / "sd" / "cells" / f"{cell.key}.json").write_text("{}")
    made = {"ran_on": [{"commit": "a", "device": hardware()["device"], "cells": 20}], "seconds": {"D3QN": 120.0}}
    (tmp_path / "sd.settings.json").write_text(json.dumps(made))
    plan(executor=InProcess())
    assert told()["sd"] == [str(count), "20", rest, f"{(count - 20) / 10:.1f}"]
    made["ran_on"][0]["device"] = "another"
    (tmp_path / "sd.settings.json").write_text(json.dumps(made))
    plan(executor=InProcess())
    assert told()["sd"][-1] == f"{rest}.0", "seconds of another machine say nothing of this one"
    assert not list(tmp_path.glob("all*")), "a plan starts nothing"


@pytest.fixture
def two(tiny: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two parts that take a moment."""
    chosen = {name: PARTS[name] for name in ("search-ablations", "evaluation")}
    monkeypatch.setattr(reproduce_all, "PARTS", chosen)


def test_results_of_another_commit_are_refused(two: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    everything(tmp_path).execute()
    monkeypatch.setenv("COUNTERPOINT_COMMIT", "1111111222")
    everything(tmp_path).execute()
    monkeypatch.setenv("COUNTERPOINT_COMMIT", "2222222")
    other = "holds [^ ]+ of commit 1111111.*, and this is 2222222; choose a fresh --out, or add --keep"
    with pytest.raises(CounterpointError, match=other):
        everything(tmp_path).execute()
    (tmp_path / "all-quick.settings.json").unlink()
    with pytest.raises(CounterpointError, match=other):
        everything(tmp_path).execute()
    for path in tmp_path.glob("*.settings.json"):
        told = json.loads(path.read_text())
        path.write_text(json.dumps({**told, "commit": "2222222"}))
    with pytest.raises(CounterpointError, match=other):
        everything(tmp_path).execute()
    everything(tmp_path, keep=True).execute()
    record = json.loads((tmp_path / "all-quick.settings.json").read_text())
    assert record["commit"] == "2222222"


def test_a_record_tells_of_every_call_once(two: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COUNTERPOINT_COMMIT", "1111111")

    def record(**changes: Any) -> dict[str, Any]:
        replace(everything(tmp_path), **changes).execute()
        return json.loads((tmp_path / "all-quick.settings.json").read_text())

    first = record(without=("evaluation",))
    assert first["earlier_calls"] == []
    assert record(without=("evaluation",)) == {**first, "parts": ANY}, "the same call again"
    both = record(without=("search-ablations",))
    assert list(both["parts"]) == ["search-ablations", "evaluation"]
    assert both["command"].endswith("--without search-ablations in-process")
    assert [call["command"] for call in both["earlier_calls"]] == [first["command"]]
    assert "parts" not in both["earlier_calls"][0]


def test_what_fails_is_told_and_the_others_go_on(
    two: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    def missing(*_: Any) -> Grid:
        raise ModuleNotFoundError("No module named 'dowhy'")

    monkeypatch.setattr(reproduce, "run", missing)
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "all", "--quick", "--device", "cpu", "--out", str(tmp_path), "in-process"])
    assert stop.value.code == 2
    told = capsys.readouterr()
    (line,) = told.err.splitlines()
    assert "1 of 2 parts failed (search-ablations: ModuleNotFoundError: No module named 'dowhy')" in line
    assert "search-ablations failed: ModuleNotFoundError" in told.out
    record = json.loads((tmp_path / "all-quick.settings.json").read_text())["parts"]
    assert record["search-ablations"]["failed"]
    assert (record["evaluation"]["failed"], record["evaluation"]["done"]) == (None, 1)


def test_stopped_between_parts_it_goes_on(two: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole = tmp_path / "whole"
    everything(whole).execute()
    with monkeypatch.context() as once:
        once.setattr(EvaluationBenchmark, "run", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            everything(tmp_path / "stopped").execute()
    record = tmp_path / "stopped" / "all-quick.settings.json"
    before = json.loads(record.read_text())
    assert list(before["parts"]) == ["search-ablations"]
    before["parts"]["search-ablations"]["seconds"] = 100.0
    record.write_text(json.dumps(before))
    cells = list((tmp_path / "stopped" / "search-ablations-quick" / "cells").iterdir())
    stamps = [cell.stat().st_mtime_ns for cell in cells]
    everything(tmp_path / "stopped").execute()
    assert [cell.stat().st_mtime_ns for cell in cells] == stamps
    assert tables(whole) == tables(tmp_path / "stopped")
    after = json.loads(record.read_text())["parts"]
    assert list(after) == ["search-ablations", "evaluation"]
    assert 100 <= after["search-ablations"]["seconds"] < 200, "the seconds of both calls"


def test_side_by_side_parts_have_ranks_and_lines_have_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    """Two real processes that refuse at once: one by a wrong option, told as it says it."""
    chosen = {"sd": ("reproduce", "sd", "--methods", "no"), "groups": ("bench", "groups", "--seeds", "0")}
    monkeypatch.setattr(reproduce_all, "PARTS", chosen)
    monkeypatch.setattr(Part, "cells", lambda self: (0, 10))
    monkeypatch.setattr(Part, "settings", lambda self: {})
    monkeypatch.setattr(Part, "file", "a table")
    monkeypatch.setattr(Part, "seeds", lambda self: [0])
    begun: dict[str, Slots] = {}
    apart = reproduce_all._execute_apart

    def noting(part: Part, running: Any, told: dict[str, str]) -> Any:
        begun[part.name] = Slots(told[ADDRESS], int(told[RANK]))
        return apart(part, running, told)

    monkeypatch.setattr(reproduce_all, "_execute_apart", noting)
    with pytest.raises(CounterpointError, match=r"2 of 2 parts failed \(.*sd: there is no method 'no'; choose from"):
        ReproduceAll(tmp_path, False, "cpu", InProcess(), 2, False).run()
    assert {name: slots.rank for name, slots in begun.items()} == {"sd": 0, "groups": 1}
    assert len({slots.address for slots in begun.values()}) == 1, "one server for all"
    assert "sd: counterpoint: there is no method 'no'" in capsys.readouterr().out


def test_parts_at_the_same_time_share_the_processes_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    whole = lambda executor, device="cpu", at_once=None: ReproduceAll(tmp_path, False, device, executor, at_once, False)
    assert [whole(executor).at_once for executor in (Auto(), Joblib(3), InProcess())] == [2, 1, 1]
    assert [whole(executor).processes for executor in (Auto(), Joblib(3), InProcess())] == [16, 3, 1]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    on_gpu = whole(Auto(), "cuda")
    assert (on_gpu.at_once, on_gpu.processes) == (len(PARTS), 15), "all parts, and a core for what is not work"
    few = {part.name for part in on_gpu.parts if part.typed[-3:] == ["joblib", "--workers", "2"]}
    assert few == set(HOST), "what does not need the GPU leaves the processes to what does"
    assert all(part.typed[-3:] == ["joblib", "--workers", "15"] for part in on_gpu.parts if part.name not in few)
    alone = whole(Auto(), "cuda", 1)
    assert (alone.processes, alone.parts[0].typed[-2:]) == (1, ["--device", "cuda"])


def test_parts_can_be_left_to_another_machine(tmp_path: Path):
    whole = ReproduceAll(tmp_path, False, "cpu", InProcess(), 2, False, ("sepsis", "groups"))
    assert [part.name for part in whole.parts] == [name for name in PARTS if name not in ("sepsis", "groups")]
    record = Record(whole)
    record.write()
    assert json.loads(record.path.read_text())["command"].endswith(
        "--side-by-side 2 --without sepsis groups in-process"
    )


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (Reproduce("all", seeds=3), "all takes its parts as they are"),
        (Reproduce("all", random_action_share=0.2), "all takes its parts as they are"),
        (Reproduce("all", side_by_side=0), "set --side-by-side to 1 or more"),
        (Reproduce("all", without=("sdd",)), "there is no part 'sdd' to leave out; choose from sd, hd, hd-nonrandom"),
        (Reproduce("all", without=tuple(PARTS)), "names every part"),
        (Reproduce("sd", plan=True), "only all has"),
        (Reproduce("sd", without=("hd",)), "only all has"),
        (Reproduce("sd", keep=True), "only all has"),
    ],
)
def test_options_that_do_not_go_together(command: Reproduce, said: str):
    with pytest.raises(CounterpointError, match=said):
        command.execute()


def test_logs_of_another_share_of_random_actions_have_files_of_their_own():
    name = lambda **options: Reproduce("sd-nonrandom", device="cpu", **options).grid().name
    assert name() == "sd-nonrandom"
    assert name(random_action_share=0.2, quick=True) == "sd-nonrandom-20-quick"
    assert Reproduce("hd-nonrandom", random_action_share=0.125).hd().name == "hd-nonrandom-12.5"
    assert Reproduce("sd", random_action_share=0.2, device="cpu").grid().name == "sd"


def test_policies_are_tried_in_fifty_episodes():
    assert Reproduce("ablations", device="cpu").grid().protocol.evaluation_trials == 50
    assert Reproduce("hd").hd().protocol.evaluation_trials == 50
    assert Reproduce("sd", quick=True, device="cpu").grid().protocol.evaluation_trials == 10
