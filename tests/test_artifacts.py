"""Fitted things on disk: whole or refused in one line, and the same bits when they come back."""

import hashlib
import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import counterpoint
from counterpoint import artifacts
from counterpoint.commands import demo
from counterpoint.data.spaces import Box, Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.dynamics.outcome import Outcome
from counterpoint.errors import CounterpointError
from counterpoint.library import CLASSES, load_kind
from counterpoint.nets.density import Gaussian, Spline
from counterpoint.nets.training import Schedule
from counterpoint.policies.base import Policy
from counterpoint.policies.d3qn import D3QN
from counterpoint.seeding import generator
from counterpoint.tasks.cartpole import CartPole
from recipes import BRIEF, DENSITY, MODELS, ROWS, SCMS


def refuse(call: Callable[[], object]) -> str:
    with pytest.raises(CounterpointError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole artifact."""
    artifacts.save(tmp_path / "model", {"weight": torch.arange(600.0)}, {"kind": "scm"})
    return tmp_path / "model"


@pytest.mark.parametrize("name", SCMS)
def test_every_scm_comes_back_bit_for_bit(name: str, tmp_path: Path) -> None:
    recipe, rows = SCMS[name]
    model = recipe.fit(rows, seed=7)
    model.save(tmp_path)
    loaded = counterpoint.load(tmp_path)
    other = rows.actions.sample(len(rows), generator(1))
    assert torch.equal(loaded.abduct(rows), model.abduct(rows))
    assert torch.equal(loaded.counterfactual(rows, other), model.counterfactual(rows, other))
    fresh = (m.sample(rows.state, other, generator(2)) for m in (model, loaded))
    assert torch.equal(*fresh)
    assert (loaded.recipe, loaded.actions, loaded.state_names) == (recipe, rows.actions, rows.state_names)
    assert loaded.origin == model.origin
    assert (loaded.origin.seed, loaded.origin.data) == (7, rows.fingerprint)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_without_abduction_comes_back_bit_for_bit(name: str, tmp_path: Path) -> None:
    model = MODELS[name].fit(ROWS, seed=7)
    model.save(tmp_path)
    loaded = counterpoint.load(tmp_path)
    drawn = (m.sample(ROWS.state, ROWS.action, generator(2)) for m in (model, loaded))
    assert torch.equal(*drawn)
    assert (loaded.recipe, loaded.origin) == (model.recipe, model.origin)


def test_a_learned_task_comes_back_bit_for_bit(tmp_path: Path) -> None:
    rows = replace(ROWS, reward=ROWS.state[:, 0], terminated=ROWS.next_state[:, 0] > 1)
    task = Outcome(hidden=(8,), likelihood=BRIEF).fit(rows)
    task.save(tmp_path)
    loaded = counterpoint.load(tmp_path)
    asked = rows.state, rows.action, rows.next_state
    assert torch.equal(loaded.reward(*asked), task.reward(*asked))
    assert torch.equal(loaded.termination_probability(asked[2]), task.termination_probability(asked[2]))
    assert loaded.discount == task.discount


def test_every_recipe_of_the_demo_survives_json() -> None:
    """`General` itself is not saved; its parts are."""
    for arm in demo.arms(1.0).values():
        for recipe in (getattr(arm, "model", None), getattr(arm, "learner", arm)):
            text = json.dumps(artifacts.encode(recipe))
            assert artifacts.decode(json.loads(text), CLASSES) == recipe


def test_a_task_survives_json_with_every_option() -> None:
    task = CartPole(gravity=3.7, noise_reading="absolute", noise_size=0.1, evaluation_noise_size=0.0, horizon=7)
    assert artifacts.decode(json.loads(json.dumps(artifacts.encode(task))), CLASSES) == task


@pytest.mark.parametrize("space", [Discrete.one_hot(3), Discrete.of([0, 0.1]), Box((0.0, -1.0), (1.0, 2.5))])
def test_spaces_survive_json(space: Discrete | Box) -> None:
    assert artifacts.decode(json.loads(json.dumps(artifacts.encode({"space": [space]}))), CLASSES) == {
        "space": (space,)
    }


@dataclass(frozen=True)
class Unknown:
    """A recipe of somebody else's."""

    depth: int = 3


def test_only_known_recipes_with_known_fields_are_made() -> None:
    assert "'Unknown' is not known here" in refuse(lambda: artifacts.decode(artifacts.encode(Unknown()), CLASSES))
    strange = artifacts.encode(Schedule()) | {"colour": "red"}
    assert "'Schedule' is not known here" in refuse(lambda: artifacts.decode(strange, CLASSES))
    nested = artifacts.encode(DENSITY) | {"law": {"type": "os.system", "command": "true"}}
    assert "'os.system' is not known here" in refuse(lambda: artifacts.decode(nested, CLASSES))


def test_the_hash_of_a_recipe_sees_every_field() -> None:
    one = artifacts.recipe_hash(DENSITY, 3)
    assert one == artifacts.recipe_hash(replace(DENSITY), 3)
    others = [replace(DENSITY, ensemble=3), replace(DENSITY, likelihood=replace(BRIEF, clip=1.0)), Gaussian()]
    assert len({one, artifacts.recipe_hash(DENSITY, 4), *(artifacts.recipe_hash(other, 3) for other in others)}) == 5


def test_saving_twice_writes_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        DENSITY.fit(ROWS, seed=1).save(tmp_path / name)
    for file in (artifacts.WEIGHTS, artifacts.RECIPE):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_an_artifact_tells_where_it_came_from(tmp_path: Path) -> None:
    D3QN(hidden=(8,), schedule=Schedule(steps=2)).fit(logged(), CartPole(), seed=5).save(tmp_path)
    header = json.loads((tmp_path / artifacts.RECIPE).read_text())
    assert header["version"] == counterpoint.__version__
    assert (header["origin"]["seed"], header["origin"]["data"]) == (5, logged().fingerprint)
    assert header["recipe"]["type"] == "D3QN"


def logged() -> Transitions:
    task = CartPole()
    return counterpoint.simulate(task, counterpoint.random_policy(task), 2, 20, 0)


def test_a_whole_artifact_is_read(folder: Path) -> None:
    weights, header = artifacts.load(folder)
    assert torch.equal(weights["weight"], torch.arange(600.0))
    assert header["kind"] == "scm"


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_truncated_weights_are_one_line(folder: Path, share: float) -> None:
    path = folder / artifacts.WEIGHTS
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    assert "weights.safetensors' does not match its recipe" in refuse(lambda: counterpoint.load(folder))


def test_a_changed_number_is_noticed(folder: Path) -> None:
    path = folder / artifacts.WEIGHTS
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert "does not match its recipe (truncated or damaged)" in refuse(lambda: counterpoint.load(folder))


def test_missing_files_are_one_line(folder: Path, tmp_path: Path) -> None:
    assert "has no readable recipe.json" in refuse(lambda: counterpoint.load(tmp_path / "nowhere"))
    (folder / artifacts.WEIGHTS).unlink()
    assert "has no weights.safetensors" in refuse(lambda: counterpoint.load(folder))
    assert "does not exist" in refuse(lambda: artifacts.read_tensors(tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "is not JSON"),
        (b'{"format": "counter', "is not JSON"),
        (b"\xff\xfe", "has no readable recipe.json"),
        (b'{"a": 1}', "is not a counterpoint/1 recipe"),
        (b"[1, 2]", "is not a counterpoint/1 recipe"),
        (b'{"format": "counterpoint/2"}', "is not a counterpoint/1 recipe"),
    ],
)
def test_a_foreign_or_broken_recipe_is_one_line(folder: Path, text: bytes, words: str) -> None:
    (folder / artifacts.RECIPE).write_bytes(text)
    assert words in refuse(lambda: counterpoint.load(folder))


def change_header(folder: Path, **changes: Any) -> None:
    path = folder / artifacts.RECIPE
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"recipe": 3},
        {"recipe": {"type": "Schedule"}},
        {"recipe": artifacts.encode(replace(DENSITY, hidden=(9,)))},
        {"recipe": artifacts.encode(replace(DENSITY, order=(0, 1)))},
        {"recipe": artifacts.encode(replace(DENSITY, law=Spline()))},
        {"members": 3},
        {"members": "two"},
        {"context": None},
        {"state_names": 4},
        {"recipe": {"type": ["Schedule"]}},
    ],
)
def test_a_recipe_that_does_not_fit_its_weights_is_one_line(changes: dict[str, Any], tmp_path: Path) -> None:
    DENSITY.fit(ROWS).save(tmp_path)
    change_header(tmp_path, **changes)
    assert refuse(lambda: counterpoint.load(tmp_path))


def test_a_recipe_of_another_version_is_one_line(tmp_path: Path) -> None:
    DENSITY.fit(ROWS).save(tmp_path)
    change_header(tmp_path, recipe={"type": "NewSCM"})
    assert refuse(lambda: counterpoint.load(tmp_path)).startswith("recipe of type 'NewSCM' is not known here;")


def test_an_artifact_without_a_recipe_inside_is_one_line(folder: Path) -> None:
    assert "does not hold what its recipe says" in refuse(lambda: counterpoint.load(folder))


def test_a_model_is_not_a_policy(tmp_path: Path) -> None:
    DENSITY.fit(ROWS).save(tmp_path)
    text = refuse(lambda: load_kind(tmp_path, Policy, "a policy"))
    assert "holds a StructuralCausalModel, not a policy" in text


class Trap:
    """Unpickling it would leave a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def test_pickled_weights_are_refused_and_never_run(folder: Path, tmp_path: Path) -> None:
    payload = pickle.dumps(Trap(tmp_path / "sprung"))
    (folder / artifacts.WEIGHTS).write_bytes(payload)
    change_header(folder, weights_sha256=hashlib.sha256(payload).hexdigest())
    assert "is damaged or not a safetensors file" in refuse(lambda: counterpoint.load(folder))
    assert not (tmp_path / "sprung").exists()


def test_foreign_safetensors_have_no_notes(tmp_path: Path) -> None:
    save_file({"x": torch.ones(2)}, tmp_path / "foreign", metadata={"notes": "not JSON"})
    assert "is damaged" in refuse(lambda: artifacts.read_tensors(tmp_path / "foreign"))
    save_file({"x": torch.ones(2)}, tmp_path / "foreign")
    assert artifacts.read_tensors(tmp_path / "foreign")[1] == {}


def test_notes_and_tensors_survive_and_bytes_repeat(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(6).view(2, 3).T, "b": torch.zeros(0, 4), "c": torch.tensor(True)}
    notes = {f"note {i}": str(i) for i in range(8)}
    for name in ("one", "two"):
        artifacts.write_tensors(tmp_path / name, tensors, notes)
    read, read_notes = artifacts.read_tensors(tmp_path / "one")
    assert read_notes == notes
    assert all(torch.equal(read[name], tensors[name]) for name in tensors)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "result.txt"
    artifacts.write_atomically(path, lambda file: file.write(b"old"))

    def break_off(file: Any) -> None:
        file.write(b"half of the n")
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        artifacts.write_atomically(path, break_off)
    assert path.read_bytes() == b"old"
    assert [p.name for p in path.parent.iterdir()] == ["result.txt"]


def test_a_failed_save_leaves_the_old_weights(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_off(tensors: Any, path: Path, metadata: Any) -> None:
        Path(path).write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(artifacts, "save_file", break_off)
    with pytest.raises(OSError, match="no space"):
        artifacts.save(folder, {"weight": torch.zeros(3)}, {})
    assert torch.equal(artifacts.load(folder)[0]["weight"], torch.arange(600.0))
    assert {p.name for p in folder.iterdir()} == {artifacts.WEIGHTS, artifacts.RECIPE}


def test_new_weights_beside_an_old_recipe_are_noticed(folder: Path, tmp_path: Path) -> None:
    """What a kill between the two writes of `save` leaves behind."""
    artifacts.save(tmp_path / "new", {"weight": torch.zeros(3)}, {})
    (folder / artifacts.WEIGHTS).write_bytes((tmp_path / "new" / artifacts.WEIGHTS).read_bytes())
    assert "does not match its recipe" in refuse(lambda: artifacts.load(folder))


def test_devices_by_name() -> None:
    assert artifacts.device_of("cpu") == torch.device("cpu")
    assert artifacts.device_of("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert "device 'gpu' is not known; use auto, cpu or cuda" in refuse(lambda: artifacts.device_of("gpu"))
