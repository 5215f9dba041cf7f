"""What the user declares of the state: rows that are not so are refused, and every imagined row is so."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import counterpoint as cp
from counterpoint.data.jobs import Job, fitting_table
from counterpoint.simulation.models import ModelSimulator
from counterpoint.simulation.rollout import Rollout
from recipes import BRIEF, Pays
from tables import ward

NAMES = ("x", "n", "c", "s")
KNOWN = cp.Knowledge(bounds=(("x", -1.0, 2.0),), whole=("n",), circles=(("c", "s"),))


def test_the_nearest_state_that_is_as_declared() -> None:
    state = torch.tensor([[3.0, 1.6, 3.0, 4.0], [-5.0, -0.4, 0.0, -2.0], [0.5, 2.0, 0.6, 0.8]])
    expected = torch.tensor([[2.0, 2.0, 0.6, 0.8], [-1.0, 0.0, 0.0, -1.0], [0.5, 2.0, 0.6, 0.8]])
    torch.testing.assert_close(KNOWN.hold(state, NAMES), expected)
    assert cp.Knowledge().hold(state, NAMES) is state


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (0, 2.5, r"column 'x' is not as declared \(from -1 to 2\) in 1 rows; correct"),
        (1, 1.5, r"column 'n' is not as declared \(whole numbers\)"),
        (2, 0.1, r"column 'c' is not as declared \(on a circle with 'c and s'\)"),
    ],
)
def test_rows_that_are_not_as_declared_are_refused(place: int, value: float, said: str) -> None:
    state = torch.tensor([[0.5, 2.0, 0.6, 0.8], [torch.nan] * 4])
    KNOWN.check(state, NAMES)
    state[0, place] = value
    with pytest.raises(cp.CounterpointError, match=said):
        KNOWN.check(state, NAMES)


def test_declarations_name_columns_that_are_there() -> None:
    with pytest.raises(cp.CounterpointError, match="'z' is declared and is not a state column"):
        cp.Schema.of(["x"], cp.Discrete.of([0, 1]), knowledge=cp.Knowledge(whole=("z",)))
    with pytest.raises(cp.CounterpointError, match="mirror names 'z'"):
        cp.Schema.of(["x"], cp.Discrete.of([0, 1]), knowledge=cp.Knowledge(mirror=("x", "z")))
    with pytest.raises(cp.CounterpointError, match="give the lower one first"):
        cp.Knowledge(bounds=(("x", 1.0, 1.0),))


def test_declarations_are_about_numbers_and_mirrors_about_actions_that_there_are() -> None:
    treatments, doses = cp.Discrete.one_hot(3), cp.Discrete.of([0, 1, 4])
    for actions in (treatments, doses):
        with pytest.raises(cp.CounterpointError, match="some actions are none"):
            cp.Schema.of(["x"], actions, knowledge=cp.Knowledge(mirror=("x", "action_0")))
    cp.Schema.of(["x"], cp.Discrete.of([0, 2, 4]), knowledge=cp.Knowledge(mirror=("x", "action_0")))
    sex = (cp.Column("sex", levels=("f", "m")),)
    for known in (cp.Knowledge(whole=("sex",)), cp.Knowledge(mirror=("sex",))):
        with pytest.raises(cp.CounterpointError, match="'sex' is a category"):
            cp.Schema(sex, doses, ("dose",), knowledge=known)
    with pytest.raises(cp.CounterpointError, match="'dose' is declared and is not a state column"):
        cp.Schema.of(["x"], doses, ["dose"], knowledge=cp.Knowledge(bounds=(("dose", 0.0, 1.0),), mirror=("dose",)))


def test_a_table_carries_its_declarations(tmp_path: Path) -> None:
    told = {"subject": "id", "time": "hour", "state": ["lactate", "age"], "action": "dose", "reward": "r"}
    told |= {"done": "died", "last": "truncate"}
    known = cp.Knowledge(bounds=(("age", 0.0, 120.0),))
    rows = cp.from_dataframe(ward(), **told, actions=cp.Bins(), knowledge=known)  # pyright: ignore[reportArgumentType]
    cp.write(rows, tmp_path / "rows.parquet")
    assert cp.read(tmp_path / "rows.parquet").schema.knowledge == known
    young = cp.Knowledge(bounds=(("age", 0.0, 20.0),))
    with pytest.raises(cp.CounterpointError, match="column 'age' is not as declared"):
        cp.from_dataframe(ward(), **told, actions=cp.Bins(), knowledge=young)  # pyright: ignore[reportArgumentType]


def turning(rows: int = 160) -> cp.Transitions:
    """An angle that turns by the action and noise, as cosine and sine, and a count of steps."""
    random = torch.Generator().manual_seed(0)
    angle = torch.zeros(rows + 1)
    actions = torch.randint(2, (rows, 1), generator=random).float()
    for t in range(rows):
        angle[t + 1] = angle[t] + 0.5 * (2 * actions[t, 0] - 1) + 0.1 * torch.randn((), generator=random)
    count = torch.randint(10, (rows + 1,), generator=random).float()
    states = torch.stack([angle.cos(), angle.sin(), count], 1)
    known = cp.Knowledge(bounds=(("n", 0.0, 9.0),), whole=("n",), circles=(("c", "s"),))
    flags = torch.zeros(rows, dtype=torch.bool)
    return cp.Transitions.logged(
        state=states[:-1], action=actions, reward=torch.zeros(rows), next_state=states[1:], terminated=flags,
        truncated=flags, subject=torch.arange(rows) // 20, step=torch.arange(rows) % 20,
        schema=cp.Schema.of(["c", "s", "n"], cp.Discrete.of([0, 1]), knowledge=known),
    )  # fmt: skip


BRIEF_MODELS = [
    cp.DensitySCM(ensemble=2, hidden=(8,), likelihood=BRIEF),
    cp.GaussianDynamics(2, (8,), likelihood=BRIEF),
]


@pytest.mark.parametrize("recipe", BRIEF_MODELS)
def test_every_imagined_row_is_as_declared(recipe: cp.DensitySCM) -> None:
    rows = turning()
    model = recipe.fit(rows)
    random = torch.Generator().manual_seed(1)
    state, action = rows.state, 1 - rows.action
    answers = [model.sample(state, action, random), model.imagine(rows, action[:, None], random)[:, 0]]
    simulator = ModelSimulator([model])
    rollout = Rollout(simulator, Pays(rows.actions), lambda s, t: torch.ones_like(s[..., :1]))
    answers += [step.next_state[0] for step in rollout(state[None, :20], simulator.fresh(20, 0), 5)]
    for answer in answers:
        torch.testing.assert_close(answer[:, :2].norm(dim=1), torch.ones(len(answer)))
        assert torch.equal(answer[:, 2], answer[:, 2].round())
        assert 0 <= answer[:, 2].min() <= answer[:, 2].max() <= 9
    bare = replace(rows, schema=replace(rows.schema, knowledge=cp.Knowledge()))
    free = recipe.fit(bare).sample(state, action, random)
    assert (free[:, :2].norm(dim=1) - 1).abs().max() > 0.05


def test_a_mirror_shows_a_fit_every_row_twice() -> None:
    task = cp.CartPole(mirror_declared=True)
    rows = cp.simulate(task, cp.random_policy(task), 3, 20, seed=0)
    table, plain = fitting_table(Job(rows)), fitting_table(Job(replace(rows, schema=cp.CartPole().schema)))
    n = len(rows)
    assert len(plain["context"]) == n
    for name in plain:
        assert torch.equal(table[name][:n], plain[name])
    assert torch.equal(table["subject"][n:], plain["subject"])
    torch.testing.assert_close(table["context"][n:, :4], -rows.state)
    torch.testing.assert_close(table["next_state"][n:], -rows.next_state)
    torch.testing.assert_close(table["context"][n:, 4:], 1 - rows.action)
    physics = task.transition(table["state"][n:], table["context"][n:, 4:], torch.zeros(n, 5))
    torch.testing.assert_close(physics, -task.transition(rows.state, rows.action, torch.zeros(n, 5)))
