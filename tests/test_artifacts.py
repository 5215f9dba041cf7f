"""Fitted things on disk: whole or refused in one line, and the same bits when they come back."""

import json
import pickle
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

import counterpoint
from counterpoint.cli import demo_chain
from counterpoint.core import artifacts
from counterpoint.core.artifacts import Artifact, Saved
from counterpoint.core.errors import CounterpointError
from counterpoint.core.seeding import generator
from counterpoint.data.jobs import Job, Origin, fitting_table
from counterpoint.data.schema import Schema
from counterpoint.data.spaces import Box, Discrete
from counterpoint.data.transitions import Transitions, first_outcome
from counterpoint.learners.base import PolicyLearner
from counterpoint.learners.baselines.bcq import BCQ
from counterpoint.learners.baselines.pets import PETS, Planner
from counterpoint.learners.baselines.steve import MVE, STEVE
from counterpoint.learners.ctrl_g import CTRLg
from counterpoint.learners.d3qn import D3QN
from counterpoint.learners.methods import named_methods
from counterpoint.models.dynamics.outcome import Outcome
from counterpoint.models.scm.auto import AutoSCM
from counterpoint.models.scm.base import SCMRecipe, StructuralCausalModel, StructuralMechanism
from counterpoint.models.scm.density import fit_graph
from counterpoint.models.scm.mixed import MixedSCM
from counterpoint.nets.laws import Gaussian, Spline
from counterpoint.nets.training import Monitor, Schedule
from counterpoint.policies.base import Policy
from counterpoint.registry import Registry
from counterpoint.simulation.augmentation import Augmenter
from counterpoint.simulation.selection import CheckpointSelection
from counterpoint.tasks.cartpole import CartPole
from counterpoint.tasks.tumour import Tumour, TumourResponse, population
from helpers.recipes import BRIEF, DENSITY, MODELS, ROWS, SCMS
from reproduction.arms import quick_arms


def refuse(call: Callable[[], object]) -> str:
    with pytest.raises(CounterpointError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@dataclass(frozen=True)
class Plain:
    """A recipe whose fitted thing is a handful of numbers."""

    depth: int = 3

    def rebuild(self, saved: Saved) -> "Numbers":
        return Numbers(self, saved.weights["weight"])


class Numbers(Artifact):
    """The smallest artifact there can be."""

    kind: ClassVar[str] = "numbers"

    def __init__(self, recipe: Plain, weight: Tensor) -> None:
        self.recipe, self.weight = recipe, weight
        self.schema, self.origin = Schema.of(("x",), Discrete.of([0, 1])), Origin(1, "data", "theta")

    def weights(self) -> dict[str, Tensor]:
        return {"weight": self.weight}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole artifact."""
    Numbers(Plain(), torch.arange(600.0)).save(tmp_path / "model")
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
    assert (loaded.recipe, loaded.schema) == (model.recipe, rows.schema)
    assert (model.recipe, loaded.structure) == (recipe, model.structure)
    if isinstance(recipe, MixedSCM):
        assert model.structure == replace(recipe, amounts=model.structure.amounts)  # Chosen by the rows.
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
    rows = replace(ROWS, reward=ROWS.state[:, 0], outcome=first_outcome(ROWS.next_state[:, 0] > 1))
    task = Outcome(hidden=(8,), likelihood=BRIEF).fit(rows)
    task.save(tmp_path)
    loaded = counterpoint.load(tmp_path)
    asked = rows.state, rows.action, rows.next_state
    assert torch.equal(loaded.reward(*asked), task.reward(*asked))
    assert 0 < task.expected(*asked)[1].min() < 1
    for one, other in zip(loaded.branches(*asked), task.branches(*asked), strict=True):
        assert torch.equal(one, other)
    for one, other in zip(loaded.expected(*asked), task.expected(*asked), strict=True):
        assert torch.equal(one, other)
    known = ("discount", "horizon", "outcome_names", "recipe", "origin", "fingerprint")
    assert all(getattr(loaded, name) == getattr(task, name) for name in known)


@pytest.mark.parametrize("arms", [lambda: demo_chain.arms(1.0), named_methods, quick_arms])
def test_every_recipe_of_the_arms_survives_json(arms: Callable[[], dict[str, PolicyLearner]]) -> None:
    for arm in arms().values():
        text = json.dumps(artifacts.encode(arm))
        assert artifacts.decode(json.loads(text), Registry()) == arm


def test_a_task_survives_json_with_every_option() -> None:
    task = CartPole(gravity=3.7, noise_reading="absolute", noise_size=0.1, evaluation_noise_size=0.0, horizon=7)
    assert artifacts.decode(json.loads(json.dumps(artifacts.encode(task))), Registry()) == task


@pytest.mark.parametrize("space", [Discrete.one_hot(3), Discrete.of([0, 0.1]), Box((0.0, -1.0), (1.0, 2.5))])
def test_spaces_survive_json(space: Discrete | Box) -> None:
    assert artifacts.decode(json.loads(json.dumps(artifacts.encode({"space": [space]}))), Registry()) == {
        "space": (space,)
    }


@dataclass(frozen=True)
class Unknown:
    """A recipe of somebody else's."""

    depth: int = 3


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([[0.1, -1e-30], [torch.inf, 3.0]]),
        torch.tensor(0.1, dtype=torch.float64) / 3,
        torch.tensor([2**62 + 1, -5]),
        torch.tensor([True, False]),
        torch.zeros(2, 0),
    ],
)
def test_tensors_survive_json_bit_for_bit(tensor: Tensor) -> None:
    back = artifacts.decode(json.loads(json.dumps(artifacts.encode(tensor))), Registry())
    assert back.dtype == tensor.dtype
    assert torch.equal(back.view(tensor.shape), tensor)


def test_only_known_recipes_with_known_fields_are_made() -> None:
    assert "'Unknown' is not known here" in refuse(lambda: artifacts.decode(artifacts.encode(Unknown()), Registry()))
    strange = artifacts.encode(Schedule()) | {"colour": "red"}
    assert "'Schedule' is not known here" in refuse(lambda: artifacts.decode(strange, Registry()))
    nested = artifacts.encode(DENSITY) | {"law": {"type": "os.system", "command": "true"}}
    assert "'os.system' is not known here" in refuse(lambda: artifacts.decode(nested, Registry()))


def test_the_hash_of_a_recipe_sees_every_field() -> None:
    one = artifacts.recipe_hash(DENSITY, 3)
    assert one == artifacts.recipe_hash(replace(DENSITY), 3)
    others = [replace(DENSITY, ensemble=3), replace(DENSITY, likelihood=replace(BRIEF, clip=1.0)), Gaussian()]
    assert len({one, artifacts.recipe_hash(DENSITY, 4), *(artifacts.recipe_hash(other, 3) for other in others)}) == 5


def test_the_hash_of_a_population_knows_every_patient() -> None:
    """Tensors count by their numbers: printed, a long column leaves out its middle."""
    patients = population(2000, seed=0)
    radio = patients.radio.clone()
    radio[1000] *= 1 + 1e-6
    one, other = Tumour(patients), Tumour(patients._replace(radio=radio))
    assert repr(one.response) == repr(other.response)
    hashes = [artifacts.recipe_hash(task) for task in (one, Tumour(population(2000, seed=0)), other)]
    assert hashes[0] == hashes[1] != hashes[2]
    shorter = Tumour(TumourResponse(*(column[:-1] for column in patients)))
    assert artifacts.recipe_hash(shorter) != hashes[0]


@dataclass(frozen=True)
class Shaped:
    """A recipe with something inside."""

    inside: Any


@pytest.mark.parametrize(
    ("inside", "name"),
    [
        (lambda state: state, "<lambda>"),
        (refuse, "refuse"),
        (Plain().rebuild, "rebuild"),
        ({3, 4}, "set"),
        (1j, "complex"),
        (Gaussian, "Gaussian"),
        (int, "int"),
        (nn.Linear(2, 2), "Linear"),
    ],
)
def test_what_cannot_be_written_exactly_is_refused(inside: Any, name: str) -> None:
    """An address in memory or a name would give two different recipes one hash, or one recipe two."""
    for value in (inside, Shaped(inside), [inside], {"inside": inside}, Shaped((1, Shaped(inside)))):
        for write in (artifacts.encode, artifacts.recipe_hash):
            refusal = refuse(lambda value=value, write=write: write(value))
            assert refusal.startswith(f"{name} cannot be written exactly; make it a frozen dataclass")


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
    loaded = counterpoint.load(folder, Numbers, [Plain])
    assert torch.equal(loaded.weight, torch.arange(600.0))
    assert (loaded.kind, loaded.recipe) == ("numbers", Plain())


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_truncated_weights_are_one_line(folder: Path, share: float) -> None:
    path = folder / artifacts.WEIGHTS
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    assert "weights.safetensors' is damaged" in refuse(lambda: counterpoint.load(folder, Numbers, [Plain]))


def test_a_changed_number_is_noticed(folder: Path) -> None:
    path = folder / artifacts.WEIGHTS
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    refusal = refuse(lambda: counterpoint.load(folder, Numbers, [Plain]))
    assert "is not as it was saved (edited, truncated or damaged)" in refusal


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
        (b"\xff\xfe", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"a": 1}', "is not a counterpoint/5 recipe"),
        (b"[1, 2]", "is not a JSON object"),
        (b'{"format": "counterpoint/4", "kind": "policy"}', "make it again with counterpoint train"),
        (b'{"format": "counterpoint/5"}', "is not as it was saved"),
    ],
)
def test_a_foreign_or_broken_recipe_is_one_line(folder: Path, text: bytes, words: str) -> None:
    (folder / artifacts.RECIPE).write_bytes(text)
    assert words in refuse(lambda: counterpoint.load(folder))


def change_header(folder: Path, **changes: Any) -> None:
    """Edit the recipe and sign it again, as a version of the package with another idea of recipes would."""
    path = folder / artifacts.RECIPE
    header = json.loads(path.read_text()) | changes
    about = {name: header.pop(name) for name in ("format", "version")}
    header.pop("fingerprint")
    header = {name: value for name, value in header.items() if value is not MISSING}
    tensors = artifacts.read_tensors(folder / artifacts.WEIGHTS)[0]
    signed = header | {"fingerprint": artifacts.digest([header, artifacts.tensors_hash(tensors)])}
    path.write_text(json.dumps(about | signed))


MISSING = object()


@pytest.mark.parametrize(
    "changes",
    [
        {"recipe": 3},
        {"recipe": {"type": "Schedule"}},
        {"recipe": artifacts.encode(replace(DENSITY, hidden=(9,)))},
        {"recipe": artifacts.encode(DENSITY) | {"order": [0, 0]}},
        {"recipe": artifacts.encode(replace(DENSITY, order=(0, 1)))},
        {"recipe": artifacts.encode(replace(DENSITY, law=Spline()))},
        {"recipe": artifacts.encode(MODELS["deterministic"])},
        {"members": 3},
        {"members": "two"},
        {"members": MISSING},
        {"context": None},
        {"schema": 4},
        {"schema": artifacts.encode(ROWS.schema) | {"states": 4}},
        {"schema": artifacts.encode(Schema.of(["s1"], ROWS.actions))},
        {"schema": artifacts.encode(ROWS.schema) | {"action_names": ["a", "b"]}},
        {"parts": 3},
        {"parts": MISSING},
        {"parts": {"model": {"parts": {}}}},
        {"origin": {"type": "Origin", "seed": 3}},
        {"recipe": {"type": ["Schedule"]}},
    ],
)
def test_a_recipe_that_does_not_fit_its_weights_is_one_line(changes: dict[str, Any], tmp_path: Path) -> None:
    DENSITY.fit(ROWS).save(tmp_path)
    change_header(tmp_path)
    assert counterpoint.load(tmp_path).recipe == DENSITY
    change_header(tmp_path, **changes)
    refusal = refuse(lambda: counterpoint.load(tmp_path))
    assert "is not as it was saved" not in refusal


def change_weights(folder: Path, change: Callable[[Tensor], Tensor], name: str) -> None:
    """Edit one tensor and sign the artifact again."""
    tensors, notes = artifacts.read_tensors(folder / artifacts.WEIGHTS)
    tensors[name] = change(tensors[name])
    artifacts.write_tensors(folder / artifacts.WEIGHTS, tensors, notes)
    change_header(folder)


def first_number(value: float) -> Callable[[Tensor], Tensor]:
    def change(tensor: Tensor) -> Tensor:
        flat = tensor.flatten().clone()
        flat[0] = value
        return flat.view(tensor.shape)

    return change


FORGED = {
    "nan": (first_number(float("nan")), "are not finite"),
    "infinity": (first_number(float("inf")), "are not finite"),
    "another type": (Tensor.double, "has another shape or type"),
    "twice": (lambda tensor: torch.cat([tensor, tensor]), ""),
    "flat": (lambda tensor: tensor.flatten(), ""),
}


@pytest.fixture(scope="module")
def fitted() -> dict[str, Artifact]:
    """One artifact of each kind."""
    policy = POLICY.fit(logged(), CartPole())
    return {"policy": policy, "scm": DENSITY.fit(ROWS), "task": Outcome().fit(ROWS)}


@pytest.mark.parametrize("forged", FORGED)
@pytest.mark.parametrize("kind", ["policy", "scm", "task"])
def test_weights_whose_hash_was_written_anew_are_checked(
    fitted: dict[str, Artifact], kind: str, forged: str, tmp_path: Path
) -> None:
    fitted[kind].save(tmp_path)
    tensors, _ = artifacts.read_tensors(tmp_path / artifacts.WEIGHTS)
    name = max((name for name in tensors if tensors[name].is_floating_point()), key=lambda name: tensors[name].numel())
    change_weights(tmp_path, lambda tensor: tensor, name)
    counterpoint.load(tmp_path)
    change, words = FORGED[forged]
    change_weights(tmp_path, change, name)
    refusal = refuse(lambda: counterpoint.load(tmp_path))
    assert words in refusal
    assert "does not hold what its recipe says" in refusal


def test_only_the_logits_of_what_never_happens_are_minus_infinity(fitted: dict[str, Artifact], tmp_path: Path) -> None:
    fitted["task"].save(tmp_path)
    counterpoint.load(tmp_path)
    change_weights(tmp_path, first_number(-float("inf")), "before_intercept")
    counterpoint.load(tmp_path)
    change_weights(tmp_path, first_number(float("inf")), "before_intercept")
    assert "before_intercept are not finite" in refuse(lambda: counterpoint.load(tmp_path))


def test_a_recipe_of_another_version_is_one_line(tmp_path: Path) -> None:
    DENSITY.fit(ROWS).save(tmp_path)
    change_header(tmp_path, recipe={"type": "NewSCM"})
    assert refuse(lambda: counterpoint.load(tmp_path)).startswith("'NewSCM' is not known here; name your own class")


def numbers_in(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every number in a JSON value, as the container and the key it lies under."""
    keys = value if isinstance(value, dict) else range(len(value))
    for key in keys:
        if isinstance(value[key], dict | list):
            yield from numbers_in(value[key])
        elif isinstance(value[key], int | float):
            yield value, key


def test_no_number_of_a_recipe_can_be_edited(tmp_path: Path) -> None:
    DENSITY.fit(ROWS, seed=4).save(tmp_path)
    path = tmp_path / artifacts.RECIPE
    text = path.read_text()
    header = json.loads(text)
    edits = 0
    for container, key in numbers_in(header):
        before = container[key]
        container[key] = (not before) if isinstance(before, bool) else before + 1
        path.write_text(json.dumps(header, indent=2))
        assert "is not as it was saved" in refuse(lambda: counterpoint.load(tmp_path))
        container[key] = before
        edits += 1
    assert edits > 20
    path.write_text(json.dumps(header))
    assert counterpoint.load(tmp_path).origin.seed == 4


def test_the_recipe_of_a_part_cannot_be_edited_either(tmp_path: Path) -> None:
    POLICIES["PETS"].fit(logged(), CartPole(gravity=3.5)).save(tmp_path)
    path = tmp_path / artifacts.RECIPE
    assert counterpoint.load(tmp_path).task.gravity == 3.5
    path.write_text(path.read_text().replace('"gravity": 3.5', '"gravity": 9.8'))
    assert "is not as it was saved" in refuse(lambda: counterpoint.load(tmp_path))


def test_the_fingerprint_sees_the_numbers_of_a_part() -> None:
    policy = POLICIES["PETS"].fit(logged(), CartPole())
    before = policy.fingerprint
    next(policy.model.mechanism.parameters()).data.add_(1)
    assert policy.fingerprint != before


def test_an_artifact_whose_weights_are_of_another_kind_is_one_line(folder: Path) -> None:
    save_file({"other": torch.zeros(3)}, folder / artifacts.WEIGHTS)
    change_header(folder)
    assert "does not hold what its recipe says" in refuse(lambda: counterpoint.load(folder, Numbers, [Plain]))


@dataclass(frozen=True)
class MyTask(CartPole):
    """A task of the user's own, with a field and a reward of its own."""

    price: float = 0.5

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return 1 - self.price * (action[..., 0] - 0.5).abs()


def test_a_users_own_task_comes_back_when_its_class_is_named(tmp_path: Path) -> None:
    task = MyTask(price=0.25, gravity=3.7)
    policy = POLICIES["PETS"].fit(logged(), task)
    policy.save(tmp_path)
    loaded = counterpoint.load(tmp_path, Policy, [MyTask])
    assert loaded.task == task
    assert torch.equal(loaded.act(logged().state), policy.act(logged().state))
    assert refuse(lambda: counterpoint.load(tmp_path)).startswith("'MyTask' is not known here; name your own class")
    assert "'MyTask' is not known here" in refuse(lambda: counterpoint.load(tmp_path, Policy, [MyRecipe]))


class Slope(StructuralMechanism):
    """s' = s + W·(s, a) + u, member by member."""

    def __init__(self, members: int, context: int, state: int) -> None:
        super().__init__()
        self.members, self.context_width, self.noise_width = members, context, state
        self.weight = nn.Parameter(torch.zeros(members, context, state))

    def abduct(self, context: Tensor, state: Tensor, next_state: Tensor) -> Tensor:
        return next_state - state - context @ self.weight

    def predict(self, context: Tensor, state: Tensor, noise: Tensor) -> Tensor:
        return state + context @ self.weight + noise


@dataclass(frozen=True)
class MyRecipe(SCMRecipe):
    """An SCM of the user's own: least squares, each member with its own ridge."""

    ridges: tuple[float, ...] = (0.1, 10.0)

    def fit_many(
        self, jobs: Sequence[Job], monitor: Monitor = Monitor(), device: str = "cpu"
    ) -> list[StructuralCausalModel]:
        tables = [fitting_table(job) for job in jobs]
        whole = self.build(tables[0]["state"].shape[1], tables[0]["context"].shape[1], len(self.ridges) * len(jobs))
        solutions = [self._solve(table, ridge) for table in tables for ridge in self.ridges]
        whole.weight.data = torch.stack(solutions)
        return self.cut(whole, jobs)

    def build(self, state: int, context: int, members: int) -> Slope:
        return Slope(members, context, state)

    def _solve(self, table: dict[str, Tensor], ridge: float) -> Tensor:
        x, y = table["context"], table["next_state"] - table["state"]
        return torch.linalg.solve(x.mT @ x + ridge * torch.eye(x.shape[1]), x.mT @ y)


def test_a_users_own_recipe_comes_back_when_its_class_is_named(tmp_path: Path) -> None:
    models = MyRecipe().fit_many([Job(ROWS, 1), Job(ROWS[:60], 2)])
    other = ROWS.actions.sample(len(ROWS), generator(1))
    for i, model in enumerate(models):
        model.save(tmp_path / str(i))
        loaded = counterpoint.load(tmp_path / str(i), StructuralCausalModel, [MyRecipe])
        assert (loaded.recipe, loaded.origin, loaded.fingerprint) == (MyRecipe(), model.origin, model.fingerprint)
        assert torch.equal(loaded.counterfactual(ROWS, other), model.counterfactual(ROWS, other))
        torch.testing.assert_close(loaded.counterfactual(ROWS, ROWS.action), ROWS.next_state)
    refusal = refuse(lambda: counterpoint.load(tmp_path / "0"))
    assert refusal.startswith("'MyRecipe' is not known here; name your own class when loading")
    learned = CTRLg(MyRecipe(), Augmenter(1), POLICY).fit(logged(), CartPole())
    learned.save(tmp_path / "policy")
    assert counterpoint.load(tmp_path / "policy").recipe == POLICY


def test_a_model_is_not_a_policy(tmp_path: Path) -> None:
    DENSITY.fit(ROWS).save(tmp_path)
    text = refuse(lambda: counterpoint.load(tmp_path, Policy))
    assert "holds a StructuralCausalModel, not a policy" in text


class Trap:
    """Unpickling it would leave a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def test_pickled_weights_are_refused_and_never_run(folder: Path, tmp_path: Path) -> None:
    (folder / artifacts.WEIGHTS).write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    assert "is damaged or not a safetensors file" in refuse(lambda: counterpoint.load(folder, Numbers, [Plain]))
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
    artifacts.write_text(path, "old")

    def break_off() -> None:
        with artifacts.replacing(path) as draft:
            draft.write_text("half of the n")
            raise OSError(28, "no space left")

    assert refuse(break_off).startswith(f"cannot write '{path}': No space left on device; free some disk space")
    assert path.read_text() == "old"
    assert [p.name for p in path.parent.iterdir()] == ["result.txt"]


def test_a_reader_sees_the_old_file_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "result.txt"
    artifacts.write_text(path, "old")
    with artifacts.replacing(path) as draft:
        draft.write_text("new")
        assert path.read_text() == "old"
        assert draft.parent == path.parent
    assert path.read_text() == "new"
    assert [p.name for p in path.parent.iterdir()] == ["result.txt"]


def test_a_failed_save_leaves_the_old_weights(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_off(tensors: Any, path: Path, metadata: Any) -> None:
        Path(path).write_bytes(b"half")
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(artifacts, "save_file", break_off)
    refusal = refuse(lambda: Numbers(Plain(), torch.zeros(3)).save(folder))
    assert "weights.safetensors': No space left on device; free some disk space" in refusal
    assert torch.equal(counterpoint.load(folder, Numbers, [Plain]).weight, torch.arange(600.0))
    assert {p.name for p in folder.iterdir()} == {artifacts.WEIGHTS, artifacts.RECIPE}


def test_new_weights_beside_an_old_recipe_are_noticed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kill between the two writes of `save` leaves behind."""

    def killed(path: Path, text: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(artifacts, "write_text", killed)
    with pytest.raises(KeyboardInterrupt):
        Numbers(Plain(), torch.zeros(3)).save(folder)
    assert torch.equal(artifacts.read_tensors(folder / artifacts.WEIGHTS)[0]["weight"], torch.zeros(3))
    assert "is not as it was saved" in refuse(lambda: counterpoint.load(folder, Numbers, [Plain]))


POLICY = D3QN(hidden=(8,), schedule=Schedule(steps=5), batch=16)
SELECTING = replace(POLICY, schedule=Schedule(steps=5, check_every=5))
EXPANSION: dict[str, Any] = {"rewards": 2, "q_functions": 2, "model": replace(MODELS["deterministic"], ensemble=2)}
POLICIES = {
    "D3QN": POLICY,
    "BCQ": BCQ(learner=POLICY),
    "PETS": PETS(MODELS["gaussian dynamics"], particles=2, planner=Planner(3, 10, 2, 1)),
    "STEVE": STEVE(horizon=1, learner=POLICY, **EXPANSION),
    "MVE": MVE(horizon=1, learner=POLICY, **EXPANSION),
    "CTRLg": CTRLg(DENSITY, Augmenter(1), POLICY),
    "CTRLg, selecting": CTRLg(DENSITY, Augmenter(1), SELECTING, CheckpointSelection(2, 5)),
}


def training(recipe: Any, rows: Transitions) -> Callable[[int, Monitor], object]:
    return lambda seed, monitor: recipe.fit(rows, seed=seed, monitor=monitor)


def learning(recipe: PolicyLearner) -> Callable[[int, Monitor], object]:
    return lambda seed, monitor: recipe.fit(logged(), CartPole(), seed, monitor)


TRAINED: dict[str, Callable[[int, Monitor], object]] = {
    **{name: training(*each) for name, each in SCMS.items()},
    **{name: training(recipe, ROWS) for name, recipe in MODELS.items()},
    **{name: learning(recipe) for name, recipe in POLICIES.items()},
    "AutoSCM": training(AutoSCM((SCMS["gaussian"][0],)), ROWS),
    "Outcome": training(Outcome(hidden=(8,), likelihood=BRIEF), replace(ROWS, reward=ROWS.state[:, 0])),
    "fit_graph": lambda seed, monitor: fit_graph(DENSITY, [ROWS.state], ((), (0,), (0, 1), ()), [seed], monitor),
}


@pytest.mark.parametrize("name", TRAINED)
def test_every_checkpoint_is_refused_by_another_seed_and_taken_up_by_its_own(name: str, tmp_path: Path) -> None:
    """Each part of a training by itself, so that one part's refusal does not cover up for the next."""
    train, whole = TRAINED[name], tmp_path / "whole"
    train(0, Monitor(whole))
    train(0, Monitor(whole, resume=True))
    checkpoints = list(whole.glob("*.checkpoint.safetensors"))
    assert checkpoints
    for checkpoint in checkpoints:
        alone = tmp_path / checkpoint.name
        alone.mkdir()
        shutil.copy(checkpoint, alone)
        refusal = refuse(lambda folder=alone: train(1, Monitor(folder, resume=True)))
        assert f"'{checkpoint.name}' belongs to another recipe, seed or table" in refusal


def test_devices_by_name() -> None:
    assert artifacts.device_of("cpu") == torch.device("cpu")
    assert artifacts.device_of("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert "device 'gpu' is not known; use auto, cpu or cuda" in refuse(lambda: artifacts.device_of("gpu"))
