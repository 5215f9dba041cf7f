"""Every command as a user would run it: the chain on files, bad input in one line, kill and resume."""

import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

import counterpoint as cp
from counterpoint.tasks import hiv
from counterpoint.tasks.tumour import Tumour, population
from helpers.cli import command, kill_and_resume

SHAPES = False

QUICK_FIT = ["scm:density", "--scm.ensemble", "2", "--scm.hidden", "16", "--scm.likelihood.schedule.steps", "60"]
QUICK_TRAIN = ["--method", "ctrl-g", "--hidden", "16", "--steps", "60", "--batch", "32"]


@pytest.fixture
def patients(tmp_path: Path) -> pd.DataFrame:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(120, 2, generator=random)
    return pd.DataFrame(
        {
            "id": [f"p{i // 6}" for i in range(120)],
            "hour": [i % 6 for i in range(120)],
            "rate": x[:, 0].tolist(),
            "lactate": x[:, 1].tolist(),
            "dose": [(i * 7 % 3) / 2 for i in range(120)],
            "reward": x[:, 1].neg().tolist(),
            "died": [int(i % 6 == 5 and i % 4 == 3) for i in range(120)],
        }
    )


COLUMNS = ["--subject", "id", "--time", "hour", "--state", "rate", "lactate", "--action", "dose", "--reward", "reward"]
ENDS = ["--done", "died", "--last", "truncate"]


def test_the_chain_from_simulation_to_evaluation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    command("simulate", "--run", run, "--trials", 10)
    command("fit", "--run", run, *QUICK_FIT)
    command("augment", "--run", run, "--alternatives", 3)
    command("train", "--run", run, *QUICK_TRAIN)
    command("evaluate", "--run", run, "--trials", 3)
    table = cp.read(run / "augmented.parquet")
    assert int((~table.imagined).sum()) == 200
    assert int(table.imagined.sum()) == 600
    returns = pd.read_csv(run / "evaluation.csv")["return"]
    again = cp.true_return(cp.load(run / "policy"), cp.CartPole().at_evaluation(), trials=3)
    assert returns.tolist() == again.tolist()
    assert "600 imagined" in capsys.readouterr().out


def test_the_chain_in_another_simulator(tmp_path: Path) -> None:
    """Five tumours, each with a response of its own; the run remembers every one of them."""
    run = tmp_path / "run"
    command("simulate", "--run", run, "--trials", 20, "--steps", 6, "task:tumour", "--task.patients", 5)
    command("fit", "--run", run, *QUICK_FIT)
    command("train", "--run", run, *QUICK_TRAIN, "--method", "d3qn")
    command("evaluate", "--run", run, "--trials", 7)
    task = Tumour(population(5, 0))
    known = cp.Run(run).task
    assert isinstance(known, Tumour)
    for own, stored in zip(task.response, known.response, strict=True):
        assert torch.equal(own, stored)
    rows = cp.read(run / "data.parquet")
    torch.testing.assert_close(known.counterfactual(rows, rows.action), rows.next_state)
    returns = pd.read_csv(run / "evaluation.csv")["return"]
    assert returns.tolist() == cp.true_return(cp.load(run / "policy"), task, trials=7).tolist()
    command("augment", "--run", run, "--alternatives", 2)
    command("train", "--run", run, *QUICK_TRAIN)
    command("evaluate", "--run", run, "--trials", 7)
    assert pd.read_csv(run / "evaluation.csv")["return"].tolist() != returns.tolist()


@pytest.mark.parametrize("words", [(), ("--task.patients", 3), ("--task.patients", 3, "--task.patients-seed", 1)])
def test_simulators_of_one_patient_and_of_many(tmp_path: Path, words: tuple[object, ...]) -> None:
    run = tmp_path / "run"
    command("simulate", "--run", run, "--trials", 2, "--steps", 2, "task:hiv", *words)
    response = cp.Run(run).task.response
    count, seed = (words[1], words[3] if len(words) > 2 else 0) if words else (0, 0)
    expected = hiv.population(count, seed) if words else hiv.HIVResponse()
    assert all(torch.equal(own, stored) for own, stored in zip(expected, response, strict=True))


def test_a_task_of_one_class_is_simulated_with_its_fields_as_flags(tmp_path: Path) -> None:
    command("simulate", "--run", tmp_path, "--trials", 5, "task:ward", "--task.discharged-reward", 2)
    assert cp.Run(tmp_path).task == cp.Ward(discharged_reward=2)


def test_the_chain_from_a_users_own_table(tmp_path: Path, patients: pd.DataFrame) -> None:
    run, path = tmp_path / "run", tmp_path / "patients.csv"
    patients.to_csv(path, index=False)
    command("fit", "--run", run, "--data", path, *COLUMNS, *ENDS, *QUICK_FIT)
    command("augment", "--run", run)
    command("train", "--run", run, *QUICK_TRAIN)
    policy = cp.load(run / "policy")
    assert set(policy.act(torch.randn(20, 2)).flatten().tolist()) <= {0.0, 0.5, 1.0}


def refused(capsys: pytest.CaptureFixture[str], run: Path, *words: object) -> str:
    """The one line a bad call prints; it must exit with 2 and write nothing."""
    before = sorted(run.parent.rglob("*"))
    with pytest.raises(SystemExit) as stop:
        command(*words)
    assert stop.value.code == 2
    assert sorted(run.parent.rglob("*")) == before
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def spoil_missing_column(table: pd.DataFrame) -> pd.DataFrame:
    return table.rename(columns={"lactate": "Lactat"})


def spoil_nan(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(rate=table["rate"].mask(table.index == 17))


def spoil_text(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(rate=table["rate"].astype(object).mask(table.index == 17, "fast"))


def spoil_duplicate(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(hour=table["hour"].mask(table.index == 17, table["hour"][16]))


def spoil_empty(table: pd.DataFrame) -> pd.DataFrame:
    return table.iloc[:0]


def spoil_constant(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(rate=1.0)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoil_missing_column, ("'lactate'", "Lactat")),
        (spoil_nan, ("'rate'", "row 17")),
        (spoil_text, ("'rate'", "row 17")),
        (spoil_duplicate, ("'hour'", "17")),
        (spoil_empty, ("no rows",)),
        (spoil_constant, ("'rate'", "constant")),
    ],
)
def test_a_bad_table_is_refused_in_one_line(tmp_path, capsys, patients, spoil, words) -> None:
    path, run = tmp_path / "patients.csv", tmp_path / "run"
    spoil(patients).to_csv(path, index=False)
    line = refused(capsys, run, "fit", "--run", run, "--data", path, *COLUMNS, *ENDS, *QUICK_FIT)
    for word in words:
        assert word in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("simulate", "--run", "/dev/null/run"), "cannot write '/dev/null/run': Not a directory"),
        (("demo", "--seeds", 0), "0 data sets show nothing"),
        (("demo", "--patients", 3), "3 patients are too few"),
        (("demo", "--device", "mps"), "device 'mps' is not supported"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(tmp_path, capsys, words, said) -> None:
    words = words if "--run" in words else (*words, "--run", tmp_path / "run")
    assert said in refused(capsys, tmp_path / "run", *words)


def test_a_task_file_without_a_task_is_refused_in_one_line(tmp_path, capsys) -> None:
    run = tmp_path / "run"
    command("simulate", "--run", run, "--trials", 10)
    for content in (b'{"gravity": 9.8}', b"\xff\xfe{"):
        (run / "task.json").write_bytes(content)
        capsys.readouterr()
        line = refused(capsys, run, "train", "--run", run, "--method", "d3qn")
        assert "task.json' was changed" in line
        assert "run simulate, or fit again" in line


def test_an_unreadable_file_is_refused_in_one_line(tmp_path, capsys) -> None:
    path, run = tmp_path / "patients.parquet", tmp_path / "run"
    path.write_bytes(b"not a table")
    assert "patients.parquet" in refused(capsys, run, "fit", "--run", run, "--data", path, *COLUMNS, *QUICK_FIT)
    missing = tmp_path / "none.csv"
    assert "there is no file" in refused(capsys, run, "fit", "--run", run, "--data", missing, *COLUMNS, *QUICK_FIT)


def test_an_action_outside_the_space_is_refused(patients) -> None:
    with pytest.raises(cp.CounterpointError, match=r"outside the action space"):
        cp.from_dataframe(
            patients,
            subject="id",
            time="hour",
            state=["rate", "lactate"],
            action="dose",
            reward="reward",
            done="died",
            last="truncate",
            actions=cp.Discrete.of([0.0, 0.5]),
        )


def test_a_truncated_artifact_is_refused_in_one_line(tmp_path, capsys) -> None:
    run = tmp_path / "run"
    command("simulate", "--run", run, "--trials", 10)
    command("train", "--run", run, *QUICK_TRAIN, "--method", "d3qn")
    weights = run / "policy" / "weights.safetensors"
    whole = weights.read_bytes()
    capsys.readouterr()
    for content, said in (
        (whole[:-100], "policy/weights.safetensors' is damaged"),
        (whole[:-1] + bytes([whole[-1] ^ 1]), "policy' is not as it was saved (edited, truncated or damaged)"),
        (b"", "policy/weights.safetensors' is damaged"),
    ):
        weights.write_bytes(content)
        assert said in refused(capsys, run, "evaluate", "--run", run)
    weights.unlink()
    assert "policy' has no weights.safetensors" in refused(capsys, run, "evaluate", "--run", run)
    command("train", "--run", run, *QUICK_TRAIN, "--method", "d3qn")
    assert weights.read_bytes() == whole
    command("evaluate", "--run", run, "--trials", 2)


def test_commands_say_what_must_come_first(tmp_path, capsys) -> None:
    run = tmp_path / "run"
    assert "has no data; run simulate, or fit with --data first" in refused(capsys, run, "fit", "--run", run)
    assert "has no scm; run fit first" in refused(capsys, run, "check-scm", "--run", run)
    assert "has no data; run simulate, or fit with --data first" in refused(capsys, run, "augment", "--run", run)
    assert "has no data; run simulate, or fit with --data first" in refused(capsys, run, "train", "--run", run)
    assert "has no task; run simulate, or fit first" in refused(capsys, run, "evaluate", "--run", run)
    command("simulate", "--run", run, "--trials", 10)
    capsys.readouterr()
    assert "has no scm; run fit first" in refused(capsys, run, "augment", "--run", run)
    assert "has no scm; run fit first" in refused(capsys, run, "train", "--run", run)
    assert "has no policy; run train first" in refused(capsys, run, "evaluate", "--run", run)


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return {
        f"{path.parent.name}/{name}": t
        for path in sorted(folder.rglob("weights.safetensors"))
        for name, t in load_file(path).items()
    }


def assert_same_weights(left: Path, right: Path) -> None:
    first, second = weights_of(left), weights_of(right)
    assert first.keys() == second.keys()
    assert len(first) > 0
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


def test_fit_killed_and_resumed_gives_the_same_weights(tmp_path: Path) -> None:
    recipe = ["scm:density", "--scm.ensemble", "2", "--scm.likelihood.schedule.steps", "700"]
    for name in ("whole", "killed"):
        command("simulate", "--run", tmp_path / name, "--trials", 10)
    command("fit", "--run", tmp_path / "whole", *recipe)
    run = tmp_path / "killed"
    words = ["fit", "--run", str(run)]
    program = [*words, "--save-seconds", "0"]
    kill_and_resume(program, recipe, run / "checkpoints" / "scm.checkpoint.safetensors")
    assert_same_weights(tmp_path / "whole" / "scm", run / "scm")


def test_train_killed_and_resumed_gives_the_same_weights(tmp_path: Path) -> None:
    options = ["--method", "ctrl-g", "--hidden", "32", "--steps", "800", "--batch", "64"]
    whole, run = tmp_path / "whole", tmp_path / "killed"
    command("simulate", "--run", whole, "--trials", 10)
    command("fit", "--run", whole, *QUICK_FIT)
    command("augment", "--run", whole)
    shutil.copytree(whole, run)
    command("train", "--run", whole, *options)
    program = ["train", "--run", str(run), *options, "--save-seconds", "0"]
    kill_and_resume(program, [], run / "checkpoints" / "train.policy.checkpoint.safetensors")
    assert_same_weights(whole / "policy", run / "policy")


def test_demo_killed_and_resumed_gives_the_same_results(tmp_path: Path) -> None:
    options = ["--seeds", "1", "--trials", "10", "--length", "0.1", "--evaluation-trials", "2", "--patients", "0"]
    command("demo", "--run", tmp_path / "whole", *options)
    run = tmp_path / "killed"
    program = ["demo", "--run", str(run), *options, "--save-seconds", "0"]
    kill_and_resume(program, [], run / "checkpoints" / "*BiCoGAN.model.checkpoint.safetensors")
    assert_same_weights(tmp_path / "whole" / "policies", run / "policies")
    assert (tmp_path / "whole" / "results.csv").read_bytes() == (run / "results.csv").read_bytes()


def test_same_seed_same_files_and_another_seed_differs(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run = tmp_path / name
        command("simulate", "--run", run, "--trials", 10)
        command("fit", "--run", run, "--seed", seed, *QUICK_FIT)
        command("augment", "--run", run, "--alternatives", 2)
        command("train", "--run", run, "--seed", seed, *QUICK_TRAIN)
        command("evaluate", "--run", run, "--trials", 2)
    files = (
        "run.json",
        "data.parquet",
        "split.json",
        "task.json",
        "augmented.parquet",
        "scm/weights.safetensors",
        "policy/weights.safetensors",
        "evaluation.csv",
    )
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file
    for file in ("run.json", "scm/weights.safetensors", "policy/weights.safetensors"):
        assert (tmp_path / "a" / file).read_bytes() != (tmp_path / "c" / file).read_bytes(), file


COMMANDS = {
    "simulate": "--run",
    "fit": "--run",
    "augment": "--run",
    "train": "--method",
    "evaluate": "--run",
    "check-scm": "Run folder",
    "demo": "--run",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        command(name, "--help")
    assert stop.value.code == 0
    assert COMMANDS[name] in capsys.readouterr().out
