"""`python -m reproduction`: all parts in one folder, the plan, the record, and what fails does not stop the others."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import tyro

from counterpoint.core.errors import CounterpointError
from counterpoint.models.scm.random_effects import RandomEffects
from counterpoint.nets.training import Schedule
from counterpoint.ope.evaluation import OPESettings
from helpers.classic import SEARCH
from helpers.evaluation_bench import CHANCE, EXPERT
from helpers.grid import TINY, TINY_CTRL_G, tiny_grid
from helpers.hd import PROTOCOL
from helpers.sepsis_experiment import BRIEFLY
from helpers.sepsis_experiment import TINY as TINY_SEPSIS
from reproduction import command, evaluation
from reproduction.ablations import REFERENCE
from reproduction.arms import CTRL_G
from reproduction.classic import Classic, Problem
from reproduction.clinic import Clinic
from reproduction.clinic_methods import some
from reproduction.command import PARTS, SECONDS, Part, Reproduce, main
from reproduction.counterfactuals import Counterfactuals
from reproduction.effect_estimators import estimators as effect_estimators
from reproduction.effects import Effects
from reproduction.estimators import quick_estimators
from reproduction.evaluation import EvaluationBenchmark
from reproduction.executors import Auto, Executor, InProcess, Joblib, Ray
from reproduction.experiment import Experiment, choose
from reproduction.grid import Grid
from reproduction.groups import GroupAccuracy
from reproduction.hd import HD, HDArm
from reproduction.known_policies import PROBLEMS, finite_problem
from reproduction.sepsis import Sepsis
from reproduction.sepsis_cohort import SyntheticPatients
from reproduction.tasks.classic import Pendulum
from reproduction.tasks.finite import FiniteProcess
from reproduction.tumour import TumourBenchmark
from reproduction.worlds.infusion import Infusion

SHAPES = False
RAISING = Grid("ablations-quick", {}, (5,), (0, 1))


def tiny_parts() -> dict[Part, Experiment]:
    """Every part as it is, but small."""
    one = RandomEffects(factors=1, ensemble=1, schedule=Schedule(steps=1, check_every=1))
    arms = {"D3QN": TINY, CTRL_G: TINY_CTRL_G}
    hd_arms = {"D3QN": HDArm(TINY), "CTRL_p, D3QN": HDArm(replace(TINY, tau=0.1))}
    other = tiny_grid(arms, behaviour="non-random", trials=(5,))
    estimators = choose(quick_estimators(), ["copy the outcome", "conditional mean"])
    ope = OPESettings(baselines=False, alternative_behaviours=(), draws=20, critic_draws=3)
    parts: dict[Part, Experiment] = {
        "sd": tiny_grid(arms, trials=(5,), with_paper=True),
        "hd": HD(arms=hd_arms, seeds=2, protocol=PROTOCOL),
        "hd-nonrandom": HD("non-random", hd_arms, seeds=2, protocol=PROTOCOL),
        "search-ablations": tiny_grid({REFERENCE: TINY}),
        "sepsis": Sepsis(SyntheticPatients(60), TINY_SEPSIS, 1, trials=10, ope=BRIEFLY),
        "classic": Classic({"Pendulum": Problem(Pendulum(), (60,), 20, SEARCH)}, seeds=2, episodes=1),
        "sd-nonrandom": other,
        "counterfactuals": Counterfactuals(("a",), (200,), seeds=1, estimators=estimators),
        "ablations": tiny_grid({REFERENCE: TINY, "length: 1": replace(TINY, tau=0.1)}),
        "sd-nonrandom-20": replace(other, protocol=replace(other.protocol, random_action_share=0.2)),
        "tumour": TumourBenchmark((40,), (4.0,), (10,), test=3),
        "groups": GroupAccuracy((1,), 8, 1, model=one),
        "evaluation": EvaluationBenchmark({"tiny": 1}, ope=ope),
        "clinic": Clinic({"infusion": Infusion(steps=6)}, (4,), 2, methods=some(("as logged", "commonest"))),
        "effects": Effects(("a",), ("weak",), 1, estimators={"line": effect_estimators()["line"]}),
    }
    return {part: replace(experiment, name=f"{part}-quick") for part, experiment in parts.items()}  # pyright: ignore


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command runs the small parts."""
    process = FiniteProcess(torch.tensor([0.5, 0.5]), CHANCE, horizon=20)
    monkeypatch.setattr("reproduction.logs.BEHAVIOUR_BLOCK", 2)
    monkeypatch.setattr("reproduction.behaviour.EPISODES", 2)
    monkeypatch.setattr("reproduction.behaviour.RESTARTS", 1)
    monkeypatch.setattr("reproduction.behaviour.LEARNER", TINY)
    monkeypatch.setitem(PROBLEMS, "tiny", lambda: finite_problem(process, EXPERT, 60))  # pyright: ignore[reportArgumentType]
    monkeypatch.setenv("COUNTERPOINT_COMMIT", "1111111")
    evaluation.problem_of.cache_clear()
    monkeypatch.setattr(Reproduce, "part", lambda self, name: tiny_parts()[name])


@pytest.fixture
def two(tiny: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two parts that take a moment."""
    monkeypatch.setattr(command, "PARTS", ("search-ablations", "groups"))


def everything(out: Path, executor: Executor = InProcess(), **options: Any) -> Reproduce:
    return Reproduce("all", out=out, quick=True, device="cpu", executor=executor, **options)


def tables(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*.csv")}


@pytest.mark.timeout(900)
def test_all_parts_run_and_two_runs_write_the_same_tables(tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    everything(tmp_path / "a").execute()
    made = tables(tmp_path / "a")
    assert made.keys() == {*(f"{name}-quick.csv" for name in PARTS), "clinic-evaluation-quick.csv"}
    record = json.loads((tmp_path / "a" / "all-quick.settings.json").read_text())
    assert list(record["parts"]) == list(PARTS)
    assert all(part["done"] == part["cells"] > 0 and not part["failed"] for part in record["parts"].values())
    assert all(part["seconds"] > 0 for part in record["parts"].values())
    for name in PARTS:
        seconds = json.loads((tmp_path / "a" / f"{name}-quick.settings.json").read_text())["seconds"]
        told = record["parts"][name]["seconds_of_cells"]
        assert told == pytest.approx(sum(seconds.values()), abs=0.051 * (1 + len(seconds)))
    assert (record["commit"], record["torch"]) == ("1111111", torch.__version__)
    assert record["command"] == "python -m reproduction all --quick --device cpu"
    assert record["parts"]["hd"]["command"] == "python -m reproduction hd --quick"
    assert str(tmp_path) not in json.dumps(record)
    monkeypatch.setattr(command, "PARTS", ("hd", "tumour", "search-ablations"))
    everything(tmp_path / "b", Joblib(2)).execute()
    assert tables(tmp_path / "b").items() <= made.items()
    assert not any(b"seconds" in table.splitlines()[0] for table in made.values())


def plan(out: Path, capsys: Any, **options: Any) -> dict[str, list[str]]:
    """The words of each line of the plan, by part."""
    capsys.readouterr()
    Reproduce("all", out=out, device="cpu", plan=True, **options).execute()
    lines = [[word.strip() for word in line.split("│")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    return {words[0]: words[1:] for words in lines if words}


def test_the_plan_of_what_is_done_is_nothing(two: None, tmp_path: Path, capsys: Any):
    everything(tmp_path).execute()
    assert plan(tmp_path, capsys, quick=True)["all"][2:] == ["0", "0.0"]


def test_the_plan_counts_cells_and_shares_the_minutes_out(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch):
    grid = Reproduce("sd", device="cpu").part("sd")
    count = len(grid.cells())
    monkeypatch.setitem(SECONDS, "sd", (120, count * 60))
    lines = plan(tmp_path, capsys, executor=InProcess())
    assert list(lines) == [*PARTS, "all"]
    assert lines["sd"] == [str(count), "0", str(count), f"{count}.0"]
    monkeypatch.setattr(command, "PARTS", ("sd",))
    assert plan(tmp_path, capsys, executor=Joblib(4))["sd"][-1] == f"{count / 4:.1f}"
    assert plan(tmp_path, capsys, executor=InProcess(), quick=True)["sd"][-1] == "2.0"
    (tmp_path / "sd" / "cells").mkdir(parents=True)
    stored = json.dumps({"rows": [], "seconds": 1.0, "commit": "a", "device": "b"})
    for cell in grid.cells()[:2]:
        (tmp_path / "sd" / "cells" / f"{cell.key}.json").write_text(stored)
    lines = plan(tmp_path, capsys, executor=InProcess())
    assert lines["sd"] == [str(count), "2", str(count - 2), f"{count - 2}.0"]
    assert not list(tmp_path.glob("all*")), "a plan starts nothing"


def test_what_fails_is_reported_and_the_others_go_on(
    two: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    def missing(*_: Any) -> Any:
        raise ModuleNotFoundError("No module named 'dowhy'")

    monkeypatch.setattr("reproduction.grid.learn", missing)
    with pytest.raises(SystemExit) as stop:
        main(["all", "--quick", "--device", "cpu", "--out", str(tmp_path), "in-process"])
    assert stop.value.code == 2
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert "2 of 2 cells of search-ablations-quick failed" in line
    assert "ModuleNotFoundError: No module named 'dowhy'" in line
    record = json.loads((tmp_path / "all-quick.settings.json").read_text())["parts"]
    assert record["search-ablations"]["failed"] == ["ModuleNotFoundError: No module named 'dowhy'"] * 2
    assert (record["groups"]["failed"], record["groups"]["done"]) == (None, record["groups"]["cells"])
    monkeypatch.undo()


def test_stopped_between_cells_it_goes_on(two: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    everything(whole).execute()
    with monkeypatch.context() as once:
        interrupt = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        once.setattr("reproduction.groups.population", interrupt)
        with pytest.raises(KeyboardInterrupt):
            everything(stopped).execute()
    cells = list((stopped / "search-ablations-quick" / "cells").iterdir())
    assert cells
    stamps = [cell.stat().st_mtime_ns for cell in cells]
    everything(stopped).execute()
    assert [cell.stat().st_mtime_ns for cell in cells] == stamps
    assert tables(whole) == tables(stopped)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Reproduce("all", seeds=3), "all has neither --methods nor --seeds"),
        (Reproduce("all", methods=("D3QN",)), "all has neither --methods nor --seeds"),
        (Reproduce("sd", cohort="demo"), "sd has neither --cohort nor --patients nor --raw"),
        (Reproduce("hd", patients=10), "hd has neither --cohort nor --patients nor --raw"),
        (Reproduce("groups", methods=("D3QN",)), "groups has no --methods"),
        (Reproduce("sd", seeds=1), "--seeds to 2 or more"),
        (Reproduce("tumour", seeds=0), "nothing to run"),
        (Reproduce("tumour", methods=("no",)), "there is no model 'no'; choose from copy the last volume"),
        (Reproduce("counterfactuals", methods=("no",)), "there is no method 'no'; choose from"),
    ],
)
def test_options_that_do_not_go_together(options: Reproduce, message: str):
    with pytest.raises(CounterpointError, match=message):
        options.execute()


def test_the_command_fixes_stacks_by_the_device(monkeypatch: pytest.MonkeyPatch):
    size = lambda **options: Reproduce("sd", **options).part("sd").stack_size  # pyright: ignore
    assert size(device="cpu") == 20
    assert size(device="cpu", quick=True, seeds=4, executor=Joblib()) == 4
    assert size(device="cuda", executor=Ray()) is None, "a cluster's workers may have the GPU that this machine lacks"
    assert Reproduce("sd", device="cpu", quick=True).part("sd").protocol.evaluation_trials == 10  # pyright: ignore


def test_processes_are_the_cores_or_the_workers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    processes = lambda executor: Reproduce("all", device="cpu", executor=executor).processes
    assert [processes(executor) for executor in (Auto(), Joblib(3), InProcess())] == [16, 3, 1]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert Reproduce("all", device="cuda").processes == 15, "a GPU is shared, and a core is left for what is not work"
    assert Reproduce("sd", device="cuda").processes == 1


def test_every_part_has_a_name_and_files_of_its_own():
    for quick in (False, True):
        parts = Reproduce("all", quick=quick, device="cpu").parts()
        assert tuple(parts) == PARTS
        for part, experiment in parts.items():
            assert experiment.name == part + "-quick" * quick
            assert experiment.command == f"python -m reproduction {part}" + " --quick" * quick
            assert experiment.cells()


def test_a_table_of_synthetic_patients_is_made_by_the_same_program(tmp_path: Path, capsys: Any):
    main(["synthetic-cohort", "--out", str(tmp_path / "cohort.parquet"), "--patients", "20"])
    assert (tmp_path / "cohort.parquet").exists()
    assert "next: counterpoint fit" in capsys.readouterr().out


def test_the_commands_of_the_pages_are_commands():
    root = Path(__file__).parents[1]
    pages = [root / "README.md", *root.glob("docs/**/*.md"), *root.glob("reproduction/docs/*.md")]
    texts = [page.read_text() for page in pages]
    lines = {
        line for text in texts for line in re.findall(r"python -m reproduction ([^`\n|]+)", text) if "…" not in line
    }
    assert len(lines) > 20
    for line in lines:
        words = shlex.split(line, comments=True)
        if words[0] != "synthetic-cohort":
            parsed = replace(tyro.cli(Reproduce, args=words), device="cpu")
            assert parsed.experiment == words[0]
            if parsed.cohort == "synthetic":
                assert all(experiment.cells() for experiment in parsed.parts().values())
